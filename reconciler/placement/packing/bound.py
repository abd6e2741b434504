"""What new nodes must cost at least: no placement of these pods can be cheaper.

Rules about other pods are left out, pods may be cut and nodes bought in parts; what remains is a
linear program over classes of pods and kinds of nodes (``packing/covering.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from reconciler.model.kubernetes.taint import untolerated
from reconciler.model.resources import CPU, MEMORY, Resources
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.packing.covering import (
    LOADS_MAX,
    ROUNDS,
    Load,
    alike,
    kinds_of,
    merged,
    solve,
)
from reconciler.placement.packing.covering import worth as worth_of_room
from reconciler.placement.packing.goal import Goal
from reconciler.placement.pods.shape import RelaxedShape, Shape
from reconciler.placement.topology.rules import RuleKind

_FAR = 2**31
_ROUNDS = 12
_NOTABLE = 0.3
"""The share of a gap that a constraint must explain to be named."""


class HeldBy(StrEnum):
    """What keeps a placement above the bound."""

    PACKING = "Packing"
    WEIGHTS = "NodePoolWeights"
    PREFERENCES = "Preferences"
    POD_RULES = "PodRules"
    WHOLE_NODES = "WholeNodes"


class Bound(msgspec.Struct, frozen=True):
    """What new nodes cost at least, USD an hour, and why a placement may not come down to it.

    ``with_weights`` and ``with_preferences`` are bounds for placements that keep to the NodePools
    of greatest weight, or give up no wish; None where they were not asked for.
    """

    cost: float
    with_weights: float | None = None
    with_preferences: float | None = None
    has_rules: bool = False

    def gap(self, cost: float) -> float | None:
        """Return how far ``cost`` is above the bound, as a share of it; None of nothing."""
        return cost / self.cost - 1 if self.cost > 0 else None

    def held_by(self, cost: float) -> HeldBy | None:
        """Return what holds a placement that costs so much above the bound, None if nothing."""
        if cost <= self.cost * (1 + 1e-6):
            return None
        if self.with_weights is None or self.with_preferences is None:
            return HeldBy.PACKING
        most = max(self.with_weights, self.with_preferences)
        if most - self.cost > (cost - self.cost) * _NOTABLE:
            return HeldBy.WEIGHTS if most == self.with_weights else HeldBy.PREFERENCES
        return HeldBy.POD_RULES if self.has_rules else HeldBy.WHOLE_NODES


def bound(
    shapes: Mapping[Shape, int],
    templates: Sequence[PoolTemplate],
    free: Iterable[Resources] = (),
    as_wished: Mapping[Shape, int] | None = None,
) -> Bound:
    """Return the least that new nodes for so many pods of each shape can cost.

    ``free`` is the room on nodes that are there, which costs nothing. ``as_wished`` are the same
    pods with what they would like: where they are given, two more bounds explain the first.
    """
    names, room = _names(shapes), list(free)

    def least(
        counts: Mapping[Shape, int], *, by_weight: bool = False, by_launch: bool = False
    ) -> float:
        loads = [
            _load(shape, count, _of_weight(shape, templates) if by_weight else templates, names,
                  shape.steps[:1] if by_launch else shape.steps)
            for shape, count in counts.items()
        ]  # fmt: skip
        return _least(loads, templates, names, _amounts(names, room))

    cost = least(shapes)
    if as_wished is None:
        return Bound(cost)
    has_rules = any(step.rules for shape in as_wished for step in shape.steps[:1])
    by_weight, by_launch = least(shapes, by_weight=True), least(as_wished, by_launch=True)
    return Bound(cost, by_weight, by_launch, has_rules)


def rough(
    shapes: Mapping[Shape, int], templates: Sequence[PoolTemplate], free: Iterable[Resources]
) -> float:
    """Return a bound that is found soon: what it says is as certain, but it may be lower."""
    names = _names(shapes)
    loads = [_load(s, count, templates, names, s.steps) for s, count in shapes.items()]
    return _least(loads, templates, names, _amounts(names, free), _ROUNDS)


def _names(shapes: Iterable[Shape]) -> list[str]:
    return [CPU, MEMORY, *sorted({n for s in shapes for n in s.requests} - {CPU, MEMORY})]


def _amounts(names: Iterable[str], free: Iterable[Resources]) -> list[int]:
    lefts = list(free)
    return [sum(max(left.get(name, 0), 0) for left in lefts) for name in names]


def _least(
    loads: list[Load],
    templates: Sequence[PoolTemplate],
    names: Sequence[str],
    room: Sequence[int],
    rounds: int = ROUNDS,
) -> float:
    """Return the bound for loads of which there are some."""
    if not loads or not templates:
        return 0.0
    if len(loads) > LOADS_MAX:
        loads = merged(loads)
    dual = solve(loads, kinds_of(loads, templates, Goal(), names), rounds)
    if not any(room):
        return dual.cost
    return max(0.0, dual.cost - worth_of_room(room, loads, dual.values))


def worth(shapes: Mapping[Shape, int], templates: Sequence[PoolTemplate]) -> dict[Shape, float]:
    """Return what each pod adds to the least cost of new nodes for all: its dual price.

    It guides a search and proves nothing: few rounds are spent on it.
    """
    if not templates:
        return dict.fromkeys(shapes, 0.0)
    names = _names(shapes)
    loads = {s: _load(s, count, templates, names, s.steps) for s, count in shapes.items()}
    groups = [[load] for load in loads.values()]
    if len(loads) > LOADS_MAX:
        groups = alike(loads.values())
    joined = [merged(group)[0] if len(group) > 1 else group[0] for group in groups]
    dual = solve(joined, kinds_of(joined, templates, Goal(), names), _ROUNDS)
    found: dict[Load, float] = {}
    for members, one, value in zip(groups, joined, dual.values, strict=True):
        for load in members:
            found[load] = value * load.wanted[0] / one.wanted[0] if len(members) > 1 else value
    return {shape: found.get(load, 0.0) for shape, load in loads.items()}


def _of_weight(shape: Shape, templates: Iterable[PoolTemplate]) -> list[PoolTemplate]:
    """Return the NodePools of the greatest weight among those that suit a shape's first step."""
    step = shape.steps[0]
    suited = [
        t
        for t in templates
        if t.space.narrowed(step.demand) is not None and not untolerated(t.taints, step.tolerations)
    ]
    weights = [t.node_pool.spec.weight or 0 for t in suited]
    return [t for t, w in zip(suited, weights, strict=True) if w == max(weights)]


