"""A simulation as text: events in order, similar events on one line, costs at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.model.duration import format_duration
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import (
    format_cost_change,
    format_monthly,
    format_rate,
    format_spent,
)
from reconciler.model.text.times import format_time
from reconciler.plan.render.spans import difference_phrase, range_phrase
from reconciler.plan.render.wording import MessageGroup, format_pods, group_messages
from reconciler.plan.value.ranges import FleetRange
from reconciler.ports.progress import PREEMPTED, EventKind
from reconciler.simulate.eventlog import Event
from reconciler.simulate.report import Merge, Money, Report

_NAMES_MAX: Final = 3
_LINES_MAX: Final = 400
_REPLACED_MAX: Final = 40
_STUCK_MAX: Final = 10
_VERBS: Final = {
    "NodeClaimCreated": "created",
    "Launched": "launched",
    "Registered": "registered",
    "Initialized": "ready",
    "LaunchFailed": "launch failed",
    "CommandStarted": "command",
    "CommandValidated": "validated",
    "CommandRolledBack": "rolled back",
    "Tainted": "tainted",
    "Drained": "drained",
    "Rebooting": "rebooting",
    "Rebooted": "rebooted",
    "RebootFailed": "not rebooted",
    "Terminated": "terminated",
    "PodBound": "pods bound",
    "PodEvicted": "pods evicted",
    "Interrupted": "interrupted",
    "Expired": "expired",
    "Stalled": "stalled",
    "Unavailable": "no capacity",
    "Retrying": "call failed",
    "Failed": "failed",
    "Killed": "daemon killed",
    "Vanished": "vanished",
}
_QUIET: Final = frozenset({"NodeClaimCreated", "Registered", "Tainted", "CommandValidated"})
"""Steps that follow from others and would only lengthen the timeline."""


class StreamedTimeline:
    """Prints the timeline while a simulation runs: the lines of a time after it has passed.

    ``write`` receives complete lines. Events before ``begin`` are not printed.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._start: datetime | None = None
        self._moment: list[Event] = []
        self._claims: dict[str, str] = {}
        self._lines = 0

    def begin(self, at: datetime) -> None:
        """Start the timeline at the start of the planned revision."""
        self._start = at
        self._write(f"Simulation from {format_time(at)}\n\n")

    def add_event(self, event: Event) -> None:
        """Receive the next event."""
        if event.node and event.node_claim:
            self._claims[event.node] = event.node_claim
        if self._start is None:
            return
        if self._moment and event.at > self._moment[0].at:
            self._flush(self._start)
        self._moment.append(event)

    def end(self, report: Report) -> None:
        """Print the remaining events, and the outcome."""
        self._flush(report.started_at)
        lines = []
        if self._lines > _LINES_MAX:
            lines.append(f"  ... and {self._lines - _LINES_MAX} more lines (-o json lists all)")
        if not self._lines:
            lines.append("  No events.")
        lines += ["", outcome_of(report), *range_lines(report)]
        lines += [*_merge_lines(report), *_stuck_lines(report)]
        lines += ["", *_cost_lines(report.cost), ""]
        self._write("\n".join(lines))

    def _flush(self, start: datetime) -> None:
        lines = _format_events(self._moment, self._claims, start)
        shown = lines[: max(_LINES_MAX - self._lines, 0)]
        if shown:
            self._write("".join(f"{line}\n" for line in shown))
        self._lines += len(lines)
        self._moment = []


def timeline_lines(report: Report) -> list[str]:
    """Return a line for each time, kind and NodePool, in the order of the first event.

    Nodes are named by their NodeClaims, as everywhere in a report. Times are those of the wall
    clock.
    """
    claims = {e.node: e.node_claim for e in report.events if e.node and e.node_claim}
    events = (*report.events, *report.notes)
    return _format_events(events, claims)


