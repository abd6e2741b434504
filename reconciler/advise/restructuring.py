"""Candidates that merge or split NodePools or remove constraints of workloads.

They depend on the fleet at rest, not only on its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from reconciler.advise.candidates import AdviceCandidate, OfferedValues, Topic, rows_of
from reconciler.advise.changes import (
    AllowValues,
    CopyPool,
    DesiredChange,
    DropRequirement,
    SetPoolField,
)
from reconciler.advise.constraints import constrained_workloads
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import CAPACITY_TYPE, SPOT
from reconciler.model.karpenter.nodepool import NodePool, NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.resources import CPU
from reconciler.observed.state import ClusterState
from reconciler.placement.question import LaunchPool

_MILLI: Final = 1000
_PREFERRED: Final = 100
"""The maximum weight of a NodePool."""


def divisions(
    node_pools: Iterable[NodePool],
    types: Mapping[str, LaunchPool],
    cluster: ClusterState,
    spot_percent: float,
) -> tuple[AdviceCandidate, ...]:
    """Return the candidates of a fleet at rest, in a fixed order.

    ``spot_percent`` is how many of the pods may run on spot nodes.
    """
    pools = sorted(node_pools, key=lambda pool: pool.name)
    vcpus: dict[str, int] = {}
    for node in cluster.nodes:
        if node.is_managed:
            amount = node.capacity.get(CPU, 0) // _MILLI
            vcpus[node.node_pool] = vcpus.get(node.node_pool, 0) + amount
    found = list(_weight_candidates(pools))
    for pool in pools:
        if pool.name in types:
            offered = types[pool.name].types.types
            found += _split_candidates(pool, offered, vcpus.get(pool.name, 0), spot_percent)
    found += _merge_candidates(pools)
    found += _workload_candidates(cluster)
    return tuple({candidate.id: candidate for candidate in found}.values())


def _weight_candidates(pools: Sequence[NodePool]) -> Iterator[AdviceCandidate]:
    """Yield, for each preferred NodePool, the change that removes its preference.

    It gets the lowest weight; if that is no weight, the others get its weight instead.
    """
    least = min((pool.weight for pool in pools), default=0)
    at = ("spec", "weight")
    for pool in pools:
        weight = pool.weight
        if weight <= least:
            continue
        changes = [SetPoolField(pool.name, at, least)]
        if not least:
            lower = [other for other in pools if other.weight < weight]
            changes = [SetPoolField(other.name, at, weight) for other in lower]
        yield AdviceCandidate(
            f"{pool.name}-weight-{least or weight}",
            Topic.NODE_POOLS,
            f"Do not prefer NodePool {pool.name} to the others",
            tuple(changes),
            "pods that both NodePools allow may move to the other one",
        )


def _split_candidates(
    pool: NodePool, kinds: Sequence[InstanceType], total: int, spot_percent: float
) -> Iterator[AdviceCandidate]:
    """Yield the split of a NodePool without spot nodes, for as many pods as may run on spot."""
    if pool.is_static or pool.weight >= _PREFERRED:
        return
    values = OfferedValues(pool, kinds)
    if SPOT not in values.missing_values(CAPACITY_TYPE):
        return
    name = f"{pool.name}-on-spot"
    for share in (spot_percent, spot_percent / 2):
        vcpus = int(total * share / 100)
        if not 0 < vcpus < total:
            continue
        yield AdviceCandidate(
            f"{pool.name}-split-spot-{vcpus}",
            Topic.NODE_POOLS,
            f"Split NodePool {pool.name}: launch up to {vcpus} vCPUs of it on spot nodes",
            (CopyPool(pool.name, name, SPOT, vcpus, pool.weight + 1),),
            "EC2 interrupts spot nodes with two minutes' notice",
        )


def _merge_candidates(pools: Sequence[NodePool]) -> Iterator[AdviceCandidate]:
    """Yield the merge of each pair of NodePools that differ only in requirements."""
    for number, pool in enumerate(pools):
        for other in pools[number + 1 :]:
            changes = _merge_changes(pool, other)
            if changes is None:
                continue
            closed = SetPoolField(other.name, ("spec", "limits", "cpu"), "0")
            yield AdviceCandidate(
                f"{pool.name}-merge-{other.name}",
                Topic.NODE_POOLS,
                f"Merge NodePool {other.name} into {pool.name}",
                (*changes, closed),
                f"NodePool {other.name} launches no nodes any more: delete it once it has none",
            )


def _values_of(rows: Iterable[NodeSelectorRequirement]) -> set[str]:
    return {value for row in rows for value in row.values}


def _merge_changes(pool: NodePool, other: NodePool) -> tuple[DesiredChange, ...] | None:
    """Return the changes that let a NodePool allow what another one allows; None if impossible."""
    mine, theirs = pool.spec.template.spec, other.spec.template.spec
    alike = (mine.node_class_ref, mine.taints, mine.startup_taints) == (
        theirs.node_class_ref,
        theirs.taints,
        theirs.startup_taints,
    )
    if not alike or pool.is_static or other.is_static:
        return None
    changes: list[DesiredChange] = []
    for key in sorted({row.key for row in mine.requirements}):
        own, others = rows_of(pool, key), rows_of(other, key)
        if own == others:
            continue
        if not others:
            changes.append(DropRequirement(pool.name, key))
        elif all(row.operator == Operator.IN for row in (*own, *others)):
            more = _values_of(others) - _values_of(own)
            if more:
                changes.append(AllowValues(pool.name, key, tuple(sorted(more))))
        else:
            return None
    return tuple(changes)


def _workload_candidates(cluster: ClusterState) -> Iterator[AdviceCandidate]:
    """Yield the removal of each constraint of a workload."""
    for workload in constrained_workloads(cluster):
        constraint = workload.constraint
        yield AdviceCandidate(
            f"{constraint.constraint.value}:{constraint.owner.replace(' ', '/')}",
            Topic.WORKLOADS,
            workload.title,
            (),
            workload.risk,
            workload=workload,
        )
