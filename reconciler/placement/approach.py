"""The order in which a pass serves pods and claims: Karpenter's first, then alternatives.

The result of first fit depends on the order. Karpenter sorts by CPU, then memory. If that opens
several nodes or leaves pods unscheduled, other orders are tried. An order that leaves fewer pods
unscheduled is better, whatever it costs. Among those that leave the same pods, another order
replaces the first only if it has fewer nodes or a lower cost, and more of neither. The number of
orders tried depends on the number of pods, never on time, so the result is the same on every
machine.

The queue decides which pods have to wait. A cheaper order that leaves the same number of pods
unscheduled, but different ones, does not count as better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, Protocol

import msgspec

from reconciler.model.settings import DecisionRules
from reconciler.placement.pods.cohort import Cohort
from reconciler.placement.pods.shape import queue_position
from reconciler.placement.solve import PlacementPass, Turn
from reconciler.placement.topology.groups import Topology
from reconciler.placement.topology.rules import RuleKind
from reconciler.placement.work import in_turns

_APPROACHES_BY_PODS: Final = ((500, 6), (12_000, 3), (25_000, 2))
"""Pairs of a maximum number of pods and the number of approaches to try up to it."""
_INTERLEAVED_MAX: Final = 500
"""Maximum number of pods for queue order pod by pod, which cannot place pods in batches."""


class Approach(msgspec.Struct, frozen=True):
    """An order of cohorts, and the position of a claim among those with the same number of pods.

    With ``interleaves``, pods of cohorts with equal requests are served in queue order instead of
    cohort by cohort.
    """

    key: Callable[[Cohort], tuple[object, ...]]
    to_front: bool
    interleaves: bool = False


def queue(cohorts: list[Cohort], approach: Approach) -> list[Turn]:
    """Return the turns of the cohorts in an approach; virtual pods come after all real ones.

    In Karpenter they compete by size. A real pod may then wait for a node although there is room
    that a virtual pod occupies.
    """
    ordered = sorted(cohorts, key=lambda c: (c.shape.model.is_virtual, approach.key(c)))
    if not approach.interleaves:
        return [(cohort, len(cohort.pods)) for cohort in ordered]
    turns: list[Turn] = []
    for _, equals in groupby(ordered, key=_size_key):
        turns += _interleave(list(equals))
    return turns


def serve_in_turns(
    placement_pass: PlacementPass, cohorts: Sequence[Cohort], approach: Approach
) -> None:
    """Serve the cohorts of namespaces in turns, each with the same part of the work.

    What some of them do not need is then left to the others. Pods that were placed wait again.
    """
    for cohort in cohorts:
        cohort.rewind()
    work = placement_pass.work
    namespaces = {cohort.shape.namespace for cohort in cohorts}
    ordered = dict.fromkeys(cohort for cohort, _ in queue(list(cohorts), approach))
    turns = [(cohort, len(cohort.pods)) for cohort in in_turns(list(ordered))]
    work.share = work.limit // max(1, len(namespaces))
    placement_pass.run(turns)
    work.share = None
    placement_pass.run([turn for turn in turns if turn[0] in placement_pass.unserved])


def _size_key(cohort: Cohort) -> tuple[bool, int, int]:
    return cohort.shape.model.is_virtual, cohort.shape.cpu, cohort.shape.memory


def _interleave(cohorts: list[Cohort]) -> Iterator[Turn]:
    """Yield the turns of cohorts of one size, pod by pod in queue order."""
    pods = ((queue_position(pod), i) for i, c in enumerate(cohorts) for pod in c.pods)
    for index, run in groupby(sorted(pods), key=lambda row: row[1]):
        yield cohorts[index], sum(1 for _ in run)


def _cpu_key(cohort: Cohort) -> tuple[object, ...]:
    shape = cohort.shape
    return (-shape.cpu, -shape.memory, queue_position(cohort.pods[0]))


def _memory_key(cohort: Cohort) -> tuple[object, ...]:
    shape = cohort.shape
    return (-shape.memory, -shape.cpu, queue_position(cohort.pods[0]))


def _rules_key(cohort: Cohort) -> tuple[object, ...]:
    """Sort by the number of rules that keep pods apart; unconstrained pods fill the gaps.

    Affinity does not count: pods with affinity have to follow the pods they are attracted to. Pods
    that their volumes tie to a place come first, because the others can follow them there.
    """
    stage = cohort.stages[0]
    rules = (*stage.by_domain, *stage.by_host)
    apart = sum(rule.kind is not RuleKind.AFFINITY for rule in rules)
    return (not _volume_requirements(cohort), -apart, *_cpu_key(cohort))


def _requirements_key(cohort: Cohort) -> tuple[object, ...]:
    """Sort by the number of requirements on nodes, of the pods and of their volumes.

    Constrained pods open nodes, others join them.
    """
    own = len(cohort.stages[0].step.demand.requirements)
    return (-own - _volume_requirements(cohort), *_cpu_key(cohort))


def _volume_requirements(cohort: Cohort) -> int:
    """Return the number of requirements that the pods' volumes put on every node."""
    return min((len(d.requirements) for d in cohort.shape.volume_demands), default=0)


