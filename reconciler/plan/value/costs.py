"""What the fleet costs before and after, and once nothing is left to do."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from reconciler.plan.value.part import Part

HOURS_A_MONTH: Final = 730


class PoolCost(Part, frozen=True, kw_only=True):
    """Nodes of a NodePool and what they cost, USD an hour, before and after the plan.

    With ``--base``, ``nodes_base`` and ``base`` are what the plan of that commit comes to.
    """

    nodes_before: int = 0
    nodes_after: int = 0
    nodes_base: int | None = None
    before: float = 0.0
    after: float = 0.0
    base: float | None = None


class Cost(Part, frozen=True, kw_only=True):
    """USD an hour of all nodes that a NodePool owns; ``unpriced`` counts those without a price.

    With ``--base``, ``base`` is what the plan of that commit comes to: ``after`` less ``base`` is
    what the change itself costs. ``lower_bound`` is the least that new nodes for the pods that
    wait can cost; ``bound_gap`` says how far the planned ones are above it, as a share of it, and
    ``bound_held_by`` what holds them there. Neither is written where there is nothing to say.
    """

    before: float
    after: float
    base: float | None = None
    currency: str = "USD"
    per: str = "hour"
    lower_bound: float | None = None
    bound_gap: float | None = None
    bound_held_by: str | None = None
    by_node_pool: dict[str, PoolCost] = msgspec.field(default_factory=dict)
    unpriced: int = 0

    left_out: ClassVar = ("bound_gap", "bound_held_by")


class FleetAtRest(Part, frozen=True, kw_only=True):
    """A fleet of which nothing is left to do: its nodes, and what they cost in USD an hour."""

    nodes: int
    per_hour: float


class StuckNode(Part, frozen=True, kw_only=True):
    """A node that cannot come to rest: what it should go for, and what keeps it."""

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    message: str = ""


class AtRest(Part, frozen=True, kw_only=True):
    """What a change costs: the difference between two fleets at rest.

    ``before`` is the fleet under the base, ``after`` that fleet carried on under the head.
    ``per_hour`` and ``per_month`` are their difference in USD. ``bounds`` are the least and the
    most that ``per_hour`` may be where the limit of work ended the search, else None. ``replaced``
    are nodes that give way to others. ``rollout`` is the time until the last action has ended
    (ISO 8601), None where it never does or the limit came first.
    """

    before: FleetAtRest
    after: FleetAtRest
    per_hour: float
    per_month: float
    bounds: tuple[float, float] | None = None
    unschedulable: tuple[str, ...] = ()
    replaced: int = 0
    rollout: str | None = None
    stuck: tuple[StuckNode, ...] = ()

    @property
    def launched(self) -> int:
        """How many more nodes there are than before."""
        return max(0, self.after.nodes - self.before.nodes)

    @property
    def removed(self) -> int:
        """How many fewer nodes there are than before."""
        return max(0, self.before.nodes - self.after.nodes)
