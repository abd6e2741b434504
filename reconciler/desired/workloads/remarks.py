"""Findings about workloads that are valid and still need attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from reconciler.desired.workloads.podsets import PodSet, Scaler, ScaleTarget, target_of
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.source.resource import Resource

_SHOWN_MAX: Final = 3


def autoscaler_findings(
    scalers: Mapping[ScaleTarget, list[Scaler]],
    sets: Iterable[PodSet],
) -> Iterator[Diagnostic]:
    """Yield autoscalers without a target, and targets with several autoscalers."""
    scaled = {target_of(pods.resource) for pods in sets}
    for target, found in sorted(scalers.items()):
        first = found[0]
        if target not in scaled:
            message = (
                f"{first.resource.kind} {first.resource.name} scales {target.kind} {target.name}, "
                "which is not in this folder; its pods are not planned"
            )
            yield Diagnostic(
                Severity.WARNING,
                "missing-scale-target",
                message,
                _place(first.resource),
                hint="add the workload",
            )
        for other in found[1:]:
            message = (
                f"{target.kind} {target.name} is also scaled by {first.replicas.by}, "
                "whose range is used"
            )
            yield Diagnostic(
                Severity.WARNING,
                "several-autoscalers",
                message,
                _place(other.resource),
                hint="keep one of them",
            )


def _place(resource: Resource) -> Place:
    return Place(resource.file, resource.line, 1)


def maximum_findings(
    now: Iterable[Diagnostic], at_maximum: Iterable[Diagnostic]
) -> Iterator[Diagnostic]:
    """Yield the pods that quotas keep from ever being created once autoscalers want them."""
    known = {finding.message for finding in now}
    for finding in at_maximum:
        if finding.code == "quota-exceeded" and finding.message not in known:
            message = f"at the maximum of the autoscalers, {finding.message}"
            hint = "raise the quota, or lower the maximum"
            yield Diagnostic(finding.severity, "maximum-limited", message, finding.place, hint=hint)


def request_findings(pods: Iterable[Pod]) -> Iterator[Diagnostic]:
    """Yield one finding about all pods without any request, DaemonSets aside.

    kube-scheduler places such a pod on any node, so that no number of nodes is right for it.
    """
    known: dict[int, tuple[PodSpec, bool]] = {}
    owners: dict[str, None] = {}
    count = 0
    for pod in pods:
        if pod.is_daemon or pod.is_mirror or pod.is_terminal:
            continue
        # pods of one workload share their spec; the map keeps it alive, so its id stays unique
        _, requests_nothing = known.setdefault(
            id(pod.spec), (pod.spec, not any(n != "pods" for n in pod.requests()))
        )
        if requests_nothing:
            count += 1
            owners.setdefault(_owner_of(pod))
    if count:
        message = f"{_have(count)} no requests: {_shown(owners)}"
        hint = "set requests: the scheduler places such pods on any node, which no plan can foresee"
        yield Diagnostic(Severity.WARNING, "no-requests", message, hint=hint)


def unplanned_findings(pods: Iterable[Pod]) -> Iterator[Diagnostic]:
    """Yield the pods that kube-scheduler passes over, so that no node is planned for them."""
    gated: list[Pod] = []
    named: list[Pod] = []
    for pod in pods:
        if pod.spec.scheduling_gates:
            gated.append(pod)
        elif pod.spec.node_name and not pod.is_mirror:
            named.append(pod)
    if gated:
        message = (
            f"{_have(len(gated))} scheduling gates: {_shown(map(_owner_of, gated))}; no node is "
            "planned for them until the gates are removed"
        )
        yield Diagnostic(Severity.INFO, "gated-pods", message)
    if named:
        message = (
            f"{_have(len(named))} spec.nodeName: {_shown(map(_owner_of, named))}; they run on "
            "that node or not at all, so no node is planned for them"
        )
        hint = "select nodes by label, with nodeSelector or node affinity"
        yield Diagnostic(Severity.WARNING, "named-node", message, hint=hint)


def _have(count: int) -> str:
    return f"{count} pod has" if count == 1 else f"{count} pods have"


def _shown(owners: Iterable[str]) -> str:
    """Return the first workloads, and how many more there are."""
    distinct = dict.fromkeys(owners)
    more = len(distinct) - _SHOWN_MAX
    tail = f" and {more} more" if more > 0 else ""
    return f"{', '.join(islice(distinct, _SHOWN_MAX))}{tail}"


def _owner_of(pod: Pod) -> str:
    """Return the namespace and name of the workload of a pod, or its own."""
    for owner in pod.metadata.owner_references:
        name = owner.name
        if owner.kind == "ReplicaSet":
            name = name.rpartition("-")[0] or name
        return f"{pod.namespace}/{name}"
    return pod.key
