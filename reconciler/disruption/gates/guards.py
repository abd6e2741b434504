"""Rate limits for disruption, which Karpenter's budgets do not have; all are off by default.

Nodes whose replacement failed are left alone for a while, whatever the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.gates.policy import Hold, Holds
from reconciler.model.decision.waiting import WaitRule, WaitsFor
from reconciler.model.history import DAY, History, Rollout, next_free_at
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import NodeLimit, PoolOption, Settings
from reconciler.model.text.times import format_time
from reconciler.observed.state import StateNode

REPLACEMENT_FAILED: Final = "ReplacementFailed"
"""Condition of a claim in our records: message and reason are the attempts and the revision."""

_FIRST_PAUSE: Final = timedelta(minutes=15)
_LONGEST_PAUSE: Final = timedelta(hours=4)

EVERY_REASON: Final = frozenset(DisruptionReason)
WAVE_REASONS: Final = frozenset({DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED})
"""Reasons to which waves apply: their nodes' pods have to move. Empty nodes are not affected."""


def failed_attempts(claim: NodeClaim) -> int:
    """Return how often replacing or tainting the node has failed."""
    known = claim.condition(REPLACEMENT_FAILED)
    return int(known.message) if known is not None else 0


def next_attempt_at(claim: NodeClaim) -> datetime | None:
    """Return the time from which the node may be replaced again; None if there is no delay."""
    known = claim.condition(REPLACEMENT_FAILED)
    times = failed_attempts(claim)
    if known is None or known.last_transition_time is None or times < 2:
        return None
    doublings = min(times - 2, 10)  # the maximum delay applies beyond that
    pause: timedelta = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
    return known.last_transition_time + pause


def retry_hold(candidates: Sequence[Candidate], now: datetime) -> Hold | None:
    """Return the longest retry delay of the nodes; None without one."""
    until = [
        (at, c) for c in candidates if (at := next_attempt_at(c.claim)) is not None and now < at
    ]
    if not until:
        return None
    at, candidate = max(until, key=lambda row: (row[0], row[1].name))
    times = failed_attempts(candidate.claim)
    text = (
        f"replacing {candidate.name} failed {times} times; the next attempt waits until "
        f"{format_time(at)} or until the next commit is synced"
    )
    return Hold(WaitsFor.POLICY, at, text, WaitRule.RETRY)


@dataclass(frozen=True, slots=True)
class Cap:
    """How many more nodes a rate limit allows now, for which reasons.

    ``hold`` is what a node waits for if none are left. ``node_pool`` is None for a limit of the
    whole fleet.
    """

    node_pool: str | None
    reasons: Collection[DisruptionReason]
    left: int
    hold: Hold

    def covers(self, node_pool: str, reason: DisruptionReason) -> bool:
        """Return whether disrupting nodes of the pool for the reason counts towards it."""
        return reason in self.reasons and self.node_pool in (None, node_pool)

    def after_disruption(self, node_pool: str, reason: DisruptionReason) -> Cap:
        """Return the cap after a node of the pool was disrupted for the reason."""
        if not self.covers(node_pool, reason):
            return self
        return replace(self, left=max(self.left - 1, 0))


def caps_for(
    pools: Iterable[str],
    by_pool: Counter[str],
    history: History,
    settings: Settings,
    now: datetime,
) -> list[Cap]:
    """Return the caps in effect: those of the fleet, then of each NodePool by name.

    ``by_pool`` are the numbers of remaining nodes by NodePool.
    """
    caps: list[Cap] = []
    most = settings.fleet_maximum_per_day
    if most:
        total = by_pool.total()
        caps.append(_daily_cap(None, most, total, history, "disruption.maximumPerDay", now))
    for pool in sorted(pools):
        total, options = by_pool[pool], settings.pool(pool)
        most = options.maximum_per_day
        if most:
            key = settings.key_of(pool, PoolOption.MAXIMUM_PER_DAY)
            caps.append(_daily_cap(pool, most, total, history, key, now))
        rollout = history.rollout(pool)
        stops = options.stop_after_failures > 0
        if stops and rollout is not None and rollout.stopped_at is not None:
            caps.append(_halted_cap(rollout))
        elif options.wave_size:
            caps.append(_wave_cap(pool, rollout, total, settings, now))
    return caps


