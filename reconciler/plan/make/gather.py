"""Gathers the facts of a plan from what was read: files, a cluster, a catalog and settings.

The planner gets the result, as do ``explain`` and the search for the fleet at rest. Rarely needed
modules are loaded on use, so that a plan of a repository alone starts fast.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.catalog.adjusted.discovered import discovered_memory, update_discoveries
from reconciler.desired.contents import states_pods
from reconciler.desired.objects import (
    buffer_templates,
    capacity_buffers,
    node_claims,
    node_classes,
    node_overlays,
    node_pools,
)
from reconciler.diff.nodeclass import with_observed_status
from reconciler.model.decision.finding import PlanFinding, finding_of
from reconciler.model.decode import decode
from reconciler.model.karpenter.capacitybuffer import CapacityBuffer
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import FeatureGate, RemovalPolicy
from reconciler.observed.state import ClusterState
from reconciler.placement.pods.headroom import BufferTemplates, Headroom, resolve_headroom
from reconciler.placement.topology import defaultspread
from reconciler.placement.topology.defaultspread import DefaultSpread
from reconciler.placement.topology.peers import Owner, owners_of
from reconciler.plan.make import findings
from reconciler.plan.make.changes import changes_of, drift_of
from reconciler.plan.make.decide import Phase, ignore_phase
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.factscache import FactsCache
from reconciler.plan.make.inputs import Inputs, Object
from reconciler.plan.make.pools import LaunchFacts, MemoryByType, PoolTypes, TypesCache
from reconciler.plan.value.plan import PlannedLock

if TYPE_CHECKING:
    from reconciler.catalog.commitments.coverage import Cover, Coverage

_QUIET: Final = ("OtherStrategy", "BufferEmpty")
"""Codes of buffers that their author may have intended."""


def with_default_spread(cluster: ClusterState, inputs: Inputs) -> ClusterState:
    """Return the cluster with the configured default spread on pods without one."""
    every = [*cluster.pods, *(pod for node in cluster.nodes for pod in node.pods)]
    _, in_git = buffer_templates(inputs.fleet, frozenset(_owners(every)))
    scalables = {**in_git, **cluster.scalables}
    owners = owners_of(cluster.services, scalables, cluster.replication_controllers)
    spread = DefaultSpread(inputs.settings.default_constraints, owners)
    return defaultspread.with_default_spread(cluster, spread)


def _owners(pods: Iterable[Pod]) -> Iterator[Owner]:
    for pod in pods:
        for owner in pod.metadata.owner_references:
            if owner.kind in ("ReplicaSet", "StatefulSet"):
                yield owner.kind, f"{pod.namespace}/{owner.name}"


def headroom_of(inputs: Inputs) -> tuple[Headroom, ...]:
    """Return the request of every CapacityBuffer, by name; empty while the gate is off."""
    if not inputs.settings.gate(FeatureGate.CAPACITY_BUFFER):
        return ()
    buffers = _buffers(inputs)
    known = _templates(inputs, buffers)
    return tuple(resolve_headroom(buffer, known) for buffer in buffers)


def _buffers(inputs: Inputs) -> list[CapacityBuffer]:
    every = {b.key: b for b in (*inputs.cluster.capacity_buffers, *capacity_buffers(inputs.fleet))}
    return [every[key] for key in sorted(every)]


def _templates(inputs: Inputs, buffers: Iterable[CapacityBuffer]) -> BufferTemplates:
    references = set()
    for buffer in buffers:
        spec = buffer.spec
        if spec.pod_template_ref is not None:
            references.add(("PodTemplate", f"{buffer.namespace}/{spec.pod_template_ref.name}"))
        elif spec.scalable_ref is not None:
            references.add((spec.scalable_ref.kind, f"{buffer.namespace}/{spec.scalable_ref.name}"))
    stored, scalables = buffer_templates(inputs.fleet, references)
    cluster = inputs.cluster
    return BufferTemplates({**stored, **cluster.pod_templates}, {**scalables, **cluster.scalables})


def with_headroom(cluster: ClusterState, rooms: Iterable[Headroom]) -> ClusterState:
    """Return the cluster with the virtual pods pending in addition to the real ones."""
    virtual = tuple(pod for room in rooms for pod in room.pods)
    return replace(cluster, pods=(*cluster.pods, *virtual)) if virtual else cluster


def _buffer_findings(inputs: Inputs, rooms: Iterable[Headroom]) -> Iterator[PlanFinding]:
    """Report the buffers that have no effect, if that is probably not intended."""
    names = ", ".join(buffer.key for buffer in _buffers(inputs))
    if names and not inputs.settings.gate(FeatureGate.CAPACITY_BUFFER):
        yield PlanFinding(
            severity="warning",
            code="capacitybuffer-gate-off",
            message=f"CapacityBuffers have no effect because their feature gate is off: {names}",
            hint="set featureGates.CapacityBuffer=true",
        )
    for room in rooms:
        if room.code and room.code not in _QUIET:
            message = f"CapacityBuffer {room.buffer} has no effect: {room.message}"
            yield PlanFinding(severity="warning", code="capacitybuffer-unresolved", message=message)


def facts_of(inputs: Inputs, phase: Phase = ignore_phase, cache: FactsCache | None = None) -> Facts:
    """Return the facts of the inputs, without the cost of a change (``base_cost``).

    ``cache`` has results for the last inputs of the same loop.
    """
    with phase("catalog"):
        facts = _facts(inputs, cache)
    facts = _with_drift(facts, inputs, cache)
    return msgspec.structs.replace(facts, changes=changes_of(inputs, facts.drift))


def launch_types(inputs: Inputs) -> PoolTypes:
    """Return what the NodePools of the inputs may launch."""
    return _launch_types(inputs, node_pools(inputs.fleet), _classes(inputs), TypesCache())


def _launch_types(
    inputs: Inputs,
    pools: tuple[NodePool, ...],
    classes: Mapping[str, EC2NodeClass],
    known: TypesCache,
    covers: tuple[Cover, ...] = (),
) -> PoolTypes:
    return known.get(
        LaunchFacts(
            pools,
            classes,
            node_overlays(inputs.fleet),
            inputs.catalog,
            inputs.settings,
            any_class=inputs.any_class,
            unready=inputs.unready_classes,
            unavailable=tuple(inputs.unavailable),
            memory=_measured_memory(inputs, classes),
            covers=covers,
        )
    )


def _facts(inputs: Inputs, cache: FactsCache | None = None) -> Facts:
    pools = node_pools(inputs.fleet)
    classes = _classes(inputs)
    coverage = None
    if inputs.settings.commitments is not None:
        from reconciler.plan.make.costs import commitment_coverage, commitment_findings

        coverage = commitment_coverage(inputs.settings, inputs.cluster, inputs.catalog, inputs.now)

    @functools.cache
    def types_with(covers: tuple[Cover, ...] = ()) -> PoolTypes:
        known = cache.types if cache is not None else TypesCache()
        return _launch_types(inputs, pools, classes, known, covers)

    types = types_with(coverage.covers if coverage is not None else ())
    if coverage is not None:
        types = msgspec.structs.replace(
            types, findings=(*types.findings, *commitment_findings(coverage))
        )
    facts = Facts(
        **inputs.given(),
        pools=pools,
        classes=classes,
        types=types,
        covers=coverage.covers if coverage is not None else (),
        uncovered=lambda: types_with().by_name,
        lock=_planned_lock(inputs),
        left_region=inputs.left_region,
        withheld=inputs.withheld or _region_change_block(inputs),
        states_pods=states_pods(inputs.fleet),
    )
    return _with_observation(facts, inputs, coverage)


def _region_change_block(inputs: Inputs) -> str:
    """Return why no action is allowed if the fleet has nodes in the region that it leaves."""
    cluster = inputs.cluster
    has_nodes = inputs.region_before or any(node.is_managed for node in cluster.nodes)
    if not inputs.left_region or not has_nodes:
        return ""
    here, there = inputs.left_region, inputs.settings.region
    return f"the fleet has nodes in {here}, and aws.region is {there}"


def with_cluster(facts: Facts, inputs: Inputs, cache: FactsCache | None = None) -> Facts:
    """Return the facts of ``inputs``, which differ from earlier ones only in the cluster.

    The desired state is not evaluated again, unless commitments make prices depend on the running
    nodes.
    """
    is_covered = inputs.settings.commitments is not None
    fresh = _facts(inputs) if is_covered else _with_observation(facts, inputs, None)
    return _with_drift(fresh, inputs, cache)


def _with_drift(facts: Facts, inputs: Inputs, cache: FactsCache | None) -> Facts:
    drift = drift_of(inputs, facts.types, facts.classes, cache)
    return msgspec.structs.replace(facts, drift=drift)


def _with_observation(facts: Facts, inputs: Inputs, coverage: Coverage | None) -> Facts:
    """Return the facts with what depends on the cluster and on the clock, except for drift."""
    cluster, rooms = _with_headroom(inputs, _with_declared_claims(inputs))
    if coverage is not None:
        from reconciler.plan.make.costs import with_remaining_costs

        cluster = with_remaining_costs(cluster, coverage)
    if inputs.settings.default_constraints:
        cluster = with_default_spread(cluster, inputs)
    if inputs.settings.gate(FeatureGate.POD_DELETION_COST_MANAGEMENT):
        cluster = cluster.without_deletion_costs()
    return msgspec.structs.replace(
        facts,
        **{**inputs.given(), "cluster": cluster},
        headroom=rooms,
        vanished=_deleted_pools(inputs, facts.pools),
        removable=_removable_pools(inputs, facts.pools, cluster),
        states_reasons=inputs.lists_blockers or bool(inputs.unavailable),
        findings=(
            *map(finding_of, inputs.diagnostics),
            *facts.types.findings,
            *findings.daemon_set_findings(cluster),
        ),
        buffer_findings=tuple(_buffer_findings(inputs, rooms)),
    )


def _with_headroom(
    inputs: Inputs, cluster: ClusterState
) -> tuple[ClusterState, tuple[Headroom, ...]]:
    """Return the cluster with the virtual pods of CapacityBuffers, and those buffers."""
    if not inputs.fleet.capacity_buffers and not cluster.capacity_buffers:
        return cluster, ()

    rooms = headroom_of(inputs)
    return with_headroom(cluster, rooms), rooms


def _measured_memory(
    inputs: Inputs, classes: Mapping[str, EC2NodeClass]
) -> Mapping[str, MemoryByType]:
    """Return the measured memory of nodes of each class, now or earlier."""
    if not inputs.memory and not inputs.cluster.nodes:
        return {}
    known = inputs.memory or update_discoveries(inputs.cluster.nodes, classes, {}, inputs.now)
    return {name: discovered_memory(node_class, known) for name, node_class in classes.items()}


def _classes(inputs: Inputs) -> dict[str, EC2NodeClass]:
    """Return the desired classes; their resolved resources may be in the cluster's own."""
    classes = with_observed_status(node_classes(inputs.fleet), inputs.live)
    lock = inputs.fleet.lock_for(inputs.settings.region)
    if lock is None:
        return classes
    from reconciler.desired.lock import with_locked_resources

    return {name: with_locked_resources(c, lock.entry(name)) for name, c in classes.items()}


