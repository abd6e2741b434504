"""A fleet at one revision with resolved node classes, from which a pass plans.

Each plan names its evidence: a fingerprint for each fact that it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from reconciler.catalog.adjusted.adjustment import spot_prices
from reconciler.catalog.catalog import Catalog
from reconciler.desired.fleet import Fleet
from reconciler.desired.hash import object_hash
from reconciler.desired.objects import file_objects, node_claims, node_overlays
from reconciler.diff.nodeclass import LiveInstance
from reconciler.disruption.candidates import CandidateSet
from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.decide import objection
from reconciler.disruption.deletioncosts import node_ranks
from reconciler.disruption.gates.limits import FleetLimits
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.engine.hashes import migrate_hashes
from reconciler.engine.observation import Observation
from reconciler.engine.records import Discovery
from reconciler.engine.steps.commands import unsettled_claims
from reconciler.engine.steps.interruption import claims_in_ending_blocks, interrupted_claims
from reconciler.engine.steps.nomination import claims_awaiting_pods
from reconciler.engine.steps.provision import Blueprint
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import INSTANCE_TYPE, NODEPOOL_HASH, NODEPOOL_HASH_VERSION
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Amounts
from reconciler.model.resources import MEMORY, Resources, format_resources, parse_resources
from reconciler.model.settings import DecisionRules, Settings
from reconciler.observed.fingerprint import (
    FingerprintCache,
    Fingerprints,
    fingerprint,
    fingerprints,
    join_fingerprints,
    node_class_facts,
)
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.question import LaunchPool
from reconciler.plan.make.costs import ObservedCoverage
from reconciler.plan.make.decide import Phase, ignore_phase
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.make.pools import LaunchFacts, PoolTypes, TypesCache, node_class_of
from reconciler.plan.plancache import PlanCache
from reconciler.plan.value.plan import InputDigests, Plan, Revision, input_digest
from reconciler.ports.cloud import Instance
from reconciler.ports.state import RecordedObject, RunningCommand, Unavailable

if TYPE_CHECKING:
    from reconciler.catalog.commitments.coverage import Cover
    from reconciler.ports.progress import CommitName

_OWNERSHIP: Final = ("reconciler/", "karpenter.sh/", "eks:eks-cluster-name")
"""Prefixes of the tags that name the owner of an instance and the launch that made it."""


def evidence(
    seen: Observation, classes: Mapping[str, EC2NodeClass], cache: FingerprintCache | None = None
) -> Fingerprints:
    """Return the fingerprints of an observation and of what node classes select in the account.

    ``cache`` holds the fingerprints of the last observation of the same loop.
    """
    snapshot = replace(seen.snapshot, node_claims=seen.before.node_claims)
    found = dict(fingerprints(snapshot) if cache is None else cache.fingerprints(snapshot))
    for instance in seen.instances:
        if not instance.is_terminating:
            found[f"Instance {instance.id}"] = fingerprint(_instance_facts(instance))
    for command in seen.before.commands:
        found[f"Command {command.id}"] = fingerprint(_command_facts(command))
    for rollout in seen.history.rollouts:
        found[f"Rollout {rollout.node_pool}"] = fingerprint(
            (rollout.wave, rollout.stopped_at is not None)
        )
    for name, node_class in classes.items():
        found[f"EC2NodeClass {name}"] = fingerprint(node_class_facts(node_class.status))
    return found


def _instance_facts(instance: Instance) -> object:
    """Return the facts of a live instance that decide about drift, price and ownership."""
    return (
        instance.instance_type,
        instance.zone,
        instance.capacity_type,
        instance.image_id,
        instance.subnet_id,
        sorted(instance.security_groups),
        instance.reservation_id,
        instance.tenancy,
        {key: value for key, value in instance.tags.items() if key.startswith(_OWNERSHIP)},
    )


def _command_facts(command: RunningCommand) -> object:
    return (command.phase, command.node_claims, command.replacements)


@dataclass(frozen=True)
class PlannedFleet:
    """The fleet as git declares it at one revision, ready to be planned.

    ``classes`` are the node classes with their resolved status. ``tree`` is a digest of the files,
    which distinguishes a dirty working tree from its commit, and ``digests`` are those of the
    inputs, without the observed cluster. ``title`` is the subject of the commit with its author,
    empty if unknown; they are what whoever made the commit has chosen.
    """

    fleet: Fleet
    head: Revision
    tree: str
    node_pools: Sequence[NodePool]
    classes: Mapping[str, EC2NodeClass]
    settings: Settings
    catalog: Catalog
    diagnostics: tuple[Diagnostic, ...] = ()
    allow_removal: frozenset[str] = frozenset()
    digests: InputDigests = field(default_factory=InputDigests)
    discovery: Discovery = field(default_factory=lambda: Discovery({}))
    coverage: ObservedCoverage = field(default_factory=ObservedCoverage)
    phase: Phase = ignore_phase
    title: str = ""
    _blueprints_by_memory: dict[object, Mapping[str, Blueprint]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _known_types: TypesCache = field(
        default_factory=TypesCache, init=False, repr=False, compare=False
    )
    _fingerprint_cache: FingerprintCache = field(
        default_factory=FingerprintCache, init=False, repr=False, compare=False
    )

    @cached_property
    def revision(self) -> str:
        """The commit, or with a dirty tree or no repository the digest of the files."""
        if self.head.head is None:
            return f"tree-{self.tree}"
        return f"{self.head.head}+{self.tree}" if self.head.dirty else self.head.head

    @cached_property
    def _pools(self) -> Mapping[str, NodePool]:
        return {pool.name: pool for pool in self.node_pools}

    @cached_property
    def node_claims(self) -> Sequence[NodeClaim]:
        """The NodeClaims that git declares one by one."""
        return node_claims(self.fleet)

    def launch_class_of(self, pool: NodePool) -> EC2NodeClass | None:
        """Return the node class that the nodes of a NodePool are launched with, None if unknown."""
        return node_class_of(pool, self.classes)

    def blueprints(self, unavailable: Sequence[Unavailable]) -> Mapping[str, Blueprint]:
        """Return what launches need, by NodePool, without pools whose class is unknown."""
        types = self._types(unavailable, self.coverage.covers)
        uncovered = self._types(unavailable) if self.coverage.covers else None
        found = {}
        for pool in self.node_pools:
            node_class = self.launch_class_of(pool)
            if node_class is not None:
                found[pool.name] = Blueprint(
                    pool,
                    node_class,
                    self._hash("NodePool", pool.name),
                    self._hash("EC2NodeClass", node_class.name),
                    types.by_name[pool.name].types,
                    uncovered.by_name[pool.name].types if uncovered is not None else None,
                )
        return found

    def _types(self, unavailable: Sequence[Unavailable], covers: Sequence[Cover] = ()) -> PoolTypes:
        return self._known_types.get(
            LaunchFacts(
                self.node_pools,
                self.classes,
                node_overlays(self.fleet),
                self.catalog,
                self.settings,
                unavailable=tuple(u.offering for u in unavailable),
                memory=self.discovery.memory_by_class(self.classes),
                covers=covers,
            )
        )

    def _hash(self, kind: str, name: str) -> tuple[str, str]:
        return self._hashes.get((kind, name), ("", ""))

    @cached_property
    def _hashes(self) -> Mapping[tuple[str, str], tuple[str, str]]:
        """The drift hashes of the objects that have one, computed once for all NodeClaims."""
        return {(r.kind, r.name): self.rehash(r.data) for r in self.fleet.resources}

    def migrate_hashes(
        self, claims: Sequence[NodeClaim], recorded: Sequence[RecordedObject]
    ) -> Sequence[NodeClaim]:
        """Return the claims whose drift hashes have another version, with those of this one."""
        return migrate_hashes(claims, recorded, self.hash_of, self.rehash)

    def hash_of(self, kind: str, name: str) -> tuple[str, str]:
        """Return the drift hash of an object in git and its version, empty strings if none."""
        return self._hash(kind, name)

    def rehash(self, data: Mapping[str, object]) -> tuple[str, str]:
        """Return the drift hash of an object by the rules of this release, and their version."""
        return object_hash(data, self.settings.cluster_ca_bundle) or ("", "")

    def instance_type(self, node_pool: str, name: str) -> InstanceType | None:
        """Return an instance type as the class of that NodePool resolves it, or None.

        It has the memory that nodes actually have, as in a plan.
        """
        blueprint = self._blueprints.get(node_pool)
        return (blueprint.catalog if blueprint is not None else self.catalog).get(name)

    @cached_property
    def spot_prices(self) -> Mapping[str, Mapping[str, float]]:
        """The known spot prices by instance type and zone, USD an hour; none that is estimated."""
        return spot_prices(self.catalog.listed)

    @property
    def _blueprints(self) -> Mapping[str, Blueprint]:
        """What launches need, computed again when more is known about the nodes' memory."""
        memory = tuple(sorted(self.discovery.memory_by_class(self.classes).items()))
        if memory not in self._blueprints_by_memory:
            self._blueprints_by_memory.clear()
            self._blueprints_by_memory[memory] = self.blueprints(())
        return self._blueprints_by_memory[memory]

    def _with_discovered_memory(self, cluster: ClusterState) -> ClusterState:
        """Return the cluster with the discovered memory on nodes that have not joined.

        Their NodeClaims have the capacity that was estimated at launch. If nodes of that type have
        less, a pod placed on the difference would need a second launch.
        """
        nodes = tuple(map(self._limit_to_discovered, cluster.nodes))
        if all(new is old for new, old in zip(nodes, cluster.nodes, strict=True)):
            return cluster
        return replace(cluster, nodes=nodes)

    def _limit_to_discovered(self, node: StateNode) -> StateNode:
        claim = node.claim
        if claim is None or node.is_initialized:
            return node
        kind = self.instance_type(node.node_pool, claim.metadata.labels.get(INSTANCE_TYPE, ""))
        if kind is None:
            return node
        status = claim.status
        capacity = _limit_memory(status.capacity, kind.capacity)
        allocatable = _limit_memory(status.allocatable, kind.allocatable)
        if (capacity, allocatable) == (status.capacity, status.allocatable):
            return node
        fresh = msgspec.structs.replace(status, capacity=capacity, allocatable=allocatable)
        return replace(node, claim=msgspec.structs.replace(claim, status=fresh))

    def objects(self) -> Sequence[RecordedObject]:
        """Return the objects that a plan was made from, with their drift hashes."""
        ours = (*self.fleet.node_pools, *self.fleet.node_classes, *self.fleet.node_overlays)
        objects = [
            RecordedObject(r.kind, r.name, self._hash(r.kind, r.name)[0], r.data, self.revision)
            for r in ours
        ]
        files = file_objects(self.fleet)
        return objects + [
            RecordedObject(o["kind"], o["metadata"]["name"], "", o, self.revision) for o in files
        ]

    def plan(
        self,
        seen: Observation,
        unavailable: Sequence[Unavailable],
        recorded: Sequence[RecordedObject],
        serial: int,
        cache: PlanCache,
    ) -> Plan:
        """Decide what to do now, with the planner that previews use as well."""
        return cache.plan(self.inputs(seen, unavailable, recorded, serial), self.phase)

    def inputs(
        self,
        seen: Observation,
        unavailable: Sequence[Unavailable],
        recorded: Sequence[RecordedObject],
        serial: int,
    ) -> Inputs:
        """Return the inputs of a plan: this revision, the observation, and the records."""
        as_karpenter = self.settings.decide is DecisionRules.KARPENTER
        cluster = seen.state() if as_karpenter else seen.expected_state()
        memory = self.discovery.update(cluster.nodes, self.classes, seen.at)
        cluster = self._with_discovered_memory(cluster)
        self.coverage.update(self.settings, cluster, self.catalog, seen.at)
        return Inputs(
            fleet=self.fleet,
            cluster=cluster,
            memory=memory,
            catalog=self.catalog,
            settings=self.settings,
            now=seen.at,
            revision=self.head,
            base=[o.data for o in recorded] or None,  # a first apply changes nothing of before
            compared_with="records" if recorded else "",
            live=[resolved_object(c) for c in self.classes.values()],
            diagnostics=(
                *self.diagnostics,
                *seen.findings,
                *seen.unclear_owners.findings(self._price_of),
            ),
            withheld=seen.unclear_owners.summary,
            interrupted={
                **claims_in_ending_blocks(seen.claims, self.classes, seen.at),
                **interrupted_claims(seen.claims),
            },
            instances=_live_instances(seen),
            unavailable=[u.offering for u in unavailable],
            allow_removal=self.allow_removal,
            serial=serial,
            history=seen.history,
            nominated=claims_awaiting_pods(seen.snapshot, seen.commands),
            unsettled=unsettled_claims(seen.commands, seen.at),
            digests=self.input_digests(seen),
        )

    def input_digests(self, seen: Observation) -> InputDigests:
        """Return the digests of everything that a plan of this observation is made from."""
        found = join_fingerprints(self.evidence(seen))
        return msgspec.structs.replace(self.digests, snapshot=input_digest(found))

    def deletion_ranks(self, seen: Observation, plan: Plan) -> Mapping[str, int | None]:
        """Return the deletion cost that the pods of each node should have, None for none.

        The first to be scaled down are those of the nodes that go next.
        """
        cluster = seen.expected_state().without_deletion_costs()
        pools = {n: LaunchPool(b.node_pool, b.catalog) for n, b in self._blueprints.items()}
        drifted = {drift.node_claim: drift for drift in plan.drift}
        budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
        limits = FleetLimits.from_nodes(
            self.node_pools, self.settings, cluster.nodes, seen.history
        ).now(seen.at)
        leaving = {name for c in plan.commands if c.removes_nodes for name in c.nodes}
        candidates = CandidateSet(cluster.nodes, pools, budgets, drifted, seen.at)
        return node_ranks(candidates, cluster.nodes, limits.ledger(), leaving)

    def evidence(self, seen: Observation) -> Fingerprints:
        """Return fingerprints of the facts that a plan of this observation is made from."""
        return evidence(seen, self.classes, self._fingerprint_cache)

    def _price_of(self, instance: Instance) -> float | None:
        """Return the price of an instance an hour, None if the catalog has none."""
        kind = self.catalog.get(instance.instance_type)
        return None if kind is None else kind.price_of(instance.zone, instance.capacity_type)

    def objection(self, command: RunningCommand, seen: Observation) -> str | None:
        """Return why a command whose replacements are ready cannot continue, or None.

        Git may have changed since, or its nodes may have been annotated do-not-disrupt.
        """
        claims = {c.name: c for c in seen.claims}
        for name in command.replacements:
            reason = self._outdated_reason(claims[name])
            if reason:
                return reason
        is_repair = command.voluntary and command.reason == DisruptionReason.UNHEALTHY
        if command.reason in _FORCEFUL and not is_repair:
            return None
        named = set(command.node_claims)
        nodes = [n for n in seen.state().nodes if n.claim is not None and n.claim.name in named]
        return objection(command.reason, nodes, self.settings, seen.at)

    def _outdated_reason(self, claim: NodeClaim) -> str | None:
        if claim.node_pool not in self._pools:
            return f"NodePool {claim.node_pool} is no longer in git"
        annotations = claim.metadata.annotations
        recorded = annotations.get(NODEPOOL_HASH)
        known, version = self._hash("NodePool", claim.node_pool)
        comparable = annotations.get(NODEPOOL_HASH_VERSION) == version
        if recorded and comparable and recorded != known:
            return f"NodePool {claim.node_pool} has changed since {claim.name} was launched"
        return None


