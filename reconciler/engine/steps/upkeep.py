"""Upkeep of the account: the name tag of a joined node, and deletion of unused launch objects.

Unused launch templates and instance profiles count towards quotas.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from msgspec.structs import replace

from reconciler.engine.effects import Effect, Effects
from reconciler.engine.observation import Observation
from reconciler.engine.steps import lifecycle
from reconciler.model.errors import LeaseLostError, ReconcilerError
from reconciler.model.karpenter.labels import NODECLAIM
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.ports.calls import BRIEFLY_S
from reconciler.ports.cloud import Instance
from reconciler.ports.journal import Verb
from reconciler.ports.progress import EventKind

TAGGED: Final = "karpenter.k8s.aws/tagged"
NAME: Final = "Name"
A_PASS: Final = 20
"""The maximum number of instances tagged in a pass: EC2 allows ten such calls a second."""


def tag_joined_instances(effects: Effects, seen: Observation) -> int:
    """Tag the instances whose nodes have joined; return how many remain for later passes.

    An instance that EC2 does not list is tagged later. The first is tagged alone: if that is
    refused, the other calls would probably fail too, and nothing depends on them.
    """
    due = [
        (claim, instance)
        for claim in seen.claims
        if _is_due(claim) and (instance := seen.instance_of(claim)) is not None
        if not instance.is_going
    ]
    done, calls = [], []
    for claim, instance in due[:A_PASS]:
        tag = _tag(effects, claim, instance)
        if tag is None:
            done.append(_noted(claim))
        else:
            calls.append((claim, tag))
    first, rest = calls[:1], calls[1:]
    for lot in (first, rest):
        tagged = effects.carry_out_all([tag for _, tag in lot], BRIEFLY_S)
        done += [_noted(claim) for (claim, _), is_done in zip(lot, tagged, strict=True) if is_done]
        if not all(tagged):
            break
    if done:
        effects.world.store.put_node_claims(done)
    return max(len(due) - A_PASS, 0)


def _is_due(claim: NodeClaim) -> bool:
    return (
        claim.is_true(lifecycle.REGISTERED)
        and bool(claim.status.node_name)
        and not claim.is_deleting
        and TAGGED not in claim.metadata.annotations
    )


def _tag(effects: Effects, claim: NodeClaim, instance: Instance) -> Effect | None:
    """Return the call that adds the missing tags of an instance, None if it has them."""
    wanted = {NAME: claim.status.node_name, NODECLAIM: claim.name}
    missing = {key: value for key, value in wanted.items() if key not in instance.tags}
    if not missing:
        return None
    intent = effects.intent(Verb.TAG, claim.name, {"instance": instance.id, **missing})
    return [intent], partial(effects.world.compute.tag, instance.id, missing)


def _noted(claim: NodeClaim) -> NodeClaim:
    annotations = {**claim.metadata.annotations, TAGGED: "true"}
    return replace(claim, metadata=replace(claim.metadata, annotations=annotations))


def delete_unused(effects: Effects, classes: Iterable[EC2NodeClass]) -> None:
    """Delete what is unused; a failed call is retried by a later pass."""
    world = effects.world
    try:
        found = world.leftovers.found(classes)
    except LeaseLostError:
        raise
    except ReconcilerError as error:
        world.notify(EventKind.RETRYING, f"cannot check for unused launch templates: {error}")
        return
    for leftover in found:
        facts = {"kind": leftover.kind}
        intent = effects.intent(Verb.DISCARD, leftover.name, facts, reason="Unused")
        if effects.carry_out([intent], partial(world.leftovers.discard, leftover)):
            world.notify(
                EventKind.DISCARDED,
                f"removed unused {leftover.kind.replace('-', ' ')} {leftover.name}",
            )
