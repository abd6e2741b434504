"""Compute a lower bound on the cost of new nodes for a set of pods.

Rules about other pods are ignored, pods may be split and nodes bought in fractions. Of a volume
that several pods use, each attaches an equal part. What remains is a linear program over classes of
pods and kinds of nodes (``packing/covering.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from reconciler.model.kubernetes.taint import untolerated_taints
from reconciler.model.resources import CPU, MEMORY, MILLI, Resources
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.packing.covering import (
    ATTACHMENTS,
    LOADS_MAX,
    ROUNDS,
    Dual,
    Load,
    group_similar_loads,
    independent_groups,
    merge_loads,
    node_kinds,
    solve,
)
from reconciler.placement.packing.covering import room_value_bound as worth_of_room
from reconciler.placement.packing.goal import Goal
from reconciler.placement.packing.market import AnswerCache, answer_cache, daemons_key, type_tables
from reconciler.placement.pods.shape import RelaxedShape, Shape
from reconciler.placement.topology.rules import RuleKind

_UNLIMITED = 2**31
_ROUNDS = 12
_NOTABLE = 0.3
"""The share of a gap that a constraint must explain to be named."""


class GapReason(StrEnum):
    """The reason why a placement costs more than the bound."""

    PACKING = "Packing"
    WEIGHTS = "NodePoolWeights"
    PREFERENCES = "Preferences"
    POD_RULES = "PodRules"
    WHOLE_NODES = "WholeNodes"


class Bound(msgspec.Struct, frozen=True):
    """The minimum cost of new nodes in USD an hour, and what may keep a placement above it.

    ``with_weights`` bounds placements that use only the NodePools of greatest weight,
    ``with_preferences`` those that keep every preference. Each is None if it was not requested.
    """

    cost: float
    with_weights: float | None = None
    with_preferences: float | None = None
    has_rules: bool = False

    def gap(self, cost: float) -> float | None:
        """Return how far ``cost`` is above the bound, as a share of it; None if it is zero."""
        return cost / self.cost - 1 if self.cost > 0 else None

    def gap_reason(self, cost: float) -> GapReason | None:
        """Return why a placement of this cost is above the bound, or None if it is not."""
        if cost <= self.cost * (1 + 1e-6):
            return None
        if self.with_weights is None or self.with_preferences is None:
            return GapReason.PACKING
        most = max(self.with_weights, self.with_preferences)
        if most - self.cost > (cost - self.cost) * _NOTABLE:
            return GapReason.WEIGHTS if most == self.with_weights else GapReason.PREFERENCES
        return GapReason.POD_RULES if self.has_rules else GapReason.WHOLE_NODES


def lower_bound(
    shapes: Mapping[Shape, int],
    templates: Sequence[PoolTemplate],
    free: Iterable[Resources] = (),
    with_preferences: Mapping[Shape, int] | None = None,
) -> Bound:
    """Return the minimum cost of new nodes for the given number of pods of each shape.

    ``free`` is the room on existing nodes, which costs nothing. ``with_preferences`` are the same
    pods with their preferences; if given, two more bounds explain the gap. Pods that cannot be read
    are never placed, and cost nothing.
    """
    shapes = _readable(shapes)
    with_preferences = None if with_preferences is None else _readable(with_preferences)
    names, room = _resource_names(shapes, templates), list(free)

    def minimum_cost(
        counts: Mapping[Shape, int], *, by_weight: bool = False, by_launch: bool = False
    ) -> float:
        attached = _attachments(counts)
        loads = [
            _load(
                shape,
                count,
                _heaviest_pools(shape, templates) if by_weight else templates,
                names,
                shape.steps[:1] if by_launch else shape.steps,
                attached.get(shape, 0),
            )
            for shape, count in counts.items()
        ]
        return _solve_bound(loads, templates, names, _total_amounts(names, room), _solve_in_parts)

    cost = minimum_cost(shapes)
    if with_preferences is None:
        return Bound(cost)
    has_rules = any(step.rules for shape in with_preferences for step in shape.steps[:1])
    by_weight, by_launch = (
        minimum_cost(shapes, by_weight=True),
        minimum_cost(with_preferences, by_launch=True),
    )
    return Bound(cost, by_weight, by_launch, has_rules)


def rough_lower_bound(
    shapes: Mapping[Shape, int], templates: Sequence[PoolTemplate], free: Iterable[Resources]
) -> float:
    """Return a bound that is quick to compute: equally valid, but possibly lower."""
    names, attached = _resource_names(shapes, templates), _attachments(shapes)
    loads = [
        _load(s, count, templates, names, s.steps, attached.get(s, 0))
        for s, count in shapes.items()
    ]
    return _solve_bound(loads, templates, names, _total_amounts(names, free), _solve_roughly)


def _readable(shapes: Mapping[Shape, int]) -> Mapping[Shape, int]:
    return {shape: count for shape, count in shapes.items() if shape.unreadable is None}


def _resource_names(shapes: Iterable[Shape], templates: Iterable[PoolTemplate]) -> list[str]:
    known = list(shapes)
    limits_volumes = any(t.limits_volumes for t in templates)
    volumes = [ATTACHMENTS] if limits_volumes and any(shape.disks for shape in known) else []
    others = sorted({name for shape in known for name in shape.requests} - {CPU, MEMORY})
    return [CPU, MEMORY, *others, *volumes]


def _attachments(shapes: Mapping[Shape, int]) -> dict[Shape, int]:
    """Return what each pod uses of the attachments, which are shared by all pods with a volume."""
    pods: Counter[str] = Counter()
    for shape, count in shapes.items():
        for disk in shape.disks:
            pods[disk] += count
    return {
        shape: sum(MILLI // pods[disk] for disk in shape.disks if pods[disk])
        for shape in shapes
        if shape.disks
    }


def _total_amounts(names: Iterable[str], free: Iterable[Resources]) -> list[int]:
    """Return the sum of all free room; existing nodes are taken to attach any number of volumes."""
    resources = list(free)
    unknown = {ATTACHMENTS: _UNLIMITED}
    return [
        sum(max(left.get(name, unknown.get(name, 0)), 0) for left in resources) for name in names
    ]


def _solve_bound(
    loads: list[Load],
    templates: Sequence[PoolTemplate],
    names: Sequence[str],
    room: Sequence[int],
    solver: _Solver,
) -> float:
    """Return the bound for a non-empty list of loads."""
    if not loads or not templates:
        return 0.0
    if len(loads) > LOADS_MAX:
        loads = merge_loads(loads)
    dual = solver(loads, templates, names)
    if not any(room):
        return dual.cost
    return max(0.0, dual.cost - worth_of_room(room, loads, dual.values))


_Solver = Callable[[Sequence[Load], Sequence[PoolTemplate], Sequence[str]], Dual]
"""Returns the values of the loads' pods."""


