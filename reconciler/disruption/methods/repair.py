"""Repair: replace or reboot unhealthy nodes within the budgets for ``Unhealthy``.

Capacity for the pods of a node is found before the node is terminated, and the drain has a
deadline, since a broken node may never evict its pods. That deadline lets repair ignore protected
pods. The annotation ``karpenter.sh/do-not-repair`` excludes a node; ``do-not-disrupt`` does not
(Karpenter 1.15 ``pkg/controllers/disruption/repair.go``).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.methods.drift import NodeReplacement, replace_node
from reconciler.disruption.methods.reboot import (
    REBOOTS_BEFORE_REPLACEMENT,
    recent_reboots,
    tolerated_since_reboot,
)
from reconciler.disruption.methods.repairpolicy import (
    UNHEALTHY_SHARE_PERCENT,
    Repair,
    pools_with_too_many_unhealthy_nodes,
    repair_matches,
    resolve,
    waiting_repair,
)
from reconciler.disruption.methods.staticdrift import Replacing, replace_static_nodes
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DO_NOT_REPAIR
from reconciler.model.settings import FeatureGate
from reconciler.observed.state import eviction_costs


class _UnhealthyNode(NamedTuple):
    """A node that is due for repair."""

    candidate: Candidate
    repair: Repair
    reboots: int

    @property
    def is_rebooted(self) -> bool:
        """Whether it is rebooted: its condition asks for that, and it was not too often."""
        policy = self.repair.match.policy
        return policy.reboots and self.reboots < REBOOTS_BEFORE_REPLACEMENT

    @property
    def message(self) -> str:
        """Its condition, and why it is replaced although its condition asks for a reboot."""
        described = self.repair.match.description
        if not self.repair.match.policy.reboots or self.is_rebooted:
            return described
        return f"{described}, after {self.reboots} reboots in 24 hours"

    @property
    def drain_limit(self) -> timedelta | None:
        """How long its drain may take, at most its own termination grace period."""
        own = self.candidate.claim.termination_grace_period
        limit = self.repair.drain_limit
        return min(limit, own) if limit is not None and own is not None else limit


class RepairMethod:
    """Replaces unhealthy nodes, the most urgent first.

    It comes before all other methods: a broken node matters more than any improvement.
    """

    reason: Final = DisruptionReason.UNHEALTHY

    def decide(self, work: DisruptionPass) -> None:
        if not work.settings.repairs_within_budgets:
            return
        too_many = pools_with_too_many_unhealthy_nodes(work.simulation.cluster, work.settings)
        due = sorted(self._nodes_to_repair(work), key=_urgency_key)
        for node in due:
            started = len(work.commands)
            if node.candidate.pool.name in too_many:
                text = f"more than {UNHEALTHY_SHARE_PERCENT}% nodes are unhealthy in the nodepool"
                refusal = CandidateRefusal(BlockCode.UNHEALTHY_SHARE, text)
                work.refuse(node.candidate, self.reason, refusal)
            elif work.is_free(node.candidate):
                self._repair(node, work)
            if work.starts_one_command and len(work.commands) > started:
                return

    def _nodes_to_repair(self, work: DisruptionPass) -> Iterator[_UnhealthyNode]:
        """Yield the nodes whose repair is due and not excluded, and report the others."""
        for candidate in (*work.candidates(lambda _: True), *work.candidate_set.protected):
            assert candidate.node.node is not None
            found = repair_matches(candidate.node.node, work.settings)
            matches = tolerated_since_reboot(found, candidate.claim)
            repair = resolve(matches, work.now)
            if repair is None:
                if matches:
                    first = min(matches, key=lambda m: m.tolerated_until)
                    deferral = waiting_repair(candidate.node, candidate.claim, first, self.reason)
                    work.deferrals[deferral] = None
                continue
            refusal = _refusal(candidate, repair)
            if refusal is not None:
                work.refuse(candidate, self.reason, refusal)
            else:
                reboots = len(recent_reboots(candidate.claim, work.now))
                yield _UnhealthyNode(candidate, repair, reboots)

    def _repair(self, node: _UnhealthyNode, work: DisruptionPass) -> None:
        candidate, gate = node.candidate, FeatureGate.TERMINATE_FIRST_REPAIR
        message, limit = node.message, node.drain_limit
        is_budgeted = candidate.node.is_initialized
        if node.is_rebooted:
            if is_budgeted and not work.allowed_disruptions(candidate, self.reason):
                work.defer_for_budget(candidate, self.reason)
                return
            bound = limit if limit is not None else candidate.claim.termination_grace_period
            work.start(self.reason, [candidate], message=message, drain_limit=bound, reboots=True)
        elif candidate.pool.is_static:
            replacing = Replacing(
                self.reason, self.reason, gate, lambda _: message, lambda _: limit
            )
            replace_static_nodes([candidate], replacing, work)
        elif is_budgeted and not work.allowed_disruptions(candidate, self.reason):
            work.defer_for_budget(candidate, self.reason)
        else:
            replacement = NodeReplacement(self.reason, gate, message, limit, bounded=True)
            replace_node(candidate, work, replacement)


def _refusal(candidate: Candidate, repair: Repair) -> CandidateRefusal | None:
    """Return what excludes the node from repair."""
    if candidate.node.annotations.get(DO_NOT_REPAIR) == "true":
        text = f'repair is blocked through the "{DO_NOT_REPAIR}" annotation'
        return CandidateRefusal(BlockCode.DO_NOT_REPAIR, text)
    unbounded = repair.drain_limit is None
    if unbounded and candidate.refusal(eventual=True) is not None:
        text = "repair requires a termination grace period to bypass blocking pods"
        return CandidateRefusal(BlockCode.UNBOUNDED_DRAIN, text)
    return None


def _urgency_key(node: _UnhealthyNode) -> tuple[datetime, float, str]:
    """Order nodes by urgency, then by the cost of disrupting their pods, then by name."""
    cost = eviction_costs(node.candidate.node.pods)
    return node.repair.urgent_since, cost, node.candidate.name
