"""The first response to a reclaimed instance, while a pass may be busy with something else.

A spot instance has two minutes left. A pass that lists a large cluster, or waits for a slow API,
would use seconds of them. So a separate thread taints the node and begins to drain it. Everything
else is left to the pass, which acknowledges the event: marks, commands, replacements.

Only announced reclaims are responded to here, and only if the last observation does not contradict
them (``interruption.py``). Effects are in the journal before they are tried, as in a pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Final

from reconciler.disruption.command import ForcefulReason
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Observation
from reconciler.engine.steps import interruption
from reconciler.engine.steps.commands import format_cause
from reconciler.engine.world import World
from reconciler.model.errors import LeaseLostError, ReconcilerError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.cloud import Interruption, InterruptionKind
from reconciler.ports.journal import Intent, Outcome, Verb
from reconciler.ports.progress import EventKind

POLL_INTERVAL_S: Final = 0.2
_ANNOUNCED: Final = (
    InterruptionKind.SPOT_INTERRUPTION,
    InterruptionKind.RESERVATION_INTERRUPTION,
)


class FirstResponse:
    """Taints and drains the nodes that EC2 is about to reclaim, outside the passes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: Observation | None = None
        self._known: set[tuple[str, str]] = set()
        self._responses: dict[str, list[Intent]] = {}

    def set_observation(self, seen: Observation) -> None:
        """Record what the last pass observed: events are checked against it."""
        self._seen = seen

    def listen(self, stop: threading.Event) -> None:
        """Respond to events until ``stop`` is set, or another process acts for the fleet."""
        while not stop.wait(POLL_INTERVAL_S):
            try:
                self.respond()
            except LeaseLostError:
                return
            except ReconcilerError as error:
                self._world.notify(EventKind.RETRYING, str(error))

    def respond(self) -> None:
        """Respond to new events; record the results of earlier responses.

        Raises:
            LeaseLostError: another process acts for the fleet; nothing was done.
        """
        effects = Effects(self._world, "", 0)
        self._record_outcomes(effects)
        for event, claim in self._new_reclaims():
            node = claim.status.node_name
            facts = {"event": event.id}
            why = format_cause(ForcefulReason.INTERRUPTED.value, event.text)
            intents = [
                effects.intent(verb, node, facts, reason=why) for verb in (Verb.TAINT, Verb.DRAIN)
            ]
            effects.begin(intents)
            self._responses[node] = intents
            self._world.calls.start(f"reclaimed {node}", partial(self._vacate, node))

    def _vacate(self, node: str) -> None:
        """Taint a node, and evict the first pods; the passes continue from there."""
        self._world.cluster.taint(node)
        self._world.cluster.drain(node, None, self._world.clock.now())

    def _new_reclaims(self) -> Iterator[tuple[Interruption, NodeClaim]]:
        """Yield announced reclaims without a response so far, with their claims."""
        seen, known = self._seen, self._known
        received = self._world.interruptions.pending_events() if seen is not None else ()
        self._known &= {(event.id, i) for event in received for i in event.instances}
        for event in received:
            if seen is None or event.kind not in _ANNOUNCED:
                continue
            for identity in event.instances:
                claim = interruption.claim_to_vacate(event, identity, seen)
                if claim is None or (event.id, identity) in known:
                    continue
                self._known.add((event.id, identity))
                if claim.status.node_name not in self._responses:
                    yield event, claim

    def _record_outcomes(self, effects: Effects) -> None:
        """Journal the outcomes of the responses that have ended."""
        for node, intents in list(self._responses.items()):
            answer = self._world.calls.answer(f"reclaimed {node}")
            if answer is None:
                continue
            del self._responses[node]
            if answer.error is None:
                effects.finish(intents, Outcome.SUCCEEDED)
            else:
                effects.finish(intents, Outcome.FAILED, str(answer.error))
                self._world.notify(EventKind.FAILED, f"{node}: {answer.error}")
