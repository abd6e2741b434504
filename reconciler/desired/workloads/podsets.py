"""The sets of equal pods of each workload: their template, and how many there are.

This is where an object is read by the table of kinds (``kinds``). An autoscaler replaces the number
of its target by a range: the minimum, the present number and the maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from reconciler.desired.workloads.kinds import (
    SCALERS,
    GroupEntry,
    KindTable,
    PodGroup,
    ScalerKind,
    WorkloadKind,
    entries_of,
    pointer_of,
    value_of,
)
from reconciler.desired.workloads.operators import pod_template
from reconciler.model.json import JsonDict, as_mapping, as_text
from reconciler.source.document import Pointer
from reconciler.source.resource import Resource, group_of

COUNT_MAX: Final = 2**31 - 1
"""The maximum number of replicas: Kubernetes keeps it in 32 bits."""


@dataclass(frozen=True, slots=True)
class ReplicaRange:
    """How many replicas a workload has: at least, now, and at most.

    ``present`` is None without a cluster. ``maximum`` is None if nothing limits it. ``by`` is the
    kind and name of what scales it, empty if nothing does.
    """

    minimum: int
    maximum: int | None
    present: int | None = None
    by: str = ""

    @property
    def current(self) -> int:
        """The present number within the range; without a cluster, the minimum."""
        if self.present is None:
            return self.minimum
        within = max(self.present, self.minimum)
        return within if self.maximum is None else min(within, self.maximum)


class ReplicaChoice(NamedTuple):
    """Which number of a range is planned: the present one, or a share of the range.

    ``percent`` is from 0, the minimum, to 100, the maximum; None is the present number.
    """

    percent: int | None = None

    def number_of(self, replicas: ReplicaRange) -> int:
        """Return the number of replicas to plan; where nothing limits them, the present one."""
        if self.percent is None or (replicas.maximum is None and self.percent):
            return replicas.current
        span = (replicas.maximum or replicas.minimum) - replicas.minimum
        return replicas.minimum + -(-max(span, 0) * self.percent // 100)


PRESENT: Final = ReplicaChoice()
MAXIMUM: Final = ReplicaChoice(100)


@dataclass(frozen=True, slots=True)
class PodSet:
    """Equal pods of one workload: ``pods_each`` pods for each of its replicas.

    ``name`` begins the names of its pods, ``group`` is the name of its group ("" for the only one).
    ``at`` is where the template is in the object.
    """

    resource: Resource
    row: WorkloadKind
    spec: PodGroup
    name: str
    group: str
    at: Pointer
    template: JsonDict
    replicas: ReplicaRange
    pods_each: int

    def count(self, choice: ReplicaChoice) -> int:
        """Return the number of pods."""
        return choice.number_of(self.replicas) * self.pods_each


class ScaleTarget(NamedTuple):
    """What an autoscaler scales; ``group`` is the API group."""

    group: str
    kind: str
    namespace: str
    name: str


def target_of(resource: Resource) -> ScaleTarget:
    """Return the reference that an autoscaler would have to a workload."""
    return ScaleTarget(
        group_of(resource.api_version), resource.kind, resource.namespace, resource.name
    )


class Scaler(NamedTuple):
    """An autoscaler as it is read: its object, its target, and the range."""

    resource: Resource
    target: ScaleTarget
    replicas: ReplicaRange


def scalers_of(resources: Iterable[Resource]) -> dict[ScaleTarget, list[Scaler]]:
    """Return the autoscalers among the objects, by what they scale."""
    found: dict[ScaleTarget, list[Scaler]] = {}
    for resource in resources:
        row = SCALERS.get((group_of(resource.api_version), resource.kind))
        scaler = read_scaler(row, resource) if row is not None else None
        if scaler is not None:
            found.setdefault(scaler.target, []).append(scaler)
    return found


def _target_of(row: ScalerKind, resource: Resource) -> ScaleTarget:
    ref = as_mapping(value_of(resource.data, row.target))
    kind = str(ref.get("kind") or "Deployment")
    api_version = str(ref.get("apiVersion") or "apps/v1")
    name = str(ref.get("name") or "")
    return ScaleTarget(group_of(api_version), kind, resource.namespace, name)


def read_scaler(row: ScalerKind, resource: Resource) -> Scaler | None:
    """Return an autoscaler, None if it is paused; a target without a kind is a Deployment."""
    data = resource.data
    target = _target_of(row, resource)
    minimum = number_at(data, row.minimum, row.default_minimum)
    maximum = max(number_at(data, row.maximum, max(row.default_maximum, minimum)), minimum)
    idle = number_at(data, row.idle, minimum)
    present = next((n for path in row.present if (n := number_at(data, path, -1)) >= 0), None)
    by = f"{resource.kind}/{resource.name}"
    annotations = as_mapping(value_of(data, "metadata.annotations"))
    fixed = as_text(annotations.get(row.fixed))
    if fixed.isascii() and fixed.isdigit():
        count = min(int(fixed[:10]), COUNT_MAX)
        return Scaler(resource, target, ReplicaRange(count, count, count, by))
    if row.paused and str(annotations.get(row.paused)).lower() == "true":
        return None
    return Scaler(resource, target, ReplicaRange(min(idle, minimum), maximum, present, by))


def pod_sets(
    resource: Resource,
    table: KindTable,
    scalers: Mapping[ScaleTarget, list[Scaler]] | None = None,
    templates: Mapping[ScaleTarget, object] | None = None,
) -> Iterator[PodSet]:
    """Yield the sets of pods of a workload; none for other kinds.

    ``templates`` are the pod templates of workloads that another one may refer to.
    """
    row = table.workload(resource.api_version, resource.kind)
    if row is None:
        return
    for spec in row.groups:
        for entry in entries_of(spec, resource.data):
            template = pod_template(spec, entry, resource)
            if template is None and row.follows:
                template = _followed_template(row, resource, templates or {})
            if template is None:
                continue
            name = f"{resource.name}-{entry.name}" if entry.name else resource.name
            yield PodSet(
                resource,
                row,
                spec,
                name,
                entry.name,
                (*entry.pointer, *pointer_of(spec.template)),
                template,
                _replicas(spec, entry, resource, scalers or {}),
                _pods_each(spec, entry),
            )


def _followed_template(
    row: WorkloadKind, resource: Resource, templates: Mapping[ScaleTarget, object]
) -> JsonDict | None:
    """Return the template of the workload that an object refers to, None if it is not known."""
    ref = value_of(resource.data, row.follows)
    if not isinstance(ref, dict):
        return None
    group = group_of(str(ref.get("apiVersion") or ""))
    target = ScaleTarget(group, str(ref.get("kind")), resource.namespace, str(ref.get("name")))
    found = templates.get(target)
    return found if isinstance(found, dict) else None


def _replicas(
    spec: PodGroup,
    entry: GroupEntry,
    resource: Resource,
    scalers: Mapping[ScaleTarget, list[Scaler]],
) -> ReplicaRange:
    """Return the range of replicas of a group: that of its autoscaler, else that of its object."""
    root, data = resource.data, entry.data
    if _is_suspended(root, spec.suspended) or _is_suspended(data, spec.group_suspended):
        return ReplicaRange(0, 0)
    declared = value_of(data, spec.replicas) if spec.replicas else None
    count = number_at(data, spec.replicas, spec.default)
    if spec.at_most:
        count = min(count, number_at(data, spec.at_most, count))
    present = _number_or_none(data, spec.present)
    if present is None and isinstance(declared, int) and "status" in root:
        present = count  # an object of a cluster: its autoscaler has written the number
    scaled = _range_of_scaler(spec, resource, scalers)
    if scaled is not None and not (declared == 0 and scaled.minimum > 0):
        return scaled if scaled.present is not None else replace(scaled, present=present)
    if _scales_itself(spec, data, root):
        fallback = count if spec.replicas and not spec.scaled_if else spec.default_minimum
        low, high = _own_bounds(spec, data, fallback)
        return ReplicaRange(low, high, present, f"{resource.kind}/{resource.name}")
    return ReplicaRange(count, count)


def _range_of_scaler(
    spec: PodGroup, resource: Resource, scalers: Mapping[ScaleTarget, list[Scaler]]
) -> ReplicaRange | None:
    if not spec.replicas or spec.each:
        return None
    known = scalers.get(target_of(resource))
    return known[0].replicas if known else None


def _own_bounds(spec: PodGroup, data: object, fallback: int) -> tuple[int, int | None]:
    """Return the minimum and the maximum of an object that scales its own pods."""
    low = number_at(data, spec.minimum, fallback)
    high = _number_or_none(data, spec.maximum)
    if high in (None, 0, COUNT_MAX):  # Knative's and Ray's ways to say that there is none
        high = spec.default_maximum
    return low, None if high is None else max(high, low)


def _is_suspended(data: object, path: str) -> bool:
    """Return whether a field or an annotation says that there are no pods."""
    value = value_of(data, path) if path else None
    return value is True or (isinstance(value, str) and value in ("on", "enabled", "true"))


def _scales_itself(spec: PodGroup, data: object, root: JsonDict) -> bool:
    """Return whether an object scales its own pods, between a minimum and a maximum."""
    if not spec.is_scaled:
        return False
    if spec.scaled_if:
        return value_of(root, spec.scaled_if) is True
    bounds = (value_of(data, path) for path in (spec.minimum, spec.maximum) if path)
    return not spec.replicas or any(bound is not None for bound in bounds)


def _pods_each(spec: PodGroup, entry: GroupEntry) -> int:
    product = 1
    for factor in spec.factors:
        product *= max(number_at(entry.data, factor.path, factor.default) - factor.less, 0)
    return min(product, COUNT_MAX)


def _number_or_none(data: object, path: str) -> int | None:
    number = number_at(data, path, -1)
    return None if number < 0 else number


def number_at(data: object, path: str, default: int) -> int:
    """Return the number at a path, also one written as text; ``default`` if there is none.

    Numbers that no cluster accepts are brought into the range of Kubernetes' counts. They are
    findings of the object (``shape``).
    """
    value = value_of(data, path) if path else None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:11])
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return max(0, min(value, COUNT_MAX))
