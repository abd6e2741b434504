"""Reads what the user pays from our config: the price book, savings plans, reserved instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reconciler.desired.settings.policy import get_names, get_text, parse_end_time, read_entries
from reconciler.model.billing import (
    COMPUTE,
    EC2_INSTANCE,
    PriceRule,
    ReservedInstancesTerms,
    SavingsPlanTerms,
)
from reconciler.model.json import JsonObject
from reconciler.model.karpenter.labels import ON_DEMAND, SPOT
from reconciler.model.text.quoting import quote_value

_USE: Final = ("usedElsewhere", "utilizationPercent")
_PLAN_KEYS: Final = (
    "type",
    "commitment",
    "family",
    "region",
    "discountPercent",
    *_USE,
    "until",
    "note",
)
_RESERVED_KEYS: Final = ("instanceType", "count", "region", "zone", *_USE, "until", "note")

_RULE_KEYS: Final = (
    "families",
    "instanceTypes",
    "regions",
    "capacityTypes",
    "discountPercent",
    "price",
    "note",
)


def read_price_rules(value: object) -> tuple[PriceRule, ...]:
    """Return the rules of the price book."""
    return tuple(read_entries(value, _RULE_KEYS, _read_rule))


def read_savings_plans(value: object) -> tuple[SavingsPlanTerms, ...]:
    """Return the savings plans."""
    return tuple(read_entries(value, _PLAN_KEYS, _read_plan))


def read_reserved_instances(value: object) -> tuple[ReservedInstancesTerms, ...]:
    """Return the reserved instances."""
    return tuple(read_entries(value, _RESERVED_KEYS, _read_reserved))


def _read_plan(entry: Mapping[str, object]) -> SavingsPlanTerms:
    kind, family = get_text(entry, "type"), get_text(entry, "family")
    if kind not in (COMPUTE, EC2_INSTANCE):
        raise ValueError(
            f"type: {quote_value(kind)} is not allowed (one of {COMPUTE}, {EC2_INSTANCE})"
        )
    if bool(family) is not (kind == EC2_INSTANCE):
        raise ValueError(f"family: required with type {EC2_INSTANCE}, and not allowed otherwise")
    commitment = _read_number(entry, "commitment")
    if not commitment:
        raise ValueError("commitment: must be an amount in USD an hour above 0")
    return SavingsPlanTerms(
        type=kind,
        commitment=commitment,
        family=family,
        region=get_text(entry, "region"),
        discount_percent=_read_number(entry, "discountPercent", 99.0) or 0.0,
        used_elsewhere=_read_number(entry, "usedElsewhere"),
        utilization_percent=_read_utilization(entry),
        until=parse_end_time(entry["until"]) if "until" in entry else None,
        note=get_text(entry, "note"),
    )


def _read_reserved(entry: JsonObject) -> ReservedInstancesTerms:
    instance_type = get_text(entry, "instanceType")
    if "." not in instance_type:
        raise ValueError(
            f"instanceType: {quote_value(instance_type)} is not an instance type "
            "(example: m5.large)"
        )
    count = _read_integer(entry, "count")
    if not count:
        raise ValueError("count: must be an integer of at least 1")
    return ReservedInstancesTerms(
        instance_type=instance_type,
        count=count,
        region=get_text(entry, "region"),
        zone=get_text(entry, "zone"),
        used_elsewhere=_read_integer(entry, "usedElsewhere"),
        utilization_percent=_read_utilization(entry),
        until=parse_end_time(entry["until"]) if "until" in entry else None,
        note=get_text(entry, "note"),
    )


def _read_utilization(entry: Mapping[str, object]) -> float | None:
    """Return the utilization in percent, which replaces the use by others."""
    stated, billed = _USE
    if stated in entry and billed in entry:
        raise ValueError(f"{billed}: cannot be set together with {stated}")
    return _read_number(entry, billed, 100.0)


def _read_number(entry: JsonObject, key: str, most: float = 1e9) -> float | None:
    if key not in entry:
        return None
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ValueError(f"{key}: {quote_value(value)} must be a number from 0 to {most:g}")
    return float(value)


def _read_integer(entry: JsonObject, key: str) -> int | None:
    number = _read_number(entry, key)
    if number is not None and number != int(number):
        raise ValueError(f"{key}: {quote_value(entry[key])} must be an integer")
    return None if number is None else int(number)


def read_discount(value: Any) -> float:
    """Return a discount in percent; a negative one is a surcharge, and 100 is rejected.

    Raises:
        ValueError: it is not such a number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not -1000 <= number < 100:
        raise ValueError(f"{quote_value(value)} must be a percentage from -1000 to below 100")
    return number


def _read_rule(entry: Mapping[str, object]) -> PriceRule:
    if ("price" in entry) is ("discountPercent" in entry):
        raise ValueError("price: set either price or discountPercent")
    kinds = get_names(entry, "capacityTypes", (ON_DEMAND, SPOT))
    if "price" in entry and not kinds:
        raise ValueError("capacityTypes: required with a price (on-demand, spot)")
    share = read_discount(entry["discountPercent"]) if "discountPercent" in entry else None
    return PriceRule(
        families=get_names(entry, "families"),
        instance_types=get_names(entry, "instanceTypes"),
        regions=get_names(entry, "regions"),
        capacity_types=kinds,
        discount_percent=share,
        price=_read_price(entry["price"]) if "price" in entry else None,
        note=get_text(entry, "note"),
    )


def _read_price(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise ValueError(f"price: {quote_value(value)} must be a price in USD an hour above 0")
    return float(value)
