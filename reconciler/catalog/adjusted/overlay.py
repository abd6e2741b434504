"""NodeOverlays: prices and extended resources of types, as the operator corrects them.

Karpenter's rules (``pkg/controllers/nodeoverlay``). Overlays are taken by weight, the heaviest
first, of equals the later name first. Each offering keeps the first price it is given and each
type the first amount of each resource; corrections never add up. An overlay that meets another
of its own weight on an offering or a resource is rejected whole, for every NodePool, so all
NodePools are evaluated together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from reconciler.catalog.adjusted.overlaid import OverlaidCatalog
from reconciler.catalog.aws.offerings import NO_PRICE
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.columns import Columns
from reconciler.model.karpenter.instancetype import Offering
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    NODEPOOL,
    ON_DEMAND,
    RESERVED,
    SPOT,
    ZONE,
    is_restricted,
)
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from reconciler.model.karpenter.nodepool import NodePool, NodeSelectorRequirement, requirements_of
from reconciler.model.karpenter.requirements import Operator, Requirement, Requirements
from reconciler.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources

# What is wrong with a NodeOverlay that the API's schema lets through.
#
# Karpenter checks this once more when it evaluates overlays (``RuntimeValidate``): lengths of
# label keys and values, capacity types that exist, resources that are not the provider's own.


CORE_RESOURCES: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE, PODS})
AWS_RESOURCES: Final = CORE_RESOURCES | {
    "vpc.amazonaws.com/pod-eni",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "habana.ai/gaudi",
    "vpc.amazonaws.com/efa",
}
"""Resources whose amount a provider knows itself; an overlay may not set them."""

_CAPACITY_TYPES: Final = frozenset({ON_DEMAND, SPOT, RESERVED})
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII
)
_PREFIX_LENGTH_MAX: Final = 253
_BOUNDS: Final = frozenset({Operator.GT, Operator.LT, Operator.GTE, Operator.LTE})


def problems(
    overlay: NodeOverlay, provider_resources: Collection[str] = AWS_RESOURCES
) -> list[tuple[str, str]]:
    """Return what is wrong: the path of each field and what to know of it; none if all is well."""
    found: list[tuple[str, str]] = []
    for index, entry in enumerate(overlay.spec.requirements):
        path = f"spec.requirements[{index}]"
        found += [(f"{path}.{field}", text) for field, text in _of_requirement(entry)]
    found += [
        ("spec.capacity", f"{name} comes from the provider and cannot be set")
        for name in sorted(overlay.spec.capacity)
        if name in provider_resources
    ]
    return found


def _of_requirement(entry: NodeSelectorRequirement) -> Iterator[tuple[str, str]]:
    if reason := _bad_key(entry.key):
        yield "key", reason
    values = entry.values
    if entry.operator in (Operator.IN, Operator.NOT_IN) and not values:
        yield "values", f"{entry.operator} needs at least one value"
    if entry.operator in _BOUNDS and not (
        len(values) == 1 and values[0].isascii() and values[0].isdigit()
    ):
        yield "values", f"{entry.operator} needs one integer of at least 0"
    for value in values:
        if value and not _NAME.fullmatch(value):
            yield "values", f"{value!r} is not a label value"
    if (
        entry.key == CAPACITY_TYPE
        and entry.operator is Operator.IN
        and values
        and not _CAPACITY_TYPES.intersection(values)
    ):
        yield "values", f"none of {', '.join(values)} is a capacity type"


def _bad_key(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _PREFIX_LENGTH_MAX and _PREFIX.fullmatch(prefix)):
        return f"{prefix!r} is not the prefix of a label key"
    if not _NAME.fullmatch(name):
        return f"{name!r} is not the name of a label key (63 characters at most)"
    if key != NODEPOOL and is_restricted(key):
        return f"{key} is reserved"
    return None


class OverlayVerdict(StrEnum):
    """What became of an overlay, in Karpenter's words for its condition."""

    ACCEPTED = "Accepted"
    INVALID = "RuntimeValidation"
    CONFLICT = "Conflict"


@dataclass(frozen=True, slots=True)
class OverlayFinding:
    """What became of one overlay, and why it was not taken.

    ``other`` is the overlay that it conflicts with, and ``matches`` the number of instance types
    it applies to, over all NodePools: Karpenter tells neither.
    """

    name: str
    verdict: OverlayVerdict
    message: str = ""
    other: str = ""
    matches: int = 0


