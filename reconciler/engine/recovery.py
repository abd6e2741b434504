"""After a crash, or an answer that never came: look first, then decide.

An intent without an outcome may have had its effect or not. A launch is looked up at EC2 by the
tag that bears its id; what is not there is asked for again under the same client token, so that
one intent never has two instances. Every other verb is repeated by the next pass anyhow, so its
doubt is simply written off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from reconciler.engine import lifecycle, provision
from reconciler.engine.effects import Effects
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.model.nodeclaim import NodeClaim
from reconciler.ports import Instance, Intent, JournalEntry, Launch, LaunchAnswer, Outcome, Verb

LAG: Final = timedelta(seconds=5)
"""How long EC2 may take to list an instance: before that, «not there» is no reason to ask again.

A server that forgets or ignores client tokens would launch a second one.
"""


def recover(effects: Effects, types: provision.TypeLookup) -> None:
    """Settle every intent that is in doubt, as far as the world answers."""
    doubtful = effects.world.journal.in_doubt()
    draining = _draining(effects) if doubtful else frozenset()
    launches = []
    for entry in doubtful:
        if entry.intent.verb is Verb.LAUNCH:
            launches.append(entry)
        elif entry.intent.verb is not Verb.DRAIN:
            effects.finish([entry.intent], Outcome.FAILED, "interrupted; decided again")
        elif entry.intent.target not in draining:
            effects.finish([entry.intent], Outcome.SUCCEEDED, "the node is gone")
    claims = {claim.name: claim for claim in effects.world.store.node_claims()}
    _settle_launches(effects, launches, claims, types)
    _forget_unasked(effects, launches, claims)


def _draining(effects: Effects) -> frozenset[str]:
    """Return the nodes that are being drained: their doubt is that they are not empty yet."""
    claims = effects.world.store.node_claims()
    return frozenset(c.status.node_name for c in claims if c.metadata.deletion_timestamp)


def _settle_launches(
    effects: Effects,
    entries: Sequence[JournalEntry],
    claims: Mapping[str, NodeClaim],
    types: provision.TypeLookup,
) -> None:
    """Settle what EC2 shows of the launches in doubt, and ask again for what it does not.

    Their claims are recorded first of all, so that nothing else is launched in their place
    whatever EC2 answers now.
    """
    world, again = effects.world, []
    calls = [(entry.intent, _call_of(entry.intent)) for entry in entries]
    unrecorded = [
        lifecycle.asked(call.node_claim, intent.at)
        for intent, call in calls
        if intent.target not in claims
    ]
    if unrecorded:
        world.store.put_node_claims(unrecorded)
    for intent, call in calls:
        try:
            answer = _found(world.compute.find(intent.id))
        except TransientCloudError as error:
            world.tell("Retrying", str(error), node_claim=intent.target)
            continue
        if answer is not None:
            if isinstance(answer, LaunchAnswer):
                message = f"{intent.target} was launched before"
                world.tell("Recovered", message, node_claim=intent.target)
            provision.settle(effects, intent, call, answer, types)
        elif _may_ask(effects, intent, claims.get(intent.target)):
            again.append((intent, call))
    provision.ask(effects, again, types)


def _call_of(intent: Intent) -> Launch:
    body = msgspec.json.decode(intent.parameters["launch"], type=Launch)
    return provision.with_intent(body, intent.id)


def _found(instances: Sequence[Instance]) -> LaunchAnswer | Exception | None:
    """Return what the instances of an intent say of its launch; None where there are none.

    Where a server ignored the client token the oldest is kept, and the rest are orphans.
    """
    alive = [instance for instance in instances if not instance.is_going]
    if alive:
        return LaunchAnswer(min(alive, key=lambda i: (i.launched_at, i.id)))
    if instances:
        return CloudError("its instance was launched and terminated again", where="EC2")
    return None


def _may_ask(effects: Effects, intent: Intent, claim: NodeClaim | None) -> bool:
    """Return whether EC2 was asked so long ago that it would show an instance by now."""
    last = (lifecycle.asked_at(claim) if claim is not None else None) or intent.at
    if effects.world.clock.now() - last >= LAG:
        return True
    message = f"whether EC2 has launched {intent.target} already"
    effects.world.tell("Looking", message, node_claim=intent.target)
    return False


def _forget_unasked(
    effects: Effects, launches: Sequence[JournalEntry], claims: Mapping[str, NodeClaim]
) -> None:
    """Forget the claims without an instance for which no launch is in doubt: none will come."""
    world = effects.world
    asked_for = {entry.intent.target for entry in launches}
    for claim in claims.values():
        if not claim.status.provider_id and claim.name not in asked_for:
            world.store.forget_node_claim(claim.name, world.clock.now(), "it was never launched")
            world.tell("Failed", f"{claim.name} was never launched", node_claim=claim.name)
