"""What new nodes must cost at least: no placement of these pods can be cheaper.

Rules about other pods are left out, pods may be cut and nodes bought in parts; what remains is a
linear program over classes of pods and kinds of nodes. Its dual gives each pod a value such that
no node holds more value than it costs, and then the values of all pods together are a bound.
That is checked with the numbers found, kind by kind, and the values are scaled down until it
holds: so however roughly the program was solved, the bound is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reconciler.catalog.table import TypeTable, indices
from reconciler.model.resources import Resources
from reconciler.placement.cohort import Cohort
from reconciler.placement.packing.goal import Goal
from reconciler.placement.packing.simplex import maximum
from reconciler.placement.rules import RuleKind
from reconciler.placement.space import Space
from reconciler.placement.template import Template

_TINY = 1e-9
_ROUNDS = 60
_CUTS_A_ROUND = 8


@dataclass(eq=False, slots=True)
class Load:
    """Pods that are alike: how many, what each asks for, and how many a host takes at most."""

    count: int
    wanted: tuple[int, ...]
    most: int
    allowed: dict[str, list[Space]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A node that may be bought: its dollars, its room, and how many it takes of each load."""

    cost: float
    room: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dual:
    """Dollars that new nodes cost at least, and the value of a pod of each load in it."""

    cost: float
    values: tuple[float, ...]


def lower_bound(
    cohorts: Sequence[Cohort],
    templates: Sequence[Template],
    goal: Goal,
    free: Sequence[Resources] = (),
) -> float:
    """Return the least that new nodes for the placed pods of ``cohorts`` can cost an hour.

    ``free`` is the room on nodes that are there, which costs nothing.
    """
    names = sorted({name for c in cohorts for name in c.shape.requests})
    loads = [load for c in cohorts if (load := _load(c, templates, names)) is not None]
    if not loads:
        return 0.0
    kinds = kinds_of(loads, templates, goal, names)
    dual = solve(loads, kinds)
    if not free:
        return dual.cost
    room = [sum(max(r.get(name, 0), 0) for r in free) for name in names]
    return max(0.0, dual.cost - _worth(room, loads, dual.values))


def _load(cohort: Cohort, templates: Iterable[Template], names: Sequence[str]) -> Load | None:
    count = len(cohort.pods) - cohort.waiting
    if not count:
        return None
    shape = cohort.shape
    allowed: dict[str, list[Space]] = {}
    for template in templates:
        found: dict[Space, None] = {}
        for stage in cohort.stages:
            space = template.space.narrowed(stage.step.demand)
            if space is None or not stage.tolerates(template):
                continue
            if not shape.volume_demands:
                found[space] = None
            for demand in shape.volume_demands:
                narrowed = space.narrowed(demand)
                if narrowed is not None:
                    found[narrowed] = None
        allowed[template.name] = list(found)
    wanted = tuple(shape.requests.get(name, 0) for name in names)
    return Load(count, wanted, min(count, _most_on_host(cohort)), allowed)


def _most_on_host(cohort: Cohort) -> int:
    """Return how many of the pods a new host takes as far as every step's rules go."""
    if cohort.shape.ports:
        return 1
    least = len(cohort.pods)
    for group in cohort.stages[-1].by_host:
        if group in cohort.counted_set and all(group in s.by_host for s in cohort.stages):
            if group.kind is RuleKind.SPREAD:
                least = min(least, group.rule.max_skew)
            elif group.kind is RuleKind.ANTI_AFFINITY:
                least = 1
    return least


def kinds_of(
    loads: Sequence[Load], templates: Iterable[Template], goal: Goal, names: Sequence[str]
) -> list[Kind]:
    """Return every node worth buying; ``names`` are the resources in the order of the loads."""
    found: list[Kind] = []
    for template in templates:
        extra = goal.cost_of_node(template)
        table = template.table
        columns = [table.allocatable(name) for name in names]
        for signature, prices in _priced(loads, template).items():
            mask = 0
            for index in prices:
                mask |= 1 << index
            cheaper = 0
            for index in sorted(prices, key=lambda i: (prices[i], i)):
                room = _room(template, index, columns, names)
                if room is None:
                    continue
                covering = template.fitting(mask, dict(zip(names, room, strict=True)), ())
                if covering & cheaper:
                    continue
                cheaper |= 1 << index
                most = tuple(
                    _held(load, room) if signature >> i & 1 else 0 for i, load in enumerate(loads)
                )
                if any(most):
                    found.append(Kind(prices[index] + extra, room, most))
    return list(dict.fromkeys(found))


def _priced(loads: Sequence[Load], template: Template) -> dict[int, dict[int, float]]:
    """Return, for each set of loads that may meet on a node, the types with their least price."""
    table: TypeTable = template.table
    found: dict[int, dict[int, float]] = {}
    for offering in table.offering_classes:
        parts = [(offering.mask & template.types, 0)]
        for number, load in enumerate(loads):
            mask = 0
            for space in load.allowed[template.name]:
                if offering in space.offers:
                    mask |= space.mask
            parts = [
                part
                for types, signature in parts
                for part in ((types & mask, signature | 1 << number), (types & ~mask, signature))
                if part[0]
            ]
        for types, signature in parts:
            if signature:
                prices = found.setdefault(signature, {})
                for index in indices(types):
                    price = offering.prices[index]
                    prices[index] = min(prices.get(index, price), price)
    return found


