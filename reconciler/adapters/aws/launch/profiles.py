"""The instance profile through which a machine gets the role of its class.

A look-up only names it, since a plan writes nothing; it is made before the first launch that
needs it. An imitated EC2 does not ask for it.
"""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import Any, Final

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import Failure, boto_errors, code_of, failure_of, our_error
from reconciler.adapters.aws.tags import CLUSTER, FLEET, as_list
from reconciler.model.errors import TransientCloudError
from reconciler.model.karpenter.labels import NODECLASS
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import ClusterKind, Settings

_ATTEMPTS: Final = 5
_FULL: Final = "LimitExceeded"
_SOON: Final = (
    "the profile was created a moment ago and IAM does not show it yet; it will be retried"
)


def profile_name(node_class: EC2NodeClass, settings: Settings) -> str:
    """Return the name of the profile that carries the class's role, empty if it has none.

    It follows from cluster, region, class and role, so that it is found again; at most 128
    characters, as IAM allows.
    """
    role = node_class.spec.role
    if not role:
        return ""
    facts = f"{settings.region}/{node_class.name}/{role}"
    digest = hashlib.sha256(facts.encode()).hexdigest()[:20]
    return f"{settings.cluster_name[:100]}_{digest}"


def profile_path(settings: Settings) -> str:
    """Return the path in IAM under which all profiles of a region lie."""
    return f"/reconciler/{settings.region}/"


def is_imitated(settings: Settings) -> bool:
    """Return whether no real machine will boot."""
    return bool(settings.endpoint_url) or settings.cluster == ClusterKind.EMBEDDED


class Profiles:
    """Makes the profiles of classes that name a role, and knows which are there."""

    def __init__(self, connect: Connect, settings: Settings) -> None:
        self._connect = connect
        self._settings = settings
        self._known: set[str] = set()
        self._lock = Lock()

    def ensure(self, node_class: EC2NodeClass) -> None:
        """Make the profile of a class, if it is ours to make and not there.

        Raises:
            TransientCloudError, CloudError: IAM did not, for example since the role is not there.
        """
        name = profile_name(node_class, self._settings)
        if not name or name != node_class.status.instance_profile or is_imitated(self._settings):
            return
        with self._lock:
            if name not in self._known:
                self._make(name, node_class)
                self._known.add(name)

    def forget(self, node_class: EC2NodeClass) -> bool:
        """Look for the profile of a class anew with its next launch; return whether it is ours."""
        name = profile_name(node_class, self._settings)
        if not name or name != node_class.status.instance_profile:
            return False
        with self._lock:
            self._known.discard(name)
        return True

    def _make(self, name: str, node_class: EC2NodeClass) -> None:
        iam = self._connect("iam", _ATTEMPTS)
        role = node_class.spec.role.rpartition("/")[2]
        if role in self._roles(iam, name, node_class):
            return
        try:
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
        except boto_errors() as error:
            # A profile takes one role: a repetition, whose first answer was lost, is refused.
            found = self._roles(iam, name, node_class) if code_of(error) == _FULL else [""]
            if role in found:
                return
            told = our_error("iam:AddRoleToInstanceProfile", error)
            if not found or _lacks_profile(error):
                raise TransientCloudError(told.message, where=told.where, remedy=_SOON) from error
            raise told from error

    def _roles(self, iam: Any, name: str, node_class: EC2NodeClass) -> list[str]:
        """Return the roles of a profile that is there, or has just been made."""
        try:
            found = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        except boto_errors() as error:
            if failure_of(error) is not Failure.NOT_FOUND:
                raise our_error("iam:GetInstanceProfile", error) from error
            self._create(iam, name, node_class)
            return []
        return [row["RoleName"] for row in found["Roles"]]

    def _create(self, iam: Any, name: str, node_class: EC2NodeClass) -> None:
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
                Tags=as_list(tags),
            )
        except boto_errors() as error:
            if failure_of(error) is not Failure.EXISTS:
                raise our_error("iam:CreateInstanceProfile", error) from error


def _lacks_profile(error: Exception) -> bool:
    """Return whether IAM does not know the profile; the role is the author's to make."""
    return failure_of(error) is Failure.NOT_FOUND and "instance profile" in str(error).lower()
