"""The state of a simulated cluster that does not follow from its inputs, as it is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

import msgspec

from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.errors import StateError
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod


class NodeRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """A Node that has joined, the instance behind it, and the daemons that run there.

    ``daemons`` maps a DaemonSet (``namespace/name``) to the moment its pod started.
    """

    node: Node
    instance: str
    daemons: dict[str, datetime] = {}


class PodRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """The state of a pod: ``make`` is the hash of its spec, ``leaving`` when it was evicted.

    ``nominated`` is the node where others make room for it. ``name`` is set once a controller has
    created it with another name than in the workloads, for the ``nth`` time.
    """

    born: datetime
    make: str
    node: str = ""
    bound: datetime | None = None
    nominated: str = ""
    leaving: datetime | None = None
    name: str = ""
    nth: int = 0


class EndingPod(msgspec.Struct, rename="camel"):
    """A pod that still terminates on its node: its successor exists, or its workload has none.

    ``pod`` is the key of its pod in the workloads, as that of the successor; ``shown`` is the pod
    as it was there, which an older release did not store.
    """

    pod: str
    record: PodRecord
    shown: Pod = Pod(Metadata())


class ClusterRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """The state of a cluster: nodes and pods by name, the zone of each dynamic volume.

    Pods have the keys of the workloads. ``ending`` are pods that terminate beside them, and
    ``removed`` the instances whose Node was deleted while they still ran. ``templates`` has one pod
    for each ``make``: what a pod was that the workloads no longer have.
    """

    nodes: dict[str, NodeRecord] = {}
    pods: dict[str, PodRecord] = {}
    ending: list[EndingPod] = []
    templates: dict[str, Pod] = {}
    volume_zones: dict[str, str] = {}
    removed: list[str] = []

    def ending_pods(self, workloads: Mapping[str, Pod]) -> list[EndingPod]:
        """Return the pods that terminate, one of an older release as its successor is.

        Without that successor nothing is known of the pod, and it counts as terminated.
        """
        return [
            one if one.shown.metadata.name else EndingPod(one.pod, one.record, workloads[one.pod])
            for one in self.ending
            if one.shown.metadata.name or one.pod in workloads
        ]


def decode_record(content: bytes | None) -> ClusterRecord:
    """Return the stored record, or an empty one.

    Raises:
        StateError: another program changed it.
    """
    if content is None:
        return ClusterRecord()
    try:
        return decode_json(content, ClusterRecord)
    except msgspec.MsgspecError as error:
        raise StateError(
            f"the record of the simulated cluster cannot be read: {describe_mismatch(error)}",
            remedy="run `reconciler state check`",
        ) from error


def encode_record(record: ClusterRecord) -> bytes:
    """Return the record as bytes; equal records give equal bytes."""
    return msgspec.json.encode(record, order="sorted")


def pod_hash(pod: Pod, known: dict[tuple[int, int, int], str]) -> str:
    """Return a hash of everything that defines a pod; pods of one workload share these parts."""
    parts = (pod.spec, pod.metadata.labels, pod.metadata.annotations)
    key = (id(parts[0]), id(parts[1]), id(parts[2]))
    if key not in known:
        text = msgspec.json.encode(parts, order="sorted")
        known[key] = hashlib.sha256(text).hexdigest()[:16]
    return known[key]
