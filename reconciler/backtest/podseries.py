"""The facts of kube-state-metrics about each pod, collected from samples in any order.

Samples of a pod are merged by rules that do not depend on order and repetition: an extreme or a
union. So a pod that two instances of kube-state-metrics report counts once, and a period that is
read in parts gives the same result as the complete period.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from reconciler.ports.metrics import MetricSample

_TIME_MAX: Final = 7_258_118_400.0
"""The year 2200, in seconds since 1970."""
_NONE: Final = "<none>"
"""The value of kube-state-metrics for a pod without an owner."""
_LABEL: Final = re.compile(r"^(?:label|annotation|nodeselector)_")

_AMOUNTS_MAX: Final = {"cpu": 1e6, "memory": 1e15, "ephemeral_storage": 1e16}
"""More than any machine has; in cores and bytes."""
_COUNT_MAX: Final = 1e6
_BYTES_MAX: Final = 1e15


class Family(StrEnum):
    """The metrics that are read, by their names."""

    CREATED = "kube_pod_created"
    SCHEDULED = "kube_pod_status_scheduled_time"
    COMPLETED = "kube_pod_completion_time"
    DELETED = "kube_pod_deletion_timestamp"
    PHASE = "kube_pod_status_phase"
    INFO = "kube_pod_info"
    OWNER = "kube_pod_owner"
    REQUESTS = "kube_pod_container_resource_requests"
    INIT_REQUESTS = "kube_pod_init_container_resource_requests"
    INIT_INFO = "kube_pod_init_container_info"
    TOLERATIONS = "kube_pod_tolerations"
    NODE_SELECTORS = "kube_pod_nodeselectors"
    LABELS = "kube_pod_labels"
    ANNOTATIONS = "kube_pod_annotations"


class PodId(NamedTuple):
    """What identifies a pod over time: a StatefulSet reuses names."""

    namespace: str
    name: str
    uid: str


class ContainerKey(NamedTuple):
    """A container of a pod; init containers have names of their own."""

    name: str
    is_init: bool


@dataclass(slots=True)
class PodFacts:
    """The facts about a pod. Times are seconds since 1970, None if unknown.

    ``finished`` is when it was first seen in a final phase, ``seen`` when it was last seen.
    Amounts are in units (cores, bytes); ``is_unmeasured`` is whether one is not an amount.
    """

    created: float | None = None
    scheduled: float | None = None
    completed: float | None = None
    deleted: float | None = None
    finished: float | None = None
    seen: float | None = None
    owner: tuple[str, str] = ("", "")
    requests: dict[ContainerKey, dict[str, float]] = field(default_factory=dict)
    sidecars: set[str] = field(default_factory=set)
    tolerations: set[tuple[str, str, str, str]] = field(default_factory=set)
    node_selector: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    is_unmeasured: bool = False


_Join = Callable[[PodFacts, Mapping[str, str], float], None]


class PodSeries:
    """Converts samples to facts by pod. ``nameless`` samples do not contain their pod."""

    def __init__(self) -> None:
        self.pods: dict[PodId, PodFacts] = {}
        self.families: set[Family] = set()
        self.nameless = 0
        self.first: float | None = None

    def record_first_sample(self, samples: Iterable[MetricSample]) -> None:
        """Record when the very first sample was recorded."""
        for sample in samples:
            self.first = _earliest(self.first, _valid_time(sample.value))

    def record_seen(self, samples: Iterable[MetricSample]) -> None:
        """Record when pods were last seen."""
        for facts, sample in self._facts_of(samples):
            facts.seen = _latest(facts.seen, _valid_time(sample.value))

    def record_finished(self, samples: Iterable[MetricSample]) -> None:
        """Record when pods were first seen in a final phase."""
        for facts, sample in self._facts_of(samples):
            facts.finished = _earliest(facts.finished, _valid_time(sample.value))
            self.families.add(Family.PHASE)

    def add(self, family: Family, samples: Iterable[MetricSample]) -> None:
        """Record the last samples of a metric in a part of the period."""
        join = _JOINS[family]
        for facts, sample in self._facts_of(samples):
            self.families.add(family)
            join(facts, sample.labels, sample.value)

    def _facts_of(self, samples: Iterable[MetricSample]) -> Iterator[tuple[PodFacts, MetricSample]]:
        for sample in samples:
            labels = sample.labels
            key = PodId(
                _pod_label(labels, "namespace"),
                _pod_label(labels, "pod"),
                _pod_label(labels, "uid"),
            )
            if not (key.namespace and key.name):
                self.nameless += 1
                continue
            facts = self.pods.get(key)
            if facts is None:
                facts = self.pods[key] = PodFacts()
            yield facts, sample


def _pod_label(labels: Mapping[str, str], name: str) -> str:
    """Return a label of the pod itself.

    Unless a scrape honours labels, Prometheus renames them in favour of those of the scraped pod.
    """
    return labels.get(f"exported_{name}") or labels.get(name, "")


def _valid_time(value: float) -> float | None:
    """Return a time, None if the value cannot be one."""
    return value if 0 < value < _TIME_MAX else None  # NaN is neither


def _earliest(known: float | None, other: float | None) -> float | None:
    if known is None or other is None:
        return known if other is None else other
    return min(known, other)


def _latest(known: float | None, other: float | None) -> float | None:
    if known is None or other is None:
        return known if other is None else other
    return max(known, other)


def _join_created(facts: PodFacts, _labels: Mapping[str, str], value: float) -> None:
    facts.created = _earliest(facts.created, _valid_time(value))


def _join_scheduled(facts: PodFacts, _labels: Mapping[str, str], value: float) -> None:
    facts.scheduled = _earliest(facts.scheduled, _valid_time(value))


def _join_completed(facts: PodFacts, _labels: Mapping[str, str], value: float) -> None:
    facts.completed = _latest(facts.completed, _valid_time(value))


def _join_deleted(facts: PodFacts, _labels: Mapping[str, str], value: float) -> None:
    facts.deleted = _earliest(facts.deleted, _valid_time(value))


def _join_info(facts: PodFacts, labels: Mapping[str, str], _value: float) -> None:
    _join_kind(facts, labels.get("created_by_kind", ""), labels.get("created_by_name", ""))


def _join_owner(facts: PodFacts, labels: Mapping[str, str], _value: float) -> None:
    if labels.get("owner_is_controller") != "false":
        _join_kind(facts, labels.get("owner_kind", ""), labels.get("owner_name", ""))


def _join_kind(facts: PodFacts, kind: str, name: str) -> None:
    if kind != _NONE:
        facts.owner = max(facts.owner, (kind, name))


def _join_requests(facts: PodFacts, labels: Mapping[str, str], value: float) -> None:
    _join_amount(facts, labels, value, is_init=False)


def _join_init_requests(facts: PodFacts, labels: Mapping[str, str], value: float) -> None:
    _join_amount(facts, labels, value, is_init=True)


def _join_amount(
    facts: PodFacts, labels: Mapping[str, str], value: float, *, is_init: bool
) -> None:
    """Record a request; if it was changed, the maximum counts."""
    resource = labels.get("resource", "")
    bytes_max = _BYTES_MAX if labels.get("unit") == "byte" else _COUNT_MAX
    if not 0 <= value <= _AMOUNTS_MAX.get(resource, bytes_max) or not resource:
        facts.is_unmeasured = True
        return
    container = ContainerKey(_pod_label(labels, "container"), is_init)
    amounts = facts.requests.setdefault(container, {})
    amounts[resource] = max(amounts.get(resource, 0.0), value)


def _join_init_info(facts: PodFacts, labels: Mapping[str, str], _value: float) -> None:
    if labels.get("restart_policy") == "Always":
        facts.sidecars.add(_pod_label(labels, "container"))


def _join_toleration(facts: PodFacts, labels: Mapping[str, str], _value: float) -> None:
    key, operator, value, effect = (
        labels.get(name, "") for name in ("key", "operator", "value", "effect")
    )
    facts.tolerations.add((key, operator, value, effect))


def _join_texts(choose: Callable[[PodFacts], dict[str, str]]) -> _Join:
    def join(facts: PodFacts, labels: Mapping[str, str], _value: float) -> None:
        texts = choose(facts)
        for name, text in labels.items():
            key, found = _LABEL.subn("", name)
            if found and key:
                texts[key] = max(texts.get(key, ""), text)

    return join


_JOINS: Final[dict[Family, _Join]] = {
    Family.CREATED: _join_created,
    Family.SCHEDULED: _join_scheduled,
    Family.COMPLETED: _join_completed,
    Family.DELETED: _join_deleted,
    Family.INFO: _join_info,
    Family.OWNER: _join_owner,
    Family.REQUESTS: _join_requests,
    Family.INIT_REQUESTS: _join_init_requests,
    Family.INIT_INFO: _join_init_info,
    Family.TOLERATIONS: _join_toleration,
    Family.NODE_SELECTORS: _join_texts(lambda facts: facts.node_selector),
    Family.LABELS: _join_texts(lambda facts: facts.labels),
    Family.ANNOTATIONS: _join_texts(lambda facts: facts.annotations),
}
