"""Compute when a decision may change only because time passes.

Every disruption rule that compares the current time with another time is covered here. The tests
verify this with a clock that records its comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from reconciler.disruption.consolidation.memory import in_memory
from reconciler.disruption.gates.consolidatable import consolidatable_at, left_over_until
from reconciler.disruption.gates.guards import rollout_moments
from reconciler.disruption.gates.policy import forced_out_at, old_enough_at
from reconciler.disruption.gates.retries import rests_until
from reconciler.disruption.methods.forceful import patience_ends, ranks_by_age
from reconciler.model.duration import parse_duration
from reconciler.model.history import DAY, History
from reconciler.model.karpenter.budget import Budget
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import FeatureGate, Settings
from reconciler.observed.state import ClusterState, StateNode


def next_moment(
    cluster: ClusterState,
    pools: Iterable[NodePool],
    settings: Settings,
    now: datetime,
    history: History | None = None,
) -> datetime | None:
    """Return the first time after ``now`` at which a decision may change, None if none is known.

    Budget windows open and close, nodes reach ``consolidateAfter``, claims expire, pod protection
    ends, the toleration of unhealthy nodes ends, and suspensions and other scheduled settings end.
    ``history`` is the data of the rate limits.
    """
    by_name = {pool.name: pool for pool in pools}
    moments = list(_of_policy(settings, now))
    for pool in by_name.values():
        moments += _of_budgets(pool.spec.disruption.budgets, now)
        if ranks_by_age(cluster, pool, settings):
            moments.append(now + datetime.resolution)
    for node in cluster.nodes:
        moments += _of_node(node, by_name.get(node.node_pool), settings)
    moments += (protected_until(pod) for pod in cluster.pods)
    if history is not None:
        moments += (row.at + DAY for row in history.taken)
        moments += rollout_moments(history.rollouts, settings)
    return min((m for m in moments if m is not None and m > now), default=None)


def _of_policy(settings: Settings, now: datetime) -> Iterator[datetime | None]:
    yield from (one.until for one in settings.suspensions)
    yield from (window.steady_until(now) for window in settings.windows)
    yield from _of_budgets(settings.fleet_budgets, now)


def _of_budgets(budgets: Iterable[Budget], now: datetime) -> Iterator[datetime | None]:
    return (budget.steady_until(now) for budget in budgets)


def _of_node(
    node: StateNode, pool: NodePool | None, settings: Settings
) -> Iterator[datetime | None]:
    if node.node is not None and settings.gate(FeatureGate.NODE_REPAIR):
        yield patience_ends(node.node.status.conditions)
    if node.claim is None:
        return
    if pool is not None:
        yield consolidatable_at(node.claim, pool)
        yield left_over_until(node.claim)
        yield old_enough_at(node.claim, pool.name, settings)
    yield rests_until(node.claim)
    yield node.claim.expires_at
    yield forced_out_at(node.claim, node.node_pool, settings)
    yield from (until for _, until in in_memory(node.claim, settings))


def protected_until(pod: Pod) -> datetime | None:
    """Return when the annotation of a pod stops protecting it, or None if never."""
    text = pod.metadata.annotations.get(DO_NOT_DISRUPT)
    if text is None or text == "true" or pod.status.start_time is None:
        return None
    try:
        return pod.status.start_time + parse_duration(text)
    except (ValueError, OverflowError):
        return None
