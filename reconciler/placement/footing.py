"""The inputs of a placement result, as a value that can be compared with a later one.

After a change of one pod or node, nearly every evaluation of consolidation is the same as before:
existing nodes without free capacity for any of the pods do not affect the result, whatever happens
on them. Two evaluations with the same footing have the same result, apart from the names of new
nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.resources import Resources
from reconciler.model.settings import Settings
from reconciler.placement.nodes.daemons import Daemon
from reconciler.placement.nodes.existing import Nodes
from reconciler.placement.pods.shape import Shape
from reconciler.placement.question import LaunchPool

HOSTS_MAX: Final = 50
"""The maximum number of nodes with room in a footing: comparing more costs as much as
evaluating."""


class Host(msgspec.Struct, frozen=True):
    """An existing node that has room for some of the pods; ``guarded`` takes only some of them."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    left: Resources
    is_initialized: bool
    guarded: bool


class Footing(msgspec.Struct, frozen=True):
    """The pods, the nodes with room for any of them, and what new nodes follow from."""

    pods: tuple[Pod, ...]
    hosts: tuple[Host, ...]
    limits: Mapping[str, Resources]
    pools: tuple[LaunchPool, ...]
    daemons: tuple[Daemon, ...]
    settings: Settings


def is_plain(shape: Shape) -> bool:
    """Return whether other pods matter to pods of a shape only through the room that they take."""
    if shape.unreadable is not None or shape.ports or shape.repels:
        return False
    if shape.volume_demands or shape.volumes.attached:
        return False
    return not any(step.rules for step in shape.steps)


def hosts_for(
    shapes: Iterable[Shape], nodes: Nodes, without: Collection[str], guarded: int
) -> tuple[Host, ...] | None:
    """Return the open nodes with enough CPU and memory for the least of the pods, in order.

    None if there are too many.
    """
    wanted = list(shapes)
    cpu, memory = min(s.cpu for s in wanted), min(s.memory for s in wanted)
    found: list[Host] = []
    for index, (free_cpu, free_memory) in enumerate(zip(nodes.cpu, nodes.memory, strict=True)):
        if free_cpu < cpu or free_memory < memory or not nodes.open >> index & 1:
            continue
        row, is_guarded = nodes.rows[index], bool(guarded >> index & 1)
        if row.name in without:
            continue
        if len(found) == HOSTS_MAX:
            return None
        host = Host(row.name, row.labels, row.taints, row.left, row.is_initialized, is_guarded)
        found.append(host)
    return tuple(found)