def _room(
    template: Template, index: int, columns: Sequence[Sequence[int]], names: Sequence[str]
) -> tuple[int, ...] | None:
    """Return a type's room beside its daemons, None where these do not fit."""
    group = next(g for g in template.daemon_groups if g.mask >> index & 1)
    room = tuple(
        column[index] - group.requests.get(name, 0)
        for column, name in zip(columns, names, strict=True)
    )
    return room if min(room) >= 0 else None


def _held(load: Load, room: Sequence[int]) -> int:
    """Return how many pods of a load fit into a room."""
    most = load.most
    for wanted, amount in zip(load.wanted, room, strict=True):
        if wanted > 0:
            most = min(most, amount // wanted)
    return most


class _Pricing:
    """For one kind: the most value that it holds, and shadow prices that prove it."""

    __slots__ = ("kind", "loads", "numbers", "shadow")

    def __init__(self, kind: Kind, loads: Sequence[Load]) -> None:
        self.kind = kind
        self.loads = loads
        self.numbers = [i for i, most in enumerate(kind.most) if most]
        self.shadow: list[float] = []

    def ceiling(self, values: Sequence[float]) -> float:
        """Return a value that the kind cannot exceed, by the shadow prices known so far."""
        if not self.shadow:
            return float("inf")
        kind, shadow, loads = self.kind, self.shadow, self.loads
        total = sum(price * amount for price, amount in zip(shadow, kind.room, strict=True))
        for i in self.numbers:
            surplus = values[i]
            for price, wanted in zip(shadow, loads[i].wanted, strict=True):
                surplus -= price * wanted
            if surplus > 0:
                total += surplus * kind.most[i]
        return total

    def fill(self, values: Sequence[float]) -> tuple[float, list[float]]:
        """Return the most value, fractions of pods allowed, and how many of each load make it."""
        kind, numbers, loads = self.kind, self.numbers, self.loads
        used = [r for r in range(len(kind.room)) if any(loads[i].wanted[r] for i in numbers)]
        scale = [float(kind.room[r]) or 1.0 for r in used]
        rows = [
            [loads[i].wanted[r] / size * kind.most[i] for i in numbers]
            for r, size in zip(used, scale, strict=True)
        ]
        limits = [1.0 if kind.room[r] else 0.0 for r in used]
        for position in range(len(numbers)):
            rows.append([1.0 if j == position else 0.0 for j in range(len(numbers))])
            limits.append(1.0)
        optimum = maximum([values[i] * kind.most[i] for i in numbers], rows, limits)
        self.shadow = [0.0] * len(kind.room)
        for r, size, price in zip(used, scale, optimum.prices, strict=False):
            self.shadow[r] = max(price, 0.0) / size
        column = [0.0] * len(kind.most)
        for i, share in zip(numbers, optimum.variables, strict=True):
            column[i] = share * kind.most[i]
        return self.ceiling(values), column


def solve(loads: Sequence[Load], kinds: Sequence[Kind], rounds: int = _ROUNDS) -> Dual:
    """Return values of pods that no kind of node exceeds, as high as found in all."""
    counts = [float(load.count) for load in loads]
    pricings = [_Pricing(kind, loads) for kind in kinds]
    rows, limits = _first_rows(loads, kinds)
    best = Dual(0.0, tuple(0.0 for _ in loads))
    for _ in range(rounds):
        optimum = maximum(counts, rows, limits)
        values = [max(v, 0.0) for v in optimum.variables]
        over: list[tuple[float, int, list[float]]] = []
        factor = 1.0
        for number, pricing in enumerate(pricings):
            ceiling = pricing.ceiling(values)
            if ceiling > pricing.kind.cost * (1 + _TINY):
                ceiling, column = pricing.fill(values)
                if ceiling > pricing.kind.cost * (1 + _TINY):
                    over.append((pricing.kind.cost / ceiling, number, column))
                    factor = min(factor, pricing.kind.cost / ceiling)
        factor *= 1 - _TINY
        reached = sum(v * c for v, c in zip(values, counts, strict=True)) * factor
        if reached > best.cost:
            best = Dual(reached, tuple(v * factor for v in values))
        if not over or optimum.value <= best.cost * (1 + 1e-6):
            break
        over.sort(key=lambda item: item[:2])
        for _, number, column in over[:_CUTS_A_ROUND]:
            rows.append(column)
            limits.append(kinds[number].cost)
    return best


def _first_rows(
    loads: Sequence[Load], kinds: Sequence[Kind]
) -> tuple[list[list[float]], list[float]]:
    """Return for each load the node that is cheapest for it alone; so the values are limited."""
    rows: list[list[float]] = []
    limits: list[float] = []
    for number in range(len(loads)):
        suited = [k for k in kinds if k.most[number]]
        if suited:
            kind = min(suited, key=lambda k: k.cost / k.most[number])
            rows.append(
                [float(kind.most[number]) if i == number else 0.0 for i in range(len(loads))]
            )
            limits.append(kind.cost)
        else:
            rows.append([1.0 if i == number else 0.0 for i in range(len(loads))])
            limits.append(0.0)
    return rows, limits


def _worth(room: Sequence[int], loads: Sequence[Load], values: Sequence[float]) -> float:
    """Return the most value that pods on a free room can have, whatever else speaks against it."""
    counts = tuple(load.count for load in loads)
    kind = Kind(0.0, tuple(room), counts)
    return _Pricing(kind, loads).fill(values)[0]
