"""Delivers messages in threads of their own: a slow webhook delays neither a pass nor another."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from queue import Queue
from string import Template
from threading import Event, Lock, Thread
from typing import Final, Protocol, Self
from zlib import crc32

from reconciler.adapters.http import HttpClient, HttpError, Reply, ReplyLimits, Retries, url_problem
from reconciler.model.notification import Webhook, WebhookFormat
from reconciler.model.text.times import timestamp
from reconciler.model.text.visible import one_line
from reconciler.notifications.notices import Notice
from reconciler.ports.clock import Clock

API: Final = "reconciler/v1"
TEXT_MAX: Final = 3000
"""Slack shows at most 3,000 characters of a section, and nobody reads more."""
_DEFAULT: Final = "*$fleet: $title*\n$text"
SECRET_BYTES_MIN: Final = 16
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what the standard puts before every secret

ATTEMPTS: Final = 5
QUEUED_MAX: Final = 200
"""The most messages that wait for one webhook."""
LANES_MAX: Final = 16
_LIMITS: Final = ReplyLimits(2**20, connect_s=5, read_s=10, total_s=30)
_RETRIES: Final = Retries(
    ATTEMPTS, statuses=frozenset({408, 425, 429, 500, 502, 503, 504}), first_pause_s=2.0
)
_FLUSH_S: Final = 5.0
"""How long the end of the process waits for messages that are still queued."""
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """The body and the headers of a POST request."""

    body: bytes
    headers: Mapping[str, str]


def webhook_request(notice: Notice, webhook: Webhook, secret: str, now: datetime) -> WebhookRequest:
    """Return the request for a webhook; with a secret it is signed as of ``now``.

    The signature is that of Standard Webhooks 1.0: HMAC-SHA256 of ``id.timestamp.body``.

    Raises:
        ValueError: the secret is not in base64, or too short to protect anything.
    """
    if webhook.format is WebhookFormat.SLACK:
        text = _format_text(notice, webhook.template or _DEFAULT, in_slack=True)
        # without previews: Slack would request any address that a name or a message contains
        body = _encode({"text": text, "unfurl_links": False, "unfurl_media": False})
    else:
        text = _format_text(notice, webhook.template) if webhook.template else notice.text
        body = _encode(_notice_document(notice, text))
    headers = {"content-type": "application/json"}
    if secret:
        headers |= _signature_headers(notice.id, body, secret, now)
    return WebhookRequest(body, headers)


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True).encode()


def _notice_document(notice: Notice, text: str) -> dict[str, object]:
    return {
        "apiVersion": API,
        "kind": "Notice",
        "id": notice.id,
        "type": notice.kind.value,
        "at": timestamp(notice.at),
        "fleet": notice.fleet,
        "nodePool": notice.node_pool,
        "revision": notice.revision,
        "title": notice.title,
        "text": text,
    }


def _format_text(notice: Notice, template: str, *, in_slack: bool = False) -> str:
    """Return the text of a message.

    What comes from the fleet cannot form mentions, or links that hide their address.
    """
    values = {
        "fleet": notice.fleet,
        "kind": notice.kind.value,
        "title": notice.title,
        "text": notice.text,
        "node_pool": notice.node_pool,
        "revision": notice.revision,
    }
    shown = {name: one_line(value) for name, value in values.items()}
    if in_slack:
        shown = {name: _escape_slack(value) for name, value in shown.items()}
    text = Template(template).substitute(shown)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _escape_slack(text: str) -> str:
    """Return a text in which Slack finds no ``<!channel>``, user, or link with another text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _signature_headers(identity: str, body: bytes, secret: str, now: datetime) -> dict[str, str]:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("is not base64, with or without the prefix whsec_") from None
    if len(key) < SECRET_BYTES_MIN:
        raise ValueError(f"is a key of {len(key)} bytes; use at least {SECRET_BYTES_MIN}")
    message_id = hashlib.sha256(identity.encode()).hexdigest()[:32]
    stamp = str(int(now.timestamp()))
    signed = b".".join((message_id.encode(), stamp.encode(), body))
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{digest}",
    }


class Deliverer(Protocol):
    """Takes a notice for a webhook, and returns at once."""

    def deliver(self, notice: Notice, webhook: Webhook) -> None:
        """Deliver it as soon as possible; never raises."""


