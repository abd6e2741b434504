"""Turns the progress of the engine into lines of a story: what happens to nodes and the fleet.

Progress is kept until the pass is over, so that four nodes that become ready at once are one
line, and the picture of the fleet beside it is the one that the pass has left behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final

from reconciler.engine.tracking import run_of_command
from reconciler.plan.render.wording import counted, listed
from reconciler.plan.value.actions import ActionKind
from reconciler.ports.progress import EventKind, Progress
from reconciler.ports.state import RunningCommand

if TYPE_CHECKING:
    from reconciler.cli.demo.narrator import Narrator
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.ports.state import StateStore

READY: Final = "●"
STARTING: Final = "○"
LEAVING: Final = "◌"
_SIGNS: Final = {"Launched": "+", "Unavailable": "!", "LaunchFailed": "!", "Failed": "!"}
_NAMES_MAX: Final = 2
_HIDDEN: Final = frozenset({"Registered"})
Line = tuple[datetime, str, str]
"""When, a sign, and a text."""


class Reporter:
    """A notifier that reports to a narrator, with a picture of the fleet for each event.

    ``most_disrupted`` is how many nodes of a NodePool were at most about to go at once,
    ``least_ready`` how many were at least ready, since ``begin``.
    """

    def __init__(self, narrator: Narrator, pools: Sequence[str]) -> None:
        self.most_disrupted: dict[str, int] = {}
        self.least_ready: dict[str, int] = {}
        self._narrator = narrator
        self._pools = pools
        self._store: StateStore | None = None
        self._pending: list[Progress] = []
        self._said: set[str] = set()

    def begin(self, store: StateStore) -> None:
        """Report on this store from now on, and count from zero."""
        self._store = store
        self._said.clear()
        self.most_disrupted, self.least_ready = {}, {}

    def notify(self, progress: Progress) -> None:
        """Keep it until the pass is over."""
        self._pending.append(progress)

    def end_of_pass(self) -> None:
        """Report the events since the last pass; what continues is reported once."""
        assert self._store is not None, "a reporter needs a fleet to report on"
        claims, commands = self._store.node_claims(), self._store.commands()
        self._count(claims, commands)
        told, self._pending = self._pending, []
        every = list(_lines(told, claims, commands))
        lines = [
            (at, sign, text) for at, sign, text in every if sign.strip() or text not in self._said
        ]
        for number, (at, sign, text) in enumerate(lines, start=1):
            self._said.add(text)
            is_last = number == len(lines)
            self._narrator.event(at, sign, text, self._picture(claims) if is_last else "")

    def asleep(self, now: datetime, until: datetime) -> None:
        """Report that nothing can change before a time."""
        self._narrator.event(
            now, " ", (f"sleeping until {until:%H:%M} UTC; nothing can change earlier")
        )

    def _picture(self, claims: Sequence[NodeClaim]) -> str:
        """Return the fleet as symbols, by NodePool."""
        groups = [[_sign(c) for c in claims if c.node_pool == pool] for pool in self._pools]
        order = f"{READY}{STARTING}{LEAVING}"
        return " ".join("".join(sorted(g, key=order.find)) for g in groups if any(g))

    def _count(self, claims: Sequence[NodeClaim], commands: Sequence[RunningCommand]) -> None:
        by_name = {claim.name: claim for claim in claims}
        runs = [run_of_command(command, by_name) for command in commands]
        going = {
            a.node_claim for run in runs for a in run.unfinished() if a.kind == ActionKind.TERMINATE
        }
        for pool in self._pools:
            ours = [c for c in claims if c.node_pool == pool]
            ready = sum(_sign(c) == READY for c in ours)
            disrupted = sum(_sign(c) == LEAVING or c.name in going for c in ours if _sign(c))
            self.least_ready[pool] = min(self.least_ready.get(pool, ready), ready)
            self.most_disrupted[pool] = max(self.most_disrupted.get(pool, 0), disrupted)


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
        some = list(group)
        at, names = some[0].at, [p.node_claim for p in some]
        match kind:
            case "Initialized":
                yield at, "✓", f"{_subject(names)} ready"
            case "Terminated":
                yield at, "-", f"{_subject(names)} terminated"
            case "Discarded":
                yield at, "-", f"removed {counted(len(some), _unused(some))} from AWS"
            case "CommandStarted":
                yield from ((at, *_started(by_id[p.command])) for p in some if p.command in by_id)
            case "CommandValidated":
                yield from (
                    (at, " ", _validated(by_id[p.command])) for p in some if p.command in by_id
                )
            case _:
                yield from ((at, *_message(p, nodes, found)) for p in some if kind != "Recovered")


def _unused(removed: Sequence[Progress]) -> str:
    """Return what was removed: launch templates, or resources of several kinds."""
    template = "unused launch template"
    return template if all(template in p.message for p in removed) else "unused resource"


def _subject(claims: Sequence[str]) -> str:
    """Return claims as the subject of a sentence that begins with what they are."""
    if len(claims) == 1:
        return f"{claims[0]} is"
    return f"{', '.join(claims) if len(claims) <= _NAMES_MAX else f'{len(claims)} nodes'} are"


def _started(command: RunningCommand) -> tuple[str, str]:
    going = listed(command.node_claims, 3)
    if not command.replacements:
        return "-", f"remove {going} ({command.reason})"
    return "±", f"replace {going} with {listed(command.replacements, 3)} ({command.reason})"


def _validated(command: RunningCommand) -> str:
    going = listed(command.node_claims, 3)
    if not command.replacements:
        return f"revalidated: {going} can be removed"
    return f"revalidated: {going} can be drained"


def _message(
    progress: Progress, nodes: Mapping[str, str], found: Collection[str]
) -> tuple[str, str]:
    """Return the symbol and the engine's message, with nodes named by their claims."""
    text = progress.message
    for node, name in nodes.items():
        text = text.replace(node, name)
    if progress.kind == EventKind.LAUNCHED and progress.node_claim in found:
        return "=", f"{text} (recovered)"
    return _SIGNS.get(progress.kind, " "), text
