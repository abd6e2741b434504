"""The notifications about a fleet, and where they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NoticeKind(StrEnum):
    """The kind of a notice."""

    ROLLOUT_STARTED = "RolloutStarted"
    ROLLOUT_FINISHED = "RolloutFinished"
    ROLLOUT_HALTED = "RolloutHalted"
    FAILED = "Failed"
    PODS_UNSCHEDULABLE = "PodsUnschedulable"
    PODS_SCHEDULABLE = "PodsSchedulable"
    WEEKLY_SAVINGS = "WeeklySavings"
    PREDICTION_WRONG = "PredictionWrong"
    NODE_BLOCKED = "NodeBlocked"


class WebhookFormat(StrEnum):
    """The body of a request: a Slack message (also Mattermost, Discord at ``/slack``), or JSON."""

    SLACK = "slack"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that receives notices; the URL and the secret stay in variables of the environment.

    ``events`` are the kinds that it receives, empty for all. ``template`` is the text of a message
    with ``$fleet``, ``$kind``, ``$title``, ``$text``, ``$node_pool`` and ``$revision``; empty for
    the default.
    """

    url_variable: str
    format: WebhookFormat = WebhookFormat.SLACK
    events: tuple[NoticeKind, ...] = ()
    secret_variable: str = ""
    template: str = ""

    def wants(self, kind: NoticeKind) -> bool:
        """Return whether it receives notices of this kind."""
        return not self.events or kind in self.events
