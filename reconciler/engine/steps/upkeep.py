"""Deletion of unused launch templates and instance profiles, which count towards quotas."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from reconciler.engine.effects import Effects
from reconciler.model.errors import LeaseLostError, ReconcilerError
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.ports.journal import Verb
from reconciler.ports.progress import EventKind


def advance(effects: Effects, classes: Iterable[EC2NodeClass]) -> None:
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
