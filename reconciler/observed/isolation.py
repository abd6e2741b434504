"""Objects of a cluster that cannot be read: each is set aside and treated in the safest way.

A cluster may contain an object that its API server should have rejected, or one of a newer release.
It does not prevent reading the rest of the cluster. Its substitute never allows more than the
object itself might: an affected node is not disrupted and takes no pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from reconciler.model.decode import decode, decode_json, describe_mismatch
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.duration import parse_nillable
from reconciler.model.errors import UnreadableError
from reconciler.model.karpenter.capacitybuffer import (
    CapacityBuffer,
    Deployment,
    ReplicaSet,
    StatefulSet,
    StoredTemplate,
)
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT, UNREADABLE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import requirement
from reconciler.model.kubernetes.cluster import (
    EBS_DRIVER,
    DaemonSet,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
)
from reconciler.model.kubernetes.eviction import check_amount
from reconciler.model.kubernetes.metadata import Condition, HasMetadata, LabelSelector, Metadata
from reconciler.model.kubernetes.node import CSINode, Node, NodeStatus, csi_node
from reconciler.model.kubernetes.pod import NodeSelectorExpression, Pod, PodSpec, PodStatus
from reconciler.model.resources import parse_quantity
from reconciler.model.text.quoting import quote_value
from reconciler.observed.positions import SnapshotPlace

CODE: Final = "unreadable-object"
OBJECT_BYTES_MAX: Final = 2**22
"""The maximum size of an object in a snapshot, more than an API server stores.

What is decoded takes up to fifty times the memory of its text."""
_YEARS: Final = range(1900, 2400)
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


@dataclass(frozen=True, slots=True)
class IsolatedObject:
    """An object that cannot be read: its substitute, None if there is none, and the finding."""

    item: object
    finding: Diagnostic


def isolate_invalid(item: Any, kind: str, place: Callable[[], str]) -> IsolatedObject | None:
    """Return the substitute of a decoded object that no decision can use; None if it is valid.

    ``place`` returns the position of the object, and is called only if something is wrong.
    """
    if not item.metadata.name:
        return _isolate(item, f"{kind}: it has no name", place())
    try:
        _check(item)
    except ValueError as error:
        return _isolate(item, f"{kind} {_full_name(item.metadata)}: {error}", place())
    return None


T = TypeVar("T")


class _ClassStatus(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class _Named(msgspec.Struct, frozen=True):
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name


class _OtherClass(_Named, frozen=True):
    """A node class that is not EC2's: only its own provider knows what it selects."""

    status: _ClassStatus | None = None


