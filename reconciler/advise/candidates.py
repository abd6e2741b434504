"""The changes that are considered, from the desired state and the offerings of EC2.

Requirements are loosened if they exclude something, and tightened if a fleet of fewer or larger
nodes may cost less. Changes that depend on the workload over time are considered only with a
trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.advise.changes import (
    AddRequirement,
    AllowValues,
    DesiredChange,
    DropRequirement,
    RemovePoolItem,
    SetPoolField,
    SetSetting,
)
from reconciler.advise.constraints import ConstrainedWorkload
from reconciler.model.duration import NEVER, parse_nillable
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import ARCH, CAPACITY_TYPE, INSTANCE_TYPE, SPOT, ZONE
from reconciler.model.karpenter.nodepool import (
    WHEN_EMPTY_OR_UNDERUTILIZED,
    NodePool,
    NodeSelectorRequirement,
)
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.settings import (
    ConsolidationSearch,
    ExpirationPolicy,
    FeatureGate,
    Packing,
    Settings,
)
from reconciler.placement.question import LaunchPool

_AWS: Final = "karpenter.k8s.aws/instance-"
FAMILY: Final = f"{_AWS}family"
CATEGORY: Final = f"{_AWS}category"
GENERATION: Final = f"{_AWS}generation"
SIZE: Final = f"{_AWS}size"
VCPUS: Final = f"{_AWS}cpu"
MEMORY_MIB: Final = f"{_AWS}memory"

FAMILIES_MAX: Final = 12
"""How many families are considered one by one, for each NodePool."""
_GENERAL: Final = ("c", "m", "r")
"""Categories for any workload. Others have a device, local disks or burstable CPU."""
_QUIET: Final = ("0s", "1m", "5m", "15m")
_LEAST_VCPUS: Final = ("3", "7", "15")
_MOST_VCPUS: Final = ("9", "17", "33")


class Topic(StrEnum):
    """The topic of a change."""

    FAMILIES = "families"
    GENERATIONS = "generations"
    ARCHITECTURES = "architectures"
    SIZES = "sizes"
    CAPACITY_TYPES = "capacityTypes"
    ZONES = "zones"
    WORKLOADS = "workloads"
    CONSOLIDATION = "consolidation"
    PACKING = "packing"
    BUDGETS = "budgets"
    EXPIRY = "expiry"
    NODE_POOLS = "nodePools"


@dataclass(frozen=True, slots=True)
class AdviceCandidate:
    """A change to consider; ``title`` is an imperative, ``risk`` its consequence for the workloads.

    ``needs_trace`` is whether it changes nothing about a fleet at rest. ``workload`` is the
    constraint that is removed, None for a change of the files.
    """

    id: str
    topic: Topic
    title: str
    changes: tuple[DesiredChange, ...]
    risk: str = ""
    needs_trace: bool = False
    workload: ConstrainedWorkload | None = None


def candidates(
    node_pools: Iterable[NodePool],
    types: Mapping[str, LaunchPool],
    kinds: Sequence[InstanceType],
    settings: Settings,
) -> tuple[AdviceCandidate, ...]:
    """Return the candidates that change settings and single NodePools, in a fixed order.

    ``kinds`` are all instance types of the catalog; ``types`` are the NodePools with theirs.
    """
    pools = sorted(node_pools, key=lambda pool: pool.name)
    found = list(_setting_candidates(pools, settings))
    for pool in pools:
        offered = types[pool.name].types.types if pool.name in types else kinds
        found += _pool_candidates(pool, offered)
    return tuple({candidate.id: candidate for candidate in found}.values())


# The settings of the engine.


def _setting_candidates(pools: Sequence[NodePool], settings: Settings) -> Iterator[AdviceCandidate]:
    if settings.packing is not Packing.CHEAPEST:
        yield AdviceCandidate(
            "packing-cheapest", Topic.PACKING, "Pack pods for the lowest price",
            (SetSetting("packing", Packing.CHEAPEST.value),),
        )  # fmt: skip
    yield from _consolidation_candidates(pools, settings)
    if settings.maximum_preference_cost_percent and settings.packing is Packing.CHEAPEST:
        yield AdviceCandidate(
            "preferences-0", Topic.PACKING, "Drop soft preferences that cost anything",
            (SetSetting("maximumPreferenceCostPercent", 0),),
            "preferred affinity and ScheduleAnyway spreads are dropped if they cost anything",
        )  # fmt: skip
    if settings.expiration_policy is not ExpirationPolicy.GRACEFUL:
        yield AdviceCandidate(
            "expiry-graceful", Topic.EXPIRY, "Apply budgets to expired nodes",
            (SetSetting("expirationPolicy", ExpirationPolicy.GRACEFUL.value),),
            "nodes may become older than expireAfter", needs_trace=True,
        )  # fmt: skip


def _consolidation_candidates(
    pools: Sequence[NodePool], settings: Settings
) -> Iterator[AdviceCandidate]:
    if settings.consolidation_search is ConsolidationSearch.KARPENTER:
        yield AdviceCandidate(
            "consolidation-default", Topic.CONSOLIDATION,
            "Let consolidation evaluate more sets of nodes than Karpenter does",
            (SetSetting("consolidation.search", ConsolidationSearch.DEFAULT.value),),
        )  # fmt: skip
    if settings.consolidation_search is not ConsolidationSearch.THOROUGH:
        yield AdviceCandidate(
            "consolidation-thorough", Topic.CONSOLIDATION, "Let consolidation search thoroughly",
            (SetSetting("consolidation.search", ConsolidationSearch.THOROUGH.value),),
        )  # fmt: skip
    if any(pool.requirements().requirement_on(CAPACITY_TYPE).has(SPOT) for pool in pools):
        gate = FeatureGate.SPOT_TO_SPOT_CONSOLIDATION
        if not settings.gate(gate):
            yield AdviceCandidate(
                "spot-to-spot", Topic.CONSOLIDATION, "Replace spot nodes by cheaper spot nodes",
                (SetSetting(f"featureGates.{gate.value}", True),),
                "spot nodes are replaced more often",
            )  # fmt: skip
    for key, value in (
        ("minimumSavings", settings.minimum_savings),
        ("minimumSavingsPercent", settings.minimum_savings_percent),
        ("evictionCost", settings.eviction_cost),
    ):
        if value:
            yield AdviceCandidate(
                f"{_slug(key)}-0", Topic.CONSOLIDATION,
                f"Also consolidate if it saves less than {key}",
                (SetSetting(key, 0),), "more pods are moved for small savings",
            )  # fmt: skip


# The NodePools, one by one.


def _pool_candidates(pool: NodePool, offered: Sequence[InstanceType]) -> Iterator[AdviceCandidate]:
    values = OfferedValues(pool, offered)
    yield from _capacity_type_candidates(pool, values)
    yield from _architecture_candidates(pool, values)
    yield from _zone_candidates(pool, values)
    yield from _family_candidates(pool, values)
    yield from _generation_candidates(pool, values)
    yield from _size_candidates(pool)
    yield from _disruption_candidates(pool)


class OfferedValues:
    """The values of labels that EC2 offers a NodePool besides its other requirements."""

    def __init__(self, pool: NodePool, kinds: Sequence[InstanceType]) -> None:
        self._pool = pool
        self._kinds = kinds

    def kinds(self, *keys: str) -> list[InstanceType]:
        """Return the types that the NodePool could launch without its requirements on ``keys``."""
        rest = self._pool.requirements().without(keys)
        return [
            kind
            for kind in self._kinds
            if kind.requirements.intersects(rest) and kind.cheapest_offering(rest) is not None
        ]

    def missing_values(self, key: str) -> list[str]:
        """Return the values of a label that the NodePool's requirements on it leave out."""
        rest = self._pool.requirements().without((key,))
        wanted = self._pool.requirements().requirement_on(key)
        found: set[str] = set()
        for kind in self.kinds(key):
            if key in (ZONE, CAPACITY_TYPE):
                found |= {
                    offering.zone if key == ZONE else offering.capacity_type
                    for offering in kind.available_offerings(rest)
                }
            else:
                found |= kind.requirements.requirement_on(key).values
        return sorted(value for value in found if not wanted.has(value))


