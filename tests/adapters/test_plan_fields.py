"""The fields of a plan that a policy names, compared with the schema of plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from reconciler._resources import resource_path
from reconciler.adapters.cel.fields import unknown_fields
from reconciler.plan.value.plan import Plan

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "policies").glob("*.yaml"))


@pytest.mark.parametrize(
    ("expression", "owner", "name", "near"),
    [
        ("plan.cost.aftr <= 5.0", "plan.cost", "aftr", "after"),
        ("plan.cst.after <= 5.0", "plan", "cst", "cost"),
        ("true || plan.cost.xyz > 1.0", "plan.cost", "xyz", None),
        ("plan.cost.after.perHour > 1.0", "plan.cost.after", "perHour", None),
        ("plan['cost']['aftr'] > 1.0", "plan['cost']", "aftr", "after"),
        ("plan.atRest.bounds[1].low > 1.0", "plan.atRest.bounds[1]", "low", None),
        ("plan.cost.byNodePool['web'].nodeBefore > 1", "plan.cost.byNodePool['web']",
         "nodeBefore", "nodesBefore"),
        ("plan.nodeClaims.all(c, c.instanceTyps.all(t, t != 'a'))", "c", "instanceTyps",
         "instanceTypes"),
        ("plan.nodeClaims.all(c, c.launch.all(o, o.zon == 'a') || c.launch.zon == 'a')",
         "c.launch", "zon", "zone"),
        ("plan.changes.filter(c, c.op == 'delete')[0].nam == 'a'",
         "plan.changes.filter(c,c.op=='delete')[0]", "nam", "name"),
        ("count(plan.nodeClaims, 'launch.capacityTyp', 'spot') > 1.0",
         "plan.nodeClaims[].launch", "capacityTyp", "capacityType"),
        ("plan.drift.exists(d, plan.cost.aftr > 1.0)", "plan.cost", "aftr", "after"),
        ("plan.cost // plan.cost.xyz\n  .aftr > 1.0", "plan.cost", "aftr", "after"),
    ],
)  # fmt: skip
def test_a_field_that_no_plan_has_is_found(
    expression: str, owner: str, name: str, near: str | None
) -> None:
    found = [(one.owner, one.name, one.suggestion) for one in unknown_fields(expression)]
    assert found == [(owner, name, near)]
    assert (
        expression[unknown_fields(expression)[0].offset :].lstrip("'").startswith((name, "launch"))
    )


@pytest.mark.parametrize(
    "expression",
    [
        "has(plan.atRest) ? plan.atRest.perHour <= 1.0 : true",
        "plan.cost.byNodePool.map(p, plan.cost.byNodePool[p].nodesBefore) == [1]",
        "plan.cost.byNodePool['a name'].after > 1.0",
        "plan.nodeClaims.all(c, c.labels.team == 'a' && c.labels['x/y'] == 'b')",
        "plan.nodeClaims.all(c, c.requests.cpu == '2')",
        "plan.at.endsWith('Z') && timestamp(plan.at) < now",
        "'plan.cost.aftr' == \"plan.cst\"",
        "plan.nodeClaims.map(c, {'k': c.name}).all(x, x.anything.at.all == 1)",
        "[1, 2].exists(c, c == 1) && plan.changes.exists_one(c, c.name == 'a')",
        "plan.cost.(",
        "plan.cost[",
        "plan.",
        "",
    ],
)
def test_fields_of_plans_and_what_cannot_be_known_are_not_reported(expression: str) -> None:
    assert unknown_fields(expression) == []


def test_a_field_that_has_tests_for_is_reported_once() -> None:
    (one,) = unknown_fields("has(plan.cost.tax) ? plan.cost.tax < 1.0 : true")
    assert one.is_tested
    (other,) = unknown_fields("plan.cost.tax < 1.0")
    assert not other.is_tested


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_shipped_policies_name_only_fields_of_plans(path: Path) -> None:
    for policy in yaml.safe_load(path.read_text())["policies"]:
        for part in ("expression", "messageExpression"):
            assert unknown_fields(policy.get(part, "")) == []


def test_the_schema_of_plans_has_every_field_of_a_plan() -> None:
    """Else a policy on a field that exists would be reported."""
    schema = json.loads(Path(str(resource_path("schemas", "plan.v1.json"))).read_bytes())
    assert list(missing_fields(msgspec.json.schema(Plan), schema)) == []


def missing_fields(written: dict[str, Any], described: dict[str, Any]) -> list[str]:
    """Return the fields of the type of plans that its schema lacks where it lists fields."""

    def resolved(part: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in part:
            part = root["$defs"][part["$ref"].rpartition("/")[2]]
        return part

    def missing(part: dict[str, Any], other: dict[str, Any], path: str) -> list[str]:
        part, other = resolved(part, written), resolved(other, described)
        if "anyOf" in part:
            return [name for one in part["anyOf"] for name in missing(one, other, path)]
        found = []
        for name, inner in part.get("properties", {}).items():
            if "properties" in other and name not in other["properties"]:
                found.append(f"{path}.{name}")
            found += missing(inner, other.get("properties", {}).get(name, {}), f"{path}.{name}")
        for key in ("items", "additionalProperties"):
            if isinstance(part.get(key), dict) and isinstance(other.get(key), dict):
                found += missing(part[key], other[key], f"{path}.{key}")
        return found

    return missing(written, described, "plan")
