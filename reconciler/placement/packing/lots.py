"""Group pending pods into lots: pods that are alike and that the rules send to the same nodes.

Topology rules decide one pod at a time, and each decision depends on the previous ones. The rules
are therefore evaluated once, in queue order, as if every pod had a node to itself. The result
(three pods in each zone, all in one zone) splits a cohort into lots. Pods that must share a host
become one lot that is placed as a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from reconciler.model.kubernetes.pod import HostPort
from reconciler.model.resources import Resources, add_resources
from reconciler.placement.nodes.claims import OpenClaim, record_pods
from reconciler.placement.nodes.space import Demand, Space
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.packing.goal import Goal
from reconciler.placement.packing.market import PackingMarket, PoolOffers
from reconciler.placement.pods.cohort import Cohort, CohortStage, CohortView
from reconciler.placement.solve import PlacementPass
from reconciler.placement.topology.groups import Group, Restriction
from reconciler.placement.topology.rules import RuleKind

_EXCLUDED_A_CHECK: Final = 20
"""How many excluded values take as long as a check: each node that a lot joins gets all of them."""


@dataclass(eq=False, slots=True)
class Lot:
    """Units that are alike: one pod each, or several that share a host.

    ``cohorts`` has the number of pods of each cohort in a unit. ``shelves`` are the nodes that may
    be launched for it, by the weight of NodePools: a list is used only once the previous ones are
    exhausted. ``demands`` apply to any other node. ``by_host`` are the rules that count pods of one
    host, ``counted`` those that count this lot. ``is_ruled`` is whether other pods on its host
    matter, ``checks`` how many checks it takes to join one. ``node_pools`` are the names of its
    NodePools. ``share`` is the cost of a unit if nodes are bought in fractions, ``value`` its
    estimated value, and ``floor`` its estimated minimum cost.
    """

    number: int
    cohorts: tuple[tuple[int, int], ...]
    demands: tuple[Demand, ...]
    stages: tuple[CohortStage, ...]
    requests: Resources
    shelves: tuple[tuple[PoolOffers, ...], ...]
    units: int = 0
    by_host: tuple[tuple[Restriction, bool], ...] = ()
    counted: tuple[Group, ...] = ()
    ports: tuple[HostPort, ...] = ()
    disks: frozenset[str] = frozenset()
    is_ruled: bool = field(init=False)
    checks: int = field(init=False)
    node_pools: frozenset[str] = field(init=False)
    share: float = 0.0
    value: float = 0.0
    floor: float = 0.0
    _suits: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_ruled = bool(self.by_host or self.counted or self.ports or self.disks)
        self.checks = 1 + self._excluded_count() // _EXCLUDED_A_CHECK
        self.node_pools = frozenset(shelf.template.name for tier in self.shelves for shelf in tier)

    def _excluded_count(self) -> int:
        """Return how many values of labels its pods exclude."""
        return sum(
            len(item.values)
            for demand in self.demands
            for item in demand.requirements.values()
            if item.complement
        )

    def suits(self, template: PoolTemplate) -> bool:
        """Return whether its pods tolerate the NodePool's taints."""
        known = self._suits.get(template.name)
        if known is None:
            known = all(stage.tolerates(template) for stage in self.stages)
            self._suits[template.name] = known
        return known


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where a pod would be placed: step, NodePool, space, and the cost of its share of a node."""

    stage: CohortStage
    template: PoolTemplate
    space: Space
    cost: float


@dataclass(slots=True)
class SortedLots:
    """All lots, and for each cohort the sequence of its pods' lots."""

    lots: list[Lot]
    sequences: dict[int, list[tuple[Lot, int]]]

    @property
    def content(self) -> object:
        """A key that is equal for equal lots."""
        return tuple((lot.cohorts, lot.demands, lot.units) for lot in self.lots)


class DomainChoice(Enum):
    """Which of a pod's open domains is used.

    ``SHARE`` takes the one where its share of a node costs least. ``NODE`` takes the one with the
    cheapest node that fits it, among domains that are equally empty.
    """

    SHARE = "share"
    NODE = "node"


