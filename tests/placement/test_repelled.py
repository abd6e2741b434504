"""Rules of other pods about zones, examined together and one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.karpenter.requirements import Requirement, requirement
from reconciler.placement.topology.groups import (
    Group,
    Restriction,
    intersect_by_label,
    unrepelled_domains,
)
from reconciler.placement.topology.rules import Rule, RuleKind, Selector
from tests.examples import examples
from tests.placement.builders import ZONE

_zones = st.sampled_from(["zone-a", "zone-b", "zone-c", "zone-d"])
_allowed = st.sampled_from(
    [None, requirement(ZONE, "NotIn", ["zone-b"]), requirement(ZONE, "In", ["zone-a", "zone-c"])]
)


@settings(max_examples=examples(300))
@given(
    st.lists(st.dictionaries(_zones, st.integers(0, 2)), min_size=1, max_size=5),
    st.frozensets(_zones),
    st.frozensets(_zones),
    _allowed,
)
def test_rules_of_one_label_leave_the_intersection_of_their_domains(
    counts: list[dict[str, int]],
    standing: frozenset[str],
    reach: frozenset[str],
    allowed: Requirement | None,
) -> None:
    groups = []
    for number, row in enumerate(counts):
        selector = Selector(pairs=(("app", f"a{number}"),))
        rule = Rule(RuleKind.ANTI_AFFINITY, ZONE, frozenset({"default"}), selector, inverse=True)
        group = Group(rule, dict(row), standing)
        group.add_domains([*standing, *reach])
        groups.append(group)
    (each,) = intersect_by_label(
        Restriction(g.rule, g).open_domains(False, allowed, reach) for g in groups
    )
    every = unrepelled_domains(groups, allowed, reach)
    assert (every.key, every.tiers, every.pins) == (each.key, each.tiers, each.pins)
