"""The values that a violated policy shows: those of the plan that its rule compares."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.adapters.cel.fields import unknown_fields
from reconciler.adapters.cel.values import find_values, parse_quantified

PLAN: dict[str, Any] = {
    "fleet": "shop",
    "cost": {"before": 1.0, "after": 2.5, "byNodePool": {"web": {"nodesAfter": 3}}},
    "atRest": {"perHour": 4.0, "bounds": None, "replaced": 8},
    "revision": {"dirty": True},
    "nodeClaims": [{"name": "a"}, {"name": "b"}],
}


def shown(expression: str, plan: dict[str, Any] = PLAN) -> list[tuple[Any, ...]]:
    return [
        (one.path, one.value if one.count is None else one.count, one.operator, one.limit)
        for one in find_values(expression, plan)
    ]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("plan.cost.after <= 2.0", [("cost.after", 2.5, "<=", 2.0)]),
        ("2 >= plan.cost.after", [("cost.after", 2.5, "<=", 2)]),
        ("double(plan.atRest.replaced) < 3.0", [("atRest.replaced", 8, "<", 3.0)]),
        ("plan.fleet == 'web'", [("fleet", "shop", "==", "web")]),
        ("!plan.revision.dirty", [("revision.dirty", True, "", None)]),
        ("plan.revision.dirty == false", [("revision.dirty", True, "==", False)]),
        ("size(plan.nodeClaims) == 0", [("nodeClaims", 2, "==", 0)]),
        ("plan.nodeClaims == []", [("nodeClaims", 2, "", None)]),
        ("plan.cost.byNodePool['web'].nodesAfter < 2",
         [("cost.byNodePool.web.nodesAfter", 3, "<", 2)]),
    ],
)  # fmt: skip
def test_the_value_of_a_path_is_shown_with_the_limit_of_the_rule(
    expression: str, found: list[tuple[Any, ...]]
) -> None:
    assert shown(expression) == found


@pytest.mark.parametrize(
    "expression",
    [
        "plan.cost.after <= 1.1 * plan.cost.before",
        "plan.cost.after - plan.cost.before <= 1.0",
        "plan.cost.before == 0.0 || plan.cost.after <= 1.0",
    ],
)
def test_no_limit_is_stated_where_it_is_not_a_literal_or_not_the_only_way(expression: str) -> None:
    values = {("cost.after", 2.5, "", None), ("cost.before", 1.0, "", None)}
    assert set(shown(expression)) == values


def test_only_the_limit_that_does_not_hold_is_stated() -> None:
    assert shown("plan.cost.before <= 5.0 && (plan.cost.after <= 2.0)") == [
        ("cost.before", 1.0, "", None),
        ("cost.after", 2.5, "<=", 2.0),
    ]


def test_only_the_branch_that_applies_is_read() -> None:
    rule = (
        "(has(plan.atRest)\n"
        "  ? (plan.atRest.bounds == null ? plan.atRest.perHour : plan.atRest.bounds[1])\n"
        "  : plan.cost.after - plan.cost.before) <= 500.0"
    )
    assert shown(rule) == [("atRest.perHour", 4.0, "", None)]
    without = {name: value for name, value in PLAN.items() if name != "atRest"}
    assert [path for path, *_ in shown(rule, without)] == ["cost.after", "cost.before"]
    bounded = {**PLAN, "atRest": {**PLAN["atRest"], "bounds": [1.0, 9.0]}}
    assert shown(rule, bounded) == [("atRest.bounds[1]", 9.0, "", None)]


def test_a_limit_in_the_branch_that_applies_is_stated() -> None:
    rule = "has(plan.atRest) ? plan.atRest.replaced <= 2 : true"
    assert shown(rule) == [("atRest.replaced", 8, "<=", 2)]


@pytest.mark.parametrize(
    ("expression", "filtered"),
    [
        ("plan.nodeClaims.all(c, c.name != 'a')", "plan.nodeClaims.filter(c, !(c.name != 'a'))"),
        ("! plan.changes . exists(c, c.op == 'delete')",
         "plan.changes .filter(c, (c.op == 'delete'))"),
        ("!plan.nodeClaims.all(c, true)", None),
        ("plan.nodeClaims.all(c, true) && true", None),
        ("plan.cost.after < 1.0", None),
        ("plan.nodeClaims.map(c, c.name).all(n, n != '')", None),
    ],
)  # fmt: skip
def test_a_rule_about_all_elements_is_asked_for_those_that_violate_it(
    expression: str, filtered: str | None
) -> None:
    rule = parse_quantified(expression)
    assert (rule.expression if rule is not None else None) == filtered


@given(st.text(alphabet="plan.cost()[]?:|&'\"hs 01<=!,{}ax\n/", max_size=40))
def test_any_text_can_be_read(text: str) -> None:
    unknown_fields(f"plan.cost{text}")
    find_values(f"has(plan.cost{text}", PLAN)
    find_values(text, PLAN)
    parse_quantified(f"plan.nodeClaims.all({text})")
