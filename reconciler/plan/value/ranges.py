"""The results of several runs: fleets at rest, their range, and the difference of two of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt
from statistics import stdev
from typing import ClassVar, Final

from reconciler.model.decision.part import Part

_QUANTILES: Final = (
    3.747,
    3.365,
    3.143,
    2.998,
    2.896,
    2.821,
    2.764,
    2.718,
    2.681,
    2.650,
    2.624,
    2.602,
    2.583,
    2.567,
    2.552,
    2.539,
)
"""The 99% quantiles of Student's distribution for 5 to 20 values."""
_VALUES_MIN: Final = 5

NEW_NODES_SEEDS: Final = 5
"""The maximum number of runs with new nodes for all pods."""

SEEDS_MIN: Final = 5
SEEDS_MAX: Final = 20
"""With how many seeds a future is computed: as many as the work allows, but never fewer.

Another run ends between the lowest and the highest of N runs in (N - 1) of N + 1 cases: of 20 in
nine of ten, of five only in two of three.
"""


class FleetAtRest(Part, frozen=True, kw_only=True):
    """A fleet with nothing left to do: its nodes, and their cost in USD an hour."""

    nodes: int
    per_hour: float


class CostSpan(Part, frozen=True, kw_only=True):
    """The lowest and the highest value over several runs, and their mean."""

    low: float
    mean: float
    high: float


def span_of(values: Sequence[float]) -> CostSpan:
    """Return the span of the values of at least one run; equal values have exactly their mean."""
    return CostSpan(low=min(values), mean=mean_of(values), high=max(values))


class CountSpan(Part, frozen=True, kw_only=True):
    """The lowest and the highest whole number over several runs, and their mean."""

    low: int
    mean: float
    high: int


def count_span(values: Sequence[int]) -> CountSpan:
    """Return the span of the whole numbers of at least one run."""
    return CountSpan(low=min(values), mean=mean_of(values), high=max(values))


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of at least one value; equal values have exactly their mean."""
    first = values[0]
    if all(value == first for value in values):
        return float(first)
    return round(fsum(values) / len(values), 9)


class FleetRange(Part, frozen=True, kw_only=True):
    """The fleets that ``seeds`` runs end with: how many nodes, and their cost in USD an hour."""

    seeds: int
    nodes: CountSpan
    per_hour: CostSpan


def fleet_range(fleets: Sequence[FleetAtRest]) -> FleetRange:
    """Return the range of the fleets of several runs, one for each seed."""
    nodes = [fleet.nodes for fleet in fleets]
    return FleetRange(
        seeds=len(fleets),
        nodes=count_span(nodes),
        per_hour=span_of([fleet.per_hour for fleet in fleets]),
    )


class CostDifference(Part, frozen=True, kw_only=True):
    """The cost of a change in USD an hour, over runs in pairs: both fleets with the same seed.

    The interval contains all runs and, from five runs on, with 98% confidence the mean of many:
    that of a few is itself chance. ``beyond_chance`` is whether zero is outside of it.
    """

    low: float
    mean: float
    high: float
    beyond_chance: bool


def cost_difference(differences: Sequence[float]) -> CostDifference:
    """Return the difference over at least one pair of runs."""
    span = span_of(differences)
    error = _error_of_mean(differences)
    low = min(span.low, round(span.mean - error, 9))
    high = max(span.high, round(span.mean + error, 9))
    return CostDifference(low=low, mean=span.mean, high=high, beyond_chance=low > 0 or high < 0)


def _error_of_mean(values: Sequence[float]) -> float:
    """Return how far the mean of many runs is from that of these, with 98% confidence.

    It is zero for fewer than five runs, where it would say more about their number than about them.
    """
    if len(values) < _VALUES_MIN:
        return 0.0
    quantile = _QUANTILES[min(len(values) - _VALUES_MIN, len(_QUANTILES) - 1)]
    return quantile * stdev(values) / sqrt(len(values))


class NewFleet(Part, frozen=True, kw_only=True):
    """A fleet at rest that has launched new nodes for all pods.

    ``unschedulable`` are the pods that no new node can take. ``limited`` are those of them that
    only the limits of a NodePool with nodes keep out, which may depend on the order of launches.
    """

    fleet: FleetAtRest
    unschedulable: tuple[str, ...] = ()
    limited: tuple[str, ...] = ()


class NewFleets(Part, frozen=True, kw_only=True):
    """Both sides of a change with new nodes for all pods, once no present node is left.

    Costs are means over ``seeds`` runs in USD an hour, and numbers of nodes rounded means.
    ``unschedulable`` are the pods that no new node can take under the head, though the base has
    nodes for them, in the run with the fewest, and ``limited`` those of them that only a limit
    keeps out.
    """

    before: FleetAtRest
    after: FleetAtRest
    seeds: int
    difference: CostDifference
    unschedulable: tuple[str, ...] = ()
    limited: tuple[str, ...] = ()

    left_out: ClassVar = ("unschedulable", "limited")


def new_fleets(pairs: Sequence[tuple[NewFleet, NewFleet]]) -> NewFleets:
    """Return both sides over at least one pair of runs with the same seed."""
    before, after = (fleet_range([pair[side].fleet for pair in pairs]) for side in (0, 1))
    lost = min((_newly_lost(*pair) for pair in pairs), key=len)
    limited = {pod for _, head in pairs for pod in head.limited}
    return NewFleets(
        before=mean_fleet(before),
        after=mean_fleet(after),
        seeds=len(pairs),
        difference=cost_difference(
            [head.fleet.per_hour - base.fleet.per_hour for base, head in pairs]
        ),
        unschedulable=lost,
        limited=tuple(pod for pod in lost if pod in limited),
    )


def _newly_lost(base: NewFleet, head: NewFleet) -> tuple[str, ...]:
    """Return the pods that only the head has no node for; which replicas wait is chance."""
    known = frozenset(base.unschedulable)
    new = [pod for pod in head.unschedulable if pod not in known]
    return tuple(new[: max(0, len(head.unschedulable) - len(known))])


def mean_fleet(found: FleetRange) -> FleetAtRest:
    """Return the mean cost and the rounded mean number of nodes."""
    return FleetAtRest(nodes=round(found.nodes.mean), per_hour=found.per_hour.mean)


def seed_count(work: int, work_max: int) -> int:
    """Return the number of seeds if each takes ``work`` and all together ``work_max``."""
    return min(max(work_max // max(work, 1), SEEDS_MIN), SEEDS_MAX)
