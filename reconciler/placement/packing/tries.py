"""One question, asked again and again: cohorts and counts are set back before each try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reconciler.placement.cohort import Cohort
from reconciler.placement.solve import Pass
from reconciler.placement.topology import Topology


@dataclass(frozen=True, slots=True)
class Standing:
    """How far cohorts and counts have come: the counts of rules, and who still waits."""

    counts: list[dict[str, int]]
    waiting: list[tuple[int, int]]


class Tries:
    """The cohorts and counts of one question.

    ``at_first`` are the counts before any pod was placed; ``fresh`` makes a pass with nothing in
    it.
    """

    def __init__(
        self,
        cohorts: list[Cohort],
        topology: Topology,
        at_first: list[dict[str, int]],
        fresh: Callable[[], Pass],
    ) -> None:
        self.cohorts = cohorts
        self._topology = topology
        self._at_first = at_first
        self._fresh = fresh

    def start(self) -> Pass:
        """Return a new pass in which everything waits, but what nodes that are there take."""
        self._topology.restore(self._at_first)
        for cohort in self.cohorts:
            cohort.rewind()
        solving = self._fresh()
        solving.settle(self.cohorts)
        return solving

    def saved(self) -> Standing:
        """Return where the cohorts and counts stand."""
        waiting = [(c.waiting_from, c.first) for c in self.cohorts]
        return Standing(self._topology.saved(), waiting)

    def restore(self, standing: Standing) -> None:
        """Set cohorts and counts to where they stood."""
        self._topology.restore(standing.counts)
        for cohort, (waiting_from, first) in zip(self.cohorts, standing.waiting, strict=True):
            cohort.waiting_from, cohort.first = waiting_from, first
