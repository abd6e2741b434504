"""Pack for cost: draft several packings, place the best ones, and use the cheapest.

The default packing is always one of the candidates, so the result never costs more. The amount of
work depends on the number of pods, never on time, so the result is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import frexp

from reconciler.catalog.table import indices
from reconciler.model.resources import NODES
from reconciler.placement.nodes.claims import OpenClaim
from reconciler.placement.nodes.use import NodeUse
from reconciler.placement.packing.filling import DraftNode, Filler
from reconciler.placement.packing.goal import Depth, Effort, Goal
from reconciler.placement.packing.greedy import (
    DraftPacking,
    UnitValues,
    make_draft,
    value_by_dual,
    value_by_share,
)
from reconciler.placement.packing.lots import DomainChoice, Lot, LotSorter, SortedLots
from reconciler.placement.packing.market import PackingMarket
from reconciler.placement.pods.cohort import Cohort, CohortView
from reconciler.placement.solve import PlacementPass
from reconciler.placement.topology.groups import Topology
from reconciler.placement.topology.rules import RuleKind


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of cohorts and rule counts at one point, including which pods wait."""

    counts: list[dict[str, int]]
    waiting: list[tuple[int, int]]


class Trials:
    """The cohorts and counts of one question.

    ``initial_counts`` are those before any pod was placed; ``new_pass`` creates an empty pass.
    ``pod_values`` are the costs of new nodes for each pod by key, if known: room on existing nodes
    then goes to the most expensive pods first.
    """

    def __init__(
        self,
        cohorts: list[Cohort],
        topology: Topology,
        initial_counts: list[dict[str, int]],
        new_pass: Callable[[], PlacementPass],
        pod_values: Mapping[str, float] | None = None,
    ) -> None:
        self.cohorts = cohorts
        self._topology = topology
        self._at_first = initial_counts
        self._fresh = new_pass
        self._pod_values = pod_values

    def start(self) -> PlacementPass:
        """Return a new pass in which all pods wait except those that existing nodes take."""
        self._topology.restore(self._at_first)
        for cohort in self.cohorts:
            cohort.rewind()
        placement_pass = self._fresh()
        placement_pass.fill_existing_nodes(
            _sort_by_pod_value(self.cohorts, self._pod_values, placement_pass.nodes)
        )
        return placement_pass

    def checkpoint(self) -> Checkpoint:
        """Return the current state of cohorts and counts."""
        waiting = [(c.waiting_from, c.first) for c in self.cohorts]
        return Checkpoint(self._topology.snapshot(), waiting)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore cohorts and counts to a saved state."""
        self._topology.restore(checkpoint.counts)
        for cohort, (waiting_from, first) in zip(self.cohorts, checkpoint.waiting, strict=True):
            cohort.waiting_from, cohort.first = waiting_from, first


def _sort_by_pod_value(
    cohorts: Sequence[Cohort], pod_values: Mapping[str, float] | None, use: NodeUse
) -> Sequence[Cohort]:
    """Return cohorts by the value of their pods relative to the share of free room they use.

    Values are rounded to powers of two, so that larger pods stay first among similar ones.
    """
    if not pod_values:
        return cohorts
    free = list(indices(use.open))
    cpu = sum(max(use.cpu[i], 0) for i in free) or 1
    memory = sum(max(use.memory[i], 0) for i in free) or 1

    def rank(cohort: Cohort) -> tuple[bool, int]:
        part = cohort.shape.cpu / cpu + cohort.shape.memory / memory
        value = pod_values.get(cohort.pods[0].key, 0.0)
        return cohort.shape.model.is_virtual, -frexp(value / part)[1] if part > 0 else 0

    return sorted(cohorts, key=rank)


# Places a drafted packing: every pod is still checked against the rules.
#
# The checks are the same as in any other pass. A pod that does not fit where the draft put it is
# left to the pass, which places it like any other pod.


class _DraftedNode:
    """A drafted node, its claim once opened, and the pods that are still to be placed on it."""

    __slots__ = ("claim", "due", "node")

    def __init__(self, node: DraftNode) -> None:
        self.node = node
        self.claim: OpenClaim | None = None
        self.due = dict(node.taken)


class DraftPlacement:
    """The placement of one draft in a pass."""

    def __init__(
        self, placement_pass: PlacementPass, cohorts: Sequence[Cohort], nodes: Iterable[DraftNode]
    ) -> None:
        self._placement_pass = placement_pass
        self._cohorts = cohorts
        self._by_lot: dict[Lot, list[_DraftedNode]] = {}
        for node in nodes:
            planned = _DraftedNode(node)
            for lot in node.taken:
                self._by_lot.setdefault(lot, []).append(planned)

    def run(self, found: SortedLots) -> None:
        """Place the pods of all lots; pods that do not fit keep waiting."""
        sequences = {number: list(reversed(steps)) for number, steps in found.sequences.items()}
        while sequences:
            before = sum(c.waiting for c in self._cohorts)
            for number in sorted(sequences):
                self._serve(number, sequences[number])
            sequences = {number: steps for number, steps in sequences.items() if steps}
            if sum(c.waiting for c in self._cohorts) == before:
                return

    def _serve(self, number: int, steps: list[tuple[Lot, int]]) -> None:
        """Place a cohort's pods lot by lot, ``steps`` from the last, until one does not fit."""
        cohort = self._cohorts[number]
        while steps and cohort.waiting:
            lot, count = steps[-1]
            stage = next(s for s in lot.stages if s in cohort.stages)
            view = stage.view(cohort, self._placement_pass.demands)
            may_place = self._placement_pass.may_place(cohort) and not view.hopeless
            placed = self._place(number, view, lot, count) if may_place else 0
            if placed:
                index = cohort.stages.index(stage)
                if index:
                    pods = cohort.pods[cohort.waiting_from - placed : cohort.waiting_from]
                    self._placement_pass.steps_taken.update((pod.key, index) for pod in pods)
                steps.pop()
                if placed < count:
                    steps.append((lot, count - placed))
            elif not self._by_lot.get(lot):
                steps.pop()
            else:
                return

    def _place(self, number: int, view: CohortView, lot: Lot, count: int) -> int:
        """Place up to ``count`` pods of a lot on the first node that takes one; return how many."""
        placement_pass = self._placement_pass
        in_unit = dict(lot.cohorts)[number]
        for planned in self._by_lot.get(lot, ()):
            due = planned.due[lot] * in_unit if in_unit == 1 else planned.due[lot]
            if due <= 0:
                continue
            claim = planned.claim
            opening = claim is None
            if claim is None:
                claim = OpenClaim(
                    planned.node.template, f"new node {len(placement_pass.claims) + 1}"
                )
                claim.space = planned.node.site.space
                claim.mask = self._types(planned.node)
            room = view.room_on(claim.host)
            if room <= 0:
                continue
            found = placement_pass.fit(view, claim, claim.mask, opening=opening)
            if found.space is None:
                continue
            limit = min(count, room, due if in_unit == 1 else count)
            if view.stage.by_domain:
                limit = 1
            placed = len(placement_pass.put(view.cohort, claim, found, limit, is_new=opening))
            planned.claim = claim
            if in_unit == 1:
                planned.due[lot] -= placed
            return placed
        return 0

    def _types(self, node: DraftNode) -> int:
        """Return the types that the claim may become: with limits, none larger than drafted."""
        template, table = node.template, node.template.table
        mask = self._placement_pass.limits.allowed_types(template)
        for name in self._placement_pass.limits.remaining(template) or ():
            if name != NODES:
                most = table.most_capacity(name, 1 << node.index)
                mask &= table.capacity_at_most(name, most)
        return mask