@dataclass(frozen=True, slots=True)
class _Delivery:
    notice: Notice
    webhook: Webhook


class _Lane:
    """Notices that wait for one another, and the thread that sends them, in order.

    ``waiting`` has room for None beyond the notices, which ends the thread after them.
    """

    def __init__(self, send: Callable[[_Delivery], None]) -> None:
        self._send = send
        self._waiting: Queue[_Delivery | None] = Queue(QUEUED_MAX + 1)
        self.thread = Thread(target=self._work, name="notifications", daemon=True)
        self.thread.start()

    def add(self, delivery: _Delivery) -> bool:
        """Queue a notice; return whether there was room."""
        if self._waiting.qsize() >= QUEUED_MAX:
            return False
        self._waiting.put_nowait(delivery)
        return True

    def end(self) -> None:
        """Let the thread end once nothing is queued."""
        self._waiting.put_nowait(None)

    def _work(self) -> None:
        while (delivery := self._waiting.get()) is not None:
            try:
                self._send(delivery)
            except Exception as error:  # noqa: BLE001 - the next message may be fine
                name = type(error).__name__  # its text may have the URL
                _LOG.error("cannot send the notification %r: %s", delivery.notice.title, name)


class DeliveryQueue:
    """Sends the notices for each webhook in order, and those for different webhooks side by side.

    A webhook that hangs delays only its own messages. Beyond ``LANES_MAX`` webhooks, some wait for
    one another. A message is tried ``ATTEMPTS`` times with growing pauses, or after the pause that
    the server asks for. A failed delivery is logged without the URL, which is a secret.
    """

    def __init__(self, clock: Clock, environ: Mapping[str, str] | None = None) -> None:
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._lanes: dict[str, _Lane] = {}
        self._opening = Lock()
        self._ends = Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Send what is queued, for a few seconds at most."""
        self._ends.set()
        with self._opening:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.end()
        last = time.monotonic() + _FLUSH_S
        for lane in lanes:
            lane.thread.join(max(last - time.monotonic(), 0))

    def deliver(self, notice: Notice, webhook: Webhook) -> None:
        """Queue a notice; it is dropped if too many are queued for its webhook."""
        with self._opening:
            has_room = self._lane(webhook.url_variable).add(_Delivery(notice, webhook))
        if not has_room:
            _LOG.warning("dropped the notification %r: too many are queued", notice.title)

    def _lane(self, variable: str) -> _Lane:
        """Return the lane of the webhook whose URL is in a variable."""
        if variable not in self._lanes and len(self._lanes) >= LANES_MAX:
            return list(self._lanes.values())[crc32(variable.encode()) % LANES_MAX]
        if variable not in self._lanes:
            self._lanes[variable] = _Lane(self._send)
        return self._lanes[variable]

    def _send(self, delivery: _Delivery) -> None:
        notice, webhook = delivery.notice, delivery.webhook
        problem = self._post(notice, webhook)
        if problem:
            _LOG.warning(
                "cannot send the notification %r to the URL in %s: %s",
                notice.title,
                webhook.url_variable,
                problem,
            )

    def _post(self, notice: Notice, webhook: Webhook) -> str:
        """Deliver a notice; return why that failed, empty if not."""
        url = self._environ.get(webhook.url_variable, "").strip()
        if not url:
            return "the variable is not set"
        problem = url_problem(url, is_secret=True, has_query=True)
        if problem:
            return problem
        secret = self._environ.get(webhook.secret_variable, "") if webhook.secret_variable else ""
        if webhook.secret_variable and not secret:
            return f"{webhook.secret_variable} is not set"
        client = HttpClient(url, _LIMITS)

        def send() -> Reply:
            message = webhook_request(notice, webhook, secret, self._clock.now())
            return client.send("POST", body=message.body, headers=message.headers)

        try:
            reply = _RETRIES.run(
                send, lambda pause: self._clock.wait(pause, self._ends.is_set), self._ends.is_set
            )
        except ValueError as error:
            return f"the value of {webhook.secret_variable} {error}"
        except HttpError as error:
            return str(error)
        finally:
            client.close()
        return "" if reply.is_success else f"the server answered {reply.status}"
