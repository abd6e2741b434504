"""What was done under which commit: the operations of a fleet by command, and their timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from reconciler.model.decode import decode_json
from reconciler.model.grouping import group_pairs
from reconciler.ports.journal import REQUESTED, Intent, JournalEntry, Outcome, Verb, shown_verb
from reconciler.ports.state import RecordedPlan, RunningCommand

WIDTH: Final = 1000
"""The length of a timeline, in the units of its drawing."""
ENTRIES_MAX: Final = 500
"""How many entries of the journal the page is made of; ``reconciler history`` lists all."""

_LENGTH_MIN: Final = 4
_SHOWN: Final = 6

_PLANS_KEPT: Final = ENTRIES_MAX
"""No more plans than entries can be named."""

_COMMAND: Final = "command"

_REMOVING: Final = frozenset({Verb.DRAIN, Verb.DELETE_NODE, Verb.TERMINATE})


@dataclass(frozen=True, slots=True)
class CommandView:
    """The operations of one command, or those of one plan that belong to no command.

    ``start`` and ``length`` place it on the timeline of its commit. ``outcome`` is
    "succeeded", "failed" (an operation of it failed) or "in progress". ``saves`` is in USD an hour,
    negative for launches that replace nothing, and ``pods`` how many pods it moves, both None if
    that is not known.
    """

    name: str
    reason: str
    counts: tuple[tuple[str, int], ...]
    targets: tuple[str, ...]
    began: datetime
    ended: datetime | None
    outcome: str
    problem: str
    start: int
    length: int
    saves: float | None = None
    pods: int | None = None

    @property
    def operations(self) -> str:
        """Its operations in words: how many of each kind."""
        return ", ".join(
            f"{count} × {shown_verb(verb)}" if count > 1 else shown_verb(verb)
            for verb, count in self.counts
        )

    @property
    def shown(self) -> tuple[str, ...]:
        """The first of its targets."""
        return self.targets[:_SHOWN]

    @property
    def more(self) -> int:
        """How many targets are not among the first."""
        return max(0, len(self.targets) - _SHOWN)

    @property
    def took(self) -> timedelta | None:
        """The time from its first operation to the outcome of its last."""
        return self.ended - self.began if self.ended is not None else None


@dataclass(frozen=True, slots=True)
class CommitView:
    """A commit with the commands that were executed under it, newest first."""

    revision: str
    began: datetime
    ended: datetime | None
    operations: int
    failures: int
    commands: tuple[CommandView, ...]


class _PlannedAction(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    node_claim: str | None = None
    cost_delta: float | None = None


class _PlannedActions(msgspec.Struct, frozen=True):
    """The part of a recorded plan that has its actions; all else is skipped."""

    actions: tuple[_PlannedAction, ...] = ()


class LaunchPrices:
    """What the launches of recorded plans cost in USD an hour, by NodeClaim.

    ``read_plan`` returns a recorded plan by its digest. The prices of the last plans are kept,
    because a dashboard needs them in every pass.
    """

    def __init__(self, read_plan: Callable[[str], RecordedPlan | None]) -> None:
        self._read_plan = read_plan
        self._known: dict[str, Mapping[str, float]] = {}

    def of(self, plan: str) -> Mapping[str, float]:
        """Return the price of each NodeClaim that a plan launches, if it is known."""
        if plan not in self._known:
            while len(self._known) >= _PLANS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[plan] = self._read(plan)
        return self._known[plan]

    def _read(self, plan: str) -> Mapping[str, float]:
        recorded = self._read_plan(plan) if plan else None
        if recorded is None:
            return {}
        try:
            actions = decode_json(recorded.body, _PlannedActions).actions
        except msgspec.MsgspecError:
            return {}  # of another release
        return {
            action.node_claim: action.cost_delta
            for action in actions
            if action.kind == "provision" and action.node_claim and action.cost_delta is not None
        }


def commit_views(
    entries: Iterable[JournalEntry],
    now: datetime,
    commands: Iterable[RunningCommand] = (),
    prices: LaunchPrices | None = None,
) -> tuple[CommitView, ...]:
    """Return the commits, newest first, of entries that are ordered newest first.

    A commit that was in effect twice, with another one between, is listed twice. ``commands`` are
    the recorded commands, which know what they save; ``prices`` know what other launches cost. The
    launch of a replacement belongs to its command, even where equal launches of several commands
    were one call, and so does what removes its nodes, in later passes.
    """
    by_id = {command.id: command for command in sorted(commands, key=lambda c: c.started_at)}
    owners = {name: c.id for c in by_id.values() for name in c.replacements}
    removers = {name: c.id for c in by_id.values() for name in c.node_claims}
    known = _Known(by_id, owners, removers, prices or LaunchPrices(lambda _: None))
    runs = groupby(entries, key=attrgetter("intent.revision"))
    return tuple(_commit_view(list(run), now, known) for _, run in runs)


class _Known(NamedTuple):
    """The recorded commands by id, and by the NodeClaims that they launch and remove; prices."""

    commands: Mapping[str, RunningCommand]
    owners: Mapping[str, str]
    removers: Mapping[str, str]
    prices: LaunchPrices


def _commit_view(entries: Sequence[JournalEntry], now: datetime, known: _Known) -> CommitView:
    began = min(entry.intent.at for entry in entries)
    ended = _end_time(entries)
    groups = group_pairs(
        (key, entry) for entry, key in zip(entries, _group_keys(entries, known), strict=True)
    )
    span = (ended or now) - began
    return CommitView(
        revision=entries[0].intent.revision,
        began=began,
        ended=ended,
        operations=len(entries),
        failures=sum(entry.outcome is Outcome.FAILED for entry in entries),
        commands=tuple(
            sorted(
                (
                    _command_view(
                        group, began, span, now, key[1] if key[0] == _COMMAND else "", known
                    )
                    for key, group in groups.items()
                ),
                key=lambda view: view.began,
                reverse=True,
            )
        ),
    )


def _group_keys(entries: Sequence[JournalEntry], known: _Known) -> list[tuple[str, str]]:
    """Return the group of each entry: its command, or its plan and verb.

    A drain names the node that a command has tainted, and the tags of an instance belong to its
    launch.
    """
    intents = [entry.intent for entry in entries]
    removers = {**known.removers, **{i.target: i.command for i in reversed(intents) if i.command}}
    launched = {i.target: i for i in reversed(intents) if i.verb is Verb.LAUNCH}

    def key_of(intent: Intent) -> tuple[str, str]:
        command = intent.command or known.owners.get(intent.target, "")
        if not command and intent.verb in _REMOVING:
            command = removers.get(intent.target, "")
        if command:
            return _COMMAND, command
        if intent.verb is Verb.TAG and intent.target in launched:
            return launched[intent.target].plan, Verb.LAUNCH
        return intent.plan, intent.verb

    return [key_of(intent) for intent in intents]


def _command_view(
    entries: Sequence[JournalEntry],
    origin: datetime,
    span: timedelta,
    now: datetime,
    name: str,
    known: _Known,
) -> CommandView:
    command = known.commands.get(name)
    verbs = Counter(entry.intent.verb.value for entry in reversed(entries))
    targets = list(dict.fromkeys(entry.intent.target for entry in reversed(entries)))
    began, ended = min(entry.intent.at for entry in entries), _end_time(entries)
    failed = [entry for entry in entries if entry.outcome is Outcome.FAILED]
    start = min(position(began - origin, span), WIDTH - _LENGTH_MIN)
    return CommandView(
        name=name,
        reason=next((e.intent.reason for e in entries if e.intent.reason), ""),
        counts=tuple(verbs.items()),
        targets=tuple(targets),
        began=began,
        ended=ended,
        outcome=_outcome_of(entries),
        problem=_describe_failures(failed, len(entries)),
        start=start,
        length=max(_LENGTH_MIN, position((ended or now) - origin, span) - start),
        saves=command.savings if command is not None else _launch_savings(entries, known.prices),
        pods=command.pods if command is not None else None,
    )


def _launch_savings(entries: Iterable[JournalEntry], prices: LaunchPrices) -> float | None:
    """Return the cost of launches that replace nothing, as negative savings; None if unknown."""
    found = [
        prices.of(entry.intent.plan).get(entry.intent.target)
        for entry in entries
        if entry.intent.verb is Verb.LAUNCH and entry.outcome is not Outcome.FAILED
    ]
    known = [price for price in found if price is not None]
    return -round(sum(known), 9) if known and len(known) == len(found) else None


def _outcome_of(entries: Iterable[JournalEntry]) -> str:
    """Return the outcome of operations in words; open requests of users are not executed yet."""
    open_verbs = {entry.intent.verb for entry in entries if entry.outcome is None}
    if open_verbs:
        return "requested" if open_verbs <= REQUESTED else "in progress"
    return "failed" if any(e.outcome is Outcome.FAILED for e in entries) else "succeeded"


def _describe_failures(failed: Sequence[JournalEntry], total: int) -> str:
    """Return the message of the first failure, and how many of all operations failed."""
    if not failed:
        return ""
    share = f"{len(failed)} of {total} failed" if total > 1 else ""
    return ": ".join(filter(None, (share, failed[0].message)))


def _end_time(entries: Iterable[JournalEntry]) -> datetime | None:
    """Return when the last outcome became known, None while any is unknown."""
    ends = [entry.finished_at for entry in entries]
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None


def position(after: timedelta, span: timedelta) -> int:
    """Return where a time after the start of a span is on its drawing."""
    return min(WIDTH, max(0, round(after / span * WIDTH))) if span else 0
