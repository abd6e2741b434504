"""Narrates the demo on a terminal: chapters, commands, and events of nodes and the fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from typing import Final, TextIO

from reconciler.engine.tracking import track_command
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.visible import Painted, escape_invisible, one_line
from reconciler.plan.value.actions import ActionKind
from reconciler.ports.progress import EventKind, Progress
from reconciler.ports.state import RunningCommand, StateStore
from reconciler.render.layout import wrap

READY: Final = "●"
STARTING: Final = "○"
LEAVING: Final = "◌"
_SIGNS: Final = {"Launched": "+", "Unavailable": "!", "LaunchFailed": "!", "Failed": "!"}
_NAMES_MAX: Final = 2
_HIDDEN: Final = frozenset({"Registered"})
Line = tuple[datetime, str, str]
"""A time, a sign, and a text."""

WIDTH: Final = 80
_INDENT: Final = 3
_STYLES: Final = {
    "bold": "1",
    "dim": "2",
    "+": "32",
    "✓": "32",
    "=": "36",
    "±": "33",
    "!": "31",
    "-": "35",
    "$": "36",
}
_ASCII: Final = {
    ord("●"): "*",
    ord("○"): "o",
    ord("◌"): ".",
    ord("✓"): "v",
    ord("±"): "~",
    ord("→"): "->",
    ord("×"): "x",
    ord("…"): "...",
    ord("–"): "-",
    ord("─"): "-",
}


class Reporter:
    """A notifier that reports to a narrator, with a picture of the fleet for each event.

    ``most_disrupted`` is the maximum number of nodes of a NodePool that were disrupted at a time,
    ``least_ready`` the minimum number that were ready, since ``begin``.
    """

    def __init__(self, narrator: Narrator, pools: Sequence[str]) -> None:
        self.most_disrupted: dict[str, int] = {}
        self.least_ready: dict[str, int] = {}
        self._narrator = narrator
        self._pools = pools
        self._store: StateStore | None = None
        self._pending: list[Progress] = []
        self._reported: set[str] = set()

    def begin(self, store: StateStore) -> None:
        """Report on this store from now on, and count from zero."""
        self._store = store
        self._reported.clear()
        self.most_disrupted, self.least_ready = {}, {}

    def notify(self, progress: Progress) -> None:
        """Keep the event until the pass ends."""
        self._pending.append(progress)

    def end_pass(self) -> None:
        """Report the events since the last pass; ongoing ones are reported once."""
        assert self._store is not None, "a reporter needs a fleet to report on"
        claims, commands = self._store.node_claims(), self._store.commands()
        self._count(claims, commands)
        events, self._pending = self._pending, []
        all_lines = list(_lines(events, claims, commands))
        lines = [
            (at, sign, text)
            for at, sign, text in all_lines
            if sign.strip() or text not in self._reported
        ]
        for number, (at, sign, text) in enumerate(lines, start=1):
            self._reported.add(text)
            is_last = number == len(lines)
            self._narrator.event(at, sign, text, self._draw_fleet(claims) if is_last else "")

    def report_sleep(self, now: datetime, until: datetime) -> None:
        """Report that nothing can change until a time."""
        self._narrator.event(
            now, " ", (f"sleeping until {until:%H:%M} UTC; nothing can change earlier")
        )

    def _draw_fleet(self, claims: Sequence[NodeClaim]) -> str:
        """Return the fleet as symbols, by NodePool."""
        groups = [[_sign(c) for c in claims if c.node_pool == pool] for pool in self._pools]
        order = f"{READY}{STARTING}{LEAVING}"
        return " ".join("".join(sorted(g, key=order.find)) for g in groups if any(g))

    def _count(self, claims: Sequence[NodeClaim], commands: Sequence[RunningCommand]) -> None:
        going = _claims_to_terminate(claims, commands)
        for pool in self._pools:
            ours = [(c.name, _sign(c)) for c in claims if c.node_pool == pool and _sign(c)]
            ready = sum(sign == READY for _, sign in ours)
            disrupted = sum(sign == LEAVING or name in going for name, sign in ours)
            self.least_ready[pool] = min(self.least_ready.get(pool, ready), ready)
            self.most_disrupted[pool] = max(self.most_disrupted.get(pool, 0), disrupted)


def _claims_to_terminate(
    claims: Sequence[NodeClaim], commands: Sequence[RunningCommand]
) -> set[str | None]:
    by_name = {claim.name: claim for claim in claims}
    unfinished = chain.from_iterable(track_command(c, by_name).unfinished() for c in commands)
    return {action.node_claim for action in unfinished if action.kind == ActionKind.TERMINATE}


def _sign(claim: NodeClaim) -> str:
    """Return the symbol of a node, none once EC2 is shutting its instance down."""
    if claim.is_true("InstanceTerminating"):
        return ""
    if claim.is_deleting:
        return LEAVING
    return READY if claim.is_true("Initialized") else STARTING


def _lines(
    events: Sequence[Progress], claims: Sequence[NodeClaim], commands: Sequence[RunningCommand]
) -> Iterator[Line]:
    """Yield the lines for the events of one pass."""
    by_id = {c.id: c for c in commands}
    nodes = {c.status.node_name: c.name for c in claims if c.status.node_name}
    found = {p.node_claim for p in events if p.kind == EventKind.RECOVERED}
    for kind, group in groupby((p for p in events if p.kind not in _HIDDEN), key=lambda p: p.kind):
        alike = list(group)
        shown = _describe_alike(kind, alike, by_id)
        if shown is None:
            shown = [_format_event(progress, nodes, found) for progress in alike]
        yield from ((alike[0].at, sign, text) for sign, text in shown)


def _describe_alike(
    kind: str, alike: Sequence[Progress], commands: Mapping[str, RunningCommand]
) -> list[tuple[str, str]] | None:
    """Return the symbols and texts of events of a kind that has its own, None for other kinds."""
    concerned = [commands[p.command] for p in alike if p.command in commands]
    match kind:
        case "Initialized":
            return [("✓", f"{_subject(alike)} ready")]
        case "Terminated":
            return [("-", f"{_subject(alike)} terminated")]
        case "Discarded":
            return [("-", f"removed {format_count(len(alike), _resource_noun(alike))} from AWS")]
        case "CommandStarted":
            return list(map(_describe_command, concerned))
        case "CommandValidated":
            return [(" ", _describe_validation(command)) for command in concerned]
        case "Recovered":
            return []
    return None


def _resource_noun(removed: Sequence[Progress]) -> str:
    """Return the noun for the removed resources: launch templates, or several kinds."""
    template = "unused launch template"
    return template if all(template in p.message for p in removed) else "unused resource"


def _subject(events: Sequence[Progress]) -> str:
    """Return the claims of events as the subject of a sentence, with the verb."""
    claims = [event.node_claim for event in events]
    if len(claims) == 1:
        return f"{claims[0]} is"
    return f"{', '.join(claims) if len(claims) <= _NAMES_MAX else f'{len(claims)} nodes'} are"


def _describe_command(command: RunningCommand) -> tuple[str, str]:
    going = format_list(command.node_claims, 3)
    if not command.replacements:
        return "-", f"remove {going} ({command.reason})"
    return "±", f"replace {going} with {format_list(command.replacements, 3)} ({command.reason})"


def _describe_validation(command: RunningCommand) -> str:
    going = format_list(command.node_claims, 3)
    if not command.replacements:
        return f"revalidated: {going} can be removed"
    return f"revalidated: {going} can be drained"


def _format_event(
    progress: Progress, nodes: Mapping[str, str], found: Collection[str]
) -> tuple[str, str]:
    """Return the symbol and the engine's message, with nodes named by their claims."""
    text = progress.message
    for node, name in nodes.items():
        text = text.replace(node, name)
    if progress.kind == EventKind.LAUNCHED and progress.node_claim in found:
        return "=", f"{text} (recovered)"
    return _SIGNS.get(progress.kind, " "), text


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses in seconds, after a line and after a chapter. ``turn`` waits after a chapter.

    After ``patience_s`` there are no more pauses: a slow machine is slow enough.
    """

    line_s: float = 0.0
    chapter_s: float = 0.0
    patience_s: float = 15.0
    turn: Callable[[], None] = lambda: None


class Narrator:
    """Writes to ``out``, with ``colour`` only for a terminal, until ``stop`` returns True.

    A request to stop raises KeyboardInterrupt between two lines, because an operation that is in
    progress could fail with an error.
    """

    def __init__(self, out: TextIO, pace: Pace, stop: Callable[[], bool], *, colour: bool) -> None:
        self._out = out
        self._stop = stop
        self._pace = pace
        self._colour = colour
        self._chapter = 0
        self._hurry_at = time.monotonic() + pace.patience_s
        self._encoding = getattr(out, "encoding", None) or "utf-8"

    def title(self, text: str) -> None:
        """Print the title."""
        self._write(self._paint(text, "bold"))

    def chapter(self, title: str) -> None:
        """End a chapter, and begin the next one."""
        if self._chapter:
            self._pause(self._pace.chapter_s)
            self._pace.turn()
        self._chapter += 1
        rule = "─" * (WIDTH - len(title) - 5)
        self._write()
        self._write(
            f"{self._paint(f'{self._chapter}  {title}', 'bold')} {self._paint(rule, 'dim')}"
        )

    def paragraph(self, text: str) -> None:
        """Print a paragraph."""
        self._write()
        for line in wrap(text, WIDTH - _INDENT):
            self._write_line(line)

    def command(self, *texts: str) -> None:
        """Show a command of the user."""
        self._write()
        for text in texts:
            self._write_line(f"{self._paint('$', '$')} {self._paint(text, 'bold')}")

    def quote(self, text: str) -> None:
        """Show the output of a command."""
        for line in escape_invisible(text).rstrip("\n").split("\n"):
            self._write_line(f"  {line}" if line else "")

    def event(self, at: datetime, sign: str, text: str, aside: str = "") -> None:
        """Show an event; ``aside`` is right-aligned if there is room."""
        text, aside = one_line(text), escape_invisible(aside)
        room = WIDTH - 2 - _INDENT - len(f"{at:%H:%M:%S}  {sign} ")
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        line = f"{at:%H:%M:%S}  {sign} {text}"
        gap = WIDTH - 2 - _INDENT - len(line) - len(aside)
        shown = f"{at:%H:%M:%S}  {self._paint(sign, sign)} {text}"
        if aside and gap >= 2:
            shown += " " * gap + aside
        self._write_line(f"  {shown}")

    def _write_line(self, text: str) -> None:
        self._write(" " * _INDENT + text)
        self._pause(self._pace.line_s)

    def _pause(self, seconds: float) -> None:
        if seconds and time.monotonic() < self._hurry_at:
            time.sleep(seconds)

    def _paint(self, text: str, style: str) -> str:
        code = _STYLES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text

    def _write(self, text: str = "") -> None:
        if self._stop():
            raise KeyboardInterrupt
        line = text.rstrip()
        try:
            line.encode(self._encoding)
        except UnicodeEncodeError:
            line = line.translate(_ASCII).encode(self._encoding, "replace").decode(self._encoding)
        self._out.write(Painted(line + "\n"))
        self._out.flush()
