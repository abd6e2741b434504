"""A snapshot of a cluster, as ``kubectl get … -A -o json`` prints it, decoded in one pass.

The items of a List are first cut apart without looking inside (``msgspec.Raw``), then each is
decoded straight into the Struct of its kind: fields that no decision reads are never built.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from reconciler.model.decode import decode, decode_json, describe_mismatch, expect_values
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.errors import UnreadableError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.capacitybuffer import (
    CapacityBuffer,
    Deployment,
    ReplicaSet,
    StatefulSet,
    StoredTemplate,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PriorityClass,
    ReplicationController,
    Service,
    StorageClass,
)
from reconciler.model.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from reconciler.model.kubernetes.metadata import HasMetadata
from reconciler.model.kubernetes.node import CSINode, Node
from reconciler.model.kubernetes.objects import WorkloadObjects
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.fingerprint import Pods
from reconciler.observed.isolation import (
    IsolatedObject,
    expect_size,
    isolate_invalid,
    isolate_invalid_live,
    isolate_undecoded,
    name_in,
)
from reconciler.observed.positions import (
    CAPTURE,
    SnapshotPlace,
    SnapshotText,
    expect_plain,
    expect_utf8,
    json_error_position,
    no_list_error,
    yaml_error_position,
)

_STORED: Final[dict[str, tuple[Any, str]]] = {
    "Node": (Node, "nodes"),
    "NodeClaim": (NodeClaim, "node_claims"),
    "Pod": (Pod, "pods"),
    "DaemonSet": (DaemonSet, "daemon_sets"),
    "PodDisruptionBudget": (PodDisruptionBudget, "pod_disruption_budgets"),
    "PersistentVolumeClaim": (PersistentVolumeClaim, "volume_claims"),
    "PersistentVolume": (PersistentVolume, "volumes"),
    "StorageClass": (StorageClass, "storage_classes"),
    "CSINode": (CSINode, "csi_nodes"),
    "DeviceClass": (DeviceClass, "device_classes"),
    "ResourceClaim": (ResourceClaim, "resource_claims"),
    "ResourceClaimTemplate": (ResourceClaimTemplate, "claim_templates"),
    "ResourceSlice": (ResourceSlice, "resource_slices"),
    "Namespace": (Namespace, "namespaces"),
    "PriorityClass": (PriorityClass, "priority_classes"),
    "CapacityBuffer": (CapacityBuffer, "capacity_buffers"),
    "PodTemplate": (StoredTemplate, "pod_templates"),
    "Deployment": (Deployment, "deployments"),
    "StatefulSet": (StatefulSet, "stateful_sets"),
    "ReplicaSet": (ReplicaSet, "replica_sets"),
    "ReplicationController": (ReplicationController, "replication_controllers"),
    "Service": (Service, "services"),
}
"""The kinds that a snapshot holds: how each is decoded, and where."""
_KINDS: Final[JsonDict] = {kind: stored for kind, (stored, _) in _STORED.items()}
_FIELDS: Final = {kind: name for kind, (_, name) in _STORED.items()}
_LIVE: Final = ("NodePool", "NodeOverlay", "EC2NodeClass")
_AUTOSCALERS: Final = ("HorizontalPodAutoscaler", "ScaledObject")
_ANY_CLASS: Final = "NodeClass"
"""The suffix of kinds of node classes. Of those that are not EC2's, only conditions are read."""

RECORDS_KIND: Final = "FleetRecords"
"""The kind of the object with the records of the engine (``apiVersion`` ours)."""

CAPTURE_KIND: Final = "SnapshotCapture"
"""The kind of the object with the time at which the objects of a cluster were captured."""

_LISTS_MAX: Final = 100
"""The maximum nesting of Lists; kubectl nests none."""
OBJECTS_MAX: Final = 2_000_000


class Capture(msgspec.Struct, frozen=True):
    """When the objects of a cluster were captured."""

    at: Annotated[datetime, msgspec.Meta(tz=True)]


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Page(msgspec.Struct, frozen=True):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


class RawAutoscaler(dict[str, object]):
    """The data of an autoscaler of pods."""


@dataclass(frozen=True, slots=True)
class RawRecords:
    """The JSON of the engine's records in a snapshot, and its position.

    ``engine/records.py`` reads it: commands and launches are not known in this layer.
    """

    content: bytes
    place: str


