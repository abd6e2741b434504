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
from reconciler.ports.calls import SHORT_WAIT_S
from reconciler.ports.cloud import Instance
from reconciler.ports.journal import Verb
from reconciler.ports.progress import EventKind

TAGGED: Final = "karpenter.k8s.aws/tagged"
NAME: Final = "Name"
TAGGED_PER_PASS_MAX: Final = 20
"""The maximum number of instances tagged in a pass: EC2 allows ten such calls a second."""


def _untagged(seen: Observation) -> list[tuple[NodeClaim, Instance]]:
    """Return the claims whose nodes have joined, with the instances that are to be tagged."""
    return [
        (claim, instance)
        for claim in seen.claims
        if _needs_tags(claim) and (instance := seen.instance_of(claim)) is not None
        if not instance.is_terminating
    ]


def tag_joined_instances(effects: Effects, seen: Observation) -> int:
    """Tag the instances whose nodes have joined; return how many remain for later passes.

    An instance that EC2 does not list is tagged later. The first is tagged alone: if that is
    refused, the other calls would probably fail too, and nothing depends on them.
    """
    untagged = _untagged(seen)
    done, calls = [], []
    for claim, instance in untagged[:TAGGED_PER_PASS_MAX]:
        tag = _tag_call(effects, claim, instance)
        if tag is None:
            done.append(_mark_tagged(claim))
        else:
            calls.append((claim, tag))
    first, rest = calls[:1], calls[1:]
    for batch in (first, rest):
        tagged = effects.execute_all([tag for _, tag in batch], SHORT_WAIT_S)
        done += [
            _mark_tagged(claim)
            for (claim, _), is_done in zip(batch, tagged, strict=True)
            if is_done
        ]
        if not all(tagged):
            break
    if done:
        effects.world.store.put_node_claims(done)
    return max(len(untagged) - TAGGED_PER_PASS_MAX, 0)


def _needs_tags(claim: NodeClaim) -> bool:
    return (
        claim.is_true(lifecycle.REGISTERED)
        and bool(claim.status.node_name)
        and not claim.is_deleting
        and TAGGED not in claim.metadata.annotations
    )


def _tag_call(effects: Effects, claim: NodeClaim, instance: Instance) -> Effect | None:
    """Return the call that adds the missing tags of an instance, None if it has them."""
    tags = {NAME: claim.status.node_name, NODECLAIM: claim.name}
    missing = {key: value for key, value in tags.items() if key not in instance.tags}
    if not missing:
        return None
    intent = effects.intent(Verb.TAG, claim.name, {"instance": instance.id, **missing})
    return [intent], partial(effects.world.compute.tag, instance.id, missing)


def _mark_tagged(claim: NodeClaim) -> NodeClaim:
    annotations = {**claim.metadata.annotations, TAGGED: "true"}
    return replace(claim, metadata=replace(claim.metadata, annotations=annotations))


def delete_unused(effects: Effects, classes: Iterable[EC2NodeClass]) -> None:
    """Delete what is unused; a failed call is retried by a later pass."""
    world = effects.world
    try:
        found = world.unused_resources.find_unused(classes)
    except LeaseLostError:
        raise
    except ReconcilerError as error:
        world.notify(EventKind.RETRYING, f"cannot check for unused launch templates: {error}")
        return
    for resource in found:
        facts = {"kind": resource.kind}
        intent = effects.intent(Verb.DISCARD, resource.name, facts, reason="Unused")
        if effects.execute([intent], partial(world.unused_resources.delete, resource)):
            world.notify(
                EventKind.DISCARDED,
                f"removed unused {resource.kind.replace('-', ' ')} {resource.name}",
            )
