"""Launch templates in the account: created once and found by name.

The name is derived from the content, so an existing template is always the right one.

Templates and instance profiles that nothing needs are deleted. A running instance does not need its
template: one that no launch has used for a while is deleted, and created again if a launch needs
it. An instance does need its profile, for its credentials: a profile is deleted only if no class
names it and no instance in the account has it (aws reference 3.3, 4.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import (
    Failure,
    boto_errors,
    failure_of,
    our_error,
    translate_errors,
)
from reconciler.adapters.aws.launch.profiles import is_simulated_account, profile_name, profile_path
from reconciler.adapters.aws.launch.requests import TEMPLATE_PREFIX
from reconciler.adapters.aws.tags import CLUSTER, as_map, owner_of
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import UnusedResource

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import CreateLaunchTemplateRequestTypeDef, FilterTypeDef
    from mypy_boto3_iam.client import IAMClient
    from mypy_boto3_iam.type_defs import InstanceProfileTypeDef


TEMPLATE: Final = "launch-template"
PROFILE: Final = "instance-profile"
UNUSED_FOR: Final = timedelta(minutes=5)
"""How long a template is unused before it is deleted; also the interval of the check."""

PROFILE_AGE: Final = timedelta(hours=1)
PROFILES_EVERY: Final = timedelta(minutes=30)
_ATTEMPTS: Final = 5
_GONE: Final = (Failure.NOT_FOUND, Failure.TEMPLATE_NOT_FOUND)

_CALL: Final = "ec2:CreateLaunchTemplate"


class AwsUnusedResources:
    """The port ``UnusedResources``, for one fleet in one region.

    It limits the rate of its checks, so it can be called in every pass.
    """

    def __init__(
        self,
        ec2: EC2Client,
        connect: Connect,
        settings: Settings,
        clock: Clock,
        templates: LaunchTemplates,
    ) -> None:
        self._ec2 = ec2
        self._connect = connect
        self._settings = settings
        self._clock = clock
        self._templates = templates
        self._checked_at: dict[str, datetime] = {}

    def find_unused(self, classes: Iterable[EC2NodeClass]) -> Sequence[UnusedResource]:
        """Return what can be deleted now, templates first, each by name.

        Raises:
            TransientCloudError, CloudError: AWS did not respond.
        """
        now = self._clock.now()
        rows: list[UnusedResource] = []
        if self._is_due(TEMPLATE, UNUSED_FOR, now):
            rows += self._idle_templates(now)
        if not is_simulated_account(self._settings) and self._is_due(PROFILE, PROFILES_EVERY, now):
            rows += self._idle_profiles(classes, now)
        return rows

    def delete(self, resource: UnusedResource) -> None:
        """Delete it; it is not an error if it no longer exists."""
        if resource.kind == TEMPLATE:
            self._templates.forget(resource.name)
            self._delete(self._ec2, "ec2", "delete_launch_template", LaunchTemplateId=resource.id)
            return
        iam, name = self._connect("iam", _ATTEMPTS), resource.name
        for role in resource.roles:
            self._delete(
                iam,
                "iam",
                "remove_role_from_instance_profile",
                InstanceProfileName=name,
                RoleName=role,
            )
        self._delete(iam, "iam", "delete_instance_profile", InstanceProfileName=name)

    def _is_due(self, kind: str, every: timedelta, now: datetime) -> bool:
        last = self._checked_at.get(kind)
        if last is not None and now - last < every:
            return False
        self._checked_at[kind] = now
        return True

    def _idle_templates(self, now: datetime) -> list[UnusedResource]:
        filters: list[FilterTypeDef] = [
            {"Name": f"tag:{CLUSTER}", "Values": [self._settings.cluster_name]}
        ]
        with translate_errors("ec2:DescribeLaunchTemplates"):
            pages = self._ec2.get_paginator("describe_launch_templates").paginate(Filters=filters)
            rows = [row for page in pages for row in page["LaunchTemplates"]]
        ids = {
            row["LaunchTemplateName"]: row["LaunchTemplateId"]
            for row in rows
            if row["LaunchTemplateName"].startswith(TEMPLATE_PREFIX)
            and as_map(row.get("Tags")).get(CLUSTER) == self._settings.cluster_name
            and now - row["CreateTime"] >= UNUSED_FOR
        }
        idle = ids.keys() - self._templates.used_since(now - UNUSED_FOR)
        return [UnusedResource(TEMPLATE, name, ids[name]) for name in sorted(idle)]

    def _idle_profiles(
        self, classes: Iterable[EC2NodeClass], now: datetime
    ) -> Iterator[UnusedResource]:
        in_use = {profile_name(c, self._settings) for c in classes}
        in_use |= {c.status.instance_profile for c in classes}
        ours = re.compile(re.escape(self._settings.cluster_name[:100]) + r"_[0-9a-f]{20}")
        iam = self._connect("iam", _ATTEMPTS)
        with translate_errors("iam:ListInstanceProfiles"):
            pages = iam.get_paginator("list_instance_profiles").paginate(
                PathPrefix=profile_path(self._settings)
            )
            rows = {r["InstanceProfileName"]: r for p in pages for r in p["InstanceProfiles"]}
        for name in sorted(rows.keys() - in_use):
            old = now - rows[name]["CreateDate"] >= PROFILE_AGE
            if old and ours.fullmatch(name) and self._is_idle(iam, rows[name]):
                roles = tuple(role["RoleName"] for role in rows[name].get("Roles") or [])
                yield UnusedResource(PROFILE, name, roles=roles)

    def _is_idle(self, iam: IAMClient, row: InstanceProfileTypeDef) -> bool:
        """Return whether this fleet created a profile, and no instance of the account has it.

        A profile that is listed but cannot be read is being created or deleted.
        """
        try:
            found = iam.get_instance_profile(InstanceProfileName=row["InstanceProfileName"])
        except boto_errors() as error:
            if failure_of(error) in _GONE:
                return False
            raise our_error("iam:GetInstanceProfile", error) from error
        if not owner_of(self._settings).owns(as_map(found["InstanceProfile"].get("Tags"))):
            return False
        filters: list[FilterTypeDef] = [
            {"Name": "iam-instance-profile.arn", "Values": [row["Arn"]]},
            {
                "Name": "instance-state-name",
                "Values": ["pending", "running", "stopping", "stopped", "shutting-down"],
            },
        ]
        with translate_errors("ec2:DescribeInstances"):
            pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
            return not any(r["Instances"] for page in pages for r in page["Reservations"])

    def _delete(
        self, client: EC2Client | IAMClient, service: str, operation: str, **parameters: str
    ) -> None:
        call = f"{service}:" + "".join(word.capitalize() for word in operation.split("_"))
        try:
            getattr(client, operation)(**parameters)
        except boto_errors() as error:
            if failure_of(error) not in _GONE:
                raise our_error(call, error) from error


class LaunchTemplates:
    """Caches which templates exist, so that a second launch needs no call."""

    def __init__(self, ec2: EC2Client, clock: Clock) -> None:
        self._ec2 = ec2
        self._clock = clock
        self._known: set[str] = set()
        self._used: dict[str, datetime] = {}
        self._lock = Lock()

    def ensure(self, templates: Sequence[CreateLaunchTemplateRequestTypeDef]) -> None:
        """Create those that are not known to exist.

        Raises:
            TransientCloudError, CloudError: EC2 did not create one.
        """
        with self._lock:
            for template in templates:
                name = template["LaunchTemplateName"]
                self._used[name] = self._clock.now()
                if name not in self._known:
                    self._create(template)
                    self._known.add(name)

    def recreate(self, templates: Sequence[CreateLaunchTemplateRequestTypeDef]) -> None:
        """Create them again after somebody else deleted one."""
        with self._lock:
            self._known.difference_update(t["LaunchTemplateName"] for t in templates)
        self.ensure(templates)

    def used_since(self, moment: datetime) -> set[str]:
        """Return the templates that launches of this process have used since then."""
        with self._lock:
            return {name for name, at in self._used.items() if at > moment}

    def forget(self, name: str) -> None:
        """Record that one is about to be deleted: the next launch creates it again."""
        with self._lock:
            self._known.discard(name)
            self._used.pop(name, None)

    def _create(self, template: CreateLaunchTemplateRequestTypeDef) -> None:
        try:
            self._ec2.create_launch_template(**template)
        except boto_errors() as error:
            if failure_of(error) is not Failure.EXISTS:
                raise our_error(_CALL, error) from error
