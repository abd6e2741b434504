"""The state of a simulated cluster: all that does not follow from EC2 and the workloads."""

from __future__ import annotations

from datetime import datetime

import msgspec

from reconciler.model.kubernetes.node import Node


class NodeRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """A Node that has joined, the instance behind it, and the daemons that run there.

    ``daemons`` maps a DaemonSet (``namespace/name``) to the moment its pod started.
    """

    node: Node
    instance: str
    daemons: dict[str, datetime] = {}


class PodRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """Where a pod is: ``make`` tells its spec from another one, ``leaving`` that it was evicted."""

    born: datetime
    make: str
    node: str = ""
    bound: datetime | None = None
    leaving: datetime | None = None


class ClusterRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """Everything: nodes by name, pods by ``namespace/name``, the zone of each dynamic volume.

    ``removed`` are the instances whose Node was deleted while they still ran.
    """

    nodes: dict[str, NodeRecord] = {}
    pods: dict[str, PodRecord] = {}
    volume_zones: dict[str, str] = {}
    removed: list[str] = []


def decoded(content: bytes | None) -> ClusterRecord:
    """Return the record that was kept, or an empty one."""
    if content is None:
        return ClusterRecord()
    return msgspec.json.decode(content, type=ClusterRecord)


def encoded(record: ClusterRecord) -> bytes:
    """Return the record as bytes; the same record gives the same bytes."""
    return msgspec.json.encode(record, order="sorted")
