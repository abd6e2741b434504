"""Packs for the price: tries several packings on paper, carries the best out, keeps the cheapest.

Whatever is tried, the default's answer is one of the tries, so that this one is never worse. How
much is tried depends on how many pods there are, never on time: the answer is the same on every
machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from reconciler.placement.cohort import Cohort
from reconciler.placement.packing.carrying import Carrying
from reconciler.placement.packing.filling import Filler, PaperNode
from reconciler.placement.packing.goal import Goal
from reconciler.placement.packing.greedy import Greedy
from reconciler.placement.packing.improving import Improving, best_of_beginnings
from reconciler.placement.packing.lots import DomainChoice, Lot, Sorted, Sorting
from reconciler.placement.packing.market import Market
from reconciler.placement.packing.tries import Tries
from reconciler.placement.packing.worth import set_duals, set_shares
from reconciler.placement.rules import RuleKind
from reconciler.placement.solve import Pass

_CARRIED_OUT = 3
"""How many of the packings on paper are carried out, the cheapest first."""
_BEGINNINGS = 12
"""With how many different first nodes a packing of everything is begun."""
_WORK_BASE = 12_000
_WORK_A_POD = 15
"""How often lots may be held against nodes in one packing: so often, and for each pod."""
_BRIEFLY = 20
"""By how much less is tried where the same is asked again and again."""
_NO_TURN: Mapping[str, int] = {}
_TURNS_MAX = 6
_IN_TURN = 4
"""By how much less is tried with domains taken in turn, of which there are many orders."""
_LOTS_FOR_ONE_TRY = 96
"""With more lots one packing on paper is all: each more would take as long as the default."""


@dataclass(frozen=True, slots=True)
class _Paper:
    """A packing on paper: its nodes, and how many units have none."""

    over: int
    cost: float
    nodes: list[PaperNode]
    found: Sorted


def cheapest(best: Pass, tries: Tries, goal: Goal, *, briefly: bool = False) -> Pass:
    """Return the best pass of the default's and all that are tried; it is the one that stands.

    ``briefly`` tries much less.
    """
    outcome, standing = goal.reached(best, tries.cohorts), tries.saved()
    if outcome.nodes == 0:
        return best
    papers = sorted(_papers(tries, goal, briefly), key=lambda p: (p.over, p.cost))
    for paper in papers[: 1 if briefly else _CARRIED_OUT]:
        solving = tries.start()
        Carrying(solving, tries.cohorts, paper.nodes).run(paper.found)
        solving.run(tries.cohorts)
        reached = goal.reached(solving, tries.cohorts)
        if reached < outcome:
            best, outcome, standing = solving, reached, tries.saved()
    tries.restore(standing)
    return best


def _papers(tries: Tries, goal: Goal, briefly: bool) -> Iterator[_Paper]:
    """Yield packings on paper: for each way to choose domains, by two measures of worth."""
    market: Market | None = None
    seen: set[object] = set()
    turns = () if briefly else _turns(tries.cohorts)
    for choice, turn in product(DomainChoice, (_NO_TURN, *turns)):
        solving = tries.start()
        if market is None:
            market = Market.of(tries.cohorts, solving, goal)
            work_max = _WORK_BASE + _WORK_A_POD * sum(c.waiting for c in tries.cohorts)
            work_max //= _BRIEFLY if briefly else 1
        found = Sorting(tries.cohorts, solving, goal, market, choice, turn).lots()
        if not found.lots or found.content in seen:
            continue
        seen.add(found.content)
        set_shares(found.lots, market)
        one_try = briefly or len(found.lots) > _LOTS_FOR_ONE_TRY
        if one_try or not turn:
            yield _paper(found, market, work_max)
        if one_try:
            return
        if set_duals(found.lots, market, solving.templates, goal):
            yield _paper(found, market, work_max // (_IN_TURN if turn else 1))


def _turns(cohorts: Iterable[Cohort]) -> list[dict[str, int]]:
    """Return orders in which pods that spread may take domains: each is first in one of them.

    Pods that take them in the same order find the same nodes.
    """
    domains = sorted(
        {
            domain
            for cohort in cohorts
            for group in cohort.stages[0].by_domain
            if group.kind is RuleKind.SPREAD
            for domain in group.counts
        }
    )[:_TURNS_MAX]
    count = len(domains)
    return [{d: (i - first) % count for i, d in enumerate(domains)} for first in range(count)]


def _paper(found: Sorted, market: Market, work_max: int) -> _Paper:
    filler = Filler(market, found.lots)
    greedy = Greedy(filler, work_max)
    left: dict[Lot, int] = dict(filler.left)
    packed = best_of_beginnings(greedy, left, _BEGINNINGS)
    assert packed is not None
    nodes = Improving(greedy, packed.nodes).run()
    return _Paper(sum(packed.over.values()), sum(node.cost for node in nodes), nodes, found)
