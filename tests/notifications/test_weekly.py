"""A report adds up the recorded plans and commands of its period, and nothing outside it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler._resources import resource_path
from reconciler.adapters.simulated.memory import MemoryShelf, MemoryStateStore
from reconciler.assembly.assembly import usage_writer
from reconciler.inspection.weekly import render_text
from reconciler.model.decision.waiting import Blocker
from reconciler.notifications.weekly import FleetReport, report_of, text_of
from reconciler.plan.value.costs import Cost
from reconciler.plan.value.plan import Plan, Revision, to_json
from reconciler.ports.cluster import FleetUsage
from reconciler.ports.passes import PassPeriod, PassTimes, RecordedPasses, read_passes
from reconciler.ports.state import CommandPhase, RecordedPlan, RunningCommand
from tests.examples import examples

NOW = datetime(2026, 3, 9, 9, 0, tzinfo=UTC)
WEEK = timedelta(days=7)
UNRECORDED = PassTimes()
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


def a_report(
    store: MemoryStateStore, plan: Plan | None = None, passes: PassTimes = UNRECORDED
) -> FleetReport:
    return report_of("shop", store, passes, plan, NOW - WEEK, NOW)


def passes_at(*hours: tuple[float, float]) -> PassTimes:
    """Return passes of every minute in periods, from hours ago until hours ago."""
    return PassTimes(tuple(PassPeriod(ago(first), ago(last)) for first, last in hours))


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
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9)), max_size=8, unique_by=min),
    st.lists(st.integers(0, 400), unique=True, max_size=8),
)
def test_two_parts_of_a_period_cost_what_the_period_costs(
    costs: list[tuple[int, int]], passes: list[int]
) -> None:
    store = a_store(*((float(hours), float(cost)) for hours, cost in costs))
    times = sorted(passes, reverse=True)
    ran = passes_at(*zip(times[::2], times[1::2], strict=False))
    parts = [
        report_of("shop", store, ran, None, since, until).spent or 0.0
        for since, until in ((ago(168), ago(50)), (ago(50), NOW))
    ]
    assert sum(parts) == pytest.approx(a_report(store, passes=ran).spent or 0.0)


def test_a_time_without_a_pass_is_unknown_and_not_spent() -> None:
    passes = passes_at((300, 100), (52, 40))
    report = a_report(a_store((300, 2.0), (50, 1.0)), a_plan(ago(50), 1.0), passes)
    assert report.spent == pytest.approx(2.0 * 68 + 2.0 * 2 + 1.0 * 10)
    assert [(p.since, p.until) for p in report.unobserved] == [(ago(100), ago(52)), (ago(40), NOW)]
    assert report.per_day == pytest.approx(150 / (80 / 24))
    assert report.last_pass == ago(40)
    said = text_of(report)
    assert "the fleet has cost $150.00 ($45.00/day). What it cost in 3d16h without a pass" in said
    assert "At the last pass, 2026-03-07 17:00 UTC, the fleet cost $730/month" in said
    shown = render_text(report)
    assert "$150.00 ($45.00/day)" in shown
    assert "3d16h without a pass, not included (2026-03-05 05:00 UTC to" in shown
    assert "$730/month at the cost of 2026-03-07 17:00 UTC, the last pass" in shown
    schema = json.loads(Path(resource_path("schemas", "report.v1.json")).read_text())
    jsonschema.validate(json.loads(msgspec.json.encode(report)), schema)


def test_a_period_without_any_pass_has_no_cost() -> None:
    report = a_report(a_store((300, 2.0)), passes=passes_at((300, 200)))
    assert (report.spent, report.known_since, report.per_day) == (None, None, 0.0)
    assert "Spent  unknown: no pass ran in this period" in render_text(report)


def test_passes_divide_a_period_only_after_an_hour() -> None:
    shelf, hour = MemoryShelf(), timedelta(hours=1)
    times = [NOW, NOW + hour / 60, NOW + hour, NOW + 1.5 * hour, NOW + 3 * hour]
    for at in times:
        RecordedPasses(shelf).record(at)  # of several processes
    RecordedPasses(shelf).record(NOW + hour)  # of a clock that is behind
    expected = (PassPeriod(NOW, times[3]), PassPeriod(times[4], times[4]))
    assert read_passes(shelf).periods == expected
    gaps = list(read_passes(shelf).gaps(NOW, NOW + 5 * hour))
    assert gaps == [PassPeriod(times[3], times[4]), PassPeriod(times[4], NOW + 5 * hour)]


def test_the_time_of_a_pass_is_recorded_with_what_it_observed() -> None:
    shelf = MemoryShelf()
    usage_writer(shelf)(FleetUsage(NOW, {}))
    assert read_passes(shelf).periods == (PassPeriod(NOW, NOW),)


def test_quiet_passes_are_recorded_every_five_minutes() -> None:
    shelf = MemoryShelf()
    passes = RecordedPasses(shelf)
    for minute in range(8):
        passes.record(NOW + timedelta(minutes=minute))
    assert read_passes(shelf).periods == (PassPeriod(NOW, NOW + timedelta(minutes=5)),)


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
    assert (
        "The fleet costs $1,460/month now, and $1,095/month once its plan is applied."
        in text_of(report)
    )
