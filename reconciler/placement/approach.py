"""In which order a pass takes pods and claims: Karpenter's way first, others where they pay.

First fit is a gamble on the order. Karpenter's is by cpu, then memory; where that opens several
nodes, or leaves pods without one, other orders are tried, and one replaces it only if it is
better on one count and worse on none: pods without a place, nodes, dollars. How many are tried
depends on how many pods there are, never on time, so that the answer is the same everywhere.

Which pods have to wait is for the queue to say: an order that leaves as many, but others, is no
better for being cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from reconciler.placement.pods.cohort import Cohort
from reconciler.placement.pods.shape import queue_position
from reconciler.placement.solve import PlacementPass, Turn
from reconciler.placement.topology.rules import RuleKind


class Approach(msgspec.Struct, frozen=True):
    """An order of cohorts, and where a claim goes among those with as many pods.

    ``mingles`` takes the pods of cohorts that ask for as much in the order of the queue, not one
    cohort after the other.
    """

    key: Callable[[Cohort], tuple[Any, ...]]
    to_front: bool
    mingles: bool = False


def queue(cohorts: list[Cohort], approach: Approach) -> list[Turn]:
    """Return the turns of the cohorts in an approach; virtual pods have what the others leave.

    Karpenter lets them compete by size: then a real pod may wait for a node while room stands
    empty for one that may never come.
    """
    ordered = sorted(cohorts, key=lambda c: (c.shape.model.is_virtual, approach.key(c)))
    if not approach.mingles:
        return [(cohort, len(cohort.pods)) for cohort in ordered]
    turns: list[Turn] = []
    for _, equals in groupby(ordered, key=_size):
        turns += _mingled(list(equals))
    return turns


def _size(cohort: Cohort) -> tuple[bool, int, int]:
    return cohort.shape.model.is_virtual, cohort.shape.cpu, cohort.shape.memory


def _mingled(cohorts: list[Cohort]) -> Iterator[Turn]:
    """Yield the turns of cohorts of one size, pod after pod as the queue has them."""
    pods = ((queue_position(pod), i) for i, c in enumerate(cohorts) for pod in c.pods)
    for index, run in groupby(sorted(pods), key=lambda row: row[1]):
        yield cohorts[index], sum(1 for _ in run)


def _by_cpu(cohort: Cohort) -> tuple[Any, ...]:
    shape = cohort.shape
    return (-shape.cpu, -shape.memory, queue_position(cohort.pods[0]))


def _by_memory(cohort: Cohort) -> tuple[Any, ...]:
    shape = cohort.shape
    return (-shape.memory, -shape.cpu, queue_position(cohort.pods[0]))


def _by_rules(cohort: Cohort) -> tuple[Any, ...]:
    """By how many rules keep them apart: pods that may go anywhere fill what is left.

    Who wants to be near others must come after them, so affinity counts for nothing here.
    """
    stage = cohort.stages[0]
    groups = (*stage.by_domain, *stage.by_host)
    apart = sum(group.kind is not RuleKind.AFFINITY for group in groups)
    return (-apart, *_by_cpu(cohort))


def _by_requirements(cohort: Cohort) -> tuple[Any, ...]:
    """By how much they ask of the node itself: the choosy open nodes, the others join them."""
    return (-len(cohort.stages[0].step.demand.requirements), *_by_cpu(cohort))


_AS_QUEUED: Final = Approach(_by_cpu, to_front=True, mingles=True)
_APPROACHES: Final = (
    Approach(_by_cpu, to_front=True),
    Approach(_by_cpu, to_front=False),
    Approach(_by_rules, to_front=False),
    Approach(_by_memory, to_front=False),
    Approach(_by_requirements, to_front=False),
    Approach(_by_memory, to_front=True),
)
_TRIED: Final = ((500, 6), (12_000, 3), (25_000, 2))
"""Up to how many pods, how many approaches."""
_MINGLED_MAX: Final = 500
"""Up to how many pods the queue is followed pod by pod, which places none of them together."""


def approaches(cohorts: Sequence[Cohort]) -> tuple[Approach, ...]:
    """Return the approaches to try, Karpenter's first."""
    pods = sum(len(cohort.pods) for cohort in cohorts)
    tried = next((count for most, count in _TRIED if pods <= most), 1)
    if pods > _MINGLED_MAX or len({_size(cohort) for cohort in cohorts}) == len(cohorts):
        return _APPROACHES[:tried]
    return (_AS_QUEUED, *_APPROACHES[:tried])


class ApproachScore(msgspec.Struct, frozen=True):
    """What a pass came to: pods without a place, new nodes, and their dollars an hour.

    ``left`` is how many of each cohort have none; ``unbuffered`` are virtual pods without one.
    """

    unplaced: int
    left: tuple[int, ...]
    unbuffered: int
    nodes: int
    cost: float

    def improves_on(self, other: ApproachScore) -> bool:
        """Return whether it is better on some count and worse on none."""
        if self.unplaced > other.unplaced or self.unbuffered > other.unbuffered:
            return False
        if self.unplaced == other.unplaced and self.left != other.left:
            return False
        if self.nodes > other.nodes or self.cost > other.cost:
            return False
        return self != other

    @property
    def could_be_better(self) -> bool:
        """Whether another order might do better; one node for all pods is hard to beat."""
        return self.unplaced > 0 or self.unbuffered > 0 or self.nodes > 1


def score(solving: PlacementPass, cohorts: list[Cohort]) -> ApproachScore:
    """Return what a pass came to."""
    left = tuple(0 if c.shape.model.is_virtual else c.waiting for c in cohorts)
    unplaced = sum(left)
    return ApproachScore(
        unplaced=unplaced,
        left=left,
        unbuffered=sum(c.waiting for c in cohorts) - unplaced,
        nodes=len(solving.claims),
        cost=round(sum(claim.price for claim in solving.claims), 9),
    )