class LotSorter:
    """Builds the lots of pending pods; this changes the counts of the rules.

    ``turn`` is an order of domains that takes precedence over their cost.
    """

    def __init__(
        self,
        cohorts: Sequence[Cohort],
        placement_pass: PlacementPass,
        goal: Goal,
        market: PackingMarket,
        choice: DomainChoice,
        domain_order: Mapping[str, int],
    ) -> None:
        self._by_share = choice is DomainChoice.SHARE
        self._turn = domain_order
        self._market = market
        self._cohorts = cohorts
        self._placement_pass = placement_pass
        self._goal = goal
        self._lots: dict[object, Lot] = {}
        self._sequences: dict[int, list[tuple[Lot, int]]] = {}

    def lots(self) -> SortedLots:
        """Return the lots; pods for which the rules leave no domain now are in none."""
        bundled = self._bundles()
        waiting = [i for i, c in enumerate(self._cohorts) if c.waiting and i not in bundled]
        while waiting:
            later = [i for i in waiting if not self._sort_cohort(i)]
            if len(later) == len(waiting):
                break
            waiting = later
        return SortedLots([lot for lot in self._lots.values() if lot.units], self._sequences)

    # pods that share a host

    def _bundles(self) -> set[int]:
        """Build a lot for each set of cohorts that must share a host; return their cohorts."""
        bundled: set[int] = set()
        for members in self._host_mates():
            bundled.update(members)
            self._bundle(members)
        return bundled

    def _host_mates(self) -> list[list[int]]:
        """Return the sets of cohorts that affinity binds to one host."""
        parent = list(range(len(self._cohorts)))

        def root(i: int) -> int:
            while parent[i] != i:
                i = parent[i]
            return i

        bound: set[int] = set()
        for i, cohort in enumerate(self._cohorts):
            groups = [
                c.group
                for c in cohort.stages[0].by_host
                if c.kind is RuleKind.AFFINITY and cohort.waiting
            ]
            for group in groups:
                bound.add(i)
                for j, other in enumerate(self._cohorts):
                    if other.waiting and group in other.counted_set:
                        parent[root(max(i, j))] = root(min(i, j))
        found: dict[int, list[int]] = {}
        roots = {root(i) for i in bound}
        for i, cohort in enumerate(self._cohorts):
            if cohort.waiting and root(i) in roots:
                found.setdefault(root(i), []).append(i)
        return list(found.values())

    def _bundle(self, members: list[int]) -> None:
        cohorts = [self._cohorts[i] for i in members]
        stages = tuple(c.stages[0] for c in cohorts)
        if any(
            s.by_domain or c.shape.ports or c.shape.disks or c.shape.devices is not None
            for c, s in zip(cohorts, stages, strict=True)
        ):
            return
        demands = tuple(d for c, s in zip(cohorts, stages, strict=True) for d in _demands(c, s))
        requests = add_resources(*(_multiply(c.shape.requests, c.waiting) for c in cohorts))
        shelves = self._shelves(stages, demands, requests)
        if not shelves:
            return
        counts = tuple((i, self._cohorts[i].waiting) for i in members)
        lot = Lot(len(self._lots), counts, demands, stages, requests, shelves, units=1)
        self._lots[tuple(members)] = lot
        for i, count in counts:
            self._sequences[i] = [(lot, count)]

    def _shelves(
        self, stages: Iterable[CohortStage], demands: Iterable[Demand], requests: Resources
    ) -> tuple[tuple[PoolOffers, ...], ...]:
        """Return where a unit may be launched, by the weight of NodePools.

        The result is empty if the first suitable NodePool is not packed for cost.
        """
        goal, limits = self._goal, self._placement_pass.limits
        found: list[list[PoolOffers]] = []
        weight: int | None = None
        for template in self._placement_pass.templates:
            if not all(stage.tolerates(template) for stage in stages):
                continue
            space: Space | None = template.space
            for demand in demands:
                space = space.narrow(demand) if space is not None else None
            if space is None:
                continue
            allowed = limits.allowed_types(template) & space.mask
            if not template.fitting_types(allowed, requests, ()):
                continue
            if not goal.packs(template):
                if not found:
                    return ()
                continue
            its_weight = template.node_pool.spec.weight or 0
            if its_weight != weight:
                found.append([])
                weight = its_weight
            found[-1].append(self._market.shelf(template, space))
        return tuple(map(tuple, found))

    # pods that are placed one by one

    def _sort_cohort(self, number: int) -> bool:
        """Put the pods of a cohort into lots where the rules allow; return whether all are in."""
        cohort = self._cohorts[number]
        if cohort.shape.devices is not None:  # lots are packed by resources alone
            return True
        done = sum(count for _, count in self._sequences.get(number, ()))
        while done < cohort.waiting:
            count = self._sort_next(number, cohort.waiting - done)
            if not count:
                return False
            done += count
        return True

    def _sort_next(self, number: int, most: int) -> int:
        """Put the next pods of a cohort into a lot; return the number."""
        cohort = self._cohorts[number]
        stages = cohort.stages[cohort.first :]
        alternatives = _count_alternatives(stages)
        found = [c for s in stages[:alternatives] if (c := self._choice(cohort, s)) is not None]
        if not found:
            later = (self._choice(cohort, s) for s in stages[alternatives:])
            found = [c for c in (next((c for c in later if c), None),) if c]
        if not found:
            return 0
        chosen = min(found, key=lambda c: c.cost)
        count = 1 if chosen.stage.by_domain else most
        self._count_pods(number, cohort, chosen, count)
        return count

    def _choice(self, cohort: Cohort, stage: CohortStage) -> _Choice | None:
        """Return the cheapest NodePool and space that the rules allow now."""
        view = CohortView(cohort, stage, self._placement_pass.demands)
        if view.hopeless or stage.step.demand.hostname is not None:
            return None
        if stage.by_domain and self._by_share:
            view.open = [d.as_one_tier() for d in view.open]
        for template in self._placement_pass.templates:
            if not stage.tolerates(template):
                continue
            allowed = self._placement_pass.limits.allowed_types(template)
            shape = cohort.shape
            types = template.fitting_types(allowed, shape.requests, shape.ports, len(shape.disks))
            usable = [
                space
                for equals in view.spaces(template.space)
                for space in equals
                if space.mask & types
            ]
            if usable:
                _, cost, position = min(
                    (
                        self._turn_position(stage, space),
                        self._cost(template, space, types, cohort.shape.requests),
                        i,
                    )
                    for i, space in enumerate(usable)
                )
                return _Choice(stage, template, usable[position], cost)
        return None

    def _turn_position(self, stage: CohortStage, space: Space) -> int:
        """Return the position of a space's domains in the turn, or 0 without a turn."""
        if not self._turn:
            return 0
        found = (space.requirements.get(group.key) for group in stage.by_domain)
        return sum(
            min((self._turn.get(value, 0) for value in known.values), default=0)
            for known in found
            if known is not None and not known.complement
        )

    def _cost(self, template: PoolTemplate, space: Space, types: int, requests: Resources) -> float:
        if self._by_share:
            return self._market.least_cost(template, space, requests)
        return template.table.cheapest_price(space.offers, space.mask & types)

    def _count_pods(self, number: int, cohort: Cohort, chosen: _Choice, count: int) -> None:
        """Add pods to the lot of a space, and count them as if they were placed there."""
        stage, template, space = chosen.stage, chosen.template, chosen.space
        demands = _demands(cohort, stage, space, self._placement_pass)
        key = (number, stage, demands)
        lot = self._lots.get(key)
        if lot is None:
            lot = self._lots[key] = self._lot(number, cohort, stage, demands)
        if lot.shelves:
            lot.units += count
        self._sequences.setdefault(number, []).append((lot, count))
        if cohort.counted or cohort.repelling:
            virtual_claim = OpenClaim(template, "imagined")
            virtual_claim.space = space
            virtual_claim.mask = space.mask
            record_pods(cohort, virtual_claim, count)

    def _lot(
        self, number: int, cohort: Cohort, stage: CohortStage, demands: tuple[Demand, ...]
    ) -> Lot:
        counted = (*cohort.counted, *cohort.repelling)
        return Lot(
            number=len(self._lots),
            cohorts=((number, 1),),
            demands=demands,
            stages=(stage,),
            requests=cohort.shape.requests,
            shelves=self._shelves((stage,), demands, cohort.shape.requests),
            by_host=tuple((c, c.group in cohort.counted_set) for c in stage.by_host),
            counted=tuple(g for g in counted if g.by_host),
            ports=cohort.shape.ports,
            disks=cohort.shape.disks,
        )


def _demands(
    cohort: Cohort,
    stage: CohortStage,
    space: Space | None = None,
    placement_pass: PlacementPass | None = None,
) -> tuple[Demand, ...]:
    """Return the demands of a pod on its node, with the domains that ``space`` has fixed."""
    found = [stage.step.demand]
    if space is None or placement_pass is None:
        return (*found, *cohort.shape.volume_demands[:1])
    for demand in cohort.shape.volume_demands:
        narrowed = space.narrow(demand)
        if narrowed is space:
            found.append(demand)
            break
    for key in dict.fromkeys(group.key for group in stage.by_domain):
        known = space.requirements.get(key)
        if known is not None and not known.complement:
            found.append(placement_pass.demands.one_of(key, known.values))
    return tuple(dict.fromkeys(found))


def _count_alternatives(stages: Sequence[CohortStage]) -> int:
    """Return how many of the steps are alternatives equal to the first.

    Moving on to another required term is the only change that does not drop a preference.
    """
    count = 1
    while count < len(stages) and stages[count].step.strict != stages[count - 1].step.strict:
        count += 1
    return count


def _multiply(requests: Resources, count: int) -> Resources:
    return {name: amount * count for name, amount in requests.items()}
