"""While a cluster is watched, people learn of wrong predictions, blocked nodes, and the week."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from reconciler.adapters.simulated.memory import MemoryShelf
from reconciler.model.decision.waiting import Blocker
from reconciler.model.karpenter.prediction import (
    EndRange,
    FleetEnd,
    KarpenterAction,
    KarpenterActionKind,
    Prediction,
    Score,
)
from reconciler.model.notification import NoticeKind, Webhook
from reconciler.notifications.notices import REMINDED_AFTER, Notice
from reconciler.notifications.observer import RecordedNotices
from reconciler.notifications.watched import BLOCKED_AFTER, WatchNotices
from reconciler.plan.value.costs import Cost
from reconciler.plan.value.plan import Plan
from reconciler.watch.report import describe_miss, report_of, summary_lines
from reconciler.watch.scoring import score_action
from tests.watch.claims import START, after, node

NOW = datetime(2026, 3, 6, 12, 0, tzinfo=UTC)
"""A Friday."""
PDB = Blocker(
    kind="PodDisruptionBudget",
    name="shop/web",
    message="allows no disruption",
    nodes=("n1", "n2"),
)


@dataclass
class Sent:
    notices: list[Notice] = field(default_factory=list)

    def deliver(self, notice: Notice, webhook: Webhook) -> None:
        assert webhook.wants(notice.kind)
        self.notices.append(notice)

    @property
    def kinds(self) -> list[NoticeKind]:
        return [notice.kind for notice in self.notices]


def watching(sent: Sent, shelf: MemoryShelf, scores: list[Score] | None = None) -> WatchNotices:
    recorded = RecordedNotices(sent, shelf, (Webhook("HOOK_URL"),))
    return WatchNotices(
        "prod", recorded, describe_miss, lambda since: summary_lines(report_of(scores or [], since))
    )


def launched(at: datetime, kind: str = "m5.xlarge") -> Score:
    action = KarpenterAction(at, KarpenterActionKind.LAUNCH, (node(kind),))
    return score_action(action, Prediction(START, (node(),), (), 3))


def plan(at: datetime, *blockers: Blocker) -> Plan:
    return Plan(at=at, cost=Cost(before=1.0, after=1.0), blockers=blockers)


def test_a_wrong_prediction_is_reported_once_in_six_hours_even_across_a_restart() -> None:
    sent, shelf = Sent(), MemoryShelf()
    watching(sent, shelf).record_score(launched(NOW, "m5.large"))
    assert sent.notices == []
    for hours in (0, 1, 5):
        watching(sent, shelf).record_score(launched(NOW + timedelta(hours=hours)))
    (notice,) = sent.notices
    assert (notice.kind, notice.fleet) == (NoticeKind.PREDICTION_WRONG, "prod")
    assert notice.title == "Prediction of a launch was wrong"
    assert notice.text.startswith(
        "launched 1 × m5.xlarge ($0.1920/hour): "
        "instance type m5.large predicted, m5.xlarge launched. "
    )
    watching(sent, shelf).record_score(launched(NOW + REMINDED_AFTER))
    assert len(sent.notices) == 2


def test_the_end_has_notices_of_its_own() -> None:
    sent, shelf = Sent(), MemoryShelf()
    action = KarpenterAction(after(9), KarpenterActionKind.END, end=FleetEnd(9, 1.0))
    end = Prediction(START, end=EndRange(2, 3, 0.2, 0.3, 20))
    watching(sent, shelf).record_score(launched(after(8)))
    watching(sent, shelf).record_score(score_action(action, end))
    assert [n.title for n in sent.notices] == [
        "Prediction of a launch was wrong",
        "Prediction of the end was wrong",
    ]


def test_what_blocks_nodes_for_a_while_is_reported_once_until_it_is_gone() -> None:
    sent, shelf = Sent(), MemoryShelf()
    notices = watching(sent, shelf)
    notices.record_plan(plan(NOW, PDB))
    notices.step(NOW + BLOCKED_AFTER - timedelta(seconds=1))
    assert sent.notices == []
    for hours in (1, 2, 30):
        notices.step(NOW + timedelta(hours=hours))
    notices = watching(sent, shelf)
    notices.record_plan(plan(NOW + timedelta(hours=31), PDB))
    notices.step(NOW + timedelta(hours=32))
    (notice,) = sent.notices
    assert notice.kind is NoticeKind.NODE_BLOCKED
    assert notice.title.endswith("blocks 2 nodes")
    assert notice.text == "Karpenter cannot disrupt n1, n2: allows no disruption."
    notices.record_plan(plan(NOW + timedelta(hours=33)))
    notices.step(NOW + timedelta(hours=33))
    notices.record_plan(plan(NOW + timedelta(hours=34), PDB))
    notices.step(NOW + timedelta(hours=35))
    assert len(sent.notices) == 2


def test_a_schedule_that_ends_by_itself_is_not_reported() -> None:
    sent = Sent()
    notices = watching(sent, MemoryShelf())
    notices.record_plan(plan(NOW, replace(PDB, until=NOW + timedelta(days=2))))
    notices.step(NOW + timedelta(days=1))
    assert sent.notices == []


def test_the_week_is_reported_on_monday_with_the_score_and_the_cost() -> None:
    sent, shelf = Sent(), MemoryShelf()
    notices = watching(sent, shelf, [launched(NOW), launched(NOW, "m5.large")])
    notices.record_plan(plan(NOW))
    for days in (0, 1, 2, 3, 3.1, 9):
        notices.step(NOW + timedelta(days=days))
    assert sent.kinds == [NoticeKind.WEEKLY_SAVINGS]
    text = sent.notices[0].text
    assert text.startswith("2 launches: 50.0% exact or tied. The fleet costs $730")
    notices.step(NOW + timedelta(days=10))
    assert sent.kinds == [NoticeKind.WEEKLY_SAVINGS] * 2
