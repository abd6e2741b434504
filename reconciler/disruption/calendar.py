"""When something changes by the clock alone: until then a quiet fleet need not be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from reconciler.disruption.consolidatable import consolidatable_at
from reconciler.disruption.forceful import patience_ends
from reconciler.disruption.policy import forced_out_at, old_enough_at, policy_changes
from reconciler.model.budget import next_change_of
from reconciler.model.duration import parse_duration
from reconciler.model.labels import DO_NOT_DISRUPT
from reconciler.model.nodepool import NodePool
from reconciler.model.pod import Pod
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState


def next_moment(
    cluster: ClusterState, pools: Iterable[NodePool], settings: Settings, now: datetime
) -> datetime | None:
    """Return the first moment after ``now`` at which a decision may change, None if none is known.

    Windows of budgets open and close, nodes have been quiet for long enough, claims expire,
    protections of pods end, and the patience with ill nodes; suspensions end, and what else our
    config ties to a time.
    """
    by_name = {pool.name: pool for pool in pools}
    moments = [*_of_pools(by_name.values(), now), *policy_changes(settings, now)]
    for node in cluster.nodes:
        if node.claim is None or node.is_deleting:
            continue
        pool = by_name.get(node.node_pool)
        if pool is not None:
            moments.append(consolidatable_at(node.claim, pool))
            moments.append(old_enough_at(node.claim, pool.name, settings))
        moments.append(node.claim.expires_at)
        moments.append(forced_out_at(node.claim, node.node_pool, settings))
        if settings.gate("NodeRepair") and node.node is not None:
            moments.append(patience_ends(node.node.status.conditions))
        moments += (_protected_until(pod) for pod in node.pods)
    return min((m for m in moments if m is not None and m > now), default=None)


def _of_pools(pools: Iterable[NodePool], now: datetime) -> Iterator[datetime | None]:
    return (next_change_of(pool.spec.disruption.budgets, now) for pool in pools)


def _protected_until(pod: Pod) -> datetime | None:
    """Return when the annotation of a pod stops protecting it, if it ever does."""
    text = pod.metadata.annotations.get(DO_NOT_DISRUPT)
    if text is None or text == "true" or pod.status.start_time is None:
        return None
    try:
        return pod.status.start_time + parse_duration(text)
    except (ValueError, OverflowError):
        return None
