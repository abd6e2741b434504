"""The unused part of the user's commitments given the running nodes, and the resulting prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from math import ceil
from typing import Final, TypeVar

import msgspec

from reconciler.catalog.adjusted.adjustment import with_overlaid_values
from reconciler.catalog.adjusted.overlay import OverlayPool, selected_offerings
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.commitments.accounting import (
    CommitmentKind,
    CommitmentSettings,
    OverlayDecision,
    OverlayReason,
    ReservedInstances,
    SavingsPlan,
    decide_compute,
    decide_ec2_instance,
    decide_reserved,
)
from reconciler.model.billing import (
    EC2_INSTANCE,
    Commitments,
    ReservedInstancesTerms,
    SavingsPlanTerms,
)
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.nodepool import requirements_of

PAID_SHARE: Final = 1e-7
"""The factor for the price of prepaid capacity, as Karpenter prices reservations.

It is not zero, so that the cheaper of two covered types is still preferred.
"""

_Terms = TypeVar("_Terms", SavingsPlanTerms, ReservedInstancesTerms)


class RunningNode(msgspec.Struct, frozen=True):
    """A running on-demand node; ``price`` is USD an hour without any commitment."""

    name: str
    instance_type: str
    zone: str
    price: float

    @property
    def family(self) -> str:
        """The part of the type's name before its size."""
        return self.instance_type.partition(".")[0]


class Cover(msgspec.Struct, frozen=True):
    """A group of commitments with unused capacity.

    ``room`` is the on-demand amount that it still covers in USD an hour; None means complete
    instances. ``note`` identifies it and shows its use; notes are unique.
    """

    decision: OverlayDecision
    room: float | None
    note: str

    def price(self, base: float) -> float:
        """Return the price of an offering beyond what the commitment covers."""
        if self.room is None:
            return base * PAID_SHARE
        return max(base - self.room, base * PAID_SHARE)


class Coverage(msgspec.Struct, frozen=True):
    """The coverage of commitments.

    ``covers`` steer launches; the first that fits an offering counts. ``paid`` is the additional
    cost of running nodes that a commitment covers, by name. ``unknown`` are the commitments whose
    use is not known.
    """

    covers: tuple[Cover, ...] = ()
    paid: dict[str, float] = {}
    unknown: tuple[str, ...] = ()


def coverage_of(
    commitments: Commitments, running: Iterable[RunningNode], region: str, now: datetime
) -> Coverage:
    """Return the coverage of a region's commitments at ``now``."""
    every = list(map(_Reserved, _applicable(commitments.reserved_instances, region, now)))
    every_plan = list(map(_Plan, _applicable(commitments.savings_plans, region, now)))
    unknown = [one.name for one in every if one.is_unknown]
    unknown += [plan.name for plan in every_plan if plan.is_unknown]
    reserved = [one for one in every if not one.is_unknown]
    plans = [plan for plan in every_plan if not plan.is_unknown]
    paid = _apply_commitments(
        sorted(reserved, key=lambda one: not one.terms.zone),
        sorted(plans, key=lambda plan: not plan.terms.family),
        sorted(running, key=lambda node: node.name),
    )
    settings = CommitmentSettings(threshold_percent=commitments.threshold_percent)
    covers = (
        *_reserved_covers(reserved, region, settings),
        *_plan_covers(plans, region, settings),
    )
    return Coverage(covers, paid, tuple(unknown))


def _applicable(every: Iterable[_Terms], region: str, now: datetime) -> Iterator[_Terms]:
    """Yield the terms that hold in a region and have not ended."""
    for terms in every:
        if terms.region in ("", region) and (terms.until is None or now < terms.until):
            yield terms


class _Reserved:
    """Reserved instances and how many of them are in use."""

    def __init__(self, terms: ReservedInstancesTerms) -> None:
        self.terms: Final = terms
        self.used_here = 0
        utilization = (terms.used_elsewhere, terms.utilization_percent)
        self.is_unknown: Final = utilization == (None, None)
        self._elsewhere: Final = terms.used_elsewhere or 0
        self._billed: Final = ceil(terms.count * (terms.utilization_percent or 0.0) / 100 - 1e-9)
        where = terms.zone or terms.region
        self.name: Final = terms.note or f"{terms.instance_type} {where}".strip()

    def cover(self, node: RunningNode) -> bool:
        """Assign one of them to the node if one is left that matches; return whether it was."""
        terms = self.terms
        fits = node.instance_type == terms.instance_type and terms.zone in ("", node.zone)
        if not fits or self.used_here >= terms.count - self._elsewhere:
            return False
        self.used_here += 1
        return True

    @property
    def free(self) -> int:
        used = max(self._billed, self._elsewhere + self.used_here)
        return max(self.terms.count - used, 0)


