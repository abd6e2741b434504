"""What a unit of each lot is worth in dollars: the guide of the greedy packing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reconciler.placement.packing.covering import Load, kinds_of, solve
from reconciler.placement.packing.goal import Goal
from reconciler.placement.packing.lots import Lot
from reconciler.placement.packing.market import Market
from reconciler.placement.rules import RuleKind
from reconciler.placement.template import Template

_LOTS_MAX = 48
"""With more lots the program would cost more than it brings."""
_ROUNDS = 12
_LEAST_SHARE = 0.02


def set_shares(lots: Iterable[Lot], market: Market) -> None:
    """Value each unit by its share of the cheapest node that it could fill alone."""
    for lot in lots:
        lot.value = min(
            market.least_cost(shelf.template, shelf.space, lot.requests)
            for shelves in lot.shelves
            for shelf in shelves
        )


def set_duals(
    lots: Sequence[Lot], market: Market, templates: Sequence[Template], goal: Goal
) -> bool:
    """Value each unit by its dual price in the relaxation; say whether that was done.

    A unit of which there is plenty of room beside others is worth nothing there; it keeps a small
    part of its share, so that it is still packed by size.
    """
    if len(lots) > _LOTS_MAX:
        return False
    loads = [_load(lot, market, templates) for lot in lots]
    dual = solve(loads, kinds_of(loads, templates, goal, market.resources), _ROUNDS)
    for lot, value in zip(lots, dual.values, strict=True):
        lot.value = max(value, _LEAST_SHARE * lot.value)
        lot.floor = value
    return True


def _load(lot: Lot, market: Market, templates: Iterable[Template]) -> Load:
    allowed = {}
    for template in templates:
        space = lot.joined(template.space) if lot.suits(template) else None
        allowed[template.name] = [space] if space is not None else []
    most = 1 if lot.ports else lot.units
    for group, selects_itself in lot.by_host:
        if selects_itself and group.kind is RuleKind.SPREAD:
            most = min(most, group.rule.max_skew)
        elif selects_itself and group.kind is RuleKind.ANTI_AFFINITY:
            most = 1
    return Load(lot.units, market.amounts(lot.requests), most, allowed)
