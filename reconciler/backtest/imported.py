"""Makes a trace from the metrics of kube-state-metrics, and reports what it cannot contain."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.backtest.podseries import ContainerKey, Family, PodFacts, PodId, PodSeries
from reconciler.backtest.trace import (
    GPU,
    SECONDS_DIGITS,
    Trace,
    TraceClass,
    TracedPod,
    traced_pod,
    with_unique_names,
)
from reconciler.model.karpenter.labels import DISRUPTION_ANNOTATIONS, WELL_KNOWN_AWS
from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.pod import Amounts, Container, PodSpec, ResourceRequirements
from reconciler.model.kubernetes.taint import Toleration
from reconciler.model.resources import CPU, MEMORY, MILLI, format_quantity
from reconciler.model.text.counting import format_count
from reconciler.model.text.times import format_time
from reconciler.model.text.visible import one_line

_NAMES: Final = 5
_NAME_SHOWN: Final = 80
_MISSING_METRIC: Final = {
    Family.REQUESTS: "No kube_pod_container_resource_requests: the pods request nothing.",
    Family.SCHEDULED: "No kube_pod_status_scheduled_time: pods run from their creation.",
    Family.INFO: "No kube_pod_info and no kube_pod_owner: pods of DaemonSets are not left out.",
    Family.PHASE: "No kube_pod_status_phase of finished pods: pods run until they are deleted.",
    Family.TOLERATIONS: "No kube_pod_tolerations: pods with GPUs tolerate nvidia.com/gpu, "
    "others nothing.",
    Family.NODE_SELECTORS: "No kube_pod_nodeselectors: pods have no node selectors "
    "(kube-state-metrics records them with --metric-opt-in-list=kube_pod_nodeselectors).",
}
"""The consequence of each metric that Prometheus lacks."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_STATIC: Final = "Node"
_DAEMON: Final = "DaemonSet"
_JOB: Final = "Job"
"""Each Job has its own pods, so a class of pods does not belong to a Job."""
_API_VERSIONS: Final = {
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "ReplicationController": "v1",
}
_RESOURCES: Final = (
    CPU,
    MEMORY,
    "ephemeral-storage",
    "hugepages-2Mi",
    "hugepages-1Gi",
    GPU,
    "amd.com/gpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "habana.ai/gaudi",
    "vpc.amazonaws.com/efa",
    "vpc.amazonaws.com/pod-eni",
)
_KNOWN_LABELS: Final = (
    *WELL_KNOWN_AWS,
    *(
        f"app.kubernetes.io/{name}"
        for name in ("name", "instance", "version", "component", "part-of", "managed-by")
    ),
)
_IDENTITIES: Final = frozenset(
    {
        "pod_template_hash",
        "controller_revision_hash",
        "statefulset_kubernetes_io_pod_name",
        "apps_kubernetes_io_pod_index",
        "controller_uid",
        "job_name",
        "batch_kubernetes_io_controller_uid",
        "batch_kubernetes_io_job_name",
        "batch_kubernetes_io_job_completion_index",
    }
)
"""Labels that controllers give to each pod: with them, no two pods would have the same class."""
_DEFAULT_TOLERATIONS: Final = frozenset(
    {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
)
"""Every pod tolerates these taints for some minutes; nodes have them only briefly."""


def _metric_name(name: str) -> str:
    """Return a name as a metric has it: kube-state-metrics keeps letters, digits and ``_``."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


_RESOURCE_OF: Final = {_metric_name(name): name for name in _RESOURCES}
_LABEL_OF: Final = {_metric_name(name): name for name in _KNOWN_LABELS}
_GPU: Final = _metric_name(GPU)
_ANNOTATION_OF: Final = {_metric_name(n): n for n in DISRUPTION_ANNOTATIONS}


class LeftOut(StrEnum):
    """Why a pod is not in the trace, as the output states it."""

    DAEMON = "of DaemonSets"
    STATIC = "static"
    OVER = "ended before the trace begins"
    LATER = "created after it ends"
    UNDATED = "without a valid time of creation"
    UNMEASURED = "with a request that is not a valid amount"
    MISNAMED = "with an invalid name"


@dataclass(slots=True)
class ImportedTrace:
    """A trace, and the parts of the series that are not in it.

    ``left_out`` counts pods, ``resources`` and ``selectors`` the pods whose resource or node
    selector is left out because its recorded name does not tell the real one.
    """

    trace: Trace
    left_out: Counter[LeftOut] = field(default_factory=Counter)
    resources: Counter[str] = field(default_factory=Counter)
    selectors: Counter[str] = field(default_factory=Counter)
    families: frozenset[Family] = frozenset()
    nameless: int = 0


@dataclass(frozen=True, slots=True)
class ImportPeriod:
    """The begin and the end in seconds since 1970, and the resolution of the series."""

    since: int
    until: int
    step: int


def imported_trace(series: PodSeries, period: ImportPeriod) -> ImportedTrace:
    """Return the trace of the part of a period that is recorded.

    A pod that exists at the beginning is created and bound then. It ends when it finished or was
    deleted, otherwise one step after it was last seen, unless no pod was seen later.
    """
    seen = [facts.seen for facts in series.pods.values() if facts.seen is not None]
    newest = max(seen, default=float(period.until))
    end = min(float(period.until), newest + period.step)
    begin = float(period.since)
    if series.first is not None and series.first - period.step > begin:
        begin = min(series.first, end)
    builder = _TraceBuilder(series, begin, end, min(newest, end), period.step)
    found = [
        traced
        for key in sorted(series.pods)
        if (traced := builder.build_pod(key, series.pods[key]))
    ]
    found.sort(key=lambda p: (p.created, p.pod.key))
    builder.result.trace = Trace(
        tuple(with_unique_names(found)),
        round(end - begin, SECONDS_DIGITS),
        begin=datetime.fromtimestamp(begin, UTC),
    )
    return builder.result


class _TraceBuilder:
    """Builds the pods; equal specs and classes are shared."""

    def __init__(
        self, series: PodSeries, begin: float, end: float, horizon: float, step: int
    ) -> None:
        self.result = ImportedTrace(
            Trace((), 0.0), families=frozenset(series.families), nameless=series.nameless
        )
        self._begin, self._end, self._horizon, self._step = begin, end, horizon, step
        self._classes: dict[bytes, TraceClass] = {}
        self._specs: dict[bytes, PodSpec] = {}

    def build_pod(self, key: PodId, facts: PodFacts) -> TracedPod | None:
        """Return the pod; None after counting the reason why it is left out."""
        ended = _end_time(facts, self._step, self._horizon)
        reason = self._exclusion_reason(key, facts, ended)
        if reason is not None:
            self.result.left_out[reason] += 1
            return None
        assert facts.created is not None, "a pod without a time of creation is left out"
        ends = None if ended is None or ended > self._end else self._seconds(ended)
        created = self._seconds(facts.created)
        created = created if ends is None else min(created, ends)
        bound = None
        if facts.scheduled is not None and facts.scheduled <= self._end:
            bound = max(self._seconds(facts.scheduled), created)
            bound = bound if ends is None else min(bound, ends)
        name = f"{key.namespace}/{key.name}"
        return traced_pod(name, self._class(facts), created, bound, ends)

    def _exclusion_reason(self, key: PodId, facts: PodFacts, ended: float | None) -> LeftOut | None:
        if not (_NAME.fullmatch(key.namespace) and _NAME.fullmatch(key.name)):
            return LeftOut.MISNAMED
        kind, _ = facts.owner
        if kind in (_DAEMON, _STATIC):
            return LeftOut.DAEMON if kind == _DAEMON else LeftOut.STATIC
        if facts.created is None:
            return LeftOut.UNDATED
        if facts.is_unmeasured:
            return LeftOut.UNMEASURED
        if facts.created >= self._end:
            return LeftOut.LATER
        if ended is not None and ended <= self._begin:
            return LeftOut.OVER
        return None

    def _seconds(self, moment: float) -> float:
        return max(round(moment - self._begin, SECONDS_DIGITS), 0.0)

    def _class(self, facts: PodFacts) -> TraceClass:
        spec = self._spec(facts)
        spec = self._specs.setdefault(msgspec.json.encode(spec), spec)
        labels, notes = sorted(facts.labels.items()), sorted(facts.annotations.items())
        made = TraceClass(
            "",
            spec,
            {_LABEL_OF.get(name, name): text for name, text in labels if name not in _IDENTITIES},
            {_ANNOTATION_OF[name]: text for name, text in notes if name in _ANNOTATION_OF},
            _owner(facts),
        )
        return self._classes.setdefault(msgspec.json.encode(made), made)

    def _spec(self, facts: PodFacts) -> PodSpec:
        containers = [
            (key, _container(key, amounts, facts.sidecars))
            for key, amounts in sorted(facts.requests.items())
        ]
        unknown = {name for amounts in facts.requests.values() for name in amounts}
        self.result.resources.update(unknown - _RESOURCE_OF.keys())
        return PodSpec(
            containers=tuple(made for key, made in containers if not key.is_init),
            init_containers=tuple(made for key, made in containers if key.is_init),
            node_selector=self._node_selector(facts),
            tolerations=self._tolerations(facts),
        )

    def _tolerations(self, facts: PodFacts) -> tuple[Toleration, ...]:
        if Family.TOLERATIONS not in self.result.families and _requests_gpu(facts):
            return (Toleration(key=GPU, operator="Exists"),)
        return tuple(
            Toleration(*parts)
            for parts in sorted(facts.tolerations)
            if parts[0] not in _DEFAULT_TOLERATIONS
        )

    def _node_selector(self, facts: PodFacts) -> dict[str, str]:
        """Return the node selector without ambiguous names."""
        selector = {}
        for name, text in sorted(facts.node_selector.items()):
            label = _LABEL_OF.get(name, "" if "_" in name else name)
            if label:
                selector[label] = text
            else:
                self.result.selectors[name] += 1
        return selector


def _end_time(facts: PodFacts, step: int, horizon: float) -> float | None:
    """Return when a pod ended, None if it still existed at the end of the record."""
    ends = []
    if facts.finished is not None:
        ends.append(facts.finished if facts.completed is None else facts.completed)
    if facts.deleted is not None:
        ends.append(facts.deleted)
    last = facts.created if facts.seen is None else facts.seen
    if last is not None and last + step < horizon:
        ends.append(last + step)
    return min(ends, default=None)


def _owner(facts: PodFacts) -> OwnerReference | None:
    kind, name = facts.owner
    if kind in ("", _JOB):
        return None
    return OwnerReference(kind, name, _API_VERSIONS.get(kind, ""), controller=True)


def _container(
    key: ContainerKey, amounts: Mapping[str, float], sidecars: Collection[str]
) -> Container:
    requests: Amounts = {
        _RESOURCE_OF[name]: _quantity(name, amount)
        for name, amount in sorted(amounts.items())
        if name in _RESOURCE_OF
    }
    always = "Always" if key.is_init and key.name in sidecars else None
    return Container(key.name, ResourceRequirements(requests), restart_policy=always)


def _quantity(resource: str, amount: float) -> str:
    """Return an amount of cores or of units; fractions below a thousandth round up."""
    if resource == CPU:
        # a float of a thousandth is not exact: 0.1 * 1000 is a little more than 100
        return format_quantity(math.ceil(round(amount * MILLI, 3)))
    return format_quantity(math.ceil(amount) * MILLI, binary=True)


def _requests_gpu(facts: PodFacts) -> bool:
    return any(amounts.get(_GPU, 0) > 0 for amounts in facts.requests.values())


def report_of(imported: ImportedTrace) -> str:
    """Return a report of the imported and the omitted pods, and of what the series lack."""
    pods = len(imported.trace.pods)
    begin = imported.trace.begin
    assert begin is not None, "an imported trace has its beginning"
    end = begin + timedelta(seconds=imported.trace.seconds)
    all_pods = format_count(pods + imported.left_out.total(), "pod")
    time = f"from {format_time(begin)} to {format_time(end)}"
    lines = [f"Imported {pods:,} of {all_pods} {time}."]
    if imported.left_out:
        reasons = ", ".join(
            f"{imported.left_out[why]:,} {why}" for why in LeftOut if why in imported.left_out
        )
        lines.append(f"Left out: {reasons}.")
    if imported.nameless:
        lines.append(
            f"Ignored {format_count(imported.nameless, 'sample')} without the labels namespace and"
            " pod."
        )
    lines.append(
        "Unknown to kube-state-metrics, and not in the trace: affinity, topology spread, host "
        "ports, volumes."
    )
    lines += [text for family, text in _MISSING_METRIC.items() if _lacks(imported.families, family)]
    for what, names in (("Resources", imported.resources), ("Node selectors", imported.selectors)):
        if names:
            lines.append(
                f"{what} left out, since their recorded names are ambiguous: "
                f"{_format_most_frequent(names)}."
            )
    return "\n".join(lines) + "\n"


def _lacks(families: Collection[Family], family: Family) -> bool:
    """Return whether a metric is missing, not only without any pod that it applies to."""
    match family:
        case Family.INFO:
            return not {Family.INFO, Family.OWNER}.intersection(families)
        case Family.PHASE:
            return Family.COMPLETED in families and Family.PHASE not in families
    return family not in families


def _format_most_frequent(names: Counter[str]) -> str:
    """Return the most frequent names, each with the number of its pods."""
    found = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    shown = [
        f"{one_line(name[:_NAME_SHOWN])} ({format_count(n, 'pod')})" for name, n in found[:_NAMES]
    ]
    return ", ".join((*shown, "…") if len(found) > _NAMES else shown)
