"""Compute when a decision may change only because time passes.

Every disruption rule that compares the current time with another time is covered here. The tests
verify this with a clock that records its comparisons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.disruption.consolidation.flapdamping import avoided_offerings
from reconciler.disruption.gates.consolidatable import consolidatable_at, retained_until
from reconciler.disruption.gates.guards import next_attempt_at, rollout_change_times
from reconciler.disruption.gates.policy import forceful_expiry_at, minimum_age_end
from reconciler.disruption.methods.forceful import scales_down_by_age
from reconciler.disruption.methods.reboot import reboots_forgotten_at, tolerated_since_reboot
from reconciler.disruption.methods.repairpolicy import repair_matches
from reconciler.model.duration import parse_duration
from reconciler.model.history import DAY, History
from reconciler.model.karpenter.budget import Budget
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import Settings
from reconciler.model.windows import Suspension, Window
from reconciler.observed.state import ClusterState, StateNode

HORIZON: Final = timedelta(days=30)
"""How far ahead a fleet is continued; what waits longer never ends."""
_CHANGES_MAX: Final = 50
"""The maximum number of changes that are searched for a new combination."""


class Windows(msgspec.Struct, frozen=True):
    """What opens and closes by schedule: budgets, maintenance windows and suspensions."""

    budgets: tuple[Budget, ...]
    windows: tuple[Window, ...]
    suspensions: tuple[Suspension, ...]

    @classmethod
    def from_settings(cls, pools: Iterable[NodePool], settings: Settings) -> Windows:
        """Return the schedules of these NodePools and of the whole fleet."""
        budgets = (*settings.fleet_budgets, *(b for p in pools for b in p.spec.disruption.budgets))
        return cls(budgets, settings.windows, settings.suspensions)

    def active_flags(self, at: datetime) -> tuple[bool, ...]:
        """Return whether each is active at the given time, always in the same order."""
        return (
            *(budget.is_active(at) for budget in self.budgets if budget.schedule),
            *(window.is_open(at) for window in self.windows),
            *(suspension.is_active(at) for suspension in self.suspensions),
        )

    def change_times(self, now: datetime) -> Iterator[datetime | None]:
        """Yield when each next starts or stops being active; None or a past time if never."""
        yield from (suspension.until for suspension in self.suspensions)
        yield from (window.steady_until(now) for window in self.windows)
        yield from (budget.steady_until(now) for budget in self.budgets)

    def next_opening(self, now: datetime, seen: Collection[tuple[bool, ...]]) -> datetime | None:
        """Return when they are next active in a combination that is not in ``seen``, None if never.

        Consolidation evaluates nothing while its budget is closed, so nothing reports that it
        waits.
        """
        at = now
        for _ in range(_CHANGES_MAX):
            following = min((m for m in self.change_times(at) if m and m > at), default=None)
            if following is None or following - now > HORIZON:
                return None
            at = following
            if self.active_flags(at) not in seen:
                return at
        return None


def next_decision_change(
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
    moments = list(Windows.from_settings(by_name.values(), settings).change_times(now))
    if any(scales_down_by_age(cluster, pool, settings) for pool in by_name.values()):
        moments.append(now + datetime.resolution)
    for node in cluster.nodes:
        moments += _node_change_times(node, by_name.get(node.node_pool), settings)
    moments += (protected_until(pod) for pod in cluster.pods)
    if history is not None:
        moments += (row.at + DAY for row in history.taken)
        moments += rollout_change_times(history.rollouts, settings)
    return min((m for m in moments if m is not None and m > now), default=None)


def _node_change_times(
    node: StateNode, pool: NodePool | None, settings: Settings
) -> Iterator[datetime | None]:
    if node.node is not None:
        matches = repair_matches(node.node, settings)
        if node.claim is not None:
            matches = tolerated_since_reboot(matches, node.claim)
        yield from (match.tolerated_until for match in matches)
    if node.claim is None:
        return
    yield from reboots_forgotten_at(node.claim)
    if pool is not None:
        yield consolidatable_at(node.claim, pool)
        yield retained_until(node.claim)
        yield minimum_age_end(node.claim, pool.name, settings)
    yield next_attempt_at(node.claim)
    yield node.claim.expires_at
    yield forceful_expiry_at(node.claim, node.node_pool, settings)
    yield from (until for _, until in avoided_offerings(node.claim, settings))


def protected_until(pod: Pod) -> datetime | None:
    """Return when the annotation of a pod stops protecting it, or None if never."""
    text = pod.metadata.annotations.get(DO_NOT_DISRUPT)
    if text is None or text == "true" or pod.status.start_time is None:
        return None
    try:
        return pod.status.start_time + parse_duration(text)
    except (ValueError, OverflowError):
        return None
