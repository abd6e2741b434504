"""The NodeClaims of Nodes that somebody else removes from the cluster.

From registration on, a Node has our finalizer, so that ``kubectl delete node`` drains it first,
terminates its instance, and only then removes it (Karpenter's ``node.termination``). If a Node
disappears nevertheless, because its finalizer was removed, its NodeClaim is deleted at once:
nothing can run on its instance until its kubelet registers again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.ports.progress import EventKind

NODE_DELETED: Final = "NodeDeleted"
NODE_GONE: Final = "NodeGone"
"""Reasons of a termination that somebody else has caused."""


@dataclass(frozen=True)
class LostNodes:
    """The claims of Nodes that are gone, as deleted, by name; and findings about them."""

    claims: Mapping[str, NodeClaim] = field(default_factory=dict)
    findings: tuple[Diagnostic, ...] = ()


def deleted_node(world: World, claim: NodeClaim, node: Node, now: datetime) -> NodeClaim:
    """Return the claim of a Node that somebody has deleted, as deleted."""
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
