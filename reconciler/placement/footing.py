"""What the answer about some pods follows from, as a value that can be compared with a later one.

After a change of one pod or node nearly every question of consolidation is the same as before:
existing nodes without room for any of the pods take no part in the answer, whatever happens on
them. Two questions with the same footing have the same answer, apart from the names of new nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from reconciler.catalog.table import indices
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import Resources
from reconciler.model.settings import Settings
from reconciler.placement.nodes.daemons import Daemon
from reconciler.placement.nodes.existing import Nodes
from reconciler.placement.pods.shape import Shape
from reconciler.placement.question import LaunchPool

HOSTS_MAX: Final = 50
"""The maximum number of nodes with room in a footing: comparing more costs as much as asking."""


class Host(msgspec.Struct, frozen=True):
    """An existing node that takes some of the pods."""

    name: str
    left: Resources
    is_initialized: bool


class Footing(msgspec.Struct, frozen=True):
    """The pods, the nodes that take any of them, and what new nodes follow from.

    ``takers`` has the nodes that take the pods of each shape at each step of its preferences, as
    bits over ``hosts``.
    """

    pods: tuple[Pod, ...]
    hosts: tuple[Host, ...]
    takers: tuple[int, ...]
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


def takers_of(shape: Shape, nodes: Nodes) -> list[int]:
    """Return the nodes that take a pod of a plain shape at each step of its preferences."""
    room = nodes.open & nodes.with_room(shape)
    return [room & nodes.suited(step.demand, step.tolerations) for step in shape.steps]


def hosts_of(
    takers: Sequence[int], nodes: Nodes, known: dict[int, Host]
) -> tuple[tuple[Host, ...], tuple[int, ...]] | None:
    """Return the nodes of these sets in order, and the sets as bits over them.

    ``known`` has the hosts of earlier questions. None if there are too many.
    """
    every = 0
    for mask in takers:
        every |= mask
    if every.bit_count() > HOSTS_MAX:
        return None
    order = indices(every)
    for index in order:
        if index not in known:
            row = nodes.rows[index]
            known[index] = Host(row.name, row.left, row.is_initialized)
    whole = (1 << len(order)) - 1
    return tuple(known[index] for index in order), tuple(
        whole if mask == every else _over(order, mask) for mask in takers
    )


def _over(order: Iterable[int], mask: int) -> int:
    """Return a set of nodes as bits over some of them."""
    found = 0
    for position, index in enumerate(order):
        found |= (mask >> index & 1) << position
    return found
