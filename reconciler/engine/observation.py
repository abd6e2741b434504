"""One look at the world: what EC2 and the cluster show, and what it means for our claims.

The look is complete or it fails: a list that EC2 cut short must never read as «terminated».
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

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
    """What stood in our records when the look began, before it brought them up to date."""

    node_claims: tuple[NodeClaim, ...] = ()
    commands: tuple[RunningCommand, ...] = ()


NOTHING_BEFORE: Final = Before()


@dataclass(frozen=True)
class Observation:
    """What was seen at ``at``: the claims stand in ``snapshot`` as the look has left them.

    ``findings`` are what could not be seen and decides nothing by itself. ``history`` is what
    stands in our records of what was done before. ``owner`` is the fleet whose look it is, and
    ``doubts`` are the instances of which nobody can tell whether they are its own. ``disputed``
    are the claims of which nobody can tell which Node is theirs. ``before`` are our records as the
    look found them.
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
        """Return the instance of a claim as EC2 shows it, terminated or not; None if it does not.

        It is found by its id alone.
        """
        return self._by_id.get(lifecycle.instance_id(claim))

    @cached_property
    def _by_id(self) -> Mapping[str, Instance]:
        return {instance.id: instance for instance in self.instances}

    def nodes(self) -> Mapping[str, Node]:
        """Return the Nodes by provider id."""
        return {n.spec.provider_id: n for n in self.snapshot.nodes if n.spec.provider_id}

    def state(self) -> ClusterState:
        """Return the cluster as a decision sees it.

        What running commands take counts as going; pods sit where a launch was made for them.
        """
        return cluster_state(seated(self.snapshot, self.at), marked_claims(self.commands))


def marked_claims(commands: Iterable[RunningCommand]) -> set[str]:
    """Return the claims that running commands are taking away."""
    under_way = (CommandPhase.MARKED, CommandPhase.WAITING, CommandPhase.TERMINATING)
    return {name for c in commands if c.phase in under_way for name in c.node_claims}


def observe(world: World, pools: Sequence[NodePool], owner: Owner) -> Observation:
    """Look at EC2, then at the cluster, and bring the recorded claims up to date.

    EC2 is asked before our records are read: an instance that a record does not know yet was
    launched after the look, never before it (Karpenter lists in this order too).
    """
    listed = tuple(world.compute.instances())
    recorded = tuple(world.store.node_claims())
    commands = tuple(world.store.commands())
    instances = (*listed, *_unlisted(world, recorded, listed))
    by_id = {instance.id: instance for instance in instances}
    at = world.clock.now()
    claims = [
        lifecycle.looked_for(claim, by_id.get(lifecycle.instance_id(claim)), at)
        for claim in recorded
    ]
    known = identified(
        world.cluster.observe(claims, instances),
        {i.id: i.private_dns_name for i in instances if i.private_dns_name},
    )
    seen = known.snapshot
    now = world.clock.now()
    nodes = {n.spec.provider_id: n for n in seen.nodes if n.spec.provider_id}
    pods = Pods.of(seen.pods).holding
    after = {pool.name: pool.spec.disruption.consolidates_after for pool in pools}
    updated = []
    for claim in claims:
        node = nodes.get(claim.status.provider_id)
        fresh = _looked_at(world, claim, node, now)
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
        (*_unheard(world), *seen.findings, *known.findings),
        owner=owner,
        doubts=doubts(instances, updated, world.journal, owner, now),
        disputed=known.disputed,
        before=Before(recorded, commands),
    )


def _unheard(world: World) -> tuple[Diagnostic, ...]:
    """Say that EC2's word of interruptions does not come in: a finding, and no reason to stop."""
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
    """Return the instances of our claims that the list left out and EC2 shows by id.

    Those that are terminated are not listed, and a list may lag; asked for by its id an instance
    is shown either way.
    """
    known = {instance.id for instance in listed}
    wanted = {lifecycle.instance_id(c) for c in claims if c.status.provider_id}
    missing = sorted(wanted - known)
    return world.compute.look_up(missing) if missing else ()


def _looked_at(world: World, claim: NodeClaim, node: Node | None, now: datetime) -> NodeClaim:
    """Return the claim as its node now shows it, and give the node what it lacks of the claim."""
    if node is None or claim.is_deleting or not claim.is_true(lifecycle.LAUNCHED):
        return lifecycle.seen(claim, node, now)
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
    fresh = lifecycle.seen(claim, node, now)
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
    """Change a node and tell it; return whether it could be. One that refuses holds up no other."""
    try:
        change()
    except ClusterError as error:
        world.notify(EventKind.FAILED, str(error), node_claim=claim.name, node_pool=claim.node_pool)
        return False
    world.notify(kind, f"{node.name} {what}", node_claim=claim.name, node_pool=claim.node_pool)
    return True
