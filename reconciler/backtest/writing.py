"""Writes a trace in our own format, with names removed on request, and summarizes it.

Without names, a trace keeps times, requests, and all that must match the nodes of a fleet: node
selectors, node affinity, tolerations, topology keys, and the names of schedulers and priority
classes. Names of pods, namespaces, containers and volumes are replaced, and so are pod labels
together with the selectors that read them. Annotations are dropped, except those that decisions
read. Equal names stay equal and names of pods keep their order, so a replay decides as before.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from math import fsum
from typing import Final

import msgspec

from reconciler.backtest.market import MarketSummary, market_summary
from reconciler.backtest.trace import (
    API,
    GPU,
    KIND,
    NAMESPACE,
    Trace,
    TraceClass,
    TracedNode,
    TracedPod,
    TraceHeader,
    TraceRow,
    job_of,
)
from reconciler.model.duration import format_duration
from reconciler.model.karpenter.labels import DISRUPTION_ANNOTATIONS
from reconciler.model.kubernetes.cluster import DaemonSet, DaemonSetSpec, PodTemplate
from reconciler.model.kubernetes.metadata import LabelSelector, Metadata
from reconciler.model.kubernetes.pod import (
    Container,
    DeviceClaim,
    PersistentVolumeClaimSource,
    Pod,
    PodClaim,
    PodSpec,
    Volume,
)
from reconciler.model.resources import CPU, MEMORY
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_dollars
from reconciler.render.layout import table

_LISTS: Final = {"namespaces": "namespace", "matchLabelKeys": "label", "mismatchLabelKeys": "label"}
"""Lists of names within pod affinity and spread, and what they name."""


class _Names:
    """A number for each name, in the order in which names occur."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def number_in_order(self, kind: str, names: Iterable[str]) -> None:
        """Number names in their order, padded so that the new names sort like the old ones."""
        ordered = sorted(set(names))
        digits = len(str(len(ordered)))
        for number, name in enumerate(ordered, 1):
            self._known[kind, name] = f"{kind}-{number:0{digits}}"
        self._counts[kind] = len(ordered)

    def replace(self, kind: str, name: str) -> str:
        known = self._known.get((kind, name))
        if known is None:
            self._counts[kind] = number = self._counts.get(kind, 0) + 1
            known = self._known[kind, name] = f"{kind}-{number}"
        return known

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {
            self.replace("label", key): self.replace("value", labels[key]) for key in sorted(labels)
        }


def anonymize_trace(trace: Trace) -> Trace:
    """Return the trace without names."""
    names = _Names()
    names.number_in_order("namespace", (traced.pod.namespace for traced in trace.pods))
    names.number_in_order("pod", (traced.pod.key for traced in trace.pods))
    specs: dict[int, PodSpec] = {}
    pods = []
    for traced in trace.pods:
        spec = specs.get(id(traced.pod.spec))
        if spec is None:
            spec = specs[id(traced.pod.spec)] = _anonymize_spec(traced.pod.spec, names)
        pods.append(replace(traced, pod=_anonymize_pod(traced.pod, spec, names)))
    nodes = tuple(
        msgspec.structs.replace(node, node=names.replace("node", node.node)) for node in trace.nodes
    )
    daemons = tuple(_anonymize_daemon(daemon, names) for daemon in trace.daemons)
    return replace(trace, pods=tuple(pods), nodes=nodes, daemons=daemons)


def _anonymize_daemon(daemon: DaemonSet, names: _Names) -> DaemonSet:
    template = daemon.spec.template
    meta = template.metadata
    return DaemonSet(
        metadata=Metadata(
            name=names.replace("daemon", daemon.pod().key),
            namespace=names.replace("namespace", daemon.metadata.namespace),
        ),
        spec=DaemonSetSpec(
            template=PodTemplate(
                metadata=Metadata(
                    labels=names.labels(meta.labels), annotations=_relevant_annotations(meta)
                ),
                spec=_anonymize_spec(template.spec, names),
            )
        ),
    )


def _relevant_annotations(meta: Metadata) -> dict[str, str]:
    return {k: v for k, v in meta.annotations.items() if k in DISRUPTION_ANNOTATIONS}


def _anonymize_pod(pod: Pod, spec: PodSpec, names: _Names) -> Pod:
    old = pod.metadata
    name = names.replace("pod", pod.key)
    own = job_of(old.name)
    owners = tuple(
        job_of(name)
        if owner == own
        else msgspec.structs.replace(
            owner, name=names.replace("owner", f"{owner.kind}/{owner.name}")
        )
        for owner in old.owner_references
    )
    metadata = msgspec.structs.replace(
        old,
        name=name,
        namespace=names.replace("namespace", pod.namespace),
        labels=names.labels(old.labels),
        annotations=_relevant_annotations(old),
        owner_references=owners,
    )
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec)


