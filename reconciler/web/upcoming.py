"""When nodes are disrupted next, for what, and what that saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum
from typing import Final

from reconciler.disruption.gates.consolidatable import consolidatable_at
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.text.counting import format_count
from reconciler.observed.state import StateNode
from reconciler.plan.rest.steadystate import LaterConsolidation
from reconciler.plan.value.plan import Plan
from reconciler.web.labels import label_of

_UPCOMING_MAX: Final = 3
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class UpcomingStep:
    """When nodes are disrupted next: how many, for what, and how long that is from now.

    ``saves`` is what it saves in USD an hour; None if it is not known whether they are disrupted.
    """

    at: datetime
    reason: str
    nodes: int
    wait: timedelta
    saves: float | None = None

    @property
    def title(self) -> str:
        """What happens to how many nodes."""
        if self.reason == DisruptionReason.EMPTY.value:
            return f"Removal of {format_count(self.nodes, 'empty node')}"
        return f"{label_of(self.reason)} of {format_count(self.nodes, 'node')}"


def upcoming_steps(
    plan: Plan,
    nodes: Iterable[StateNode],
    pools: Iterable[NodePool],
    now: datetime,
    later: Sequence[LaterConsolidation] | None = None,
) -> tuple[UpcomingStep, ...]:
    """Return the next times at which nodes may be disrupted, the first one first.

    These are the ends of ``consolidateAfter``, and the openings of budgets and windows. ``later``
    is what consolidation then does, None if that is not known.
    """
    found = Counter(
        (item.not_before, item.reason)
        for item in plan.deferred
        if item.not_before is not None
        if later is None or item.waits_for != WaitsFor.CONSOLIDATE_AFTER
    )
    steps = list[UpcomingStep]()
    if later is None:
        times = _consolidatable_times(nodes, pools)
        found.update((at, DisruptionReason.UNDERUTILIZED.value) for at in times)
    else:
        steps += _consolidations(later, now)
    steps += (UpcomingStep(at, reason, count, at - now) for (at, reason), count in found.items())
    future = [step for step in steps if step.at > now]
    return tuple(sorted(future, key=lambda step: (step.at, step.reason))[:_UPCOMING_MAX])


def _consolidations(later: Iterable[LaterConsolidation], now: datetime) -> Iterator[UpcomingStep]:
    """Yield one step for all consolidations of one kind in the same minute from now."""
    future = (one for one in later if one.at > now)
    for members in group_by(future, lambda one: ((one.at - now) // _MINUTE, one.reason)).values():
        at = min(one.at for one in members)
        nodes, saves = sum(one.nodes for one in members), fsum(one.saves for one in members)
        yield UpcomingStep(at, members[0].reason, nodes, at - now, saves)


def _consolidatable_times(
    nodes: Iterable[StateNode], pools: Iterable[NodePool]
) -> Iterator[datetime]:
    """Yield when ``consolidateAfter`` has passed for each node that stays."""
    by_name = {pool.name: pool for pool in pools}
    for node in nodes:
        pool = by_name.get(node.node_pool)
        if node.claim is None or pool is None or node.is_deleting:
            continue
        at = consolidatable_at(node.claim, pool)
        if at is not None:
            yield at
