"""The pods of a simulation that change in time: those of CronJobs, and those of a revision."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush

from reconciler.desired.fleet import Fleet
from reconciler.desired.workloads.cronjobs import ConcurrencyPolicy, CronJob, cron_jobs, job_pods
from reconciler.desired.workloads.pods import Workloads
from reconciler.desired.workloads.podsets import ReplicaChoice
from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.pods.replicas import rescale
from reconciler.ports.progress import EventKind
from reconciler.simulate.eventlog import Event
from reconciler.source.resource import Resource


@dataclass(frozen=True, slots=True)
class CapturedWorkloads:
    """The workloads of a snapshot, and the autoscalers in it."""

    workloads: Workloads
    autoscalers: tuple[Resource, ...]
    start: datetime

    def of_fleet(self, fleet: Fleet, percent: int | None) -> Workloads:
        """Return the workloads with the replicas that the autoscalers of a revision allow."""
        pods, choice = self.workloads.pods, ReplicaChoice(percent)
        found = rescale(pods, self.autoscalers, fleet.workloads, choice, self.start)
        return self.workloads if found.pods == pods else replace(self.workloads, pods=found.pods)


@dataclass
class ScheduledWorkloads:
    """Other workloads (``base``), and the pods of Jobs that CronJobs have started since ``start``.

    A pod ends when its duration has passed since it was first bound.
    """

    fleet: Fleet
    crons: tuple[CronJob, ...]
    start: datetime
    base: Workloads = field(default_factory=Workloads)
    _due: list[tuple[datetime, int]] = field(default_factory=list, init=False)
    _ends: list[tuple[datetime, str]] = field(default_factory=list, init=False)
    _present: dict[str, Pod] = field(default_factory=dict, init=False)
    _owners: dict[str, int] = field(default_factory=dict, init=False)
    _bound: set[str] = field(default_factory=set, init=False)
    _last: tuple[Workloads, Workloads] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for number in range(len(self.crons)):
            self._schedule(number, self.start)

    def workloads(self, now: datetime) -> Workloads:
        """Return the pods that should run now: the same object until a pod is created or ends."""
        changed = False
        while self._ends and self._ends[0][0] <= now:
            changed |= self._end(heappop(self._ends)[1])
        while self._due and self._due[0][0] <= now:
            moment, number = heappop(self._due)
            changed |= self._begin(number, moment)
            self._schedule(number, moment)
        known = self._last
        if changed or known is None or known[0] is not self.base:
            pods = (*self.base.pods, *self._present.values())
            self._last = known = (self.base, replace(self.base, pods=pods))
        return known[1]

    def record_event(self, event: Event) -> None:
        """Record which pods are bound."""
        number = self._owners.get(event.pod)
        if (
            event.kind == EventKind.POD_BOUND
            and number is not None
            and event.pod not in self._bound
        ):
            self._bound.add(event.pod)
            heappush(self._ends, (event.at + self.crons[number].life, event.pod))

    def next_moment(self, now: datetime) -> datetime | None:
        """Return when a pod is created or ends next; overdue times are now."""
        moments = [queue[0][0] for queue in (self._ends, self._due) if queue]
        return max(min(moments), now) if moments else None

    def _schedule(self, number: int, after: datetime) -> None:
        cron = self.crons[number]
        moment = cron.schedule.next_after(after, cron.zone)
        if moment is not None:
            heappush(self._due, (moment, number))

    def _begin(self, number: int, moment: datetime) -> bool:
        """Start the Job that is due, as the policy allows; return whether pods have changed."""
        cron = self.crons[number]
        running = [pod for pod, owner in self._owners.items() if owner == number]
        if running and cron.policy is ConcurrencyPolicy.FORBID:
            return False
        if running and cron.policy is ConcurrencyPolicy.REPLACE:
            for key in running:
                self._end(key)
        for made in job_pods(self.fleet, cron, moment):
            self._present[made.key] = made
            self._owners[made.key] = number
        return True

    def _end(self, key: str) -> bool:
        self._bound.discard(key)
        self._owners.pop(key, None)
        return self._present.pop(key, None) is not None


def scheduled_workloads(
    fleet: Fleet, durations: Mapping[str, timedelta], start: datetime, pods: Iterable[Pod] = ()
) -> ScheduledWorkloads | None:
    """Return the workloads with the CronJobs of a fleet, None without any.

    ``durations`` are stated ones; the ``pods`` of a cluster record others. A note on stderr names
    the CronJobs whose duration is not known.
    """
    crons = cron_jobs(fleet, durations, pods)
    assumed = [cron.key for cron in crons if cron.is_assumed]
    if assumed:
        sys.stderr.write(
            f"Note: pods of CronJobs are assumed to run 10 minutes: {', '.join(assumed[:5])}; "
            "set --duration cronjob/NAME=20m\n"
        )
    return ScheduledWorkloads(fleet, crons, start) if crons else None
