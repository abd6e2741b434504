"""A plan as a value: law 9, its digest, and what moved between two of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource
from reconciler.model.errors import UnreadableError
from reconciler.plan.value.plan import InputDigests, Plan, from_json, to_json
from tests.examples import examples
from tests.plan.builders import PLANS, a_plan
from tests.plan.strategies import plans


@cache
def validator() -> Draft202012Validator:
    schema = json.loads(Path(resource("schemas", "plan.v1.json")).read_bytes())
    return Draft202012Validator(schema, format_checker=FormatChecker())


@given(plans)
@settings(max_examples=examples(150), deadline=None)
def test_a_plan_survives_its_json_and_keeps_the_schema(plan: Plan) -> None:
    content = to_json(plan)
    assert from_json(content) == plan
    assert to_json(from_json(content)) == content
    validator().validate(json.loads(content))


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_as_it_comes_keeps_the_schema(name: str) -> None:
    validator().validate(json.loads(to_json(PLANS[name]())))


def test_keys_stand_in_order() -> None:
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
    """The digest is an interface: people approve by it, and records keep it."""
    assert a_plan().digest == "762499086229"


@pytest.mark.parametrize("field", ["fleet", "inputs_digest"])
def test_another_plan_has_another_digest(field: str) -> None:
    assert a_plan().digest != a_plan(**{field: "other"}).digest


def test_it_can_be_said_which_inputs_moved() -> None:
    before = InputDigests(git="a", snapshot="b", catalog="c", settings="d", engine="e")
    after = InputDigests(git="x", snapshot="b", catalog="c", settings="y", engine="e")
    assert before.moved(after) == ["git", "settings"]
    assert before.moved(before) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated"),
        (b"{}", "required field"),
        (b"[]", "Expected `object`"),
        (b"\xff", "not a plan"),
        (to_json(a_plan()).replace(b"reconciler/v1", b"reconciler/v9"), "reconciler/v9"),
        (to_json(a_plan()).replace(b'"Plan"', b'"Plot"'), "Plot"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_place(content: bytes, said: str) -> None:
    with pytest.raises(UnreadableError, match=r"plan\.json: not a plan") as caught:
        from_json(content, "plan.json")
    assert said in str(caught.value)


def test_the_schema_names_every_field() -> None:
    """Users read the schema: a field that is not in it is a secret."""
    schema = json.loads(Path(resource("schemas", "plan.v1.json")).read_bytes())
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
