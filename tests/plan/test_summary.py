"""The sentence about the gap to the minimum cost of new nodes."""

# ruff: noqa: E501 - a case reads best on one line

import pytest

from reconciler.plan.render.summary import summary_lines
from reconciler.plan.value.costs import Cost
from tests.plan.builders import a_plan


@pytest.mark.parametrize(
    ("bound", "gap", "held", "said"),
    [
        (None, None, None, None),
        (0.5, None, None, None),
        (0.5, 0.0, None, "This is already the cheapest possible set of nodes."),
        (0.5, 0.04, "PodRules", "Theoretical minimum for these pods: $0.5000/hour. This plan costs 4% more."),
        (0.5, 1.42, "Packing", "Theoretical minimum for these pods: $0.5000/hour. This plan costs 2.4×. Try `--set packing=cheapest`."),
        (0.5, 0.3, "PodRules", "30% above the theoretical minimum because of topology spread and (anti-)affinity."),
    ],
)  # fmt: skip
def test_the_summary_shows_the_gap_to_the_minimum_cost(
    bound: float | None, gap: float | None, held: str | None, said: str | None
) -> None:
    cost = Cost(before=0.0, after=1.0, lower_bound=bound, bound_gap=gap, bound_held_by=held)
    assert summary_lines(a_plan(cost=cost))[2:] == ([said] if said else [])
