"""A daemon tells its webhooks what it sees, once, whatever happens to its process."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from reconciler.adapters.simulated.memory import MemoryShelf
from reconciler.desired.settings.layers import OperatorFile, resolve
from reconciler.model.errors import LeaseLostError, UsageError
from reconciler.model.notification import NoticeKind, Webhook
from reconciler.model.settings import Settings
from reconciler.notifications.notices import Notice
from reconciler.notifications.observer import NoticeNotifier, NoticeObserver
from reconciler.ports.progress import EventKind, Progress

NOW = datetime(2026, 3, 3, 12, 0, tzinfo=UTC)
HOOK = Webhook("HOOK_URL")
HALT = Progress(NOW, EventKind.ROLLOUT_STOPPED, "two commands failed", node_pool="web")


@dataclass
class Sent:
    notices: list[tuple[str, NoticeKind]] = field(default_factory=list)

    def deliver(self, notice: Notice, webhook: Webhook) -> None:
        self.notices.append((webhook.url_variable, notice.kind))

    def notify(self, progress: Progress) -> None:
        """Be the next notifier."""


def observer(sent: Sent, shelf: Any, *webhooks: Webhook) -> NoticeObserver:
    made = NoticeObserver(sent)
    made.follow(shelf, Settings(fleet="shop", webhooks=webhooks))
    return made


def test_an_event_is_announced_once_even_across_a_restart() -> None:
    sent, shelf = Sent(), MemoryShelf()
    for _ in range(2):
        watching = observer(sent, shelf, HOOK)
        NoticeNotifier(sent, watching).notify(HALT)
        watching.pass_failed()
    assert sent.notices == [("HOOK_URL", NoticeKind.ROLLOUT_HALTED)]


def test_a_webhook_receives_only_its_selected_events() -> None:
    sent = Sent()
    only_savings = Webhook("OTHER_URL", events=(NoticeKind.WEEKLY_SAVINGS,))
    watching = observer(sent, MemoryShelf(), only_savings, HOOK)
    watching.record_event(HALT)
    watching.pass_failed()
    assert [url for url, _ in sent.notices] == ["HOOK_URL"]


def test_a_process_without_the_lease_announces_nothing() -> None:
    def write(_name: str, _content: bytes) -> None:
        raise LeaseLostError("another process has acquired it")

    sent = Sent()
    watching = observer(sent, SimpleNamespace(read=lambda _: None, write=write), HOOK)
    watching.record_event(HALT)
    watching.pass_failed()
    assert sent.notices == []


def test_stored_notices_of_another_release_are_discarded() -> None:
    sent, shelf = Sent(), MemoryShelf()
    shelf.write("notices", b'{"told": 7}')
    watching = observer(sent, shelf, HOOK)
    watching.record_event(HALT)
    watching.pass_failed()
    assert len(sent.notices) == 1


def webhooks(entry: dict[str, object]) -> tuple[Webhook, ...]:
    data = {"notifications": {"webhooks": [entry]}}
    return resolve({}, {}, operator=OperatorFile("/etc/fleet.yaml", data)).settings.webhooks


def test_webhooks_are_read_from_the_settings() -> None:
    entry = {"urlVariable": "HOOK_URL", "events": ["Failed"], "template": "$fleet: $$5"}
    (webhook,) = webhooks(entry)
    assert webhook.wants(NoticeKind.FAILED)
    assert not webhook.wants(NoticeKind.WEEKLY_SAVINGS)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({}, "urlVariable: required"),
        ({"urlVariable": "https://hooks.example.com/T0/s3cr3t"}, "must be the name of an env"),
        ({"urlVariable": "U", "format": "xml"}, 'format: "xml" is not allowed'),
        ({"urlVariable": "U", "events": ["Launched"]}, 'events: "Launched" is not allowed'),
        ({"urlVariable": "U", "secretVariable": "S"}, "only requests in the format json"),
        ({"urlVariable": "U", "template": "$100"}, "write \\$\\$ for a dollar sign"),
        ({"urlVariable": "U", "template": "$secret"}, "\\$secret is unknown"),
        ({"urlVariable": "U", "url": "x"}, "url: unknown key"),
    ],
    ids=["no url", "a url", "format", "event", "signed slack", "dollar", "field", "key"],
)
def test_an_invalid_webhook_is_rejected_without_showing_secrets(
    entry: dict[str, object], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        webhooks(entry)
    assert "s3cr3t" not in str(caught.value)