_IMPROVED_MAX = 3
"""Number of drafts to improve, cheapest first."""
_PLACED_MAX = 3
"""Number of drafts to place, cheapest first."""
_WORK_BASE = 120_000
_WORK_PER_POD = 60
_BRIEF_WORK_PER_POD = 30
"""Limit on checks of a lot against a node: this number, plus this number for each pod."""
_DIVISORS: Mapping[Depth, int] = {"whole": 1, "third": 3, "brief": 20}
_NO_ORDER: Mapping[str, int] = {}
_ORDERS_MAX = 6


def find_cheapest_pass(
    best: PlacementPass, trials: Trials, goal: Goal, depth: Depth = "whole"
) -> PlacementPass:
    """Return the best pass among the default and all candidates; its state is the current one."""
    outcome, checkpoint = goal.score(best, trials.cohorts), trials.checkpoint()
    if outcome.nodes == 0:
        return best
    effort, briefly = _effort(trials.cohorts, depth), depth == "brief"
    drafts = sorted(_drafts(trials, goal, effort, briefly), key=lambda p: p.loss)[:_IMPROVED_MAX]
    papers = sorted(_improve_drafts(drafts, effort), key=lambda p: p.loss)
    for paper in papers[: 1 if briefly else _PLACED_MAX]:
        placement_pass = trials.start()
        DraftPlacement(placement_pass, trials.cohorts, paper.nodes).run(paper.found)
        placement_pass.run([(cohort, len(cohort.pods)) for cohort in trials.cohorts])
        reached = goal.score(placement_pass, trials.cohorts)
        if reached < outcome:
            best, outcome, checkpoint = placement_pass, reached, trials.checkpoint()
    trials.restore(checkpoint)
    return best


