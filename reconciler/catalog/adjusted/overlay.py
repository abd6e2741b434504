"""NodeOverlays: changes to the prices and extended resources of instance types.

The rules are Karpenter's (``pkg/controllers/nodeoverlay``). Overlays are applied by weight,
heaviest first, with ties in reverse order of name. Each offering keeps the first price it is given,
and each type the first amount of each resource; overlays never add up. An overlay that conflicts
with another of the same weight on an offering or a resource is rejected completely, for every
NodePool. All NodePools are therefore evaluated together.

What the API's schema cannot check is checked as Karpenter does when it evaluates overlays
(``RuntimeValidate``): lengths of label keys and values, known capacity types, and resources that
belong to the provider.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from reconciler.catalog.adjusted.adjustment import with_overlaid_values
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
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement, requirements_of
from reconciler.model.karpenter.requirements import Operator, Requirement, Requirements
from reconciler.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources
from reconciler.model.text.quoting import quote_value

CORE_RESOURCES: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE, PODS})
AWS_RESOURCES: Final = CORE_RESOURCES | {
    "vpc.amazonaws.com/pod-eni",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "habana.ai/gaudi",
    "vpc.amazonaws.com/efa",
}
"""Resources whose amount the provider defines; an overlay must not set them."""

_CAPACITY_TYPES: Final = frozenset({ON_DEMAND, SPOT, RESERVED})
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII
)
_PREFIX_LENGTH_MAX: Final = 253
_BOUNDS: Final = frozenset({Operator.GT, Operator.LT, Operator.GTE, Operator.LTE})

PRICE_MAX: Final = 1_000_000.0
"""The maximum price that an overlay can set, in USD an hour."""


def overlay_problems(
    overlay: NodeOverlay, provider_resources: Collection[str] = AWS_RESOURCES
) -> list[tuple[str, str]]:
    """Return the problems of an overlay: pairs of a field path and a message, empty if valid."""
    found: list[tuple[str, str]] = []
    for index, entry in enumerate(overlay.spec.requirements):
        path = f"spec.requirements[{index}]"
        found += [(f"{path}.{field}", text) for field, text in _requirement_problems(entry)]
    found += [
        ("spec.capacity", f"{name} comes from the provider and cannot be set")
        for name in sorted(overlay.spec.capacity)
        if name in provider_resources
    ]
    return found


def _operand_problem(operator: str, values: Sequence[str]) -> str | None:
    """Return why an operator cannot have these values, or None."""
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        return f"{operator} needs at least one value"
    if operator not in _BOUNDS:
        return None
    is_integer = len(values) == 1 and values[0].isascii() and values[0].isdigit()
    return None if is_integer else f"{operator} needs one integer of at least 0"


def _requirement_problems(entry: NodeSelectorRequirement) -> Iterator[tuple[str, str]]:
    if reason := _key_problem(entry.key):
        yield "key", reason
    values = entry.values
    if reason := _operand_problem(entry.operator, values):
        yield "values", reason
    for value in values:
        if value and not _NAME.fullmatch(value):
            yield "values", f"{quote_value(value)} is not a label value"
    if (
        entry.key == CAPACITY_TYPE
        and entry.operator is Operator.IN
        and values
        and not _CAPACITY_TYPES.intersection(values)
    ):
        yield "values", f"none of {', '.join(values)} is a capacity type"


def _key_problem(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _PREFIX_LENGTH_MAX and _PREFIX.fullmatch(prefix)):
        return f"{quote_value(prefix)} is not the prefix of a label key"
    if not _NAME.fullmatch(name):
        return f"{quote_value(name)} is not the name of a label key (63 characters at most)"
    if key != NODEPOOL and is_restricted(key):
        return f"{key} is reserved"
    return None


class OverlayVerdict(StrEnum):
    """The result of evaluating an overlay, in Karpenter's words for its condition."""

    ACCEPTED = "Accepted"
    INVALID = "RuntimeValidation"
    CONFLICT = "Conflict"


