"""The linear program behind the bound: loads of pods to be covered by kinds of nodes.

Its dual gives each pod a value such that no node holds more value than it costs. Values are found
by cutting planes. The program is solved over the node fillings known so far, and each kind is
searched for a filling that is worth more than it costs. The result is then verified kind by kind
and scaled down until it holds. The values are therefore valid, however roughly the program was
solved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from operator import and_, or_

import msgspec

from reconciler.catalog.table import TypeTable, bits, indices
from reconciler.model.resources import MILLI
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.packing.goal import Goal
from reconciler.placement.packing.market import AnswerCache, answer_cache, daemons_key
from reconciler.placement.packing.simplex import Program, maximize

LOADS_MAX = 24
"""More loads than this are merged: the work grows with the third power of their number."""

ATTACHMENTS = "attachments"
"""The name of the resource that EBS volumes of pods use, in thousandths of an attachment."""

_TINY = 1e-9
_UNLIMITED = 2**31
ROUNDS = 40
_CUTS_PER_ROUND = 8


class Load(msgspec.Struct, eq=False):
    """Pods that are alike: their number, the requests of each, and how many a host takes at most.

    ``allowed`` are the spaces that suit them, by NodePool. A node may take any fraction of a
    ``fluid`` load.
    """

    count: float
    requests: tuple[int, ...]
    most: int
    allowed: dict[str, list[Space]]
    fluid: bool = False


class NodeKind(msgspec.Struct, frozen=True):
    """A node that can be bought: its cost, its room, and how many pods of each load it takes."""

    cost: float
    room: tuple[int, ...]
    most: tuple[int, ...]


class Dual(msgspec.Struct, frozen=True):
    """The minimum cost of new nodes in USD an hour, and the value of a pod of each load."""

    cost: float
    values: tuple[float, ...]


def merge_loads(loads: Iterable[Load]) -> list[Load]:
    """Return fewer loads that request no more than these do."""
    return [_merge_group(members) for members in group_similar_loads(loads)]


def group_similar_loads(loads: Iterable[Load]) -> list[list[Load]]:
    """Return the loads in groups of which each may be merged into one.

    Pods that suit the same nodes and have a similar ratio of memory to CPU can be merged into one
    load of cores. Of every other resource it requests the minimum of its members. Pods without a
    request for the first resource (CPU in practice) are left out.
    """
    kept = [load for load in loads if load.requests[0] > 0]
    groups: dict[object, list[Load]] = {}
    for kind_of in (_spaces_and_ratio, _suitable_spaces, _ratio):
        groups = {}
        for load in kept:
            groups.setdefault(kind_of(load), []).append(load)
        if len(groups) <= LOADS_MAX:
            break
    return list(groups.values())


def _ratio(load: Load) -> int:
    """Return a load's ratio of the second resource to the first, as a power of two."""
    return (1 + load.requests[1] // load.requests[0]).bit_length() if len(load.requests) > 1 else 0


def _suitable_spaces(load: Load) -> object:
    return tuple((name, tuple(spaces)) for name, spaces in load.allowed.items())


def _spaces_and_ratio(load: Load) -> object:
    return _suitable_spaces(load), _ratio(load)


def _merge_group(members: Sequence[Load]) -> Load:
    firsts = [load.requests[0] for load in members]
    size = max(firsts)
    requests = tuple(
        min(load.requests[r] * size // first for load, first in zip(members, firsts, strict=True))
        for r in range(len(members[0].requests))
    )
    allowed: dict[str, dict[Space, None]] = {}
    for load in members:
        for name, spaces in load.allowed.items():
            allowed.setdefault(name, {}).update(dict.fromkeys(spaces))
    count = sum(load.count * first / size for load, first in zip(members, firsts, strict=True))
    suited = {name: list(spaces) for name, spaces in allowed.items()}
    return Load(count, requests, _UNLIMITED, suited, fluid=True)


def independent_groups(
    loads: Sequence[Load], templates: Sequence[PoolTemplate], names: Sequence[str]
) -> list[list[int]]:
    """Return the numbers of the loads in groups of which no type of node holds two."""
    groups: list[tuple[list[int], list[int]]] = []
    for number, load in enumerate(loads):
        types, members = [_types_holding(load, t, names) for t in templates], [number]
        for group in [g for g in groups if any(map(and_, g[0], types))]:
            groups.remove(group)
            types, members = list(map(or_, types, group[0])), group[1] + members
        groups.append((types, members))
    return sorted(sorted(members) for _, members in groups)


def _types_holding(load: Load, template: PoolTemplate, names: Sequence[str]) -> int:
    """Return the types of a NodePool that hold a pod of the load, or any of it if it is fluid."""
    types = 0
    for space in load.allowed.get(template.name, ()):
        types |= space.mask
    wanted = zip(names, load.requests, strict=True)
    least = {
        name: 1 if load.fluid else amount
        for name, amount in wanted
        if amount > 0 and name != ATTACHMENTS
    }
    return template.fitting_types(types & template.types, least, ())


def node_kinds(
    loads: Sequence[Load], templates: Iterable[PoolTemplate], goal: Goal, names: Sequence[str]
) -> list[NodeKind]:
    """Return every node worth buying; ``names`` are the resources in the order of the loads."""
    found: dict[NodeKind, None] = {}
    for template in templates:
        extra = goal.cost_of_node(template)
        suits, members = _group_by_suit(loads, template)
        for signature, offers in _types_worth_buying(suits, template, names).items():
            shared = sum(mask for i, mask in enumerate(members) if signature >> i & 1)
            pods_by_load = [
                offers.pods_held(load) if shared >> i & 1 else offers.no_pods
                for i, load in enumerate(loads)
            ]
            every = zip(*pods_by_load, strict=True)
            for price, room, most in zip(offers.prices, offers.rooms, every, strict=True):
                if any(most):
                    found[NodeKind(price + extra, room, most)] = None
    return list(found)


_HELD_MAX = 1024


class _Offers:
    """The types worth buying for the same loads: their prices, and their rooms besides daemons."""

    def __init__(self) -> None:
        self.prices: list[float] = []
        self.rooms: list[tuple[int, ...]] = []
        self._held: dict[tuple[tuple[int, ...], bool], list[int]] = {}

    @property
    def no_pods(self) -> list[int]:
        """The pods that each type holds of a load that does not suit it: none."""
        return [0] * len(self.rooms)

    def add(self, price: float, room: tuple[int, ...]) -> None:
        """Add a type."""
        self.prices.append(price)
        self.rooms.append(room)

    def pods_held(self, load: Load) -> list[int]:
        """Return how many pods of a load each type holds.

        Equal loads often recur with other counts, so this is computed once for equal requests.
        """
        key = load.requests, load.fluid
        known = self._held.get(key)
        if known is None:
            if len(self._held) >= _HELD_MAX:
                self._held.clear()
            known = self._held[key] = [_count_fitting_pods(*key, room) for room in self.rooms]
        most = load.most
        return [min(one, most) for one in known]


_Suit = tuple[Space, ...]
"""The spaces of a NodePool that suit some loads."""
_Buys = dict[int, _Offers]
"""By the set of suits that can share a node: the types worth buying."""


def _group_by_suit(loads: Sequence[Load], template: PoolTemplate) -> tuple[list[_Suit], list[int]]:
    """Return the different suits of loads, and which loads have each as a set of bits."""
    members: dict[_Suit, int] = {}
    for number, load in enumerate(loads):
        suit = tuple(load.allowed.get(template.name, ()))
        members[suit] = members.get(suit, 0) | 1 << number
    return list(members), list(members.values())


def _types_worth_buying(
    suits: Sequence[_Suit], template: PoolTemplate, names: Sequence[str]
) -> _Buys:
    """Return the types that no type of a lower price covers."""
    question = (
        tuple(tuple(space.requirements for space in suit) for suit in suits),
        template.types,
        daemons_key(template),
        tuple(names),
    )
    known: AnswerCache[_Buys] = answer_cache("types worth buying", (template.table,))  # type: ignore[assignment]
    return known.get_or_compute(question, lambda: _find_types_worth_buying(suits, template, names))


def _find_types_worth_buying(
    suits: Sequence[_Suit], template: PoolTemplate, names: Sequence[str]
) -> _Buys:
    columns = [_amounts(template, name) for name in names]
    found: _Buys = {}
    for signature, prices in _lowest_prices(suits, template).items():
        mask = bits(prices)
        cheaper = 0
        for index in sorted(prices, key=lambda i: (prices[i], i)):
            room = _room_beside_daemons(template, index, columns, names)
            if room is None:
                continue
            held = dict(zip(names, room, strict=True))
            volumes = held.pop(ATTACHMENTS, 0) // MILLI
            covering = template.fitting_types(mask, held, (), volumes)
            if covering & cheaper:
                continue
            cheaper |= 1 << index
            found.setdefault(signature, _Offers()).add(prices[index], room)
    return found


def _amounts(template: PoolTemplate, name: str) -> Sequence[int]:
    """Return how much of a resource each type has."""
    if name != ATTACHMENTS:
        return template.table.allocatable(name)
    limits = (template.volume_limit(1 << index) for index in range(len(template.table.names)))
    return [(_UNLIMITED if most is None else most) * MILLI for most in limits]


def _lowest_prices(suits: Sequence[_Suit], template: PoolTemplate) -> dict[int, dict[int, float]]:
    """Return, for each set of suits that can share a node, the types with their lowest price."""
    table: TypeTable = template.table
    found: dict[int, dict[int, float]] = {}
    for offering in table.offering_classes:
        parts = [(offering.mask & template.types, 0)]
        for number, suit in enumerate(suits):
            mask = 0
            for space in suit:
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


def _room_beside_daemons(
    template: PoolTemplate, index: int, columns: Sequence[Sequence[int]], names: Sequence[str]
) -> tuple[int, ...] | None:
    """Return a type's room besides its daemons, or None if the daemons do not fit."""
    group = next(g for g in template.daemon_groups if g.mask >> index & 1)
    room = tuple(
        column[index] - group.requests.get(name, 0)
        for column, name in zip(columns, names, strict=True)
    )
    return room if min(room) >= 0 else None


def _count_fitting_pods(requests: Sequence[int], fluid: bool, room: Sequence[int]) -> int:
    """Return how many pods with these requests fit into a room, rounded up for a fluid load."""
    most = _UNLIMITED
    for request, amount in zip(requests, room, strict=True):
        if request > 0:
            held = -(-amount // request) if fluid else amount // request
            most = min(most, held)
    return most


class _Proof:
    """Shadow prices of resources, and the value that each pod has beyond them.

    They bound the value that any kind of node holds: many kinds are checked with the same prices.
    """

    __slots__ = ("_priced", "_surplus")

    def __init__(
        self, values: Sequence[float], shadow: Sequence[float], loads: Sequence[Load]
    ) -> None:
        self._priced = [(r, price) for r, price in enumerate(shadow) if price]
        self._surplus: list[tuple[int, float]] = []
        for number, value in enumerate(values):
            surplus, wanted = value, loads[number].requests
            for r, price in self._priced:
                surplus -= price * wanted[r]
            if surplus > 0:
                self._surplus.append((number, surplus))

    def ceiling(self, kind: NodeKind) -> float:
        """Return a value that the kind cannot exceed."""
        room, most, total = kind.room, kind.most, 0.0
        for r, price in self._priced:
            total += price * room[r]
        for number, surplus in self._surplus:
            total += surplus * most[number]
        return total


class _Pricing:
    """For one kind of node: the most value that it holds, and shadow prices that prove it."""

    __slots__ = ("kind", "loads", "numbers", "shadow")

    def __init__(self, kind: NodeKind, loads: Sequence[Load]) -> None:
        self.kind = kind
        self.loads = loads
        self.numbers = [i for i, most in enumerate(kind.most) if most]
        self.shadow: list[float] = []

    def proof(self, values: Sequence[float]) -> _Proof:
        """Return the last shadow prices with the present values of pods."""
        return _Proof(values, self.shadow, self.loads)

    def fill(self, values: Sequence[float]) -> list[float]:
        """Return how many pods of each load, or fractions, make up the most value."""
        kind, numbers, loads = self.kind, self.numbers, self.loads
        used = [r for r in range(len(kind.room)) if any(loads[i].requests[r] for i in numbers)]
        scale = [float(kind.room[r]) or 1.0 for r in used]
        rows = [
            [loads[i].requests[r] / size * kind.most[i] for i in numbers]
            for r, size in zip(used, scale, strict=True)
        ]
        limits = [1.0 if kind.room[r] else 0.0 for r in used]
        for position in range(len(numbers)):
            rows.append([1.0 if j == position else 0.0 for j in range(len(numbers))])
            limits.append(1.0)
        optimum = maximize([values[i] * kind.most[i] for i in numbers], rows, limits)
        self.shadow = [0.0] * len(kind.room)
        for r, size, price in zip(used, scale, optimum.prices, strict=False):
            self.shadow[r] = max(price, 0.0) / size
        column = [0.0] * len(kind.most)
        for i, share in zip(numbers, optimum.variables, strict=True):
            column[i] = share * kind.most[i]
        return column


def solve(loads: Sequence[Load], kinds: Sequence[NodeKind], rounds: int = ROUNDS) -> Dual:
    """Return values of pods that no kind of node exceeds, with as high a total as was found."""
    counts = [float(load.count) for load in loads]
    pricings = [_Pricing(kind, loads) for kind in kinds]
    program = Program(counts, _first_rows(loads, kinds))
    best = Dual(0.0, tuple(0.0 for _ in loads))
    for _ in range(rounds):
        optimum = program.solve()
        values = [max(v, 0.0) for v in optimum.variables]
        over: list[tuple[float, int, list[float]]] = []
        factor = 1.0
        last_proof: _Proof | None = None
        for number, pricing in enumerate(pricings):
            kind = pricing.kind
            most = kind.cost * (1 + _TINY)
            if pricing.shadow and pricing.proof(values).ceiling(kind) <= most:
                continue
            if last_proof is not None and last_proof.ceiling(kind) <= most:
                continue
            column = pricing.fill(values)
            last_proof = pricing.proof(values)
            ceiling = last_proof.ceiling(kind)
            if ceiling > most:
                over.append((kind.cost / ceiling, number, column))
                factor = min(factor, kind.cost / ceiling)
        factor *= 1 - _TINY
        reached = sum(v * c for v, c in zip(values, counts, strict=True)) * factor
        if reached > best.cost:
            best = Dual(reached, tuple(v * factor for v in values))
        if not over or optimum.value <= best.cost * (1 + 1e-6):
            break
        over.sort(key=lambda item: item[:2])
        for _, number, column in over[:_CUTS_PER_ROUND]:
            program.add(column, kinds[number].cost)
    return best


def _first_rows(
    loads: Sequence[Load], kinds: Sequence[NodeKind]
) -> Iterator[tuple[list[float], float]]:
    """Yield for each load the node that is cheapest for it alone, which bounds the values."""
    for number in range(len(loads)):
        row = [0.0] * len(loads)
        suited = [k for k in kinds if k.most[number]]
        kind = min(suited, key=lambda k: k.cost / k.most[number], default=None)
        row[number] = float(kind.most[number]) if kind is not None else 1.0
        yield row, kind.cost if kind is not None else 0.0


def room_value_bound(room: Sequence[int], loads: Sequence[Load], values: Sequence[float]) -> float:
    """Return an upper bound on the value of pods in a free room."""
    counts = tuple(ceil(load.count) for load in loads)
    kind = NodeKind(0.0, tuple(room), counts)
    pricing = _Pricing(kind, loads)
    pricing.fill(values)
    return pricing.proof(values).ceiling(kind)