def _solve_in_parts(
    loads: Sequence[Load], templates: Sequence[PoolTemplate], names: Sequence[str]
) -> Dual:
    """Return the values after many rounds.

    Loads that no type of node could hold together, such as pods with and without GPUs, are solved
    separately. A pod that is created or deleted then changes only one of several programs.
    """
    cost, values = 0.0, [0.0] * len(loads)
    for members in independent_groups(loads, templates, names):
        dual = _solve_cached([loads[number] for number in members], templates, names, ROUNDS)
        cost += dual.cost
        for number, value in zip(members, dual.values, strict=True):
            values[number] = value
    return Dual(cost, tuple(values))


def _solve_roughly(
    loads: Sequence[Load], templates: Sequence[PoolTemplate], names: Sequence[str]
) -> Dual:
    """Return approximate values, from one program for all loads."""
    return _solve_cached(loads, templates, names, _ROUNDS)


def _solve_cached(
    loads: Sequence[Load], templates: Sequence[PoolTemplate], names: Sequence[str], rounds: int
) -> Dual:
    """Return the values of the loads' pods; equal programs are solved once."""
    question = (
        tuple(_load_key(load) for load in loads),
        tuple((t.name, t.types, daemons_key(t)) for t in templates),
        tuple(names),
        rounds,
    )
    known: AnswerCache[Dual] = answer_cache("duals", type_tables(templates))  # type: ignore[assignment]
    return known.get_or_compute(
        question, lambda: solve(loads, node_kinds(loads, templates, Goal(), names), rounds)
    )


