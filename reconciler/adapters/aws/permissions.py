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
from reconciler.model.labels import NODECLASS, NODEPOOL
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
class Call:
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
    "LaunchWithThese": "a launch uses these resources and changes none of them; what it makes "
    "has to bear the tags",
    "HearInterruptions": "messages have no tags; only this queue is named",
    "PassNodeRole": "only this role is named, and only EC2 may get it",
}
"""The statements that write and have no condition on a tag, by Sid, with the reason."""

_PREFIXES: Final = {"service-quotas": "servicequotas"}


def _reads(service: str, why_of: Mapping[str, str], scope: Scope) -> Iterator[Call]:
    for operation, why in why_of.items():
        yield Call(service, operation, Need.PLAN, scope, why)


_TAGS_WHY: Final = "names an instance once its node has joined, or is taken over"

CALLS: Final = (
    *_reads(
        "ec2",
        {
            "DescribeInstances": "what runs, and what came of a launch whose answer was lost",
            "DescribeSubnets": "where nodes may be, and how many addresses are left there",
            "DescribeSecurityGroups": "the groups that an EC2NodeClass selects",
            "DescribeImages": "the images that an EC2NodeClass selects",
            "DescribeCapacityReservations": "the reservations that an EC2NodeClass selects, if any",
            "DescribePlacementGroups": "the placement group that an EC2NodeClass selects, if any",
            "DescribeInstanceTypes": "the machines of the region",
            "DescribeInstanceTypeOfferings": "in which zones they are sold",
            "DescribeSpotPriceHistory": "what spot capacity costs",
        },
        Scope.REGION,
    ),
    Call("pricing", "GetProducts", Need.PLAN, Scope.ANY, "what on-demand capacity costs"),
    *_reads("ssm", {"GetParameter": "the newest image of an alias"}, Scope.PARAMETERS),
    *_reads("eks", {"DescribeCluster": "the version that an image must suit"}, Scope.CLUSTER),
    Call(
        "ec2",
        "CreateFleet",
        Need.RUN,
        Scope.LAUNCH,
        "launches instances",
        ("ec2:CreateFleet", "ec2:RunInstances"),
    ),
    Call("ec2", "CreateLaunchTemplate", Need.RUN, Scope.LAUNCH, "what a machine is made like"),
    Call(
        "ec2",
        "RunInstances",
        Need.RUN,
        Scope.LAUNCH,
        "tried without effect: whether a class could make nodes",
    ),
    Call("ec2", "TerminateInstances", Need.RUN, Scope.OWNED, "ends instances of the cluster"),
    Call("ec2", "CreateTags", Need.RUN, Scope.TAGS, _TAGS_WHY),
    Call(
        "ec2",
        "DescribeInstanceStatus",
        Need.RUN,
        Scope.REGION,
        "scheduled events, and instances whose checks fail",
    ),
    Call("ec2", "DescribeLaunchTemplates", Need.RUN, Scope.REGION, "templates that nothing needs"),
    Call("ec2", "DeleteLaunchTemplate", Need.RUN, Scope.TEMPLATES, "collects such templates"),
    Call("iam", "ListInstanceProfiles", Need.RUN, Scope.ANY, "profiles that nothing needs"),
    Call("iam", "GetInstanceProfile", Need.RUN, Scope.ANY, "whether a class's profile is there"),
    Call(
        "iam",
        "CreateInstanceProfile",
        Need.RUN,
        Scope.PROFILES,
        "a profile for a class's role",
        ("iam:CreateInstanceProfile", "iam:TagInstanceProfile"),
    ),
    Call("iam", "AddRoleToInstanceProfile", Need.RUN, Scope.PROFILES, "puts the role into it"),
    Call(
        "iam", "RemoveRoleFromInstanceProfile", Need.RUN, Scope.PROFILES, "empties such a profile"
    ),
    Call("iam", "DeleteInstanceProfile", Need.RUN, Scope.PROFILES, "collects such profiles"),
    Call("sqs", "GetQueueUrl", Need.RUN, Scope.QUEUE, "the queue of interruptions"),
    Call("sqs", "ReceiveMessage", Need.RUN, Scope.QUEUE, "hears of interruptions"),
    Call(
        "sqs",
        "DeleteMessageBatch",
        Need.RUN,
        Scope.QUEUE,
        "settles what was heard",
        ("sqs:DeleteMessage",),
    ),
    Call(
        "sqs",
        "ChangeMessageVisibilityBatch",
        Need.RUN,
        Scope.QUEUE,
        "hands on what was heard and not settled",
        ("sqs:ChangeMessageVisibility",),
    ),
    Call(
        "savingsplans",
        "DescribeSavingsPlans",
        Need.COMMITMENTS,
        Scope.ANY,
        "the savings plans of the account",
    ),
    Call(
        "ec2",
        "DescribeReservedInstances",
        Need.COMMITMENTS,
        Scope.REGION,
        "the reserved instances of the region",
    ),
    Call("sts", "GetCallerIdentity", Need.CHECK, Scope.ANY, "as whom we come; always allowed"),
    Call("service-quotas", "GetServiceQuota", Need.CHECK, Scope.REGION, "whether vCPUs will do"),
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
