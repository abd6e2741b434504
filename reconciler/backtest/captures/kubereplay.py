"""Captures of kubereplay, the tool of AWS's provider of Karpenter (``tools/kubereplay``).

A capture is one JSON document: the creation, scaling and deletion of Deployments, and the creation
of Jobs, in any order (``pkg/format/log.go``). It has no pods: those of a Deployment are as many as
its replicas, and the youngest end first, as a ReplicaSet does it. When a Job ends is not in it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

import msgspec

from reconciler.backtest.captures.pods import (
    MALFORMED,
    CapturedPod,
    CapturedPods,
    expect_years,
    is_name,
    line_error,
)
from reconciler.backtest.trace import TraceClass
from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.kubernetes.cluster import PodTemplate
from reconciler.model.kubernetes.metadata import Metadata, OwnerReference

_Time = Annotated[datetime, msgspec.Meta(tz=True)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_DEADLINE_MAX: Final = 2**31


class _WorkloadSpec(msgspec.Struct, frozen=True, rename="camel"):
    template: PodTemplate
    replicas: _Count | None = None
    parallelism: _Count | None = None
    completions: _Count | None = None
    active_deadline_seconds: Annotated[int, msgspec.Meta(ge=0, le=_DEADLINE_MAX)] | None = None


class _Workload(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _WorkloadSpec


class _Event(msgspec.Struct, frozen=True):
    type: Literal["create", "scale", "delete"]
    kind: Literal["Deployment", "Job"]
    key: str
    timestamp: _Time
    deployment: _Workload | None = None
    job: _Workload | None = None
    replicas: _Count | None = None


class _Capture(msgspec.Struct, frozen=True):
    events: tuple[msgspec.Raw, ...]
    captured: _Time | None = None


class _Running(msgspec.Struct):
    """A Deployment with its pods, oldest first; ``made`` counts all that it had."""

    pod_class: TraceClass
    pods: list[CapturedPod]
    made: int = 0


class CapturedPeriod(msgspec.Struct, frozen=True):
    """The pods of a capture, and its period."""

    pods: CapturedPods
    begin: datetime
    end: datetime


def read_kubereplay(content: bytes, where: str) -> CapturedPeriod:
    """Return the pods of a capture.

    Raises:
        UnreadableError: a part of it cannot be read, or there are too many pods.
    """
    try:
        capture = decode_json(content, _Capture)
    except MALFORMED as error:
        raise line_error(where, 1, describe_mismatch(error)) from error
    events = _dated_events(capture, content, where)
    if not events:
        raise line_error(where, 1, "has no event")
    replay = _Replay(CapturedPods(where))
    for _, line, event in events:
        replay.apply(event, line)
    replay.report()
    begin, end = events[0][0], events[-1][0]
    return CapturedPeriod(replay.pods, begin, max(end, capture.captured or end))


def _dated_events(
    capture: _Capture, content: bytes, where: str
) -> list[tuple[datetime, int, _Event]]:
    """Return the events by time, each with the line where it begins."""
    found, position, line = [], 0, 1
    for raw in capture.events:
        text = bytes(raw)
        begin = content.index(text, position)
        line += content.count(b"\n", position, begin)
        try:
            event = decode_json(text, _Event)
        except MALFORMED as error:
            raise line_error(where, line, describe_mismatch(error)) from error
        expect_years([event.timestamp], where, line)
        found.append((event.timestamp, line, event))
        position = begin + len(text)
        line += text.count(b"\n")
    if capture.captured is not None:
        expect_years([capture.captured], where, 1)
    return sorted(found, key=lambda item: (item[0], item[1]))


class _Replay:
    """Applies events in the order of their times."""

    def __init__(self, pods: CapturedPods) -> None:
        self.pods = pods
        self._running: dict[str, _Running] = {}
        self._endless_jobs = 0

    def apply(self, event: _Event, line: int) -> None:
        """Apply one event.

        Raises:
            UnreadableError: it lacks something, or makes too many pods.
        """
        namespace, _, name = event.key.partition("/")
        if not is_name(namespace, name):
            self.pods.left_out["events with an invalid name"] += 1
        elif event.kind == "Job":
            self._start_job(event, namespace, name, line)
        elif event.type == "create":
            self._create(event, name, line)
        elif event.key not in self._running:
            self.pods.left_out["events of Deployments that were not seen before"] += 1
        elif event.type == "delete":
            self._scale(event, 0, line)
            del self._running[event.key]
        elif event.replicas is None:
            raise line_error(self.pods.where, line, "replicas: is missing")
        else:
            self._scale(event, event.replicas, line)

    def _create(self, event: _Event, name: str, line: int) -> None:
        workload = event.deployment
        if workload is None:
            raise line_error(self.pods.where, line, "deployment: is missing")
        if event.key in self._running:
            self._scale(event, 0, line)
        template = workload.spec.template
        owner = OwnerReference("ReplicaSet", name, "apps/v1", controller=True)
        found = self.pods.class_of(template.metadata, template.spec, owner, line)
        self._running[event.key] = _Running(found, [])
        self._scale(event, 1 if workload.spec.replicas is None else workload.spec.replicas, line)

    def _scale(self, event: _Event, replicas: int, line: int) -> None:
        running = self._running[event.key]
        for pod in running.pods[replicas:]:
            pod.ended = event.timestamp
        del running.pods[replicas:]
        more = replicas - len(running.pods)
        self.pods.expect_room(max(more, 0), line)
        namespace, _, name = event.key.partition("/")
        for _ in range(more):
            pod = CapturedPod(
                namespace, f"{name}-{running.made}", running.pod_class, event.timestamp, line
            )
            running.pods.append(self.pods.add(pod))
            running.made += 1

    def _start_job(self, event: _Event, namespace: str, name: str, line: int) -> None:
        """Start the pods of a Job that run at once; those that follow are not known."""
        workload = event.job
        if workload is None or event.type != "create":
            raise line_error(self.pods.where, line, "job: is missing")
        spec, at = workload.spec, event.timestamp
        at_once = 1 if spec.parallelism is None else spec.parallelism
        count = at_once if spec.completions is None else min(at_once, spec.completions)
        self.pods.expect_room(count, line)
        ended = None
        if spec.active_deadline_seconds is not None:
            ended = at + timedelta(seconds=spec.active_deadline_seconds)
        else:
            self._endless_jobs += 1
        found = self.pods.class_of(spec.template.metadata, spec.template.spec, None, line)
        for number in range(count):
            pod = CapturedPod(namespace, f"{name}-{number}", found, at, line, ended=ended)
            self.pods.add(pod)

    def report(self) -> None:
        """Add what a capture cannot contain to the report."""
        self.pods.notes.append(
            "Not in captures of kubereplay: when pods were bound, volumes, StatefulSets, and "
            "Deployments that did not change."
        )
        if self._endless_jobs:
            self.pods.notes.append(
                f"{self._endless_jobs:,} Jobs without activeDeadlineSeconds run to the end of the "
                "trace: a capture does not state when they ended."
            )
