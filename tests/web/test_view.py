"""What the dashboard computes: labels, the curve of the cost, and what comes next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from reconciler.model.decision.waiting import DeferredClaim, WaitsFor
from reconciler.plan.rest.steadystate import LaterConsolidation
from reconciler.ports.progress import EventKind
from reconciler.web.dashboard import Dashboard
from reconciler.web.health import DaemonHealth
from reconciler.web.labels import label_of
from reconciler.web.upcoming import UpcomingStep, upcoming_steps
from reconciler.web.view import HEIGHT, WIDTH, CostSample, cost_curve
from tests.plan.builders import a_plan

NOW = datetime(2026, 1, 3, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("code", "label"),
    [
        ("Underutilized", "Consolidation"),
        ("Drifted", "Drift"),
        ("CommandStarted", "Command started"),
        ("NodeClaimCreated", "NodeClaim created"),
        ("delete-node", "Delete node"),
        ("provision", "Launch"),
        ("a sentence", "a sentence"),
        ("größe", "größe"),
        ("", ""),
    ],
)
def test_codes_are_shown_as_words(code: str, label: str) -> None:
    assert label_of(code) == label


def test_no_event_is_labelled_with_its_code() -> None:
    labels = [label_of(kind.value) for kind in EventKind]
    assert not [text for text in labels if any(letter.isupper() for letter in text[9:])]
    assert len(set(labels)) == len(labels)


def test_the_cost_is_drawn_as_steps() -> None:
    curve = cost_curve([CostSample(NOW, 1.0), CostSample(NOW + HOUR, 2.0)], NOW + 4 * HOUR)
    assert curve is not None
    half = HEIGHT - (HEIGHT - 4) // 2
    assert curve.points == f"0,{half} {WIDTH // 4},{half} {WIDTH // 4},4 {WIDTH},4"
    assert (curve.low, curve.high) == (1.0, 2.0)


@pytest.mark.parametrize("samples", [[], [CostSample(NOW, 1.0)], [CostSample(NOW - HOUR, 0.0)]])
def test_there_is_no_curve_of_a_moment_or_of_nothing(samples: list[CostSample]) -> None:
    assert cost_curve(samples, NOW) is None


def test_a_dashboard_keeps_a_limited_number_of_changes_and_always_the_last() -> None:
    dashboard = Dashboard("web", DaemonHealth())
    for number in range(5_000):
        dashboard._record_cost(CostSample(NOW + number * HOUR, float(number)))
    assert len(dashboard._samples) <= 1_000
    assert dashboard._samples[-1].per_hour == 4_999.0


def test_what_comes_next_is_counted_by_time_and_reason() -> None:
    waits = [
        DeferredClaim(
            node_claim=f"web-{number}",
            node_pool="web",
            reason=reason,
            waits_for="Budget",
            not_before=NOW + after * HOUR if after else None,
            message="",
        )
        for number, (reason, after) in enumerate(
            [("Drifted", 2), ("Drifted", 2), ("Empty", 1), ("Drifted", 0), ("Drifted", -1)]
        )
    ]
    steps = upcoming_steps(a_plan(at=NOW, deferred=tuple(waits)), (), (), NOW)
    assert [(s.reason, s.nodes, s.wait) for s in steps] == [
        ("Empty", 1, HOUR), ("Drifted", 2, 2 * HOUR),
    ]  # fmt: skip


def test_what_consolidation_does_next_has_an_amount_once_it_is_known() -> None:
    waiting = DeferredClaim(
        node_claim="web-1", node_pool="web", reason="Empty", waits_for=WaitsFor.CONSOLIDATE_AFTER,
        not_before=NOW + HOUR, message="",
    )  # fmt: skip
    plan = a_plan(at=NOW, deferred=(waiting,))
    (unknown,) = upcoming_steps(plan, (), (), NOW)
    assert unknown == UpcomingStep(NOW + HOUR, "Empty", 1, HOUR, None)
    later = (LaterConsolidation(NOW + 2 * HOUR, "Underutilized", 2, 0.25),)
    assert upcoming_steps(plan, (), (), NOW, later) == (
        UpcomingStep(NOW + 2 * HOUR, "Underutilized", 2, 2 * HOUR, 0.25),
    )
    assert upcoming_steps(plan, (), (), NOW, ()) == (), "nothing is saved"
    soon = (NOW + timedelta(minutes=4, seconds=s) for s in (0, 20, 60))
    twice = [LaterConsolidation(at, "Underutilized", 2, 0.25) for at in soon]
    assert [(s.nodes, s.saves) for s in upcoming_steps(plan, (), (), NOW, twice)] == [
        (4, 0.5), (2, 0.25),
    ], "those of the same minute are one step"  # fmt: skip