def _effort(cohorts: Collection[Cohort], depth: Depth) -> Effort:
    """Return the work allowed; a brief packing of many pods needs enough for its one draft."""
    pods = sum(len(cohort.pods) for cohort in cohorts)
    if depth == "brief":
        return Effort(_WORK_BASE // _DIVISORS[depth] + _BRIEF_WORK_PER_POD * pods)
    return Effort((_WORK_BASE + _WORK_PER_POD * pods) // _DIVISORS[depth])


def _drafts(trials: Trials, goal: Goal, effort: Effort, briefly: bool) -> Iterator[DraftPacking]:
    """Yield drafts by several measures of value, for the best ways to choose domains."""
    choices: list[tuple[SortedLots, Filler, UnitValues, UnitValues]] = []
    for found, filler, by_share in _domain_choices(trials, goal, effort, briefly):
        by_dual = None if briefly else value_by_dual(filler, effort.left // 4)
        if by_dual is None:
            yield make_draft(found, filler, by_share, effort.left // 2)
            return
        choices.append((found, filler, by_share, by_dual))
    choices.sort(key=lambda way: way[3].least_cost)
    for number, (found, filler, by_share, by_dual) in enumerate(choices):
        if number and effort.done > effort.most // 2:
            return
        yield make_draft(found, filler, by_share, effort.left // 4)
        yield make_draft(found, filler, replace(by_dual, columns=()), effort.left // 4)
        if by_dual.columns:
            yield make_draft(found, filler, by_dual, effort.left // 4)


def _improve_drafts(drafts: Sequence[DraftPacking], effort: Effort) -> Iterator[DraftPacking]:
    """Yield the improved drafts; each may use half of the remaining work, the last one all."""
    for following, draft in enumerate(drafts, 1):
        yield draft.improve(effort.left // (2 if following < len(drafts) else 1))


def _domain_choices(
    trials: Trials, goal: Goal, effort: Effort, briefly: bool
) -> Iterator[tuple[SortedLots, Filler, UnitValues]]:
    """Yield the lots of each way to choose domains, with the value of their units."""
    market: PackingMarket | None = None
    seen: set[object] = set()
    orders = () if briefly else _domain_orders(trials.cohorts)
    for choice, order in product(DomainChoice, (_NO_ORDER, *orders)):
        placement_pass = trials.start()
        if market is None:
            market = PackingMarket.from_cohorts(trials.cohorts, placement_pass, goal)
        found = LotSorter(trials.cohorts, placement_pass, goal, market, choice, order).lots()
        if found.lots and found.content not in seen:
            seen.add(found.content)
            yield found, Filler(market, found.lots, effort), value_by_share(found.lots, market)


def _domain_orders(cohorts: Iterable[Cohort]) -> list[dict[str, int]]:
    """Return orders in which spread pods may take domains: each domain is first in one of them.

    Pods that take domains in the same order end up on the same nodes.
    """
    domains = sorted(
        {
            domain
            for cohort in cohorts
            for rule in cohort.stages[0].by_domain
            if rule.kind is RuleKind.SPREAD
            for domain in rule.group.counts
        }
    )[:_ORDERS_MAX]
    count = len(domains)
    return [{d: (i - first) % count for i, d in enumerate(domains)} for first in range(count)]