def _load(
    shape: Shape,
    count: int,
    templates: Iterable[PoolTemplate],
    names: Sequence[str],
    steps: Iterable[RelaxedShape],
) -> Load:
    allowed: dict[str, list[Space]] = {}
    for template in templates:
        found: dict[Space, None] = {}
        for step in steps:
            space = template.space.narrowed(step.demand)
            if space is None or untolerated(template.taints, step.tolerations):
                continue
            if not shape.volume_demands:
                found[space] = None
            for demand in shape.volume_demands:
                narrowed = space.narrowed(demand)
                if narrowed is not None:
                    found[narrowed] = None
        allowed[template.name] = list(found)
    wanted = tuple(shape.requests.get(name, 0) for name in names)
    return Load(count, wanted, min(count, _most_on_host(shape)), allowed)


def _most_on_host(shape: Shape) -> int:
    """Return how many of the pods a new host takes as far as rules go that no step gives up."""
    if shape.ports:
        return 1
    least = _FAR
    for rule in shape.steps[-1].rules:
        if not rule.by_host or not rule.selects(shape.namespace, shape.labels):
            continue
        if all(rule in step.rules for step in shape.steps):
            if rule.kind is RuleKind.SPREAD:
                least = min(least, rule.max_skew)
            elif rule.kind is RuleKind.ANTI_AFFINITY:
                least = 1
    return least