class _Plan:
    """A savings plan and how much of it is used, USD an hour at its own rates."""

    def __init__(self, terms: SavingsPlanTerms) -> None:
        self.terms: Final = terms
        self.used_here = 0.0
        utilization = (terms.used_elsewhere, terms.utilization_percent)
        self.is_unknown: Final = utilization == (None, None)
        self._elsewhere: Final = terms.used_elsewhere or 0.0
        self._billed: Final = terms.commitment * (terms.utilization_percent or 0.0) / 100
        self.rate: Final = 1 - terms.discount_percent / 100
        self.name: Final = terms.note or f"{terms.type} savings plan {terms.family}".strip()

    def cover(self, node: RunningNode, uncovered: float) -> float:
        """Pay for a node from the plan and return the uncovered remainder at on-demand price."""
        if self.terms.type == EC2_INSTANCE and node.family != self.terms.family:
            return uncovered
        room = max(self.terms.commitment - self._elsewhere - self.used_here, 0.0)
        paid = min(uncovered * self.rate, room)
        self.used_here += paid
        return uncovered - paid / self.rate if paid < uncovered * self.rate else 0.0

    @property
    def remaining(self) -> float:
        return self.terms.commitment - max(self._billed, self._elsewhere + self.used_here)


def _apply_commitments(
    reserved: Sequence[_Reserved], plans: Sequence[_Plan], running: Sequence[RunningNode]
) -> dict[str, float]:
    """Apply commitments to the nodes and return their additional cost by name."""
    open_nodes: list[RunningNode] = list(running)
    paid: dict[str, float] = {}
    for meter in reserved:
        for node in [n for n in open_nodes if meter.cover(n)]:
            paid[node.name] = node.price * PAID_SHARE
            open_nodes.remove(node)
    uncovered = {node.name: node.price for node in open_nodes}
    for plan in plans:
        for node in open_nodes:
            uncovered[node.name] = plan.cover(node, uncovered[node.name])
    for node in open_nodes:
        if uncovered[node.name] < node.price:
            paid[node.name] = max(uncovered[node.name], node.price * PAID_SHARE)
    return dict(sorted(paid.items()))


def _reserved_covers(
    meters: Sequence[_Reserved], region: str, settings: CommitmentSettings
) -> Iterator[Cover]:
    entries = [
        ReservedInstances(m.terms.instance_type, region, m.free, m.terms.zone) for m in meters
    ]
    for decision in decide_reserved(entries, settings):
        if decision.wanted:
            where = f" in {decision.zone}" if decision.zone else ""
            note = f"reserved {decision.instance_type}{where}, {decision.count} free"
            yield Cover(decision, None, note)


def _plan_covers(
    meters: Sequence[_Plan], region: str, settings: CommitmentSettings
) -> Iterator[Cover]:
    by_family = group_by(meters, lambda meter: meter.terms.family)
    for family in sorted(by_family, key=lambda name: (not name, name)):
        group = by_family[family]
        if family:
            decisions = decide_ec2_instance([_savings_plan(m, region) for m in group], settings)
        else:
            decisions = [decide_compute([_savings_plan(m, "") for m in group], settings)]
        for decision in decisions:
            if decision.outcome is OverlayReason.CAPACITY_AVAILABLE:
                yield Cover(decision, _remaining_on_demand(group), _format_note(decision))


def _savings_plan(meter: _Plan, region: str) -> SavingsPlan:
    return SavingsPlan(meter.terms.commitment, meter.remaining, meter.terms.family, region)


def _remaining_on_demand(group: Sequence[_Plan]) -> float:
    """Return the unused amount at on-demand prices; an overused plan reduces the others."""
    return max(sum(meter.remaining / meter.rate for meter in group), 0.0)


def _format_note(decision: OverlayDecision) -> str:
    named = "compute savings plan"
    if decision.kind is CommitmentKind.EC2_INSTANCE:
        named = f"{decision.family} savings plan"
    return f"{named}, {decision.utilization_percent:.0f}% used"


def with_commitments(catalog: Catalog, covers: Sequence[Cover]) -> Catalog:
    """Return the catalog with commitments applied; the first that fits an offering counts.

    They match offerings as a NodeOverlay with the same requirements would, and they never add up:
    an offering is paid for once.
    """
    pool = OverlayPool("", {}, catalog)
    base = catalog.columns.offerings.price
    prices: dict[int, float] = {}
    notes: dict[int, str] = {}
    for cover in covers:
        for position in selected_offerings(pool, requirements_of(cover.decision.requirements)):
            if position not in prices:
                prices[position] = cover.price(base[position])
                notes[position] = cover.note
    if not prices:
        return catalog
    return with_overlaid_values(catalog, prices, {}, paid=notes)
