"""Repeat one question: cohorts and counts are reset before each try."""

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
    """The state of cohorts and rule counts at one point, including which pods wait."""

    counts: list[dict[str, int]]
    waiting: list[tuple[int, int]]


class Tries:
    """The cohorts and counts of one question.

    ``at_first`` are the counts before any pod was placed; ``fresh`` creates an empty pass.
    ``worth`` is the cost of new nodes for each pod by key, if known: room on existing nodes then
    goes to the most expensive pods first.
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
        """Return a new pass in which all pods wait except those that existing nodes take."""
        self._topology.restore(self._at_first)
        for cohort in self.cohorts:
            cohort.rewind()
        solving = self._fresh()
        solving.settle(_expensive_first(self.cohorts, self._worth, solving.nodes))
        return solving

    def saved(self) -> Checkpoint:
        """Return the current state of cohorts and counts."""
        waiting = [(c.waiting_from, c.first) for c in self.cohorts]
        return Checkpoint(self._topology.saved(), waiting)

    def restore(self, standing: Checkpoint) -> None:
        """Restore cohorts and counts to a saved state."""
        self._topology.restore(standing.counts)
        for cohort, (waiting_from, first) in zip(self.cohorts, standing.waiting, strict=True):
            cohort.waiting_from, cohort.first = waiting_from, first


def _expensive_first(
    cohorts: Sequence[Cohort], worth: Mapping[str, float] | None, use: NodeUse
) -> Sequence[Cohort]:
    """Return cohorts by the value of their pods relative to the share of free room they use.

    Values are rounded to powers of two, so that larger pods stay first among similar ones.
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
