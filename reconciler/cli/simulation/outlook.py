"""When the next pass may decide otherwise though nothing happens until then.

The engine waits for spans of its own: for a node to join, for a replacement, for a quiet while, for
a window. Between two such moments a pass that changed nothing would change nothing again, so a
simulation leaps over the time between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidatable import left_over_until
from reconciler.disruption.forceful import patience_ends
from reconciler.disruption.guards import rollout_moments
from reconciler.disruption.progress import command_timeout
from reconciler.engine import lifecycle, nomination, recovery, termination
from reconciler.engine.reconcile import Pass
from reconciler.model.duration import parse_duration
from reconciler.model.labels import DO_NOT_DISRUPT
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.nodepool import NodePool
from reconciler.model.pod import Pod
from reconciler.model.settings import Settings
from reconciler.observed.state import quiet_since
from reconciler.plan.progress import due_at
from reconciler.ports import Journal, StateStore, Verb

_GRACE_S: Final = 30
_NO_PLACE: Final = BlockCode.UNSCHEDULABLE.value
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The moments ahead.

    ``hopes`` are those that bring something which the fleet still lacks: what waits for a window
    or a quiet while, what could not be had. ``others`` come whatever the fleet is like: a node
    expires, a window opens that nothing waits for.
    """

    hopes: tuple[datetime, ...]
    others: tuple[datetime, ...]

    def next(self, now: datetime) -> datetime | None:
        """Return the first moment after ``now``."""
        return min((m for m in (*self.hopes, *self.others) if m > now), default=None)

    def is_settled(self, now: datetime) -> bool:
        """Return whether nothing is ahead that the fleet waits for."""
        return not any(m > now for m in self.hopes)


def outlook(
    done: Pass,
    store: StateStore,
    journal: Journal,
    pools: Mapping[str, NodePool],
    settings: Settings,
    now: datetime,
) -> Outlook:
    """Return what lies ahead after a pass."""
    claims = store.node_claims()
    hopes = [d.not_before for d in done.plan.deferred if d.not_before is not None]
    hopes += _consolidations(claims, pools, now)
    hopes += _starting(claims, store, journal)
    if done.plan.unschedulable or any(b.code == _NO_PLACE for b in done.plan.blocked):
        hopes += [u.until for u in store.unavailable(now)]
    hopes += _ends_of_protection(done.seen.snapshot.pods)
    hopes += nomination.lapses(done.seen.snapshot, now)
    hopes += rollout_moments(store.rollouts(), settings)
    others = [b.next_change for b in done.plan.budgets if b.next_change is not None]
    others += [at for c in claims if (at := c.expires_at) is not None]
    others += [
        at
        for node in done.seen.snapshot.nodes
        if (at := patience_ends(node.status.conditions)) is not None
    ]
    others += _draining(claims, done)
    others += [at for c in claims if (at := due_at(c, settings)) is not None]
    return Outlook(tuple(hopes), tuple(others))


def _consolidations(
    claims: Iterable[NodeClaim], pools: Mapping[str, NodePool], now: datetime
) -> Iterator[datetime]:
    """Yield when nodes have been quiet for as long as their pool wants."""
    for claim in claims:
        kept = left_over_until(claim)
        if kept is not None and not claim.is_deleting:
            yield kept
        pool = pools.get(claim.node_pool)
        since = quiet_since(claim)
        if pool is None or since is None or claim.is_deleting:
            continue
        after = pool.spec.disruption.consolidates_after
        if after is not None and claim.is_true(lifecycle.INITIALIZED) and since + after > now:
            yield since + after


def _starting(
    claims: Iterable[NodeClaim], store: StateStore, journal: Journal
) -> Iterator[datetime]:
    """Yield when the engine loses patience with what it started."""
    running = store.commands()
    patience = command_timeout(sum(len(c.node_claims) for c in running))
    for command in running:
        yield command.started_at + patience
        yield command.started_at + patience + _MOMENT
    for claim in claims:
        missing = claim.condition(lifecycle.MISSING)
        if missing is not None and missing.last_transition_time is not None:
            yield missing.last_transition_time + lifecycle.VANISHED_AFTER
        launched = claim.condition(lifecycle.LAUNCHED)
        if launched is None or launched.last_transition_time is None:
            continue
        if not claim.is_true(lifecycle.REGISTERED):
            yield launched.last_transition_time + lifecycle.REGISTRATION_TIMEOUT
        if claim.is_true(lifecycle.TERMINATING):
            yield launched.last_transition_time + lifecycle.VANISHED_AFTER
    for entry in journal.in_doubt():
        if entry.intent.verb is Verb.LAUNCH:
            yield entry.intent.at + recovery.LAG


_MOMENT: Final = timedelta(seconds=1)


def _draining(claims: Iterable[NodeClaim], done: Pass) -> Iterator[datetime]:
    """Yield when pods are deleted against their budgets, and when a drain counts as stalled."""
    graces: dict[str, set[int]] = {}
    for pod in done.seen.snapshot.pods:
        if pod.spec.node_name:
            span = pod.spec.termination_grace_period_seconds
            graces.setdefault(pod.spec.node_name, set()).add(_GRACE_S if span is None else span)
        deleted = pod.metadata.deletion_timestamp
        if deleted is not None:
            yield deleted + _MINUTE + _MOMENT
    for claim in claims:
        since = claim.metadata.deletion_timestamp
        if since is None:
            continue
        yield since + termination.DRAIN_PATIENCE
        deadline = lifecycle.drain_deadline(claim)
        if deadline is not None:
            yield deadline
            for span in sorted(graces.get(claim.status.node_name, ())):
                yield deadline - timedelta(seconds=span)


def _ends_of_protection(pods: Iterable[Pod]) -> Iterator[datetime]:
    """Yield when a protection that a pod has for a while is over."""
    for pod in pods:
        text = pod.metadata.annotations.get(DO_NOT_DISRUPT)
        if text is None or text == "true" or pod.status.start_time is None:
            continue
        try:
            yield pod.status.start_time + parse_duration(text)
        except (ValueError, OverflowError):
            continue
