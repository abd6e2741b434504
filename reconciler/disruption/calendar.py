"""Compute when a decision may change only because time passes.

Every disruption rule that compares the current time with another time is covered here. The tests
verify this with a clock that records its comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from reconciler.disruption.consolidation.memory import in_memory
from reconciler.disruption.gates.consolidatable import consolidatable_at, left_over_until
from reconciler.disruption.gates.guards import rests_until, rollout_moments
from reconciler.disruption.gates.policy import forced_out_at, old_enough_at
from reconciler.disruption.methods.forceful import patience_ends, ranks_by_age
from reconciler.model.duration import parse_duration
from reconciler.model.history import DAY, History
from reconciler.model.karpenter.budget import Budget
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import FeatureGate, Settings, Suspension, Window
from reconciler.observed.state import ClusterState, StateNode


class Windows(msgspec.Struct, frozen=True):
    """What opens and closes by schedule: budgets, maintenance windows and suspensions."""

    budgets: tuple[Budget, ...]
    windows: tuple[Window, ...]
    suspensions: tuple[Suspension, ...]

    @classmethod
    def of(cls, pools: Iterable[NodePool], settings: Settings) -> Windows:
        """Return those of these NodePools and of the whole fleet."""
        budgets = (*settings.fleet_budgets, *(b for p in pools for b in p.spec.disruption.budgets))
        return cls(budgets, settings.windows, settings.suspensions)

    def in_force(self, at: datetime) -> tuple[bool, ...]:
        """Return which of them are in force at a moment, always in the same order."""
        return (
            *(budget.is_active(at) for budget in self.budgets if budget.schedule),
            *(window.is_open(at) for window in self.windows),
            *(suspension.is_active(at) for suspension in self.suspensions),
        )

    def moments(self, now: datetime) -> Iterator[datetime | None]:
        """Yield when each is next in force or no longer is; None or a past moment if never."""
        yield from (suspension.until for suspension in self.suspensions)
        yield from (window.steady_until(now) for window in self.windows)
        yield from (budget.steady_until(now) for budget in self.budgets)


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
    moments = list(Windows.of(by_name.values(), settings).moments(now))
    if any(ranks_by_age(cluster, pool, settings) for pool in by_name.values()):
        moments.append(now + datetime.resolution)
    for node in cluster.nodes:
        moments += _of_node(node, by_name.get(node.node_pool), settings)
    moments += (protected_until(pod) for pod in cluster.pods)
    if history is not None:
        moments += (row.at + DAY for row in history.taken)
        moments += rollout_moments(history.rollouts, settings)
    return min((m for m in moments if m is not None and m > now), default=None)


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
