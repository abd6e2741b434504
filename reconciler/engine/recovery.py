"""After a crash, or an answer that never came: look first, then decide.

An intent without an outcome may have had its effect or not. A launch is looked up at EC2 by the
tag that bears its id; what is not there is asked for again under the same client token, so that
one intent never has two instances. Every other verb is repeated by the next pass anyhow, so its
doubt is simply written off.
"""

from __future__ import annotations

import msgspec

from reconciler.engine import provision
from reconciler.engine.effects import Effects
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.ports import Instance, JournalEntry, Launch, LaunchAnswer, Outcome, Verb


def recover(effects: Effects, types: provision.TypeLookup) -> None:
    """Settle every intent that is in doubt, as far as the world answers."""
    doubtful = effects.world.journal.in_doubt()
    draining = _draining(effects) if doubtful else frozenset()
    for entry in doubtful:
        if entry.intent.verb is Verb.LAUNCH:
            _settle_launch(effects, entry, types)
        elif entry.intent.verb is not Verb.DRAIN:
            effects.finish([entry.intent], Outcome.FAILED, "interrupted; decided again")
        elif entry.intent.target not in draining:
            effects.finish([entry.intent], Outcome.SUCCEEDED, "the node is gone")


def _draining(effects: Effects) -> frozenset[str]:
    """Return the nodes that are being drained: their doubt is that they are not empty yet."""
    claims = effects.world.store.node_claims()
    return frozenset(c.status.node_name for c in claims if c.metadata.deletion_timestamp)


def _settle_launch(effects: Effects, entry: JournalEntry, types: provision.TypeLookup) -> None:
    world, intent = effects.world, entry.intent
    body = msgspec.json.decode(intent.parameters["launch"], type=Launch)
    call = provision.with_intent(body, intent.id)
    try:
        found = list(world.compute.find(intent.id))
    except TransientCloudError as error:
        world.tell("Retrying", str(error), node_claim=intent.target)
        return
    answer: LaunchAnswer | Exception
    alive = [i for i in found if not i.is_going]
    if alive:
        answer = LaunchAnswer(_oldest(alive))
        world.tell("Recovered", f"{intent.target} was launched before", node_claim=intent.target)
    elif found:
        answer = CloudError("its instance was launched and terminated again", where="EC2")
    else:
        world.store.put_node_claims([call.node_claim])
        (answer,) = world.compute.launch([call])
    provision.settle(effects, intent, call, answer, types)


def _oldest(instances: list[Instance]) -> Instance:
    """Return the one to keep where a server ignored the client token; the rest are orphans."""
    return min(instances, key=lambda i: (i.launched_at, i.id))
