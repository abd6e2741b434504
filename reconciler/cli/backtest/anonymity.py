"""Removes names from a trace, and keeps what decisions depend on.

Kept are times, requests, and what has to match the nodes of a fleet: node selectors, node affinity,
tolerations, topology keys, and the names of schedulers and priority classes. Names of pods,
namespaces, containers and volumes are replaced, and so are pod labels together with the selectors
that read them. Annotations are dropped, except those that decisions read. Equal names stay equal,
and names of pods keep their order, so that a replay decides as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from reconciler.cli.backtest.trace import Trace, job_of
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT, POD_DELETION_COST
from reconciler.model.kubernetes.cluster import DaemonSet, DaemonSetSpec, PodTemplate
from reconciler.model.kubernetes.metadata import LabelSelector, Metadata
from reconciler.model.kubernetes.pod import (
    Container,
    DeviceClaim,
    PersistentVolumeClaimSource,
    Pod,
    PodSpec,
    Volume,
)

_READ_ANNOTATIONS: Final = (DO_NOT_DISRUPT, POD_DELETION_COST)


class _Names:
    """A number for each name, in the order in which names occur."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def learn(self, kind: str, names: Iterable[str]) -> None:
        """Number names in their order, with digits such that the new names sort as the old."""
        ordered = sorted(set(names))
        digits = len(str(len(ordered)))
        for number, name in enumerate(ordered, 1):
            self._known[kind, name] = f"{kind}-{number:0{digits}}"
        self._counts[kind] = len(ordered)

    def of(self, kind: str, name: str) -> str:
        known = self._known.get((kind, name))
        if known is None:
            self._counts[kind] = number = self._counts.get(kind, 0) + 1
            known = self._known[kind, name] = f"{kind}-{number}"
        return known

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {self.of("label", key): self.of("value", labels[key]) for key in sorted(labels)}


def anonymized(trace: Trace) -> Trace:
    """Return the trace without names."""
    names = _Names()
    names.learn("namespace", (traced.pod.namespace for traced in trace.pods))
    names.learn("pod", (traced.pod.key for traced in trace.pods))
    specs: dict[int, PodSpec] = {}
    pods = []
    for traced in trace.pods:
        spec = specs.get(id(traced.pod.spec))
        if spec is None:
            spec = specs[id(traced.pod.spec)] = _spec(traced.pod.spec, names)
        pods.append(replace(traced, pod=_pod(traced.pod, spec, names)))
    nodes = tuple(
        msgspec.structs.replace(node, node=names.of("node", node.node)) for node in trace.nodes
    )
    daemons = tuple(_daemon(daemon, names) for daemon in trace.daemons)
    return replace(trace, pods=tuple(pods), nodes=nodes, daemons=daemons)


def _daemon(daemon: DaemonSet, names: _Names) -> DaemonSet:
    template = daemon.spec.template
    meta = template.metadata
    return DaemonSet(
        metadata=Metadata(
            name=names.of("daemon", daemon.pod().key),
            namespace=names.of("namespace", daemon.metadata.namespace),
        ),
        spec=DaemonSetSpec(
            template=PodTemplate(
                metadata=Metadata(labels=names.labels(meta.labels), annotations=_read(meta)),
                spec=_spec(template.spec, names),
            )
        ),
    )


def _read(meta: Metadata) -> dict[str, str]:
    return {k: v for k, v in meta.annotations.items() if k in _READ_ANNOTATIONS}


def _pod(pod: Pod, spec: PodSpec, names: _Names) -> Pod:
    old = pod.metadata
    name = names.of("pod", pod.key)
    own = job_of(old.name)
    owners = tuple(
        job_of(name)
        if owner == own
        else msgspec.structs.replace(owner, name=names.of("owner", f"{owner.kind}/{owner.name}"))
        for owner in old.owner_references
    )
    metadata = msgspec.structs.replace(
        old,
        name=name,
        namespace=names.of("namespace", pod.namespace),
        labels=names.labels(old.labels),
        annotations=_read(old),
        owner_references=owners,
    )
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec)


def _spec(spec: PodSpec, names: _Names) -> PodSpec:
    bare = msgspec.structs.replace(
        spec,
        containers=tuple(_container(c, names) for c in spec.containers),
        init_containers=tuple(_container(c, names) for c in spec.init_containers),
        volumes=tuple(_volume(volume, names) for volume in spec.volumes),
        resource_claims=_claims(spec.resource_claims, names),
    )
    return msgspec.convert(_without_names(msgspec.to_builtins(bare), names), PodSpec)


def _container(container: Container, names: _Names) -> Container:
    claims = _claims(container.resources.claims, names)
    return msgspec.structs.replace(
        container,
        name=names.of("container", container.name),
        resources=msgspec.structs.replace(container.resources, claims=claims),
    )


def _claims(claims: Iterable[DeviceClaim], names: _Names) -> tuple[DeviceClaim, ...]:
    return tuple(DeviceClaim(names.of("claim", claim.name)) for claim in claims)


def _volume(volume: Volume, names: _Names) -> Volume:
    claim = volume.persistent_volume_claim
    if claim is not None:
        claim = PersistentVolumeClaimSource(names.of("claim", claim.claim_name))
    return msgspec.structs.replace(
        volume, name=names.of("volume", volume.name), persistent_volume_claim=claim
    )


def _without_names(data: object, names: _Names, key: str = "") -> object:
    """Return data in which the pod labels and namespaces that selectors read are renamed."""
    if key in ("labelSelector", "namespaceSelector"):
        selector = msgspec.convert(data, LabelSelector | None)
        return None if selector is None else msgspec.to_builtins(_selector(selector, names))
    if isinstance(data, (list, tuple)):
        kind = _LISTS.get(key)
        if kind is not None:
            return [names.of(kind, str(name)) for name in data]
        return [_without_names(item, names) for item in data]
    if isinstance(data, dict):
        return {k: _without_names(v, names, k) for k, v in data.items()}
    return data


_LISTS: Final = {"namespaces": "namespace", "matchLabelKeys": "label", "mismatchLabelKeys": "label"}
"""Lists of names within pod affinity and spread, and what they name."""


def _selector(selector: LabelSelector, names: _Names) -> LabelSelector:
    return msgspec.structs.replace(
        selector,
        match_labels=names.labels(selector.match_labels),
        match_expressions=tuple(
            msgspec.structs.replace(
                expression,
                key=names.of("label", expression.key),
                values=tuple(names.of("value", value) for value in expression.values),
            )
            for expression in selector.match_expressions
        ),
    )
