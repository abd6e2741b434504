"""Which calls of AWS the adapter makes, and what each needs to be allowed.

The one declaration: the policies of ``docs/aws`` are made from it, ``reconciler check`` tries it,
and a test holds it to the calls that the code makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from reconciler.adapters.aws.tags import CLUSTER, FLEET
from reconciler.model.karpenter.labels import NODECLASS, NODEPOOL
from reconciler.model.ownership import cluster_key


class Need(StrEnum):
    """Who makes a call."""

    PLAN = "plan"
    """A plan of the running fleet: it reads."""
    RUN = "run"
    """``apply`` and ``run``: they read what a plan reads, and write."""
    CHECK = "check"
    """``reconciler check`` alone; without the permission it says less."""
    COMMITMENTS = "commitments"
    """``reconciler check --commitments`` alone, which a person runs now and then: in no policy."""


class Scope(StrEnum):
    """On which resources an action is allowed; the conditions stand in ``_statement``."""

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
    """An operation of AWS, by its names in boto3; ``why`` is for whoever is to allow it.

    ``actions`` are what IAM asks for it, where that is not the operation itself.
    """

    service: str
    operation: str
    need: Need
    scope: Scope
    why: str
    actions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As errors name it: ``ec2:CreateFleet``."""
        return f"{self.service}:{self.operation}"

    @property
    def allowed_by(self) -> tuple[str, ...]:
        """The actions of IAM that a policy lists for it."""
        return self.actions or (f"{_PREFIXES.get(self.service, self.service)}:{self.operation}",)


TAGGED_LATER: Final = ("Name", "eks:eks-cluster-name", "karpenter.sh/nodeclaim", FLEET)
"""Tags that instances get after their launch: by a pass, or by ``state adopt``."""

WITHOUT_TAGS: Final = {
    "LaunchWithThese": (
        "a launch uses these resources but does not change them; the resources it creates "
        "must carry the tags"
    ),
    "HearInterruptions": "messages have no tags; the policy names only this queue",
    "PassNodeRole": "the policy names only this role, and only EC2 may use it",
}
"""The statements that write and have no condition on a tag, by Sid, with the reason."""

_PREFIXES: Final = {"service-quotas": "servicequotas"}


def _reads(service: str, why_of: Mapping[str, str], scope: Scope) -> Iterator[Operation]:
    for operation, why in why_of.items():
        yield Operation(service, operation, Need.PLAN, scope, why)


_TAGS_WHY: Final = "name an instance after its node has joined or was adopted"

