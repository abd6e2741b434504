"""What an attacker could do with the documented roles: nothing outside our cluster and region."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from reconciler.adapters.aws.permissions import CALLS, WITHOUT_TAGS, Names, Need, policy
from tests.hostile.threats import Threat, attack

DOCS = Path(__file__).resolve().parents[2] / "docs" / "aws"
TERRAFORM = DOCS / "terraform"
READS = ("Describe", "Get", "List")
GLOBAL = ("iam:", "pricing:", "sts:")
"""Services with one endpoint for all regions, or for several."""

NAMES = {
    "partition": "aws",
    "account": "111122223333",
    "region": "eu-west-1",
    "cluster": "prod",
    "queue": "prod-queue",
    "role": "prod-nodes",
}
CLOUDFORMATION = {
    "AWS::Partition": "partition",
    "AWS::AccountId": "account",
    "AWS::Region": "region",
    "ClusterName": "cluster",
    "InterruptionQueue": "queue",
    "NodeRole": "role",
}
VARIABLES = {
    "partition": "partition",
    "account": "account",
    "region": "region",
    "cluster_name": "cluster",
    "interruption_queue": "queue",
    "node_role": "role",
}


def statements(need: Need) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = policy(need, Names(**NAMES))["Statement"]
    return found


def is_reading(action: str) -> bool:
    return action.partition(":")[2].startswith(READS)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Constructor(SafeConstructor):
    """YAML with the short forms of CloudFormation's functions."""


def _function(
    loader: Constructor, suffix: str, node: ScalarNode | SequenceNode | MappingNode
) -> dict[str, Any]:
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    if isinstance(node, ScalarNode):
        return {name: loader.construct_scalar(node)}
    if isinstance(node, SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, MappingNode)
    return {name: loader.construct_mapping(node, deep=True)}


Constructor.add_multi_constructor("!", _function)


@cache
def template(name: str) -> dict[str, Any]:
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = Constructor
    loaded: dict[str, Any] = reader.load((DOCS / name).read_text())
    return loaded


def filled_in(text: str, names: dict[str, str]) -> Any:
    """Return the JSON of a text whose variables are replaced as CloudFormation and Terraform do."""
    return json.loads(re.sub(r"\$\{([^}]+)\}", lambda m: NAMES[names[m.group(1)]], text))


@attack(Threat.CLOUD, "a plan role that could change something")
@pytest.mark.parametrize("form", ["policy", "CloudFormation", "Terraform"])
def test_the_plan_role_only_reads(form: str) -> None:
    found = {
        "policy": lambda: statements(Need.PLAN),
        "CloudFormation": lambda: of_cloudformation(Need.PLAN)["Statement"],
        "Terraform": lambda: of_terraform(Need.PLAN)["Statement"],
    }[form]()
    actions = {action for s in found for action in s["Action"]}
    assert actions
    assert {a for a in actions if not is_reading(a)} == set()


@attack(Threat.CLOUD, "a permission with a wildcard")
@pytest.mark.parametrize("need", [Need.PLAN, Need.RUN, Need.REBOOT])
def test_no_action_is_a_wildcard(need: Need) -> None:
    for statement in statements(need):
        assert statement["Effect"] == "Allow"
        assert not [a for a in statement["Action"] if "*" in a]
        assert "NotAction" not in statement
        assert "NotResource" not in statement
        writes = [a for a in statement["Action"] if not is_reading(a)]
        assert not writes or statement["Resource"] != "*"


@attack(Threat.CLOUD, "a write to resources that our cluster does not own")
def test_every_write_permission_is_limited_by_tags_or_states_why_not() -> None:
    loose = set()
    for statement in statements(Need.RUN):
        if all(map(is_reading, statement["Action"])):
            continue
        condition = statement.get("Condition", {})
        owned = {
            key: value
            for key, value in condition.get("StringEquals", {}).items()
            if re.fullmatch(r"aws:(Request|Resource)Tag/kubernetes.io/cluster/prod", key)
        }
        if set(owned.values()) != {"owned"}:
            loose.add(statement["Sid"])
    assert loose == WITHOUT_TAGS.keys()
    assert all(len(why) > 20 for why in WITHOUT_TAGS.values())


@attack(Threat.CLOUD, "a call that no policy allows, or a permission that no call needs")
@pytest.mark.parametrize("need", [Need.PLAN, Need.RUN])
def test_the_policies_allow_exactly_the_calls_that_are_made(need: Need) -> None:
    needs = {Need.CHECK, Need.PLAN, need}
    wanted = {a for c in CALLS if c.need in needs for a in c.allowed_by}
    allowed = {action for s in statements(need) for action in s["Action"]}
    assert allowed - wanted == ({"iam:PassRole"} if need is Need.RUN else set())
    assert wanted <= allowed