def _anonymize_spec(spec: PodSpec, names: _Names) -> PodSpec:
    bare = msgspec.structs.replace(
        spec,
        containers=tuple(_anonymize_container(c, names) for c in spec.containers),
        init_containers=tuple(_anonymize_container(c, names) for c in spec.init_containers),
        volumes=tuple(_anonymize_volume(volume, names) for volume in spec.volumes),
        resource_claims=tuple(_anonymize_claim(claim, names) for claim in spec.resource_claims),
    )
    return msgspec.convert(_without_names(msgspec.to_builtins(bare), names), PodSpec)


def _anonymize_container(container: Container, names: _Names) -> Container:
    claims = tuple(
        DeviceClaim(names.replace("claim", claim.name)) for claim in container.resources.claims
    )
    return msgspec.structs.replace(
        container,
        name=names.replace("container", container.name),
        resources=msgspec.structs.replace(container.resources, claims=claims),
    )


def _anonymize_claim(claim: PodClaim, names: _Names) -> PodClaim:
    own, template = claim.resource_claim_name, claim.resource_claim_template_name
    return PodClaim(
        names.replace("claim", claim.name),
        names.replace("claim", own) if own is not None else None,
        names.replace("claim", template) if template is not None else None,
    )


def _anonymize_volume(volume: Volume, names: _Names) -> Volume:
    claim = volume.persistent_volume_claim
    if claim is not None:
        claim = PersistentVolumeClaimSource(names.replace("claim", claim.claim_name))
    return msgspec.structs.replace(
        volume, name=names.replace("volume", volume.name), persistent_volume_claim=claim
    )


def _without_names(data: object, names: _Names, key: str = "") -> object:
    """Return data in which the pod labels and namespaces that selectors read are renamed."""
    if key in ("labelSelector", "namespaceSelector"):
        selector = msgspec.convert(data, LabelSelector | None)
        return (
            None if selector is None else msgspec.to_builtins(_anonymize_selector(selector, names))
        )
    if isinstance(data, (list, tuple)):
        kind = _LISTS.get(key)
        if kind is not None:
            return [names.replace(kind, str(name)) for name in data]
        return [_without_names(item, names) for item in data]
    if isinstance(data, dict):
        return {k: _without_names(v, names, k) for k, v in data.items()}
    return data


def _anonymize_selector(selector: LabelSelector, names: _Names) -> LabelSelector:
    return msgspec.structs.replace(
        selector,
        match_labels=names.labels(selector.match_labels),
        match_expressions=tuple(
            msgspec.structs.replace(
                expression,
                key=names.replace("label", expression.key),
                values=tuple(names.replace("value", value) for value in expression.values),
            )
            for expression in selector.match_expressions
        ),
    )


_MILLI = 1000
_GIB = 2**30


