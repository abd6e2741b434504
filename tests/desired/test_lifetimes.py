"""Durations that are valid and defeat their own purpose are reported."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.desired.rules.lifetimes import check_lifetimes
from tests.desired.examples import a_class, a_file, a_pool
from tests.desired.test_fleet import found


def a_pool_living(
    life: str | None, grace: str | None, delay: str | None, **more: Any
) -> dict[str, Any]:
    pool = a_pool(**more)
    template = pool["spec"]["template"]["spec"]
    for fields, name, value in (
        (template, "expireAfter", life),
        (template, "terminationGracePeriod", grace),
        (pool["spec"]["disruption"], "consolidateAfter", delay),
    ):
        if value is not None:
            fields[name] = value
    return pool


@pytest.mark.parametrize(
    ("life", "grace", "delay", "codes"),
    [
        (None, None, None, []),
        ("720h", "1h", "30s", []),
        ("Never", None, "Never", []),
        ("1h", "1m", "59m", []),
        ("59m", None, None, ["short-expiry"]),
        ("0s", None, None, ["short-expiry", "idle-consolidation"]),
        (None, "59s", None, ["short-grace-period"]),
        (None, "0s", None, ["short-grace-period"]),
        ("24h", None, "24h", ["idle-consolidation"]),
        (None, None, "720h", ["idle-consolidation"]),
        ("Never", None, "8760h", []),
    ],
)
def test_a_duration_that_defeats_its_purpose_is_reported(
    life: str | None, grace: str | None, delay: str | None, codes: list[str]
) -> None:
    pool = a_pool_living(life, grace, delay)
    assert [finding.code for finding in check_lifetimes(pool)] == codes


def test_nodes_of_a_static_pool_are_not_consolidated_anyway() -> None:
    pool = a_pool_living(None, None, "720h", replicas=2)
    assert [finding.code for finding in check_lifetimes(pool)] == []


def test_an_invalid_duration_is_reported_once_and_a_short_one_is_a_warning() -> None:
    invalid = a_pool_living("soon", "5m", None)
    assert [severity for severity, _, _ in found(a_file(invalid, a_class()))] == ["error"]
    short = a_pool_living("5m", None, None)
    assert ("warning", "short-expiry", "spec.template.spec.expireAfter") in found(
        a_file(short, a_class())
    )


@pytest.mark.parametrize(
    ("schedule", "duration", "is_closed"),
    [
        ("@daily", "24h", True),
        ("@daily", "23h", False),
        ("@hourly", "60m", True),
        ("*/15 * * * *", "10m", False),
        ("0 0 * * 1,4", "96h", True),
        ("0 0 * * 1,4", "72h", False),
        ("@monthly", "800h", False),  # not every week is the same
    ],
)
def test_a_window_that_reaches_the_next_one_closes_a_pool(
    schedule: str, duration: str, is_closed: bool
) -> None:
    budget = {"nodes": "0", "schedule": schedule, "duration": duration}
    pool = a_pool(disruption={"consolidateAfter": "0s", "budgets": [budget]})
    codes = [code for _, code, _ in found(a_file(pool, a_class()))]
    assert ("never-disrupts" in codes) is is_closed