def _planned_lock(inputs: Inputs) -> PlannedLock | None:
    lock = inputs.fleet.lock_for(inputs.settings.region)
    if lock is None:
        return None
    return PlannedLock(at=lock.locked_at, digest=lock.digest, catalog=lock.catalog.bundle)


def _with_declared_claims(inputs: Inputs) -> ClusterState:
    """Return the cluster with the NodeClaims that git declares and that do not exist yet."""
    declared = node_claims(inputs.fleet)
    if not declared:
        return inputs.cluster
    known = {n.claim.name for n in inputs.cluster.nodes if n.claim is not None}
    known.update(claim.name for claim in inputs.cluster.unlaunched)
    fresh = [claim for claim in declared if claim.name not in known]
    return replace(inputs.cluster, unlaunched=(*inputs.cluster.unlaunched, *fresh))


def _deleted_pools(inputs: Inputs, pools: Iterable[NodePool]) -> tuple[NodePool, ...]:
    """Return the NodePools that were deleted from git; they matter only if there are nodes."""
    if not inputs.cluster.nodes and not inputs.cluster.unlaunched:
        return ()
    return deleted_pools(inputs.known_before, pools)


def deleted_pools(recorded: Iterable[Object], pools: Iterable[NodePool]) -> tuple[NodePool, ...]:
    """Return the ``recorded`` NodePools that are not among ``pools``, the NodePools in git.

    If two objects have the same name, the last one counts.
    """
    desired = {pool.name for pool in pools}
    known: dict[str, NodePool] = {}
    for item in recorded:
        name = item.get("metadata", {}).get("name", "")
        if item.get("kind") == "NodePool" and name not in desired:
            known[name] = decode(item, NodePool)
    return tuple(known[name] for name in sorted(known))


def _removable_pools(
    inputs: Inputs, pools: Iterable[NodePool], cluster: ClusterState
) -> frozenset[str]:
    """Return the NodePools whose removal is allowed: by name, or all that vanished.

    Karpenter asks nobody: what a change deletes from git, whatever applies git deletes.
    """
    if inputs.actor == "karpenter" and inputs.compared_with == "base":
        deleted = {pool.name for pool in deleted_pools(inputs.base or (), pools)}
        return inputs.allow_removal | deleted
    if inputs.settings.removal_policy != RemovalPolicy.ALLOW:
        return inputs.allow_removal
    desired = {pool.name for pool in pools}
    owned = {n.node_pool for n in cluster.nodes if n.is_managed and n.node_pool}
    return inputs.allow_removal | (owned - desired)
