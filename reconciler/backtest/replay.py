"""Replays a trace as the workloads of a simulated cluster.

A pod is created when it was created in the trace, and stays for as long as it did there, counted
from its first binding here. Its controller deletes it so early that it is gone then; a pod of a Job
completes. An evicted pod is recreated with the same name; its lifetime continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush

from reconciler.adapters.simulated.conditions import RecordedMarket
from reconciler.backtest.trace import Trace, TracedPod
from reconciler.desired.workloads.pods import Workloads
from reconciler.model.kubernetes.cluster import DaemonSet
from reconciler.model.kubernetes.controllers import grace_period, is_completed_when_gone
from reconciler.model.kubernetes.pod import Pod
from reconciler.ports.progress import EventKind
from reconciler.simulate.eventlog import Event


@dataclass(slots=True)
class Stay:
    """The outcome of a pod of the trace: when it was created, first bound, and ended."""

    traced: TracedPod
    created: datetime
    bound: datetime | None = None
    ended: datetime | None = None


@dataclass
class Replay:
    """The pods of a trace that begins at ``start``; ``base`` are the other workloads."""

    trace: Trace
    start: datetime
    base: Workloads = field(default_factory=Workloads)
    stays: dict[str, Stay] = field(default_factory=dict, init=False)
    _next: int = field(default=0, init=False)
    _ends: list[tuple[datetime, str]] = field(default_factory=list, init=False)
    _present: dict[str, Pod] = field(default_factory=dict, init=False)
    _last_workloads: tuple[Workloads, Workloads] | None = field(default=None, init=False)

    @property
    def end(self) -> datetime:
        """When the trace ends."""
        return self.start + timedelta(seconds=self.trace.seconds)

    @property
    def market(self) -> RecordedMarket:
        """The spot prices and refusals of the trace, at the time of the replay."""
        return self.trace.market.replay_from(self.start)

    def workloads(self, now: datetime) -> Workloads:
        """Return the pods that should run now: the same object until a pod is created or ends."""
        changed = False
        while self._ends and self._ends[0][0] <= now:
            ends, key = heappop(self._ends)
            self.stays[key].ended = ends + _termination(self._present.pop(key))
            changed = True
        for traced in self._arrivals(now):
            key = traced.pod.key
            self.stays[key] = Stay(traced, self._time_at(traced.created))
            self._present[key] = traced.pod
            changed = True
        known = self._last_workloads
        if changed or known is None or known[0] is not self.base:
            pods = (*self.base.pods, *self._present.values())
            self._last_workloads = known = (
                self.base,
                replace(self.base, pods=pods, daemon_sets=self._daemon_sets()),
            )
        return known[1]

    def record_event(self, event: Event) -> None:
        """Record which pods are bound."""
        stay = self.stays.get(event.pod)
        if event.kind != EventKind.POD_BOUND or stay is None or stay.bound is not None:
            return
        stay.bound = event.at
        if stay.traced.life is not None:
            gone = event.at + timedelta(seconds=stay.traced.life)
            heappush(self._ends, (max(event.at, gone - _termination(stay.traced.pod)), event.pod))

    def next_moment(self, now: datetime) -> datetime | None:
        """Return when a pod is created or ends next; overdue times are now."""
        moments = [self._ends[0][0]] if self._ends else []
        if self._next < len(self.trace.pods):
            moments.append(self._time_at(self.trace.pods[self._next].created))
        return max(min(moments), now) if moments else None

    def _daemon_sets(self) -> tuple[DaemonSet, ...]:
        """Return the DaemonSets of the trace and of the fleet folder, which takes precedence."""
        known = {_key(daemon): daemon for daemon in (*self.trace.daemons, *self.base.daemon_sets)}
        return tuple(known[key] for key in sorted(known))

    def _arrivals(self, now: datetime) -> Iterator[TracedPod]:
        pods = self.trace.pods
        while self._next < len(pods) and self._time_at(pods[self._next].created) <= now:
            self._next += 1
            yield pods[self._next - 1]

    def _time_at(self, seconds: float) -> datetime:
        return self.start + timedelta(seconds=seconds)


def _termination(pod: Pod) -> timedelta:
    """Return how long a pod that its controller no longer wants stays on its node."""
    return timedelta() if is_completed_when_gone(pod) else grace_period(pod)


def _key(daemon: DaemonSet) -> tuple[str, str]:
    return daemon.metadata.namespace, daemon.metadata.name
