"""The life of a plan while it is carried out, as a state machine without I/O.

The shell asks ``ready()`` what to start and tells ``feed()`` what happened; threads, clocks, the
journal and EC2 stay outside. Feeding a journal back restores the run after a crash, and a test
can try every order of events in microseconds.

States of one action::

    PENDING --Started--> RUNNING --Succeeded--> SUCCEEDED
       |                    '-----Failed------> FAILED
       '--(an action it waits for failed)-----> SKIPPED
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from reconciler.plan.graph import waves
from reconciler.plan.plan import Action, Plan


class ActionState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Started:
    action: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Succeeded:
    action: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Failed:
    action: str
    at: datetime
    message: str


Event = Started | Succeeded | Failed

_TRANSITIONS: Final[dict[tuple[ActionState, type[Event]], ActionState]] = {
    (ActionState.PENDING, Started): ActionState.RUNNING,
    (ActionState.RUNNING, Succeeded): ActionState.SUCCEEDED,
    (ActionState.RUNNING, Failed): ActionState.FAILED,
}


@dataclass
class PlanRun:
    """One carrying out of ``plan``; ``states`` says how far each action has come."""

    plan: Plan
    states: dict[str, ActionState] = field(init=False)
    _depends_on: dict[str, tuple[str, ...]] = field(init=False, repr=False)
    _waiting: dict[str, list[str]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        actions = self.plan.actions
        self._depends_on = {action.id: action.depends_on for action in actions}
        assert len(self._depends_on) == len(actions), "two actions have one id"
        waves(self._depends_on)  # asserts that every action can have its turn
        self.states = dict.fromkeys(self._depends_on, ActionState.PENDING)
        self._waiting = {action.id: [] for action in actions}
        for action in actions:
            for before in action.depends_on:
                self._waiting[before].append(action.id)

    def feed(self, event: Event) -> None:
        """Take note of ``event``; a failure skips everything that waited for it."""
        current = self.states[event.action]
        following = _TRANSITIONS.get((current, type(event)))
        assert following is not None, f"{type(event).__name__} while {current}: {event.action}"
        if following is ActionState.RUNNING:
            assert self._may_start(event.action), f"{event.action} started before its time"
        self.states[event.action] = following
        if following is ActionState.FAILED:
            self._skip(self._waiting[event.action])

    def restore(self, events: Iterable[Event]) -> None:
        """Feed a journal back, oldest event first."""
        for event in events:
            self.feed(event)

    def ready(self) -> list[Action]:
        """Return the actions that may start now, in the order of the plan."""
        return [action for action in self.plan.actions if self._may_start(action.id)]

    def in_doubt(self) -> list[Action]:
        """Return the actions that started and never reported: after a crash, look before acting."""
        return [a for a in self.plan.actions if self.states[a.id] is ActionState.RUNNING]

    @property
    def is_finished(self) -> bool:
        """Whether nothing runs and nothing more can start."""
        return not self.ready() and not self.in_doubt()

    def _may_start(self, action: str) -> bool:
        if self.states[action] is not ActionState.PENDING:
            return False
        return all(self.states[b] is ActionState.SUCCEEDED for b in self._depends_on[action])

    def _skip(self, actions: list[str]) -> None:
        queue = list(actions)
        while queue:
            action = queue.pop()
            if self.states[action] is ActionState.PENDING:
                self.states[action] = ActionState.SKIPPED
                queue.extend(self._waiting[action])