def encode_trace(trace: Trace, *, compressed: bool = False) -> bytes:
    """Return the trace as JSON Lines; an equal trace gives the same bytes."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    lines = [encode(TraceHeader(API, KIND, trace.seconds, trace.rounded, trace.begin))]
    lines += [encode(_daemon_class(daemon)) for daemon in trace.daemons]
    lines += [encode(node) for node in trace.nodes]
    lines += [encode(change) for change in trace.market.prices]
    lines += [encode(refusal) for refusal in trace.market.refusals]
    classes: dict[bytes, str] = {}
    for traced in trace.pods:
        body = _pod_class(traced.pod)
        content = encode(body)
        name = classes.get(content)
        if name is None:
            name = classes[content] = f"class-{len(classes) + 1}"
            lines.append(encode(msgspec.structs.replace(body, name=name)))
        lines.append(encode(_row(traced, name)))
    content = b"\n".join(lines) + b"\n"
    return gzip.compress(content, mtime=0) if compressed else content


def _daemon_class(daemon: DaemonSet) -> TraceClass:
    pod = daemon.pod()
    meta = pod.metadata
    return TraceClass(pod.key, pod.spec, meta.labels, meta.annotations, is_daemon_set=True)


def _pod_class(pod: Pod) -> TraceClass:
    meta = pod.metadata
    (owner,) = meta.owner_references
    return TraceClass(
        "", pod.spec, meta.labels, meta.annotations, None if owner == job_of(meta.name) else owner
    )


def _row(traced: TracedPod, name: str) -> TraceRow:
    pod = traced.pod
    key = pod.metadata.name if pod.namespace == NAMESPACE else pod.key
    return TraceRow(key, name, traced.created, traced.bound, traced.deleted)


class TraceSummary(msgspec.Struct, frozen=True, rename="camel"):
    """What a trace contains. CPU is in cores, memory in GiB, as requested over time.

    ``node_hours`` and ``dollars`` are those of the recorded nodes, None without any; dollars also
    if a price is unknown. ``market`` is None without prices and refusals.
    """

    seconds: float
    pods: int
    classes: int
    gpu_pods: int
    rounded_gpus: int
    most_at_once: int
    median_life_seconds: float | None
    cpu_hours: float
    memory_gib_hours: float
    gpu_hours: float
    nodes: int = 0
    node_hours: float | None = None
    dollars: float | None = None
    market: MarketSummary | None = None


def summary_of(trace: Trace) -> TraceSummary:
    """Return the summary; pods without an end run to the end of the trace."""
    lives = [max(_end_of(t, trace.seconds) - t.started, 0.0) for t in trace.pods]
    ended = sorted(t.life for t in trace.pods if t.life is not None)
    requests = [t.pod.requests() for t in trace.pods]

    def hours(resource: str, unit: float) -> float:
        total = fsum(r.get(resource, 0) * s for r, s in zip(requests, lives, strict=True))
        return round(total / unit / 3600, 3)

    return TraceSummary(
        seconds=trace.seconds,
        pods=len(trace.pods),
        classes=len({id(t.pod.spec) for t in trace.pods}),
        gpu_pods=sum(1 for r in requests if r.get(GPU, 0)),
        rounded_gpus=trace.rounded,
        most_at_once=_peak_pods(trace),
        median_life_seconds=ended[len(ended) // 2] if ended else None,
        cpu_hours=hours(CPU, _MILLI),
        memory_gib_hours=hours(MEMORY, _GIB * _MILLI),
        gpu_hours=hours(GPU, _MILLI),
        nodes=len(trace.nodes),
        node_hours=_node_hours(trace, lambda _: 1.0),
        dollars=_node_hours(trace, lambda node: node.price),
        market=market_summary(trace.market) if trace.market else None,
    )


def _node_hours(trace: Trace, weight: Callable[[TracedNode], float | None]) -> float | None:
    """Return the hours of the recorded nodes, each times its weight; None if one is unknown."""
    total = []
    for node in trace.nodes:
        factor = weight(node)
        if factor is None:
            return None
        until = trace.seconds if node.deleted is None else node.deleted
        total.append(factor * max(until - node.created, 0.0) / 3600)
    return round(fsum(total), 3) if trace.nodes else None


def _end_of(traced: TracedPod, seconds: float) -> float:
    return seconds if traced.deleted is None else traced.deleted


def _peak_pods(trace: Trace) -> int:
    """Return the maximum number of pods at one moment; a pod that ends makes room first."""
    moments = sorted(
        moment
        for traced in trace.pods
        for moment in ((traced.created, 1), (_end_of(traced, trace.seconds), -1))
    )
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def render_summary(summary: TraceSummary) -> str:
    """Return the summary for a terminal."""
    life = summary.median_life_seconds
    rows = [
        ["length", format_duration(timedelta(seconds=round(summary.seconds)))],
        ["pods", f"{summary.pods:,}"],
        ["classes of pods", f"{summary.classes:,}"],
        ["pods with GPUs", f"{summary.gpu_pods:,}"],
        ["maximum pods at a time", f"{summary.most_at_once:,}"],
        ["median life", "-" if life is None else f"{life:,.0f} s"],
        ["CPU-hours requested", f"{summary.cpu_hours:,.1f}"],
        ["GiB-hours requested", f"{summary.memory_gib_hours:,.1f}"],
        ["GPU-hours requested", f"{summary.gpu_hours:,.1f}"],
    ]
    if summary.nodes:
        rows += [["nodes", f"{summary.nodes:,}"], ["node-hours", f"{summary.node_hours:,.1f}"]]
        cost = "-" if summary.dollars is None else format_dollars(summary.dollars)
        rows.append(["cost of these nodes", cost])
    if summary.market is not None:
        rows += _market_rows(summary.market)
    lines = table(rows, "<>")
    if summary.rounded_gpus:
        lines += [
            "",
            (
                f"{format_count(summary.rounded_gpus, 'pod')} requested a share of a GPU: "
                "each gets one."
            ),
        ]
    return "\n".join(lines) + "\n"


def _market_rows(market: MarketSummary) -> list[list[str]]:
    rows = []
    if market.priced:
        fall, rise = market.largest_fall_percent, market.largest_rise_percent
        rows = [
            ["spot offerings with a price", f"{market.priced:,}"],
            ["changes of spot prices", f"{market.price_changes:,}"],
            ["largest fall and rise", f"{fall:+.1f}%, {rise:+.1f}%"],
        ]
    if market.refusals:
        offerings = format_count(market.refused, "offering")
        rows += [
            ["refusals of EC2", f"{market.refusals:,} ({offerings})"],
            ["hours of unavailability", f"{market.refused_hours:,.1f}"],
        ]
    return rows
