"""The rules of pods that keep a node, where consolidation would need a replacement for it.

A node whose pods would fit on other nodes has to be replaced if a rule keeps them apart, and its
replacement is rarely cheaper. That rejection names the price; the cause is the rule. It is found by
simulating the removal again with pods that do not have the rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.proposal import Proposal, propose_removal
from reconciler.disruption.consolidation.rejections import RejectionCache
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import StateNode
from reconciler.placement.explain.constraints import (
    Constraint,
    ConstraintKind,
    pod_constraints,
    remove_constraint,
)

NEEDS_REPLACEMENT: Final = frozenset(
    {
        BlockCode.NOT_CHEAPER,
        BlockCode.SEVERAL_REPLACEMENTS,
        BlockCode.MIN_VALUES,
        BlockCode.SPOT_TO_SPOT,
    }
)
"""Rejections of a node whose pods do not all fit on other nodes."""

_ORDER: Final = (
    ConstraintKind.PREFERENCES,
    ConstraintKind.LABEL,
    ConstraintKind.AFFINITY,
    ConstraintKind.HOST_PORTS,
    ConstraintKind.ANTI_AFFINITY,
    ConstraintKind.SPREAD,
)
"""Which constraints are acquitted first: those that seldom keep a node."""


class RetainingRules(NamedTuple):
    """Constraints that keep a node together: without all of them it can be consolidated.

    ``relaxed`` is the node with pods that do not have them, and ``proposal`` is how it could be
    removed then, in a pass (``work``) whose cluster does not have them either if they are mutual.
    """

    constraints: tuple[Constraint, ...]
    relaxed: Candidate
    proposal: Proposal
    work: DisruptionPass

    @property
    def effect(self) -> str:
        """What the constraints do to the pods of the node."""
        return "from a cheaper node" if self.proposal.replacements else "off the other nodes"

    def owners(self, candidate: Candidate, constraint: Constraint) -> tuple[str, ...]:
        """Return the workloads on the node that have a constraint, as Kind namespace/name."""
        found = (p for p in candidate.reschedulable if constraint in set(pod_constraints(p.spec)))
        return tuple(dict.fromkeys(map(workload_of, found)))


class RuleSearch:
    """Finds the rules that keep nodes of a pass, except those of ``ignored`` kinds.

    Anti-affinity also holds from the other side: pods elsewhere keep away those that their terms
    select. So it is removed from all pods, which takes a scheduler of its own for each such rule.
    """

    def __init__(self, work: DisruptionPass, ignored: Collection[ConstraintKind] = ()) -> None:
        self._work = work
        self._ignored = ignored
        self._passes: dict[frozenset[Constraint], DisruptionPass] = {frozenset(): work}

    def retaining_rules(self, candidate: Candidate) -> RetainingRules | None:
        """Return the fewest rules that keep a node, None if rules of its pods do not keep it."""
        found = {c for pod in candidate.reschedulable for c in pod_constraints(pod.spec)}
        found = {c for c in found if c.kind not in self._ignored}
        rules = sorted(found, key=lambda c: (_ORDER.index(c.kind), c.key))
        known = self._without(candidate, rules) if rules else None
        for rule in rules:
            fewer = [r for r in known.constraints if r != rule] if known is not None else []
            if fewer:
                known = self._without(candidate, fewer) or known
        return known

    def _without(self, candidate: Candidate, rules: Sequence[Constraint]) -> RetainingRules | None:
        """Return the rules if the node can be consolidated without them."""
        node = _without_rules(candidate.node, rules)
        relaxed = dataclasses.replace(candidate, node=node)
        mutual = frozenset(r for r in rules if r.kind is ConstraintKind.ANTI_AFFINITY)
        work = self._pass_without(mutual)
        answer = propose_removal([relaxed], work)
        if not isinstance(answer, Proposal):
            return None
        return RetainingRules(tuple(rules), relaxed, answer, work)

    def _pass_without(self, rules: frozenset[Constraint]) -> DisruptionPass:
        """Return the pass in a cluster where no pod has these rules."""
        known = self._passes.get(rules)
        if known is None:
            before = self._work.simulation.cluster
            cluster = dataclasses.replace(
                before,
                nodes=tuple(_without_rules(node, rules) for node in before.nodes),
                pods=tuple(_relaxed_pods(before.pods, rules)),
            )
            known = dataclasses.replace(
                self._work,
                simulation=self._work.simulation.on_cluster(cluster),
                refusals=RejectionCache(),
            )
            self._passes[rules] = known
        return known


def _without_rules(node: StateNode, rules: Collection[Constraint]) -> StateNode:
    """Return a node with pods that do not have these constraints."""
    return dataclasses.replace(node, pods=tuple(_relaxed_pods(node.pods, rules)))


def _relaxed_pods(pods: Iterable[Pod], rules: Collection[Constraint]) -> Iterator[Pod]:
    for pod in pods:
        spec = pod.spec
        for rule in rules:
            spec = remove_constraint(spec, rule)
        yield pod if spec is pod.spec else replace(pod, spec=spec)


def workload_of(pod: Pod) -> str:
    """Return the workload of a pod as Kind namespace/name, or the pod itself."""
    owners = pod.metadata.owner_references
    return f"{owners[0].kind} {pod.namespace}/{owners[0].name}" if owners else f"Pod {pod.key}"