@dataclass(frozen=True, slots=True)
class OverlayPool:
    """A NodePool as overlays see it: its name, its template's labels, its instance types."""

    name: str
    labels: Mapping[str, str]
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The corrected catalogue of each NodePool, and the findings by overlay name."""

    catalogs: Mapping[str, Catalog]
    findings: tuple[OverlayFinding, ...]


PRICE_MAX: Final = 1_000_000.0
"""No overlay makes an offering dearer than this, in USD an hour."""


def adjusted_price(base: float, price: str | None, adjustment: str | None) -> float:
    """Return an offering's price under an overlay: never below 0, in Karpenter's floating point.

    ``price`` replaces the base; an ``adjustment`` is added to it, or scales it where it is a
    percentage.

    Raises:
        ValueError: a text is not a number.
    """
    if price is not None:
        return _bounded(float(price))
    if adjustment is None:
        return base
    if adjustment.endswith("%"):
        return _bounded(base * (1 + float(adjustment[:-1]) / 100))
    return _bounded(base + float(adjustment))


def _bounded(price: float) -> float:
    return min(max(price, 0.0), PRICE_MAX)


def evaluate(
    pools: Sequence[OverlayPool],
    overlays: Iterable[NodeOverlay],
    provider_resources: Collection[str] = AWS_RESOURCES,
) -> Evaluation:
    """Return the catalogues that the overlays give, and what became of each overlay.

    An overlay that sets one of ``provider_resources`` is invalid. A NodePool whose types are not
    known is left out by the caller, and has no catalogue in the answer.
    """
    ledgers = [_Ledger(pool) for pool in pools]
    ordered = sorted(overlays, key=lambda o: (o.weight, o.name), reverse=True)
    findings = [_take(overlay, ledgers, provider_resources) for overlay in ordered]
    return Evaluation(
        {ledger.pool.name: ledger.catalog() for ledger in ledgers},
        tuple(sorted(findings, key=lambda f: f.name)),
    )


def apply_overlays(
    catalog: Catalog, overlays: Iterable[NodeOverlay], node_pool: NodePool
) -> tuple[Catalog, tuple[OverlayFinding, ...]]:
    """Return one NodePool's catalogue under overlays, as if it were the only NodePool.

    Conflicts that arise in other NodePools are not seen; ``evaluate`` sees them.
    """
    pool = OverlayPool(node_pool.name, node_pool.spec.template.metadata.labels, catalog)
    evaluation = evaluate([pool], overlays)
    return evaluation.catalogs[pool.name], evaluation.findings


def selected_offerings(pool: OverlayPool, requirements: Requirements) -> Sequence[int]:
    """Return the positions of the offerings that an overlay of these requirements would reach."""
    return _Ledger(pool).match(requirements).offerings


@dataclass(frozen=True, slots=True)
class _Match:
    """What an overlay selects in one NodePool: types, and offerings by position."""

    types: list[int]
    offerings: list[int]


def _take(
    overlay: NodeOverlay, ledgers: Sequence[_Ledger], provider_resources: Collection[str]
) -> OverlayFinding:
    invalid = _invalid(overlay, provider_resources)
    if invalid:
        return OverlayFinding(overlay.name, OverlayVerdict.INVALID, invalid)
    requirements = requirements_of(overlay.spec.requirements)
    matches = [ledger.match(requirements) for ledger in ledgers]
    for ledger, match in zip(ledgers, matches, strict=True):
        clash = ledger.clash(overlay, match)
        if clash:
            other, what = clash
            return OverlayFinding(
                overlay.name,
                OverlayVerdict.CONFLICT,
                f"overlay {other} has the same weight {overlay.weight} and sets {what} too;"
                " give one of them another weight",
                other,
            )
    for ledger, match in zip(ledgers, matches, strict=True):
        ledger.record(overlay, match)
    count = sum(len(match.types) for match in matches)
    return OverlayFinding(overlay.name, OverlayVerdict.ACCEPTED, matches=count)


def _invalid(overlay: NodeOverlay, provider_resources: Collection[str]) -> str:
    """Return why the overlay cannot be evaluated, or nothing."""
    found = [f"{path}: {text}" for path, text in problems(overlay, provider_resources)]
    try:
        adjusted_price(1.0, overlay.spec.price, overlay.spec.price_adjustment)
    except ValueError:
        found.append("spec.price or spec.priceAdjustment is not a number")
    try:
        overlay.capacity()
    except ValueError as error:
        found.append(f"spec.capacity.{error}")
    return "; ".join(found)


@dataclass(slots=True)
class _Seen:
    """The last accepted overlay that touched something."""

    weight: int
    name: str


@dataclass(slots=True)
class _Ledger:
    """What accepted overlays have set in one NodePool."""

    pool: OverlayPool
    prices: dict[int, NodeOverlay] = field(default_factory=dict)
    price_seen: dict[int, _Seen] = field(default_factory=dict)
    capacities: dict[int, Resources] = field(default_factory=dict)
    capacity_seen: dict[int, tuple[_Seen, frozenset[str]]] = field(default_factory=dict)

    def match(self, requirements: Requirements) -> _Match:
        """Return what ``requirements`` select."""
        columns = self.pool.catalog.columns
        selected = self._selected_types(columns, requirements)
        accepts = _OfferingTest(columns, requirements)
        kinds = columns.offerings.type
        offerings = [i for i, kind in enumerate(kinds) if selected[kind] and accepts(i)]
        return _Match(sorted({kinds[i] for i in offerings}), offerings)

    def _selected_types(self, columns: Columns, requirements: Requirements) -> list[bool]:
        """Return for each type whether it, with the NodePool's labels, is what is asked for.

        Strictly: a label that neither bears is only satisfied by a negative demand.
        """
        base = Requirements.from_labels({**self.pool.labels, NODEPOOL: self.pool.name})
        selected = [True] * len(columns.names)
        for key, wanted in requirements.items():
            cells = columns.requirements.get(key) or [None] * len(columns.names)
            verdicts: dict[int, bool] = {}
            for index, cell in enumerate(cells):
                verdict = verdicts.get(id(cell))
                if verdict is None:
                    verdict = verdicts[id(cell)] = _meets(base.get(key), cell, wanted)
                selected[index] = selected[index] and verdict
        return selected

    def clash(self, overlay: NodeOverlay, match: _Match) -> tuple[str, str] | None:
        """Return the accepted overlay of equal weight that sets the same, and what that is."""
        if _sets_price(overlay):
            for position in match.offerings:
                seen = self.price_seen.get(position)
                if seen and seen.weight == overlay.weight:
                    return seen.name, "a price"
        names = frozenset(overlay.spec.capacity)
        for index in match.types if names else ():
            last = self.capacity_seen.get(index)
            if last and last[0].weight == overlay.weight and last[1] & names:
                return last[0].name, min(last[1] & names)
        return None

    def record(self, overlay: NodeOverlay, match: _Match) -> None:
        """Note an accepted overlay; what a heavier one has set stays."""
        seen = _Seen(overlay.weight, overlay.name)
        if _sets_price(overlay):
            for position in match.offerings:
                self.prices.setdefault(position, overlay)
                self.price_seen[position] = seen
        amounts = overlay.capacity()
        for index in match.types if amounts else ():
            self.capacities[index] = {**amounts, **self.capacities.get(index, {})}
            self.capacity_seen[index] = (seen, frozenset(amounts))

    def catalog(self) -> Catalog:
        """Return the NodePool's catalogue with what was set."""
        catalog = self.pool.catalog
        if not self.prices and not self.capacities:
            return catalog
        base = catalog.columns.offerings.price
        prices = {
            position: adjusted_price(base[position], o.spec.price, o.spec.price_adjustment)
            for position, o in sorted(self.prices.items())
        }
        opened = frozenset(p for p, overlay in self.prices.items() if self._opens(overlay, p))
        return OverlaidCatalog(catalog, prices, dict(sorted(self.capacities.items())), opened)

    def _opens(self, overlay: NodeOverlay, position: int) -> bool:
        """Return whether the overlay makes an offering available that only lacked a price.

        Karpenter takes a price for that from an overlay that asks for nothing but types by name.
        """
        if overlay.spec.price is None or [
            (r.key, r.operator) for r in overlay.spec.requirements
        ] != [(INSTANCE_TYPE, Operator.IN)]:
            return False
        catalog = self.pool.catalog
        offerings = catalog.columns.offerings
        index = offerings.type[position]
        zones = catalog.columns.requirements[ZONE][index]
        lacks_price = catalog.why_not(catalog.names[index]) == NO_PRICE
        return lacks_price and zones is not None and zones.has(offerings.zone[position])


def _sets_price(overlay: NodeOverlay) -> bool:
    return overlay.spec.price is not None or overlay.spec.price_adjustment is not None


def _meets(label: Requirement | None, cell: Requirement | None, wanted: Requirement) -> bool:
    """Return whether what a NodePool and a type say of one key meets what is wanted of it."""
    known = Requirements(r for r in (label, cell) if r is not None)
    return known.compatible(Requirements((wanted,)))


class _OfferingTest:
    """Whether an overlay's requirements accept an offering; alike offerings are asked once."""

    def __init__(self, columns: Columns, requirements: Requirements) -> None:
        self._offerings: Final = columns.offerings
        self._requirements: Final = requirements
        self._known: dict[tuple[str, str | None, str], bool] = {}

    def __call__(self, position: int) -> bool:
        columns = self._offerings
        special = columns.special.get(position)
        if special is not None:
            return special.satisfies(self._requirements)
        key = (columns.zone[position], columns.zone_id[position], columns.capacity_type[position])
        known = self._known.get(key)
        if known is None:
            zone, zone_id, capacity_type = key
            offering = Offering(zone, capacity_type, 0.0, zone_id=zone_id)
            known = self._known[key] = offering.satisfies(self._requirements)
        return known