def _capacity_type_candidates(pool: NodePool, values: OfferedValues) -> Iterator[AdviceCandidate]:
    if SPOT in values.missing_values(CAPACITY_TYPE):
        yield AdviceCandidate(
            f"{pool.name}-spot", Topic.CAPACITY_TYPES, f"Let NodePool {pool.name} use spot nodes",
            (AllowValues(pool.name, CAPACITY_TYPE, (SPOT,)),),
            "EC2 interrupts spot nodes with two minutes' notice",
        )  # fmt: skip


def _architecture_candidates(pool: NodePool, values: OfferedValues) -> Iterator[AdviceCandidate]:
    for arch in values.missing_values(ARCH):
        yield AdviceCandidate(
            f"{pool.name}-{arch}", Topic.ARCHITECTURES,
            f"Let NodePool {pool.name} use {arch} nodes",
            (AllowValues(pool.name, ARCH, (arch,)),),
            _image_risk(arch),
        )  # fmt: skip
    if not any(row.operator == Operator.IN for row in rows_of(pool, FAMILY)):
        return
    wanted, allowed = pool.requirements().requirement_on(ARCH), _categories(values.kinds())
    by_arch: dict[str, list[InstanceType]] = {}
    for kind in values.kinds(ARCH, FAMILY):
        arch = _label(kind, ARCH)
        if not wanted.has(arch) and _label(kind, CATEGORY) in allowed:
            by_arch.setdefault(arch, []).append(kind)
    for arch, kinds in sorted(by_arch.items()):
        families = tuple(sorted(_families_by_price(kinds)))
        yield AdviceCandidate(
            f"{pool.name}-{arch}-families", Topic.ARCHITECTURES,
            f"Let NodePool {pool.name} use {arch} nodes of the families {', '.join(families)}",
            (AllowValues(pool.name, ARCH, (arch,)), AllowValues(pool.name, FAMILY, families)),
            _image_risk(arch),
        )  # fmt: skip


