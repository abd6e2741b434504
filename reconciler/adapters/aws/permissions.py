"""All AWS calls of the adapter, and the permissions that they need.

This is the only declaration. The policies of ``docs/aws`` are generated from it, ``reconciler
check`` tests it, and a test compares it with the calls in the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.adapters.aws.tags import CLUSTER, FLEET
from reconciler.model.karpenter.labels import NODECLASS, NODEPOOL
from reconciler.model.ownership import cluster_key

TAGGED_LATER: Final = ("Name", "eks:eks-cluster-name", "karpenter.sh/nodeclaim", FLEET)
"""Tags that instances get after their launch: in a pass, or by ``state adopt``."""

WITHOUT_TAGS: Final = {
    "LaunchWithThese": (
        "a launch uses these resources but does not change them; the resources it creates "
        "must have the tags"
    ),
    "HearInterruptions": "messages have no tags; the policy names only this queue",
    "PassNodeRole": "the policy names only this role, and only EC2 may use it",
}
"""The statements that write without a tag condition, by Sid, with the reason."""

_PREFIXES: Final = {"service-quotas": "servicequotas"}

_TAGS_WHY: Final = "name an instance after its node has joined or was adopted"

_LAUNCHED: Final = (
    "fleet",
    "instance",
    "launch-template",
    "network-interface",
    "spot-instances-request",
    "volume",
)
_USED: Final = (
    "capacity-reservation",
    "image",
    "placement-group",
    "security-group",
    "snapshot",
    "subnet",
)


class Need(StrEnum):
    """The command that makes a call."""

    PLAN = "plan"
    """A plan of the running fleet, which only reads."""
    RUN = "run"
    """``apply`` and ``run``, which read what a plan reads, and write."""
    REBOOT = "reboot"
    """Only a fleet with the gate ``RebootForRepair``; its policy is added to that of a run."""
    CHECK = "check"
    """Only ``reconciler check``; without the permission it reports less."""
    COMMITMENTS = "commitments"
    """Only ``reconciler check --commitments``, which is run manually: not part of any policy."""


class Scope(StrEnum):
    """The resources for which an action is allowed; ``_statement`` has the conditions."""

    REGION = "region"
    ANY = "any"
    PARAMETERS = "parameters"
    CLUSTER = "cluster"
    QUEUE = "queue"
    LAUNCH = "launch"
    TEMPLATES = "templates"
    OWNED = "owned"
    TAGS = "tags"
    PROFILES = "profiles"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Operation:
    """An AWS operation by its boto3 names; ``why`` explains why the permission is needed.

    ``actions`` are the IAM actions that it needs, if they differ from the operation.
    """

    service: str
    operation: str
    need: Need
    scope: Scope
    why: str
    actions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name in errors: ``ec2:CreateFleet``."""
        return f"{self.service}:{self.operation}"

    @property
    def allowed_by(self) -> tuple[str, ...]:
        """The IAM actions for the operation in a policy."""
        return self.actions or (f"{_PREFIXES.get(self.service, self.service)}:{self.operation}",)


def _read_operations(service: str, why_of: Mapping[str, str], scope: Scope) -> Iterator[Operation]:
    for operation, why in why_of.items():
        yield Operation(service, operation, Need.PLAN, scope, why)


