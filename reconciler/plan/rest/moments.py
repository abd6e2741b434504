"""How far the clock of a fleet that is carried to rest leaps when nothing can be done at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.calendar import protected_until
from reconciler.disruption.command import Deferral, WaitsFor
from reconciler.disruption.consolidatable import consolidatable_at, left_over_until
from reconciler.disruption.forceful import patience_ends
from reconciler.disruption.policy import forced_out_at
from reconciler.model.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState

_GRAIN: Final = timedelta(minutes=5)
"""Nodes whose quiet times end so close to each other are looked at together, and with a longer
wait those that end before it has doubled: a thousand nodes need no thousand passes."""


def next_hope(
    cluster: ClusterState,
    pools: Iterable[NodePool],
    settings: Settings,
    deferred: Iterable[Deferral],
    now: datetime,
) -> datetime | None:
    """Return when something that the fleet waits for may come about, None if nothing is ahead.

    That a node expires is nothing to wait for; but where the fleet waits longer, it happens.
    """
    by_name = {pool.name: pool for pool in pools}
    quiet = [at for at in _quiet(cluster, by_name, deferred) if at > now]
    fixed = [at for at in _fixed(cluster, deferred) if at > now]
    first = min([*quiet, *fixed], default=None)
    if first is None:
        return None
    reach = first + max(_GRAIN, first - now)
    together = max((at for at in quiet if at <= reach), default=first)
    stops = [at for at in (*fixed, *_forced(cluster, settings)) if at > now]
    return min([max(first, together), *stops])


def _quiet(
    cluster: ClusterState, pools: dict[str, NodePool], deferred: Iterable[Deferral]
) -> Iterator[datetime]:
    """Yield when nodes will have been quiet for as long as their NodePool asks."""
    for node in cluster.nodes:
        if node.claim is None or node.is_deleting:
            continue
        kept = left_over_until(node.claim)
        if kept is not None:
            yield kept
        pool = pools.get(node.node_pool)
        at = consolidatable_at(node.claim, pool) if pool is not None else None
        if at is not None:
            yield at
    for deferral in deferred:
        if deferral.waits_for is WaitsFor.CONSOLIDATE_AFTER and deferral.not_before is not None:
            yield deferral.not_before


def _fixed(cluster: ClusterState, deferred: Iterable[Deferral]) -> Iterator[datetime]:
    """Yield when windows open, holds end, and pods cease to be protected."""
    for deferral in deferred:
        if deferral.waits_for is not WaitsFor.CONSOLIDATE_AFTER and deferral.not_before is not None:
            yield deferral.not_before
    for pod in cluster.pods:
        at = protected_until(pod)
        if at is not None:
            yield at


def _forced(cluster: ClusterState, settings: Settings) -> Iterator[datetime]:
    for node in cluster.nodes:
        if node.claim is None or node.is_deleting:
            continue
        at = forced_out_at(node.claim, node.node_pool, settings)
        if at is not None:
            yield at
        if node.node is not None and settings.gate("NodeRepair"):
            ends = patience_ends(node.node.status.conditions)
            if ends is not None:
                yield ends