def _load_key(load: Load) -> Hashable:
    """Return a key that is equal for equal loads."""
    allowed = tuple(
        (name, tuple(space.requirements for space in spaces))
        for name, spaces in load.allowed.items()
    )
    return load.count, load.requests, load.most, load.fluid, allowed


def pod_values(
    shapes: Mapping[Shape, int], templates: Sequence[PoolTemplate]
) -> dict[Shape, float]:
    """Return how much each pod adds to the minimum cost of new nodes for all: its dual price.

    It guides a search and proves nothing, so few rounds are spent on it.
    """
    if not templates:
        return dict.fromkeys(shapes, 0.0)
    names, attached = _resource_names(shapes, templates), _attachments(shapes)
    loads = {
        s: _load(s, count, templates, names, s.steps, attached.get(s, 0))
        for s, count in _readable(shapes).items()
    }
    groups = [[load] for load in loads.values()]
    if len(loads) > LOADS_MAX:
        groups = group_similar_loads(loads.values())
    merged = [merge_loads(group)[0] if len(group) > 1 else group[0] for group in groups]
    dual = _solve_roughly(merged, templates, names)
    found: dict[Load, float] = {}
    for members, merged_load, value in zip(groups, merged, dual.values, strict=True):
        for load in members:
            found[load] = (
                value * load.requests[0] / merged_load.requests[0] if len(members) > 1 else value
            )
    return {s: found.get(loads[s], 0.0) if s in loads else 0.0 for s in shapes}


def _heaviest_pools(shape: Shape, templates: Iterable[PoolTemplate]) -> list[PoolTemplate]:
    """Return the NodePools of the greatest weight among those that suit a shape's first step."""
    step = shape.steps[0]
    suited = [
        t
        for t in templates
        if t.space.narrow(step.demand) is not None
        and not untolerated_taints(t.taints, step.tolerations)
    ]
    weights = [t.node_pool.spec.weight or 0 for t in suited]
    return [t for t, w in zip(suited, weights, strict=True) if w == max(weights)]


def _load(
    shape: Shape,
    count: int,
    templates: Iterable[PoolTemplate],
    names: Sequence[str],
    steps: Iterable[RelaxedShape],
    attached: int,
) -> Load:
    """Return a shape's pods as a load; ``attached`` is what each uses of the attachments."""
    allowed: dict[str, list[Space]] = {}
    for template in templates:
        found: dict[Space, None] = {}
        for step in steps:
            space = template.space.narrow(step.demand)
            if space is None or untolerated_taints(template.taints, step.tolerations):
                continue
            if not shape.volume_demands:
                found[space] = None
            for demand in shape.volume_demands:
                narrowed = space.narrow(demand)
                if narrowed is not None:
                    found[narrowed] = None
        allowed[template.name] = list(found)
    amounts = {**shape.requests, ATTACHMENTS: attached}
    requests = tuple(amounts.get(name, 0) for name in names)
    return Load(count, requests, min(count, _pods_per_host_max(shape)), allowed)


def _pods_per_host_max(shape: Shape) -> int:
    """Return how many of the pods a new host takes under the rules that no step drops."""
    if shape.ports:
        return 1
    least = _UNLIMITED
    for rule in frozenset.intersection(*(frozenset(step.rules) for step in shape.steps)):
        if not rule.by_host or not rule.selects(shape.namespace, shape.labels):
            continue
        if rule.kind is RuleKind.SPREAD:
            least = min(least, rule.max_skew)
        elif rule.kind is RuleKind.ANTI_AFFINITY:
            least = 1
    return least
