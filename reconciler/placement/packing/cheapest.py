"""Packs for the price: tries many packings on paper, carries the best out, keeps the cheapest.

Whatever is tried, the default's answer is one of the tries, so that this one is never worse.
"""

from __future__ import annotations

from collections.abc import Callable

from reconciler.placement.cohort import Cohort
from reconciler.placement.packing.carrying import Carrying
from reconciler.placement.packing.filling import Filler, PaperNode
from reconciler.placement.packing.goal import Goal
from reconciler.placement.packing.greedy import Greedy, shelves_of, value_alone
from reconciler.placement.packing.lots import Sorted, Sorting
from reconciler.placement.packing.market import Market
from reconciler.placement.solve import Pass
from reconciler.placement.topology import Topology

_WORK_BASE = 20_000
_WORK_A_POD = 100


class Tries:
    """The cohorts and counts of one question, set back before each try."""

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
        """Return a new pass in which everything waits again."""
        self._topology.restore(self._at_first)
        for cohort in self.cohorts:
            cohort.rewind()
        return self._fresh()

    def saved(self) -> _Standing:
        """Return where the cohorts and counts stand."""
        return _Standing(self._topology.saved(), [(c.waiting_from, c.first) for c in self.cohorts])

    def restore(self, standing: _Standing) -> None:
        """Set cohorts and counts to where they stood."""
        self._topology.restore(standing.counts)
        for cohort, (waiting_from, first) in zip(self.cohorts, standing.waiting, strict=True):
            cohort.waiting_from, cohort.first = waiting_from, first


class _Standing:
    def __init__(self, counts: list[dict[str, int]], waiting: list[tuple[int, int]]) -> None:
        self.counts = counts
        self.waiting = waiting


def cheapest(best: Pass, tries: Tries, goal: Goal) -> Pass:
    """Return the best pass of the default's and all that are tried; it is the one that stands."""
    cohorts = tries.cohorts
    outcome, standing = goal.reached(best, cohorts), tries.saved()
    if outcome.nodes == 0:
        return best
    for nodes, found in packings(tries, goal):
        solving = tries.start()
        solving.settle(cohorts)
        Carrying(solving, cohorts, nodes).run(found)
        solving.run(cohorts)
        reached = goal.reached(solving, cohorts)
        if reached < outcome:
            best, outcome, standing = solving, reached, tries.saved()
    tries.restore(standing)
    return best


def packings(tries: Tries, goal: Goal) -> list[tuple[list[PaperNode], Sorted]]:
    """Return the packings on paper that are worth carrying out."""
    solving = tries.start()
    solving.settle(tries.cohorts)
    found = Sorting(tries.cohorts, solving, goal).lots()
    if not found.lots:
        return []
    names = {n for lot in found.lots for n in lot.requests}
    names.update(n for t in solving.templates for g in t.daemon_groups for n in g.requests)
    market = Market(sorted(names), solving.limits, goal)
    for lot in found.lots:
        lot.value = value_alone(lot, market)
    pods = sum(c.waiting for c in tries.cohorts)
    filler = Filler(market, found.lots)
    nodes = Greedy(filler, shelves_of(found.lots, market), _WORK_BASE + _WORK_A_POD * pods).run()
    return [(nodes, found)]