@dataclass(frozen=True, slots=True)
class Snapshot(WorkloadObjects):
    """The objects of a cluster at one time, each kind in the order of its names.

    ``live`` are the NodePools, NodeOverlays and EC2NodeClasses of the cluster, as plain data:
    desired state comes from git, and they only show what git would change. ``other_classes`` are
    the node classes of other kinds. ``skipped`` counts the kinds that no decision reads.
    ``findings`` are about objects that cannot be read and have a substitute. ``records`` are the
    records of the engine, None in a snapshot without them. ``captured_at`` is when the objects of a
    cluster were captured, None if the snapshot does not contain it. ``autoscalers`` are those of
    pods, as plain data: they state how many replicas there may be. ``versions`` are the
    ``resourceVersion`` of each resource at which a cluster was observed.
    """

    nodes: tuple[Node, ...] = ()
    node_claims: tuple[NodeClaim, ...] = ()
    capacity_buffers: tuple[CapacityBuffer, ...] = ()
    pod_templates: tuple[StoredTemplate, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    live: tuple[JsonDict, ...] = ()
    other_classes: tuple[dict[str, object], ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    findings: tuple[Diagnostic, ...] = ()
    records: RawRecords | None = None
    captured_at: datetime | None = None
    autoscalers: tuple[JsonDict, ...] = ()
    versions: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def unready_classes(self) -> frozenset[tuple[str, str]]:
        """The kind and name of each node class whose condition Ready exists and is not True."""
        classes = (o for o in (*self.live, *self.other_classes) if o["kind"].endswith(_ANY_CLASS))
        return frozenset((o["kind"], o["metadata"]["name"]) for o in classes if _is_unready(o))

    def objects(self) -> Iterator[tuple[str, HasMetadata]]:
        """Yield every decoded object with its kind, in a fixed order."""
        for kind, name in _FIELDS.items():
            for item in getattr(self, name):
                yield kind, item

    @property
    def indexed_pods(self) -> Pods:
        """The pods with their index, computed once."""
        return Pods.from_tuple(self.pods)


def _is_unready(node_class: JsonDict) -> bool:
    conditions = (node_class.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] != "True" for c in conditions)


def snapshot_of(objects: Iterable[object], live: Iterable[dict[str, object]] = ()) -> Snapshot:
    """Return the snapshot that holds these decoded objects, in the order of their names."""
    by_kind: dict[type, list[object]] = {kind: [] for kind in _KINDS.values()}
    for item in objects:
        by_kind[type(item)].append(item)
    rows: JsonDict = {
        name: tuple(sorted(by_kind[_KINDS[kind]], key=_sort_key)) for kind, name in _FIELDS.items()
    }
    rows["pods"] = Pods(rows["pods"])
    return Snapshot(
        **rows,
        live=tuple(sorted(live, key=lambda o: (o["kind"], o.get("metadata", {}).get("name", "")))),
    )


def snapshot_of_workloads(objects: WorkloadObjects) -> Snapshot:
    """Return the snapshot of a cluster that runs these objects, without nodes."""
    return replace(Snapshot(**objects.workload_objects()), pods=Pods(objects.pods))


def read_snapshot(content: bytes, source: str) -> Snapshot:
    """Return the snapshot in a file: JSON or YAML, also several documents or Lists.

    Raises:
        UnreadableError: it is not a snapshot.
    """
    whole = SnapshotText(source, content)
    return assemble_snapshot(
        decode_object(raw, whole.place(number))
        for number, raw in enumerate(snapshot_items(content, source), 1)
    )


def objects_snapshot(objects: Iterable[object]) -> Snapshot:
    """Return the snapshot of plain objects of a cluster, each of which is read and forgotten.

    Raises:
        UnreadableError: one is not a Kubernetes object.
    """
    raws = (msgspec.json.encode(item) for item in objects)
    return assemble_snapshot(
        decode_object(raw, SnapshotText("the cluster", raw).place(number))
        for number, raw in enumerate(raws, 1)
    )


def _nesting_error(where: str) -> UnreadableError:
    return UnreadableError("not a snapshot: it is nested too deeply", where=where)


class SkippedKind(str):
    """The kind of an object that no decision reads."""

    __slots__ = ()


def decode_object(raw: bytes | msgspec.Raw, place: SnapshotPlace) -> Any:
    """Return the object in its JSON: a Struct, or plain data for our own kinds.

    An object that cannot be used is an ``IsolatedObject``, whose finding names it and the field.

    Raises:
        UnreadableError: it is not a Kubernetes object.
    """
    try:
        name = _object_kind(raw, place)
        if name != RECORDS_KIND:
            expect_size(raw, name, place)
        return _decode_by_kind(raw, name, place)
    except RecursionError as error:
        raise _nesting_error(place.locate(raw)) from error


def _decode_by_kind(raw: bytes | msgspec.Raw, name: str, place: SnapshotPlace) -> object:
    kind = _KINDS.get(name)
    if kind is not None:
        try:
            item = _decode_struct(raw, kind, name, place)
        except UnreadableError as error:
            return isolate_undecoded(raw, kind, error.message, error.where)
        return isolate_invalid(item, name, lambda: place.locate(raw)) or item
    if name == RECORDS_KIND:
        return RawRecords(bytes(raw), place.locate(raw))
    if name == CAPTURE_KIND:
        try:
            return _decode_struct(raw, Capture, name, place)
        except UnreadableError as error:  # the age of the snapshot is then unknown
            return isolate_undecoded(raw, Capture, error.message, error.where)
    if name not in (*_LIVE, *_AUTOSCALERS) and not name.endswith(_ANY_CLASS):
        return SkippedKind(name)
    return _decode_plain(raw, name, place)


def _decode_plain(raw: bytes | msgspec.Raw, name: str, place: SnapshotPlace) -> object:
    """Return the plain data of an object of which any field may count."""
    try:
        data = decode_json(raw, JsonDict)
    except msgspec.MsgspecError as error:
        raise _no_object_error(raw, place, error) from error
    found = RawAutoscaler(data) if name in _AUTOSCALERS else data
    return isolate_invalid_live(data, name, lambda: place.locate(raw)) or found


def decode_as_kind(raw: bytes | msgspec.Raw, kind: str, place: SnapshotPlace) -> Any:
    """Return the Struct of an object whose kind is known: a list of the API does not repeat it.

    One that cannot be used is an ``IsolatedObject``, whatever its shape: it has to be corrected in
    the cluster, and until then the rest continues.
    """
    try:
        item = _decode_struct(raw, _KINDS[kind], kind, place)
    except UnreadableError as error:
        return isolate_undecoded(raw, _KINDS[kind], error.message, place.text.source)
    except RecursionError:
        problem = "an object is nested too deeply"
        return isolate_undecoded(b"{}", _KINDS[kind], problem, place.text.source)
    return isolate_invalid(item, kind, lambda: place.text.source) or item


def assemble_snapshot(objects: Iterable[object]) -> Snapshot:
    """Return the snapshot of objects that ``decode_object`` returned."""
    by_type: dict[type, list[Any]] = defaultdict(list)
    for item in objects:
        by_type[type(item)].append(item)
    isolated: list[IsolatedObject] = by_type.pop(IsolatedObject, [])
    records = _only_records(by_type.pop(RawRecords, []))
    captures: list[Capture] = by_type.pop(Capture, [])
    skipped = Counter(map(str, by_type.pop(SkippedKind, [])))
    autoscalers = by_type.pop(RawAutoscaler, [])
    plain: list[JsonDict] = by_type.pop(dict, [])
    substitutes = [found.item for found in isolated if found.item is not None]
    known = snapshot_of(
        chain(*by_type.values(), substitutes), (o for o in plain if o["kind"] in _LIVE)
    )
    return replace(
        known,
        other_classes=tuple(sorted((o for o in plain if o["kind"] not in _LIVE), key=_plain_key)),
        skipped=dict(sorted(skipped.items())),
        findings=tuple(sorted((found.finding for found in isolated), key=lambda d: d.order)),
        records=records,
        # of several captures, the oldest determines the age
        captured_at=min((capture.at for capture in captures), default=None),
        autoscalers=tuple(autoscalers),
    )


def _only_records(found: Sequence[RawRecords]) -> RawRecords | None:
    if len(found) > 1:
        raise UnreadableError(
            f"the snapshot holds two objects of kind {RECORDS_KIND}",
            where=found[1].place,
            remedy="capture it again with `reconciler snapshot`",
        )
    return found[0] if found else None


def _plain_key(item: JsonDict) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def _sort_key(item: HasMetadata) -> tuple[str, str]:
    return (item.metadata.namespace, item.metadata.name)


def snapshot_items(content: bytes, source: str) -> Iterator[bytes | msgspec.Raw]:
    """Yield the JSON of each object; a List is cut apart, also one within a List.

    A single object is not a snapshot: everything else in the cluster would count as missing.

    Raises:
        UnreadableError: it is neither JSON nor YAML, or has neither a List nor several objects.
    """
    text = content.lstrip()
    expect_plain(text, source)
    if not text:
        raise UnreadableError(
            "the snapshot is empty",
            where=source,
            remedy="capture it again (even an empty cluster prints a List)",
        )
    documents = [text]
    if text.startswith(b"{"):
        expect_values(content, source, remedy=CAPTURE)
        expect_utf8(source, content)
    else:
        documents = _yaml_documents(text, source)
    if not documents:
        raise no_list_error("", source)
    is_alone = len(documents) == 1
    found = (_unroll_list(d, source, content, is_alone=is_alone) for d in documents)
    for number, item in enumerate(chain.from_iterable(found), 1):
        if number > OBJECTS_MAX:
            what = f"has more than {OBJECTS_MAX:,} objects"
            raise UnreadableError(what, where=source, remedy=CAPTURE)
        yield item


def _unroll_list(
    document: bytes | msgspec.Raw,
    source: str,
    content: bytes,
    depth: int = 0,
    *,
    is_alone: bool = False,
) -> Iterator[bytes | msgspec.Raw]:
    if depth > _LISTS_MAX:
        raise _nesting_error(source)
    try:
        page = decode_json(document, _Page)
    except msgspec.MsgspecError as error:
        where, message = json_error_position(source, content, error)
        raise UnreadableError(f"not a snapshot: {message}", where=where) from error
    if page.items is None or not page.kind.endswith("List"):
        if is_alone or page.kind in ("", "List", "Status"):
            raise no_list_error(page.kind, source)
        yield document
        return
    for item in page.items:
        if b'"items"' in bytes(item)[:200]:
            yield from _unroll_list(item, source, content, depth + 1)
        else:
            yield item


def _yaml_documents(text: bytes, source: str) -> list[bytes]:
    from ruamel.yaml.error import YAMLError

    from reconciler.source.plainyaml import load_all

    try:
        documents = load_all(text)
    except YAMLError as error:
        where, message = yaml_error_position(source, error)
        raise UnreadableError(f"neither JSON nor YAML: {message}", where=where) from error
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            raise UnreadableError(
                f"not a snapshot: document {number} is not an object",
                where=source,
                remedy=CAPTURE,
            )
    return [_yaml_to_json(d, f"document {n}", source) for n, d in enumerate(documents, 1)]


def _yaml_to_json(document: object, name: str, source: str) -> bytes:
    """Return YAML as the equivalent JSON."""
    content = msgspec.json.encode(document)
    try:
        decode_json(content, _Page)
    except msgspec.DecodeError as error:
        raise UnreadableError(
            f"not a snapshot: {name}: {describe_mismatch(error)}", where=source
        ) from error
    return content


def _object_kind(raw: bytes | msgspec.Raw, place: SnapshotPlace) -> str:
    try:
        return decode_json(raw, _Kind).kind
    except msgspec.MsgspecError as error:
        raise _no_object_error(raw, place, error) from error


def _no_object_error(
    raw: bytes | msgspec.Raw, place: SnapshotPlace, error: Exception
) -> UnreadableError:
    text = f"item {place.number} is not a Kubernetes object: {describe_mismatch(error)}"
    return UnreadableError(text, where=place.locate(raw))


def _decode_struct(
    raw: bytes | msgspec.Raw, kind: type, kind_name: str, place: SnapshotPlace
) -> object:
    """Return the Struct in the JSON of an object of a kind, which errors call ``kind_name``."""
    try:
        return decode_json(raw, kind, strict=False)
    except msgspec.MsgspecError:
        try:
            return decode(decode_json(raw), kind)
        except msgspec.MsgspecError as error:
            called = f"{kind_name} {name_in(raw)}".rstrip()
            text = f"item {place.number}, {called}: {describe_mismatch(error)}"
            raise UnreadableError(text, where=place.locate(raw)) from error
