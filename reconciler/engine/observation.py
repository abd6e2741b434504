"""One observation of the world: what EC2 and the cluster show, and what it means for our claims.

An observation is complete or it fails: a truncated list of EC2 must never read as "terminated".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from reconciler.engine.departure import deleted_node, hold, lost_nodes
from reconciler.engine.ownership import NO_DOUBTS, Doubts, doubts
from reconciler.engine.steps import lifecycle
from reconciler.engine.steps.nomination import seated
from reconciler.engine.world import World
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import ClusterError
from reconciler.model.history import NO_HISTORY, History
from reconciler.model.karpenter.labels import INITIALIZED, REGISTERED
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.node import Node
from reconciler.model.ownership import NO_OWNER, Owner
from reconciler.observed.identity import identified
from reconciler.observed.pods import Pods
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.ports.cloud import Instance
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase, RunningCommand


@dataclass(frozen=True, slots=True)
class Before:
    """Our records before the observation updated them."""

    node_claims: tuple[NodeClaim, ...] = ()
    commands: tuple[RunningCommand, ...] = ()


NOTHING_BEFORE: Final = Before()


@dataclass(frozen=True)
class Observation:
    """What was observed at ``at``; ``snapshot`` holds the claims as the observation updated them.

    ``findings`` are about facts that could not be observed and that decide nothing by themselves.
    ``history`` is the recorded past. ``owner`` is the fleet that observes, and ``doubts`` are the
    instances that may or may not belong to it. ``disputed`` are the claims that several Nodes
    match. ``before`` holds our records as the observation found them.
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

    @property
    def claims(self) -> tuple[NodeClaim, ...]:
        return self.snapshot.node_claims

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
        """Return the cluster as decisions need it.

        Nodes of running commands count as being removed. Pods are on the nodes launched for them.
        """
        return self._state

    @cached_property
    def _state(self) -> ClusterState:
        return cluster_state(seated(self.snapshot, self.at), marked_claims(self.commands))


def marked_claims(commands: Iterable[RunningCommand]) -> set[str]:
    """Return the claims that running commands remove."""
    under_way = (CommandPhase.MARKED, CommandPhase.WAITING, CommandPhase.TERMINATING)
    return {name for c in commands if c.phase in under_way for name in c.node_claims}


def observe(world: World, pools: Sequence[NodePool], owner: Owner) -> Observation:
    """Observe EC2, then the cluster, and update the recorded claims.

    EC2 is listed before our records are read. An instance in the list is therefore in the records
    already, unless its launch was not recorded at all (Karpenter lists in this order too).
    """
    listed = tuple(world.compute.instances())
    recorded = tuple(world.store.node_claims())
    commands = tuple(world.store.commands())
    instances = (*listed, *_unlisted(world, recorded, listed))
    by_id = {instance.id: instance for instance in instances}
    at = world.clock.now()
    claims = [
        lifecycle.with_instance(claim, by_id.get(lifecycle.instance_id(claim)), at)
        for claim in recorded
    ]
    whole = world.cluster.observe(claims, instances)
    known = identified(whole, {i.id: i.private_dns_name for i in instances if i.private_dns_name})
    seen = known.snapshot
    now = world.clock.now()
    nodes = {n.spec.provider_id: n for n in seen.nodes if n.spec.provider_id}
    lost = lost_nodes(world, _joined(claims, by_id), {n.name for n in whole.nodes}, now)
    pods = Pods.of(seen.pods).holding
    after = {pool.name: pool.spec.disruption.consolidates_after for pool in pools}
    updated = []
    for claim in claims:
        node = nodes.get(claim.status.provider_id)
        fresh = lost.claims.get(claim.name) or _looked_at(world, claim, node, now)
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
            hint="a reclaimed node is noticed only after it is gone",
        ),
    )


def _unlisted(
    world: World, claims: Iterable[NodeClaim], listed: Iterable[Instance]
) -> Sequence[Instance]:
    """Return the instances of our claims that EC2 shows by id although its list lacks them.

    The list leaves out terminated instances, and it may lag behind.
    """
    known = {instance.id for instance in listed}
    wanted = {lifecycle.instance_id(c) for c in claims if c.status.provider_id}
    missing = sorted(wanted - known)
    return world.compute.look_up(missing) if missing else ()


def _joined(claims: Iterable[NodeClaim], instances: Mapping[str, Instance]) -> list[NodeClaim]:
    """Return the claims whose instances run and whose nodes have joined."""
    found = []
    for claim in claims:
        instance = instances.get(lifecycle.instance_id(claim))
        runs = instance is not None and instance.state == "running"
        if runs and claim.is_true(lifecycle.REGISTERED) and not claim.is_deleting:
            found.append(claim)
    return found


def _looked_at(world: World, claim: NodeClaim, node: Node | None, now: datetime) -> NodeClaim:
    """Return the claim updated from its node, and put missing labels and taints on the node."""
    if node is None or claim.is_deleting or not claim.is_true(lifecycle.LAUNCHED):
        return lifecycle.with_node(claim, node, now)
    if node.metadata.deletion_timestamp is not None:
        return deleted_node(world, claim, node, now)
    labels = node.metadata.labels
    if labels.get(REGISTERED) != "true" and not _carried_out(
        world,
        claim,
        lambda: world.cluster.register(node.name, claim),
        EventKind.REGISTERED,
        node,
        "joined",
    ):
        return claim
    hold(world, claim, node)
    fresh = lifecycle.with_node(claim, node, now)
    if fresh.is_true(lifecycle.INITIALIZED) and labels.get(INITIALIZED) != "true":
        _carried_out(
            world,
            claim,
            lambda: world.cluster.initialize(node.name),
            EventKind.INITIALIZED,
            node,
            "is ready",
        )
    return fresh


def _carried_out(
    world: World,
    claim: NodeClaim,
    change: Callable[[], None],
    kind: EventKind,
    node: Node,
    what: str,
) -> bool:
    """Change a node and report it; return whether that worked. A failure stops no other node."""
    try:
        change()
    except ClusterError as error:
        world.notify(EventKind.FAILED, str(error), node_claim=claim.name, node_pool=claim.node_pool)
        return False
    world.notify(kind, f"{node.name} {what}", node_claim=claim.name, node_pool=claim.node_pool)
    return True
