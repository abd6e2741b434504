"""The nodes that a command might remove just as well as its own.

Karpenter lists its candidates in the order of a map and sorts them by savings, or by the age of
their drift. Which of several equal ones it takes is therefore chance. Here the first by name is
taken, and the plan names them all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final

import msgspec

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.command import Command, Reason
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.consolidatable import is_consolidatable
from reconciler.disruption.gates.guards import retry_hold
from reconciler.disruption.gates.policy import minimum_age_hold
from reconciler.disruption.methods.drift import drift_age_key
from reconciler.disruption.methods.emptiness import savings_ratio_key
from reconciler.model.decision.equals import EqualCandidates
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE, ZONE

_ORDERS: Final[dict[Reason, Callable[[Candidate], tuple[Hashable, ...]]]] = {
    DisruptionReason.EMPTY: savings_ratio_key,
    DisruptionReason.DRIFTED: drift_age_key,
    DisruptionReason.UNDERUTILIZED: savings_ratio_key,
}
"""The order in which each method takes its candidates; the name, which comes last, is ours."""


def with_equal_candidates(work: DisruptionPass) -> list[Command]:
    """Return the commands of a pass, each with the candidates that are equal to its nodes.

    Equal candidates have the same position in the order of their method, the same NodePool, type,
    zone, capacity type and price, and pods with the same labels and specs.
    """
    found = []
    groups: dict[Reason, dict[Hashable, list[Candidate]]] = {}
    removed = {name for command in work.commands for name in command.nodes}
    for command in work.commands:
        if command.reason in _ORDERS and command.graceful:
            if command.reason not in groups:
                groups[command.reason] = _group_candidates(work, command.reason, removed)
            equals = _equals_of(command, groups[command.reason])
            found.append(replace(command, equals=equals) if equals else command)
        else:
            found.append(command)
    return found


def _group_candidates(
    work: DisruptionPass, reason: Reason, removed: set[str]
) -> dict[Hashable, list[Candidate]]:
    """Return the nodes that commands for a reason remove or might remove, by what is equal."""
    order = _ORDERS[reason]
    own = {name for c in work.commands if c.reason is reason for name in c.nodes}
    found: dict[Hashable, list[Candidate]] = {}
    for candidate in work.candidate_set.candidates:
        is_other = candidate.name not in removed and _may_be_removed(candidate, reason, work)
        if candidate.pool.is_static or not (candidate.name in own or is_other):
            continue
        labels = candidate.node.labels
        key = (
            order(candidate)[:-1],
            candidate.pool.name,
            candidate.kind.name if candidate.kind is not None else "",
            labels.get(ZONE),
            labels.get(CAPACITY_TYPE),
            candidate.price,
            _workloads_on(candidate),
        )
        found.setdefault(key, []).append(candidate)
    return found


def _may_be_removed(candidate: Candidate, reason: Reason, work: DisruptionPass) -> bool:
    """Return whether a method may consider a node, apart from the room and the budgets."""
    is_drift = reason is DisruptionReason.DRIFTED
    if candidate.refusal(eventual=is_drift) is not None:
        return False
    if retry_hold([candidate], work.now) is not None:
        return False
    if is_drift:
        return candidate.drift is not None
    if candidate.is_empty is not (reason is DisruptionReason.EMPTY):
        return False
    return (
        is_consolidatable(candidate.claim, candidate.pool, work.now)
        and minimum_age_hold(candidate, work.settings, work.now) is None
    )


def _workloads_on(candidate: Candidate) -> Hashable:
    """Return the labels and specs of the pods that would move, in any order."""
    rows = (
        (pod.namespace, pod.metadata.labels, msgspec.structs.replace(pod.spec, node_name=""))
        for pod in (*candidate.reschedulable, *candidate.headroom)
    )
    return tuple(sorted(msgspec.json.encode(row, order="deterministic") for row in rows))


def _equals_of(
    command: Command, groups: dict[Hashable, list[Candidate]]
) -> tuple[EqualCandidates, ...]:
    """Return the groups of which a command removes some nodes, with the others as alternatives."""
    nodes = set(command.nodes)
    found = []
    for members in groups.values():
        names = [candidate.name for candidate in members]
        count = len(nodes.intersection(names))
        if 0 < count < len(names):
            found.append(EqualCandidates(count=count, nodes=tuple(sorted(names))))
    return tuple(sorted(found, key=lambda group: group.nodes))
