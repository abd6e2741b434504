"""Reads the user's price book from our config: rules of discounts and fixed prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reconciler.desired.policy import names_in, read_entries, text_in
from reconciler.model.labels import ON_DEMAND, SPOT
from reconciler.model.pricebook import PriceRule

_KEYS: Final = (
    "families", "instanceTypes", "regions", "capacityTypes", "discountPercent", "price", "note",
)  # fmt: skip


def discount(value: Any) -> float:
    """Return a discount in percent; a negative one makes dearer, a whole one is none.

    Raises:
        ValueError: it is no such number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not -1000 <= number < 100:
        raise ValueError(f"{value!r} must be a percentage from -1000 to below 100")
    return number


def price_rules(value: Any) -> tuple[PriceRule, ...]:
    """Return the rules of the price book, in order.

    Raises:
        ValueError: an entry cannot be read.
    """
    return tuple(read_entries(value, _KEYS, _rule))


def _rule(entry: Mapping[str, Any]) -> PriceRule:
    if ("price" in entry) is ("discountPercent" in entry):
        raise ValueError("price: set either price or discountPercent")
    kinds = names_in(entry, "capacityTypes", (ON_DEMAND, SPOT))
    if "price" in entry and not kinds:
        raise ValueError("capacityTypes: required with a price (on-demand, spot)")
    share = discount(entry["discountPercent"]) if "discountPercent" in entry else None
    return PriceRule(
        families=names_in(entry, "families"),
        instance_types=names_in(entry, "instanceTypes"),
        regions=names_in(entry, "regions"),
        capacity_types=kinds,
        discount_percent=share,
        price=_price(entry["price"]) if "price" in entry else None,
        note=text_in(entry, "note"),
    )


def _price(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise ValueError(f"price: {value!r} must be a price in USD an hour above 0")
    return float(value)