CALLS: Final = (
    *_read_operations(
        "ec2",
        {
            "DescribeInstances": (
                "list instances, and find the outcome of launches whose response was lost"
            ),
            "DescribeSubnets": "list subnets and their free addresses",
            "DescribeSecurityGroups": "resolve the security groups of an EC2NodeClass",
            "DescribeImages": "resolve the images of an EC2NodeClass",
            "DescribeCapacityReservations": (
                "resolve the capacity reservations of an EC2NodeClass, if any"
            ),
            "DescribePlacementGroups": "resolve the placement group of an EC2NodeClass, if any",
            "DescribeInstanceTypes": "read the instance types of the region",
            "DescribeInstanceTypeOfferings": "read the zones where they are offered",
            "DescribeSpotPriceHistory": "read spot prices",
        },
        Scope.REGION,
    ),
    Operation("pricing", "GetProducts", Need.PLAN, Scope.ANY, "read on-demand prices"),
    *_read_operations("ssm", {"GetParameter": "resolve an image alias"}, Scope.PARAMETERS),
    *_read_operations(
        "eks",
        {"DescribeCluster": ("read the Kubernetes version that an image must match")},
        Scope.CLUSTER,
    ),
    Operation(
        "ec2",
        "CreateFleet",
        Need.RUN,
        Scope.LAUNCH,
        "launch instances",
        ("ec2:CreateFleet", "ec2:RunInstances"),
    ),
    Operation(
        "ec2",
        "CreateLaunchTemplate",
        Need.RUN,
        Scope.LAUNCH,
        ("create the launch template of an instance"),
    ),
    Operation(
        "ec2",
        "RunInstances",
        Need.RUN,
        Scope.LAUNCH,
        "check by dry run whether an EC2NodeClass can launch nodes",
    ),
    Operation(
        "ec2", "TerminateInstances", Need.RUN, Scope.OWNED, "terminate instances of the cluster"
    ),
    Operation(
        "ec2",
        "RebootInstances",
        Need.REBOOT,
        Scope.OWNED,
        "reboot nodes with a GPU error that a reboot clears",
    ),
    Operation("ec2", "CreateTags", Need.RUN, Scope.TAGS, _TAGS_WHY),
    Operation(
        "ec2",
        "DescribeInstanceStatus",
        Need.RUN,
        Scope.REGION,
        "read scheduled events and failed status checks",
    ),
    Operation(
        "ec2", "DescribeLaunchTemplates", Need.RUN, Scope.REGION, "find unused launch templates"
    ),
    Operation(
        "ec2", "DeleteLaunchTemplate", Need.RUN, Scope.TEMPLATES, ("delete unused launch templates")
    ),
    Operation("iam", "ListInstanceProfiles", Need.RUN, Scope.ANY, "find unused instance profiles"),
    Operation(
        "iam",
        "GetInstanceProfile",
        Need.RUN,
        Scope.ANY,
        ("check whether the profile of an EC2NodeClass exists"),
    ),
    Operation(
        "iam",
        "CreateInstanceProfile",
        Need.RUN,
        Scope.PROFILES,
        "create a profile for the role of an EC2NodeClass",
        ("iam:CreateInstanceProfile", "iam:TagInstanceProfile"),
    ),
    Operation(
        "iam", "AddRoleToInstanceProfile", Need.RUN, Scope.PROFILES, ("add the role to the profile")
    ),
    Operation(
        "iam",
        "RemoveRoleFromInstanceProfile",
        Need.RUN,
        Scope.PROFILES,
        ("remove the role from an unused profile"),
    ),
    Operation("iam", "DeleteInstanceProfile", Need.RUN, Scope.PROFILES, "delete unused profiles"),
    Operation("sqs", "GetQueueUrl", Need.RUN, Scope.QUEUE, "find the interruption queue"),
    Operation("sqs", "ReceiveMessage", Need.RUN, Scope.QUEUE, "receive interruption events"),
    Operation(
        "sqs",
        "DeleteMessageBatch",
        Need.RUN,
        Scope.QUEUE,
        "delete processed events",
        ("sqs:DeleteMessage",),
    ),
    Operation(
        "sqs",
        "ChangeMessageVisibilityBatch",
        Need.RUN,
        Scope.QUEUE,
        "release events that were not processed",
        ("sqs:ChangeMessageVisibility",),
    ),
    Operation(
        "savingsplans",
        "DescribeSavingsPlans",
        Need.COMMITMENTS,
        Scope.ANY,
        "read the savings plans of the account",
    ),
    Operation(
        "ec2",
        "DescribeReservedInstances",
        Need.COMMITMENTS,
        Scope.REGION,
        "read the reserved instances of the region",
    ),
    Operation(
        "sts",
        "GetCallerIdentity",
        Need.CHECK,
        Scope.ANY,
        ("identify the credentials; always allowed"),
    ),
    Operation(
        "service-quotas", "GetServiceQuota", Need.CHECK, Scope.REGION, "read the vCPU quotas"
    ),
)
"""All calls, those that read first."""


