"""Pods as kube-state-metrics reports them to a Prometheus that scrapes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.cli.prometheusapi import Point, Recording

SCRAPED_EVERY_S = 30
SINCE = 1_800_000_000
"""2027-01-15T08:00:00Z, when the traces of the tests begin."""


@dataclass(frozen=True)
class RecordedPod:
    """A pod; times are seconds from ``SINCE``. It is reported until it is ``gone``.

    Its deletion is requested ``grace`` seconds before it is ``deleted``.
    """

    name: str
    created: int = 0
    gone: int | None = None
    scheduled: int | None = None
    finished: int | None = None
    deleted: int | None = None
    grace: int = 30
    namespace: str = "shop"
    uid: str = ""
    owner: tuple[str, str] = ("ReplicaSet", "api-5d")
    requests: Mapping[str, float] = field(default_factory=lambda: {"cpu": 0.1, "memory": 2**30})
    init_requests: Mapping[str, float] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def record(
    recording: Recording, pod: RecordedPod, *, seconds: int, more: Mapping[str, str] | None = None
) -> None:
    """Report the pod in every scrape at that interval; each series has the ``more`` labels."""
    own = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid or f"u-{pod.name}"}
    own |= more or {}
    for name, labels, value, since in (*_times(pod), *_phases(pod), *_spec(pod)):
        points = _scraped(pod, value, since, seconds)
        if points:
            recording.add(name, own | dict(labels), points)


_Series = tuple[str, Mapping[str, str], float, int]
"""A metric with its labels, its value, and since when it is reported."""


def _scraped(pod: RecordedPod, value: float, since: int, seconds: int) -> list[Point]:
    begin = max(pod.created, since)
    scrapes = [
        t
        for t in range(0, seconds + 1, SCRAPED_EVERY_S)
        if begin <= t and (pod.gone is None or t < pod.gone)
    ]
    points: list[Point] = [(SINCE + t, value) for t in scrapes]
    if scrapes and pod.gone is not None:
        points.append((SINCE + scrapes[-1] + SCRAPED_EVERY_S, None))
    return points


def _times(pod: RecordedPod) -> Iterator[_Series]:
    yield "kube_pod_created", {}, SINCE + pod.created, 0
    if pod.scheduled is not None:
        yield "kube_pod_status_scheduled_time", {}, SINCE + pod.scheduled, pod.scheduled
    if pod.finished is not None:
        yield "kube_pod_completion_time", {}, SINCE + pod.finished, pod.finished
    if pod.deleted is not None:
        requested = pod.deleted - pod.grace
        yield "kube_pod_deletion_timestamp", {}, SINCE + pod.deleted, requested


def _phases(pod: RecordedPod) -> Iterator[_Series]:
    for phase in ("Pending", "Running", "Failed", "Unknown"):
        yield "kube_pod_status_phase", {"phase": phase}, float(phase == "Running"), 0
    if pod.finished is not None:
        yield "kube_pod_status_phase", {"phase": "Succeeded"}, 1, pod.finished


def _spec(pod: RecordedPod) -> Iterator[_Series]:
    kind, owner = pod.owner
    yield "kube_pod_info", {"created_by_kind": kind, "created_by_name": owner}, 1, 0
    for what, amounts in (("container", pod.requests), ("init_container", pod.init_requests)):
        for resource, amount in amounts.items():
            unit = {"cpu": "core", "memory": "byte"}.get(resource, "integer")
            labels = {"container": what, "resource": resource, "unit": unit, "node": "n"}
            yield f"kube_pod_{what}_resource_requests", labels, amount, 0
    for toleration in pod.tolerations:
        yield "kube_pod_tolerations", toleration, 1, 0
    for metric, prefix, texts in (
        ("kube_pod_nodeselectors", "nodeselector", pod.selector),
        ("kube_pod_labels", "label", pod.labels),
        ("kube_pod_annotations", "annotation", pod.annotations),
    ):
        if texts:
            yield metric, {f"{prefix}_{key}": text for key, text in texts.items()}, 1, 0
