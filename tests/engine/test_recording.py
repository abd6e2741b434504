"""The daemon records its workload; an export reproduces the observation at each time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.adapters.database.state import DatabaseState
from reconciler.backtest.recorded import recorded_trace
from reconciler.backtest.trace import Trace, read_trace
from reconciler.backtest.writing import encode_trace, summary_of
from reconciler.catalog.adjusted.adjustment import with_price_factors
from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.observation import Observation
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Mandate, Pass
from reconciler.engine.steps.provision import mark_unavailable
from reconciler.engine.workloadtrace import WorkloadRecorder, classify_pod
from reconciler.engine.world import World as Ports
from reconciler.model.duration import Duration
from reconciler.model.errors import StateError
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from reconciler.model.kubernetes.cluster import (
    ClaimSpec,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeNodeAffinity,
    VolumeSpec,
)
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.kubernetes.pod import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelector,
    NodeSelectorExpression,
    NodeSelectorTerm,
    PersistentVolumeClaimSource,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Volume,
)
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Refusal
from reconciler.ports.state import NodeArrival, OfferingRefusal, PodArrival, TraceBatch, TraceLog
from tests.engine.test_crash import LARGE
from tests.engine.world import TAGS, World, a_deployment, a_node_class, a_pool, a_world
from tests.states import open_state

HOUR = timedelta(hours=1)
Steps = dict[int, Callable[[], None]]


@dataclass
class Watching:
    """The pods that each pass observed on nodes or pending, by name."""

    seen: dict[datetime, frozenset[str]] = field(default_factory=dict)

    def pass_started(self) -> None:
        """Do nothing."""

    def pass_ended(self, world: Ports, desired: PlannedFleet, result: Pass) -> None:
        del world, desired
        pods = result.seen.snapshot.pods
        self.seen[result.seen.at] = frozenset(
            p.key for p in pods if not p.is_daemon and (p.spec.node_name or p.is_provisionable)
        )

    def pass_failed(self, problem: str) -> None:
        raise AssertionError(problem)


@contextmanager
def recorded(folder: Path) -> Iterator[DatabaseState]:
    with open_state(str(folder), "shop") as state:
        yield state


def keep(
    world: World, log: TraceLog, steps: Steps, passes: int, *, quiet: timedelta = HOUR
) -> Watching:
    """Run a daemon for some passes, with actions after some of them."""
    watching, left = Watching(), dict(steps)

    def stop() -> bool:
        left.pop(len(watching.seen), lambda: None)()
        return len(watching.seen) >= passes

    engine = world.engine()
    run(
        replace(engine.ports, trace=log),
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0, quiet=quiet.total_seconds()),
        stop=stop,
        next_change=lambda _: None,
        observer=watching,
    )
    return watching


def a_fleet() -> World:
    return a_world(a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 2))


def replicas(world: World, number: int) -> Callable[[], None]:
    objects = (
        a_node_class(),
        a_pool("web", template={"requirements": LARGE}),
        a_deployment("web", "web", number),
    )
    return lambda: world.git.commit(*objects)


def at_moment(trace: Trace, at: datetime) -> set[str]:
    """Return the pods that existed, by name; a later pod of the same name has a number."""
    assert trace.begin is not None
    seconds = (at - trace.begin).total_seconds()
    return {
        re.sub(r"(\d{5})-\d+$", r"\1", traced.pod.key)
        for traced in trace.pods
        if traced.created <= seconds and (traced.deleted is None or seconds < traced.deleted)
    }


def whole(state: DatabaseState, since: datetime, until: datetime) -> Trace:
    return recorded_trace(state.trace.batches(since), since, until)


def test_a_trace_reproduces_what_was_observed_at_each_time(tmp_path: Path) -> None:
    world = a_fleet()
    begin = world.clock.now()
    with recorded(tmp_path) as state:
        steps = {15: replicas(world, 5), 30: replicas(world, 1)}
        first = keep(world, state.trace, steps, 45)
        second = keep(world, state.trace, {5: replicas(world, 3)}, 20)  # another process
        trace = whole(state, begin, world.clock.now() + HOUR)
    seen = first.seen | second.seen
    assert len({len(pods) for pods in seen.values()}) >= 4, "pods come and go"
    for at, pods in seen.items():
        assert at_moment(trace, at) == pods
    assert len(trace.nodes) >= 3
    assert all(node.price is not None and node.price > 0 for node in trace.nodes)
    assert trace.pods[0].pod.metadata.owner_references[0].kind == "ReplicaSet"
    assert read_trace(encode_trace(trace), "copy") == trace
    found = summary_of(trace)
    assert found.dollars is not None
    assert found.dollars > 0
    assert (found.classes, found.nodes) == (1, len(trace.nodes))


def test_part_of_a_recording_is_a_trace_of_that_period(tmp_path: Path) -> None:
    world = a_fleet()
    with recorded(tmp_path) as state:
        seen = keep(world, state.trace, {15: replicas(world, 5), 30: replicas(world, 1)}, 45).seen
        moments = sorted(seen)
        since, until = moments[17], moments[-5]
        trace = whole(state, since, until)
    assert trace.begin == since
    assert trace.seconds == (until - since).total_seconds()
    for at in moments[17:-5]:
        assert at_moment(trace, at) == seen[at]


def test_quiet_passes_add_only_one_complete_batch_a_day(tmp_path: Path) -> None:
    world = a_fleet()
    begin = world.clock.now()
    with recorded(tmp_path) as state:
        keep(world, state.trace, {}, 30)
        before = len(list(state.trace.batches(begin)))
        keep(world, state.trace, {}, 14, quiet=6 * HOUR)
        batches = list(state.trace.batches(begin))[before:]
    assert [(batch.is_whole, len(batch.pods), batch.daemons) for batch in batches] == [
        (True, 2, {})
    ] * 4


def test_entries_older_than_the_retention_are_removed(tmp_path: Path) -> None:
    world = a_fleet()
    begin = world.clock.now()
    world.settings = replace(world.settings, history_trace=Duration("2d"))
    with recorded(tmp_path) as state:
        keep(world, state.trace, {}, 50, quiet=6 * HOUR)
        (first, *_) = state.trace.batches(begin)
        now = world.clock.now()
        assert first.is_whole
        assert timedelta(days=2) < now - first.at < timedelta(days=4)
        assert len(whole(state, now - timedelta(days=2), now).pods) == 2


def test_a_failed_write_of_the_trace_stops_nothing_and_starts_a_new_batch(tmp_path: Path) -> None:
    world = a_fleet()

    @dataclass
    class Broken:
        log: TraceLog
        is_full: bool = False

        def append(self, batch: TraceBatch, forget_before: datetime | None = None) -> None:
            if self.is_full:
                raise StateError("the disk is full")
            self.log.append(batch, forget_before)

        def batches(self, since: datetime) -> Iterator[TraceBatch]:
            return self.log.batches(since)

    begin = world.clock.now()
    with recorded(tmp_path) as state:
        log = Broken(state.trace)

        def fill() -> None:
            log.is_full = True
            replicas(world, 5)()

        def clear() -> None:
            log.is_full = False

        seen = keep(world, log, {10: fill, 30: clear}, 40).seen
        trace = whole(state, begin, world.clock.now() + HOUR)
    problems = [
        message for message in world.recorder.messages("Retrying") if "for backtests" in message
    ]
    assert problems == ["cannot record the workload for backtests: the disk is full"]
    last = max(seen)
    assert at_moment(trace, last) == seen[last]
    assert len(seen[last]) == 5


def test_nothing_is_recorded_unless_enabled(tmp_path: Path) -> None:
    world = a_fleet()
    world.settings = replace(world.settings, history_trace=None)
    with recorded(tmp_path) as state:
        keep(world, state.trace, {}, 30)
        with pytest.raises(StateError, match="there is no record") as caught:
            whole(state, world.clock.now() - HOUR, world.clock.now())
    assert "history.trace" in caught.value.remedy


START = datetime.fromisoformat("2026-03-02T09:00:00+00:00")
_POD = Pod(
    Metadata(name="a"),
    PodSpec((Container("main", ResourceRequirements(requests={"cpu": "1"})),)),
)


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.frozensets(st.integers(0, 5)), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_any_recording_reproduces_the_pods_of_each_time(
    moves: list[tuple[int, frozenset[int], bool]],
) -> None:
    """Any sets of pods, in complete or incremental batches, equal those of the trace."""
    kind = classify_pod(_POD)
    at, present, created = START, frozenset[int](), dict[int, datetime]()
    batches, seen = [], {}
    for n, (seconds, pods, is_whole) in enumerate(moves):
        at += timedelta(seconds=seconds)
        created = {p: created[p] if p in present else at for p in pods}
        starts = is_whole or n == 0
        rows = [
            PodArrival(f"shop/{p}", "k", created[p]) for p in pods if starts or p not in present
        ]
        gone = () if starts else tuple(f"shop/{p}" for p in present - pods)
        batches.append(
            TraceBatch(at, starts, gone, classes={"k": kind} if starts else {}, pods=tuple(rows))
        )
        seen[at], present = {f"shop/{p}" for p in pods}, pods
    trace = recorded_trace(batches, START, at + timedelta(seconds=1))
    for moment, pods_then in seen.items():
        assert {key.partition("-")[0] for key in at_moment(trace, moment)} == pods_then


def test_a_recreated_stateful_pod_gets_a_distinct_name() -> None:
    kind = classify_pod(_POD)
    rows = [PodArrival("shop/db-0", "k", START + n * HOUR, START + n * HOUR) for n in range(3)]
    batches = [
        TraceBatch(START, is_whole=True, classes={"k": kind}, pods=(rows[0],)),
        TraceBatch(START + HOUR, gone=("shop/db-0",), pods=(rows[1],)),
        TraceBatch(START + 2 * HOUR, gone=("shop/db-0",), pods=(rows[2],)),
    ]
    trace = recorded_trace(batches, START, START + 3 * HOUR)
    assert [(t.pod.metadata.name, t.created, t.life) for t in trace.pods] == [
        ("db-0", 0.0, 3600.0),
        ("db-0-2", 3600.0, 3600.0),
        ("db-0-3", 7200.0, None),
    ]


def test_a_recording_does_not_cover_the_time_long_after_it() -> None:
    node = NodeArrival("n", "web", "m5.large", "us-east-1a", "spot", START, 0.05)
    batch = TraceBatch(START, is_whole=True, nodes=(node,))
    trace = recorded_trace([batch], START - HOUR, START + timedelta(days=9))
    assert trace.seconds == timedelta(days=1).total_seconds()
    assert summary_of(trace).dollars == pytest.approx(24 * 0.05)


def test_a_pod_class_contains_nothing_specific_to_one_pod() -> None:
    def pod(name: str, **spec: Any) -> Pod:
        labels = {"app": "db", "statefulset.kubernetes.io/pod-name": name}
        return Pod(Metadata(name=name, labels=labels, uid=name), PodSpec(**spec))

    assert classify_pod(pod("db-0")) == classify_pod(pod("db-1", node_name="n"))


@dataclass
class Kept:
    """A record in memory."""

    kept: list[TraceBatch] = field(default_factory=list)

    def append(self, batch: TraceBatch, forget_before: datetime | None = None) -> None:
        del forget_before
        self.kept.append(batch)

    def batches(self, since: datetime) -> Iterator[TraceBatch]:
        del since
        return iter(self.kept)


@cache
def _engine() -> tuple[PlannedFleet, Ports]:
    """Return a fleet and a world for recorders that are asked directly."""
    engine = a_fleet().engine()
    return engine.source.read(), engine.ports


_WAITING = PodStatus("Pending", (Condition("PodScheduled", "False", reason="Unschedulable"),))
_HOSTS = ("", "node-0", "node-1", "foreign")
_Scene = tuple[frozenset[int], dict[int, int]]
_SCENES = st.tuples(
    st.frozensets(st.integers(0, 1)), st.dictionaries(st.integers(0, 5), st.integers(0, 3))
)


@given(st.lists(_SCENES, min_size=1, max_size=8))
def test_any_moves_of_pods_and_nodes_are_recorded(scenes: list[_Scene]) -> None:
    """Pods that wait, run on the fleet or elsewhere: the record has those of the fleet."""
    desired, ports = _engine()
    log, pods, seen = Kept(), dict[tuple[int, int], Pod](), {}
    recorder = WorkloadRecorder(log)
    for n, (nodes, places) in enumerate(scenes):
        at = START + n * timedelta(seconds=10)
        claims = tuple(
            NodeClaim(
                Metadata(name=f"claim-{i}"),
                status=NodeClaimStatus(node_name=f"node-{i}", provider_id=f"aws:///i-{i}"),
            )
            for i in sorted(nodes)
        )
        shown = []
        for pod, host in sorted(places.items()):
            made = Pod(
                Metadata(name=str(pod), namespace="shop", uid=str(pod)),
                PodSpec(node_name=_HOSTS[host]),
                _WAITING if host == 0 else PodStatus("Running"),
            )
            shown.append(pods.setdefault((pod, host), made))
        observed = Snapshot(pods=tuple(shown), node_claims=claims)
        recorder.record_pass(ports, Observation(at, (), observed, ()), desired)
        ours = {"", *(f"node-{i}" for i in nodes)}
        seen[at] = {f"shop/{pod}" for pod, host in places.items() if _HOSTS[host] in ours}
    trace = recorded_trace(log.kept, START, START + len(scenes) * timedelta(seconds=10))
    for moment, present in seen.items():
        assert {key.partition("-")[0] for key in at_moment(trace, moment)} == present


def test_spot_prices_and_refusals_are_recorded_as_differences() -> None:
    world = a_fleet()
    ports = world.engine().ports
    desired = world.engine().source.read()
    begin = world.clock.now()
    raised = with_price_factors(
        desired.catalog, lambda _kind, zone, _type: 2.0 if zone.endswith("a") else 1.0, "2"
    )
    refusal = Refusal("m7i.large", "us-east-1a", "spot", "InsufficientInstanceCapacity", "")
    log = Kept()
    recorder = WorkloadRecorder(log)
    for n, fleet in enumerate((desired, desired, replace(desired, catalog=raised))):
        recorder.record_pass(ports, Observation(ports.clock.now(), (), Snapshot(), ()), fleet)
        world.clock.advance(20)
        if n == 1:
            mark_unavailable(ports, [refusal])
    end = ports.clock.now() + HOUR
    first, then = log.kept
    assert first.spot is not None
    assert sorted(first.spot) == sorted(desired.catalog.names)
    assert then.spot is not None
    assert then.spot["m7i.large"] == {"us-east-1a": 0.08}, "the other zone costs as before"
    assert [(one.instance_type, one.zone) for one in then.refused] == [("m7i.large", "us-east-1a")]
    trace = recorded_trace(log.kept, begin, end)
    (period,) = trace.market.refusals
    assert (period.refused_from, period.until) == (40.0, 40.0 + 180.0)
    later = recorded_trace(log.kept, begin + timedelta(seconds=50), end)
    assert later.market.prices[0].at == 0.0
    assert later.market.prices[0].spot_prices["m7i.large"]["us-east-1a"] == 0.08
    assert later.market.refusals[0].refused_from == 0.0
    assert read_trace(encode_trace(trace), "copy") == trace
    found = summary_of(trace).market
    assert found is not None
    assert (found.priced, found.price_changes, found.largest_rise_percent) == (6, 3, 100.0)
    assert (found.refused, found.refusals, found.refused_hours) == (1, 1, 0.05)


def test_a_refusal_that_goes_on_is_one_period() -> None:
    def refused(until: float) -> OfferingRefusal:
        return OfferingRefusal("m5.large", "us-east-1a", "spot", START + until * HOUR)

    batches = [
        TraceBatch(START, is_whole=True, refused=(refused(2),)),
        TraceBatch(START + HOUR, refused=(refused(3),)),
        TraceBatch(START + 2 * HOUR, is_whole=True, refused=(refused(3),)),
        TraceBatch(START + 5 * HOUR, refused=(refused(6),)),
    ]
    market = recorded_trace(batches, START + HOUR, START + 8 * HOUR).market
    assert [(r.refused_from, r.until) for r in market.refusals] == [
        (0.0, 2 * 3600),
        (4 * 3600, 5 * 3600),
    ]


def test_a_record_without_prices_is_a_trace_without_prices() -> None:
    batches = [
        TraceBatch(START, is_whole=True),
        TraceBatch(START + HOUR, is_whole=True, spot={"m5.large": {"us-east-1a": 0.04}}),
        TraceBatch(START + 2 * HOUR, is_whole=True),
        TraceBatch(START + 3 * HOUR, is_whole=True, spot={}),
    ]
    trace = recorded_trace(batches, START, START + 4 * HOUR)
    assert [(change.at, change.spot_prices) for change in trace.market.prices] == [
        (3600.0, {"m5.large": {"us-east-1a": 0.04}}),
        (3 * 3600.0, {"m5.large": {"us-east-1a": None}}),
    ]
    assert not recorded_trace(batches[:1], START, START + HOUR).market
    assert not trace.workload_only.market


def _a_volume(name: str, *zones: str) -> tuple[PersistentVolumeClaim, PersistentVolume]:
    terms = tuple(
        NodeSelectorTerm((NodeSelectorExpression("topology.ebs.csi.aws.com/zone", "In", (zone,)),))
        for zone in zones
    )
    affinity = VolumeNodeAffinity(NodeSelector(terms)) if zones else None
    return (
        PersistentVolumeClaim(
            Metadata(name=name, namespace="shop"), ClaimSpec(volume_name=f"pv-{name}")
        ),
        PersistentVolume(Metadata(name=f"pv-{name}"), VolumeSpec(affinity)),
    )


def _zones_in(spec: PodSpec) -> list[list[tuple[str, tuple[str, ...]]]]:
    assert spec.affinity is not None
    assert spec.affinity.node_affinity is not None
    assert spec.affinity.node_affinity.required is not None
    terms = spec.affinity.node_affinity.required.node_selector_terms
    return [[(e.key, e.values) for e in term.match_expressions] for term in terms]


def test_a_pod_with_a_bound_volume_keeps_its_zone() -> None:
    desired, ports = _engine()
    bound = [_a_volume("data", "us-east-1b"), _a_volume("logs", "us-east-1a", "us-east-1b")]
    free = PersistentVolumeClaim(Metadata(name="new", namespace="shop"), ClaimSpec())
    arm = NodeSelectorExpression("kubernetes.io/arch", "In", ("arm64",))
    own = Affinity(NodeAffinity(NodeSelector((NodeSelectorTerm((arm,)),))))

    def pod(name: str, *claims: str, affinity: Affinity | None = None) -> Pod:
        volumes = tuple(Volume(c, PersistentVolumeClaimSource(c)) for c in claims)
        spec = PodSpec(volumes=volumes, affinity=affinity)
        return Pod(Metadata(name=name, namespace="shop"), spec, _WAITING)

    snapshot = Snapshot(
        pods=(
            pod("a", "data"),
            pod("b", "data", "logs", affinity=own),
            pod("c", "new"),
            pod("d", "missing"),
        ),
        volume_claims=(*(claim for claim, _ in bound), free),
        volumes=tuple(volume for _, volume in bound),
    )
    log = Kept()
    WorkloadRecorder(log).record_pass(ports, Observation(START, (), snapshot, ()), desired)
    specs = {
        t.pod.metadata.name: t.pod.spec for t in recorded_trace(log.kept, START, START + HOUR).pods
    }
    zone = "topology.kubernetes.io/zone"
    assert _zones_in(specs["a"]) == [[(zone, ("us-east-1b",))]]
    assert _zones_in(specs["b"]) == [[(arm.key, arm.values), (zone, ("us-east-1b",))]]
    assert specs["c"].affinity is None
    assert specs["d"].affinity is None
