"""Lists in ``reconciler.yaml`` that are longer than any fleet needs, so that a plan never ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.model.billing import PriceBook, PriceRule
from reconciler.source.schema import load_schema
from tests.hostile.threats import Threat, attack
from tests.hostile.turns import soon


def _unlimited(name: str, node: dict[str, Any]) -> Iterator[str]:
    """Yield the lists, and the mappings with keys of the user, that have no limit."""
    if node.get("type") == "array" and "maxItems" not in node:
        yield name
    is_open = isinstance(node.get("additionalProperties"), dict)
    if is_open and "maxProperties" not in node:
        yield name
    below = {**node.get("properties", {}), **node.get("$defs", {})}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            below[key] = node[key]
    for key, child in below.items():
        yield from _unlimited(f"{name}.{key}", child)


@attack(Threat.EXHAUSTION, "a list or a mapping of settings that is longer than any fleet needs")
def test_each_list_of_settings_has_a_limit() -> None:
    """Guard: ``maxItems`` and ``maxProperties`` in the schema, for each list and mapping."""
    assert list(_unlimited("", dict(load_schema("reconciler.v1")))) == []


@attack(Threat.EXHAUSTION, "windows, rules of prices and options of NodePools by the thousands")
@pytest.mark.parametrize(
    "text",
    [
        "disruption:\n  windows:\n" + "  - {schedule: 0 0 29 2 *, duration: 1h}\n" * 8_000,
        "priceBook:\n  rules:\n" + "  - {families: [m5], discountPercent: 5}\n" * 8_000,
        "nodePools:\n" + "".join(f"  p{n}: {{packing: default}}\n" for n in range(8_000)),
    ],
    ids=["windows", "rules", "pools"],
)
def test_a_list_of_settings_beyond_its_limit_is_a_finding(text: str) -> None:
    file = SourceFile("reconciler.yaml", text.encode())
    with soon(1200):
        found = read_fleet([file], allow_empty=True)[1]
    assert "too-many" in {finding.code for finding in found}


@attack(Threat.EXHAUSTION, "as many rules of prices as are allowed, each with many types")
def test_a_rule_with_many_types_is_not_searched() -> None:
    """Guard: the sets in ``PriceBook._named``."""
    types = tuple(f"m{n}.large" for n in range(1_000))
    book = PriceBook(tuple(PriceRule(instance_types=types, price=1.0) for _ in range(200)))
    with soon(60):
        for number in range(20_000):
            assert book.price(f"c{number % 1_000}.large", "us-east-1", "spot", 2.0) == 2.0
