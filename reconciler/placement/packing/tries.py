"""One question, asked again and again: cohorts and counts are set back before each try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import frexp

from reconciler.catalog.table import indices
from reconciler.placement.nodes.existing import NodeUse
from reconciler.placement.pods.cohort import Cohort
from reconciler.placement.solve import PlacementPass
from reconciler.placement.topology.groups import Topology


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far cohorts and counts have come: the counts of rules, and who still waits."""

    counts: list[dict[str, int]]
    waiting: list[tuple[int, int]]


class Tries:
    """The cohorts and counts of one question.

    ``at_first`` are the counts before any pod was placed; ``fresh`` makes a pass with nothing in
    it. ``worth`` is what new nodes cost for a pod, by its key, where that is known: then the room
    on nodes that are there goes to the dear ones first.
    """

    def __init__(
        self,
        cohorts: list[Cohort],
        topology: Topology,
        at_first: list[dict[str, int]],
        fresh: Callable[[], PlacementPass],
        worth: Mapping[str, float] | None = None,
    ) -> None:
        self.cohorts = cohorts
        self._topology = topology
        self._at_first = at_first
        self._fresh = fresh
        self._worth = worth

    def start(self) -> PlacementPass:
        """Return a new pass in which everything waits, but what nodes that are there take."""
        self._topology.restore(self._at_first)
        for cohort in self.cohorts:
            cohort.rewind()
        solving = self._fresh()
        solving.settle(_dear_first(self.cohorts, self._worth, solving.nodes))
        return solving

    def saved(self) -> Checkpoint:
        """Return where the cohorts and counts stand."""
        waiting = [(c.waiting_from, c.first) for c in self.cohorts]
        return Checkpoint(self._topology.saved(), waiting)

    def restore(self, standing: Checkpoint) -> None:
        """Set cohorts and counts to where they stood."""
        self._topology.restore(standing.counts)
        for cohort, (waiting_from, first) in zip(self.cohorts, standing.waiting, strict=True):
            cohort.waiting_from, cohort.first = waiting_from, first


def _dear_first(
    cohorts: Sequence[Cohort], worth: Mapping[str, float] | None, use: NodeUse
) -> Sequence[Cohort]:
    """Return cohorts by what their pods are worth for the part that they take of all free room.

    Only powers of two count, so that among pods of about the same worth large ones stay first.
    """
    if not worth:
        return cohorts
    free = list(indices(use.open))
    cpu = sum(max(use.cpu[i], 0) for i in free) or 1
    memory = sum(max(use.memory[i], 0) for i in free) or 1

    def rank(cohort: Cohort) -> tuple[bool, int]:
        part = cohort.shape.cpu / cpu + cohort.shape.memory / memory
        value = worth.get(cohort.pods[0].key, 0.0)
        return cohort.shape.model.is_virtual, -frexp(value / part)[1] if part > 0 else 0

    return sorted(cohorts, key=rank)
