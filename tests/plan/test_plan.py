"""A plan as a value: law 9, its digest, and the changed inputs between two plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource_path
from reconciler.model.decision.part import Part
from reconciler.model.errors import UnreadableError
from reconciler.plan.explain.answer import Explanation
from reconciler.plan.value.actions import PlannedCommand
from reconciler.plan.value.nodes import PlacedPod
from reconciler.plan.value.plan import InputDigests, Plan, from_json, to_json
from tests.examples import examples
from tests.plan.builders import PLANS, a_plan
from tests.plan.strategies import plans


@cache
def validator() -> Draft202012Validator:
    schema = json.loads(Path(resource_path("schemas", "plan.v1.json")).read_bytes())
    return Draft202012Validator(schema, format_checker=FormatChecker())


@given(plans)
@settings(max_examples=examples(150), deadline=None)
def test_a_plan_survives_its_json_and_keeps_the_schema(plan: Plan) -> None:
    content = to_json(plan)
    assert from_json(content) == plan
    assert to_json(from_json(content)) == content
    validator().validate(json.loads(content))


def test_a_plan_omits_empty_fields() -> None:
    """Plans from before a field was added have these bytes, and approvals refer to them."""
    document = json.loads(to_json(a_plan()))
    assert not document.keys() & {"headroom", "blockers", "lock", "nodeClasses", "observed"}
    assert not document.keys() & {"approvedAs", "atRest", "observation"}
    command = PlannedCommand(
        id="c", reason="Empty", decision="delete", nodes=("n-1",), savings_per_eviction=0.0
    )
    document = json.loads(to_json(a_plan(placements=(PlacedPod(pod="a/b"),), commands=(command,))))
    assert "givenUp" not in document["placements"][0]
    assert "message" not in document["commands"][0]
    assert document["commands"][0]["savingsPerEviction"] == 0.0


def test_the_encoder_handles_every_part_with_omitted_fields() -> None:
    def reaches(part: type[Part]) -> bool:
        """Return whether a part or one inside it omits a field."""
        inside = [reaches(kind) for kinds in parts_of(part).values() for kind in kinds]
        return bool(part.left_out) or any(inside)

    def check(part: type[Part]) -> None:
        inner = parts_of(part)
        found = {name for name, kinds in inner.items() if any(map(reaches, kinds))}
        assert found == set(part.parts), part
        assert set(part.left_out) <= set(part.__struct_fields__), part
        for kinds in inner.values():
            for kind in kinds:
                check(kind)

    check(Plan)
    check(Explanation)


def parts_of(part: type[Part]) -> dict[str, list[type[Part]]]:
    """Return by field the parts that its type names."""
    return {field.name: list(parts_in(field.type)) for field in msgspec.structs.fields(part)}


def parts_in(kind: object) -> Iterator[type[Part]]:
    if isinstance(kind, type) and issubclass(kind, Part):
        yield kind
    for argument in get_args(kind):
        yield from parts_in(argument)


@pytest.mark.parametrize("name", PLANS)
def test_any_plan_is_valid_under_the_schema(name: str) -> None:
    validator().validate(json.loads(to_json(PLANS[name]())))


def test_keys_are_sorted() -> None:
    def check(value: object) -> None:
        if isinstance(value, dict):
            assert list(value) == sorted(value)
            for item in value.values():
                check(item)
        if isinstance(value, list):
            for item in value:
                check(item)

    check(json.loads(to_json(PLANS["pull_request"]())))


def test_an_approval_given_yesterday_still_holds_today() -> None:
    """The digest is an interface: approvals and records refer to it."""
    assert a_plan().digest == "762499086229"


@pytest.mark.parametrize("field", ["fleet", "inputs_digest"])
def test_another_plan_has_another_digest(field: str) -> None:
    assert a_plan().digest != a_plan(**{field: "other"}).digest


def test_changed_inputs_are_named() -> None:
    before = InputDigests(git="a", snapshot="b", catalog="c", settings="d", engine="e")
    after = InputDigests(git="x", snapshot="b", catalog="c", settings="y", engine="e")
    assert before.changed(after) == ["git", "settings"]
    assert before.changed(before) == []


@pytest.mark.parametrize(
    ("content", "document"),
    [
        (b"", "truncated"),
        (b"{}", "is missing"),
        (b"[]", "it is a list, not an object"),
        (b"\xff", "not a plan"),
        (to_json(a_plan()).replace(b"reconciler/v1", b"reconciler/v9"), "reconciler/v9"),
        (to_json(a_plan()).replace(b'"Plan"', b'"Plot"'), "Plot"),
    ],
)
def test_an_invalid_plan_is_rejected_with_the_position(content: bytes, document: str) -> None:
    with pytest.raises(UnreadableError, match=r"plan\.json: not a plan") as caught:
        from_json(content, "plan.json")
    assert document in str(caught.value)


def test_the_schema_names_every_field() -> None:
    """Users read the schema, so it must contain every field."""
    schema = json.loads(Path(resource_path("schemas", "plan.v1.json")).read_bytes())
    plan = PLANS["pull_request"]()
    assert_described(json.loads(to_json(plan)), schema, schema, "plan")


def assert_described(value: object, schema: dict, root: dict, where: str) -> None:
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list) and "items" in schema:
        for item in value:
            assert_described(item, schema["items"], root, f"{where}[]")
    if isinstance(value, dict) and "properties" in schema:
        for key, item in value.items():
            assert key in schema["properties"], f"{where}.{key}"
            assert_described(item, schema["properties"][key], root, f"{where}.{key}")