_FORCEFUL: Final = frozenset(reason.value for reason in ForcefulReason)
"""Reasons that ignore do-not-disrupt: rolled back, such a command would restart in every pass."""


def _limit_memory(promised: Amounts, known: Resources) -> Amounts:
    """Return the amounts of a NodeClaim, with at most the memory that its type is known to have."""
    if MEMORY not in promised or MEMORY not in known:
        return promised
    own = parse_resources({MEMORY: promised[MEMORY]})[MEMORY]
    if own <= known[MEMORY]:
        return promised
    return {**promised, **format_resources({MEMORY: known[MEMORY]})}


def _live_instances(seen: Observation) -> dict[str, LiveInstance]:
    """Return the facts of each live instance that drift detection compares."""
    return {
        i.provider_id: LiveInstance(
            i.image_id,
            i.subnet_id,
            frozenset(i.security_groups),
            i.capacity_type,
            i.reservation_id,
        )
        for i in seen.instances
        if not i.is_terminating
    }


def resolved_object(node_class: EC2NodeClass) -> dict[str, object]:
    """Return a resolved node class as an object of the cluster."""
    data: dict[str, object] = msgspec.to_builtins(node_class)
    return {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", **data}


class DesiredSource(Protocol):
    """Where desired state comes from."""

    def read(self) -> PlannedFleet:
        """Return the current desired state.

        Raises:
            InvalidFleetError: it cannot be planned.
            UnreadableError: it cannot be read; unknown is not empty.
        """
        ...

    def fingerprint(self) -> str:
        """Return a cheap value that changes whenever ``read`` would return something else."""
        ...

    def last_read(self) -> CommitName:
        """Return the commit that the last ``read`` was of, also if it failed."""
        ...
