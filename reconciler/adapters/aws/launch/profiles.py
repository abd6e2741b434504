"""The instance profile that gives a machine the role of its class.

A look-up only names it, because a plan writes nothing. The profile is created before the first
launch that needs it. A simulated EC2 does not need it.
"""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import Failure, boto_errors, code_of, failure_of, our_error
from reconciler.adapters.aws.tags import CLUSTER, FLEET
from reconciler.model.errors import TransientCloudError
from reconciler.model.karpenter.labels import NODECLASS
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import ClusterKind, Settings

if TYPE_CHECKING:
    from mypy_boto3_iam.client import IAMClient


_ATTEMPTS: Final = 5
_FULL: Final = "LimitExceeded"
_SOON: Final = "the profile was just created, and IAM does not list it yet; it will be retried"


def profile_name(node_class: EC2NodeClass, settings: Settings) -> str:
    """Return the name of the profile with the class's role, empty without a role.

    It is derived from cluster, region, class and role, so that the profile is found again; at most
    128 characters, as IAM allows.
    """
    role = node_class.spec.role
    if not role:
        return ""
    facts = f"{settings.region}/{node_class.name}/{role}"
    digest = hashlib.sha256(facts.encode()).hexdigest()[:20]
    return f"{settings.cluster_name[:100]}_{digest}"


def profile_path(settings: Settings) -> str:
    """Return the IAM path of all profiles of a region."""
    return f"/reconciler/{settings.region}/"


def is_simulated_account(settings: Settings) -> bool:
    """Return whether no real machine will boot."""
    return bool(settings.endpoint_url) or settings.cluster == ClusterKind.EMBEDDED


class Profiles:
    """Creates the profiles of classes with a role, and caches which exist."""

    def __init__(self, connect: Connect, settings: Settings) -> None:
        self._connect = connect
        self._settings = settings
        self._known: set[str] = set()
        self._lock = Lock()

    def ensure(self, node_class: EC2NodeClass) -> None:
        """Create the profile of a class, if it is managed by us and does not exist.

        Raises:
            TransientCloudError, CloudError: IAM did not create it, for example without the role.
        """
        name = profile_name(node_class, self._settings)
        if (
            not name
            or name != node_class.status.instance_profile
            or is_simulated_account(self._settings)
        ):
            return
        with self._lock:
            if name not in self._known:
                self._ensure_role(name, node_class)
                self._known.add(name)

    def forget(self, node_class: EC2NodeClass) -> bool:
        """Look up the profile of a class again at its next launch; return whether it is ours."""
        name = profile_name(node_class, self._settings)
        if not name or name != node_class.status.instance_profile:
            return False
        with self._lock:
            self._known.discard(name)
        return True

    def _ensure_role(self, name: str, node_class: EC2NodeClass) -> None:
        iam = self._connect("iam", _ATTEMPTS)
        role = node_class.spec.role.rpartition("/")[2]
        if role in self._ensure_profile(iam, name, node_class):
            return
        try:
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
        except boto_errors() as error:
            # A profile has one role: a repeated call whose first response was lost is rejected.
            found = self._ensure_profile(iam, name, node_class) if code_of(error) == _FULL else [""]
            if role in found:
                return
            failure = our_error("iam:AddRoleToInstanceProfile", error)
            if not found or _lacks_profile(error):
                raise TransientCloudError(
                    failure.message, where=failure.where, remedy=_SOON
                ) from error
            raise failure from error

    def _ensure_profile(self, iam: IAMClient, name: str, node_class: EC2NodeClass) -> list[str]:
        """Return the roles of a profile that exists or was just created."""
        try:
            found = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        except boto_errors() as error:
            if failure_of(error) is not Failure.NOT_FOUND:
                raise our_error("iam:GetInstanceProfile", error) from error
            self._create_profile(iam, name, node_class)
            return []
        return [row["RoleName"] for row in found["Roles"]]

    def _create_profile(self, iam: IAMClient, name: str, node_class: EC2NodeClass) -> None:
        cluster = self._settings.cluster_name
        tags = {
            **node_class.spec.tags,
            f"kubernetes.io/cluster/{cluster}": "owned",
            CLUSTER: cluster,
            NODECLASS: node_class.name,
            FLEET: self._settings.fleet,
        }
        try:
            iam.create_instance_profile(
                InstanceProfileName=name,
                Path=profile_path(self._settings),
                Tags=[{"Key": key, "Value": tags[key]} for key in sorted(tags)],
            )
        except boto_errors() as error:
            if failure_of(error) is not Failure.EXISTS:
                raise our_error("iam:CreateInstanceProfile", error) from error


def _lacks_profile(error: Exception) -> bool:
    """Return whether the profile is unknown to IAM; the role has to be created by the user."""
    return failure_of(error) is Failure.NOT_FOUND and "instance profile" in str(error).lower()
