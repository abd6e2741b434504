"""Laws of a trace from series: no pod is lost, and no way of querying changes the trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.backtest.imported import ImportedTrace, ImportPeriod, imported_trace, report_of
from reconciler.backtest.podseries import ContainerKey, Family, PodSeries
from reconciler.backtest.prometheus import read_pod_series
from reconciler.backtest.writing import encode_trace
from reconciler.ports.metrics import Metrics, MetricSample, TooMuchDataError
from tests.cli.prometheusapi import Recording
from tests.cli.recordedpods import SINCE, RecordedPod, record
from tests.examples import examples

SECONDS = 5400
PERIOD = ImportPeriod(SINCE, SINCE + SECONDS, 60)


@st.composite
def pods(draw: st.DrawFn) -> RecordedPod:
    created = draw(st.integers(-1000, SECONDS))
    later = st.none() | st.integers(created, SECONDS + 100)
    return RecordedPod(
        draw(st.sampled_from(["a", "b", "c-0", "NOT-A-NAME"])),
        created,
        gone=draw(later),
        scheduled=draw(later),
        finished=draw(later),
        deleted=draw(later),
        namespace=draw(st.sampled_from(["shop", "trace"])),
        uid=draw(st.uuids()).hex,
        owner=draw(
            st.sampled_from([("ReplicaSet", "a"), ("DaemonSet", "d"), ("Node", "n"), ("Job", "j")])
        ),
        requests=draw(
            st.dictionaries(
                st.sampled_from(["cpu", "memory", "nvidia_com_gpu", "odd_thing"]),
                st.sampled_from([0.1, 1, 7, 1e300, -1, float("nan"), float("inf")]),
            )
        ),
        selector=draw(st.dictionaries(st.sampled_from(["kubernetes_io_os", "x_y"]), st.just("v"))),
    )


def recording_of(found: Sequence[RecordedPod], **more: str) -> Recording:
    recording = Recording()
    record(recording, RecordedPod("always", created=-60), seconds=SECONDS, more=more)
    for pod in found:
        record(recording, pod, seconds=SECONDS, more=more)
    return recording


def read(metrics: Metrics) -> ImportedTrace:
    return imported_trace(read_pod_series(metrics, PERIOD, ""), PERIOD)


@dataclass
class Narrow:
    """A server that computes no query over more than a number of seconds."""

    recording: Recording
    seconds_max: int

    def query(self, expression: str, at: int) -> list[MetricSample]:
        (seconds,) = re.findall(r"\[(\d+)s", expression)
        if int(seconds) > self.seconds_max:
            raise TooMuchDataError("too much", where="here", remedy="ask for less")
        return self.recording.query(expression, at)


@settings(max_examples=examples(300))
@given(st.lists(pods(), max_size=6))
def test_every_pod_is_in_the_trace_or_counted_as_left_out(found: list[RecordedPod]) -> None:
    recording = recording_of(found)
    seen = {
        dict(labels)["uid"]
        for (_, labels), points in recording.series.items()
        if any(time > SINCE and value is not None for time, value in points)
    }
    imported = read(recording)
    assert len(imported.trace.pods) + imported.left_out.total() == len(seen)
    keys = [traced.pod.key for traced in imported.trace.pods]
    assert len(set(keys)) == len(keys)
    assert f"of {len(seen)} pod" in report_of(imported)


@settings(max_examples=examples(300))
@given(st.lists(pods(), max_size=6))
def test_times_are_within_the_trace_and_in_order(found: list[RecordedPod]) -> None:
    trace = read(recording_of(found)).trace
    for traced in trace.pods:
        moments = [traced.created, traced.bound, traced.deleted, trace.seconds]
        known = [moment for moment in moments if moment is not None]
        assert known == sorted(known)
        assert known[0] >= 0


@settings(max_examples=examples(200))
@given(st.lists(pods(), max_size=6), st.integers(1200, SECONDS), st.booleans(), st.booleans())
def test_several_query_windows_give_the_result_of_one(
    found: list[RecordedPod], seconds_max: int, is_closed: bool, has_completion: bool
) -> None:
    recording = recording_of(found)
    recording.is_closed = is_closed
    if not has_completion:
        recording.remove("kube_pod_completion_time")
    whole, joined = read(recording), read(Narrow(recording, seconds_max))
    assert encode_trace(joined.trace) == encode_trace(whole.trace)
    assert (joined.left_out, joined.selectors, joined.resources) == (
        whole.left_out, whole.selectors, whole.resources,
    )  # fmt: skip


@settings(max_examples=examples(200))
@given(st.lists(pods(), max_size=6))
def test_a_second_instance_of_kube_state_metrics_changes_nothing(found: list[RecordedPod]) -> None:
    single = recording_of(found, instance="a")
    double = recording_of(found, instance="a")
    for (name, labels), points in recording_of(found, instance="b").series.items():
        double.add(name, dict(labels), points)
    assert len(double.series) == 2 * len(single.series)
    assert encode_trace(read(double).trace) == encode_trace(read(single).trace)


labels = st.dictionaries(
    st.sampled_from(
        ["namespace", "pod", "uid", "resource", "unit", "container", "label_", "label_app",
         "owner_kind", "created_by_kind", "key", "exported_pod", "exported_namespace"]
    ),
    st.text(max_size=5) | st.sampled_from(["a", "cpu", "memory", "byte", "Node", "DaemonSet"]),
)  # fmt: skip
values = st.floats() | st.sampled_from([0.0, SINCE - 5.0, SINCE + 5.0, SINCE + 5000.0])


@settings(max_examples=examples(500))
@given(st.lists(st.tuples(st.sampled_from(Family), labels, values), max_size=20))
def test_no_sample_causes_an_internal_error(
    found: list[tuple[Family, dict[str, str], float]],
) -> None:
    series = PodSeries()
    for family, texts, value in found:
        sample = [MetricSample(texts, value)]
        if family is Family.PHASE:
            series.record_finished(sample)
            series.record_seen(sample)
            series.record_first_sample(sample)
        else:
            series.add(family, sample)
    imported = imported_trace(series, PERIOD)
    assert len(imported.trace.pods) + imported.left_out.total() == len(series.pods)
    assert encode_trace(imported.trace)
    assert "\x1b" not in report_of(imported)


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.sampled_from(sorted(set(Family) - {Family.PHASE})), labels, values)),
    st.randoms(use_true_random=False),
)
def test_order_and_repetition_of_samples_change_nothing(
    found: list[tuple[Family, dict[str, str], float]], random: Random
) -> None:
    again = [*found, *found]
    random.shuffle(again)
    one, other = PodSeries(), PodSeries()
    for series, samples in ((one, found), (other, again)):
        for family, texts, value in samples:
            owned = {**texts, "namespace": "n", "pod": texts.get("pod") or "p"}
            series.add(family, [MetricSample(owned, value)])
    assert one.pods == other.pods


OWNERS = ("owner_kind", "owner_name", "owner_is_controller")
CPU = {"container": "c", "resource": "cpu", "unit": "core"}
EXTREMES: list[tuple[Family, list[tuple[dict[str, str], float]], str, object]] = [
    (Family.CREATED, [({}, 7.0), ({}, 5.0), ({}, -1.0)], "created", 5.0),
    (Family.SCHEDULED, [({}, 7.0), ({}, 5.0), ({}, 0.0)], "scheduled", 5.0),
    (Family.COMPLETED, [({}, 7.0), ({}, 5.0), ({}, 1e300)], "completed", 7.0),
    (Family.DELETED, [({}, 7.0), ({}, 5.0), ({}, float("nan"))], "deleted", 5.0),
    (
        Family.REQUESTS,
        [(CPU, 2.0), (CPU, 1.0)],
        "requests",
        {ContainerKey("c", is_init=False): {"cpu": 2.0}},
    ),
    (
        Family.OWNER,
        [
            (dict(zip(OWNERS, ("Application", "a", "true"), strict=True)), 1.0),
            (dict(zip(OWNERS, ("Zone", "z", "false"), strict=True)), 1.0),
        ],
        "owner",
        ("Application", "a"),
    ),
]


@pytest.mark.parametrize(("family", "samples", "fact", "expected"), EXTREMES)
def test_samples_that_differ_are_merged(
    family: Family, samples: list[tuple[dict[str, str], float]], fact: str, expected: object
) -> None:
    series = PodSeries()
    own = {"namespace": "n", "pod": "p"}
    series.add(family, [MetricSample(own | texts, value) for texts, value in samples])
    (facts,) = series.pods.values()
    assert getattr(facts, fact) == expected


def test_a_query_is_split_if_the_server_rejects_its_size() -> None:
    recording = recording_of([])
    read(Narrow(recording, 1400))
    lengths = {int(n) for query, _ in recording.requested for n in re.findall(r"\[(\d+)s", query)}
    assert lengths == {SECONDS // 4}


def test_no_query_computes_more_points_than_prometheus_does() -> None:
    recording = recording_of([])
    read_pod_series(recording, ImportPeriod(SINCE, SINCE + 40_000, 1), "")
    for query, _ in recording.requested:
        for length, step in re.findall(r"\[(\d+)s:(\d+)s\]", query):
            assert int(length) / int(step) <= 11_000
