"""Every effect on the world is journalled before it is tried, and so is its outcome.

The id of an intent is a hash of what decided it and what it does. It makes a repetition
recognisable: to our journal, and to EC2 as the client token. An intent that a crash leaves without
an outcome is *in doubt*; ``recovery.py`` checks the world before it acts on one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.engine.world import World
from reconciler.model.text.counting import format_list
from reconciler.ports.calls import Answer, UnansweredError
from reconciler.ports.journal import Intent, IntentOutcome, Outcome, Verb
from reconciler.ports.progress import EventKind

_ID_LENGTH: Final = 32
_LASTING: Final = frozenset({Verb.TAINT, Verb.DRAIN, Verb.REBOOT, Verb.DELETE_NODE, Verb.TAG})
"""Verbs that take many passes: each pass repeats the same intent until it is done."""


Effect = tuple[Sequence[Intent], Callable[[], object]]
"""The intents of one call, and the call."""


def intent_id(
    revision: str, serial: int, verb: Verb, target: str, parameters: Mapping[str, str]
) -> str:
    """Return the id of an intent: equal facts have equal ids, other parameters another id."""
    facts = [revision, str(serial), verb, target]
    facts += [f"{key}={parameters[key]}" for key in sorted(parameters)]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:_ID_LENGTH]


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one pass, which was decided from ``revision`` and ``serial``."""

    world: World
    revision: str
    serial: int
    plan: str = ""

    def intent(
        self,
        verb: Verb,
        target: str,
        parameters: Mapping[str, str] | None = None,
        *,
        command: str = "",
        reason: str = "",
    ) -> Intent:
        """Return the intent of this pass to do ``verb`` to ``target``."""
        facts = dict(parameters or {})
        lasting = verb in _LASTING
        identity = ("", 0) if lasting else (self.revision, self.serial)
        return Intent(
            id=intent_id(*identity, verb, target, facts),
            verb=verb,
            target=target,
            at=self.world.clock.now(),
            revision=self.revision,
            plan=self.plan,
            command=command,
            reason=reason,
            parameters=facts,
        )

    def execute(self, intents: Sequence[Intent], call: Callable[[], object]) -> bool:
        """Journal ``intents``, make the one call that fulfils them, and journal their outcome.

        Returns whether the call succeeded. A refusal is reported and journalled, and the next pass
        decides again from what it observes. An intent with an unknown outcome stays in doubt.

        Raises:
            LeaseLostError: another process acts for the fleet; the outcome stays in doubt.
        """
        return self.execute_all([(intents, call)])[0]

    def execute_all(self, effects: Sequence[Effect], within_s: float | None = None) -> list[bool]:
        """Journal effects, make their calls at the same time, and journal their outcomes.

        Returns which calls succeeded. One that is not answered in time stays in doubt; ``within_s``
        is how long to wait for them at most.

        Raises:
            LeaseLostError: another process acts for the fleet; the outcomes stay in doubt.
        """
        return [answer.error is None for answer in self.execute_for_answers(effects, within_s)]

    def execute_for_answers(
        self, effects: Sequence[Effect], within_s: float | None = None
    ) -> list[Answer]:
        """Do the same as ``execute_all``, and return the answer to each call.

        Raises:
            LeaseLostError: another process acts for the fleet; the outcomes stay in doubt.
        """
        if not effects:
            return []
        self.begin([intent for intents, _ in effects for intent in intents])
        names = [f"{intents[0].verb} {intents[0].target}" for intents, _ in effects]
        calls = (call for _, call in effects)
        answers = self.world.calls.call_all(dict(zip(names, calls, strict=True)), within_s)
        answered = [
            (intents, answers[name]) for (intents, _), name in zip(effects, names, strict=True)
        ]
        self.end(
            [ended for intents, answer in answered for ended in _call_outcomes(intents, answer)]
        )
        self._report(answered)
        return [answer for _, answer in answered]

    def _report(self, answered: Sequence[tuple[Sequence[Intent], Answer]]) -> None:
        """Report errors; calls that a pass no longer waits for have one event for each verb."""
        late: dict[Verb, list[str]] = {}
        for intents, answer in answered:
            first = intents[0]
            if isinstance(answer.error, UnansweredError):
                late.setdefault(first.verb, []).append(first.target)
            elif answer.error is not None:
                kind = EventKind.FAILED if answer.is_refusal else EventKind.RETRYING
                self.world.notify(kind, str(answer.error), node_claim=first.target)
        for verb, targets in late.items():
            error = UnansweredError(f"{verb} {format_list(targets)}")
            only = targets[0] if len(targets) == 1 else ""
            self.world.notify(EventKind.RETRYING, str(error), node_claim=only)

    def begin(self, intents: Sequence[Intent]) -> None:
        """Journal ``intents``, if this process still holds the lease.

        Raises:
            LeaseLostError: it does not; nothing was written.
        """
        self.world.confirm()
        self.world.journal.begin(intents)

    def finish(self, intents: Sequence[Intent], outcome: Outcome, message: str = "") -> None:
        """Journal the one outcome of intents."""
        self.end([IntentOutcome(intent.id, outcome, message) for intent in intents])

    def end(self, ended: Sequence[IntentOutcome]) -> None:
        """Journal the outcomes of intents, in one write."""
        if ended:
            self.world.journal.finish(ended, self.world.clock.now())


def _call_outcomes(intents: Sequence[Intent], answer: Answer) -> Iterator[IntentOutcome]:
    """Yield the outcomes of the intents of a call; nothing while they are unknown."""
    if answer.error is None:
        yield from (IntentOutcome(intent.id, Outcome.SUCCEEDED) for intent in intents)
    elif answer.is_refusal:
        yield from (IntentOutcome(i.id, Outcome.FAILED, str(answer.error)) for i in intents)