CALLS: Final = (
    *_reads(
        "ec2",
        {
            "DescribeInstances": (
                "list instances, and find the outcome of launches whose answer was lost"
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
    *_reads("ssm", {"GetParameter": "resolve an image alias"}, Scope.PARAMETERS),
    *_reads(
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
"""Every call, the reading ones first."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a policy names of the account."""

    partition: str = "aws"
    account: str = "${Account}"
    region: str = "${Region}"
    cluster: str = "${ClusterName}"
    queue: str = "${InterruptionQueue}"
    role: str = "${NodeRole}"


def policy(need: Need, names: Names) -> dict[str, Any]:
    """Return the smallest IAM policy for a plan, or for running a fleet.

    Launches are allowed with the cluster's tags only, and whatever ends or changes something is
    allowed on what bears them; reading is allowed in one region where a service has regions (aws
    reference 6.1).
    """
    wanted = [c for c in CALLS if c.need is Need.PLAN or (need is Need.RUN and c.need is need)]
    wanted += [c for c in CALLS if c.need is Need.CHECK]
    by_scope: dict[Scope, list[str]] = {}
    for call in wanted:
        known = by_scope.setdefault(call.scope, [])
        known += [action for action in call.allowed_by if action not in known]
    if need is Need.RUN:
        by_scope[Scope.ROLE] = ["iam:PassRole"]
    statements = [
        statement
        for scope in Scope
        if scope in by_scope
        for statement in _statements(scope, sorted(by_scope[scope]), names)
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def _statements(scope: Scope, actions: list[str], names: Names) -> list[dict[str, Any]]:
    if scope is Scope.LAUNCH:
        return _launch_statements(names)
    if scope is Scope.PROFILES:
        return _profile_statements(names)
    prefix = f"arn:{names.partition}"
    here = f"{names.region}:{names.account}"
    instances = f"{prefix}:ec2:{names.region}:*:instance/*"
    bounds: dict[Scope, tuple[str, dict[str, Any]]] = {
        Scope.REGION: ("*", {"StringEquals": {"aws:RequestedRegion": names.region}}),
        Scope.ANY: ("*", {}),
        Scope.PARAMETERS: (f"{prefix}:ssm:{names.region}::parameter/aws/service/*", {}),
        Scope.CLUSTER: (f"{prefix}:eks:{here}:cluster/{names.cluster}", {}),
        Scope.QUEUE: (f"{prefix}:sqs:{here}:{names.queue}", {}),
        Scope.TEMPLATES: (
            f"{prefix}:ec2:{names.region}:*:launch-template/*",
            _tagged("Resource", names, NODEPOOL),
        ),
        Scope.OWNED: (instances, _tagged("Resource", names, FLEET, NODEPOOL)),
        Scope.TAGS: (
            instances,
            {
                **_tagged("Resource", names, NODEPOOL),
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


def _launch_statements(names: Names) -> list[dict[str, Any]]:
    """Return what a launch needs: what it uses, its template, and what it makes and tags."""
    arn = f"arn:{names.partition}:ec2:{names.region}"
    launch = ["ec2:CreateFleet", "ec2:RunInstances"]
    tagged = _tagged("Request", names, NODEPOOL)
    makers = ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]
    creating = {**tagged["StringEquals"], "ec2:CreateAction": makers}
    return [
        _statement("LaunchWithThese", launch, [f"{arn}:*:{kind}/*" for kind in _USED], {}),
        _statement(
            "LaunchFromOwnTemplates",
            launch,
            f"{arn}:*:launch-template/*",
            _tagged("Resource", names, NODEPOOL),
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


def _profile_statements(names: Names) -> list[dict[str, Any]]:
    """Return what instance profiles need: to be made with our tags, and changed where they are.

    A profile that is being made has no tags yet, so what may be tagged is said by its name and by
    the tags that it gets; one that another cluster has tagged is left alone.
    """
    folder = f"arn:{names.partition}:iam::{names.account}:instance-profile/reconciler"
    ours = f"{folder}/{names.region}/{names.cluster}_*"
    requested = _tagged("Request", names, FLEET, NODECLASS)
    others = {"StringEqualsIfExists": {f"aws:ResourceTag/{CLUSTER}": names.cluster}}
    changes = [
        "iam:AddRoleToInstanceProfile",
        "iam:DeleteInstanceProfile",
        "iam:RemoveRoleFromInstanceProfile",
    ]
    made = ["iam:CreateInstanceProfile", "iam:TagInstanceProfile"]
    return [
        _statement("MakeInstanceProfiles", made, ours, {**requested, **others}),
        _statement("ChangeOwnInstanceProfiles", changes, ours, _tagged("Resource", names, FLEET)),
    ]


def _tagged(what: str, names: Names, *present: str) -> dict[str, Any]:
    """Return the condition that a request or a resource bears the tags of our cluster.

    ``present`` are keys that have to be there with any value. A request has to name the cluster
    in both tags. A resource may have got the second one only when its node joined (Karpenter).
    """
    key = f"aws:{what}Tag"
    named = {f"{key}/{CLUSTER}": names.cluster} if what == "Request" else {}
    condition = {"StringEquals": {f"{key}/{cluster_key(names.cluster)}": "owned", **named}}
    if not present:
        return condition
    return {**condition, "StringLike": {f"{key}/{name}": "*" for name in present}}


def _statement(
    sid: str, actions: list[str], resource: str | list[str], condition: Mapping[str, Any]
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": actions,
        "Resource": resource,
    }
    return {**statement, "Condition": dict(condition)} if condition else statement
