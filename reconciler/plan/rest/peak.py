"""The fleet in the worst hour of the day: with the pods of CronJobs when they need most.

A plan does not count pods that run only now and then. They are added to the cluster as it is and
placed as by a plan, as in ``maximum``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as with_fields

from msgspec.structs import replace

from reconciler.desired.workloads.cronjobs import (
    CronJob,
    Peak,
    cron_jobs,
    job_pods,
    job_workloads,
    peaks_of,
    without_cron_pods,
)
from reconciler.desired.workloads.quota import pod_usage, quotas_of, take
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import add_resources
from reconciler.observed.state import ClusterState
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.rest.maximum import place_all
from reconciler.plan.value.costs import FleetAtPeak
from reconciler.plan.value.plan import Plan


def with_peak(plan: Plan, inputs: Inputs) -> Plan:
    """Return the plan with the fleet in the worst hour of the next 24, if CronJobs run then."""
    crons = cron_jobs(inputs.fleet, inputs.durations, inputs.cluster.pods)
    if not crons:
        return plan
    requests = {
        cron.key: add_resources(*(p.requests() for p in job_pods(inputs.fleet, cron, inputs.now)))
        for cron in crons
    }
    found = [_fleet_at(peak, crons, inputs) for peak in peaks_of(crons, requests, inputs.now)]
    if not found:
        return plan
    worst = max(found, key=lambda f: (f.per_hour, f.nodes, len(f.unschedulable)))
    return replace(plan, at_peak=worst)


def _fleet_at(peak: Peak, crons: Sequence[CronJob], inputs: Inputs) -> FleetAtPeak:
    """Return the fleet with the Jobs of a peak."""
    cluster, added = _with_jobs(inputs, peak, crons)
    facts = facts_of(
        replace(inputs, cluster=cluster, against=None, base=None, lists_blockers=False)
    )
    fleet, _ = place_all(facts, "peak")
    own = {pod.key for pod in added}
    return FleetAtPeak(
        at=peak.at,
        cron_jobs=tuple(sorted({run.cron.key for run in peak.runs})),
        assumed=tuple(sorted({run.cron.key for run in peak.runs if run.cron.is_assumed})),
        pods=len(added),
        nodes=fleet.nodes,
        per_hour=fleet.per_hour,
        unschedulable=tuple(pod for pod in fleet.unschedulable if pod in own),
    )


def _with_jobs(
    inputs: Inputs, peak: Peak, crons: Sequence[CronJob]
) -> tuple[ClusterState, tuple[Pod, ...]]:
    """Return the cluster with the pods of the Jobs of a peak, and these pods.

    Pods of Jobs that run now are left out: they have ended by then, or are those of the peak.
    """
    before = inputs.cluster
    kept = without_cron_pods(before.pods, crons)
    made = job_workloads(inputs.fleet, peak.runs)
    added = _allowed_by_quotas(inputs, kept, made.pods)
    cluster = with_fields(
        before,
        pods=(*kept, *added),
        nodes=tuple(
            with_fields(node, pods=without_cron_pods(node.pods, crons)) if node.pods else node
            for node in before.nodes
        ),
        volume_claims={**{c.key: c for c in made.volume_claims}, **before.volume_claims},
        volumes={**{v.metadata.name: v for v in made.volumes}, **before.volumes},
        storage_classes={
            **{c.metadata.name: c for c in made.storage_classes},
            **before.storage_classes,
        },
    )
    return cluster, added


def _allowed_by_quotas(
    inputs: Inputs, present: Sequence[Pod], pods: Sequence[Pod]
) -> tuple[Pod, ...]:
    """Return the pods that the quotas of their namespaces let be created beside the others."""
    quotas = quotas_of(inputs.fleet.workloads)
    if not quotas:
        return tuple(pods)
    for pod in present:
        take(pod, pod_usage(pod), quotas.get(pod.namespace, ()))
    return tuple(
        pod for pod in pods if take(pod, pod_usage(pod), quotas.get(pod.namespace, ())) is None
    )
