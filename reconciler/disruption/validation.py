"""Validate a command once more when its replacements are ready.

Karpenter waits fifteen seconds between deciding and acting, because new pods may arrive
(``validation.go``). Here the command waits for its replacements, and the nodes are tainted from the
start, so no pods arrive. What is validated again is what users may have changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.gates.policy import holds_of
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.settings import Settings
from reconciler.observed.state import StateNode

# How long a command may take before it counts as failed and is rolled back.


_FOR_EACH_NODE: Final = timedelta(milliseconds=80)
_LEAST: Final = timedelta(minutes=10)
_MOST: Final = timedelta(hours=1)


def command_timeout(queued: int) -> timedelta:
    """Return the timeout of a command while ``queued`` nodes are in commands.

    Launches are slower if many are requested at once; after an hour something is wrong (Karpenter
    ``queue.go``).
    """
    return min(max(_FOR_EACH_NODE * queued, _LEAST), _MOST)


def objection(
    reason: str, nodes: Sequence[StateNode], settings: Settings, now: datetime
) -> str | None:
    """Return why a voluntary command can no longer disrupt its nodes, or None.

    ``nodes`` are those of its nodes that still exist. A PodDisruptionBudget that is used up now is
    not an objection: the drain waits for it. Nor is a budget of the NodePool: the command already
    counts in it.
    """
    found = (_of_node(node, reason, now) for node in nodes)
    return _held(reason, nodes, settings, now) or next(filter(None, found), None)


def _held(reason: str, nodes: Sequence[StateNode], settings: Settings, now: datetime) -> str | None:
    """Return what holds a pool of the command: a suspension, or a closed window."""
    named = {r.value: r for r in DisruptionReason}
    gate = named.get(reason, DisruptionReason.DRIFTED)
    holds = holds_of(sorted({node.node_pool for node in nodes}), settings, now)
    return next((hold.message for (_, held), hold in holds.items() if held is gate), None)


def _of_node(node: StateNode, reason: str, now: datetime) -> str | None:
    """Return which annotation protects the node, or that it is no longer empty."""
    if node.annotations.get(DO_NOT_DISRUPT) == "true":
        return f"node {node.name} is annotated {DO_NOT_DISRUPT}"
    if reason == DisruptionReason.EMPTY and any(pod.is_reschedulable for pod in node.pods):
        return f"node {node.name} is no longer empty"
    ends = node.claim is not None and node.claim.spec.termination_grace_period is not None
    if reason == DisruptionReason.DRIFTED and ends:
        return None  # the grace period ends such protection anyway
    pod = next((p for p in node.pods if not p.is_disruptable(now)), None)
    return f"pod {pod.key} is annotated {DO_NOT_DISRUPT}" if pod is not None else None
