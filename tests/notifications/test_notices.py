"""What is worth telling people: rollouts, halts, failures, unschedulable pods, savings."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from reconciler.model.decision.changes import DriftedClaim
from reconciler.model.notification import NoticeKind
from reconciler.notifications.notices import (
    Notice,
    NoticeMemory,
    PassFacts,
    notices_of_event,
    notices_of_pass,
)
from reconciler.notifications.weekly import FleetReport
from reconciler.plan.value.nodes import Reason, UnschedulablePod
from reconciler.plan.value.plan import Plan
from reconciler.ports.progress import EventKind, Progress
from reconciler.ports.state import CommandPhase, RunningCommand
from tests.cli.recorded_fleet import the_plan

START = datetime(2026, 3, 3, 12, 0, tzinfo=UTC)  # a Tuesday
NOTHING = PassFacts(
    START, "shop", "4f2c9e1a", the_plan(), (),
    lambda since: FleetReport(fleet="shop", since=since, until=START),
)  # fmt: skip
POD = UnschedulablePod(pod="shop/api-0", reasons=(Reason(code="x", message="no zone fits"),))


def a_plan(**parts: object) -> Plan:
    empty: dict[str, object] = {"drift": (), "commands": (), "unschedulable": ()}
    return msgspec.structs.replace(the_plan(), **{**empty, **parts})


def drifted(*names: str, pool: str = "web") -> tuple[DriftedClaim, ...]:
    return tuple(
        DriftedClaim(node_claim=n, node_pool=pool, reason="NodePoolDrifted") for n in names
    )


def running(
    identity: str, *claims: str, pool: str = "web", reason: str = "Drifted"
) -> RunningCommand:
    return RunningCommand(
        id=identity, reason=reason, decision="replace", node_claims=claims, replacements=(),
        phase=CommandPhase.WAITING, started_at=START, node_pools=(pool,) * len(claims),
    )  # fmt: skip


def after_passes(
    *passes: PassFacts, memory: NoticeMemory | None = None
) -> tuple[NoticeMemory, list[Notice]]:
    """Tell pass after pass, with the memory written and read in between as in a restart."""
    memory, notices = memory or NoticeMemory(), []
    for facts in passes:
        memory = msgspec.json.decode(msgspec.json.encode(memory), type=NoticeMemory)
        memory, found = notices_of_pass(memory, facts)
        notices += found
    return memory, notices


def facts(minutes: float = 0, plan: Plan | None = None, *commands: RunningCommand) -> PassFacts:
    return replace(
        NOTHING, at=START + timedelta(minutes=minutes), plan=plan or a_plan(), running=commands
    )


def test_a_rollout_is_announced_at_its_start_and_end() -> None:
    _, notices = after_passes(
        facts(0, a_plan(drift=drifted("a", "b", "c"))),
        facts(1, a_plan(drift=drifted("a", "b", "c")), running("1", "a")),
        facts(2, a_plan(drift=drifted("b", "c")), running("1", "a")),
        facts(10, a_plan(drift=drifted("b", "c"))),  # between two waves
        facts(20, a_plan(), running("2", "b", "c")),
        facts(43, a_plan()),
        facts(44, a_plan()),
    )
    assert [(n.kind, n.node_pool, n.text) for n in notices] == [
        (NoticeKind.ROLLOUT_STARTED, "web", "3 nodes to replace."),
        (NoticeKind.ROLLOUT_FINISHED, "web", "3 nodes replaced in 42m."),
    ]
    assert len({notice.id for notice in notices}) == 2


def test_drift_blocked_by_budgets_is_not_a_rollout() -> None:
    assert after_passes(facts(0, a_plan(drift=drifted("a"))), facts(9, a_plan()))[1] == []


def test_consolidation_is_not_a_rollout() -> None:
    assert (
        after_passes(facts(0, a_plan(), running("1", "a", reason="Underutilized")), facts(9))[1]
        == []
    )


def test_rollouts_of_two_node_pools_are_announced_separately() -> None:
    _, notices = after_passes(
        facts(0, a_plan(), running("1", "a"), running("2", "b", pool="batch")),
        facts(5, a_plan(), running("2", "b", pool="batch")),
    )
    assert [(n.kind, n.node_pool) for n in notices] == [
        (NoticeKind.ROLLOUT_STARTED, "batch"),
        (NoticeKind.ROLLOUT_STARTED, "web"),
        (NoticeKind.ROLLOUT_FINISHED, "web"),
    ]


def test_lasting_unschedulable_pods_are_announced_and_their_end_too() -> None:
    waiting = a_plan(unschedulable=(POD,))
    _, notices = after_passes(
        *(facts(minute, waiting) for minute in (0, 4, 5, 6, 200)), facts(201), facts(202)
    )
    assert [(n.kind, n.at) for n in notices] == [
        (NoticeKind.PODS_UNSCHEDULABLE, START + timedelta(minutes=5)),
        (NoticeKind.PODS_SCHEDULABLE, START + timedelta(minutes=201)),
    ]
    assert notices[0].title == "1 pod cannot be scheduled"
    assert notices[0].text == "shop/api-0. no zone fits"


def test_briefly_pending_pods_are_not_announced() -> None:
    waiting = a_plan(unschedulable=(POD,))
    assert after_passes(facts(0, waiting), facts(4, waiting), facts(5), facts(6, waiting))[1] == []


def test_a_lasting_problem_is_announced_again_after_six_hours() -> None:
    waiting = a_plan(unschedulable=(POD,))
    notices = after_passes(*(facts(minute, waiting) for minute in range(0, 13 * 60, 7)))[1]
    assert [round((n.at - START) / timedelta(hours=6), 1) for n in notices] == [0.0, 1.0, 2.0]


EVENT = Progress(START, EventKind.LAUNCH_FAILED, "no capacity", node_pool="web")


@pytest.mark.parametrize(
    ("event", "kind", "title"),
    [
        (EVENT, NoticeKind.FAILED, "Launch failed (NodePool web)"),
        (
            Progress(START, EventKind.ROLLOUT_STOPPED, "two commands failed", node_pool="web"),
            NoticeKind.ROLLOUT_HALTED,
            "Rollout halted (NodePool web)",
        ),
        (Progress(START, EventKind.INVALID_REVISION, "pools.yaml:3"), NoticeKind.FAILED,
         "Invalid revision"),
    ],
    ids=["launch", "halt", "revision"],
)  # fmt: skip
def test_failures_are_announced_with_the_text_of_the_log(
    event: Progress, kind: NoticeKind, title: str
) -> None:
    _, (notice,) = notices_of_event(NoticeMemory(), event, "shop", "4f2c9e1a")
    assert (notice.kind, notice.title, notice.text) == (kind, title, event.message)


def test_a_failure_in_every_pass_is_announced_once_in_six_hours() -> None:
    memory, times = NoticeMemory(), []
    for minute in range(0, 13 * 60, 5):
        event = replace(EVENT, at=START + timedelta(minutes=minute))
        memory, notices = notices_of_event(memory, event, "shop", "")
        times += [(n.at - START) / timedelta(hours=1) for n in notices]
    assert times == [0.0, 6.0, 12.0]
    other = replace(EVENT, node_pool="batch")
    assert notices_of_event(memory, other, "shop", "")[1]


def test_a_clock_that_was_set_back_does_not_silence_a_problem() -> None:
    memory, _ = notices_of_event(NoticeMemory(), EVENT, "shop", "")
    earlier = replace(EVENT, at=START - timedelta(days=3))
    assert notices_of_event(memory, earlier, "shop", "")[1]


def test_unimportant_events_are_not_announced() -> None:
    event = Progress(START, EventKind.LAUNCHED, "i-1")
    assert notices_of_event(NoticeMemory(), event, "shop", "") == (NoticeMemory(), [])


def test_the_week_is_reported_on_monday() -> None:
    day, begins = 24 * 60, []

    def report_since(since: datetime) -> FleetReport:
        begins.append(since)
        return FleetReport(fleet="shop", since=since, until=since, spent=7.0, known_since=since)

    passes = [
        replace(facts(minutes), report_since=report_since)
        for minutes in (
            0,
            5 * day,  # Sunday
            6 * day - 181,  # Monday 08:59
            6 * day - 180,  # Monday 09:00
            6 * day,
            13 * day,
        )
    ]
    _, notices = after_passes(*passes)
    assert [notice.kind for notice in notices] == [NoticeKind.WEEKLY_SAVINGS] * 2
    assert notices[0].at == START + timedelta(minutes=6 * day - 180)
    assert begins == [START, notices[0].at]
    assert notices[0].text.startswith("Since 2026-03-03, the fleet has cost $7.00")