def _image_risk(arch: str) -> str:
    return f"every image of its pods must exist for {arch}"


def _zone_candidates(pool: NodePool, values: OfferedValues) -> Iterator[AdviceCandidate]:
    missing = values.missing_values(ZONE)
    if missing:
        yield AdviceCandidate(
            f"{pool.name}-zones", Topic.ZONES,
            f"Let NodePool {pool.name} use the zones {', '.join(missing)}",
            (AllowValues(pool.name, ZONE, tuple(missing)),),
            "the node class needs subnets there, and traffic between zones costs money",
        )  # fmt: skip


def _family_candidates(pool: NodePool, values: OfferedValues) -> Iterator[AdviceCandidate]:
    name = pool.name
    categories = _categories(values.kinds())
    if categories and any(r.operator == Operator.IN for r in rows_of(pool, INSTANCE_TYPE)):
        yield AdviceCandidate(
            f"{name}-any-type", Topic.FAMILIES,
            f"Let NodePool {name} choose among all types of the categories "
            f"{', '.join(categories)}",
            (
                AddRequirement(name, CATEGORY, "In", tuple(categories)),
                DropRequirement(name, INSTANCE_TYPE),
            ),
        )  # fmt: skip
    yield from _value_candidates(pool, values, CATEGORY, "category")
    if not rows_of(pool, FAMILY):
        return
    present = values.kinds()
    allowed, oldest = set(_categories(present)), min(map(_generation, present), default=0)
    missing = set(values.missing_values(FAMILY))
    alike = [
        kind
        for kind in values.kinds(FAMILY)
        if _label(kind, FAMILY) in missing
        and _label(kind, CATEGORY) in allowed
        and _generation(kind) >= oldest
    ]
    families = _families_by_price(alike)
    if len(families) > 1:
        yield AdviceCandidate(
            f"{name}-any-family", Topic.FAMILIES,
            f"Let NodePool {name} use all {len(families)} other families of the categories "
            f"{', '.join(sorted(allowed))}",
            (AllowValues(name, FAMILY, tuple(sorted(families))),),
        )  # fmt: skip
    for family in families[:FAMILIES_MAX]:
        yield AdviceCandidate(
            f"{name}-{family}", Topic.FAMILIES, f"Let NodePool {name} use the family {family}",
            (AllowValues(name, FAMILY, (family,)),),
        )  # fmt: skip


