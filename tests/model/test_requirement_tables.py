"""Every case of the table ``requirements``: Karpenter's algebra, asked through our functions."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.karpenter.labels import WELL_KNOWN
from reconciler.model.karpenter.requirements import (
    Requirement,
    Requirements,
    RequirementSpec,
    requirement,
)
from tests.tables import table

CASES = table("requirements").get("cases", [])


def one(entry: dict[str, Any]) -> Requirement:
    return requirement(
        entry["key"], entry["operator"], entry.get("values") or (), entry.get("minValues")
    )


def many(entries: list[dict[str, Any]]) -> Requirements:
    return Requirements(map(one, entries))


def canonical(item: Requirement) -> dict[str, Any]:
    form: dict[str, Any] = {"complement": item.complement, "values": sorted(item.values)}
    bounds = {"gte": item.gte, "lte": item.lte, "minValues": item.min_values}
    return form | {name: value for name, value in bounds.items() if value is not None}


def entry_of(spec: RequirementSpec) -> dict[str, Any]:
    form: dict[str, Any] = {
        "key": spec.key,
        "operator": str(spec.operator),
        "values": list(spec.values),
    }
    if spec.min_values is not None:
        form["minValues"] = spec.min_values
    return form


def normal(entry: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in entry.items() if v is not None and k in entry}
    kept["values"] = sorted(kept.get("values") or [])
    return kept


def answer(kind: str, given: dict[str, Any]) -> Any:
    match kind:
        case "intersection":
            return canonical(one(given["existing"]).intersection(one(given["incoming"])))
        case "has":
            return one(given["requirement"]).has(given["value"])
        case "operator":
            return str(one(given["requirement"]).operator)
        case "string":
            return str(one(given["requirement"]))
        case "string_of_intersection":
            return str(one(given["existing"]).intersection(one(given["incoming"])))
        case "requirements_string":
            return str(many(given["requirements"]))
        case "compatible":
            allowed = WELL_KNOWN if given["allow_undefined_well_known"] else frozenset()
            return many(given["existing"]).is_compatible(many(given["incoming"]), allowed)
    raise AssertionError(kind)


SIMPLE = {
    "intersection",
    "has",
    "operator",
    "string",
    "string_of_intersection",
    "requirements_string",
    "compatible",
}


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] in SIMPLE], ids=lambda c: c["name"])
def test_the_algebra_agrees_with_karpenter(case: dict[str, Any]) -> None:
    expected = case["expect"]
    if case["kind"] == "intersection":
        expected = {**expected, "values": sorted(expected["values"])}
    assert answer(case["kind"], case["input"]) == expected


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "len"], ids=lambda c: c["name"])
def test_the_number_of_values_is_counted_as_karpenter_does(case: dict[str, Any]) -> None:
    expected = case["expect"]
    item = one(case["input"]["requirement"])
    if isinstance(expected, dict):
        expected = 2**63 - 1 - expected["max_int_minus"]
    assert len(item) == expected


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "any"], ids=lambda c: c["name"])
def test_any_value_returns_an_allowed_value(case: dict[str, Any]) -> None:
    expected, item = case["expect"], one(case["input"]["requirement"])
    value = item.any_value()
    if expected.get("empty"):
        assert value == ""
    if "one_of" in expected:
        assert value in expected["one_of"]
    if "not_in" in expected:
        assert value not in expected["not_in"]
    assert value == "" or item.has(value)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["kind"].startswith("to_node_selector")], ids=lambda c: c["name"]
)
def test_requirements_are_written_in_the_form_of_the_api(case: dict[str, Any]) -> None:
    if case["kind"] == "to_node_selector_requirement":
        got = [entry_of(s) for s in one(case["input"]["requirement"]).specs()]
        expected = [case["expect"]]
    else:
        got = [entry_of(s) for s in many(case["input"]["requirements"]).specs()]
        expected = case["expect"]
    order = lambda e: (e["key"], e["operator"])  # noqa: E731
    assert sorted(map(normal, got), key=order) == sorted(map(normal, expected), key=order)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["kind"] == "intersection_has"], ids=lambda c: c["name"]
)
def test_two_bounds_leave_the_values_between_them(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expect"]
    both = one(given["existing"]).intersection(one(given["incoming"]))
    assert all(both.has(v) for v in expected["has"])
    assert not any(both.has(v) for v in expected["has_not"])
    if "serialised" in expected:
        (spec,) = both.specs()
        assert {"operator": str(spec.operator), "values": list(spec.values)} == expected[
            "serialised"
        ]


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["kind"] == "equivalent_has"], ids=lambda c: c["name"]
)
def test_equivalent_bounds_allow_the_same_values(case: dict[str, Any]) -> None:
    for left, right, values in case["input"]["pairs"]:
        assert [one(left).has(v) for v in values] == [one(right).has(v) for v in values]


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["kind"] == "incompatible_message"], ids=lambda c: c["name"]
)
def test_a_conflict_names_the_label_and_a_likely_typo(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expect"]
    allowed = WELL_KNOWN if given["allow_undefined_well_known"] else frozenset()
    found = many(given["existing"]).first_conflict(many(given["incoming"]), allowed)
    assert found is not None
    assert found.key == expected["label"]
    assert found.suggestion == expected.get("suggested_label")
    assert str(found) == expected["message"]


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["kind"] == "requirement_drift"], ids=lambda c: c["name"]
)
def test_labels_that_no_longer_satisfy_the_pool_have_drifted(case: dict[str, Any]) -> None:
    given = case["input"]
    labels = Requirements.from_labels(given["nodeclaim_labels"])
    wanted = many(given["nodepool_requirements"])
    assert labels.is_compatible(wanted) is not case["expect"]["drifted"]


def test_every_kind_of_case_is_covered() -> None:
    known = SIMPLE | {
        "len",
        "any",
        "to_node_selector_requirement",
        "to_node_selector_requirements",
        "intersection_has",
        "equivalent_has",
        "incompatible_message",
        "requirement_drift",
    }
    assert {c["kind"] for c in CASES} <= known
