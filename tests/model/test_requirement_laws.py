"""Law 7: a requirement is the set of values it allows, and intersection is that of sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.karpenter.requirements import (
    Requirement,
    Requirements,
    from_spec,
    requirement,
)

VALUES = ["a", "b", "1", "5", "9", "-3", "1.5", "99999999999999999999"]
values = st.sampled_from(VALUES)


@st.composite
def requirements(draw: st.DrawFn, key: str = "zone") -> Requirement:
    operator = draw(
        st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"])
    )
    listed: tuple[str, ...] = ()
    if operator in ("In", "NotIn"):
        listed = tuple(draw(st.sets(values, min_size=1)))
    elif operator in ("Gt", "Lt", "Gte", "Lte"):
        listed = (str(draw(st.integers(0, 10))),)
    return requirement(key, operator, listed, draw(st.none() | st.integers(1, 5)))


@given(requirements(), requirements(), values)
def test_intersection_allows_exactly_what_both_allow(
    left: Requirement, right: Requirement, value: str
) -> None:
    assert left.intersection(right).has(value) == (left.has(value) and right.has(value))


@given(requirements(), requirements(), requirements())
def test_intersection_is_commutative_and_associative(
    a: Requirement, b: Requirement, c: Requirement
) -> None:
    assert a.intersection(b) == b.intersection(a)
    left, right = a.intersection(b).intersection(c), a.intersection(b.intersection(c))
    assert [left.has(v) for v in VALUES] == [right.has(v) for v in VALUES]


@given(requirements(), requirements())
def test_sets_are_compatible_if_their_intersection_is_not_empty(
    a: Requirement, b: Requirement
) -> None:
    met = a.intersection(b)
    assert a.has_intersection(b) == (met.complement or bool(met.values))


@given(requirements())
def test_any_value_returns_an_allowed_value_or_none(item: Requirement) -> None:
    value = item.any_value()
    assert item.has(value) if value else True
    if any(item.has(v) for v in VALUES if v.isdigit() and len(v) == 1):
        assert value


@given(requirements())
def test_requirements_written_for_the_api_allow_no_less(item: Requirement) -> None:
    written = Requirements(map(from_spec, item.specs())).requirement_on(item.key)
    assert all(written.has(v) for v in VALUES if item.has(v))


@given(st.lists(requirements("zone"), max_size=4), st.lists(requirements("zone"), max_size=4))
def test_a_set_does_not_depend_on_its_order(
    some: list[Requirement], others: list[Requirement]
) -> None:
    assert Requirements([*some, *others]) == Requirements([*others, *some])
