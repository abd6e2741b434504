"""Discovered capacity: the memory that nodes reported, by image and instance type.

The memory that the hypervisor reserves is not published, so a catalog can only estimate it. A
registered node reports its actual memory, which then applies to all nodes of its type that boot the
same images (Karpenter's discovered-capacity cache). The smallest value seen is used until sixty
days after it was last confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

import msgspec

from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.resources import MEMORY, parse_resources
from reconciler.observed.state import StateNode

REMEMBERED_FOR: Final = timedelta(days=60)


def images_key(node_class: EC2NodeClass) -> str:
    """Return a key for the images of a node class, empty if they are not known."""
    amis = node_class.status.amis
    if not amis:
        return ""
    facts = sorted((ami.id, repr(ami.requirements)) for ami in amis)
    return sha256(repr(facts).encode()).hexdigest()[:16]


def update_discoveries(
    nodes: Iterable[StateNode],
    classes: Mapping[str, EC2NodeClass],
    known: Discoveries,
    now: datetime,
) -> Discoveries:
    """Return the discovered memory, updated with the current nodes.

    A node counts once it has registered, while its image is one of its class. An amount above the
    known one is ignored: the smallest of several hosts is what a pod can rely on.
    """
    found = {
        key: {n: m for n, m in types.items() if now - m.seen_at < REMEMBERED_FOR}
        for key, types in known.items()
    }
    for node in sorted(nodes, key=lambda n: n.name):
        seen = _reported_memory(node, classes)
        if seen is None:
            continue
        key, name, amount = seen
        types = found.setdefault(key, {})
        before = types.get(name)
        if before is None or amount <= before.amount:
            types[name] = Memory(amount, now)
    return {key: types for key, types in sorted(found.items()) if types}


def discovered_memory(node_class: EC2NodeClass, known: Discoveries) -> tuple[tuple[str, int], ...]:
    """Return the discovered memory of a class's nodes, by instance type, sorted."""
    if not known:
        return ()
    types = known.get(images_key(node_class), {})
    return tuple(sorted((name, memory.amount) for name, memory in types.items()))


def _reported_memory(
    node: StateNode, classes: Mapping[str, EC2NodeClass]
) -> tuple[str, str, int] | None:
    """Return the images, instance type and memory that a node reports, or None."""
    if node.node is None or node.claim is None or not node.is_registered or node.is_deleting:
        return None
    node_class = classes.get(node.claim.spec.node_class_ref.name)
    name = node.labels.get(INSTANCE_TYPE, "")
    if node_class is None or not name:
        return None
    if node.claim.status.image_id not in {ami.id for ami in node_class.status.amis}:
        return None
    reported = node.node.status.capacity.get(MEMORY, 0)
    amount = parse_resources({MEMORY: reported})[MEMORY]
    return (images_key(node_class), name, amount) if amount > 0 else None


class Memory(msgspec.Struct, frozen=True):
    """Memory of a node in thousandths of a byte, and when a node last confirmed it."""

    amount: int
    seen_at: datetime


Discoveries = Mapping[str, Mapping[str, Memory]]
"""Memory by the key of a class's images, then by instance type."""