@dataclass(frozen=True, slots=True)
class OverlayFinding:
    """The result for one overlay, and why it was not applied.

    ``matches`` is the number of instance types it applies to, over all NodePools, which Karpenter
    does not report.
    """

    name: str
    verdict: OverlayVerdict
    message: str = ""
    matches: int = 0


@dataclass(frozen=True, slots=True)
class OverlayPool:
    """The parts of a NodePool that overlays use: name, template labels, instance types."""

    name: str
    labels: Mapping[str, str]
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The adjusted catalog of each NodePool, and the findings by overlay name."""

    catalogs: Mapping[str, Catalog]
    findings: tuple[OverlayFinding, ...]


def adjusted_price(base: float, price: str | None, adjustment: str | None) -> float:
    """Return an offering's price under an overlay, at least 0, in Karpenter's floating point.

    ``price`` replaces the base price. An ``adjustment`` is added to it, or scales it if it is a
    percentage.

    Raises:
        ValueError: a text is not a number.
    """
    if price is not None:
        return _clamp_price(float(price))
    if adjustment is None:
        return base
    if adjustment.endswith("%"):
        return _clamp_price(base * (1 + float(adjustment[:-1]) / 100))
    return _clamp_price(base + float(adjustment))


def _clamp_price(price: float) -> float:
    return min(max(price, 0.0), PRICE_MAX)


def evaluate_overlays(
    pools: Sequence[OverlayPool],
    overlays: Iterable[NodeOverlay],
    provider_resources: Collection[str] = AWS_RESOURCES,
) -> Evaluation:
    """Return the adjusted catalogs and the result of each overlay.

    An overlay that sets one of ``provider_resources`` is invalid. The caller leaves out NodePools
    whose types are unknown; they have no catalog in the result.
    """
    ledgers = [_Ledger(pool) for pool in pools]
    ordered = sorted(overlays, key=lambda o: (o.weight, o.name), reverse=True)
    findings = [_evaluate_overlay(overlay, ledgers, provider_resources) for overlay in ordered]
    return Evaluation(
        {ledger.pool.name: ledger.catalog() for ledger in ledgers},
        tuple(sorted(findings, key=lambda f: f.name)),
    )


def selected_offerings(pool: OverlayPool, requirements: Requirements) -> Sequence[int]:
    """Return the positions of the offerings that an overlay with these requirements selects."""
    return _Ledger(pool).match(requirements).offerings


@dataclass(frozen=True, slots=True)
class _Match:
    """What an overlay selects in one NodePool: types, and offerings by position."""

    types: list[int]
    offerings: list[int]


def _evaluate_overlay(
    overlay: NodeOverlay, ledgers: Sequence[_Ledger], provider_resources: Collection[str]
) -> OverlayFinding:
    invalid = _invalid_reason(overlay, provider_resources)
    if invalid:
        return OverlayFinding(overlay.name, OverlayVerdict.INVALID, invalid)
    requirements = requirements_of(overlay.spec.requirements)
    matches = [ledger.match(requirements) for ledger in ledgers]
    for ledger, match in zip(ledgers, matches, strict=True):
        clash = ledger.conflict(overlay, match)
        if clash:
            other, what = clash
            return OverlayFinding(
                overlay.name,
                OverlayVerdict.CONFLICT,
                f"overlay {other} has the same weight {overlay.weight} and sets {what} too;"
                " give one of them another weight",
            )
    for ledger, match in zip(ledgers, matches, strict=True):
        ledger.record(overlay, match)
    count = sum(len(match.types) for match in matches)
    return OverlayFinding(overlay.name, OverlayVerdict.ACCEPTED, matches=count)


def _invalid_reason(overlay: NodeOverlay, provider_resources: Collection[str]) -> str:
    """Return why the overlay cannot be evaluated, or an empty string."""
    found = [f"{path}: {text}" for path, text in overlay_problems(overlay, provider_resources)]
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
class _AppliedOverlay:
    """The last accepted overlay that changed something."""

    weight: int
    name: str


@dataclass(slots=True)
class _Ledger:
    """What accepted overlays have set in one NodePool."""

    pool: OverlayPool
    prices: dict[int, NodeOverlay] = field(default_factory=dict)
    price_seen: dict[int, _AppliedOverlay] = field(default_factory=dict)
    capacities: dict[int, Resources] = field(default_factory=dict)
    capacity_seen: dict[int, tuple[_AppliedOverlay, frozenset[str]]] = field(default_factory=dict)

    def match(self, requirements: Requirements) -> _Match:
        """Return what ``requirements`` select."""
        columns = self.pool.catalog.columns
        selected = self._selected_types(columns, requirements)
        accepts = _OfferingTest(columns, requirements)
        kinds = columns.offerings.type
        offerings = [i for i, kind in enumerate(kinds) if selected[kind] and accepts(i)]
        return _Match(sorted({kinds[i] for i in offerings}), offerings)

    def _selected_types(self, columns: Columns, requirements: Requirements) -> list[bool]:
        """Return for each type whether it matches, together with the NodePool's labels.

        A label that neither of them has matches only a negative operator.
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

    def conflict(self, overlay: NodeOverlay, match: _Match) -> tuple[str, str] | None:
        """Return the accepted overlay of equal weight that sets the same value, and which value."""
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
        """Record an accepted overlay; values set by a heavier one remain."""
        seen = _AppliedOverlay(overlay.weight, overlay.name)
        if _sets_price(overlay):
            for position in match.offerings:
                self.prices.setdefault(position, overlay)
                self.price_seen[position] = seen
        amounts = overlay.capacity()
        for index in match.types if amounts else ():
            self.capacities[index] = {**amounts, **self.capacities.get(index, {})}
            self.capacity_seen[index] = (seen, frozenset(amounts))

    def catalog(self) -> Catalog:
        """Return the NodePool's catalog with the recorded values."""
        catalog = self.pool.catalog
        if not self.prices and not self.capacities:
            return catalog
        base = catalog.columns.offerings.price
        prices = {
            position: adjusted_price(base[position], o.spec.price, o.spec.price_adjustment)
            for position, o in sorted(self.prices.items())
        }
        newly_priced = frozenset(
            p for p, overlay in self.prices.items() if self._makes_available(overlay, p)
        )
        return with_overlaid_values(
            catalog, prices, dict(sorted(self.capacities.items())), newly_priced
        )

    def _makes_available(self, overlay: NodeOverlay, position: int) -> bool:
        """Return whether the overlay makes an offering available that lacked only a price.

        As in Karpenter, only an overlay that selects nothing but types by name does so.
        """
        if overlay.spec.price is None or [
            (r.key, r.operator) for r in overlay.spec.requirements
        ] != [(INSTANCE_TYPE, Operator.IN)]:
            return False
        catalog = self.pool.catalog
        offerings = catalog.columns.offerings
        index = offerings.type[position]
        zones = catalog.columns.requirements[ZONE][index]
        lacks_price = catalog.launch_rejection(catalog.names[index]) == NO_PRICE
        return lacks_price and zones is not None and zones.has(offerings.zone[position])


def _sets_price(overlay: NodeOverlay) -> bool:
    return overlay.spec.price is not None or overlay.spec.price_adjustment is not None


def _meets(label: Requirement | None, cell: Requirement | None, wanted: Requirement) -> bool:
    """Return whether the values of a key on the NodePool and the type meet a requirement."""
    known = Requirements(r for r in (label, cell) if r is not None)
    return known.is_compatible(Requirements((wanted,)))


class _OfferingTest:
    """Whether an overlay's requirements match an offering; equal offerings are tested once."""

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
