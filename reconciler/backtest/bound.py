"""The lowest price of nodes for the pods that run at each moment of a backtest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from heapq import merge
from typing import Final, NamedTuple

from reconciler.backtest.replay import Stay
from reconciler.desired.objects import node_overlays
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.pools import LaunchFacts, PoolTypes, pool_types
from reconciler.simulate.building import SimulatedFleet

_HOUR: Final = timedelta(hours=1)
TIMELESS: Final = datetime.fromisoformat("2000-01-01T00:00:00+00:00")
"""The time of placements that do not depend on a clock."""


class Stretch(NamedTuple):
    """A period in which the same pods run, at the prices of ``fleet``.

    The next period changes ``pods``, so do not keep a reference to them.
    """

    fleet: SimulatedFleet
    pods: Mapping[str, Pod]
    hours: float


def stretches(fleet: SimulatedFleet, stays: Iterable[Stay], end: datetime) -> Iterator[Stretch]:
    """Yield the periods between two changes of pods or prices, except those without pods.

    A pod runs from its first node to its end in the trace.
    """
    moments = [*_pod_changes(stays, end)]
    if not moments:
        return
    priced = [(at, "", None) for at in fleet.price_moments() if moments[0][0] < at < end]
    running: dict[str, Pod] = {}
    current, before = fleet.priced_at(moments[0][0]), moments[0][0]
    for at, key, pod in merge(priced, moments, key=lambda moment: moment[0]):
        if at > before and running:
            yield Stretch(current, running, (at - before) / _HOUR)
        before = at
        if not key:
            current = fleet.priced_at(at)
        elif pod is None:
            del running[key]
        else:
            running[key] = pod


def lower_bounds(fleet: SimulatedFleet, stays: Iterable[Stay], end: datetime) -> list[float]:
    """Return the lowest cost of nodes for the running pods in each stretch, in USD.

    The prices are those of each moment.
    """
    bounds: list[float] = []
    lowest: _LowestPrice | None = None
    for stretch in stretches(fleet, stays, end):
        if lowest is None or lowest.fleet is not stretch.fleet:
            lowest = _LowestPrice(stretch.fleet)
        bounds.append(lowest.compute(stretch.pods) * stretch.hours)
    return bounds


def launchable_types(fleet: SimulatedFleet) -> PoolTypes:
    """Return the instance types that the NodePools may launch, with all offerings available."""
    return pool_types(
        LaunchFacts(
            fleet.node_pools,
            {**fleet.classes, **fleet.placeholder_classes},
            node_overlays(fleet.fleet),
            fleet.catalog,
            fleet.settings,
        )
    )


def cluster_without_nodes(fleet: SimulatedFleet) -> ClusterState:
    """Return a cluster with only the fleet's DaemonSets."""
    return cluster_state(Snapshot(daemon_sets=fleet.workloads.daemon_sets))


def _pod_changes(
    stays: Iterable[Stay], end: datetime
) -> Iterator[tuple[datetime, str, Pod | None]]:
    """Yield when pods start and end, in order; ends come first."""
    moments: list[tuple[datetime, int, str, Pod | None]] = []
    for stay in stays:
        if stay.bound is None or stay.bound >= end:
            continue
        key = stay.traced.pod.key
        until = min(stay.ended or end, end)
        if until > stay.bound:
            moments += [(stay.bound, 1, key, stay.traced.pod), (until, 0, key, None)]
    moments.sort(key=lambda moment: moment[:3])
    for at, _, key, pod in moments:
        yield at, key, pod


class _LowestPrice:
    """The lowest price of nodes for sets of pods, computed once for equal sets."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self.fleet = fleet
        self._scheduler = Scheduler(
            launchable_types(fleet).ready, cluster_without_nodes(fleet), fleet.settings, TIMELESS
        )
        self._known: dict[tuple[tuple[int, int], ...], float] = {}

    def compute(self, pods: Mapping[str, Pod]) -> float:
        """Return USD an hour."""
        counts: dict[int, int] = {}
        for pod in pods.values():  # pods of one class share their spec
            counts[id(pod.spec)] = counts.get(id(pod.spec), 0) + 1
        kind = tuple(sorted(counts.items()))
        if kind not in self._known:
            self._known[kind] = self._scheduler.lower_bound(pods.values()).cost
        return self._known[kind]
