"""What a pass shows in the cluster: Events with Karpenter's texts, and NodeClaims as objects.

People can delete the objects, which drains and terminates the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from reconciler.disruption.command import BlockCode
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Complete, Observation, Observed
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reboots import episode
from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.nodeclaim import REBOOTING, NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.plan.render.sections.pods import leading_reasons
from reconciler.plan.value.actions import BlockedNode, PlannedCommand
from reconciler.plan.value.plan import Plan
from reconciler.ports.cluster import Announcement, Mirror
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase

_REASONS_MAX: Final = 3
_TEXT_MAX: Final = 1000
"""The API accepts notes of up to 1024 characters."""

CLAIM_DELETED: Final = "NodeClaimDeleted"
_NAME: Final = "mirror NodeClaims"


def announce(world: World, seen: Complete, plan: Plan) -> None:
    """Publish Events about the findings and actions of the pass."""
    world.announcer.announce(
        [
            *_pod_announcements(seen, plan),
            *_node_announcements(seen, plan),
            *_reboot_announcements(seen),
            *_pool_announcements(plan),
        ]
    )


def _pod_announcements(seen: Observation, plan: Plan) -> Iterator[Announcement]:
    """Yield why pods cannot be scheduled, and where pending ones should be scheduled."""
    pending = seen.snapshot.indexed_pods.provisionable
    for item in plan.unschedulable:
        pod = pending.get(item.pod)
        if pod is not None:
            lines = leading_reasons(item.reasons)[:_REASONS_MAX]
            text = f"Failed to schedule pod: {'; '.join(lines) or 'no NodePool fits'}"
            yield _pod_announcement(pod, "FailedScheduling", text, is_warning=True)
    places = {p.pod: _format_place(p.node, p.node_claim) for p in plan.placements}
    for key, node in seen.nominations.items():
        places.setdefault(key, _format_place(node, None))
    for key, place in sorted(places.items()):
        if key in pending and place:
            text = f"Pod should schedule on: {place}"
            yield _pod_announcement(pending[key], "Nominated", text)


def _format_place(node: str | None, node_claim: str | None) -> str:
    return f"node/{node}" if node else f"nodeclaim/{node_claim}" if node_claim else ""


def _node_announcements(seen: Observation, plan: Plan) -> Iterator[Announcement]:
    """Yield which nodes are disrupted, which wait for replacements, and which cannot be."""
    nodes = {node.name: node for node in seen.snapshot.nodes}
    yield from _start_announcements(nodes, plan.commands)
    yield from _running_announcements(nodes, seen)
    claims = {claim.status.node_name: claim for claim in seen.claims}
    for blocked in plan.blocked:
        if blocked.code == BlockCode.UNHEALTHY_SHARE:
            yield from _repair_announcements(nodes, claims, blocked)
            continue
        text = f"Cannot disrupt Node: {blocked.message}"
        yield from _node_announcement(nodes, blocked.node, "DisruptionBlocked", "Disrupting", text)


def _start_announcements(
    nodes: Mapping[str, Node], commands: Iterable[PlannedCommand]
) -> Iterator[Announcement]:
    for command in commands:
        reason = "DisruptionLaunching" if command.replacements else "DisruptionTerminating"
        if not command.removes_nodes:
            reason = "DisruptionRebooting"
        saved = f", saving ${command.savings:.4f}/hour" if command.savings else ""
        more = f" ({command.message})" if command.message else ""
        for name in command.nodes:
            text = f"Disrupting Node: {command.reason}/{command.decision}{saved}{more}"
            yield from _node_announcement(nodes, name, reason, "Disrupting", text)


def _running_announcements(nodes: Mapping[str, Node], seen: Observation) -> Iterator[Announcement]:
    hosts = {claim.name: claim.status.node_name for claim in seen.claims}
    for running in seen.commands:
        if not running.removes_nodes:
            continue  # the events of a reboot are those of its NodeClaim
        waits = running.phase in (CommandPhase.MARKED, CommandPhase.WAITING)
        reason = "DisruptionWaitingReadiness" if waits else "DisruptionTerminating"
        text = (
            f"Waiting on readiness to continue disruption: {running.reason}"
            if waits
            else f"Disrupting Node: {running.reason}/{running.decision}"
        )
        for claim in running.node_claims:
            yield from _node_announcement(nodes, hosts.get(claim, ""), reason, "Disrupting", text)


def _repair_announcements(
    nodes: Mapping[str, Node], claims: Mapping[str, NodeClaim], blocked: BlockedNode
) -> Iterator[Announcement]:
    """Yield on the node, its NodeClaim and its NodePool why a repair waits, as Karpenter does."""
    reason, text = "NodeRepairBlocked", blocked.message[:_TEXT_MAX]
    node, claim = nodes.get(blocked.node), claims.get(blocked.node)
    found = [("NodePool", blocked.node_pool, "")]
    found += [("Node", blocked.node, node.metadata.uid)] if node is not None else []
    found += [("NodeClaim", claim.name, claim.metadata.uid)] if claim is not None else []
    for kind, name, uid in found:
        yield Announcement(kind, name, reason, "Disrupting", text, uid=uid, is_warning=True)


def _reboot_announcements(seen: Observation) -> Iterator[Announcement]:
    """Yield the reboots whose node has booted again, and those that failed, as Karpenter does."""
    nodes = seen.nodes()
    for claim in seen.claims:
        known, node = claim.condition(REBOOTING), nodes.get(claim.status.provider_id)
        if known is None:
            continue
        name, uid = claim.name, claim.metadata.uid
        if known.reason == episode.FAILED:
            text = known.message[:_TEXT_MAX]
            yield Announcement(
                "NodeClaim", name, "RebootFailed", "Disrupting", text, uid=uid, is_warning=True
            )
        elif (
            node is not None
            and episode.is_issued(claim)
            and node.boot_id != episode.boot_to_end(claim)
        ):
            text = "New boot observed (bootID changed); awaiting node readiness"
            yield Announcement("NodeClaim", name, "RebootObserved", "Disrupting", text, uid=uid)


def _pool_announcements(plan: Plan) -> Iterator[Announcement]:
    """Yield the NodePools whose budgets allow no disruption for a reason."""
    for budget in plan.budgets:
        waiting = [d for d in plan.blockers if d.name == f"{budget.node_pool}/{budget.reason}"]
        if budget.allowed == 0 and waiting:
            text = f"No allowed disruptions for disruption reason {budget.reason} due to budgets"
            yield Announcement(
                "NodePool", budget.node_pool, "DisruptionBlocked", "Disrupting", text
            )


def _pod_announcement(
    pod: Pod, reason: str, text: str, *, is_warning: bool = False
) -> Announcement:
    meta, shown = pod.metadata, text[:_TEXT_MAX]
    return Announcement(
        "Pod", meta.name, reason, "Scheduling", shown, pod.namespace, meta.uid, is_warning
    )


def _node_announcement(
    nodes: Mapping[str, Node], name: str, reason: str, action: str, text: str
) -> Iterator[Announcement]:
    node = nodes.get(name)
    if node is not None:
        yield Announcement("Node", name, reason, action, text[:_TEXT_MAX], uid=node.metadata.uid)


def mark_deleted_claims(effects: Effects, seen: Observed) -> None:
    """Mark the claims as deleted whose copies were deleted by others."""
    world = effects.world
    try:
        names = world.mirror.deleted_claims()
    except ClusterError as error:
        world.deletion_problems.report(world, str(error))
        return
    world.deletion_problems.report(world, "")
    deleted = []
    for claim in seen.claims:
        if claim.name not in names or claim.metadata.deletion_timestamp is not None:
            continue
        what = f"NodeClaim {claim.name} was deleted in the cluster"
        deleted.append(lifecycle.delete_with_reason(claim, seen.at, CLAIM_DELETED, what))
        world.notify(
            EventKind.NODE_DELETED,
            f"{what}: its node is drained, then its instance is terminated",
            node_claim=claim.name,
            node_pool=claim.node_pool,
        )
    if deleted:
        world.store.put_node_claims(deleted)


def update_mirror(world: World, desired: PlannedFleet, plan: Plan) -> None:
    """Start to update the copies, and report the result of the last update."""
    answer = world.calls.answer(_NAME)
    if answer is not None:
        world.mirror_problems.report(world, str(answer.error) if answer.error else "")
        if isinstance(answer.value, frozenset):
            _report_pools(world, answer.value - {pool.name for pool in desired.node_pools})
    claims = tuple(world.store.node_claims())
    drifted = {found.node_claim: found.reason for found in plan.drift}
    world.calls.start(_NAME, partial(_show_claims, world.mirror, claims, drifted))


def _show_claims(
    mirror: Mirror, claims: Sequence[NodeClaim], drifted: Mapping[str, str]
) -> frozenset[str]:
    """Show the claims; return the NodePools of the cluster."""
    mirror.update(claims, drifted)
    return frozenset(mirror.node_pools())


def _report_pools(world: World, names: frozenset[str]) -> None:
    """Report the NodePools of the cluster that are not in git, once for the same ones."""
    listed = ", ".join(sorted(names))
    text = f"NodePools of the cluster that git does not have are not acted on: {listed}"
    world.pool_notices.report(world, text if names else "", EventKind.IGNORED)
