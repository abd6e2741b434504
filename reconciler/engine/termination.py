"""Taking nodes away: taint, drain, terminate, and forget once EC2 says they are gone.

Each pass moves every claim that is on its way out as far as it goes now; nothing waits. A node is
terminated only after a look that shows it both tainted and empty, so that a pod bound just before
the taint is not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from reconciler.engine import lifecycle
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Observation
from reconciler.model.labels import DISRUPTED_TAINT
from reconciler.model.node import Node
from reconciler.model.nodeclaim import NodeClaim
from reconciler.ports import Instance, Outcome, Verb

CLAIM_TAG = "karpenter.sh/nodeclaim"
INTENT_TAG = "reconciler/intent"

ORPHAN_AGE = timedelta(seconds=30)
"""An instance younger than this may be one whose launch is being written down just now."""


def advance(effects: Effects, seen: Observation) -> None:
    """Move every claim that is being deleted as far as it goes now."""
    world, nodes = effects.world, seen.nodes()
    alive = {i.provider_id: i for i in seen.instances if i.state != "terminated"}
    doomed: list[tuple[NodeClaim, Instance]] = []
    for claim in seen.claims:
        if claim.metadata.deletion_timestamp is None:
            continue
        if not claim.status.provider_id:
            world.store.forget_node_claim(claim.name, seen.at, "deleted before it was launched")
            continue
        instance = alive.get(claim.status.provider_id)
        node = nodes.get(claim.status.provider_id)
        if instance is None:
            _forget(effects, claim, node)
        elif not instance.is_going and _is_empty(effects, claim, node, seen):
            doomed.append((claim, instance))
    if doomed and terminate(effects, [(c.name, i, _reason(c)) for c, i in doomed]):
        world.store.put_node_claims(
            [lifecycle.with_condition(c, "InstanceTerminating", "True", seen.at) for c, _ in doomed]
        )


def collect(effects: Effects, seen: Observation) -> None:
    """Delete what the world has left over.

    Claims whose instance somebody else terminated are let go, claims whose node never joined are
    given up, and instances that a launch in our journal made and no claim has are terminated. An
    instance that our journal does not know is none of ours to end: ``adoption.py`` takes it in.
    """
    world = effects.world
    changed = []
    for claim in seen.claims:
        if claim.metadata.deletion_timestamp is not None:
            continue
        if lifecycle.vanished(claim, seen.instances, seen.at):
            world.tell("Vanished", f"the instance of {claim.name} is gone", node_claim=claim.name)
        elif lifecycle.never_registered(claim, seen.at):
            world.tell("Failed", f"{claim.name} never joined the cluster", node_claim=claim.name)
        else:
            continue
        changed.append(lifecycle.deleted(claim, seen.at))
    if changed:
        world.store.put_node_claims(changed)
    left_over = [i for i in strangers(seen) if world.journal.entry(i.tags.get(INTENT_TAG, ""))]
    if left_over:
        terminate(effects, [(i.tags.get(CLAIM_TAG, i.id), i, "Orphaned") for i in left_over])


def strangers(seen: Observation) -> list[Instance]:
    """Return the living instances of our fleet that no claim has, once old enough to be sure."""
    known = {c.status.provider_id for c in seen.claims}
    return [
        i
        for i in sorted(seen.instances, key=lambda i: i.id)
        if i.provider_id not in known and not i.is_going and seen.at - i.launched_at >= ORPHAN_AGE
    ]


def _is_empty(effects: Effects, claim: NodeClaim, node: Node | None, seen: Observation) -> bool:
    """Ask the pods of a node to leave; return whether it may be terminated now."""
    if node is None:
        return True
    world, since = effects.world, str(claim.metadata.deletion_timestamp)
    tainted = any(t.key == DISRUPTED_TAINT for t in node.spec.taints)
    if not tainted:
        taint = effects.intent(Verb.TAINT, node.name, {"since": since}, reason=_reason(claim))
        effects.carry_out([taint], lambda: world.cluster.taint(node.name))
    drain = effects.intent(Verb.DRAIN, node.name, {"since": since}, reason=_reason(claim))
    world.journal.begin([drain])
    remaining = world.cluster.drain(node.name, lifecycle.drain_deadline(claim), seen.at)
    if remaining:
        pods = f"{remaining} pod{'s' if remaining > 1 else ''}"
        world.tell("Draining", f"{node.name} waits for {pods} to leave", node_claim=claim.name)
        return False
    if tainted:
        effects.finish([drain], Outcome.SUCCEEDED)
    return tainted


def _forget(effects: Effects, claim: NodeClaim, node: Node | None) -> None:
    world = effects.world
    if node is not None:
        gone = effects.intent(Verb.DELETE_NODE, node.name, reason=_reason(claim))
        effects.carry_out([gone], lambda: world.cluster.delete_node(node.name))
    world.store.forget_node_claim(claim.name, world.clock.now(), "the instance is gone")
    world.tell("Terminated", f"{claim.name} is gone", node_claim=claim.name)


def _reason(claim: NodeClaim) -> str:
    """Return why the claim goes, as its command said."""
    known = claim.condition("DisruptionReason")
    return known.reason if known is not None else ""


def terminate(effects: Effects, doomed: Sequence[tuple[str, Instance, str]]) -> bool:
    """Begin to terminate instances (claim, instance, reason); return whether it began.

    Each has an intent of its own in the journal, and all go in one call.
    """
    intents = [
        effects.intent(Verb.TERMINATE, claim, {"instance": instance.id}, reason=reason)
        for claim, instance, reason in doomed
    ]
    ids = [instance.id for _, instance, _ in doomed]
    return effects.carry_out(intents, lambda: effects.world.compute.terminate(ids))
