"""The objective of the cost-optimizing packing, its NodePools, and what preferences may cost.

A preference is not a constraint, and yet Karpenter pays any price for it: two pods that prefer to
be apart get two nodes. The cost of preferences is therefore measured by packing without them. If it
exceeds the configured maximum, the most expensive ones are dropped until it no longer does.

Work is counted in checks of a lot against a node, never in time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from reconciler.model.settings import Packing, Settings
from reconciler.placement.answer import Attempt
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.pods.cohort import Cohort
from reconciler.placement.pods.shape import Shape
from reconciler.placement.solve import PlacementPass
from reconciler.placement.work import Pulse


class Effort:
    """The work used, out of what all packings of one question share."""

    __slots__ = ("_pulse", "done", "most")

    def __init__(self, most: int) -> None:
        self.done = 0
        self.most = most
        self._pulse = Pulse()

    def spend(self, checks: int) -> None:
        """Count work."""
        self.done += checks
        self._pulse.count(checks)

    @property
    def left(self) -> int:
        """The remaining work."""
        return max(0, self.most - self.done)


Depth = Literal["whole", "third", "brief"]
"""How much is tried: less if the same question is asked repeatedly."""


class Goal(msgspec.Struct, frozen=True):
    """Which NodePools are packed for cost, and what a node costs on top of its price.

    ``node_costs`` are USD an hour for each node of a pool: licences, monitoring and the like.
    ``preference_cost_max`` is the maximum that preferences may add, as a share of the cost of new
    nodes.
    """

    packing: Packing = Packing.DEFAULT
    packings: dict[str, Packing] = {}
    node_cost: float = 0.0
    node_costs: dict[str, float] = {}
    preference_cost_max: float = 1.0

    @classmethod
    def from_settings(cls, settings: Settings) -> Goal:
        """Return the goal that the settings define; a NodePool's own options take precedence."""
        pools = settings.node_pools.items()
        return cls(
            packing=settings.packing,
            packings={name: own["packing"] for name, own in pools if "packing" in own},
            node_cost=settings.per_node_cost,
            node_costs={n: own["per_node_cost"] for n, own in pools if "per_node_cost" in own},
            preference_cost_max=settings.maximum_preference_cost_percent / 100,
        )

    def with_all_pools(self) -> Goal:
        """Return the goal with every NodePool packed for cost."""
        return msgspec.structs.replace(self, packing=Packing.CHEAPEST, packings={})

    def packs(self, template: PoolTemplate) -> bool:
        """Return whether the nodes of a NodePool are to be packed for their price."""
        return self.packings.get(template.name, self.packing) == Packing.CHEAPEST

    def packs_some(self, templates: Iterable[PoolTemplate]) -> bool:
        """Return whether any of the NodePools is packed for cost."""
        return any(map(self.packs, templates))

    def cost_of_node(self, template: PoolTemplate) -> float:
        """Return what a node of the NodePool costs on top of its price, in USD an hour."""
        return self.node_costs.get(template.name, self.node_cost)

    def score(self, placement_pass: PlacementPass, cohorts: Sequence[Cohort]) -> PackingScore:
        """Return the score of a pass."""
        claims = placement_pass.claims
        cost = sum(claim.price + self.cost_of_node(claim.template) for claim in claims)
        virtual = sum(c.waiting for c in cohorts if c.shape.model.is_virtual)
        waiting = sum(c.waiting for c in cohorts) - virtual
        return PackingScore(waiting, virtual, round(cost, 9), len(claims))


class PackingScore(msgspec.Struct, frozen=True, order=True):
    """Lower is better: unscheduled pods, then virtual ones, then USD an hour, then nodes."""

    unplaced: int
    unbuffered: int
    cost: float
    nodes: int

    @property
    def waiting(self) -> tuple[int, int]:
        """The numbers of unscheduled pods: real, then virtual."""
        return self.unplaced, self.unbuffered


_TOLERANCE = 1e-9
_PARTS_MAX = 8
"""Maximum number of groups of preferences to try; with more shapes, several share a group."""


class PreferenceBudget:
    """Finds the preferences of one question that cost too much.

    ``attempt`` places the pods without the preferences of the given shapes.
    """

    def __init__(self, goal: Goal, attempt: Callable[[Collection[Shape], Depth], Attempt]) -> None:
        self._goal = goal
        self._attempt = attempt

    def apply(
        self, full: Attempt, with_preferences: Sequence[Shape], minimum_cost: float
    ) -> tuple[Attempt, float]:
        """Return the final attempt, and its saving compared to ``full`` in USD an hour.

        ``full`` has every preference; ``with_preferences`` are the shapes that have some. Nodes
        without any preference cost at least ``minimum_cost`` USD an hour.
        """
        full_score = self._score(full)
        if not with_preferences or full_score.cost <= self._allowed_cost(minimum_cost):
            return full, 0.0
        chosen = self._attempt(with_preferences, "third")
        bare_score = self._score(chosen)
        if bare_score.waiting > full_score.waiting or full_score.cost <= self._allowed_cost(
            bare_score.cost
        ):
            return full, 0.0
        for needed in self._shapes_to_relax(with_preferences, bare_score):
            fewer = self._attempt(needed, "third")
            reached = self._score(fewer)
            if reached.waiting <= bare_score.waiting and reached.cost <= self._allowed_cost(
                bare_score.cost
            ):
                chosen = fewer
                break
        return chosen, full_score.cost - self._score(chosen).cost

    def _score(self, attempt: Attempt) -> PackingScore:
        return self._goal.score(attempt.placement_pass, attempt.cohorts)

    def _allowed_cost(self, without: float) -> float:
        """Return the maximum cost with preferences, given the cost ``without`` them."""
        return without / (1 - self._goal.preference_cost_max) + _TOLERANCE

    def _shapes_to_relax(
        self, with_preferences: Sequence[Shape], bare: PackingScore
    ) -> Iterator[list[Shape]]:
        """Yield growing lists of shapes whose preferences to drop, first the expensive ones.

        The cost of some pods' preferences is estimated by keeping only these.
        """
        parts = list(_split_shapes(with_preferences))
        if len(parts) == 1:
            return
        without_any = self._score(self._attempt(with_preferences, "brief"))
        costs: list[tuple[float, int]] = []
        for number in range(len(parts)):
            alone = self._score(self._attempt(_shapes_except(parts, {number}), "brief"))
            if alone.waiting <= without_any.waiting:
                costs.append((max(0.0, alone.cost - without_any.cost), number))
        left, retained = self._allowed_cost(bare.cost) - bare.cost, []
        for cost, number in sorted(costs)[: len(parts) - 1]:
            left -= cost
            if left >= 0:
                retained.append(number)
        while retained:
            yield _shapes_except(parts, retained)
            retained = retained[: len(retained) // 2]


def _shapes_except(parts: Sequence[Sequence[Shape]], retained: Collection[int]) -> list[Shape]:
    return [s for number, part in enumerate(parts) if number not in retained for s in part]


def _split_shapes(shapes: Sequence[Shape]) -> Iterator[Sequence[Shape]]:
    size = -(-len(shapes) // _PARTS_MAX)
    for start in range(0, len(shapes), size):
        yield shapes[start : start + size]
