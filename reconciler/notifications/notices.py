"""Decides which passes and events of a daemon people are notified of.

A pass that is like the last one leads to no notice, nor does a problem that was reported within
``REMINDED_AFTER``. Sent notices are recorded in the state of the fleet, so a restart or another
replica repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from reconciler.model.duration import format_duration
from reconciler.model.grouping import group_pairs
from reconciler.model.notification import NoticeKind
from reconciler.model.text.counting import format_count, format_list
from reconciler.notifications.weekly import FleetReport, text_of
from reconciler.plan.value.plan import Plan
from reconciler.ports.progress import EventKind, Progress
from reconciler.ports.state import CommandPhase, RunningCommand

DRIFTED: Final = "Drifted"
UNSCHEDULABLE_AFTER: Final = timedelta(minutes=5)
"""How long pods must be unschedulable before a notice: a launch may just have failed."""
REMINDED_AFTER: Final = timedelta(hours=6)
"""The time after which the same problem is reported again."""
WEEK: Final = timedelta(days=7)
_MONDAY_AT: Final = timedelta(hours=9)
_PODS_SHOWN: Final = 5
_ENDED: Final = (CommandPhase.DONE, CommandPhase.ROLLED_BACK)
_FAILURES: Final = frozenset(
    {
        EventKind.FAILED,
        EventKind.ILLEGAL_TRANSITION,
        EventKind.INVALID_REVISION,
        EventKind.LAUNCH_FAILED,
        EventKind.UNKNOWN,
        EventKind.WAVE_FAILED,
    }
)

_FAILURE_TITLES: Final = {
    EventKind.INVALID_REVISION: "Invalid revision",
    EventKind.LAUNCH_FAILED: "Launch failed",
    EventKind.UNKNOWN: "Unknown instances",
    EventKind.WAVE_FAILED: "Wave failed",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification; ``id`` is the same for every delivery of the same notice."""

    id: str
    at: datetime
    kind: NoticeKind
    fleet: str
    title: str
    text: str
    node_pool: str = ""
    revision: str = ""


class RolloutMemory(msgspec.Struct, frozen=True, rename="camel"):
    """A reported rollout of a NodePool; ``counted`` are the ids of its running commands."""

    started_at: datetime
    nodes: int = 0
    counted: tuple[str, ...] = ()