class _ScaleTarget(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    kind: str = ""
    api_version: str = ""


class _ScalerSpec(msgspec.Struct, frozen=True, rename="camel"):
    scale_target_ref: _ScaleTarget | None = None


class _Autoscaler(_Named, frozen=True):
    """An autoscaler of pods; a number that cannot be read counts as absent."""

    spec: _ScalerSpec | None = None


_LIVE: Final[Mapping[str, type]] = {
    "NodePool": NodePool,
    "NodeOverlay": NodeOverlay,
    "EC2NodeClass": EC2NodeClass,
    "HorizontalPodAutoscaler": _Autoscaler,
    "ScaledObject": _Autoscaler,
}


def isolate_invalid_live(
    data: object, kind: str, place: Callable[[], str]
) -> IsolatedObject | None:
    """Return the finding that an object that is kept as data is invalid; None if it is valid.

    It has no substitute: desired state comes from git, and pods exist without their autoscaler.
    """
    try:
        item: Any = decode(data, _LIVE.get(kind, _OtherClass))
        _check_times(item.metadata)
    except msgspec.MsgspecError as error:
        return _isolate(None, f"{kind}{_called(data)}: {describe_mismatch(error)}", place())
    except ValueError as error:
        return _isolate(None, f"{kind}{_called(data)}: {error}", place())
    return None if item.name else _isolate(None, f"{kind}: it has no name", place())


def _called(data: object) -> str:
    """Return the name of an object behind a space, empty if it has none that can be read."""
    name = _full_name(_decode_part(data, "metadata", _Name()))
    return f" {name}" if name else ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Name(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Item(msgspec.Struct, frozen=True):
    metadata: _Name = _Name()


def expect_size(raw: bytes | msgspec.Raw, kind: str, place: SnapshotPlace) -> None:
    """Refuse an object that no cluster has.

    Raises:
        UnreadableError: it is too large.
    """
    if len(raw) > OBJECT_BYTES_MAX:
        called = f"{kind} {name_in(raw)}".rstrip()
        text = f"item {place.number}, {called}: more than {OBJECT_BYTES_MAX >> 20} MiB"
        raise UnreadableError(text, where=place.locate(raw), remedy="leave it out of the snapshot")


def name_in(raw: bytes | msgspec.Raw) -> str:
    """Return ``namespace/name`` of an object in its JSON, empty if it cannot be read."""
    try:
        return _full_name(decode_json(raw, _Item).metadata)
    except msgspec.MsgspecError:
        return ""


def _full_name(metadata: _Name | Metadata) -> str:
    return "/".join(filter(None, (metadata.namespace, metadata.name)))


def _decode_part(data: object, name: str, otherwise: T) -> T:
    """Return a part of an object if it can be read, otherwise ``otherwise``."""
    part = data.get(name) if isinstance(data, dict) else None
    try:
        return decode(part, type(otherwise))
    except msgspec.ValidationError:
        return otherwise


def isolate_undecoded(
    raw: bytes | msgspec.Raw, kind: type, problem: str, where: str
) -> IsolatedObject:
    """Return the substitute of an object that does not have the shape of its kind."""
    try:
        data = decode_json(raw)
    except msgspec.MsgspecError:  # a number out of range, or bytes that are not UTF-8
        data = None
    short = _decode_part(data, "metadata", _Name())
    metadata = _decode_part(data, "metadata", Metadata(name=short.name, namespace=short.namespace))
    item: HasMetadata | None = None
    if kind is Pod:
        item = Pod(metadata, PodSpec(node_name=_decode_part(data, "spec", _Spec()).node_name))
    elif kind in (Node, PodDisruptionBudget, CSINode):
        item = kind(metadata)
    return _isolate(item, problem, where)


def _isolate(item: object, problem: str, where: str) -> IsolatedObject:
    substitute, effect = _substitute(item)
    hint = f"until it is fixed, {effect}"
    return IsolatedObject(
        substitute, Diagnostic(Severity.WARNING, CODE, f"{where}: {problem}", hint=hint)
    )


def _substitute(item: object) -> tuple[object, str]:
    """Return what is used in place of an object, and the consequences."""
    match item:
        case Pod() if item.spec.node_name:
            pod = Pod(
                _protected_metadata(item.metadata),
                PodSpec(node_name=item.spec.node_name),
                PodStatus(phase=item.status.phase),
            )
            return pod, "its node is not disrupted"
        case Pod():
            return None, "it is not scheduled"
        case Node() if item.name:
            node = Node(_protected_metadata(item.metadata), item.spec, NodeStatus())
            return node, "the node takes no pods and is not disrupted"
        case PodDisruptionBudget():
            spec = PodDisruptionBudgetSpec(selector=LabelSelector(), max_unavailable=0)
            metadata = Metadata(name=item.metadata.name, namespace=item.metadata.namespace)
            return PodDisruptionBudget(metadata, spec), "no pod of its namespace is evicted"
        case CSINode() if item.metadata.name:
            return csi_node(item.metadata.name, {EBS_DRIVER: 0}), "its node gets no more volumes"
    return None, "it is left out"


def _protected_metadata(metadata: Metadata) -> Metadata:
    annotations = {**metadata.annotations, DO_NOT_DISRUPT: "true", UNREADABLE: "true"}
    moments = {
        name: at if _is_usable_time(at) else None
        for name in ("creation_timestamp", "deletion_timestamp")
        if (at := getattr(metadata, name)) is not None
    }
    return replace(metadata, annotations=annotations, **moments)


def _check(item: Any) -> None:
    """Raise ValueError if a decision that reads the object would fail."""
    match item:
        case Pod():
            _check_pod(item)
        case CapacityBuffer():
            _check_times(item.metadata)
            _check_quantities(item.spec.limits)
        case Node():
            _check_times(item.metadata, (c.last_transition_time for c in item.status.conditions))
            _check_quantities(item.status.capacity)
            _check_quantities(item.status.allocatable)
        case NodeClaim():
            _check_claim(item)
        case PodDisruptionBudget():
            _check_times(item.metadata)
            _check_selector(item.spec.selector)
            check_amount(item.spec.min_available)
            check_amount(item.spec.max_unavailable)
        case DaemonSet():  # placement counts it on every node where its affinity is unreadable
            _check_times(item.metadata)
            _check_selectors(item.spec.template.spec)
        case Deployment() | ReplicaSet() | StatefulSet():
            _check_times(item.metadata)
            check_spec(item.spec.template.spec)
        case StoredTemplate():
            check_spec(item.template.spec)
        case _:
            _check_times(item.metadata)


def _check_pod(pod: Pod) -> None:
    _check_times(pod.metadata, (pod.status.start_time,))
    check_spec(pod.spec)
    for status in pod.status.container_statuses:
        if status.resources is not None:
            _check_quantities(status.resources.requests)
        _check_quantities(status.allocated_resources)


def _check_claim(claim: NodeClaim) -> None:
    _check_times(claim.metadata, (c.last_transition_time for c in claim.status.conditions))
    parse_nillable(claim.spec.expire_after)
    parse_nillable(claim.spec.termination_grace_period)
    for wanted in claim.spec.requirements:
        requirement(wanted.key, wanted.operator, wanted.values)
    _check_quantities(claim.spec.resources.requests)
    _check_quantities(claim.status.capacity)
    _check_quantities(claim.status.allocatable)


def check_spec(spec: PodSpec) -> None:
    """Raise ValueError if a decision that reads the spec of a pod would fail."""
    for container in (*spec.containers, *spec.init_containers):
        _check_quantities(container.resources.requests)
        _check_quantities(container.resources.limits)
    if spec.resources is not None:
        _check_quantities(spec.resources.requests)
        _check_quantities(spec.resources.limits)
    _check_quantities(spec.overhead)
    for expression in _expressions(spec):
        requirement(expression.key, expression.operator, expression.values)
    _check_selectors(spec)


def _check_selectors(spec: PodSpec) -> None:
    for selector in _selectors(spec):
        _check_selector(selector)


def _expressions(spec: PodSpec) -> Iterator[NodeSelectorExpression]:
    for term in spec.required_node_terms:
        yield from term.match_expressions
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    for preferred in affinity.preferred if affinity is not None else ():
        yield from preferred.preference.match_expressions


def _selectors(spec: PodSpec) -> Iterator[LabelSelector | None]:
    for spread in spec.topology_spread_constraints:
        yield spread.label_selector
    if spec.affinity is None:
        return
    for affinity in (spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity):
        if affinity is not None:
            for term in (*affinity.required, *(p.pod_affinity_term for p in affinity.preferred)):
                yield term.label_selector
                yield term.namespace_selector


def _check_selector(selector: LabelSelector | None) -> None:
    for expression in selector.match_expressions if selector is not None else ():
        if expression.operator not in _OPERATORS:
            known = ", ".join(_OPERATORS)
            raise ValueError(
                f"not an operator: {quote_value(expression.operator)} (one of {known})"
            )


def _check_quantities(texts: Mapping[str, str | int | float] | None) -> None:
    for name, text in (texts or {}).items():
        try:
            parse_quantity(text if isinstance(text, str) else str(text))
        except ValueError as error:
            raise ValueError(f"{name[:60]}: {error}") from None


def _check_times(metadata: Metadata, more: Iterable[datetime | None] = ()) -> None:
    for at in (metadata.creation_timestamp, metadata.deletion_timestamp, *more):
        if at is not None and not _is_usable_time(at):
            raise ValueError(f"not a usable time: {at.isoformat()}")


def _is_usable_time(at: datetime) -> bool:
    """Return whether a moment has an offset, and lies where every duration can be added to it."""
    return at.tzinfo is not None and at.year in _YEARS