_QUEUE_ORDER: Final = Approach(_cpu_key, to_front=True, interleaves=True)
_APPROACHES: Final = (
    Approach(_cpu_key, to_front=True),
    Approach(_cpu_key, to_front=False),
    Approach(_rules_key, to_front=False),
    Approach(_memory_key, to_front=False),
    Approach(_requirements_key, to_front=False),
    Approach(_memory_key, to_front=True),
)


def approaches(cohorts: Sequence[Cohort], *, as_karpenter: bool = False) -> tuple[Approach, ...]:
    """Return the approaches to try, Karpenter's first, or only that."""
    if as_karpenter:
        return (_QUEUE_ORDER,)
    pods = sum(len(cohort.pods) for cohort in cohorts)
    tried = next((count for most, count in _APPROACHES_BY_PODS if pods <= most), 1)
    if pods > _INTERLEAVED_MAX or len({_size_key(cohort) for cohort in cohorts}) == len(cohorts):
        return _APPROACHES[:tried]
    return (_QUEUE_ORDER, *_APPROACHES[:tried])


def fresh_approaches(
    cohorts: list[Cohort],
    topology: Topology,
    initial_counts: list[dict[str, int]],
    rules: DecisionRules,
) -> Iterator[Approach]:
    """Yield the approaches to try, each with all pods waiting and the initial counts."""
    as_karpenter = rules is DecisionRules.KARPENTER
    for number, approach in enumerate(approaches(cohorts, as_karpenter=as_karpenter)):
        if number:
            topology.restore(initial_counts)
            for cohort in cohorts:
                cohort.rewind()
        yield approach


class NewPass(Protocol):
    """Begins a pass (``Scheduler``)."""

    def __call__(self, *, to_front: bool) -> PlacementPass:
        """Return a pass that has placed nothing."""
        ...


def needs_several_claims(
    cohorts: list[Cohort],
    topology: Topology,
    new_pass: NewPass,
    rules: DecisionRules,
) -> bool:
    """Return whether every approach opens more claims than its ``new_pass`` may.

    A pass never gives up a claim, so none of them has to be completed.
    """
    initial_counts = topology.snapshot()
    for approach in fresh_approaches(cohorts, topology, initial_counts, rules):
        placement_pass = new_pass(to_front=approach.to_front)
        placement_pass.run(queue(cohorts, approach))
        if placement_pass.unserved or not placement_pass.has_too_many_claims:
            return False
    return True


class ApproachScore(msgspec.Struct, frozen=True):
    """The result of a pass: unscheduled pods, new nodes, and their cost in USD an hour.

    ``left`` is the number of unscheduled pods of each cohort; ``unbuffered`` counts virtual pods.
    """

    unplaced: int
    left: tuple[int, ...]
    unbuffered: int
    nodes: int
    cost: float

    def improves_on(self, other: ApproachScore) -> bool:
        """Return whether it places more pods, or the same pods with fewer nodes or dollars."""
        if self.unplaced != other.unplaced:
            return self.unplaced < other.unplaced
        if self.left != other.left:
            return False
        if self.unbuffered != other.unbuffered:
            return self.unbuffered < other.unbuffered
        if self.nodes > other.nodes or self.cost > other.cost:
            return False
        return self != other

    @property
    def could_be_better(self) -> bool:
        """Whether another order could improve the result; a single node is hard to improve on."""
        return self.unplaced > 0 or self.unbuffered > 0 or self.nodes > 1


def score(placement_pass: PlacementPass, cohorts: list[Cohort]) -> ApproachScore:
    """Return the score of a pass."""
    left = tuple(0 if c.shape.model.is_virtual else c.waiting for c in cohorts)
    unplaced = sum(left)
    return ApproachScore(
        unplaced=unplaced,
        left=left,
        unbuffered=sum(c.waiting for c in cohorts) - unplaced,
        nodes=len(placement_pass.claims),
        cost=round(sum(claim.price for claim in placement_pass.claims), 9),
    )
