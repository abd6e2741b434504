"""In which order a ReplicaSet that is scaled down removes pods: from the nodes that go next.

Pods of nodes that leave have the least cost. Then come the nodes that drift or consolidation would
replace first, if budgets allow it. Other nodes have no rank (Karpenter 1.15
``pod/deletioncost/ranking.go``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateSet, price_refusal
from reconciler.disruption.gates.budgets import BudgetLedger
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DISRUPTED_TAINT
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import StateNode

LEAVING: Final = -(2**31)
"""The deletion cost of the pods of a node that is being removed."""
_REPLACED_ELSEWHERE: Final = frozenset({("apps", "ReplicaSet"), ("batch", "Job")})
_OF_NODES: Final = ("apps", "DaemonSet")


def _reason_to_go(candidate: Candidate) -> DisruptionReason | None:
    if candidate.drift is not None and not candidate.pool.is_static:
        return DisruptionReason.DRIFTED
    is_consolidated = candidate.pool.spec.disruption.consolidates_after is not None
    return DisruptionReason.UNDERUTILIZED if is_consolidated else None


def node_ranks(
    candidates: CandidateSet,
    nodes: Iterable[StateNode],
    ledger: BudgetLedger,
    leaving: Collection[str] = (),
) -> dict[str, int | None]:
    """Return the deletion cost of the pods of each node of ours, None for none.

    Nodes that are ``leaving`` come first, then those with a rank, the first to go first.
    """
    managed = [node for node in nodes if node.is_managed and node.node is not None]
    gone = [node.name for node in managed if node.name in leaving or _is_leaving(node)]
    free = [c for c in candidates.candidates if c.name not in gone and _may_be_emptied(c)]
    free.sort(key=lambda c: (-c.ratio, c.name))
    by_reason = group_by(free, _reason_to_go)
    ranked: list[Candidate] = []
    for reason in (DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED):
        ranked += _within_budget(by_reason.get(reason, ()), reason, ledger.copy())
    found: dict[str, int | None] = dict.fromkeys(sorted(gone), LEAVING)
    found.update((c.name, number - len(ranked)) for number, c in enumerate(ranked))
    for node in managed:
        found.setdefault(node.name, None)
    return found


def _is_leaving(node: StateNode) -> bool:
    return node.is_deleting or any(taint.key == DISRUPTED_TAINT for taint in node.taints)


def _may_be_emptied(candidate: Candidate) -> bool:
    """Return whether nothing keeps the pods of a node, and its price is known."""
    if candidate.pod_refusal is not None or price_refusal(candidate) is not None:
        return False
    return all(map(_is_replaced, candidate.node.pods))


def _is_replaced(pod: Pod) -> bool:
    """Return whether a pod that is gone comes back on any node, or belongs to its node."""
    if pod.namespace == "kube-system" or pod.is_terminal:
        return True
    owner = controlling_kind(pod)
    return owner in _REPLACED_ELSEWHERE or owner == _OF_NODES


def controlling_kind(pod: Pod) -> tuple[str, str] | None:
    """Return the group and kind of what controls a pod, None without a controller."""
    owner = pod.metadata.controller
    return None if owner is None else (owner.api_version.partition("/")[0], owner.kind)


def _within_budget(
    candidates: Iterable[Candidate], reason: DisruptionReason, ledger: BudgetLedger
) -> list[Candidate]:
    found = []
    for candidate in candidates:
        if ledger.allowed_disruptions(candidate.pool.name, reason) > 0:
            ledger.count_disruption(candidate.pool.name, reason)
            found.append(candidate)
    return found
