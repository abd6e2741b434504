"""A report adds up the recorded plans and commands of its period, and nothing outside it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.adapters.simulated.memory import MemoryStateStore
from reconciler.model.decision.waiting import Blocker
from reconciler.notifications.weekly import FleetReport, report_of, text_of
from reconciler.plan.value.costs import Cost
from reconciler.plan.value.plan import Plan, Revision, to_json
from reconciler.ports.state import CommandPhase, RecordedPlan, RunningCommand
from tests.examples import examples

NOW = datetime(2026, 3, 9, 9, 0, tzinfo=UTC)
WEEK = timedelta(days=7)
DONE = CommandPhase.DONE


def ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def a_plan(at: datetime, before: float, after: float = 0.0) -> Plan:
    return Plan(
        fleet="shop", at=at, serial=1, revision=Revision(), cost=Cost(before=before, after=after)
    )


def a_store(*costs: tuple[float, float]) -> MemoryStateStore:
    """Return records of plans, from hours ago and cost in USD an hour."""
    store = MemoryStateStore()
    for hours, before in costs:
        plan = a_plan(ago(hours), before)
        store.put_plan(RecordedPlan(f"at {hours}", "", plan.at, 1, to_json(plan)))
    return store


def a_command(
    name: str, hours: float, reason: str, savings: float | None = None, **more: object
) -> RunningCommand:
    command = RunningCommand(
        id=name, reason=reason, decision="replace", node_claims=(f"{name}-node",), replacements=(),
        phase=DONE, started_at=ago(hours), savings=savings, node_pools=("web",),
    )  # fmt: skip
    return replace(command, **more)


def a_report(store: MemoryStateStore, plan: Plan | None = None) -> FleetReport:
    return report_of("shop", store, plan, NOW - WEEK, NOW)


@pytest.mark.parametrize(
    ("costs", "spent", "known_hours"),
    [
        ([(300, 2.0)], 2.0 * 168, 168),
        ([(300, 2.0), (100, 1.0)], 2.0 * 68 + 100, 168),
        ([(10, 3.0), (4, 0.5)], 3.0 * 6 + 0.5 * 4, 10),
        ([(300, 9.0), (200, 2.0), (168, 1.0)], 168, 168),
    ],
    ids=["one plan", "a change", "recorded late", "earlier plans"],
)
def test_the_cost_of_a_plan_holds_until_the_next_one(
    costs: list[tuple[float, float]], spent: float, known_hours: float
) -> None:
    report = a_report(a_store(*costs))
    assert report.spent == pytest.approx(spent)
    assert report.known_since == ago(known_hours)
    assert report.per_day == pytest.approx(spent / known_hours * 24)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9)), max_size=8, unique_by=min))
def test_two_parts_of_a_period_cost_what_the_period_costs(costs: list[tuple[int, int]]) -> None:
    store = a_store(*((float(hours), float(cost)) for hours, cost in costs))
    parts = [
        report_of("shop", store, None, since, until).spent or 0.0
        for since, until in ((ago(168), ago(50)), (ago(50), NOW))
    ]
    assert sum(parts) == pytest.approx(a_report(store).spent or 0.0)


def test_without_a_plan_the_cost_is_unknown_and_not_zero() -> None:
    report = a_report(MemoryStateStore())
    assert (report.spent, report.known_since, report.forecast) == (None, None, None)
    assert "no cost is recorded" in text_of(report)


def test_commands_are_counted_by_rule_with_what_they_save() -> None:
    store = a_store((300, 2.0))
    for command in (
        a_command("a", 5, "Underutilized", 0.2),
        a_command(
            "b", 6, "Underutilized", 0.1, node_claims=("b1", "b2"), node_pools=("web", "web")
        ),
        a_command("c", 7, "Drifted"),
        a_command("d", 8, "Interrupted"),
        a_command("e", 9, "Empty", 0.4, phase=CommandPhase.ROLLED_BACK),
        a_command("f", 200, "Empty", 0.8),
    ):
        store.put_command(command)
    report = a_report(store)
    assert [(r.reason, r.commands, r.nodes) for r in report.rules] == [
        ("Underutilized", 2, 3), ("Drifted", 1, 1), ("Interrupted", 1, 1),
    ]  # fmt: skip
    assert report.rules[0].saved_per_month == pytest.approx(0.3 * 730)
    assert report.rules[1].saved_per_month is None
    assert (report.rolled_back, report.interrupted) == (1, {"web": 1})


def test_advice_names_the_most_expensive_blockers_first() -> None:
    plan = replace(
        a_plan(NOW, 2.0, 1.5),
        blockers=(
            Blocker(kind="PodDisruptionBudget", name="shop/a", nodes=("n1",), forgone=0.1),
            Blocker(kind="PodDisruptionBudget", name="shop/b", nodes=("n2",), forgone=0.3),
            Blocker(kind="Pod", name="shop/c", nodes=("n3",)),
        ),
    )
    report = a_report(a_store((1, 2.0)), plan)
    assert [blocker.name for blocker in report.blockers] == ["shop/b", "shop/a", "shop/c"]
    saving = "which would save $219/month"
    assert report.advice[0] == (
        f"PodDisruptionBudget shop/b prevents the consolidation of 1 node, {saving}"
    )
    assert len(report.advice) == 3
    assert report.forecast is not None
    assert (report.forecast.per_month, report.forecast.planned_per_month) == (1460.0, 1095.0)
    assert "The fleet costs $1,460 a month now, and $1,095 once its plan is applied." in text_of(
        report
    )
