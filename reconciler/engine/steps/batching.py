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
from reconciler.model.decode import decode_json
from reconciler.model.errors import StateError
from reconciler.model.grouping import group_pairs
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.ports.cloud import Instance, Launch
from reconciler.ports.journal import Intent, Verb

BATCH_MAX: Final = 1000
"""The maximum number of instances in one call (aws reference 3.2)."""

LaunchCall = tuple[Intent, Launch]


@dataclass(frozen=True, slots=True)
class BatchedLaunches:
    """The launches that a pass requests: the calls with their intents, and the batches' intents."""

    calls: tuple[LaunchCall, ...]
    batches: tuple[Intent, ...] = ()

    @property
    def intents(self) -> tuple[Intent, ...]:
        """Everything to journal before the first call, the batches first."""
        return (*self.batches, *(intent for intent, _ in self.calls))


def batch_launches(
    effects: Effects, calls: Sequence[tuple[Launch, str]], batch_from: int
) -> BatchedLaunches:
    """Return the calls for the launches, each of which comes with its reason.

    If there are at least ``batch_from`` launches, identical ones are batched, at most ``BATCH_MAX``
    into one call. With fewer launches, or where ``batch_from`` is 0, each has a separate call, and
    its instance has all its tags from the beginning.
    """
    if batch_from == 0 or len(calls) < batch_from:
        return BatchedLaunches(
            tuple(_single_launch(effects, call, reason) for call, reason in calls)
        )
    kinds = group_pairs((_batch_key(call, reason), (call, reason)) for call, reason in calls)
    launches: list[LaunchCall] = []
    batches: list[Intent] = []
    for group in kinds.values():
        for start in range(0, len(group), BATCH_MAX):
            members = group[start : start + BATCH_MAX]
            if len(members) == 1:
                launches.append(_single_launch(effects, *members[0]))
            else:
                batch = _batch_intent(effects, members)
                batches.append(batch)
                launches += [_batch_member(effects, batch, *member) for member in members]
    return BatchedLaunches(tuple(launches), tuple(batches))


def journalled_call(intent: Intent, batches: Mapping[str, Intent]) -> Launch:
    """Return the journalled call of a launch, so that it can be repeated.

    ``batches`` are the intents of batches by id.

    Raises:
        StateError: another program changed the record.
    """
    batch = intent.parameters.get("batch", "")
    try:
        body = batches[batch].parameters["launch"] if batch else intent.parameters["launch"]
        call = decode_json(body, Launch)
        if batch:
            claim = decode_json(intent.parameters["claim"], NodeClaim)
            call = with_fields(call, node_claim=claim)
    except (KeyError, msgspec.MsgspecError) as error:
        what = f"the recorded launch {intent.id} cannot be repeated: it is not one"
        raise StateError(what, remedy="run `reconciler state check`") from error
    return _with_intent(call, intent.id, batch)


def batch_claims(batch: Intent) -> tuple[str, ...]:
    """Return the names of the claims of a batch."""
    return tuple(batch.parameters["claims"].split())


def assign_instances(
    names: Sequence[str], instances: Sequence[Instance], assigned: Mapping[str, str]
) -> dict[str, Instance]:
    """Return the instance of each claim of a batch.

    ``assigned`` are the instances that claims already have, by claim. The others are assigned in
    the order of their launch to the claims in ``names`` that have none.
    """
    by_id = {instance.id: instance for instance in instances}
    own = {name: by_id[assigned[name]] for name in names if assigned.get(name) in by_id}
    taken_ids = frozenset(assigned.values())
    running = (i for i in instances if not i.is_terminating and i.id not in taken_ids)
    free = sorted(running, key=lambda i: (i.launched_at, i.id))
    waiting = [name for name in names if not assigned.get(name)]
    return {**own, **dict(zip(waiting, free, strict=False))}


def _single_launch(effects: Effects, call: Launch, reason: str) -> LaunchCall:
    """Return the intent of a call, and the call with its tags.

    The parameters of the intent hold the call itself, so it can be repeated unchanged after a
    crash, even if git has changed since.
    """
    target = call.node_claim.name
    intent = effects.intent(Verb.LAUNCH, target, {"launch": _encode_launch(call)}, reason=reason)
    return intent, _with_intent(call, intent.id)


def _batch_intent(effects: Effects, members: Sequence[tuple[Launch, str]]) -> Intent:
    """Return the intent of a batch: the request and the claims that it is for."""
    first, reason = members[0]
    claims = [call.node_claim for call, _ in members]
    facts = {"launch": _encode_launch(first), "claims": " ".join(claim.name for claim in claims)}
    return effects.intent(Verb.LAUNCH_BATCH, claims[0].node_pool, facts, reason=reason)


def _batch_member(effects: Effects, batch: Intent, call: Launch, reason: str) -> LaunchCall:
    claim = msgspec.json.encode(call.node_claim, order="sorted").decode()
    facts = {"batch": batch.id, "claim": claim}
    intent = effects.intent(Verb.LAUNCH, call.node_claim.name, facts, reason=reason)
    return intent, _with_intent(call, intent.id, batch.id)


def _with_intent(call: Launch, intent: str, batch: str = "") -> Launch:
    """Return the call with the ids of its intents, one of which becomes a tag of the instance."""
    tags = {**call.tags, INTENT_TAG: batch or intent}
    return with_fields(call, intent=intent, batch=batch, tags=tags)


def _batch_key(call: Launch, reason: str) -> bytes:
    """Return the fields that launches must have in common to be batched.

    That is the complete request except for the claim. Only the names of the requested resources
    count: the amounts determine the options, which are compared themselves.
    """
    claim = call.node_claim
    annotations = {k: v for k, v in claim.metadata.annotations.items() if k != NOMINATED}
    spec = msgspec.structs.replace(claim.spec, resources=type(claim.spec.resources)())
    resources = sorted(claim.spec.resources.requests)
    facts = (reason, claim.metadata.labels, annotations, spec, resources)
    blank = with_fields(call, node_claim=NodeClaim(Metadata()))
    return msgspec.json.encode((facts, blank), order="sorted")


def _encode_launch(call: Launch) -> str:
    return msgspec.json.encode(call, order="sorted").decode()
