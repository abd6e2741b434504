"""CronJobs in time: when each starts a Job, the pods that the Job has, and when most of them run.

Sources: ``pkg/controller/cronjob`` of Kubernetes 1.34. A Job has the name of its CronJob and the
minute of its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import chain
from typing import Final

from reconciler.desired.fleet import Fleet
from reconciler.desired.workloads.kinds import kind_table, value_of
from reconciler.desired.workloads.pods import Workloads, expand
from reconciler.desired.workloads.podsets import number_at
from reconciler.model.kubernetes.metadata import condition
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import Resources, add_resources
from reconciler.model.schedule import Schedule, parse_schedule, time_zone
from reconciler.source.resource import Resource

ASSUMED_DURATION: Final = timedelta(minutes=10)
"""How long a pod of a CronJob runs if it is neither stated nor recorded."""

DAY: Final = timedelta(days=1)

_CONTEXT: Final = frozenset(
    {
        "LimitRange",
        "RuntimeClass",
        "Namespace",
        "PriorityClass",
        "StorageClass",
        "PersistentVolume",
        "PersistentVolumeClaim",
    }
)
"""The kinds that change the pods of a Job."""


class ConcurrencyPolicy(StrEnum):
    """What happens when a Job is due while the one before it runs."""

    ALLOW = "Allow"
    FORBID = "Forbid"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True)
class CronJob:
    """A CronJob that is not suspended: when it starts Jobs, and how long the pods of one run.

    ``duration`` is that of a pod. ``is_assumed`` is whether it is neither stated nor recorded.
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
        """How long a Job runs: its pods run one after another where not all may run at once.

        A Job is ended at its ``activeDeadlineSeconds``.
        """
        spec = value_of(self.resource.data, "spec.jobTemplate.spec")
        deadline = number_at(spec, "activeDeadlineSeconds", 0)
        life = self.duration * _rounds(self.resource)
        return min(life, timedelta(seconds=deadline)) if deadline else life

    def job(self, at: datetime) -> Resource:
        """Return the Job that is started at a time."""
        template = value_of(self.resource.data, "spec.jobTemplate") or {}
        name = f"{self.resource.name}-{int(at.timestamp()) // 60}"
        metadata = {**(template.get("metadata") or {}), "name": name}
        data = {"metadata": metadata, "spec": template.get("spec") or {}}
        return self.resource._replace(kind="Job", name=name, data=data)


