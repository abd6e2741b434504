"""Notices about a watched cluster: wrong predictions, blocked nodes, and the report on the week.

Nothing is written to the cluster. What was sent is recorded as that of a daemon is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from reconciler.model.notification import NoticeKind
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_monthly
from reconciler.notifications.notices import REMINDED_AFTER, Notice, last_monday
from reconciler.plan.render.wording import blocker_title

if TYPE_CHECKING:
    from reconciler.model.decision.waiting import Blocker
    from reconciler.model.karpenter.prediction import Score
    from reconciler.notifications.observer import RecordedNotices
    from reconciler.plan.value.plan import Plan

BLOCKED_AFTER: Final = timedelta(minutes=15)
"""How long something must block nodes before a notice: a budget or a rollout may end soon."""
_NODES_SHOWN: Final = 5

_NAMES: Final = {"launch": "a launch", "command": "a command", "end": "the end"}


class _Blocked(NamedTuple):
    blocker: Blocker
    since: datetime


class WatchNotices:
    """Decides what people are notified of while a cluster is watched.

    ``describe`` returns a wrong prediction in words, ``week_report`` the sentences about the
    predictions since a time.
    """

    def __init__(
        self,
        cluster: str,
        sent: RecordedNotices,
        describe: Callable[[Score], str],
        week_report: Callable[[datetime], list[str]],
    ) -> None:
        self._cluster = cluster
        self._sent = sent
        self._describe = describe
        self._week_report = week_report
        self._blocked: dict[str, _Blocked] = {}
        self._per_hour: float | None = None

    def record_score(self, score: Score) -> None:
        """Notify of a wrong prediction, of each kind of action once in six hours."""
        if not score.verdict.is_wrong:
            return
        at, memory = score.action.at, self._sent.memory
        key = f"{NoticeKind.PREDICTION_WRONG}/{score.action.kind}"
        last = memory.reported.get(key)
        if last is not None and last <= at < last + REMINDED_AFTER:
            return
        what = f"Prediction of {_NAMES.get(score.action.kind, score.action.kind)} was wrong"
        text = f"{self._describe(score)}. `reconciler watch report` lists all of them."
        notice = self._notice(NoticeKind.PREDICTION_WRONG, at, what, text, key)
        reported = {**memory.reported, key: at}
        self._sent.deliver(msgspec.structs.replace(memory, reported=reported), [notice])

    def record_plan(self, plan: Plan) -> None:
        """Remember what blocks nodes, since when, and what the fleet costs."""
        self._per_hour = plan.cost.before
        found = {
            f"{NoticeKind.NODE_BLOCKED}/{one.kind}/{one.name}": one
            for one in plan.blockers
            if one.until is None
        }
        self._blocked = {
            key: _Blocked(one, self._blocked[key].since if key in self._blocked else plan.at)
            for key, one in found.items()
        }

    def step(self, now: datetime) -> None:
        """Notify of what has blocked nodes for a while, once, and on Mondays of the week."""
        memory = self._sent.memory
        gone = f"{NoticeKind.NODE_BLOCKED}/"
        reported = {
            key: at
            for key, at in memory.reported.items()
            if not key.startswith(gone) or key in self._blocked
        }
        notices = []
        for key, (blocker, since) in self._blocked.items():
            if key not in reported and now - since >= BLOCKED_AFTER:
                reported[key] = now
                notices.append(self._blocked_notice(blocker, now, key))
        memory = msgspec.structs.replace(memory, reported=reported)
        if memory.week_from is None:
            memory = msgspec.structs.replace(memory, week_from=now)
        elif memory.week_from < last_monday(now):
            notices.append(self._weekly_notice(memory.week_from, now))
            memory = msgspec.structs.replace(memory, week_from=now)
        if notices or memory != self._sent.memory:
            self._sent.deliver(memory, notices)

    def _blocked_notice(self, blocker: Blocker, now: datetime, key: str) -> Notice:
        title = f"{blocker_title(blocker.kind, blocker.name)} blocks "
        nodes = format_list(blocker.nodes, _NODES_SHOWN)
        return self._notice(
            NoticeKind.NODE_BLOCKED,
            now,
            title + format_count(len(blocker.nodes), "node"),
            f"Karpenter cannot disrupt {nodes}: {blocker.message}.",
            key,
        )

    def _weekly_notice(self, since: datetime, now: datetime) -> Notice:
        sentences = list(self._week_report(since))
        if self._per_hour is not None:
            cost = format_monthly(self._per_hour)
            sentences.append(f"The fleet costs {cost}/month now")
        text = " ".join(f"{sentence.rstrip('.')}." for sentence in sentences)
        return self._notice(NoticeKind.WEEKLY_SAVINGS, now, "Weekly report", text, "week")

    def _notice(self, kind: NoticeKind, at: datetime, title: str, text: str, key: str) -> Notice:
        identity = f"{self._cluster}/{key}/{at:%Y%m%dT%H%M%S}"
        return Notice(identity, at, kind, self._cluster, title, text)
