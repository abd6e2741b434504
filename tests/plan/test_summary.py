"""The sentence that says how much cheaper the new nodes could be."""

# ruff: noqa: E501 - a case reads best on one line

import pytest
from msgspec import UNSET, UnsetType

from reconciler.plan.plan import Cost
from reconciler.plan.summary import summary_lines
from tests.plan.builders import a_plan


@pytest.mark.parametrize(
    ("bound", "gap", "held", "said"),
    [
        (None, UNSET, UNSET, None),
        (0.5, UNSET, UNSET, None),
        (0.5, 0.0, UNSET, "No nodes for these pods cost less."),
        (0.5, 0.04, "PodRules", "No nodes for these pods cost less than $0.5000 an hour; these are 4% above it."),
        (0.5, 1.42, "Packing", "No nodes for these pods cost less than $0.5000 an hour; these are 142% above it: --set packing=cheapest tries many packings."),
        (0.5, 0.3, "PodRules", "No nodes for these pods cost less than $0.5000 an hour; these are 30% above it: spread and affinity between the pods hold them there."),
    ],
)  # fmt: skip
def test_the_sum_says_how_far_the_nodes_are_above_the_least(
    bound: float | None, gap: float | UnsetType, held: str | UnsetType, said: str | None
) -> None:
    cost = Cost(before=0.0, after=1.0, lower_bound=bound, bound_gap=gap, bound_held_by=held)
    lines = [line for line in summary_lines(a_plan(cost=cost)) if "these pods" in line]
    assert lines == ([said] if said else [])
