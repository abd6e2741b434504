"""When the budgets, windows and suspensions of a NodePool limited a simulation, for its picture."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Final

import msgspec

from reconciler.disruption.gates.policy import holds_of, policy_changes
from reconciler.model.karpenter.budget import DisruptionReason, allowance, next_change_of
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings

_CHANGES_MAX: Final = 500
_REASONS: Final = (
    DisruptionReason.DRIFTED,
    DisruptionReason.UNDERUTILIZED,
    DisruptionReason.EMPTY,
)


class RulePeriod(msgspec.Struct, frozen=True, rename="camel"):
    """How many nodes of a NodePool may be disrupted at a time, by reason, in a period.

    Reasons that nothing limits are left out. ``closed`` is whether no reason allows any.
    """

    node_pool: str
    begin: datetime
    end: datetime
    allowed: dict[str, int]
    closed: bool


def periods_of(
    pool: NodePool, settings: Settings, total: int, begin: datetime, end: datetime
) -> list[RulePeriod]:
    """Return the periods in which something limits ``total`` nodes of a NodePool, in order."""
    found: list[RulePeriod] = []
    edges = [begin, *_changes(pool, settings, begin, end), end]
    for start, stop in pairwise(edges):
        allowed = _allowed(pool, settings, total, start)
        if not allowed:
            continue
        last = found[-1] if found else None
        if last is not None and (last.end, last.allowed) == (start, allowed):
            found[-1] = msgspec.structs.replace(last, end=stop)
            continue
        closed = len(allowed) == len(_REASONS) and not any(allowed.values())
        found.append(RulePeriod(pool.name, start, stop, allowed, closed))
    return found


def _changes(
    pool: NodePool, settings: Settings, begin: datetime, end: datetime
) -> Iterator[datetime]:
    at = begin
    for _ in range(_CHANGES_MAX):
        moments = [next_change_of(pool.spec.disruption.budgets, at), *policy_changes(settings, at)]
        later = [moment for moment in moments if moment is not None and at < moment < end]
        if not later:
            return
        at = min(later)
        yield at


def _allowed(pool: NodePool, settings: Settings, total: int, at: datetime) -> dict[str, int]:
    holds = holds_of([pool.name], settings, at)
    allowed: dict[str, int] = {}
    for reason in _REASONS:
        own = allowance(pool.spec.disruption.budgets, reason, total, at).nodes
        fleet = allowance(settings.fleet_budgets, reason, total, at).nodes
        nodes = 0 if (pool.name, reason) in holds else min(own, fleet)
        if nodes < total or not nodes:
            allowed[reason.value] = nodes
    return allowed
