"""Termination of nodes: taint, drain, terminate, and remove the claim once the instance is gone.

Each pass advances every terminating claim as much as possible, without waiting. A node is
terminated only after an observation that shows it tainted and empty, so that a pod bound just
before the taint is not lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.gates.pdb import PodDisruptionBudgets, list_budgets
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Collected, Observation, Observed
from reconciler.engine.ownership import CLAIM_TAG, launches_of
from reconciler.engine.steps import lifecycle
from reconciler.engine.steps.commands import format_cause
from reconciler.engine.world import World
from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.labels import DISRUPTED_TAINT, DO_NOT_DISRUPT
from reconciler.model.karpenter.nodeclaim import DISRUPTION_REASON, NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.text.counting import format_count
from reconciler.observed.fingerprint import Pods
from reconciler.ports.calls import SHORT_WAIT_S
from reconciler.ports.cloud import Instance
from reconciler.ports.cluster import DrainStep
from reconciler.ports.journal import Intent, Outcome, Verb
from reconciler.ports.progress import EventKind

DRAIN_PATIENCE = timedelta(minutes=10)
"""A drain that takes longer than this is reported as stalled."""


def advance(effects: Effects, seen: Collected) -> frozenset[str]:
    """Advance every terminating claim as much as possible now; return those whose drain is blocked.

    While the owner of some instance is unclear, only nodes that EC2 reclaims are drained, and
    nothing is terminated.
    """
    world, nodes = effects.world, seen.nodes()
    gone: list[tuple[NodeClaim, Node | None]] = []
    leaving: list[tuple[NodeClaim, Instance, Node | None]] = []
    for claim in _launched_claims(world, seen):
        instance, node = seen.instance_of(claim), nodes.get(claim.status.provider_id)
        if seen.is_gone(claim):
            gone.append((claim, node))
        elif (
            instance is not None
            and not instance.is_terminating
            and _may_drain(claim, instance, seen)
        ):
            leaving.append((claim, instance, node))
    _forget_claims(effects, gone)
    _taint_nodes(effects, [(claim, node) for claim, _, node in leaving if node is not None])
    drained, blocked = _drain_nodes(effects, leaving, seen)
    if seen.unclear_owners:
        return blocked
    if drained and terminate_instances(
        effects, [(c.name, i, _termination_reason(c)) for c, i in drained]
    ):
        world.store.put_node_claims(
            [
                lifecycle.with_condition(c, "InstanceTerminating", "True", seen.at)
                for c, _ in drained
            ]
        )
    return blocked


def _launched_claims(world: World, seen: Observation) -> list[NodeClaim]:
    """Return the terminating claims that have an instance; those without one are forgotten."""
    calling = {
        c.node_claim.name for launches in world.requested.values() for _, c in launches.calls
    }
    found, unlaunched = [], dict[str, str]()
    for claim in seen.claims:
        if claim.metadata.deletion_timestamp is None or claim.name in calling:
            continue  # the launch of the latter may still return an instance
        if claim.status.provider_id:
            found.append(claim)
        else:
            unlaunched[claim.name] = "deleted before it was launched"
    if unlaunched:
        world.store.forget_node_claims(unlaunched, seen.at)
    return found


def collect_garbage(effects: Effects, seen: Observed) -> None:
    """Delete claims without an instance or node, and instances without a claim.

    A claim is deleted if its instance was terminated by others, or if its node never joined. An
    instance without a claim is terminated if a journalled launch made it. Any other instance is not
    ours to terminate (``ownership.py``). While there is one, our records may be old, and only
    claims whose instances are gone are deleted.
    """
    world = effects.world
    changed = []
    for claim in seen.claims:
        if claim.metadata.deletion_timestamp is not None:
            continue
        instance = seen.instance_of(claim)
        if (instance is not None and instance.is_terminating) or seen.is_gone(claim):
            world.notify(
                EventKind.VANISHED, f"the instance of {claim.name} is gone", node_claim=claim.name
            )
        elif (
            lifecycle.is_registration_overdue(claim, seen.at)
            and not seen.unclear_owners
            and claim.name not in seen.disputed
        ):
            world.notify(
                EventKind.FAILED, f"{claim.name} never joined the cluster", node_claim=claim.name
            )
        else:
            continue
        changed.append(lifecycle.mark_deleted(claim, seen.at))
    if changed:
        world.store.put_node_claims(changed)
    left_over = _orphaned_instances(world, seen)
    if left_over and not seen.unclear_owners:
        reason = ForcefulReason.ORPHANED
        terminate_instances(effects, [(i.tags.get(CLAIM_TAG, i.id), i, reason) for i in left_over])


def unclaimed_instances(seen: Observation) -> list[Instance]:
    """Return the live instances of our fleet without a claim."""
    known = {lifecycle.instance_id(claim) for claim in seen.claims}
    living = (i for i in seen.instances if i.id not in known and not i.is_terminating)
    return sorted(living, key=lambda i: i.id)


def _may_drain(claim: NodeClaim, instance: Instance, seen: Observation) -> bool:
    """Return whether a node may be drained: it is known, and the owner of no instance is unclear.

    A node that EC2 reclaims is drained in any case, because it is lost anyway.
    """
    if not seen.owner.owns(instance.tags) or claim.name in seen.disputed:
        return False
    return not seen.unclear_owners or claim.is_true(lifecycle.INTERRUPTED)


def _orphaned_instances(world: World, seen: Observation) -> list[Instance]:
    """Return the instances that journalled launches made and that nothing needs.

    The claim of a launch that has ended is recorded. A launch in doubt has not ended:
    ``recovery.py`` will find its instance.
    """
    unclaimed = unclaimed_instances(seen)
    launches = launches_of(unclaimed, world.journal, seen.owner)
    return [i for i in unclaimed if i.id in launches and launches[i.id].outcome is not None]


def _taint_nodes(effects: Effects, leaving: Sequence[tuple[NodeClaim, Node]]) -> None:
    """Taint the nodes that are to be drained and have no taint yet, all at the same time."""
    taints = []
    for claim, node in leaving:
        if not _is_tainted(node):
            facts = {"since": str(claim.metadata.deletion_timestamp)}
            intent = effects.intent(Verb.TAINT, node.name, facts, reason=_termination_reason(claim))
            taints.append(([intent], partial(effects.world.cluster.taint, node.name)))
    effects.execute_all(taints, SHORT_WAIT_S)


def _is_tainted(node: Node) -> bool:
    return any(t.key == DISRUPTED_TAINT for t in node.spec.taints)


def _drain_nodes(
    effects: Effects, leaving: Sequence[tuple[NodeClaim, Instance, Node | None]], seen: Observation
) -> tuple[list[tuple[NodeClaim, Instance]], frozenset[str]]:
    """Take the next step of each drain.

    Returns the claims whose nodes may be terminated now, and the names of those that are blocked.
    """
    world = effects.world
    drains: dict[str, Intent] = {}
    for claim, _, node in leaving:
        if node is not None:
            since = {"since": str(claim.metadata.deletion_timestamp)}
            intent = effects.intent(Verb.DRAIN, node.name, since, reason=_termination_reason(claim))
            drains[claim.name] = intent
    if drains:
        effects.begin(list(drains.values()))
    pods = Pods.from_tuple(seen.snapshot.pods).by_node if leaving else {}
    empty, ended, noted, blocked = [], [], list[NodeClaim](), set[str]()
    for claim, instance, node in leaving:
        step = DrainStep() if node is None else _drain_node(world, claim, node, seen)
        if step is None:
            continue
        if step.is_done and (node is None or _is_tainted(node)):
            empty.append((claim, instance))
            ended += [drains[claim.name]] if node is not None else []
        elif not step.is_done and node is not None:
            noted += _report_drain(world, claim, node, step, seen, pods.get(node.name, ()))
            blocked.update([claim.name] if step.is_blocked else [])
    if noted:
        world.store.put_node_claims(noted)
    effects.finish(ended, Outcome.SUCCEEDED)
    return empty, frozenset(blocked)


def _drain_node(world: World, claim: NodeClaim, node: Node, seen: Observation) -> DrainStep | None:
    """Take the next step of a drain; return what it waits for, None if that is not known yet."""
    try:
        return world.cluster.drain(node.name, lifecycle.drain_deadline(claim), seen.at)
    except ClusterError as error:  # other nodes continue; this one is retried
        world.notify(EventKind.FAILED, str(error), node_claim=claim.name, node_pool=claim.node_pool)
        return None


def _report_drain(
    world: World,
    claim: NodeClaim,
    node: Node,
    step: DrainStep,
    seen: Observation,
    pods: Sequence[Pod],
) -> Iterator[NodeClaim]:
    """Report what a drain waits for and what blocks it, and yield the claim, if that has changed.

    The condition is Karpenter's ``Drained``; its reason is ``Stalled`` after ``DRAIN_PATIENCE``.
    """
    waits_for = (
        f"{format_count(step.pods, 'pod')} to terminate"
        if step.pods
        else f"{format_count(step.volumes, 'volume')} to be detached"
    )
    blockers = _eviction_blockers(pods, seen)
    by = f": {'; '.join(blockers)}" if blockers else ""
    since = claim.metadata.deletion_timestamp or seen.at
    stalled = seen.at - since >= DRAIN_PATIENCE
    kind = EventKind.STALLED if stalled else EventKind.DRAINING
    message = f"draining {node.name}: waiting for {waits_for}{by}"
    noted = lifecycle.with_condition(claim, "Drained", "Unknown", seen.at, kind.value, message)
    if noted != claim:
        world.notify(kind, message, node_claim=claim.name, node_pool=claim.node_pool)
        yield noted


def _eviction_blockers(pods: Sequence[Pod], seen: Observation) -> list[str]:
    """Return which pods of a node cannot be evicted now, and what blocks each.

    A pod that terminates has been evicted, or deleted by others: nothing blocks it.
    """
    budgets = PodDisruptionBudgets(seen.snapshot.pod_disruption_budgets)
    found = []
    for pod in pods:
        if not pod.is_drainable(seen.at) or not pod.is_active:
            continue
        if pod.do_not_disrupt(seen.at):
            found.append(f"pod {pod.key} is annotated {DO_NOT_DISRUPT}")
        names = budgets.budgets_refusing(pod, seen.at)
        if len(names) > 1:
            found.append(
                f"PodDisruptionBudgets {list_budgets(names)} select {pod.key}, so it is never"
                " evicted"
            )
        elif names:
            found.append(f"PodDisruptionBudget {names[0]} blocks the eviction of {pod.key}")
    return found


def _forget_claims(effects: Effects, gone: Sequence[tuple[NodeClaim, Node | None]]) -> None:
    """Delete the Nodes of claims whose instances are gone, then forget the claims.

    A claim whose Node could not be deleted stays for the next pass: our finalizer holds the Node,
    and no other component would remove it.
    """
    world = effects.world
    deletions = []
    for claim, node in gone:
        if node is not None:
            intent = effects.intent(Verb.DELETE_NODE, node.name, reason=_termination_reason(claim))
            deletions.append(([intent], partial(world.cluster.delete_node, node.name)))
    deleted = iter(effects.execute_all(deletions, SHORT_WAIT_S))
    forgotten = [claim.name for claim, node in gone if node is None or next(deleted)]
    reasons = dict.fromkeys(forgotten, "the instance is gone")
    if reasons:
        world.store.forget_node_claims(reasons, world.clock.now())
    for name in forgotten:
        world.notify(EventKind.TERMINATED, f"{name} is gone", node_claim=name)


def _termination_reason(claim: NodeClaim) -> str:
    """Return why the claim is terminated, as recorded by its command."""
    known = claim.condition(DISRUPTION_REASON)
    return format_cause(known.reason, known.message) if known is not None else ""


def terminate_instances(effects: Effects, drained: Sequence[tuple[str, Instance, str]]) -> bool:
    """Request the termination of instances (claim, instance, reason); return whether that worked.

    Each has a separate intent in the journal; all are in one call.
    """
    intents = [
        effects.intent(Verb.TERMINATE, claim, {"instance": instance.id}, reason=reason)
        for claim, instance, reason in drained
    ]
    ids = [instance.id for _, instance, _ in drained]
    return effects.execute(intents, lambda: effects.world.compute.terminate(ids))
