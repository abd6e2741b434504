"""The declared calls, the calls in the code, and the documents agree."""

from __future__ import annotations

import ast
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name

from reconciler.adapters.aws.permissions import CALLS, TAGGED_LATER, Names, Need, policy
from reconciler.engine import takeover
from reconciler.engine.steps import upkeep
from reconciler.model.karpenter.labels import NODECLAIM
from reconciler.model.ownership import CLUSTER_TAG, FLEET_TAG
from tests import awsmodels

REPOSITORY = Path(__file__).resolve().parents[3]
ADAPTER = REPOSITORY / "reconciler" / "adapters" / "aws"
DOCS = REPOSITORY / "docs" / "aws"
SERVICES = sorted({call.service for call in CALLS})


@cache
def operations() -> dict[str, set[str]]:
    """Return the operations of the services by the name of their method in boto3."""
    session = awsmodels.session()
    found: dict[str, set[str]] = {}
    for service in SERVICES:
        for operation in session.get_service_model(service).operation_names:
            found.setdefault(xform_name(operation), set()).add(f"{service}:{operation}")
    return found


def called() -> dict[str, str]:
    """Return the methods of clients that the adapter calls or pages through, with a place each."""
    found: dict[str, str] = {}
    for path in sorted(ADAPTER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name: Any = None
            if isinstance(node, ast.Attribute):
                name = node.attr
            elif isinstance(node, ast.Constant):
                name = node.value
            if isinstance(name, str) and "_" in name and name in operations():
                found.setdefault(name, f"{path.name}:{getattr(node, 'lineno', 0)}")
    return found


def test_declared_permissions_match_the_calls_that_are_made() -> None:
    declared = {xform_name(call.operation): call.name for call in CALLS}
    made = called()
    undeclared = {name: place for name, place in made.items() if name not in declared}
    assert undeclared == {}, "declare them in permissions.py, and run docs/aws/generate.py"
    unused = {call for name, call in declared.items() if name not in made}
    assert unused == set()
    for name, call in declared.items():
        assert call in operations()[name]


@pytest.mark.parametrize("need", [Need.PLAN, Need.RUN])
def test_a_policy_allows_every_call_and_fits_into_iam(need: Need) -> None:
    made = policy(need, Names(account="111122223333", region="eu-west-1", cluster="c" * 63))
    allowed = {action for s in made["Statement"] for action in s["Action"]}
    wanted = {a for c in CALLS if c.need in (Need.PLAN, Need.CHECK, need) for a in c.allowed_by}
    assert wanted <= allowed
    assert len({s["Sid"] for s in made["Statement"]}) == len(made["Statement"])
    assert len(json.dumps(made, separators=(",", ":"))) <= 6144, "the limit of a managed policy"


def test_the_plan_policy_is_read_only() -> None:
    actions = {a for s in policy(Need.PLAN, Names())["Statement"] for a in s["Action"]}
    verbs = {action.partition(":")[2] for action in actions}
    assert {v for v in verbs if not v.startswith(("Describe", "Get", "List"))} == set()


def test_write_permissions_are_limited_to_the_cluster() -> None:
    made = policy(Need.RUN, Names(cluster="prod"))
    loose = {
        action
        for s in made["Statement"]
        if "Condition" not in s and s["Resource"] == "*"
        for action in s["Action"]
    }
    assert {
        a for a in loose if not a.partition(":")[2].startswith(("Describe", "Get", "List"))
    } == set()


def test_the_documents_match_the_declaration() -> None:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path, content in module.files().items():
        assert path.read_text(encoding="utf-8") == content, f"run docs/aws/generate.py: {path.name}"


def test_every_tag_added_later_is_allowed() -> None:
    put_on = {upkeep.NAME, NODECLAIM, CLUSTER_TAG, FLEET_TAG, takeover.CLAIM_TAG}
    assert put_on == set(TAGGED_LATER)
    statements = policy(Need.RUN, Names())["Statement"]
    (tags,) = [s for s in statements if s["Action"] == ["ec2:CreateTags"] and "OwnI" in s["Sid"]]
    allowed = tags["Condition"]["ForAllValues:StringEquals"]["aws:TagKeys"]
    assert set(allowed) == set(TAGGED_LATER)
