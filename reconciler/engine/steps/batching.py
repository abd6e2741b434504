"""Identical launches of one pass, batched into one CreateFleet call.

A batch has a separate intent, which is journalled together with those of its NodeClaims. Its id is
the client token of the call and a tag of every instance that the call launches. Each claim takes
one of these instances, and the records say which. Any instance of a batch fits any of its claims,
so a crash is repaired by assigning the instances without a claim to the claims without an instance.

Only launches of the same pass are batched: nothing waits for more of them.
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
"""The maximum number of instances in one call (aws reference 3.2)."""

LaunchCall = tuple[Intent, Launch]


@dataclass(frozen=True, slots=True)
class BatchedLaunches:
    """The launches that a pass requests: the calls with their intents, and the batches' intents."""

    calls: tuple[LaunchCall, ...]
    heads: tuple[Intent, ...] = ()

    @property
    def intents(self) -> tuple[Intent, ...]:
        """Everything to journal before the first call, the batches first."""
        return (*self.heads, *(intent for intent, _ in self.calls))


def batch(effects: Effects, calls: Sequence[tuple[Launch, str]], least: int) -> BatchedLaunches:
    """Return the calls for the launches, each of which comes with its reason.

    If there are at least ``least`` launches, identical ones are batched, at most ``MOST`` into one
    call. With fewer launches, or where ``least`` is 0, each has a separate call, and its instance
    has all its tags from the beginning.
    """
    if least == 0 or len(calls) < least:
        return BatchedLaunches(tuple(_alone(effects, call, reason) for call, reason in calls))
    kinds: dict[bytes, list[tuple[Launch, str]]] = {}
    for call, reason in calls:
        kinds.setdefault(_kind(call, reason), []).append((call, reason))
    made: list[LaunchCall] = []
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
    """Return the journalled call of a launch, so that it can be repeated.

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
    """Return the names of the claims of a batch."""
    return tuple(head.parameters["claims"].split())


def dealt(
    names: Sequence[str], instances: Sequence[Instance], held: Mapping[str, str]
) -> dict[str, Instance]:
    """Return the instance of each claim of a batch.

    ``held`` are the instances that claims already have, by claim. The others are assigned in the
    order of their launch to the claims in ``names`` that have none.
    """
    shown = {instance.id: instance for instance in instances}
    mine = {name: shown[held[name]] for name in names if held.get(name) in shown}
    taken = frozenset(held.values())
    living = (i for i in instances if not i.is_going and i.id not in taken)
    free = sorted(living, key=lambda i: (i.launched_at, i.id))
    waiting = [name for name in names if not held.get(name)]
    return {**mine, **dict(zip(waiting, free, strict=False))}


def _alone(effects: Effects, call: Launch, reason: str) -> LaunchCall:
    """Return the intent of a call, and the call with its tags.

    The parameters of the intent hold the call itself, so it can be repeated unchanged after a
    crash, even if git has changed since.
    """
    target = call.node_claim.name
    intent = effects.intent(Verb.LAUNCH, target, {"launch": _text(call)}, reason=reason)
    return intent, _asked(call, intent.id)


def _head(effects: Effects, lot: Sequence[tuple[Launch, str]]) -> Intent:
    """Return the intent of a batch: the request and the claims that it is for."""
    first, reason = lot[0]
    claims = [call.node_claim for call, _ in lot]
    facts = {"launch": _text(first), "claims": " ".join(claim.name for claim in claims)}
    return effects.intent(Verb.LAUNCH_BATCH, claims[0].node_pool, facts, reason=reason)


def _member(effects: Effects, head: Intent, call: Launch, reason: str) -> LaunchCall:
    claim = msgspec.json.encode(call.node_claim, order="sorted").decode()
    facts = {"batch": head.id, "claim": claim}
    intent = effects.intent(Verb.LAUNCH, call.node_claim.name, facts, reason=reason)
    return intent, _asked(call, intent.id, head.id)


def _asked(call: Launch, intent: str, batch: str = "") -> Launch:
    """Return the call with the ids of its intents, one of which becomes a tag of the instance."""
    tags = {**call.tags, INTENT_TAG: batch or intent}
    return with_fields(call, intent=intent, batch=batch, tags=tags)


def _kind(call: Launch, reason: str) -> bytes:
    """Return the fields that launches must have in common to be batched.

    That is the whole request apart from the claim. Of the resources that a claim requests only the
    names count: the amounts have decided the options, which are compared themselves.
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