def _value_candidates(
    pool: NodePool, values: OfferedValues, key: str, word: str
) -> Iterator[AdviceCandidate]:
    for value in values.missing_values(key) if rows_of(pool, key) else ():
        if value in _GENERAL:
            yield AdviceCandidate(
                f"{pool.name}-{word}-{value}", Topic.FAMILIES,
                f"Let NodePool {pool.name} use the {word} {value}",
                (AllowValues(pool.name, key, (value,)),),
            )  # fmt: skip


def _generation_candidates(pool: NodePool, values: OfferedValues) -> Iterator[AdviceCandidate]:
    name = pool.name
    older = sorted((v for v in values.missing_values(GENERATION) if v.isdecimal()), key=int)
    if rows_of(pool, GENERATION):
        if older:
            title = f"Let NodePool {name} use the generations {', '.join(older)}"
            yield AdviceCandidate(
                f"{name}-any-generation", Topic.GENERATIONS, title,
                (DropRequirement(name, GENERATION),), "older generations are slower for each vCPU",
            )  # fmt: skip
        return
    known = {_label(kind, GENERATION) for kind in values.kinds()}
    numbers = sorted({int(value) for value in known if value.isdecimal()}, reverse=True)
    for newest in numbers[1:3]:
        yield AdviceCandidate(
            f"{name}-generation-{newest + 1}", Topic.GENERATIONS,
            f"Let NodePool {name} use only generations from {newest + 1} on",
            (AddRequirement(name, GENERATION, "Gt", (str(newest),)),),
            "fewer instance types to choose from when EC2 is short of capacity",
        )  # fmt: skip


def _size_candidates(pool: NodePool) -> Iterator[AdviceCandidate]:
    name = pool.name
    if rows_of(pool, SIZE):
        yield AdviceCandidate(
            f"{name}-any-size", Topic.SIZES, f"Let NodePool {name} use every size",
            (DropRequirement(name, SIZE),),
        )  # fmt: skip
    yield from _amount_candidates(pool, VCPUS, "vCPUs", "fewer vCPUs")
    yield from _amount_candidates(pool, MEMORY_MIB, "memory", "less memory")
    if any(rows_of(pool, key) for key in (SIZE, VCPUS, INSTANCE_TYPE)):
        return
    for limit, numbers, words in (
        ("Gt", _LEAST_VCPUS, "more than"),
        ("Lt", _MOST_VCPUS, "fewer than"),
    ):
        for number in numbers:
            yield AdviceCandidate(
                f"{name}-vcpus-{limit.lower()}-{number}", Topic.SIZES,
                f"Let NodePool {name} use only nodes with {words} {number} vCPUs",
                (AddRequirement(name, VCPUS, limit, (number,)),),
                "fewer instance types to choose from when EC2 is short of capacity",
            )  # fmt: skip


def _amount_candidates(pool: NodePool, key: str, what: str, less: str) -> Iterator[AdviceCandidate]:
    """Yield the limits of a number that can be dropped; ``what`` is counted, as in ``less``."""
    name, slug = pool.name, what.lower()
    present = [row.operator for row in rows_of(pool, key)]
    for operator in (Operator.LT, Operator.LTE):
        if operator in present:
            yield AdviceCandidate(
                f"{name}-larger-{slug}", Topic.SIZES,
                f"Let NodePool {name} use nodes with more {what}",
                (DropRequirement(name, key, (operator.value,)),),
                "a larger node takes more pods with it when it fails",
            )  # fmt: skip
    for operator in (Operator.GT, Operator.GTE):
        if operator in present:
            yield AdviceCandidate(
                f"{name}-smaller-{slug}", Topic.SIZES,
                f"Let NodePool {name} use nodes with {less}",
                (DropRequirement(name, key, (operator.value,)),),
            )  # fmt: skip