@attack(Threat.CLOUD, "reading in another region")
@pytest.mark.parametrize("need", [Need.PLAN, Need.RUN])
def test_regional_services_are_read_only_in_our_region(need: Need) -> None:
    for statement in statements(need):
        if statement["Resource"] != "*":
            resources = as_list(statement["Resource"])
            assert all(":eu-west-1:" in r or r.startswith("arn:aws:iam::") for r in resources)
            continue
        requested = statement.get("Condition", {}).get("StringEquals", {})
        if requested.get("aws:RequestedRegion") != "eu-west-1":
            assert all(action.startswith(GLOBAL) for action in statement["Action"])


@attack(Threat.CLOUD, "another cluster's instance profile")
def test_instance_profiles_are_limited_by_name_and_tag() -> None:
    found = [
        s
        for s in statements(Need.RUN)
        if any("InstanceProfile" in a and not is_reading(a) for a in s["Action"])
    ]
    assert {a for s in found for a in s["Action"]} == {
        "iam:AddRoleToInstanceProfile",
        "iam:CreateInstanceProfile",
        "iam:DeleteInstanceProfile",
        "iam:RemoveRoleFromInstanceProfile",
        "iam:TagInstanceProfile",
    }
    for statement in found:
        assert statement["Resource"].endswith(":instance-profile/reconciler/eu-west-1/prod_*")
        tags = {k.partition("/")[2] for c in statement["Condition"].values() for k in c}
        assert {"kubernetes.io/cluster/prod", "reconciler/fleet"} <= tags


@attack(Threat.CLOUD, "our own CreateTags used to take over an instance")
def test_only_a_few_tags_may_be_added_to_our_instances() -> None:
    (later,) = (s for s in statements(Need.RUN) if s["Sid"] == "NameOwnInstances")
    condition = later["Condition"]
    keys = condition["ForAllValues:StringEquals"]["aws:TagKeys"]
    assert {"reconciler/intent", "kubernetes.io/cluster/prod", "karpenter.sh/nodepool"}.isdisjoint(
        keys
    )
    assert condition["StringEqualsIfExists"] == {"aws:RequestTag/eks:eks-cluster-name": "prod"}
    assert condition["StringEquals"] == {"aws:ResourceTag/kubernetes.io/cluster/prod": "owned"}


@attack(Threat.CLOUD, "terminating or rebooting an instance that belongs to no fleet")
@pytest.mark.parametrize(
    ("need", "action"),
    [(Need.RUN, "ec2:TerminateInstances"), (Need.REBOOT, "ec2:RebootInstances")],
)
def test_only_instances_of_a_fleet_of_the_cluster_are_ended(need: Need, action: str) -> None:
    (end,) = (s for s in statements(need) if action in s["Action"])
    assert end["Effect"] == "Allow"
    assert end["Condition"] == {
        "StringEquals": {"aws:ResourceTag/kubernetes.io/cluster/prod": "owned"},
        "StringLike": {
            "aws:ResourceTag/reconciler/fleet": "*",
            "aws:ResourceTag/karpenter.sh/nodepool": "*",
        },
    }


@attack(Threat.CLOUD, "a role passed to another service")
def test_only_the_node_role_is_passed_and_only_to_ec2() -> None:
    (passing,) = (s for s in statements(Need.RUN) if s["Action"] == ["iam:PassRole"])
    assert passing["Resource"] == "arn:aws:iam::111122223333:role/prod-nodes"
    services = as_list(passing["Condition"]["StringEquals"]["iam:PassedToService"])
    assert {service.partition(".")[0] for service in services} == {"ec2"}


@attack(Threat.CLOUD, "a tenant with ec2:CreateTags on everything")
def test_the_sample_policy_reserves_our_tags_for_the_run_role() -> None:
    guard = json.loads((DOCS / "scp-protect-tags.json").read_text())
    role = template("cloudformation.yaml")["Resources"]["RunRole"]["Properties"]["RoleName"]
    keys: set[str] = set()
    for statement in guard["Statement"]:
        assert statement["Effect"] == "Deny"
        assert {"ec2:CreateTags", "ec2:DeleteTags"} <= set(statement["Action"])
        excepted = statement["Condition"]["ArnNotLike"]["aws:PrincipalArn"]
        assert excepted.endswith(role["Fn::Sub"].replace("${ClusterName}", "*"))
        keys |= set(statement["Condition"]["ForAnyValue:StringLike"]["aws:TagKeys"])
    assert keys == {
        "reconciler/*",
        "karpenter.sh/*",
        "kubernetes.io/cluster/*",
        "eks:eks-cluster-name",
    }


def of_cloudformation(need: Need) -> Any:
    resource = template("cloudformation.yaml")["Resources"][f"{need.title()}Policy"]
    return filled_in(resource["Properties"]["PolicyDocument"]["Fn::Sub"], CLOUDFORMATION)


