"""Messages reach a webhook in spite of a server that fails, and never hold up who sends them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event

import pytest

from reconciler.model.notification import NoticeKind, Webhook
from reconciler.notifications.delivery import ATTEMPTS, QUEUED_MAX, DeliveryQueue
from reconciler.notifications.notices import Notice
from tests.httpserver import QuietHandler, serving_with

NOW = datetime(2026, 3, 3, 12, 0, tzinfo=UTC)
HOOK = Webhook("HOOK_URL")


def a_notice(title: str = "Launch failed") -> Notice:
    return Notice("shop/1", NOW, NoticeKind.FAILED, "shop", title, "no capacity")


class FakeClock:
    """A clock whose waits take no time, and are recorded."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now(self) -> datetime:
        return NOW

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        del until
        self.waits.append(seconds)


@dataclass
class Server:
    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    hold: Event = field(default_factory=Event)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    state.hold.set()

    class Hook(QuietHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.hold.wait(30)
            state.texts.append(json.loads(body)["text"])
            status, headers = state.answers.pop(0) if state.answers else (200, {})
            self.reply(status, b"", headers)

    with serving_with(Hook) as url:
        state.url = f"{url}/secret-path"
        yield state


def deliver(url: str, *titles: str) -> FakeClock:
    clock = FakeClock()
    with DeliveryQueue(clock, {"HOOK_URL": url}) as deliveries:
        for title in titles:
            deliveries.deliver(a_notice(title), HOOK)
    return clock


def test_messages_arrive_in_order_before_the_process_ends(server: Server) -> None:
    deliver(server.url, "first", "second")
    assert server.texts == ["*shop: first*\nno capacity", "*shop: second*\nno capacity"]


def test_a_failed_delivery_is_retried(server: Server) -> None:
    server.answers = [(503, {}), (429, {"retry-after": "30"}), (200, {})]
    clock = FakeClock()
    arrived = Event()
    with DeliveryQueue(clock, {"HOOK_URL": server.url}) as deliveries:
        deliveries.deliver(a_notice(), HOOK)
        while len(server.texts) < 3 and not arrived.wait(0.01):
            pass
    assert clock.waits == [2.0, 30.0]


@pytest.mark.parametrize("status", [302, 400, 403, 404, 410])
def test_a_rejection_is_final_and_logged_without_the_url(
    server: Server, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = [(status, {"location": "http://169.254.169.254/"})]
    with caplog.at_level(logging.WARNING):
        clock = deliver(server.url, "Launch failed")
    assert (len(server.texts), clock.waits) == (1, [])
    where = f"to the URL in HOOK_URL: the server answered {status}"
    assert f"cannot send the notification 'Launch failed' {where}" in caplog.text
    assert "secret-path" not in caplog.text


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "the variable is not set"),
        ("hooks.example.com/x", "not an https or http URL"),
        ("file:///etc/passwd", "not an https or http URL"),
        (
            "http://hooks.example.com/secret-path",
            "plain http is allowed only for 127.0.0.1",
        ),
        ("https://[::1/secret-path", "not a valid URL"),
    ],
)
def test_an_unusable_url_is_logged_without_its_text(
    url: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        deliver(url, "Launch failed")
    assert problem in caplog.text
    assert "secret-path" not in caplog.text


def test_delivery_to_a_dead_server_ends_after_some_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, given_up = FakeClock(), Event()
    logging.getLogger("reconciler.notifications.delivery").addFilter(
        watching := lambda record: given_up.set() or True
    )
    with (
        caplog.at_level(logging.WARNING),
        DeliveryQueue(clock, {"HOOK_URL": "http://127.0.0.1:1/secret-path"}) as deliveries,
    ):
        deliveries.deliver(a_notice(), HOOK)
        assert given_up.wait(20)
    logging.getLogger("reconciler.notifications.delivery").removeFilter(watching)
    assert clock.waits == [2.0 * 2**attempt for attempt in range(ATTEMPTS - 1)]
    assert "secret-path" not in caplog.text


def test_a_hanging_webhook_blocks_nothing_and_uses_bounded_memory(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.hold.clear()
    with (
        caplog.at_level(logging.WARNING),
        DeliveryQueue(FakeClock(), {"HOOK_URL": server.url}) as all_,
    ):
        for number in range(QUEUED_MAX + 10):
            all_.deliver(a_notice(f"n{number}"), HOOK)
        server.hold.set()
    assert "too many are queued" in caplog.text
    assert len(server.texts) <= QUEUED_MAX + 1
