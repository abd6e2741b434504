"""The states of a plan's actions while it is applied: one state machine, one transition table.

A ``PlanRun`` receives events and reports what may start, what waits for what and what is done.
It keeps nothing durable: after a crash, and in every command that only reads, it is rebuilt from
the journal and the records (``engine/tracking.py``), which contain the same events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.plan.graph import ActionGraph
from reconciler.plan.value.actions import Action, ActionKind


class ActionState(StrEnum):
    """The state of an action."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ROLLED_BACK = "rolled-back"
    SKIPPED = "skipped"
    SUPERSEDED = "superseded"

    @property
    def is_final(self) -> bool:
        """Whether no event changes it any more."""
        return self in _FINAL


_FINAL: Final = frozenset(
    {
        ActionState.SUCCEEDED,
        ActionState.FAILED,
        ActionState.ROLLED_BACK,
        ActionState.SKIPPED,
        ActionState.SUPERSEDED,
    }
)


class ActionEvent(StrEnum):
    """The events of an action in the journal and the records."""

    MARKED = "marked"
    REQUESTED = "requested"
    LAUNCHED = "launched"
    INITIALIZED = "initialized"
    REFUSED = "refused"
    LOST = "lost"
    VALIDATED = "validated"
    ROLLED_BACK = "rolled-back"
    DELETED = "deleted"
    GONE = "gone"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table: in the state ``before``, ``event`` leads to ``after``."""

    kind: ActionKind
    before: ActionState
    event: ActionEvent
    after: ActionState
    meaning: str

    @property
    def starts(self) -> bool:
        """Whether the event starts the action, which is legal once all dependencies succeeded."""
        return self.event in _STARTS


_STARTS: Final = (ActionEvent.REQUESTED, ActionEvent.VALIDATED, ActionEvent.DELETED)


def _transition_table() -> tuple[Transition, ...]:
    s, e = ActionState, ActionEvent
    provision = (
        (s.PENDING, e.REQUESTED, s.RUNNING, "the launch is in the journal"),
        (s.PENDING, e.LOST, s.FAILED, "its command started, but the launch was not requested"),
        (s.PENDING, e.SUPERSEDED, s.SUPERSEDED, "a later plan was made before the launch"),
        (s.RUNNING, e.LAUNCHED, s.WAITING, "EC2 returned an instance; its node must become ready"),
        (s.RUNNING, e.REFUSED, s.FAILED, "EC2 returned no instance"),
        (s.RUNNING, e.LOST, s.FAILED, "its NodeClaim was removed before EC2 responded"),
        (s.WAITING, e.INITIALIZED, s.SUCCEEDED, "the node is initialized"),
        (s.WAITING, e.LOST, s.FAILED, "its NodeClaim was removed before its node was used"),
    )
    replace = (
        (s.PENDING, e.MARKED, s.WAITING, "the command is recorded and its nodes are tainted"),
        (s.PENDING, e.SUPERSEDED, s.SUPERSEDED, "a later plan was made before the command started"),
        (
            s.WAITING,
            e.VALIDATED,
            s.SUCCEEDED,
            "all replacements are ready and the command still holds",
        ),
        (
            s.WAITING,
            e.ROLLED_BACK,
            s.ROLLED_BACK,
            "a replacement is missing, or the command no longer holds",
        ),
    )
    terminate = (
        (s.PENDING, e.MARKED, s.WAITING, "its command is recorded and its node is tainted"),
        (s.PENDING, e.SUPERSEDED, s.SUPERSEDED, "a later plan was made before the command started"),
        (s.WAITING, e.DELETED, s.RUNNING, "its NodeClaim is deleted; the node is drained"),
        (s.WAITING, e.ROLLED_BACK, s.SKIPPED, "its command was rolled back"),
        (s.RUNNING, e.GONE, s.SUCCEEDED, "the instance is gone"),
    )
    reboot = (
        (s.PENDING, e.MARKED, s.WAITING, "its command is recorded; the node is drained"),
        (s.PENDING, e.SUPERSEDED, s.SUPERSEDED, "a later plan was made before the command started"),
        (s.WAITING, e.REQUESTED, s.RUNNING, "the reboot is requested; the node must come back"),
        (s.WAITING, e.ROLLED_BACK, s.FAILED, "the node is removed without a reboot"),
        (s.RUNNING, e.INITIALIZED, s.SUCCEEDED, "the node is ready after another boot"),
        (s.RUNNING, e.ROLLED_BACK, s.FAILED, "the node did not come back, and is removed"),
    )
    tables = zip(ActionKind, (provision, replace, terminate, reboot), strict=True)
    return tuple(Transition(kind, *row) for kind, rows in tables for row in rows)


TRANSITIONS: Final = _transition_table()
"""Every way in which the state of an action changes."""

_BY_KEY: Final = {(t.kind, t.before, t.event): t for t in TRANSITIONS}
_START: Final = {(t.kind, t.before) for t in TRANSITIONS if t.starts}


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened to an action; ``message`` has details for people."""

    action: str
    kind: ActionEvent
    message: str = ""