def _budget_candidates(pool: NodePool) -> Iterator[AdviceCandidate]:
    name, budgets = pool.name, pool.spec.disruption.budgets
    for number, budget in enumerate(budgets):
        pointer = ("spec", "disruption", "budgets", number)
        if budget.schedule is not None and len(budgets) > 1:
            yield AdviceCandidate(
                f"{name}-budget-{number}-always", Topic.BUDGETS,
                f"Remove the scheduled budget {budget.schedule} of NodePool {name}",
                (RemovePoolItem(name, pointer),), "nodes are disrupted at more times of the week",
                needs_trace=True,
            )  # fmt: skip
        elif budget.schedule is None and budget.nodes in ("0", "0%"):
            yield AdviceCandidate(
                f"{name}-budget-{number}-open", Topic.BUDGETS,
                f"Let the budget of NodePool {name} that allows no disruption allow 10%",
                (SetPoolField(name, (*pointer, "nodes"), "10%"),),
                "nodes that were never disrupted can be disrupted",
            )  # fmt: skip


def _disruption_candidates(pool: NodePool) -> Iterator[AdviceCandidate]:
    if pool.is_static:
        return
    name, disruption = pool.name, pool.spec.disruption
    at = ("spec", "disruption")
    if disruption.consolidation_policy != WHEN_EMPTY_OR_UNDERUTILIZED:
        yield AdviceCandidate(
            f"{name}-underutilized", Topic.CONSOLIDATION,
            f"Let consolidation replace underutilized nodes of NodePool {name}",
            (SetPoolField(name, (*at, "consolidationPolicy"), WHEN_EMPTY_OR_UNDERUTILIZED),),
            "pods are moved from nodes that are not empty",
        )  # fmt: skip
    now = disruption.consolidates_after
    for text in _QUIET:
        if now is None or parse_nillable(text) != now:
            yield AdviceCandidate(
                f"{name}-consolidate-after-{text}", Topic.CONSOLIDATION,
                f"Let consolidation of NodePool {name} wait {text}",
                (SetPoolField(name, (*at, "consolidateAfter"), text),),
                "pods may be moved more often", needs_trace=now is not None or text != "5m",
            )  # fmt: skip
    yield from _budget_candidates(pool)
    if pool.expires_after is not None:
        yield AdviceCandidate(
            f"{name}-expiry-never", Topic.EXPIRY, f"Never expire nodes of NodePool {name}",
            (SetPoolField(name, ("spec", "template", "spec", "expireAfter"), NEVER),),
            "nodes run old images until drift replaces them", needs_trace=True,
        )  # fmt: skip


def rows_of(pool: NodePool, key: str) -> list[NodeSelectorRequirement]:
    """Return the requirements of a NodePool on a label."""
    return [row for row in pool.spec.template.spec.requirements if row.key == key]


def _label(kind: InstanceType, key: str) -> str:
    return min(kind.requirements.requirement_on(key).values, default="")


def _generation(kind: InstanceType) -> int:
    text = _label(kind, GENERATION)
    return int(text) if text.isdecimal() else 0


def _categories(kinds: Iterable[InstanceType]) -> list[str]:
    return sorted({_label(kind, CATEGORY) for kind in kinds} - {""})


def _families_by_price(kinds: Iterable[InstanceType]) -> list[str]:
    """Return the families, those with the cheapest vCPU first."""
    prices: dict[str, float] = {}
    for kind in kinds:
        cheapest, vcpus = kind.cheapest_offering(), kind.capacity.get("cpu", 0)
        if cheapest is not None and vcpus:
            family = _label(kind, FAMILY)
            price = cheapest.price / vcpus
            prices[family] = min(price, prices.get(family, price))
    return sorted(prices, key=lambda family: (prices[family], family))


def _slug(key: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in key)
