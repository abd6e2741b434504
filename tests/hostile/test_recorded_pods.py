"""Pods that come and go, each of its own kind: what a daemon keeps of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from reconciler.engine import workloadtrace
from reconciler.engine.observation import Observation
from reconciler.engine.workloadtrace import WorkloadRecorder
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.kubernetes.pod import Pod, PodSpec, PodStatus
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.state import TraceBatch
from tests.engine.test_recording import a_fleet
from tests.hostile.threats import Threat, attack

START = datetime(2026, 1, 3, 12, tzinfo=UTC)
PASSES = 60
SIZE = 100_000
_WAITING = PodStatus("Pending", (Condition("PodScheduled", "False", reason="Unschedulable"),))


class Sizes:
    """A record that keeps only the sizes of what is written to it."""

    def __init__(self) -> None:
        self.characters = 0
        self.pods: list[str] = []

    def append(self, batch: TraceBatch, forget_before: datetime | None = None) -> None:
        del forget_before
        self.characters += sum(len(made.spec.scheduler_name) for made in batch.classes.values())
        self.pods += [arrival.pod for arrival in batch.pods]

    def batches(self, since: datetime) -> Iterator[TraceBatch]:
        raise NotImplementedError


def passes(count: int) -> tuple[Sizes, int]:
    """Record passes that each see another pod; return the record, and how much memory grew."""
    engine, log = a_fleet().engine(), Sizes()
    recorder, desired = WorkloadRecorder(log), engine.source.read()
    recorder.record_pass(engine.ports, Observation(START, (), Snapshot(), ()), desired)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            name = f"odd-{number}"
            spec = PodSpec(scheduler_name=f"{number:06}" + "x" * SIZE)
            pod = Pod(Metadata(name=name, namespace="shop", uid=name), spec, _WAITING)
            at = START + (number + 1) * timedelta(seconds=10)
            seen = Observation(at, (), Snapshot(pods=(pod,)), ())
            recorder.record_pass(engine.ports, seen, desired)
        return log, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@attack(Threat.EXHAUSTION, "pods that come and go, each with a large spec of its own, for memory")
def test_no_spec_of_a_pod_that_is_gone_is_kept() -> None:
    """Guard: ``WorkloadRecorder`` keeps the names of classes, and not the classes."""
    log, grown = passes(PASSES)
    assert len(log.pods) == PASSES
    assert grown < PASSES * SIZE / 5


@attack(Threat.EXHAUSTION, "pods that come and go, each with a large spec of its own, for the disk")
def test_the_specs_that_are_recorded_in_a_day_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: ``CLASS_BYTES_MAX``."""
    monkeypatch.setattr(workloadtrace, "CLASS_BYTES_MAX", 10 * SIZE)
    log, _ = passes(PASSES)
    assert len(log.pods) < 10
    assert log.characters < 10 * SIZE