class PlanRun:
    """The states of a plan's actions, in the order of its graph.

    An event that is not in the table for the action's state changes nothing and is kept in
    ``illegal``: it is a defect of this program, and must not stop a daemon.
    """

    def __init__(self, actions: Iterable[Action]) -> None:
        self.graph = ActionGraph.from_actions(actions)
        self.illegal: tuple[str, ...] = ()
        self._states = dict.fromkeys(self.graph.order, ActionState.PENDING)
        self._messages: dict[str, str] = {}
        self._by_command: dict[str, list[str]] = {}
        for name, action in self.graph.actions.items():
            if action.command and action.kind != ActionKind.PROVISION:
                self._by_command.setdefault(action.command, []).append(name)

    @property
    def states(self) -> Mapping[str, ActionState]:
        """The state of each action by id."""
        return self._states

    def feed(self, event: RunEvent) -> None:
        """Apply an event to the state of its action."""
        action, state = self.graph.actions[event.action], self._states[event.action]
        found = _BY_KEY.get((action.kind, state, event.kind))
        waiting = [a.id for a in self.waits_for(event.action)] if found and found.starts else []
        if found is None or waiting:
            before = f" before {', '.join(waiting)}" if waiting else ""
            problem = f"{event.action}: {event.kind} while {state}{before}"
            self.illegal = (*self.illegal, problem)
            return
        self._states[event.action] = found.after
        self._messages[event.action] = event.message

    def waits_for(self, action: str) -> tuple[Action, ...]:
        """Return the actions that must succeed before this one starts and have not yet."""
        before = self.graph.actions[action].depends_on
        return tuple(
            self.graph.actions[name]
            for name in before
            if self._states[name] is not ActionState.SUCCEEDED
        )

    def is_ready(self, action: str) -> bool:
        """Return whether the engine may start an action now."""
        kind = self.graph.actions[action].kind
        return (kind, self._states[action]) in _START and not self.waits_for(action)

    def ready(self) -> tuple[Action, ...]:
        """Return the actions that the engine may start now."""
        return tuple(action for name, action in self.graph.actions.items() if self.is_ready(name))

    def commands_not_started(self) -> frozenset[str]:
        """Return the ids of the commands that have not started yet.

        A command is marked before its actions start, so that no pod goes to a node that will be
        terminated.
        """
        pending = ActionState.PENDING
        return frozenset(
            command
            for command, names in self._by_command.items()
            if all(self._states[name] is pending for name in names)
        )

    def mark(self, command: str) -> None:
        """Record that a command is recorded and its nodes are tainted."""
        for name in self._by_command[command]:
            self.feed(RunEvent(name, ActionEvent.MARKED))

    def withdraw(self, command: str) -> None:
        """Record that a command was rolled back before anything was launched for it."""
        self.mark(command)
        for name in self._by_command[command]:
            self.feed(RunEvent(name, ActionEvent.ROLLED_BACK))
        for name, action in self.graph.actions.items():
            if action.command == command and action.kind == "provision":
                self.feed(RunEvent(name, ActionEvent.LOST))

    def status_message(self, action: str) -> str:
        """Return what an action waits for, or details of its state; may be empty."""
        waiting = self.waits_for(action)
        if waiting and not self._states[action].is_final:
            return f"waits for {', '.join(a.id for a in waiting)}"
        return self._messages.get(action, "")

    @property
    def is_finished(self) -> bool:
        """Whether every action is in a final state."""
        return not self.unfinished()

    def counts(self) -> Mapping[ActionState, int]:
        """Return how many actions are in each state, in the order of the states."""
        found = Counter(self._states.values())
        return {state: found[state] for state in ActionState if found[state]}

    def unfinished(self) -> tuple[Action, ...]:
        """Return the actions that are not in a final state, in the order of the plan."""
        return tuple(a for n, a in self.graph.actions.items() if not self._states[n].is_final)
