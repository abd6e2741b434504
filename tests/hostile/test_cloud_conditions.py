"""The documented policies, evaluated: what we call is allowed, and one change of it is denied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import pytest

from reconciler.adapters.aws.permissions import Need
from tests.hostile.iam import Call, Statement, allows, denies
from tests.hostile.test_cloud_permissions import DOCS, NAMES, statements, template
from tests.hostile.threats import Threat, attack

ACCOUNT, REGION = NAMES["account"], NAMES["region"]
OURS: Final = f"kubernetes.io/cluster/{NAMES['cluster']}"
EC2: Final = f"arn:aws:ec2:{REGION}:{ACCOUNT}"
PROFILE: Final = f"arn:aws:iam::{ACCOUNT}:instance-profile/reconciler/{REGION}/prod_web"
ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/prod-nodes"

TAGS: Final = {
    OURS: "owned",
    "eks:eks-cluster-name": "prod",
    "karpenter.sh/nodepool": "web",
    "reconciler/fleet": "shop",
    "karpenter.k8s.aws/ec2nodeclass": "default",
}


def requested(tags: Mapping[str, str] = TAGS) -> dict[str, Any]:
    """Return the context of a request that gives these tags."""
    return {f"aws:RequestTag/{key}": value for key, value in tags.items()} | {
        "aws:TagKeys": sorted(tags)
    }


def bearing(tags: Mapping[str, str] = TAGS) -> dict[str, Any]:
    """Return the context of a resource that has these tags."""
    return {f"aws:ResourceTag/{key}": value for key, value in tags.items()}


def created(action: str) -> dict[str, str]:
    return {"ec2:CreateAction": action}


CALLS: Final[dict[str, Call]] = {
    **{
        f"launch {kind}": Call("ec2:RunInstances", f"{EC2}:{kind}/x-1", requested())
        for kind in ("instance", "volume", "network-interface", "spot-instances-request")
    },
    **{
        f"launch with {kind}": Call("ec2:CreateFleet", f"arn:aws:ec2:{REGION}:{owner}:{kind}/x-1")
        for kind, owner in (("image", ""), ("subnet", ACCOUNT), ("security-group", ACCOUNT))
    },
    "launch from a template": Call("ec2:CreateFleet", f"{EC2}:launch-template/lt-1", bearing()),
    "create a fleet": Call("ec2:CreateFleet", f"{EC2}:fleet/fleet-1", requested()),
    "create a template": Call("ec2:CreateLaunchTemplate", f"{EC2}:launch-template/*", requested()),
    **{
        f"tag in {action}": Call(
            "ec2:CreateTags", f"{EC2}:instance/i-1", requested() | created(action)
        )
        for action in ("RunInstances", "CreateFleet")
    },
    "delete a template": Call("ec2:DeleteLaunchTemplate", f"{EC2}:launch-template/lt-1", bearing()),
    "terminate": Call("ec2:TerminateInstances", f"{EC2}:instance/i-1", bearing()),
    "name": Call(
        "ec2:CreateTags",
        f"{EC2}:instance/i-1",
        bearing() | requested({"Name": "web", "karpenter.sh/nodeclaim": "web-1"}),
    ),
    "create a profile": Call("iam:CreateInstanceProfile", PROFILE, requested()),
    "tag a profile": Call("iam:TagInstanceProfile", PROFILE, requested()),
    "fill a profile": Call("iam:AddRoleToInstanceProfile", PROFILE, bearing()),
    "empty a profile": Call("iam:RemoveRoleFromInstanceProfile", PROFILE, bearing()),
    "delete a profile": Call("iam:DeleteInstanceProfile", PROFILE, bearing()),
    "pass the role": Call("iam:PassRole", ROLE, {"iam:PassedToService": "ec2.amazonaws.com"}),
    "pass the role in China": Call(
        "iam:PassRole", ROLE, {"iam:PassedToService": "ec2.amazonaws.com.cn"}
    ),
    "receive messages": Call("sqs:ReceiveMessage", f"arn:aws:sqs:{REGION}:{ACCOUNT}:prod-queue"),
}
"""What the daemon asks of AWS, as IAM sees it."""


@cache
def run_policy() -> tuple[Statement, ...]:
    return tuple(statements(Need.RUN))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_the_daemon_asks_for_is_allowed(call: Call) -> None:
    assert allows(run_policy(), call)


NEEDED: Final = {
    ("ec2", "aws:RequestTag/karpenter.sh/nodepool"),
    ("ec2", "aws:ResourceTag/karpenter.sh/nodepool"),
    ("iam", "aws:RequestTag/karpenter.k8s.aws/ec2nodeclass"),
    ("iam", "aws:RequestTag/reconciler/fleet"),
    ("iam", "aws:ResourceTag/reconciler/fleet"),
}
"""The tags beside those of the cluster without which a request or a resource is not ours."""


def other_tags(call: Call) -> dict[str, Call]:
    """Return a call without each tag beside that of the cluster, or with one of another cluster."""
    found: dict[str, Call] = {}
    cluster = "aws:RequestTag/eks:eks-cluster-name"
    for key in call.context:
        if (call.action.partition(":")[0], key) in NEEDED or key == cluster:
            found[f"no {key}"] = call.with_context({key: None})
    if cluster in call.context:
        found["given to another cluster"] = call.with_context({cluster: "other"})
    if call.action in ("iam:CreateInstanceProfile", "iam:TagInstanceProfile"):
        of_other = {"aws:ResourceTag/eks:eks-cluster-name": "other"}
        found["a profile of another cluster"] = call.with_context(of_other)
    return found


def changes(call: Call) -> dict[str, Call]:
    """Return a call with each part changed to what is not ours."""
    found = other_tags(call)
    region = call.resource.replace(REGION, "eu-central-1")
    if region != call.resource:
        found["another region"] = call.of(resource=region)
    if ":iam:" in call.resource or ":sqs:" in call.resource:
        found["another account"] = call.of(resource=call.resource.replace(ACCOUNT, "999988887777"))
        found["another name"] = call.of(resource=call.resource.replace("/prod", "/other").replace(
            "prod-queue", "other-queue"))  # fmt: skip
    for key, value in call.context.items():
        if OURS in key:
            foreign = key.replace("cluster/prod", "cluster/other")
            found[f"no {key}"] = call.with_context({key: None})
            found[f"shared {key}"] = call.with_context({key: "shared"})
            found[f"{key} of another cluster"] = call.with_context({key: None, foreign: value})
        elif key == "iam:PassedToService":
            for service in ("lambda", "ssm", "ecs-tasks", "eks", "evil.ec2", "ec2.amazonaws.com.x"):
                found[f"to {service}"] = call.with_context({key: f"{service}.amazonaws.com"})
            found["to no service"] = call.with_context({key: None})
        elif key == "ec2:CreateAction":
            found["tags of what exists"] = call.with_context({key: None})
            found["tags of a snapshot"] = call.with_context({key: "CreateSnapshot"})
    return found


CHANGED: Final = {
    f"{name}: {change}": changed
    for name, call in CALLS.items()
    for change, changed in changes(call).items()
}


@attack(Threat.CLOUD, "a request of the role for another cluster, region, account, role or service")
@pytest.mark.parametrize("call", CHANGED.values(), ids=CHANGED)
def test_one_change_of_a_request_is_denied(call: Call) -> None:
    """Guards: the conditions and resources of the documented policy, evaluated."""
    assert not allows(run_policy(), call)


CONDITIONS: Final = [
    (statement["Sid"], operator, key)
    for statement in statements(Need.RUN)
    for operator, pairs in statement.get("Condition", {}).items()
    for key in pairs
]


@pytest.mark.parametrize(("sid", "operator", "key"), CONDITIONS)
def test_each_condition_denies_something(sid: str, operator: str, key: str) -> None:
    """A call that fails one condition is denied, and would be allowed without it."""
    (statement,) = (s for s in run_policy() if s["Sid"] == sid)
    reading = Call("ec2:DescribeInstances", "*", {"aws:RequestedRegion": REGION})
    calls = [call for call in (*CALLS.values(), reading) if allows([statement], call)]
    assert calls
    value: str | list[str] | None = None
    if operator.endswith("IfExists"):
        value = "other"
    elif operator.startswith("ForAllValues"):
        value = ["Name", "team"]
    conditions = {
        name: {k: v for k, v in pairs.items() if (name, k) != (operator, key)}
        for name, pairs in statement["Condition"].items()
    }
    for call in calls:
        failing = call.with_context({key: value})
        assert not allows(run_policy(), failing)
        assert allows([{**statement, "Condition": conditions}], failing)


FOREIGN: Final[dict[str, dict[str, str]]] = {
    "no tags": {},
    "the node group of EKS": {"eks:cluster-name": "prod", OURS: "owned"},
    "Karpenter's": {OURS: "owned", "eks:eks-cluster-name": "prod", "karpenter.sh/nodepool": "web"},
    "another cluster's": {**TAGS, OURS: "shared", "kubernetes.io/cluster/other": "owned"},
    "a cluster whose name begins alike": {
        **{key: value for key, value in TAGS.items() if key != OURS}, f"{OURS}-2": "owned",
    },
    "a cluster in other letters": {
        **{key: value for key, value in TAGS.items() if key != OURS}, OURS: "Owned",
    },
}  # fmt: skip


@attack(Threat.CLOUD, "an instance of a node group, of Karpenter or of another cluster to be ended")
@pytest.mark.parametrize("tags", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("action", ["ec2:TerminateInstances", "ec2:RebootInstances"])
def test_only_what_bears_all_tags_is_ended(action: str, tags: dict[str, str]) -> None:
    need = Need.RUN if action == "ec2:TerminateInstances" else Need.REBOOT
    policy = statements(need)
    assert allows(policy, Call(action, f"{EC2}:instance/i-1", bearing()))
    assert not allows(policy, Call(action, f"{EC2}:instance/i-1", bearing(tags)))


RESERVED: Final = (OURS, "karpenter.sh/nodepool", "reconciler/intent", "team")


@attack(Threat.CLOUD, "tags with which the role would take over an instance, or give one away")
@pytest.mark.parametrize("key", RESERVED)
def test_no_owner_is_written_to_an_instance_that_exists(key: str) -> None:
    call = Call("ec2:CreateTags", f"{EC2}:instance/i-1", bearing() | requested({key: "owned"}))
    assert not allows(run_policy(), call)
    stranger = call.with_context({f"aws:ResourceTag/{OURS}": None})
    assert not allows(run_policy(), stranger)
    to_other = bearing() | requested({"eks:eks-cluster-name": "other"})
    assert not allows(run_policy(), call.with_context(to_other | {f"aws:RequestTag/{key}": None}))
    assert not allows(run_policy(), call.of(action="ec2:DeleteTags"))


@attack(Threat.CLOUD, "a role for nodes with more rights, passed in place of the node role")
@pytest.mark.parametrize(
    "role", ["admin", "prod-nodes-admin", "prod-reconciler-run", "x/prod-nodes"]
)
def test_no_other_role_is_passed(role: str) -> None:
    call = CALLS["pass the role"]
    assert not allows(run_policy(), call.of(resource=f"arn:aws:iam::{ACCOUNT}:role/{role}"))


@attack(Threat.CLOUD, "any call that writes, with the role for plans and any tags")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_plan_role_is_allowed_none_of_it(call: Call) -> None:
    assert not allows(statements(Need.PLAN), call)


@attack(Threat.CLOUD, "our tags, written by another principal of an account with the sample policy")
def test_the_sample_policy_denies_our_tags_to_everybody_else() -> None:
    guard = json.loads((DOCS / "scp-protect-tags.json").read_text())["Statement"]
    run = {"aws:PrincipalArn": f"arn:aws:iam::{ACCOUNT}:role/prod-reconciler-run"}
    other = {"aws:PrincipalArn": f"arn:aws:iam::{ACCOUNT}:role/tenant"}
    for action in ("ec2:CreateTags", "ec2:DeleteTags", "iam:TagInstanceProfile"):
        take = Call(action, f"{EC2}:instance/i-1", {"aws:TagKeys": ["Name", "reconciler/fleet"]})
        assert denies(guard, take.with_context(other))
        assert not denies(guard, take.with_context(run))
        owner = {"aws:TagKeys": [OURS], "aws:ResourceTag/reconciler/fleet": "shop"}
        assert denies(guard, take.with_context(other | owner))
        harmless = {"aws:TagKeys": ["team"], "aws:ResourceTag/reconciler/fleet": "shop"}
        assert not denies(guard, take.with_context(other | harmless))


@attack(Threat.CLOUD, "a message to the queue from a user, another account or another rule")
def test_only_our_rules_send_to_the_queue() -> None:
    """Guard: the policy of the queue, evaluated; service principals are compared beforehand."""
    resources = template("interruption-queue.yaml")["Resources"]
    found = resources["InterruptionQueuePolicy"]["Properties"]["PolicyDocument"]["Statement"]
    policy = [_filled_in(statement) for statement in found]
    rule = "arn:SpotInterruptionRule"
    send = Call("sqs:SendMessage", "arn:InterruptionQueue", {
        "aws:SourceAccount": ACCOUNT, "aws:SourceArn": rule,
        "aws:PrincipalIsAWSService": "true", "aws:SecureTransport": "true",
    })  # fmt: skip
    assert allows(policy, send)
    for change in (
        {"aws:SourceAccount": "999988887777"},
        {"aws:SourceArn": "arn:aws:events:eu-west-1:111122223333:rule/mine"},
        {"aws:SourceArn": None},
        {"aws:PrincipalIsAWSService": "false"},
        {"aws:SecureTransport": "false"},
    ):
        assert not allows(policy, send.with_context(change)), change
    assert not allows(policy, send.of(action="sqs:ReceiveMessage"))


def _filled_in(value: Any) -> Any:
    """Return a part of the template with names in place of its functions."""
    if isinstance(value, list):
        return [_filled_in(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "Ref" in value:
        return {"AWS::AccountId": ACCOUNT}[value["Ref"]]
    if "Fn::GetAtt" in value:
        return "arn:" + str(value["Fn::GetAtt"]).partition(".")[0]
    return {key: _filled_in(item) for key, item in value.items()}


def test_the_evaluator_reads_conditions_as_iam_does() -> None:
    """The examples of the IAM User Guide: absent keys, several values, negation and case."""

    def one(condition: Any, **context: Any) -> bool:
        statement = {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": condition}
        return allows([statement], Call("s3:Get", "arn:x", context))

    assert not one({"StringEquals": {"a": "x"}})
    assert one({"StringEqualsIfExists": {"a": "x"}})
    assert not one({"StringEqualsIfExists": {"a": "x"}}, a="y")
    assert one({"StringEquals": {"A": ["x", "y"]}}, a="y")
    assert not one({"StringEquals": {"a": "x"}}, a="X")
    assert not one({"StringEquals": {"a": "*"}}, a="x")
    assert one({"StringLike": {"a": "*"}}, a="")
    assert not one({"StringLike": {"a": "a.c"}}, a="abc")
    assert one({"ForAllValues:StringEquals": {"a": "x"}})
    assert not one({"ForAllValues:StringEquals": {"a": "x"}}, a=["x", "y"])
    assert one({"ForAnyValue:StringLike": {"a": "x*"}}, a=["y", "xy"])
    assert not one({"ForAnyValue:StringLike": {"a": "x*"}})
    assert one({"ArnNotLike": {"a": "b*"}}, a="c")
    assert one({"ArnNotLike": {"a": "b*"}})
    with pytest.raises(KeyError):
        one({"NumericLessThan": {"a": "1"}}, a="0")