class NoticeMemory(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The sent notices, and the data for those that are due later.

    ``reported`` has the time at which a problem was last reported. The next report on a week is
    about the time since ``week_from``.
    """

    rollouts: dict[str, RolloutMemory] = {}
    reported: dict[str, datetime] = msgspec.field(default_factory=dict, name="told")
    unschedulable_since: datetime | None = None
    unschedulable_reported: bool = msgspec.field(default=False, name="unschedulableTold")
    week_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class PassFacts:
    """The result of a pass: its plan, the running commands, and the fleet by name and revision.

    ``report_since`` returns the report on the fleet since a time.
    """

    at: datetime
    fleet: str
    revision: str
    plan: Plan
    running: Sequence[RunningCommand]
    report_since: Callable[[datetime], FleetReport]

    def notice(self, kind: NoticeKind, title: str, text: str, node_pool: str = "") -> Notice:
        """Return a notice about this pass."""
        identity = f"{self.fleet}/{kind}/{node_pool}/{self.at:%Y%m%dT%H%M%S}"
        return Notice(identity, self.at, kind, self.fleet, title, text, node_pool, self.revision)


def notices_of_pass(memory: NoticeMemory, facts: PassFacts) -> tuple[NoticeMemory, list[Notice]]:
    """Return the notices about a pass, and the data to record."""
    notices: list[Notice] = []
    for step in (_rollout_notices, _unschedulable_notices, _weekly_notices):
        memory, found = step(memory, facts)
        notices += found
    return memory, notices


def notices_of_event(
    memory: NoticeMemory, event: Progress, fleet: str, revision: str
) -> tuple[NoticeMemory, list[Notice]]:
    """Return the notices about an event, and the data to record."""
    if event.kind is EventKind.ROLLOUT_STOPPED:
        kind, title = NoticeKind.ROLLOUT_HALTED, "Rollout halted"
    elif event.kind in _FAILURES:
        kind, title = NoticeKind.FAILED, _FAILURE_TITLES.get(event.kind, "Failure")
    else:
        return memory, []
    pool = f" (NodePool {event.node_pool})" if event.node_pool else ""
    key = f"{event.kind}/{event.node_pool}"
    last = memory.reported.get(key)
    if last is not None and last <= event.at < last + REMINDED_AFTER:
        return memory, []
    reported = {k: at for k, at in memory.reported.items() if event.at < at + REMINDED_AFTER}
    identity = f"{fleet}/{event.kind}/{event.node_pool}/{event.at:%Y%m%dT%H%M%S}"
    notice = Notice(
        identity, event.at, kind, fleet, title + pool, event.message, event.node_pool, revision
    )
    return msgspec.structs.replace(memory, reported={**reported, key: event.at}), [notice]


def _rollout_notices(memory: NoticeMemory, facts: PassFacts) -> tuple[NoticeMemory, list[Notice]]:
    """Report when the replacement of drifted nodes of a NodePool begins, and when it has ended."""
    notices: list[Notice] = []
    rollouts = dict(memory.rollouts)
    left = {drifted.node_pool for drifted in facts.plan.drift}
    running = [c for c in facts.running if c.reason == DRIFTED and c.phase not in _ENDED]
    rolling = group_pairs((pool, c) for c in running for pool in dict.fromkeys(c.node_pools))
    for pool, commands in sorted(rolling.items()):
        known = rollouts.get(pool)
        if known is None:
            known = RolloutMemory(facts.at)
            notices.append(_rollout_started(facts, pool, _count_nodes(commands, pool)))
        rollouts[pool] = _with_commands(known, pool, commands)
    ended = sorted(rollouts.keys() - rolling.keys() - left)
    notices += [_rollout_finished(facts, pool, rollouts.pop(pool)) for pool in ended]
    return msgspec.structs.replace(memory, rollouts=rollouts), notices


def _rollout_started(facts: PassFacts, pool: str, leaving: int) -> Notice:
    """Return the notice of a rollout whose first commands replace ``leaving`` nodes."""
    drifted = sum(drifted.node_pool == pool for drifted in facts.plan.drift)
    return facts.notice(
        NoticeKind.ROLLOUT_STARTED,
        f"Rollout of NodePool {pool} started",
        f"{format_count(max(drifted, leaving), 'node')} to replace.",
        pool,
    )


def _rollout_finished(facts: PassFacts, pool: str, ended: RolloutMemory) -> Notice:
    took = format_duration(_round_to_minutes(facts.at - ended.started_at))
    return facts.notice(
        NoticeKind.ROLLOUT_FINISHED,
        f"Rollout of NodePool {pool} finished",
        f"{format_count(ended.nodes, 'node')} replaced in {took}.",
        pool,
    )


def _count_nodes(commands: Iterable[RunningCommand], node_pool: str) -> int:
    return sum(command.node_pools.count(node_pool) for command in commands)


def _round_to_minutes(span: timedelta) -> timedelta:
    return max(span - span % timedelta(minutes=1), timedelta(minutes=1))


def _with_commands(
    known: RolloutMemory, pool: str, commands: Sequence[RunningCommand]
) -> RolloutMemory:
    new = [command for command in commands if command.id not in known.counted]
    ids = tuple(sorted(command.id for command in commands))
    return RolloutMemory(known.started_at, known.nodes + _count_nodes(new, pool), ids)


def _schedulable_again(memory: NoticeMemory, facts: PassFacts) -> tuple[NoticeMemory, list[Notice]]:
    key = NoticeKind.PODS_UNSCHEDULABLE.value
    cleared = msgspec.structs.replace(
        memory,
        unschedulable_since=None,
        unschedulable_reported=False,
        reported={k: at for k, at in memory.reported.items() if k != key},
    )
    if not memory.unschedulable_reported:
        return cleared, []
    text = "Every pod can be scheduled again."
    return cleared, [facts.notice(NoticeKind.PODS_SCHEDULABLE, "No unschedulable pods", text)]


def _unschedulable_notices(
    memory: NoticeMemory, facts: PassFacts
) -> tuple[NoticeMemory, list[Notice]]:
    """Report when pods have been unschedulable for a while, and when all can be scheduled again."""
    pods = facts.plan.unschedulable
    replace = msgspec.structs.replace
    key = NoticeKind.PODS_UNSCHEDULABLE.value
    if not pods:
        return _schedulable_again(memory, facts)
    since = memory.unschedulable_since or facts.at
    memory = replace(memory, unschedulable_since=since)
    last = memory.reported.get(key)
    is_recent = last is not None and last <= facts.at < last + REMINDED_AFTER
    if facts.at - since < UNSCHEDULABLE_AFTER or is_recent:
        return memory, []
    reasons = [reason.message for pod in pods[:1] for reason in pod.reasons[:1]]
    text = f"{format_list((pod.pod for pod in pods), _PODS_SHOWN)}. " + " ".join(reasons)
    notice = facts.notice(
        NoticeKind.PODS_UNSCHEDULABLE, f"{format_count(len(pods), 'pod')} cannot be scheduled", text
    )
    reported = {**memory.reported, key: facts.at}
    return replace(memory, unschedulable_reported=True, reported=reported), [notice]


def _weekly_notices(memory: NoticeMemory, facts: PassFacts) -> tuple[NoticeMemory, list[Notice]]:
    """Report on the week on Monday at 09:00 UTC."""
    since = memory.week_from
    if since is None:
        return msgspec.structs.replace(memory, week_from=facts.at), []
    if not since < last_monday(facts.at):
        return memory, []
    text = text_of(facts.report_since(since))
    notice = facts.notice(NoticeKind.WEEKLY_SAVINGS, "Weekly report", text)
    return msgspec.structs.replace(memory, week_from=facts.at), [notice]


def last_monday(now: datetime) -> datetime:
    """Return the latest Monday 09:00 UTC that is not after ``now``."""
    utc = now.astimezone(UTC)
    midnight = utc.replace(hour=0, minute=0, second=0, microsecond=0)
    monday = midnight - timedelta(days=utc.weekday()) + _MONDAY_AT
    return monday if monday <= utc else monday - WEEK