def _rounds(resource: Resource) -> int:
    """Return how many pods of a Job run one after another."""
    spec = value_of(resource.data, "spec.jobTemplate.spec")
    parallel = max(number_at(spec, "parallelism", 1), 1)
    return max(-(-number_at(spec, "completions", parallel) // parallel), 1)


def cron_jobs(
    fleet: Fleet, stated: Mapping[str, timedelta], pods: Iterable[Pod] = ()
) -> tuple[CronJob, ...]:
    """Return the CronJobs of a fleet, in order of their names.

    ``stated`` are durations of their pods by ``namespace/name`` or by name. Otherwise the longest
    of the recorded ones counts: of the ``pods`` of a cluster that have succeeded, else of the last
    Job in the status of the CronJob. A schedule or time zone that cannot be read is a finding of
    the object, and the CronJob is left out.
    """
    resources = [r for r in fleet.workloads if r.kind == "CronJob"]
    recorded = _recorded_durations(resources, pods) if resources else {}
    found = []
    for resource in resources:
        if value_of(resource.data, "spec.suspend") is True:
            continue
        spec = resource.data["spec"]
        try:
            schedule = parse_schedule(spec["schedule"])
            zone = time_zone(spec.get("timeZone"))
        except ValueError:
            continue
        key = f"{resource.namespace}/{resource.name}"
        known = stated.get(key, stated.get(resource.name, recorded.get(key)))
        policy = ConcurrencyPolicy(spec.get("concurrencyPolicy") or "Allow")
        found.append(
            CronJob(resource, schedule, zone, policy, known or ASSUMED_DURATION, known is None)
        )
    return tuple(found)


def _recorded_durations(resources: Sequence[Resource], pods: Iterable[Pod]) -> dict[str, timedelta]:
    """Return how long pods of CronJobs have run, by the key of the CronJob."""
    found: dict[str, timedelta] = {}
    for resource in resources:
        last = _last_run(resource)
        if last is not None:
            found[f"{resource.namespace}/{resource.name}"] = last / _rounds(resource)
    of_pods: dict[str, timedelta] = {}
    for pod in pods:
        key, span = _cron_job_of(pod), _time_of(pod)
        if key and span is not None:
            of_pods[key] = max(span, of_pods.get(key, span))
    return found | of_pods


def _last_run(resource: Resource) -> timedelta | None:
    """Return how long the last Job took, None if it is not known or has not succeeded."""
    try:
        begin, end = (
            datetime.fromisoformat(value_of(resource.data, f"status.{name}"))
            for name in ("lastScheduleTime", "lastSuccessfulTime")
        )
        return end - begin if end > begin else None
    except (TypeError, ValueError):  # there is none, or one has no time zone
        return None


def _time_of(pod: Pod) -> timedelta | None:
    """Return how long a pod has run, None if it has not succeeded.

    Its containers are no longer ready from its end on.
    """
    begin, ready = pod.status.start_time, condition(pod.status.conditions, "Ready")
    end = ready.last_transition_time if ready is not None else None
    if pod.status.phase != "Succeeded" or begin is None or end is None:
        return None
    return end - begin if end > begin else None


def job_workloads(fleet: Fleet, runs: Iterable[Run]) -> Workloads:
    """Return the pods of Jobs as admission makes them, with their volume claims."""
    context = [r for r in fleet.workloads if r.kind in _CONTEXT]
    jobs = [run.cron.job(run.since) for run in runs]
    return expand([*context, *jobs], kinds=kind_table(fleet.config))[0]


def job_pods(fleet: Fleet, cron: CronJob, at: datetime) -> tuple[Pod, ...]:
    """Return the pods of the Job that a CronJob starts at a time, as admission makes them."""
    context = [r for r in fleet.workloads if r.kind in _CONTEXT]
    made, _ = expand([*context, cron.job(at)], now=at, kinds=kind_table(fleet.config))
    return made.pods


@dataclass(frozen=True, slots=True)
class Run:
    """A Job of a CronJob: when it is started, and when its pods have ended."""

    cron: CronJob
    since: datetime
    until: datetime


def runs_of(cron: CronJob, start: datetime, span: timedelta) -> Iterator[Run]:
    """Yield the Jobs that run within ``span`` after ``start``, as the policy lets them overlap."""
    life = cron.life
    last: Run | None = None
    for begin in cron.starts(start - life, start + span):
        overlaps = last is not None and begin < last.until
        if overlaps and cron.policy is ConcurrencyPolicy.FORBID:
            continue
        if last is not None:
            replaced = overlaps and cron.policy is ConcurrencyPolicy.REPLACE
            yield Run(cron, last.since, begin) if replaced else last
        last = Run(cron, begin, begin + life)
    if last is not None:
        yield last


@dataclass(frozen=True, slots=True)
class Peak:
    """A time at which CronJobs need most of something, and the Jobs that run then."""

    at: datetime
    runs: tuple[Run, ...]


def peaks_of(
    crons: Iterable[CronJob], requests: Mapping[str, Resources], start: datetime
) -> tuple[Peak, ...]:
    """Return the peaks of a day: one for each resource, the first of several.

    ``requests`` are those of all pods of a Job by the key of its CronJob. Which of the peaks costs
    most depends on the nodes, so all are returned, each once.
    """
    with_requests = (cron for cron in crons if requests.get(cron.key))
    runs = sorted(
        chain.from_iterable(runs_of(cron, start, DAY) for cron in with_requests),
        key=lambda run: (run.since, run.cron.key),
    )
    most: dict[str, tuple[int, datetime]] = {}
    for at, total in _totals(runs, requests, start):
        for name, amount in total.items():
            if amount > most.get(name, (0, at))[0]:
                most[name] = (amount, at)
    moments = sorted({at for _, at in most.values()})
    return tuple(Peak(at, tuple(r for r in runs if r.since <= at < r.until)) for at in moments)


def _totals(
    runs: Sequence[Run], requests: Mapping[str, Resources], start: datetime
) -> Iterator[tuple[datetime, Resources]]:
    """Yield the requests of all running Jobs after each time at which one starts or ends."""
    changes: dict[datetime, Counter[str]] = {}
    for run in runs:
        if run.until > start:
            changes.setdefault(max(run.since, start), Counter())[run.cron.key] += 1
            changes.setdefault(run.until, Counter())[run.cron.key] -= 1
    total: Resources = {}
    for at in sorted(changes):
        for key, count in changes[at].items():
            change = {name: count * amount for name, amount in requests[key].items()}
            total = add_resources(total, change)
        yield at, total


def without_cron_pods(pods: Iterable[Pod], crons: Collection[CronJob]) -> tuple[Pod, ...]:
    """Return the pods that are not those of a Job of the CronJobs."""
    keys = {cron.key for cron in crons}
    return tuple(pod for pod in pods if _cron_job_of(pod) not in keys)


def _cron_job_of(pod: Pod) -> str:
    """Return the key of the CronJob that the pod's Job is named after, empty if there is none.

    A Job has the name of its CronJob and a time.
    """
    for owner in pod.metadata.owner_references:
        name, _, minute = owner.name.rpartition("-")
        if owner.kind == "Job" and name and minute.isdigit():
            return f"{pod.namespace}/{name}"
    return ""