def actions_of(call: str) -> tuple[str, ...]:
    """Return the IAM actions of a call that is named as in errors, the most important one first."""
    known = next((c for c in CALLS if c.name == call), None)
    return known.allowed_by if known is not None else (call,)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the account that a policy contains."""

    partition: str = "aws"
    account: str = "${Account}"
    region: str = "${Region}"
    cluster: str = "${ClusterName}"
    queue: str = "${InterruptionQueue}"
    role: str = "${NodeRole}"


def calls_for(need: Need, *, reboots: bool = False) -> list[Operation]:
    """Return the calls of a need, and what it requires; ``reboots`` is for a run that reboots."""
    needs = {need}
    if need is not Need.REBOOT:
        needs.add(Need.PLAN)
    if need is Need.RUN and reboots:
        needs.add(Need.REBOOT)
    return [call for call in CALLS if call.need in needs]


def policy(need: Need, names: Names, *, reboots: bool = False) -> dict[str, object]:
    """Return the smallest IAM policy for planning, or for running a fleet.

    With ``reboots``, that of a run allows to reboot nodes. The policy of ``Need.REBOOT`` allows
    nothing else.

    Launches are allowed only with the cluster's tags, and changes and deletions only on resources
    with these tags. Reading is restricted to one region for regional services (aws reference 6.1).
    """
    wanted = calls_for(need, reboots=reboots)
    if need is not Need.REBOOT:
        wanted += [c for c in CALLS if c.need is Need.CHECK]
    by_scope: dict[Scope, list[str]] = {}
    for call in wanted:
        known = by_scope.setdefault(call.scope, [])
        known += [action for action in call.allowed_by if action not in known]
    if need is Need.RUN:
        by_scope[Scope.ROLE] = ["iam:PassRole"]
    statements: list[object] = []
    for scope in filter(by_scope.__contains__, Scope):
        statements += _statements(scope, sorted(by_scope[scope]), names)
    return {"Version": "2012-10-17", "Statement": statements}


def _statements(scope: Scope, actions: list[str], names: Names) -> list[dict[str, object]]:
    if scope is Scope.LAUNCH:
        return _launch_statements(names)
    if scope is Scope.PROFILES:
        return _profile_statements(names)
    prefix = f"arn:{names.partition}"
    here = f"{names.region}:{names.account}"
    instances = f"{prefix}:ec2:{names.region}:*:instance/*"
    bounds: Mapping[Scope, tuple[str, Mapping[str, object]]] = {
        Scope.REGION: ("*", {"StringEquals": {"aws:RequestedRegion": names.region}}),
        Scope.ANY: ("*", {}),
        Scope.PARAMETERS: (f"{prefix}:ssm:{names.region}::parameter/aws/service/*", {}),
        Scope.CLUSTER: (f"{prefix}:eks:{here}:cluster/{names.cluster}", {}),
        Scope.QUEUE: (f"{prefix}:sqs:{here}:{names.queue}", {}),
        Scope.TEMPLATES: (
            f"{prefix}:ec2:{names.region}:*:launch-template/*",
            _tag_condition("Resource", names, NODEPOOL),
        ),
        Scope.OWNED: (instances, _tag_condition("Resource", names, FLEET, NODEPOOL)),
        Scope.TAGS: (
            instances,
            {
                **_tag_condition("Resource", names, NODEPOOL),
                "StringEqualsIfExists": {f"aws:RequestTag/{CLUSTER}": names.cluster},
                "ForAllValues:StringEquals": {"aws:TagKeys": list(TAGGED_LATER)},
            },
        ),
        Scope.ROLE: (
            f"{prefix}:iam::{names.account}:role/{names.role}",
            {
                "StringEquals": {
                    "iam:PassedToService": ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]
                }
            },
        ),
    }
    resource, condition = bounds[scope]
    return [_statement(_SIDS[scope], actions, resource, condition)]


_SIDS: Final = {
    Scope.REGION: "LookInRegion",
    Scope.ANY: "Look",
    Scope.PARAMETERS: "ReadImageParameters",
    Scope.CLUSTER: "ReadCluster",
    Scope.QUEUE: "HearInterruptions",
    Scope.TEMPLATES: "CollectOwnTemplates",
    Scope.OWNED: "EndOwnInstances",
    Scope.TAGS: "NameOwnInstances",
    Scope.ROLE: "PassNodeRole",
}


def _launch_statements(names: Names) -> list[dict[str, object]]:
    """Return what a launch needs: resources it uses, its template, and what it creates and tags."""
    arn = f"arn:{names.partition}:ec2:{names.region}"
    launch = ["ec2:CreateFleet", "ec2:RunInstances"]
    tagged = _tag_condition("Request", names, NODEPOOL)
    makers = ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]
    creating: dict[str, object] = {**tagged["StringEquals"], "ec2:CreateAction": makers}
    return [
        _statement("LaunchWithThese", launch, [f"{arn}:*:{kind}/*" for kind in _USED], {}),
        _statement(
            "LaunchFromOwnTemplates",
            launch,
            f"{arn}:*:launch-template/*",
            _tag_condition("Resource", names, NODEPOOL),
        ),
        _statement(
            "LaunchWithTags",
            ["ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:RunInstances"],
            [f"{arn}:*:{kind}/*" for kind in _LAUNCHED],
            tagged,
        ),
        _statement(
            "TagWhatIsLaunched",
            ["ec2:CreateTags"],
            [f"{arn}:*:{kind}/*" for kind in _LAUNCHED],
            {**tagged, "StringEquals": creating},
        ),
    ]


def _profile_statements(names: Names) -> list[dict[str, object]]:
    """Return what instance profiles need: creation with our tags, and changes of existing ones.

    A profile has no tags while it is being created, so tagging is restricted by its name and its
    new tags. A profile that another cluster tagged is left alone.
    """
    folder = f"arn:{names.partition}:iam::{names.account}:instance-profile/reconciler"
    ours = f"{folder}/{names.region}/{names.cluster}_*"
    requested = _tag_condition("Request", names, FLEET, NODECLASS)
    others = {"StringEqualsIfExists": {f"aws:ResourceTag/{CLUSTER}": names.cluster}}
    changes = [
        "iam:AddRoleToInstanceProfile",
        "iam:DeleteInstanceProfile",
        "iam:RemoveRoleFromInstanceProfile",
    ]
    made = ["iam:CreateInstanceProfile", "iam:TagInstanceProfile"]
    return [
        _statement("MakeInstanceProfiles", made, ours, {**requested, **others}),
        _statement(
            "ChangeOwnInstanceProfiles", changes, ours, _tag_condition("Resource", names, FLEET)
        ),
    ]


def _tag_condition(what: str, names: Names, *present: str) -> dict[str, dict[str, str]]:
    """Return the condition that a request or a resource has the tags of our cluster.

    ``present`` are keys that must exist with any value. A request must have the cluster in both
    tags. A resource may have got the second one only when its node joined (Karpenter).
    """
    key = f"aws:{what}Tag"
    named = {f"{key}/{CLUSTER}": names.cluster} if what == "Request" else {}
    condition = {"StringEquals": {f"{key}/{cluster_key(names.cluster)}": "owned", **named}}
    if not present:
        return condition
    return {**condition, "StringLike": {f"{key}/{name}": "*" for name in present}}


def _statement(
    sid: str, actions: list[str], resource: str | list[str], condition: Mapping[str, object]
) -> dict[str, object]:
    statement: dict[str, object] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": actions,
        "Resource": resource,
    }
    return {**statement, "Condition": dict(condition)} if condition else statement
