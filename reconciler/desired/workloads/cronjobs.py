"""CronJobs in time: when each starts a Job, and the pods that the Job has.

Sources: ``pkg/controller/cronjob`` of Kubernetes 1.34. A Job has the name of its CronJob and the
minute of its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Final

from reconciler.desired.fleet import Fleet
from reconciler.desired.workloads.kinds import kind_table, value_of
from reconciler.desired.workloads.pods import expand
from reconciler.desired.workloads.podsets import number_at
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.schedule import Schedule, parse_schedule, time_zone
from reconciler.source.resource import Resource

ASSUMED_DURATION: Final = timedelta(minutes=10)
"""How long a pod of a CronJob runs if nothing states it."""

_CONTEXT: Final = ("LimitRange", "RuntimeClass", "Namespace", "PriorityClass", "StorageClass")
"""The kinds that change the pods of a Job."""


class ConcurrencyPolicy(StrEnum):
    """What happens when a Job is due while the one before it runs."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True)
class CronJob:
    """A CronJob that is not suspended: when it starts Jobs, and how long the pods of one run.

    ``is_assumed`` is whether the duration is not stated anywhere.
    """

    resource: Resource
    schedule: Schedule
    zone: tzinfo
    policy: ConcurrencyPolicy
    duration: timedelta
    is_assumed: bool

    @property
    def key(self) -> str:
        return f"{self.resource.namespace}/{self.resource.name}"

    def starts(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield when Jobs are due after one time and until another."""
        moment = self.schedule.next_after(after, self.zone)
        while moment is not None and moment <= until:
            yield moment
            moment = self.schedule.next_after(moment, self.zone)

    @property
    def life(self) -> timedelta:
        """How long a Job runs: its pods run one after another where not all may run at once."""
        spec = value_of(self.resource.data, "spec.jobTemplate.spec")
        parallel = max(number_at(spec, "parallelism", 1), 1)
        return self.duration * max(-(-number_at(spec, "completions", parallel) // parallel), 1)

    def job(self, at: datetime) -> Resource:
        """Return the Job that is started at a time."""
        template = value_of(self.resource.data, "spec.jobTemplate") or {}
        name = f"{self.resource.name}-{int(at.timestamp()) // 60}"
        metadata = {**(template.get("metadata") or {}), "name": name}
        data = {"metadata": metadata, "spec": template.get("spec") or {}}
        return self.resource._replace(kind="Job", name=name, data=data)


def cron_jobs(fleet: Fleet, durations: Mapping[str, timedelta]) -> tuple[CronJob, ...]:
    """Return the CronJobs of a fleet, in order of their names.

    ``durations`` are known ones by ``namespace/name`` or by name. A schedule or time zone that
    cannot be read is a finding of the object, and the CronJob is left out.
    """
    found = []
    for resource in fleet.workloads:
        if resource.kind != "CronJob" or value_of(resource.data, "spec.suspend") is True:
            continue
        spec = resource.data["spec"]
        try:
            schedule = parse_schedule(spec["schedule"])
            zone = time_zone(spec.get("timeZone"))
        except ValueError:
            continue
        known = durations.get(f"{resource.namespace}/{resource.name}", durations.get(resource.name))
        policy = ConcurrencyPolicy(spec.get("concurrencyPolicy") or "Allow")
        found.append(
            CronJob(resource, schedule, zone, policy, known or ASSUMED_DURATION, known is None)
        )
    return tuple(found)


def job_pods(fleet: Fleet, cron: CronJob, at: datetime) -> tuple[Pod, ...]:
    """Return the pods of the Job that a CronJob starts at a time, as admission makes them."""
    context = [r for r in fleet.workloads if r.kind in _CONTEXT]
    made, _ = expand([*context, cron.job(at)], now=at, kinds=kind_table(fleet.config))
    return made.pods


@dataclass(frozen=True, slots=True)
class Peak:
    """The time at which most pods of CronJobs run, and these pods."""

    at: datetime
    pods: tuple[Pod, ...]


def peak_of(
    fleet: Fleet, crons: Iterable[CronJob], start: datetime, span: timedelta
) -> Peak | None:
    """Return the peak within ``span`` after ``start``, the first of several; None without pods."""
    running: list[tuple[datetime, datetime, CronJob]] = []
    for cron in crons:
        last: datetime | None = None
        for begin in cron.starts(start, start + span):
            if cron.policy is ConcurrencyPolicy.FORBID and last is not None and begin < last:
                continue
            if cron.policy is ConcurrencyPolicy.REPLACE and last is not None and begin < last:
                running[-1] = (running[-1][0], begin, cron)
            last = begin + cron.life
            running.append((begin, last, cron))
    sizes = {cron.key: len(job_pods(fleet, cron, start)) for _, _, cron in running}
    best, moment = 0, start
    for begin, _, _ in sorted(running, key=lambda run: run[0]):
        count = sum(sizes[c.key] for since, until, c in running if since <= begin < until)
        if count > best:
            best, moment = count, begin
    if not best:
        return None
    pods = [
        pod
        for since, until, cron in running
        if since <= moment < until
        for pod in job_pods(fleet, cron, since)
    ]
    return Peak(moment, tuple(pods))
