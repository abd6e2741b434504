"""One observation of the world: what EC2 and the cluster show, and what it means for our claims.

An observation is complete or it fails: a truncated list of EC2 must never read as "terminated".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Final

from reconciler.engine.listing import ListedInstances
from reconciler.engine.ownership import NO_DOUBTS, Doubts, doubts
from reconciler.engine.steps import lifecycle
from reconciler.engine.steps.nomination import moves_pods, seated
from reconciler.engine.world import World
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.history import NO_HISTORY, History
from reconciler.model.karpenter.labels import INITIALIZED, REGISTERED
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.node import Node
from reconciler.model.ownership import NO_OWNER, NODE_FINALIZER, Owner
from reconciler.observed.fingerprint import Pods
from reconciler.observed.identity import identified
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.ports.calls import UnansweredError
from reconciler.ports.cloud import Instance
from reconciler.ports.progress import EventKind
from reconciler.ports.state import RunningCommand

NODE_DELETED: Final = "NodeDeleted"
NODE_GONE: Final = "NodeGone"
"""Reasons of a termination that somebody else has caused."""


@dataclass(frozen=True)
class LostNodes:
    """The claims of Nodes that are gone, as deleted, by name; and findings about them."""

    claims: Mapping[str, NodeClaim] = field(default_factory=dict)
    findings: tuple[Diagnostic, ...] = ()


def deleted_node(world: World, claim: NodeClaim, node: Node, now: datetime) -> NodeClaim:
    """Return the claim of a Node that was deleted by others, as deleted."""
    what = f"Node {node.name} was deleted"
    world.notify(
        EventKind.NODE_DELETED,
        f"{what}: it is drained, then its instance is terminated",
        node_claim=claim.name,
        node_pool=claim.node_pool,
    )
    return lifecycle.removed(claim, now, NODE_DELETED, what)


def lost_nodes(
    world: World, joined: Sequence[NodeClaim], names: AbstractSet[str], now: datetime
) -> LostNodes:
    """Return the claims whose Nodes are gone; ``names`` are those of the Nodes that were listed.

    Each is requested by name before that counts. If no Node of the fleet is left, and it had
    several, then this is another cluster or a restored one: that is a finding, and deletes no
    claim.
    """
    missing = [c for c in joined if c.status.node_name and c.status.node_name not in names]
    if len(missing) == len(joined) > 1:
        return LostNodes(findings=(_none_left(missing),))
    ended = {}
    exist = _existing(world, missing)
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
        ended[claim.name] = lifecycle.removed(claim, now, NODE_GONE, what)
    return LostNodes(ended)


def _existing(world: World, missing: Sequence[NodeClaim]) -> frozenset[str]:
    """Return the claims whose Nodes exist; if unknown, they do."""
    answers = world.calls.together(
        {c.name: partial(world.cluster.has_node, c.status.node_name) for c in missing}
    )
    for claim in missing:
        error = answers[claim.name].error
        if error is not None:
            world.notify(
                EventKind.FAILED, str(error), node_claim=claim.name, node_pool=claim.node_pool
            )
    return frozenset(name for name, a in answers.items() if a.error is not None or a.value)


def _none_left(missing: Sequence[NodeClaim]) -> Diagnostic:
    return Diagnostic(
        Severity.WARNING,
        "nodes-missing",
        f"{len(missing)} instances of this fleet run, but none of their Nodes is in the cluster",
        hint="check that this is the right cluster; if the Nodes were deleted, terminate the "
        "instances in EC2",
    )


@dataclass(frozen=True, slots=True)
class Before:
    """Our records before the observation updated them."""

    node_claims: tuple[NodeClaim, ...] = ()
    commands: tuple[RunningCommand, ...] = ()


_REGISTERS_S: Final = 1.0
"""How long a pass waits until Nodes are registered; the others join a pass later."""

NOTHING_BEFORE: Final = Before()


@dataclass(frozen=True)
class Observation:
    """The facts observed at ``at``; ``snapshot`` holds the claims as the observation updated them.

    ``findings`` are about facts that could not be observed and that decisions do not need.
    ``history`` is the recorded past. ``owner`` is the fleet that observes, and ``doubts`` are the
    instances that may or may not belong to it. ``disputed`` are the claims that several Nodes
    match. ``before`` holds our records before the observation. The list of instances was begun at
    ``listed_at``, None for at the same time.
    """

    at: datetime
    instances: tuple[Instance, ...]
    snapshot: Snapshot
    commands: tuple[RunningCommand, ...]
    findings: tuple[Diagnostic, ...] = ()
    history: History = NO_HISTORY
    owner: Owner = NO_OWNER
    doubts: Doubts = NO_DOUBTS
    disputed: frozenset[str] = frozenset()
    before: Before = NOTHING_BEFORE
    listed_at: datetime | None = None

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

    def expected(self) -> ClusterState:
        """Return the cluster as decisions need it.

        In addition, pods that running commands move are on the nodes launched for them.
        """
        return self._expected

    @cached_property
    def _state(self) -> ClusterState:
        return cluster_state(seated(self.snapshot, self.at), marked_claims(self.commands))

    @cached_property
    def _expected(self) -> ClusterState:
        if not any(moves_pods(command) for command in self.commands):
            return self._state
        ahead = seated(self.snapshot, self.at, self.commands)
        return cluster_state(ahead, marked_claims(self.commands))


def marked_claims(commands: Iterable[RunningCommand]) -> set[str]:
    """Return the claims that running commands remove."""
    return {name for c in commands if c.is_under_way for name in c.node_claims}


def observe(world: World, pools: Sequence[NodePool], owner: Owner) -> Observation:
    """Observe EC2, then the cluster, and update the recorded claims.

    EC2 is listed before our records are read. An instance in the list is therefore in the records
    already, unless its launch was not recorded at all (Karpenter lists in this order too).
    """
    recorded = tuple(world.store.node_claims())
    commands = tuple(world.store.commands())
    listed = world.lists.read(world, recorded)
    instances = listed.instances
    by_id = {instance.id: instance for instance in instances}
    claims = [_listed(claim, by_id.get(lifecycle.instance_id(claim)), listed) for claim in recorded]
    whole = world.cluster.observe(claims, instances)
    known = identified(whole, {i.id: i.private_dns_name for i in instances if i.private_dns_name})
    seen = known.snapshot
    now = world.clock.now()
    unseen = _unseen(claims, by_id)
    nodes = {n.spec.provider_id: n for n in seen.nodes if n.spec.provider_id not in unseen}
    lost = lost_nodes(world, _joined(claims, by_id), {n.name for n in whole.nodes}, now)
    welcomed = _welcome(world, claims, nodes, now)
    pods = Pods.of(seen.pods).holding
    after = {pool.name: pool.spec.disruption.consolidates_after for pool in pools}
    updated = []
    for claim in claims:
        node = nodes.get(claim.status.provider_id)
        fresh = lost.claims.get(claim.name) or _looked_at(world, claim, node, now, welcomed)
        if node is not None:
            fresh = lifecycle.with_pods(fresh, pods.get(node.name, ()), now)
        updated.append(lifecycle.consolidatable(fresh, after.get(claim.node_pool), now))
    changed = [new for new, old in zip(updated, recorded, strict=True) if new != old]
    if changed:
        world.store.put_node_claims(changed)
    return Observation(
        now,
        instances,
        replace(seen, node_claims=tuple(updated)),
        commands,
        (*_unheard(world), *seen.findings, *known.findings, *lost.findings),
        owner=owner,
        doubts=doubts(instances, updated, world.journal, owner, now),
        disputed=known.disputed,
        before=Before(recorded, commands),
        listed_at=listed.at,
    )


def _unheard(world: World) -> tuple[Diagnostic, ...]:
    """Return a finding if interruption events cannot be received; that is no reason to stop."""
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


def _listed(claim: NodeClaim, instance: Instance | None, listed: ListedInstances) -> NodeClaim:
    """Return the claim updated from its instance; a list says nothing about later launches."""
    if instance is None and not listed.covers(claim):
        return claim
    return lifecycle.with_instance(claim, instance, listed.at)


def _unseen(claims: Iterable[NodeClaim], instances: Mapping[str, Instance]) -> frozenset[str]:
    """Return the provider ids whose Nodes do not join yet, and none.

    The name of a Node that joins is compared with its instance, which EC2 has to show for that.
    """
    waiting = (c for c in claims if not c.is_true(lifecycle.REGISTERED))
    ids = (c.status.provider_id for c in waiting if lifecycle.instance_id(c) not in instances)
    return frozenset({"", *ids})


def _joined(claims: Iterable[NodeClaim], instances: Mapping[str, Instance]) -> list[NodeClaim]:
    """Return the claims whose instances run and whose nodes have joined."""
    found = []
    for claim in claims:
        instance = instances.get(lifecycle.instance_id(claim))
        runs = instance is not None and instance.state == "running"
        if runs and claim.is_true(lifecycle.REGISTERED) and not claim.is_deleting:
            found.append(claim)
    return found


@dataclass
class _Welcome:
    """The changes made to a node that has joined; ``notes`` are reported when all are done."""

    registered: bool = False
    notes: list[tuple[EventKind, str]] = field(default_factory=list)


def _welcome(
    world: World, claims: Iterable[NodeClaim], nodes: Mapping[str, Node], now: datetime
) -> Mapping[str, _Welcome]:
    """Add missing labels, taints and our finalizer to each node, at the same time.

    Returns what was done by the name of the claim. A failure stops no other node.
    """
    joined = [
        (claim, node)
        for claim in claims
        if (node := nodes.get(claim.status.provider_id)) is not None
        if not claim.is_deleting and claim.is_true(lifecycle.LAUNCHED)
        if node.metadata.deletion_timestamp is None
    ]
    done = {claim.name: _Welcome(_is_labelled(node, REGISTERED)) for claim, node in joined}
    calls = {
        f"register {node.name}": partial(_equip, world, claim, node, now, done[claim.name])
        for claim, node in joined
        if _lacks_something(claim, node, now)
    }
    answers = world.calls.together(calls, _REGISTERS_S)
    for claim, node in joined:
        answer = answers.get(f"register {node.name}")
        if answer is not None and isinstance(answer.error, UnansweredError):
            done[claim.name] = _Welcome()  # it may still be writing to the other one
        elif answer is not None and answer.error is not None:
            done[claim.name].notes.append((EventKind.FAILED, str(answer.error)))
        for kind, text in done[claim.name].notes:
            world.notify(kind, text, node_claim=claim.name, node_pool=claim.node_pool)
    return done


def _is_labelled(node: Node, label: str) -> bool:
    return node.metadata.labels.get(label) == "true"


def _lacks_something(claim: NodeClaim, node: Node, now: datetime) -> bool:
    if not _is_labelled(node, REGISTERED) or NODE_FINALIZER not in node.metadata.finalizers:
        return True
    return not _is_labelled(node, INITIALIZED) and lifecycle.with_node(claim, node, now).is_true(
        lifecycle.INITIALIZED
    )


def _equip(world: World, claim: NodeClaim, node: Node, now: datetime, done: _Welcome) -> None:
    """Add missing labels, taints and our finalizer to one node.

    Raises:
        ClusterError: the API rejected a change; ``done`` contains the changes made before.
    """
    if not _is_labelled(node, REGISTERED):
        world.cluster.register(node.name, claim)
        done.registered = True
        done.notes.append((EventKind.REGISTERED, f"{node.name} joined"))
    elif NODE_FINALIZER not in node.metadata.finalizers:
        world.cluster.hold(node.name)
    fresh = lifecycle.with_node(claim, node, now)
    if fresh.is_true(lifecycle.INITIALIZED) and not _is_labelled(node, INITIALIZED):
        world.cluster.initialize(node.name)
        done.notes.append((EventKind.INITIALIZED, f"{node.name} is ready"))


def _looked_at(
    world: World,
    claim: NodeClaim,
    node: Node | None,
    now: datetime,
    welcomed: Mapping[str, _Welcome],
) -> NodeClaim:
    """Return the claim updated from its node; one that could not be registered is unchanged."""
    if node is None or claim.is_deleting or not claim.is_true(lifecycle.LAUNCHED):
        return lifecycle.with_node(claim, node, now)
    if node.metadata.deletion_timestamp is not None:
        return deleted_node(world, claim, node, now)
    return lifecycle.with_node(claim, node, now) if welcomed[claim.name].registered else claim