def of_terraform(need: Need) -> Any:
    return filled_in((TERRAFORM / f"policy-{need}.json.tftpl").read_text(), VARIABLES)


@attack(Threat.CLOUD, "a template that allows more than the documented policy")
@pytest.mark.parametrize("need", [Need.PLAN, Need.RUN])
def test_cloudformation_and_terraform_give_the_same_permissions(need: Need) -> None:
    wanted = policy(need, Names(**NAMES))
    assert of_cloudformation(need) == wanted
    assert of_terraform(need) == wanted


def test_the_roles_are_two_and_each_has_its_own_policy() -> None:
    stack = template("cloudformation.yaml")
    resources = stack["Resources"]
    reboot = {"Fn::If": ["Reboots", {"Ref": "RebootPolicy"}, {"Ref": "AWS::NoValue"}]}
    assert stack["Parameters"]["AllowReboot"]["Default"] == "false"
    for need, more in (("Plan", []), ("Run", [reboot])):
        role = resources[f"{need}Role"]["Properties"]
        assert role["ManagedPolicyArns"] == [{"Ref": f"{need}Policy"}, *more]
        (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert trust["Principal"] != "*"
    (trust,) = resources["RunRole"]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Condition"]["StringEquals"]["aws:SourceAccount"] == {"Ref": "AWS::AccountId"}


def test_terraform_uses_only_the_generated_policies() -> None:
    text = "".join(path.read_text() for path in sorted(TERRAFORM.glob("*.tf")))
    loaded = re.findall(r'policy\s*=\s*templatefile\("\$\{path\.module\}/([^"]+)"', text)
    needs = ("plan", "reboot", "run")
    assert sorted(loaded) == [f"policy-{need}.json.tftpl" for need in needs]
    assert 'aws_iam_role_policy"' not in text
    attached = re.findall(r"role\s*=\s*aws_iam_role\.(\w+)\.name\s+policy_arn\s*=\s*(\S+)", text)
    plan, run = (f"aws_iam_policy.{need}.arn" for need in ("plan", "run"))
    assert attached == [
        ("plan", plan),
        ("run", run),
        ("run", "aws_iam_policy.reboot[0].arn"),
    ]
    assert text.count("count = var.allow_reboot ? 1 : 0") == 2
    (switch,) = re.findall(r'variable "allow_reboot" \{.*?\n\}', text, re.DOTALL)
    assert re.search(r"default\s*=\s*false", switch)


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
def test_terraform_files_are_formatted() -> None:
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-recursive", str(TERRAFORM)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@attack(Threat.CLOUD, "a forged message sent by another principal of the account")
def test_only_our_rules_send_to_the_queue_and_only_over_tls() -> None:
    resources = template("interruption-queue.yaml")["Resources"]
    rules = {name for name, r in resources.items() if r["Type"] == "AWS::Events::Rule"}
    document = resources["InterruptionQueuePolicy"]["Properties"]["PolicyDocument"]
    found = {s["Sid"]: s for s in document["Statement"]}
    (allowed,) = (s for s in found.values() if s["Effect"] == "Allow")
    assert allowed["Principal"] == {"Service": "events.amazonaws.com"}
    assert allowed["Condition"]["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
    assert allowed["Condition"]["ArnEquals"]["aws:SourceArn"] == [
        {"Fn::GetAtt": f"{name}.Arn"} for name in resources if name in rules
    ]
    assert found["OnlyServicesSend"]["Condition"]["Bool"] == {"aws:PrincipalIsAWSService": "false"}
    assert found["OnlyOverTls"]["Condition"]["Bool"] == {"aws:SecureTransport": "false"}
    assert found["OnlyOverTls"]["Action"] == "sqs:*"


@attack(Threat.CLOUD, "a queue of the Terraform module that accepts more than the template's")
def test_the_queue_of_terraform_is_that_of_cloudformation() -> None:
    resources = template("interruption-queue.yaml")["Resources"]
    patterns = {
        name.removesuffix("Rule"): r["Properties"]["EventPattern"]
        for name, r in resources.items()
        if r["Type"] == "AWS::Events::Rule"
    }
    assert json.loads((TERRAFORM / "rules.json").read_text()) == patterns
    text = (TERRAFORM / "queue.tf").read_text()
    document = resources["InterruptionQueuePolicy"]["Properties"]["PolicyDocument"]
    sids = re.findall(r'Sid\s+=\s+"(\w+)"', text)
    assert sids == [s["Sid"] for s in document["Statement"]]
    for key in ("aws:SourceAccount", "aws:SourceArn", "aws:PrincipalIsAWSService"):
        assert f'"{key}"' in text
