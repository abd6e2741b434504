"""The pods of a cluster, with as many replicas as autoscalers allow or as are asked for.

The present number of a scaled workload is that of its pods. An autoscaler in git brings it into its
range, as it would in the cluster; one that is only in the cluster has done so already. Pods that
are added are copies of an existing one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from reconciler.desired.workloads.podsets import (
    ReplicaChoice,
    ReplicaRange,
    Scaler,
    ScaleTarget,
    scalers_of,
)
from reconciler.desired.workloads.scaled import ScaledWorkload
from reconciler.model.json import JsonObject
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.pod import Pod, PodStatus
from reconciler.observed.snapshot import Snapshot
from reconciler.source.resource import Resource, group_of

_HASHES: Final = {
    "pod-template-hash": ("apps", "Deployment"),
    "rollouts-pod-template-hash": ("argoproj.io", "Rollout"),
}
"""The labels with the hash of a ReplicaSet's template, and what owns that ReplicaSet."""

_PENDING: Final = PodStatus(
    phase="Pending",
    conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),),
)


class RescaledPods(NamedTuple):
    """Pods with another number of replicas, and the workloads that are scaled."""

    pods: tuple[Pod, ...]
    scaled: tuple[ScaledWorkload, ...]


def autoscalers_of(snapshot: Snapshot) -> list[Resource]:
    """Return the autoscalers in a snapshot; those that another one has made come last."""
    made = sorted(snapshot.autoscalers, key=_is_owned)
    return [_resource_of(item) for item in made]


def _is_owned(item: JsonObject) -> bool:
    return bool((item.get("metadata") or {}).get("ownerReferences"))


def _resource_of(item: JsonObject) -> Resource:
    metadata = item.get("metadata") or {}
    return Resource(
        str(item.get("kind")),
        str(item.get("apiVersion")),
        str(metadata.get("name") or ""),
        str(metadata.get("namespace") or "default"),
        dict(item),
        "",
        0,
    )


def rescale(
    pods: Sequence[Pod],
    observed: Iterable[Resource],
    declared: Iterable[Resource],
    choice: ReplicaChoice,
    now: datetime,
) -> RescaledPods:
    """Return the pods with the replicas of every scaled workload as chosen.

    ``observed`` are the autoscalers of the cluster, ``declared`` those in git, which take their
    place.
    """
    in_git = scalers_of(declared)
    scalers: dict[ScaleTarget, list[Scaler]] = {**scalers_of(observed), **in_git}
    if not scalers:
        return RescaledPods(tuple(pods), ())
    groups: dict[ScaleTarget, list[Pod]] = {target: [] for target in scalers}
    others: list[Pod] = []
    for pod in pods:
        target = owner_of(pod)
        known = groups.get(target) if target is not None and pod.is_active else None
        (others if known is None else known).append(pod)
    scaled: list[ScaledWorkload] = []
    kept: list[Pod] = list(others)
    for target in sorted(scalers):
        own, scaler = groups[target], scalers[target][0]
        known_range = scaler.replicas
        replicas = ReplicaRange(known_range.minimum, known_range.maximum, len(own), known_range.by)
        count = choice.number_of(replicas)
        if choice.percent is None and target not in in_git:
            count = len(own)
        kept += with_count(own, count, now)
        scaled.append(
            ScaledWorkload(
                target.kind,
                target.namespace,
                target.name,
                replicas.minimum,
                len(own),
                replicas.maximum,
                replicas.by,
            )
        )
    return RescaledPods(
        tuple(sorted(kept, key=lambda pod: (pod.namespace, pod.metadata.name))), tuple(scaled)
    )


def owner_of(pod: Pod) -> ScaleTarget | None:
    """Return the workload of a pod that an autoscaler would name, None if nothing owns it."""
    labels = pod.metadata.labels
    for owner in pod.metadata.owner_references:
        group, kind, name = group_of(owner.api_version), owner.kind, owner.name
        if kind == "ReplicaSet":
            for label, above in _HASHES.items():
                suffix = f"-{labels.get(label, '')}"
                if label in labels and name.endswith(suffix):
                    group, kind = above
                    name = name.removesuffix(suffix)
        return ScaleTarget(group, kind, pod.namespace, name)
    return None


def with_count(pods: Sequence[Pod], count: int, now: datetime) -> list[Pod]:
    """Return that many pods: without the newest, those without a node first, or with copies."""
    if count <= len(pods):
        oldest = sorted(pods, key=_age)
        return oldest[:count]
    added = [_copy_of(pods[-1], number, now) for number in range(count - len(pods))] if pods else []
    return [*pods, *added]


def _age(pod: Pod) -> tuple[bool, str, str]:
    born = pod.metadata.creation_timestamp
    return (not pod.spec.node_name, born.isoformat() if born else "", pod.metadata.name)


def _copy_of(pod: Pod, number: int, now: datetime) -> Pod:
    """Return another pending replica of a pod; claims of a StatefulSet are made for each."""
    metadata = pod.metadata
    base = metadata.generate_name or f"{metadata.name.rpartition('-')[0]}-"
    name = f"{base}added-{number:05}"
    volumes = tuple(v for v in pod.spec.volumes if v.persistent_volume_claim is None)
    return Pod(
        msgspec.structs.replace(
            metadata, name=name, uid=f"{metadata.namespace}/{name}", creation_timestamp=now
        ),
        msgspec.structs.replace(pod.spec, node_name="", volumes=volumes),
        _PENDING,
    )


def rescaled_snapshot(
    snapshot: Snapshot, declared: Iterable[Resource], choice: ReplicaChoice, now: datetime
) -> tuple[Snapshot, tuple[ScaledWorkload, ...]]:
    """Return the snapshot with the chosen replicas, and its scaled workloads."""
    found = rescale(snapshot.pods, autoscalers_of(snapshot), declared, choice, now)
    if found.pods == snapshot.pods:
        return snapshot, found.scaled
    return replace(snapshot, pods=found.pods), found.scaled
