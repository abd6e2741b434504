"""Prints the engine's progress: one line for each event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TextIO

from reconciler.model.text.visible import Painted, one_line
from reconciler.ports.journal import Outcome, Verb
from reconciler.ports.progress import Progress
from reconciler.ports.state import CommandPhase

if TYPE_CHECKING:
    from reconciler.adapters.database.state import DatabaseState
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.plan.value.actions import Action
    from reconciler.ports.state import RecordedPlan


# How far the plan that was carried out last has come, told from what is recorded.
#
# The engine decides anew in every pass and keeps no list of actions to tick off; what became of
# each is read off the claims, the commands and the journal.


PENDING: Final = "pending"
RUNNING: Final = "running"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"


def progress_of(state: DatabaseState) -> Iterator[tuple[str, Action, str]]:
    """Yield each action of the plan that was carried out last: plan digest, action, its state."""
    newest = next((p for p in state.store.plans(limit=100) if p.carried_out_at is not None), None)
    if newest is None:
        return
    for action, word in progress_of_plan(state, newest):
        yield newest.digest, action, word


def progress_of_plan(state: DatabaseState, recorded: RecordedPlan) -> Iterator[tuple[Action, str]]:
    """Yield each action of a recorded plan with its state."""
    from reconciler.plan.value.plan import from_json

    facts = _Facts(state)
    plan = from_json(recorded.body, f"plan {recorded.digest}")
    for action in plan.actions:
        yield action, facts.state_of(action)


class _Facts:
    """What is recorded, as it is looked up here."""

    def __init__(self, state: DatabaseState) -> None:
        self.journal = state.journal
        self.claims: dict[str, NodeClaim] = {c.name: c for c in state.store.node_claims()}
        self.gone = {g.claim.name for g in state.history.gone_claims(limit=10_000)}
        self.phases = {c.id: c.phase for c in state.history.commands(limit=10_000)}

    def state_of(self, action: Action) -> str:
        """Return the state of one action, one of the words above."""
        match action.kind:
            case "provision":
                return self._of_provision(action.node_claim or "")
            case "replace":
                return self._of_replace(self.phases.get(action.command or ""))
            case _:
                return self._of_terminate(action)

    def _of_provision(self, name: str) -> str:
        claim = self.claims.get(name)
        if claim is not None:
            return SUCCEEDED if claim.is_true("Initialized") else RUNNING
        launches = [e for e in self.journal.entries(target=name) if e.intent.verb is Verb.LAUNCH]
        if not launches:
            return PENDING
        # Gone again: whether it failed or has long been replaced, its launch tells.
        return FAILED if launches[0].outcome is Outcome.FAILED else SUCCEEDED

    def _of_replace(self, phase: CommandPhase | None) -> str:
        match phase:
            case None:
                return PENDING
            case CommandPhase.ROLLED_BACK:
                return FAILED
            case CommandPhase.MARKED | CommandPhase.WAITING:
                return RUNNING
        return SUCCEEDED

    def _of_terminate(self, action: Action) -> str:
        name = action.node_claim or ""
        claim = self.claims.get(name)
        if claim is None:
            return SUCCEEDED if name in self.gone else PENDING
        if claim.is_deleting:
            return RUNNING
        rolled_back = self.phases.get(action.command or "") is CommandPhase.ROLLED_BACK
        return SKIPPED if rolled_back else PENDING


_COLOURS = {
    "Launched": "32",
    "Initialized": "32",
    "Adopted": "32",
    "Recovered": "36",
    "CommandStarted": "33",
    "CommandRolledBack": "31",
    "Failed": "31",
    "LaunchFailed": "31",
    "Unavailable": "31",
    "Terminated": "35",
}


class TerminalNotifier:
    """Prints progress as lines: time, kind, message; a line that repeats the last is left out."""

    def __init__(self, out: TextIO, *, colour: bool) -> None:
        self._out = out
        self._colour = colour
        self._last = ""

    def notify(self, progress: Progress) -> None:
        """Print one line."""
        message = one_line(progress.message)
        line = f"{progress.kind:<17} {message}"
        if line == self._last:
            return
        self._last = line
        kind = f"{progress.kind:<17}"
        code = _COLOURS.get(progress.kind)
        if self._colour and code:
            kind = f"\x1b[{code}m{kind}\x1b[0m"
        self._out.write(Painted(f"{progress.at:%H:%M:%S} {kind} {message}\n"))
        self._out.flush()
