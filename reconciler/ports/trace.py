"""The record of how the workload of a fleet changed: batches of changes, one for each pass.

A whole batch lists everything that is there. The batches after it only say what changed, so a
reader begins at a whole one, and everything before it can be removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

import msgspec

from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.pod import PodSpec


class PodClass(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What decisions read of pods that are alike; the ``spec`` names no node.

    ``owner`` is their controller, None if they have none.
    """

    spec: PodSpec
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: OwnerReference | None = None


class PodArrival(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod, by ``namespace/name``, and the id of its class; ``bound`` is None while it waits."""

    pod: str
    pod_class: str = msgspec.field(name="class")
    created: datetime
    bound: datetime | None = None


class NodeArrival(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node of the fleet; ``price`` is in USD an hour, None if unknown."""

    node: str
    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str
    created: datetime
    price: float | None = None


class TraceBatch(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What changed up to ``at``. Removals come before all additions of the batch.

    ``classes`` are the classes by id that no batch has named since the last whole one. ``daemons``
    are the DaemonSets by ``namespace/name``, None where they are as before.
    """

    at: datetime
    is_whole: bool = False
    gone: tuple[str, ...] = ()
    gone_nodes: tuple[str, ...] = ()
    classes: dict[str, PodClass] = {}
    pods: tuple[PodArrival, ...] = ()
    bound: dict[str, datetime] = {}
    nodes: tuple[NodeArrival, ...] = ()
    daemons: dict[str, PodClass] | None = None


class TraceLog(Protocol):
    """The recorded batches of a fleet."""

    def append(self, batch: TraceBatch, forget_before: datetime | None = None) -> None:
        """Add a batch; with a time, remove what no trace from that time on needs.

        Raises:
            StateError: it cannot be written.
            LeaseLostError: another process acts for the fleet.
        """

    def batches(self, since: datetime) -> Iterator[TraceBatch]:
        """Yield the batches from the last whole one at or before ``since``, or from the first.

        Raises:
            StateError: they cannot be read.
        """
