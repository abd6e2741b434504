"""The objective of the cost-optimizing packing, and the NodePools that take part in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from reconciler.model.settings import Packing, Settings
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.pods.cohort import Cohort
from reconciler.placement.solve import PlacementPass

# The work limit: counted in checks of a lot against a node, never in time.


class Effort:
    """The work used, out of what all packings of one question share."""

    __slots__ = ("done", "most")

    def __init__(self, most: int) -> None:
        self.done = 0
        self.most = most

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
    def of(cls, settings: Settings) -> Goal:
        """Return the goal that the settings define; a NodePool's own options take precedence."""
        pools = settings.node_pools.items()
        return cls(
            packing=settings.packing,
            packings={name: o.packing for name, o in pools if o.packing is not None},
            node_cost=settings.per_node_cost,
            node_costs={name: o.per_node_cost for name, o in pools if o.per_node_cost is not None},
            preference_cost_max=settings.maximum_preference_cost_percent / 100,
        )

    def for_all(self) -> Goal:
        """Return the goal with every NodePool taking part."""
        return msgspec.structs.replace(self, packing=Packing.CHEAPEST, packings={})

    def packs(self, template: PoolTemplate) -> bool:
        """Return whether the nodes of a NodePool are to be packed for their price."""
        return self.packings.get(template.name, self.packing) == Packing.CHEAPEST

    def packs_some(self, templates: Iterable[PoolTemplate]) -> bool:
        """Return whether any of the NodePools takes part."""
        return any(map(self.packs, templates))

    def cost_of_node(self, template: PoolTemplate) -> float:
        """Return what a node of the NodePool costs on top of its price, in USD an hour."""
        return self.node_costs.get(template.name, self.node_cost)

    def reached(self, solving: PlacementPass, cohorts: Sequence[Cohort]) -> PackingScore:
        """Return the score of a pass."""
        claims = solving.claims
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