def count_remaining_nodes(nodes: Iterable[StateNode]) -> Counter[str]:
    """Return how many nodes of each NodePool remain: percentages are relative to these.

    Budgets also count nodes that are being deleted, and so allow more while replacements overlap
    them. A daily maximum must not increase with the nodes that were removed.
    """
    return Counter(
        node.node_pool
        for node in nodes
        if node.claim is not None and node.is_initialized and not node.is_deleting
    )


def holds_of_caps(caps: Sequence[Cap], pools: Iterable[str]) -> Holds:
    """Return the pools and reasons for which nothing is left from the start."""
    return {
        (pool, reason): cap.hold
        for pool in sorted(pools)
        for reason in DisruptionReason
        for cap in reversed(caps)
        if cap.left == 0 and cap.covers(pool, reason)
    }


def _daily_cap(
    pool: str | None, limit: NodeLimit, total: int, history: History, key: str, now: datetime
) -> Cap:
    most = limit.resolve(total)
    disruptions = history.disruptions_within_day(now, pool)
    used = sum(row.nodes for row in disruptions)
    left = max(most - used, 0)
    until = (
        next_free_at(disruptions, most) if left == 0 else None
    )  # otherwise from the start of this plan
    owner = "the fleet" if pool is None else f"NodePool {pool}"
    message = (
        f"{most} of the {total} nodes of {owner} may be disrupted within"
        f" {DAY // timedelta(hours=1)} hours ({key}); {most if left else used} were disrupted"
    )
    hold = Hold(WaitsFor.POLICY, until, message, WaitRule.MAXIMUM_PER_DAY)
    return Cap(pool, EVERY_REASON, left, hold)


def _halted_cap(rollout: Rollout) -> Cap:
    pool = rollout.node_pool
    assert rollout.stopped_at is not None
    message = (
        f"disruption of NodePool {pool} was halted at {format_time(rollout.stopped_at)}"
        f" after {rollout.failures} failures (last: {rollout.stopped_why});"
        f" run `reconciler resume --node-pool {pool}` to continue"
    )
    return Cap(pool, WAVE_REASONS, 0, Hold(WaitsFor.APPROVAL, None, message))


def wave_size(pool: str, total: int, settings: Settings) -> int:
    """Return how many of the ``total`` nodes of a pool are disrupted in one wave."""
    return settings.pool(pool).wave_size.resolve(total)


def _wave_cap(
    pool: str, rollout: Rollout | None, total: int, settings: Settings, now: datetime
) -> Cap:
    key = settings.key_of(pool, PoolOption.WAVE_SIZE)
    if rollout is None or not rollout.moves:
        size = wave_size(pool, total, settings)
        number = (rollout.wave if rollout is not None else 0) + 1
        message = f"wave {number} of NodePool {pool} is limited to {size} nodes ({key})"
        hold = Hold(WaitsFor.POLICY, None, message, WaitRule.WAVE)
        return Cap(pool, WAVE_REASONS, size, hold)
    soak = settings.pool(pool).wave_soak
    open_ = [move for move in rollout.moves if not move.is_settled(soak, now)]
    waiting = next((m.waits_for for m in open_ if m.healthy_at is None), "")
    healthy_until = [m.healthy_at + soak for m in open_ if m.healthy_at is not None]
    until = (
        max(healthy_until, default=None)
        if not waiting and len(healthy_until) == len(open_)
        else None
    )
    why = waiting or (
        "its nodes must stay healthy for waveSoak" if healthy_until else "its commands must finish"
    )
    message = (
        f"wave {rollout.wave} of NodePool {pool} has disrupted {rollout.disrupted_nodes} of"
        f" {rollout.size} nodes ({key}); before the next wave, {why}"
    )
    left = max(rollout.size - rollout.disrupted_nodes, 0)
    return Cap(pool, WAVE_REASONS, left, Hold(WaitsFor.POLICY, until, message, WaitRule.WAVE))


def rollout_change_times(rollouts: Iterable[Rollout], settings: Settings) -> Iterable[datetime]:
    """Yield when a wave has been healthy for long enough, and when its timeout ends."""
    for rollout in rollouts:
        options = settings.pool(rollout.node_pool)
        for move in rollout.moves:
            if move.failure:
                continue
            if move.healthy_at is not None:
                yield move.healthy_at + options.wave_soak
            elif move.ended_at is not None:
                yield move.ended_at + options.wave_deadline