def _format_events(
    events: Iterable[Event], claims: Mapping[str, str], start: datetime | None = None
) -> list[str]:
    """Return the lines; times are spans since ``start``, without it those of the wall clock."""
    lines = []
    happened = [
        replace(e, node=claims.get(e.node, e.node), message=_with_claim_names(e.message, claims))
        for e in events
        if e.kind not in _QUIET
    ]
    groups: dict[tuple[datetime, str, str, str], list[Event]] = {}
    for event in sorted(happened, key=lambda e: e.at):
        if event.kind not in _VERBS:
            continue
        is_shown = event.kind.startswith("Command") or event.reason == PREEMPTED
        reason = event.reason if is_shown else ""
        groups.setdefault((event.at, event.kind, event.node_pool, reason), []).append(event)
    for (at, kind, pool, reason), similar in groups.items():
        when = f"{at:%m-%d %H:%M:%S}" if start is None else format_span(at - start)
        lines.append(
            f"  {when:>10}  {_VERBS[kind]:<13}  {_describe_events(kind, pool, reason, similar)}"
        )
    return lines


def _with_claim_names(message: str, claims: Mapping[str, str]) -> str:
    """Return a message that names nodes by their NodeClaims."""
    words = (word.rstrip(",:") for word in message.split(" "))
    named = ((word, claims[word]) for word in words if word in claims)
    for node, claim in dict(named).items():
        message = message.replace(node, claim)
    return message


def _describe_events(kind: str, pool: str, reason: str, events: list[Event]) -> str:
    count, where = len(events), f"{pool}: " if pool else ""
    if kind in (EventKind.POD_BOUND, EventKind.POD_EVICTED):
        places = sorted({e.node for e in events if e.node})
        cause = " for pods of a higher priority" if reason == PREEMPTED else ""
        return f"{where}{count} on {format_list(places, _NAMES_MAX)}{cause}"
    if kind == EventKind.COMMAND_STARTED:
        if count == 1:
            return f"{where}{events[0].message}"
        return f"{where}{count} commands ({reason})"
    if kind in ("Launched", "LaunchFailed", "Stalled", "Unavailable", "Retrying", "Failed"):
        return f"{where}{_shown_messages(events)}"
    return f"{where}{_shown_names(events)}"


def _shown_messages(events: Sequence[Event]) -> str:
    if len(events) > 2:
        return _count_messages(events)
    return format_list((event.message for event in events), _NAMES_MAX)


def _shown_names(events: Sequence[Event]) -> str:
    """Return the objects of events, or the message of the first one if they have no name."""
    names = [event.node or event.node_claim or event.message for event in events]
    return format_list(names, _NAMES_MAX) if any(names) else events[0].message


def _count_messages(events: Sequence[Event]) -> str:
    """Return messages of the form ``name: what``, counted by ``what``."""
    counts: dict[str, int] = {}
    for event in events:
        what = event.message.partition(": ")[2] or event.message
        counts[what] = counts.get(what, 0) + 1
    ranked = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    shown = [f"{count} × {what}" for what, count in ranked[:_NAMES_MAX]]
    rest = sum(count for _, count in ranked[_NAMES_MAX:])
    return ", ".join([*shown, f"{rest} others"] if rest else shown)


def outcome_of(report: Report) -> str:
    """Return the outcome in one sentence."""
    if report.converged:
        how = f"Settled after {format_duration(report.duration)}"
    else:
        how = f"Not settled after {format_duration(report.at - report.started_at)}"
    launched = sum(e.kind == EventKind.LAUNCHED for e in report.events)
    gone = sum(e.kind == EventKind.TERMINATED for e in report.events)
    moved = sum(e.kind == EventKind.POD_EVICTED for e in report.events)
    at_end = format_count(len(report.fleet), "node")
    return (
        f"{how}: {format_count(launched, 'node')} launched, {gone} terminated, "
        f"{format_count(moved, 'pod')} evicted, {at_end} at the end."
    )


def range_lines(report: Report) -> list[str]:
    """Return the range over several seeds in one sentence, nothing for a single run."""
    found, lasts = report.range, report.duration_seconds
    if isinstance(found, msgspec.UnsetType) or isinstance(lasts, msgspec.UnsetType):
        return []
    line = f"Range: {range_phrase(found)}. The timeline is that of --seed {report.seed}."
    if not lasts.high:
        return [line]
    first, last = (format_duration(timedelta(seconds=end)) for end in (lasts.low, lasts.high))
    return [f"{line} The runs take {first if first == last else f'{first} to {last}'}."]


