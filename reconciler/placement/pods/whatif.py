"""A cluster after an event that is only supposed: another scale, a lost node, a lost zone.

Pure: from a snapshot to the one that a plan is made from. A drained node counts as deleted, so that
its pods need another place, as they do for Karpenter after ``kubectl delete node``. Pods that must
not be disrupted stay there until the deadline, but not on a node of a lost zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import UsageError
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.text.nearest import did_you_mean
from reconciler.model.text.quoting import quote_value
from reconciler.observed.snapshot import Snapshot
from reconciler.placement.pods.replicas import owner_of, with_count

_Item = TypeVar("_Item", Node, NodeClaim)

KINDS: Final = {
    "deploy": "Deployment",
    "deployment": "Deployment",
    "sts": "StatefulSet",
    "statefulset": "StatefulSet",
    "rs": "ReplicaSet",
    "replicaset": "ReplicaSet",
}
"""The kinds of workloads that can be scaled, by their names in kubectl."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of replicas of a workload; ``namespace`` is None if any has it."""

    kind: str
    name: str
    replicas: int
    namespace: str | None = None

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{where}{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is supposed: other replicas, nodes or NodeClaims that go, zones without capacity."""

    scales: tuple[Scale, ...] = ()
    drains: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.scales or self.drains or self.zones)


@dataclass(frozen=True, slots=True)
class SupposedCluster:
    """The snapshot after what is supposed, and the findings that state it."""

    snapshot: Snapshot
    findings: tuple[Diagnostic, ...]


def suppose(snapshot: Snapshot, what_if: WhatIf, now: datetime) -> SupposedCluster:
    """Return the cluster after everything that is supposed.

    Raises:
        UsageError: a workload, node or zone is not in the cluster.
    """
    events: list[str] = []
    for scale in what_if.scales:
        snapshot, before = _scaled(snapshot, scale, now)
        events.append(f"{scale} has {scale.replicas:,} replicas instead of {before:,}")
    drained = set(_named_nodes(snapshot, what_if.drains))
    events += (f"{name} is drained and deleted" for name in what_if.drains)
    lost: set[str] = set()
    for zone in what_if.zones:
        found = {n.name for n in snapshot.nodes if n.metadata.labels.get(ZONE) == zone}
        lost |= found
        gone = f"{len(found):,} node{' is' if len(found) == 1 else 's are'} gone"
        events.append(f"zone {zone} has no capacity, and its {gone}")
    findings = (Diagnostic(Severity.INFO, "what-if", f"what if: {text}") for text in events)
    without = _without(_unprotected(snapshot, lost), drained | lost, now)
    return SupposedCluster(without, tuple(findings))


def offerings_in(catalog: Catalog, zones: Iterable[str]) -> set[tuple[str, str, str, str]]:
    """Return every offering of a catalog in these zones: type, zone, capacity type, and "".

    The last part stands for every reservation.
    """
    gone = frozenset(zones)
    return {
        (kind.name, offering.zone, offering.capacity_type, "")
        for kind in (catalog.types if gone else ())
        for offering in kind.offerings
        if offering.zone in gone
    }


def _scaled(snapshot: Snapshot, scale: Scale, now: datetime) -> tuple[Snapshot, int]:
    """Return the snapshot with another number of replicas, and the number before."""
    own: list[Pod] = []
    others: list[Pod] = []
    for pod in snapshot.pods:
        (own if pod.is_active and _is_replica(pod, scale) else others).append(pod)
    namespaces = sorted({pod.namespace for pod in own})
    if len(namespaces) > 1:
        raise UsageError(
            f"{scale} is in several namespaces: {', '.join(namespaces[:5])}",
            where="--scale",
            remedy=f"name one, such as {namespaces[0]}/{scale.kind.lower()}/{scale.name}",
        )
    if not own:
        names = sorted({o.name for p in snapshot.pods if (o := owner_of(p)) is not None})
        raise UsageError(
            f"{scale} has no pods to copy",
            where="--scale",
            remedy=did_you_mean(scale.name, names, "name a workload with at least one pod"),
        )
    kept = sorted(
        [*others, *with_count(own, scale.replicas, now)],
        key=lambda pod: (pod.namespace, pod.metadata.name),
    )
    return replace(snapshot, pods=tuple(kept)), len(own)


def _is_replica(pod: Pod, scale: Scale) -> bool:
    owner = owner_of(pod)
    if owner is None or scale.namespace not in (None, pod.namespace):
        return False
    return (owner.kind, owner.name) == (scale.kind, scale.name)


def _named_nodes(snapshot: Snapshot, names: Sequence[str]) -> Iterator[str]:
    """Yield the Nodes that are named, or whose NodeClaims are."""
    nodes = {node.name for node in snapshot.nodes}
    by_claim = {claim.name: claim.status.node_name for claim in snapshot.node_claims}
    for name in names:
        found = name if name in nodes else by_claim.get(name, "")
        if found not in nodes:
            raise UsageError(
                f"{quote_value(name)} is neither a Node nor a NodeClaim with a Node",
                where="--drain",
                remedy=did_you_mean(name, [*nodes, *by_claim], "name a node of the cluster"),
            )
        yield found


def _without(snapshot: Snapshot, leaving: set[str], now: datetime) -> Snapshot:
    """Return the snapshot with these Nodes and their NodeClaims deleted."""
    if not leaving:
        return snapshot
    ids = {n.spec.provider_id for n in snapshot.nodes if n.name in leaving} - {""}
    return replace(
        snapshot,
        nodes=tuple(_deleted(n, now) if n.name in leaving else n for n in snapshot.nodes),
        node_claims=tuple(
            _deleted(c, now) if c.status.provider_id in ids else c for c in snapshot.node_claims
        ),
    )


def _unprotected(snapshot: Snapshot, lost: set[str]) -> Snapshot:
    """Return the snapshot in which no pod of these nodes refuses to leave: the nodes are gone."""
    if not lost:
        return snapshot
    pods = (_without_protection(p) if p.spec.node_name in lost else p for p in snapshot.pods)
    return replace(snapshot, pods=tuple(pods))


def _without_protection(pod: Pod) -> Pod:
    kept = {k: v for k, v in pod.metadata.annotations.items() if k != DO_NOT_DISRUPT}
    metadata = msgspec.structs.replace(pod.metadata, annotations=kept)
    return Pod(metadata, pod.spec, pod.status)


def _deleted(item: _Item, now: datetime) -> _Item:
    metadata = msgspec.structs.replace(item.metadata, deletion_timestamp=now)
    return msgspec.structs.replace(item, metadata=metadata)
