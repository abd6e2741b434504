"""Equal launches of one pass, joined into one CreateFleet.

A batch is an intent of its own, written down in the same breath as those of its NodeClaims. Its
id is the client token of the one call and the tag of every instance that comes of it; each claim
takes one of these instances, and the records say which. Any instance serves any claim of a batch,
so whatever a crash cuts short can be dealt out from what is left: instances that no claim has, to
claims that have none.

A pass is the window in which launches meet: nothing waits for more of them to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Final

import msgspec

from reconciler.engine.effects import Effects
from reconciler.engine.ownership import INTENT_TAG
from reconciler.engine.steps.nomination import NOMINATED
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.ports.cloud import Instance, Launch
from reconciler.ports.journal import Intent, Verb

MOST: Final = 1000
"""How many instances one call asks for at most (aws reference 3.2)."""

Wish = tuple[Intent, Launch]


@dataclass(frozen=True, slots=True)
class BatchedLaunches:
    """What a pass asks of EC2: the calls with their intents, and the intents of the batches."""

    calls: tuple[Wish, ...]
    heads: tuple[Intent, ...] = ()

    @property
    def intents(self) -> tuple[Intent, ...]:
        """Everything to be written down before the first call, the batches first."""
        return (*self.heads, *(intent for intent, _ in self.calls))


def wishes(effects: Effects, calls: Sequence[tuple[Launch, str]], least: int) -> BatchedLaunches:
    """Return how the launches (each with its reason) are asked for.

    From ``least`` launches on, equal ones are joined, at most ``MOST`` into one; below, and where
    ``least`` is 0, each has a call of its own, and its instance all its tags from the first
    moment on.
    """
    if least == 0 or len(calls) < least:
        return BatchedLaunches(tuple(_alone(effects, call, reason) for call, reason in calls))
    kinds: dict[bytes, list[tuple[Launch, str]]] = {}
    for call, reason in calls:
        kinds.setdefault(_kind(call, reason), []).append((call, reason))
    made: list[Wish] = []
    heads: list[Intent] = []
    for alike in kinds.values():
        for start in range(0, len(alike), MOST):
            lot = alike[start : start + MOST]
            if len(lot) == 1:
                made.append(_alone(effects, *lot[0]))
            else:
                head = _head(effects, lot)
                heads.append(head)
                made += [_member(effects, head, *one) for one in lot]
    return BatchedLaunches(tuple(made), tuple(heads))


def call_of(intent: Intent, heads: Mapping[str, Intent]) -> Launch:
    """Return the call of a launch as it was written down, for its repetition.

    ``heads`` are the intents of batches by id.
    """
    batch = intent.parameters.get("batch", "")
    body = heads[batch].parameters["launch"] if batch else intent.parameters["launch"]
    call = msgspec.json.decode(body, type=Launch)
    if batch:
        claim = msgspec.json.decode(intent.parameters["claim"], type=NodeClaim)
        call = with_fields(call, node_claim=claim)
    return _asked(call, intent.id, batch)


def claims_of(head: Intent) -> tuple[str, ...]:
    """Return the names of the claims that a batch was made for."""
    return tuple(head.parameters["claims"].split())


def dealt(
    names: Sequence[str], instances: Sequence[Instance], held: Mapping[str, str]
) -> dict[str, Instance]:
    """Return which claim has which instance of a batch.

    ``held`` are the instances that claims have already, by claim; the others go in the order of
    their launch to those of ``names`` that have none.
    """
    shown = {instance.id: instance for instance in instances}
    mine = {name: shown[held[name]] for name in names if held.get(name) in shown}
    taken = frozenset(held.values())
    living = (i for i in instances if not i.is_going and i.id not in taken)
    free = sorted(living, key=lambda i: (i.launched_at, i.id))
    waiting = [name for name in names if not held.get(name)]
    return {**mine, **dict(zip(waiting, free, strict=False))}


def _alone(effects: Effects, call: Launch, reason: str) -> Wish:
    """Return the intent to make a call, and the call as it is made.

    The intent's parameters hold the call itself: after a crash it can be repeated as it was, even
    when git has moved on since.
    """
    target = call.node_claim.name
    intent = effects.intent(Verb.LAUNCH, target, {"launch": _text(call)}, reason=reason)
    return intent, _asked(call, intent.id)


def _head(effects: Effects, lot: Sequence[tuple[Launch, str]]) -> Intent:
    """Return the intent of a batch: what it asks for, and for whom."""
    first, reason = lot[0]
    claims = [call.node_claim for call, _ in lot]
    facts = {"launch": _text(first), "claims": " ".join(claim.name for claim in claims)}
    return effects.intent(Verb.LAUNCH_BATCH, claims[0].node_pool, facts, reason=reason)


def _member(effects: Effects, head: Intent, call: Launch, reason: str) -> Wish:
    claim = msgspec.json.encode(call.node_claim, order="sorted").decode()
    facts = {"batch": head.id, "claim": claim}
    intent = effects.intent(Verb.LAUNCH, call.node_claim.name, facts, reason=reason)
    return intent, _asked(call, intent.id, head.id)


def _asked(call: Launch, intent: str, batch: str = "") -> Launch:
    """Return the call under the ids of its intents, one of which its instance bears as a tag."""
    tags = {**call.tags, INTENT_TAG: batch or intent}
    return with_fields(call, intent=intent, batch=batch, tags=tags)


def _kind(call: Launch, reason: str) -> bytes:
    """Return what launches must have in common to be one call.

    That is everything that a request says, and not whose it is. Of what a claim asks for only the
    names count: how much of it has decided the options, which are compared themselves.
    """
    claim = call.node_claim
    annotations = {k: v for k, v in claim.metadata.annotations.items() if k != NOMINATED}
    spec = msgspec.structs.replace(claim.spec, resources=type(claim.spec.resources)())
    asked = sorted(claim.spec.resources.requests)
    facts = (reason, claim.metadata.labels, annotations, spec, asked)
    blank = with_fields(call, node_claim=NodeClaim(Metadata()))
    return msgspec.json.encode((facts, blank), order="sorted")


def _text(call: Launch) -> str:
    return msgspec.json.encode(call, order="sorted").decode()
