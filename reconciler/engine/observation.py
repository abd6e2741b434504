"""One observation of the world: what EC2 and the cluster show, and what it means for our claims.

An observation is complete or it fails: a truncated list of EC2 must never read as "terminated".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Final, NewType

from reconciler.engine.listing import ListedInstances
from reconciler.engine.ownership import (
    NO_UNCLEAR_OWNERS,
    UnclearOwners,
    running_karpenters,
    unclear_owners,
)
from reconciler.engine.steps import lifecycle
from reconciler.engine.steps.nomination import (
    Seat,
    moves_pods,
    nominated_seats,
    with_nominated_pods,
)
from reconciler.engine.world import World
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.history import NO_HISTORY, History
from reconciler.model.karpenter.labels import INITIALIZED, REGISTERED
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.node import Node
from reconciler.model.ownership import NO_OWNER, NODE_FINALIZER, Owner
from reconciler.observed.fingerprint import Pods
from reconciler.observed.identity import identify_nodes
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import ClusterState, KnownNodes, cluster_state
from reconciler.ports.calls import UnansweredError
from reconciler.ports.cloud import Instance
from reconciler.ports.progress import EventKind
from reconciler.ports.state import RunningCommand

NODE_DELETED: Final = "NodeDeleted"
NODE_GONE: Final = "NodeGone"
"""Reasons of a termination that somebody else has caused."""

_REGISTERS_S: Final = 1.0
"""How long a pass waits until Nodes are registered; the others join a pass later."""


@dataclass(frozen=True)
class LostNodes:
    """The claims of Nodes that are gone, as deleted, by name; and findings about them."""

    claims: Mapping[str, NodeClaim] = field(default_factory=dict)
    findings: tuple[Diagnostic, ...] = ()


def mark_node_deleted(world: World, claim: NodeClaim, node: Node, now: datetime) -> NodeClaim:
    """Return the claim of a Node that was deleted by others, as deleted."""
    what = f"Node {node.name} was deleted"
    world.notify(
        EventKind.NODE_DELETED,
        f"{what}: it is drained, then its instance is terminated",
        node_claim=claim.name,
        node_pool=claim.node_pool,
    )
    return lifecycle.delete_with_reason(claim, now, NODE_DELETED, what)


def find_lost_nodes(
    world: World, joined: Sequence[NodeClaim], names: AbstractSet[str], now: datetime
) -> LostNodes:
    """Return the claims whose Nodes are gone; ``names`` are those of the Nodes that were listed.

    Each is requested by name before that counts. If no Node of the fleet is left, and it had
    several, then this is another cluster or a restored one: that is a finding, and deletes no
    claim.
    """
    missing = [c for c in joined if c.status.node_name and c.status.node_name not in names]
    if len(missing) == len(joined) > 1:
        return LostNodes(findings=(_no_nodes_finding(missing),))
    ended = {}
    exist = _claims_with_nodes(world, missing)
    for claim in missing:
        name = claim.status.node_name
        if claim.name in exist:
            continue
        what = f"Node {name} is gone"
        world.notify(
            EventKind.NODE_DELETED,
            f"{what}: its instance is terminated",
            node_claim=claim.name,
            node_pool=claim.node_pool,
        )
        ended[claim.name] = lifecycle.delete_with_reason(claim, now, NODE_GONE, what)
    return LostNodes(ended)


def _claims_with_nodes(world: World, missing: Sequence[NodeClaim]) -> frozenset[str]:
    """Return the claims whose Nodes exist; if unknown, they do."""
    answers = world.calls.call_all(
        {c.name: partial(world.cluster.has_node, c.status.node_name) for c in missing}
    )
    for claim in missing:
        error = answers[claim.name].error
        if error is not None:
            world.notify(
                EventKind.FAILED, str(error), node_claim=claim.name, node_pool=claim.node_pool
            )
    return frozenset(name for name, a in answers.items() if a.error is not None or a.value)


def _no_nodes_finding(missing: Sequence[NodeClaim]) -> Diagnostic:
    return Diagnostic(
        Severity.WARNING,
        "nodes-missing",
        f"{len(missing)} instances of this fleet run, but none of their Nodes is in the cluster",
        hint="check that this is the right cluster; if the Nodes were deleted, terminate the "
        "instances in EC2",
    )


@dataclass(frozen=True, slots=True)
class RecordsBefore:
    """Our records before the observation updated them."""

    node_claims: tuple[NodeClaim, ...] = ()
    commands: tuple[RunningCommand, ...] = ()


NO_RECORDS: Final = RecordsBefore()


@dataclass(frozen=True)
class Observation:
    """The facts observed at ``at``; ``snapshot`` holds the claims as the observation updated them.

    ``findings`` are about facts that could not be observed and that decisions do not need.
    ``history`` is the recorded past. ``owner`` is the fleet that observes, and ``unclear_owners``
    has the instances that may or may not belong to it. ``disputed`` are the claims that several
    Nodes match. ``before`` holds our records before the observation. The list of instances was
    begun at ``listed_at``; None means at the same time. ``known_nodes`` are those of the last one.
    """

    at: datetime
    instances: tuple[Instance, ...]
    snapshot: Snapshot
    commands: tuple[RunningCommand, ...]
    findings: tuple[Diagnostic, ...] = ()
    history: History = NO_HISTORY
    owner: Owner = NO_OWNER
    unclear_owners: UnclearOwners = NO_UNCLEAR_OWNERS
    disputed: frozenset[str] = frozenset()
    before: RecordsBefore = NO_RECORDS
    listed_at: datetime | None = None
    known_nodes: KnownNodes | None = None

    @property
    def claims(self) -> tuple[NodeClaim, ...]:
        return self.snapshot.node_claims

    def is_gone(self, claim: NodeClaim) -> bool:
        """Return whether the instance of a launched claim is gone."""
        return lifecycle.is_gone(claim, self.instance_of(claim), self.listed_at or self.at)

    def instance_of(self, claim: NodeClaim) -> Instance | None:
        """Return the instance of a claim by its id, in any state; None if EC2 lacks it."""
        return self._by_id.get(lifecycle.instance_id(claim))

    @cached_property
    def _by_id(self) -> Mapping[str, Instance]:
        return {instance.id: instance for instance in self.instances}

    def nodes(self) -> Mapping[str, Node]:
        """Return the Nodes by provider id."""
        return {n.spec.provider_id: n for n in self.snapshot.nodes if n.spec.provider_id}

    def state(self) -> ClusterState:
        """Return the cluster as it is.

        Nodes of running commands count as being removed. Pending pods are on the nodes launched for
        them.
        """
        return self._state

    def expected_state(self) -> ClusterState:
        """Return the cluster as decisions need it.

        In addition, pods that running commands move are on the nodes launched for them.
        """
        return self._expected

    @cached_property
    def nominations(self) -> Mapping[str, str]:
        """The node of each nominated pending pod, or its NodeClaim while there is no node.

        Not included are pods whose place other pods have taken.
        """
        return {key: seat.node for key, seat in self._seats.items()}

    @cached_property
    def _seats(self) -> Mapping[str, Seat]:
        return nominated_seats(self.snapshot, self.at)

    @cached_property
    def _state(self) -> ClusterState:
        return cluster_state(
            with_nominated_pods(self.snapshot, self._seats.values()),
            marked_claims(self.commands),
            self.known_nodes,
        )

    @cached_property
    def _expected(self) -> ClusterState:
        if not any(moves_pods(command) for command in self.commands):
            return self._state
        seats = nominated_seats(self.snapshot, self.at, self.commands)
        ahead = with_nominated_pods(self.snapshot, seats.values())
        return cluster_state(ahead, marked_claims(self.commands), self.known_nodes)


Observed = NewType("Observed", Observation)
"""As the world is, with the records that the observation updated."""
Collected = NewType("Collected", Observation)
"""With the records after collection, requests and interruptions."""
Advanced = NewType("Advanced", Observation)
"""With the records after terminations and tags."""
Complete = NewType("Complete", Observation)
"""With the recorded past: what a plan is made from."""


def marked_claims(commands: Iterable[RunningCommand]) -> set[str]:
    """Return the claims that running commands remove."""
    return {name for c in commands if c.is_under_way and c.removes_nodes for name in c.node_claims}


def observe(world: World, pools: Sequence[NodePool], owner: Owner) -> Observed:
    """Observe EC2, then the cluster, and update the recorded claims.

    EC2 is listed before our records are read. An instance in the list is therefore in the records
    already, unless its launch was not recorded at all (Karpenter lists in this order too).
    """
    recorded = tuple(world.store.node_claims())
    commands = tuple(world.store.commands())
    listed = world.lists.read(world, recorded)
    instances = listed.instances
    by_id = {instance.id: instance for instance in instances}
    claims = [
        _update_from_instance(claim, by_id.get(lifecycle.instance_id(claim)), listed)
        for claim in recorded
    ]
    observed = world.cluster.observe(claims, instances)
    matched = identify_nodes(
        observed,
        {i.id: i.private_dns_name for i in instances if i.private_dns_name},
        world.correct_nodes,
    )
    seen = matched.snapshot
    now = world.clock.now()
    unlisted = _unlisted_provider_ids(claims, by_id)
    nodes = {n.spec.provider_id: n for n in seen.nodes if n.spec.provider_id not in unlisted}
    lost = find_lost_nodes(
        world, _joined_claims(claims, by_id), {n.name for n in observed.nodes}, now
    )
    updated = _update_from_nodes(world, claims, lost.claims, nodes, seen, pools, now)
    changed = [new for new, old in zip(updated, recorded, strict=True) if new != old]
    if changed:
        world.store.put_node_claims(changed)
    return Observed(
        Observation(
            now,
            instances,
            replace(seen, node_claims=tuple(updated)),
            commands,
            (*_queue_findings(world), *seen.findings, *matched.findings, *lost.findings),
            owner=owner,
            unclear_owners=replace(
                unclear_owners(instances, updated, world.journal, owner, now),
                karpenters=() if world.allows_karpenter else running_karpenters(seen.pods),
            ),
            disputed=matched.disputed,
            before=RecordsBefore(recorded, commands),
            listed_at=listed.at,
            known_nodes=world.known_nodes,
        )
    )


def _update_from_nodes(
    world: World,
    claims: Sequence[NodeClaim],
    lost: Mapping[str, NodeClaim],
    nodes: Mapping[str, Node],
    seen: Snapshot,
    pools: Iterable[NodePool],
    now: datetime,
) -> list[NodeClaim]:
    """Return the claims updated from their nodes and pods; the nodes of new ones are registered.

    ``lost`` are the claims whose Nodes are gone, by name, and ``nodes`` the Nodes by provider id.
    """
    missing = {
        claim.name: lifecycle.missing_driver(claim, seen.resource_slices, node.name)
        for claim in claims
        if not claim.is_true(lifecycle.INITIALIZED)
        and (node := nodes.get(claim.status.provider_id)) is not None
    }
    registrations = _register_nodes(world, claims, nodes, missing, now)
    pods = Pods.from_tuple(seen.pods).workload_names
    after = {pool.name: pool.spec.disruption.consolidates_after for pool in pools}
    updated = []
    for claim in claims:
        node = nodes.get(claim.status.provider_id)
        fresh = lost.get(claim.name) or _update_from_node(
            world, claim, node, now, registrations, missing.get(claim.name, "")
        )
        if node is not None:
            fresh = lifecycle.with_pods(fresh, pods.get(node.name, ()), now)
        updated.append(lifecycle.with_consolidatable(fresh, after.get(claim.node_pool), now))
    return updated


def _queue_findings(world: World) -> tuple[Diagnostic, ...]:
    """Return a finding if interruption events cannot be received; the pass continues."""
    problem = world.interruptions.problem()
    if not problem:
        return ()
    return (
        Diagnostic(
            Severity.WARNING,
            "interruption-queue",
            f"cannot receive interruption events: {problem}",
            hint="an interrupted node is noticed only after it is gone",
        ),
    )


def _update_from_instance(
    claim: NodeClaim, instance: Instance | None, listed: ListedInstances
) -> NodeClaim:
    """Return the claim updated from its instance; a list says nothing about later launches."""
    if instance is None and not listed.covers(claim):
        return claim
    return lifecycle.with_instance(claim, instance, listed.at)


def _unlisted_provider_ids(
    claims: Iterable[NodeClaim], instances: Mapping[str, Instance]
) -> frozenset[str]:
    """Return the provider ids whose Nodes do not join yet, and none.

    The name of a Node that joins is compared with its instance, which EC2 has to show for that.
    """
    waiting = (c for c in claims if not c.is_true(lifecycle.REGISTERED))
    ids = (c.status.provider_id for c in waiting if lifecycle.instance_id(c) not in instances)
    return frozenset({"", *ids})


def _joined_claims(
    claims: Iterable[NodeClaim], instances: Mapping[str, Instance]
) -> list[NodeClaim]:
    """Return the claims whose instances run and whose nodes have joined."""
    found = []
    for claim in claims:
        instance = instances.get(lifecycle.instance_id(claim))
        runs = instance is not None and instance.state == "running"
        if runs and claim.is_true(lifecycle.REGISTERED) and not claim.is_deleting:
            found.append(claim)
    return found


@dataclass
class _Registration:
    """The changes made to a node that has joined; ``notes`` are reported when all are done."""

    registered: bool = False
    notes: list[tuple[EventKind, str]] = field(default_factory=list)


def _joined_nodes(
    claims: Iterable[NodeClaim], nodes: Mapping[str, Node]
) -> list[tuple[NodeClaim, Node]]:
    """Return the launched claims with their Nodes, without those that are being deleted."""
    return [
        (claim, node)
        for claim in claims
        if (node := nodes.get(claim.status.provider_id)) is not None
        if not claim.is_deleting and claim.is_true(lifecycle.LAUNCHED)
        if node.metadata.deletion_timestamp is None
    ]


def _register_nodes(
    world: World,
    claims: Iterable[NodeClaim],
    nodes: Mapping[str, Node],
    missing: Mapping[str, str],
    now: datetime,
) -> Mapping[str, _Registration]:
    """Add missing labels, taints and our finalizer to each node, at the same time.

    ``missing`` is the driver that each claim waits for. Returns what was done by the name of the
    claim. A failure stops no other node.
    """
    joined = _joined_nodes(claims, nodes)
    done = {claim.name: _Registration(_is_labelled(node, REGISTERED)) for claim, node in joined}
    calls = {
        f"register {node.name}": partial(
            _register_node, world, claim, node, missing.get(claim.name, ""), now, done[claim.name]
        )
        for claim, node in joined
        if _needs_registration(claim, node, missing.get(claim.name, ""), now)
    }
    answers = world.calls.call_all(calls, _REGISTERS_S)
    for claim, node in joined:
        answer = answers.get(f"register {node.name}")
        if answer is not None and isinstance(answer.error, UnansweredError):
            done[claim.name] = _Registration()  # it may still be writing to the other one
        elif answer is not None and answer.error is not None:
            done[claim.name].notes.append((EventKind.FAILED, str(answer.error)))
        for kind, text in done[claim.name].notes:
            world.notify(kind, text, node_claim=claim.name, node_pool=claim.node_pool)
    return done


def _is_labelled(node: Node, label: str) -> bool:
    return node.metadata.labels.get(label) == "true"


def _needs_registration(claim: NodeClaim, node: Node, missing: str, now: datetime) -> bool:
    if not _is_labelled(node, REGISTERED) or NODE_FINALIZER not in node.metadata.finalizers:
        return True
    if _is_labelled(node, INITIALIZED):
        return False
    return lifecycle.with_node(claim, node, now, missing).is_true(lifecycle.INITIALIZED)


def _register_node(
    world: World, claim: NodeClaim, node: Node, missing: str, now: datetime, done: _Registration
) -> None:
    """Add missing labels, taints and our finalizer to one node.

    Raises:
        ClusterError: the API rejected a change; ``done`` contains the changes made before.
    """
    if not _is_labelled(node, REGISTERED):
        world.cluster.register(node.name, claim)
        done.registered = True
        done.notes.append((EventKind.REGISTERED, f"{node.name} joined"))
    elif NODE_FINALIZER not in node.metadata.finalizers:
        world.cluster.add_finalizer(node.name)
    fresh = lifecycle.with_node(claim, node, now, missing)
    if fresh.is_true(lifecycle.INITIALIZED) and not _is_labelled(node, INITIALIZED):
        world.cluster.initialize(node.name)
        done.notes.append((EventKind.INITIALIZED, f"{node.name} is ready"))


def _update_from_node(
    world: World,
    claim: NodeClaim,
    node: Node | None,
    now: datetime,
    registrations: Mapping[str, _Registration],
    missing: str,
) -> NodeClaim:
    """Return the claim updated from its node; one that could not be registered is unchanged."""
    if node is None or claim.is_deleting or not claim.is_true(lifecycle.LAUNCHED):
        return lifecycle.with_node(claim, node, now)
    if node.metadata.deletion_timestamp is not None:
        return mark_node_deleted(world, claim, node, now)
    if not registrations[claim.name].registered:
        return claim
    return lifecycle.with_node(claim, node, now, missing)
