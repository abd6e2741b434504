"""What fewer evictions cost: a workload under each of the settings that trade one for the other.

Each point is the fleet with other settings for packing, search and the price of an eviction; all
else stays. A point is efficient if no other one costs at most as much with at most as many
evictions. ``Balanced`` is Karpenter's own answer: its search, with the consolidation policy that
weighs savings against disruption.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from msgspec.structs import replace as with_fields

from reconciler.model.karpenter.nodepool import BALANCED, WHEN_EMPTY_OR_UNDERUTILIZED, NodePool
from reconciler.model.settings import ConsolidationSearch, Packing, PoolOption
from reconciler.model.text.money import format_dollars, format_whole_dollars
from reconciler.plan.render.summary import format_seconds
from reconciler.plan.value.costs import KARPENTER, FrontierPoint, SideResult
from reconciler.render.curves import Dot, scatter
from reconciler.render.page import Markup
from reconciler.simulate.building import SimulatedFleet
from reconciler.source.resource import Resource

FRONTIER: Final = "frontier"
"""What ``--against`` names to compare all points."""
EVICTION_COSTS: Final = (0.1, 0.3, 1.0)
_TRADED: Final = frozenset({"packing", "consolidation_search", "eviction_cost"})
"""The settings that trade cost for evictions."""
"""The prices of an eviction of the points, in USD, besides none."""

HEADINGS: Final = (
    "",
    "side",
    "cost",
    "above minimum",
    "evictions",
    "per pod-day",
    "waiting p50",
    "p99",
)


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """Settings that apply to the complete fleet, in place of its own and those of its NodePools.

    With ``balanced``, NodePools that consolidate underutilized nodes have the policy Balanced.
    """

    packing: Packing = Packing.DEFAULT
    search: ConsolidationSearch = ConsolidationSearch.DEFAULT
    eviction_cost: float = 0.0
    balanced: bool = False

    def apply_to(self, fleet: SimulatedFleet) -> SimulatedFleet:
        """Return the fleet with these settings."""
        own = {
            name: {option: value for option, value in options.items() if option not in _TRADED}
            for name, options in fleet.settings.node_pools.items()
        }
        settings = replace(
            fleet.settings,
            packing=self.packing,
            consolidation_search=self.search,
            eviction_cost=self.eviction_cost,
            node_pools=own,
        )
        found = replace(fleet, settings=settings)
        return _with_balanced_pools(found) if self.balanced else found

    def is_met_by(self, fleet: SimulatedFleet) -> bool:
        """Return whether a fleet has these settings already."""
        found = self.apply_to(fleet)
        return found.node_pools == fleet.node_pools and all(
            found.settings.pool(pool.name) == fleet.settings.pool(pool.name)
            for pool in fleet.node_pools
        )

    @property
    def options(self) -> dict[str, str]:
        """The settings as they are written for ``--set``, and the policy of Balanced NodePools."""
        found = {
            PoolOption.PACKING.value: self.packing.value,
            PoolOption.CONSOLIDATION_SEARCH.value: self.search.value,
            PoolOption.EVICTION_COST.value: f"{self.eviction_cost:g}",
        }
        return found | ({"consolidationPolicy": BALANCED} if self.balanced else {})


def _with_balanced_pools(fleet: SimulatedFleet) -> SimulatedFleet:
    return replace(
        fleet,
        node_pools=tuple(map(_balanced_pool, fleet.node_pools)),
        fleet=replace(fleet.fleet, node_pools=tuple(map(_balanced, fleet.fleet.node_pools))),
    )


def _balanced_pool(pool: NodePool) -> NodePool:
    disruption = pool.spec.disruption
    if disruption.consolidation_policy != WHEN_EMPTY_OR_UNDERUTILIZED:
        return pool
    disruption = with_fields(disruption, consolidation_policy=BALANCED)
    return with_fields(pool, spec=with_fields(pool.spec, disruption=disruption))


def _balanced(resource: Resource) -> Resource:
    """Return the object of a NodePool with the policy Balanced, where it had the default one."""
    spec = resource.data.get("spec") or {}
    disruption = spec.get("disruption") or {}
    policy = disruption.get("consolidationPolicy", WHEN_EMPTY_OR_UNDERUTILIZED)
    if policy != WHEN_EMPTY_OR_UNDERUTILIZED:
        return resource
    disruption = {**disruption, "consolidationPolicy": BALANCED}
    return resource._replace(data={**resource.data, "spec": {**spec, "disruption": disruption}})


_KARPENTERS: Final = Tradeoff(search=ConsolidationSearch.KARPENTER)


def _tradeoffs() -> Iterable[tuple[str, Tradeoff]]:
    """Yield the points by name."""
    yield KARPENTER, _KARPENTERS
    yield "balanced", replace(_KARPENTERS, balanced=True)
    yield "cheapest", Tradeoff(packing=Packing.CHEAPEST)
    yield "thorough", Tradeoff(search=ConsolidationSearch.THOROUGH)
    cheapest = Tradeoff(Packing.CHEAPEST, ConsolidationSearch.THOROUGH)
    pairs = (("default", Tradeoff()), ("cheapest-thorough", cheapest))
    for (name, base), cost in product(pairs, (0.0, *EVICTION_COSTS)):
        suffix = f"-{cost:g}" if cost else ""
        yield f"{name}{suffix}", replace(base, eviction_cost=cost)


TRADEOFFS: Final[Mapping[str, Tradeoff]] = dict(_tradeoffs())
"""The points by the name of their side; the price of an eviction is at the end of the name."""


def points_of(sides: Mapping[str, SideResult]) -> tuple[FrontierPoint, ...]:
    """Return the sides as points, the cheapest first."""
    efficient = _efficient_sides(sides)
    names = sorted(sides, key=lambda name: (sides[name].dollars, sides[name].evictions, name))
    return tuple(
        FrontierPoint(
            side=name,
            efficient=name in efficient,
            settings=TRADEOFFS[name].options if name in TRADEOFFS else {},
        )
        for name in names
    )


def _efficient_sides(sides: Mapping[str, SideResult]) -> Collection[str]:
    """Return the sides that no other one dominates.

    Pods that never get a node cost nothing, so a side with more of them than another is not
    efficient.
    """
    places_all = min((side.unplaced for side in sides.values()), default=0)
    order = sorted(sides, key=lambda name: (sides[name].dollars, sides[name].evictions))
    found: list[str] = []
    for name in order:
        side = sides[name]
        last = sides[found[-1]] if found else None
        if side.unplaced > places_all:
            continue
        if last is None or side.evictions < last.evictions or _is_equal(side, last):
            found.append(name)
    return found


def _is_equal(one: SideResult, other: SideResult) -> bool:
    return (one.dollars, one.evictions) == (other.dollars, other.evictions)


def frontier_rows(
    points: Sequence[FrontierPoint], sides: Mapping[str, SideResult]
) -> list[list[str]]:
    """Return the points as rows below their headings; ``*`` marks the efficient ones."""
    rows = [list(HEADINGS)]
    for number, point in enumerate(points, 1):
        side = sides[point.side]
        above = side.dollars / side.lower_bound - 1 if side.lower_bound else 0.0
        waits = side.waiting_seconds
        rows.append(
            [
                f"{number}{'*' if point.efficient else ''}",
                point.side,
                format_dollars(side.dollars),
                f"{above:.1%}",
                f"{side.evictions:,}",
                f"{side.evictions_per_pod_day:.2f}",
                format_seconds(waits.p50),
                format_seconds(waits.p99),
            ]
        )
    return rows


def frontier_chart(points: Sequence[FrontierPoint], sides: Mapping[str, SideResult]) -> Markup:
    """Return the points by evictions and cost; a line joins the efficient ones."""
    dots = [
        Dot(
            evictions := float(sides[point.side].evictions),
            cost := sides[point.side].dollars,
            str(number),
            f"{point.side}: {format_dollars(cost)}, {evictions:,.0f} evictions, p99 waiting "
            f"{format_seconds(sides[point.side].waiting_seconds.p99)}",
            marked=point.efficient,
        )
        for number, point in enumerate(points, 1)
    ]
    about = "cost by evictions: " + "; ".join(dot.about for dot in dots if dot.marked)
    return scatter(dots, "evictions", format_whole_dollars, about)
