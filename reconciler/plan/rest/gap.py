"""What each constraint costs: the parts of the distance between a fleet and its minimum.

The rule is in ``docs/cost-of-constraints.md``. Constraints are dropped one after another in a
stated order, and after each one the same pods are placed again on new nodes. Each amount is at most
the one before and at least the lower bound, so the differences add up exactly to the distance
between the first amount and the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

from msgspec.structs import replace as with_fields

from reconciler.model.grouping import group_by
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import CAPACITY_TYPE, ON_DEMAND, RESERVED, SPOT
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement, requirements_of
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.model.resources import CPU, MEMORY, MILLI, Resources, parse_resources
from reconciler.model.settings import Packing
from reconciler.model.text.counting import format_count
from reconciler.observed.allocation import NANODOLLARS, nanodollars, workload_of
from reconciler.placement.explain.constraints import (
    Constraint,
    ConstraintKind,
    has_constraint_kind,
    remove_constraint,
    remove_constraint_kind,
)
from reconciler.placement.question import LaunchPool, PlannedClaim, Question
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.rest.steadystate import packing_saving
from reconciler.plan.rest.world import without_nodes
from reconciler.plan.value.costs import GapCost, PlannedGap
from reconciler.plan.value.plan import Plan

STEPS_MAX: Final = 40
PLACED_MAX: Final = 200_000
"""How often the pods are placed again, and how many pods that may be altogether: 10 CPU seconds."""
_STEPS_MIN: Final = 8
_MISS_MAX: Final = 0.1
"""The share of a request by which a pod just misses a size."""
_WORTH: Final = 0.95
"""A size is worth trying if its price for each pod is at most this share of the present one."""
_MISSES_TRIED: Final = 2
_PART_MIN: Final = 1_000
"""Less than a millionth of a dollar an hour is the inexactness of a bound."""

_KINDS: Final[Mapping[ConstraintKind, tuple[str, str]]] = {
    ConstraintKind.ANTI_AFFINITY: (
        "pod anti-affinity",
        "make it a preference, or use a topology spread constraint instead",
    ),
    ConstraintKind.AFFINITY: ("pod affinity", "make it a preference"),
    ConstraintKind.SPREAD: (
        "topology spread",
        "set whenUnsatisfiable: ScheduleAnyway, or a larger maxSkew",
    ),
    ConstraintKind.HOST_PORTS: ("host ports", "use a Service instead of host ports"),
    ConstraintKind.PREFERENCES: (
        "soft preferences",
        "drop them, or limit them with maximumPreferenceCostPercent",
    ),
}
"""The kinds of constraints in the order in which they are dropped, and how to drop each."""

PLAN_PODS_MAX: Final = 500
"""Up to this many pods, a plan has the parts of the gap: they take about a CPU second then."""

_PACKED_LATER: Final = "none: with packing: cheapest, the steady state costs no less"
_PACKED_PARTLY: Final = "none: in steady state, packing: cheapest saves no more than that"
_PACKED_UNKNOWN: Final = "none known: `simulate --set packing=cheapest` shows its steady state"
_PAST: Final = "nothing to do: consolidation replaces nodes as budgets and windows allow"


@dataclass(frozen=True, slots=True)
class GapPart:
    """What one constraint costs, in billionths of a dollar an hour, and the change that saves it.

    ``owner`` is the workload or NodePool that has it, empty for the fleet.
    """

    what: str
    owner: str
    nanodollars: int
    change: str

    @property
    def per_hour(self) -> float:
        """USD an hour."""
        return round(self.nanodollars / NANODOLLARS, 9)


@dataclass(frozen=True, slots=True)
class GapExplanation:
    """The cost of a fleet, its minimum, and the parts between; billionths of a dollar an hour.

    ``bound`` is the lower bound without rules between pods, and with requests that miss no size,
    for the present capacity types. ``unplaced`` counts pods that cannot be scheduled; they are left
    out. ``is_limited`` is whether the constraints of smaller workloads were dropped together, to
    limit the time.
    """

    fleet: int
    bound: int
    minimum: int
    parts: tuple[GapPart, ...]
    pods: int
    unplaced: int = 0
    is_limited: bool = False


def with_gap(plan: Plan, facts: Facts, inputs: Inputs) -> Plan:
    """Return the plan with what each constraint costs.

    A plan with too many pods has none, and one whose pods do not all fit on new nodes.
    """
    pods = sum(1 for pod in facts.cluster.pods if pod.is_reschedulable or not pod.spec.node_name)
    if not 0 < pods <= PLAN_PODS_MAX or facts.covers or facts.headroom:
        return plan
    gap = explain_gap(facts, plan, inputs)
    if gap.unplaced or not gap.parts:  # pods that the present nodes have room for would count as 0
        return plan
    return with_fields(plan, gap=planned_gap(gap))


def planned_gap(gap: GapExplanation) -> PlannedGap:
    """Return the parts with money in USD an hour."""
    return PlannedGap(
        pods=gap.pods,
        unschedulable=gap.unplaced,
        price_per_hour=gap.fleet / NANODOLLARS,
        lower_bound=gap.bound / NANODOLLARS,
        minimum=gap.minimum / NANODOLLARS,
        limited=gap.is_limited,
        costs=tuple(
            GapCost(
                constraint=part.what,
                owner=part.owner,
                price_per_hour=part.per_hour,
                change=part.change,
            )
            for part in gap.parts
        ),
    )


def explain_gap(facts: Facts, plan: Plan, inputs: Inputs) -> GapExplanation:
    """Return the parts of the gap between the fleet after the plan and its minimum."""
    empty, pods = without_nodes(facts.cluster)
    present = with_fields(facts, cluster=empty)
    first = _scheduler(present).place(Question(pods=pods))
    missing = first.unschedulable.keys() | first.deferred.keys()
    placed = [pod for pod in pods if pod.key not in missing]
    chain = _Chain(present, placed, nanodollars(plan.cost.after))
    chain.take("past decisions", "", chain.cost_of(first.claims), _PAST)
    chain.drop_rules()
    chain.shrink_requests()
    chain.pack(inputs)
    bound = chain.reach_bound()
    chain.allow_capacity_types()
    return GapExplanation(
        fleet=chain.start,
        bound=bound,
        minimum=chain.amount,
        parts=tuple(chain.parts),
        pods=len(placed),
        unplaced=len(missing),
        is_limited=chain.is_limited,
    )


def _scheduler(facts: Facts, pools: Iterable[LaunchPool] | None = None) -> Scheduler:
    kinds = facts.types.ready if pools is None else pools
    return Scheduler(kinds, facts.cluster, facts.settings, facts.now, salt="gap")


class _Chain:
    """The amounts from the fleet down to its minimum; ``parts`` are their differences."""

    def __init__(self, facts: Facts, pods: Sequence[Pod], start: int) -> None:
        self._facts = facts
        self._pods = list(pods)
        self._without_rules = _without_rules(pods)
        self._placer = _scheduler(facts)
        self._claims: tuple[PlannedClaim, ...] = ()
        self._steps = max(_STEPS_MIN, min(STEPS_MAX, PLACED_MAX // max(len(pods), 1)))
        bound = nanodollars(self._placer.lower_bound(self._without_rules).cost) if pods else 0
        self.start = max(start, bound)
        self.amount = self.start
        self._bound = bound
        self.parts: list[GapPart] = []
        self.is_limited = False

    def cost_of(self, claims: Sequence[PlannedClaim]) -> int:
        """Return the cost of new nodes, and remember them as the present ones."""
        self._claims = tuple(claims)
        return nanodollars(fsum(claim.launch[1].price for claim in claims))

    def take(self, what: str, owner: str, amount: int, change: str) -> None:
        """Add the part that leads to a lower amount; there is none if it is not lower."""
        reached = max(amount, self._bound)
        if self.amount - reached >= _PART_MIN:
            self.parts.append(GapPart(what, owner, self.amount - reached, change))
            self.amount = reached

    def drop_rules(self) -> None:
        """Drop the rules between pods, kind after kind, the largest workloads first."""
        for number, (kind, (what, change)) in enumerate(_KINDS.items()):
            owners = self._owners_with(kind)
            most = max(1, (self._steps - number) // len(_KINDS))
            single, others = owners[:most], owners[most:]
            for owner in single:
                self._drop(kind, {owner}, what, owner, change)
            if others:
                self.is_limited = True
                named = format_count(len(others), "other workload")
                self._drop(kind, set(others), what, named, change)

    def _owners_with(self, kind: ConstraintKind) -> list[str]:
        requested: dict[str, int] = {}
        for pod in self._pods:
            if has_constraint_kind(pod.spec, kind):
                owner = workload_of(pod)
                requested[owner] = requested.get(owner, 0) + pod.requests().get(CPU, 0)
        return sorted(requested, key=lambda owner: (-requested[owner], owner))

    def _drop(
        self, kind: ConstraintKind, owners: set[str], what: str, owner: str, change: str
    ) -> None:
        self._pods = _change_specs(
            self._pods, owners, lambda spec: remove_constraint_kind(spec, kind)
        )
        self.take(what, owner, self._place_again(), change)

    def _place_again(self) -> int:
        return self.cost_of(self._placer.place(Question(pods=self._pods)).claims)

    def shrink_requests(self) -> None:
        """Shrink requests that just miss a size, the largest workloads first."""
        by_owner = group_by(self._pods, workload_of)
        misses = sorted(
            (
                miss
                for owner, pods in by_owner.items()
                for miss in _near_misses(owner, pods, self._claims, self._facts.types.by_name)
            ),
            key=lambda miss: (-miss.estimate, miss.owner, miss.kind),
        )
        tried: dict[str, int] = {}
        for miss in misses:
            if tried.get(miss.owner, 0) >= _MISSES_TRIED or sum(tried.values()) >= self._steps:
                continue
            tried[miss.owner] = tried.get(miss.owner, 0) + 1
            self._shrink(miss, by_owner[miss.owner])

    def _shrink(self, miss: _NearMiss, pods: Sequence[Pod]) -> None:
        kept, claims = self._pods, self._claims
        keys = {pod.key for pod in pods}
        self._pods = _change_specs(kept, {miss.owner}, miss.shrink)
        cost = self._place_again()
        if cost >= self.amount:
            self._pods, self._claims = kept, claims
            return
        self._without_rules = _change_specs(self._without_rules, {miss.owner}, miss.shrink)
        bound = nanodollars(self._placer.lower_bound(self._without_rules).cost)
        self._bound = min(self._bound, bound)
        before, after = (
            sum(not keys.isdisjoint(claim.pods) for claim in side)
            for side in (claims, self._claims)
        )
        nodes = f" ({before} → {format_count(after, 'node')})" if before != after else ""
        change = f"request {miss.less} less: {miss.fits} pods then fit on {miss.kind}{nodes}"
        self.take("request just misses a size", miss.owner, cost, change)

    def pack(self, inputs: Inputs) -> None:
        """Place the same pods with the cheapest packing that is found.

        The setting is only proposed for what the fleet saves with it in steady state.
        """
        settings = self._facts.settings
        if settings.packing is Packing.CHEAPEST or not self._pods:
            return
        cheapest = with_fields(self._facts, settings=replace(settings, packing=Packing.CHEAPEST))
        cost = self.cost_of(_scheduler(cheapest).place(Question(pods=self._pods)).claims)
        if self.amount - cost < _PART_MIN:
            return
        saving = packing_saving(inputs)
        if saving is None or saving.mean <= 0:
            change = _PACKED_LATER if saving is not None else _PACKED_UNKNOWN
            self.take("packing", "", cost, change)
            return
        change = "set packing: cheapest" + (" (mean of runs)" if saving.low != saving.high else "")
        self.take("packing", "", max(cost, self.amount - nanodollars(saving.mean)), change)
        self.take("packing of the first pass", "", cost, _PACKED_PARTLY)

    def reach_bound(self) -> int:
        """End at the lower bound, at which nodes are bought in fractions, and return it."""
        self.take("whole nodes", "", self._bound, "none: nodes cannot be bought in fractions")
        return self.amount

    def allow_capacity_types(self) -> None:
        """Allow spot where only on-demand is allowed: to each workload, then to each NodePool."""
        pods = self._without_rules
        pools = list(self._facts.types.ready)
        self._bound = 0
        key = Constraint(ConstraintKind.LABEL, CAPACITY_TYPE)
        owners = {workload_of(p) for p in pods if remove_constraint(p.spec, key) is not p.spec}
        for owner in sorted(owners)[: self._steps]:
            pods = _change_specs(pods, {owner}, lambda spec: remove_constraint(spec, key))
            self._allow(pods, pools, owner, "remove the requirement on karpenter.sh/capacity-type")
        for number, pool in enumerate(pools[: self._steps]):
            free = _with_any_capacity_type(pool)
            if free is not pool:
                pools[number] = free
                name = f"NodePool {pool.node_pool.name}"
                self._allow(pods, pools, name, "allow spot and on-demand")

    def _allow(
        self, pods: Sequence[Pod], pools: Sequence[LaunchPool], owner: str, change: str
    ) -> None:
        cost = _scheduler(self._facts, pools).lower_bound(pods).cost
        self.take("capacity type", owner, nanodollars(cost), change)


def _without_rules(pods: Iterable[Pod]) -> list[Pod]:
    """Return pods without rules about other pods, host ports and preferences."""
    known: dict[int, PodSpec] = {}
    found = []
    for pod in pods:
        spec = known.get(id(pod.spec))
        if spec is None:
            spec = pod.spec
            for kind in _KINDS:
                spec = remove_constraint_kind(spec, kind)
            known[id(pod.spec)] = spec
        found.append(with_fields(pod, spec=spec))
    return found


def _change_specs(
    pods: Iterable[Pod], owners: set[str], change: Callable[[PodSpec], PodSpec]
) -> list[Pod]:
    """Return the pods with the specs of some workloads changed; equal specs stay one object."""
    known: dict[int, PodSpec] = {}
    found: list[Pod] = []
    for pod in pods:
        if workload_of(pod) not in owners:
            found.append(pod)
            continue
        if id(pod.spec) not in known:
            known[id(pod.spec)] = change(pod.spec)
        found.append(with_fields(pod, spec=known[id(pod.spec)]))
    return found


def _with_any_capacity_type(pool: LaunchPool) -> LaunchPool:
    """Return a NodePool that allows spot and on-demand; reserved capacity if it already does."""
    spec = pool.node_pool.spec
    entries = spec.template.spec.requirements
    own = requirements_of(entries).requirement_on(CAPACITY_TYPE)
    if own.has(SPOT) and own.has(ON_DEMAND):
        return pool
    values = (ON_DEMAND, SPOT, *((RESERVED,) if own.has(RESERVED) else ()))
    kept = tuple(entry for entry in entries if entry.key != CAPACITY_TYPE)
    entry = NodeSelectorRequirement(CAPACITY_TYPE, Operator.IN, values)
    template = with_fields(
        spec.template, spec=with_fields(spec.template.spec, requirements=(*kept, entry))
    )
    node_pool = with_fields(pool.node_pool, spec=with_fields(spec, template=template))
    return with_fields(pool, node_pool=node_pool)


# Requests that just miss a size: a little less, and one more pod fits on a node of some type.


@dataclass(frozen=True, slots=True)
class _NearMiss:
    """A workload whose pods would fit once more on a type if they requested a little less.

    ``amounts`` is by how much, by resource; ``estimate`` is what that might save.
    """

    owner: str
    kind: str
    fits: int
    amounts: Resources
    estimate: float

    @property
    def less(self) -> str:
        """The amounts for people."""
        return " and ".join(_format_less(name, amount) for name, amount in self.amounts.items())

    def shrink(self, spec: PodSpec) -> PodSpec:
        """Return a spec that requests as much less, in its container that requests the most."""
        for name, amount in self.amounts.items():
            spec = _request_less(spec, name, amount)
        return spec


def _format_less(name: str, amount: int) -> str:
    if name == MEMORY:
        return f"{-(-amount // (MILLI * 2**20)):,} MiB of memory"
    return f"{amount:,}m CPU"


def _near_misses(
    owner: str,
    pods: Sequence[Pod],
    claims: Iterable[PlannedClaim],
    pools: Mapping[str, LaunchPool],
) -> Iterator[_NearMiss]:
    """Yield the types that the pods of a workload just miss, judged by nodes of it alone."""
    keys = {pod.key for pod in pods}
    own = [claim for claim in claims if claim.pods and keys.issuperset(claim.pods)]
    if not own or any(pod.requests() != pods[0].requests() for pod in pods):
        return
    request = pods[0].requests()
    on_own = sum(len(claim.pods) for claim in own)
    present = fsum(claim.launch[1].price for claim in own) / on_own
    claim = own[0]
    daemons = {
        name: amount - len(claim.pods) * request.get(name, 0)
        for name, amount in claim.requests.items()
    }
    for kind in pools[claim.node_pool.name].types.types:
        if not kind.requirements.intersects(claim.requirements):
            continue
        offering = kind.cheapest_offering(claim.requirements)
        found = _missing_amounts(kind, request, daemons)
        if offering is None or found is None:
            continue
        fits, amounts = found
        if offering.price / fits <= present * _WORTH:
            saving = (present - offering.price / fits) * on_own
            yield _NearMiss(owner, kind.name, fits, amounts, saving)


def _missing_amounts(
    kind: InstanceType, request: Resources, daemons: Resources
) -> tuple[int, Resources] | None:
    """Return how many pods fit with a little less, and how much less; None if it is a lot."""
    room = {name: kind.allocatable.get(name, 0) - daemons.get(name, 0) for name in request}
    fits = min((room[name] // amount for name, amount in request.items() if amount), default=0)
    one_more = fits + 1
    if one_more <= 0:
        return None
    amounts: Resources = {}
    for name, amount in request.items():
        less = amount - room[name] // one_more
        if less <= 0:
            continue
        if name not in (CPU, MEMORY) or less > amount * _MISS_MAX:
            return None
        unit = 1 if name == CPU else MILLI * 2**20
        amounts[name] = -(-less // unit) * unit
    return (one_more, amounts) if amounts else None


def _request_less(spec: PodSpec, name: str, amount: int) -> PodSpec:
    containers = list(spec.containers)
    if not containers:
        return spec
    requests = [_parsed(c.resources.requests, name) for c in containers]
    most = requests.index(max(requests))
    left = max(0, requests[most] - amount)
    text = f"{left}m" if name == CPU else str(left // MILLI)
    container = containers[most]
    resources = with_fields(
        container.resources, requests={**container.resources.requests, name: text}
    )
    containers[most] = with_fields(container, resources=resources)
    return with_fields(spec, containers=tuple(containers))


def _parsed(requests: Mapping[str, str | int | float], name: str) -> int:
    return parse_resources({name: requests[name]}).get(name, 0) if name in requests else 0