def _merge_lines(report: Report) -> list[str]:
    """Return the effect of the change from base to head on the nodes of the base."""
    merge = report.merge
    if merge is None:
        return []
    lines = ["", f"Merging {merge.head} into {merge.base}: {merge_sentence(merge, report.range)}"]
    for node in merge.replaced[:_REPLACED_MAX]:
        gone_at = node.gone_at
        done = (
            f"terminated {format_span(gone_at - report.started_at)}"
            if gone_at
            else "not terminated yet"
        )
        by = (
            f", replaced by {format_list(node.replacements, _NAMES_MAX)}"
            if node.replacements
            else ""
        )
        start = format_span(node.started_at - report.started_at)
        lines.append(f"  {node.node_claim}: {node.reason} {start}, {done}{by}")
    if len(merge.replaced) > _REPLACED_MAX:
        lines.append(f"  ... and {len(merge.replaced) - _REPLACED_MAX} more")
    return lines


def merge_sentence(merge: Merge, ends: FleetRange | msgspec.UnsetType) -> str:
    """Return the effect of a merge on the nodes of the base and on the cost.

    ``ends`` are the fleets of all runs.
    """
    change = merge.change
    replaced = len(merge.replaced)
    nodes = format_count(replaced + merge.kept, "node")
    some = (
        f"{replaced:,} of {nodes} {'is' if replaced == 1 else 'are'}" if replaced else "no node is"
    )
    return (
        f"{some} replaced. After the rollout, the fleet costs {_amount_phrase(change)}. "
        f"{_rollout_sentence(merge.extra)}{_difference_sentence(merge, ends)}"
    )


def _amount_phrase(change: float) -> str:
    """Return how much more or less an hour, and a month, in words if it rounds to zero."""
    if not round(abs(change), 4):
        return "the same"
    comparison = "more" if change > 0 else "less"
    return f"{format_monthly(abs(change))}/month {comparison} ({format_rate(abs(change))})"


def _rollout_sentence(extra: float) -> str:
    """Return what the rollout costs beyond the base in the same time."""
    if not round(abs(extra), 4):
        return "The rollout itself costs nothing."
    verb = "costs" if extra > 0 else "saves"
    return f"The rollout itself {verb} {format_spent(abs(extra))}."


def _difference_sentence(merge: Merge, ends: FleetRange | msgspec.UnsetType) -> str:
    """Return the change of the cost over several seeds, empty for a single run."""
    found = merge.difference
    if isinstance(found, msgspec.UnsetType) or isinstance(ends, msgspec.UnsetType):
        return ""
    return f" Over all runs: {difference_phrase(found, ends.per_hour.mean)}."


def _stuck_lines(report: Report) -> list[str]:
    if not report.stuck:
        return []
    shown = stuck_groups(report)[:_STUCK_MAX]
    lines = ["", "Needs intervention:"]
    for (kind, reason), message, names in shown:
        what = kind if len(names) == 1 else f"{kind}s"
        some = format_pods(names) if kind == "Pod" else format_list(names, _NAMES_MAX)
        lines.append(f"  {what} {some} ({reason}): {message}")
    more = len(report.stuck) - sum(len(group.names) for group in shown)
    if more:
        lines.append(f"  ... and {more} more (-o json lists all)")
    return lines


def stuck_groups(report: Report) -> list[MessageGroup]:
    """Return what is stuck, by kind, reason and message."""
    return group_messages(((s.kind, s.reason), s.message, s.name) for s in report.stuck)


def _cost_lines(cost: Money) -> list[str]:
    total = (
        f"Cost: {format_cost_change(cost.before, cost.after)}; "
        f"peak {format_rate(cost.peak)}; spent {format_spent(cost.spent)}."
    )
    lines = [total]
    for name, pool in cost.by_node_pool.items():
        lines.append(
            f"  {name}: {pool.nodes_before:,} → {format_count(pool.nodes_after, 'node')}, "
            f"{format_rate(pool.before, pool.after)}, spent {format_spent(pool.spent)}"
        )
    if cost.unpriced:
        count = format_count(cost.unpriced, "instance")
        lines.append(f"  {count} without a known price not included.")
    return lines


def format_span(length: timedelta) -> str:
    """Return a duration for people: ``+1d 02:03:04``, to the second."""
    seconds = int(length.total_seconds())
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"+{days}d {clock}" if days else f"+{clock}"
