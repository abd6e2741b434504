"""The history of a fleet by commit, and the calendar of its budgets."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from reconciler.disruption.gates.limits import FleetLimits
from reconciler.engine.shown.past import WIDTH, LaunchPrices, commit_views
from reconciler.model.decode import decode
from reconciler.model.duration import Duration
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.model.windows import Window
from reconciler.ports.journal import Intent, JournalEntry, Outcome, Verb
from reconciler.ports.state import CommandPhase, RecordedPlan, RunningCommand
from reconciler.web.view import calendar_days, calendar_of

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)  # a Monday


def entry(
    minute: int, verb: Verb, target: str, revision: str, *, command: str = "", ends: int | None = 1,
    outcome: Outcome = Outcome.SUCCEEDED, message: str = "",
) -> JournalEntry:  # fmt: skip
    at = NOW - timedelta(hours=1) + timedelta(minutes=minute)
    intent = Intent(f"{minute}{target}", verb, target, at, revision, "plan", command, "Drifted")
    ended = None if ends is None else at + timedelta(minutes=ends)
    return JournalEntry(minute, intent, None if ends is None else outcome, ended, message)


def test_operations_are_grouped_by_commit_and_command_newest_first() -> None:
    entries = [
        entry(9, Verb.TERMINATE, "web-1", "bbb", command="c2", ends=None),
        entry(7, Verb.LAUNCH, "web-3", "bbb", command="c2", ends=2),
        entry(5, Verb.TERMINATE, "web-0", "bbb", command="c1", ends=5, outcome=Outcome.FAILED,
              message="UnauthorizedOperation"),
        entry(1, Verb.LAUNCH, "web-1", "aaa"),
        entry(0, Verb.LAUNCH, "web-0", "aaa"),
    ]  # fmt: skip
    newer, older = commit_views(entries, NOW)
    assert (newer.revision, newer.operations, newer.failures, newer.ended) == ("bbb", 3, 1, None)
    running, failed = newer.commands
    assert running.operations == "launch, terminate"
    assert (running.targets, running.outcome, running.took) == (
        ("web-3", "web-1"), "in progress", None,
    )  # fmt: skip
    assert (failed.outcome, failed.problem) == ("failed", "UnauthorizedOperation")
    assert failed.took == timedelta(minutes=5)
    (launch,) = older.commands
    assert commit_views(entries[2:3] + entries[3:], NOW)[0].commands[0].problem == (
        "UnauthorizedOperation"
    )
    assert (launch.operations, launch.start, launch.length) == ("2 × launch", 0, WIDTH)


def test_the_launch_of_a_replacement_belongs_to_its_command() -> None:
    entries = [
        entry(2, Verb.TAINT, "ip-0", "aaa", command="c1"),
        entry(1, Verb.LAUNCH, "web-1", "aaa"),
        entry(1, Verb.LAUNCH, "web-9", "aaa"),
    ]
    command = RunningCommand(
        id="c1", reason="Drifted", decision="replace", node_claims=("web-0",),
        replacements=("web-1",), phase=CommandPhase.WAITING, started_at=NOW, savings=0.5, pods=3,
    )  # fmt: skip
    (commit,) = commit_views(entries, NOW, [command])
    replaced, launched = commit.commands
    assert (replaced.name, replaced.operations) == ("c1", "launch, taint")
    assert (replaced.saves, replaced.pods) == (0.5, 3)
    assert (launched.name, launched.targets) == ("", ("web-9",))


def test_what_removes_the_nodes_of_a_command_belongs_to_it() -> None:
    """Drains and terminations are decided in later passes, without the command in their intent."""
    entries = [
        entry(6, Verb.TERMINATE, "web-0", "aaa"),
        entry(5, Verb.DRAIN, "ip-0", "aaa"),
        entry(5, Verb.DRAIN, "ip-7", "aaa"),
        entry(4, Verb.TAG, "web-1", "aaa"),
        entry(3, Verb.LAUNCH, "web-1", "aaa", command="c1"),
        entry(2, Verb.TAINT, "ip-0", "aaa", command="c1"),
        entry(1, Verb.TAG, "web-0", "aaa"),
        entry(0, Verb.LAUNCH, "web-0", "aaa"),
    ]
    command = RunningCommand(
        id="c1", reason="Drifted", decision="replace", node_claims=("web-0",),
        replacements=("web-1",), phase=CommandPhase.DONE, started_at=NOW,
    )  # fmt: skip
    (commit,) = commit_views(entries, NOW, [command])
    found = [(view.name, view.operations) for view in commit.commands]
    assert found == [
        ("", "drain"),
        ("c1", "taint, launch, tag, drain, terminate"),
        ("", "launch, tag"),
    ]


def test_unused_resources_are_deleted_in_words() -> None:
    (commit,) = commit_views([entry(0, Verb.DISCARD, "reconciler/1", "aaa")], NOW)
    assert commit.commands[0].operations == "delete"
    assert commit.commands[0].counts == (("discard", 1),)


def test_launches_for_pending_pods_cost_what_their_plan_says() -> None:
    actions = [
        {"kind": "provision", "nodeClaim": "web-1", "costDelta": 0.1},
        {"kind": "provision", "nodeClaim": "web-2", "costDelta": 0.2},
        {"kind": "provision", "nodeClaim": "web-3", "costDelta": None},
    ]
    body = json.dumps({"actions": actions}).encode()
    read: list[str] = []

    def plan(digest: str) -> RecordedPlan | None:
        read.append(digest)
        return RecordedPlan(digest=digest, at=NOW, serial=1, revision="aaa", body=body)

    prices = LaunchPrices(plan)
    launched = [
        entry(1, Verb.LAUNCH, "web-2", "aaa"),
        entry(1, Verb.LAUNCH, "web-1", "aaa"),
        entry(1, Verb.LAUNCH, "web-0", "aaa", outcome=Outcome.FAILED),
    ]
    (commit,) = commit_views(launched, NOW, (), prices)
    assert [command.saves for command in commit.commands] == [-0.3]
    (commit,) = commit_views([*launched, entry(1, Verb.LAUNCH, "web-3", "aaa")], NOW, (), prices)
    assert [command.saves for command in commit.commands] == [None]
    assert read == ["plan"]


def test_a_command_is_drawn_at_its_time() -> None:
    entries = [
        entry(8, Verb.LAUNCH, "web-1", "aaa", command="c2", ends=2),
        entry(0, Verb.LAUNCH, "web-0", "aaa", command="c1", ends=5),
    ]
    (commit,) = commit_views(entries, NOW)
    assert [(c.start, c.length) for c in commit.commands] == [(800, 200), (0, 500)]
    at_once = [entry(0, Verb.TAG, "web-0", "aaa", ends=0)]
    (commit,) = commit_views(at_once, NOW)
    assert commit.commands[0].length > 0


def test_a_reverted_and_reapplied_commit_is_listed_twice() -> None:
    entries = [entry(n, Verb.LAUNCH, "web-0", r) for n, r in ((2, "aaa"), (1, "bbb"), (0, "aaa"))]
    assert [c.revision for c in commit_views(entries, NOW)] == ["aaa", "bbb", "aaa"]
    assert commit_views([], NOW) == ()


def pool(*budgets: dict[str, object]) -> NodePool:
    spec = {
        "disruption": {"budgets": list(budgets)},
        "template": {"spec": {"nodeClassRef": {"group": "karpenter.k8s.aws",
                                               "kind": "EC2NodeClass", "name": "default"}}},
    }  # fmt: skip
    return decode({"metadata": {"name": "web"}, "spec": spec}, NodePool)


def limits(
    *budgets: dict[str, object], nodes: int = 3, settings: Settings | None = None
) -> FleetLimits:
    return FleetLimits.from_totals([pool(*budgets)], settings or Settings(), {"web": nodes})


def test_the_calendar_has_the_periods_in_which_a_budget_is_closed() -> None:
    nights = {"nodes": "0", "schedule": "0 18 * * *", "duration": "12h", "reasons": ["Drifted"]}
    rows = calendar_of(limits({"nodes": "20%"}, nights, nodes=10), NOW)
    open_row, closed_row = sorted(rows, key=lambda row: len(row.reasons), reverse=True)
    assert (open_row.reasons, [p.allowed for p in open_row.periods]) == (
        ("Underutilized", "Empty"), [2],
    )  # fmt: skip
    assert closed_row.reasons == ("Drifted",)
    assert closed_row.closed == timedelta(hours=7 * 12)
    first, second, third = closed_row.periods[:3]
    assert (first.began, first.ended, first.allowed) == (NOW, NOW + timedelta(hours=6), 2)
    assert (second.ended - second.began, second.allowed) == (timedelta(hours=12), 0)
    assert third.allowed == 2
    assert closed_row.periods[-1].ended == NOW + timedelta(days=7)
    assert sum(p.length for p in closed_row.periods) == 1000


def test_the_calendar_omits_settings_that_never_change() -> None:
    assert calendar_of(limits({"nodes": "1"}), NOW) == ()


def test_a_disruption_window_closes_the_rest_of_the_week() -> None:
    settings = Settings(windows=(Window("0 2 * * sat", Duration("4h")),))
    (row,) = calendar_of(limits({"nodes": "1"}, settings=settings), NOW)
    assert [p.allowed for p in row.periods] == [0, 1, 0]
    assert row.closed == timedelta(days=7) - timedelta(hours=4)


def test_the_days_of_the_week_are_marked() -> None:
    days = calendar_days(NOW)
    assert [name for _, name in days] == ["Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Mon"]
    assert days[0][0] == round(1000 * 0.5 / 7)
