"""Webhooks: a server that redirects, and addresses and secrets in what is logged."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event
from threading import enumerate as enumerate_threads
from typing import NoReturn

import pytest

from reconciler.model.notification import NoticeKind, Webhook, WebhookFormat
from reconciler.notifications.delivery import LANES_MAX, DeliveryQueue
from reconciler.notifications.notices import Notice
from tests.hostile.threats import Threat, attack
from tests.httpserver import QuietHandler, serving_with
from tests.notifications.test_delivery import FakeClock

NOTICE = Notice(
    "shop/1", datetime(2026, 3, 3, tzinfo=UTC), NoticeKind.FAILED, "shop", "Failed", "text", "web",
    "4f2c9e1a",
)  # fmt: skip
TOKEN = "T0KEN-in-the-path"
KEY = "whsec_" + base64.b64encode(b"k3y-of-the-webhook").decode()


@contextmanager
def answering(status: int, headers: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Serve one answer to every request, and yield the URL and the requests so far."""
    asked: list[str] = []

    class Handler(QuietHandler):
        def answer(self) -> None:
            asked.append(f"{self.command} {self.path} {self.headers.get('webhook-signature')}")
            self.reply(status, b"", headers)

    with serving_with(Handler) as url:
        yield url, asked


def deliver(environ: dict[str, str], webhook: Webhook) -> None:
    with DeliveryQueue(FakeClock(), environ) as queue:
        queue.deliver(NOTICE, webhook)


HOOK = Webhook("HOOK", WebhookFormat.JSON, secret_variable="KEY")


@attack(Threat.SECRETS, "a webhook that redirects to a metadata service or another host")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "target", ["other", "http://169.254.169.254/latest/", "file:///etc/passwd"]
)
def test_a_message_does_not_follow_a_redirect(
    status: int, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    with answering(200, {}) as (other, elsewhere):
        to = f"{other}/stolen" if target == "other" else target
        with answering(status, {"Location": to}) as (url, asked):
            deliver({"HOOK": f"{url}/{TOKEN}", "KEY": KEY}, HOOK)
    assert len(asked) == 1
    assert not elsewhere
    assert f"the server answered {status}" in caplog.text
    assert TOKEN not in caplog.text


BAD_URLS = (
    f"http://hooks.example/{TOKEN}",
    f"ftp://hooks.example/{TOKEN}",
    f"file:///{TOKEN}",
    f"https://user:{TOKEN}@hooks.example/",
    f"https://hooks.example:99999/{TOKEN}",
    f"https://[{TOKEN}/",
    f"https://127.0.0.1:1/{TOKEN}",
    f"https://hooks.example/{TOKEN} x",
    f"https://hooks.example/{TOKEN}\r\nX: y",
    TOKEN,
)


@attack(Threat.SECRETS, "an address or a key of a webhook that is wrong, for the log to print it")
@pytest.mark.parametrize("url", BAD_URLS)
def test_no_address_of_a_webhook_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "reconciler"):
        deliver({"HOOK": url, "KEY": KEY}, HOOK)
        deliver({"HOOK": "https://127.0.0.1:1/", "KEY": TOKEN}, HOOK)
    assert "HOOK" in caplog.text
    assert "plain http is allowed only" in caplog.text or not url.startswith("http://")
    assert "a user or password" in caplog.text or "@" not in url
    assert TOKEN not in caplog.text
    assert KEY.removeprefix("whsec_") not in caplog.text


class _Refusing(dict[str, str]):
    """Variables whose reading fails with the address in the error."""

    def get(self, key: str, default: object = None) -> NoReturn:
        raise RuntimeError(f"https://example.invalid/{TOKEN}")


@attack(Threat.SECRETS, "an unexpected error while a message is sent, which quotes the address")
def test_an_unexpected_error_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    """Guard: the name of the error in place of its text in ``DeliveryQueue._work``."""
    with caplog.at_level(logging.DEBUG, "reconciler"):
        deliver(_Refusing(), HOOK)
    assert "RuntimeError" in caplog.text
    assert TOKEN not in caplog.text


@attack(Threat.EXHAUSTION, "a webhook that never answers, so that the messages of others wait")
def test_a_hanging_webhook_delays_no_other() -> None:
    """Guard: a lane for each webhook in ``DeliveryQueue``."""
    released, arrived = Event(), Event()

    class Hanging(QuietHandler):
        def answer(self) -> None:
            released.wait(30)
            self.reply(200, b"")

    class Prompt(QuietHandler):
        def answer(self) -> None:
            arrived.set()
            self.reply(200, b"")

    with serving_with(Hanging) as hanging, serving_with(Prompt) as prompt:
        environ = {"FIRST": hanging, "SECOND": prompt}
        with DeliveryQueue(FakeClock(), environ) as queue:
            queue.deliver(NOTICE, Webhook("FIRST"))
            queue.deliver(NOTICE, Webhook("SECOND"))
            came_first = arrived.wait(20)
            released.set()
    assert came_first


@attack(Threat.EXHAUSTION, "a repository with 500 webhooks, each of which would have a thread")
def test_many_webhooks_share_a_few_threads(caplog: pytest.LogCaptureFixture) -> None:
    """Guard: ``LANES_MAX``."""
    before = set(enumerate_threads())
    with DeliveryQueue(FakeClock(), {}) as queue:
        for number in range(500):
            queue.deliver(NOTICE, Webhook(f"HOOK_{number}"))
        assert len(set(enumerate_threads()) - before) <= LANES_MAX
    assert caplog.text.count("the variable is not set") == 500
