"""The requests that send a notice to a webhook."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from string import Template
from typing import Final

from reconciler.model.notification import Webhook, WebhookFormat
from reconciler.model.text.visible import one_line
from reconciler.notifications.notices import Notice

API: Final = "reconciler/v1"
TEXT_MAX: Final = 3000
"""Slack shows at most 3,000 characters of a section, and nobody reads more."""
_DEFAULT: Final = "*$fleet: $title*\n$text"
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what the standard puts before every secret


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """The body and the headers of a POST request."""

    body: bytes
    headers: Mapping[str, str]


def message_of(notice: Notice, webhook: Webhook, secret: str, now: datetime) -> WebhookRequest:
    """Return the request for a webhook; with a secret it is signed as of ``now``.

    The signature is that of Standard Webhooks 1.0: HMAC-SHA256 of ``id.timestamp.body``.

    Raises:
        ValueError: the secret is not in base64.
    """
    if webhook.format is WebhookFormat.SLACK:
        body = _encoded({"text": _text(notice, webhook.template or _DEFAULT, in_slack=True)})
    else:
        text = _text(notice, webhook.template) if webhook.template else notice.text
        body = _encoded(_document(notice, text))
    headers = {"content-type": "application/json"}
    if secret:
        headers |= _signature(notice.id, body, secret, now)
    return WebhookRequest(body, headers)


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True).encode()


def _document(notice: Notice, text: str) -> dict[str, object]:
    return {
        "apiVersion": API,
        "kind": "Notice",
        "id": notice.id,
        "type": notice.kind.value,
        "at": f"{notice.at:%Y-%m-%dT%H:%M:%SZ}",
        "fleet": notice.fleet,
        "nodePool": notice.node_pool,
        "revision": notice.revision,
        "title": notice.title,
        "text": text,
    }


def _text(notice: Notice, template: str, *, in_slack: bool = False) -> str:
    """Return the text of a message; what comes from the fleet cannot form links or mentions."""
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
        shown = {name: _escaped(value) for name, value in shown.items()}
    text = Template(template).substitute(shown)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _escaped(text: str) -> str:
    """Return a text in which Slack finds no ``<!channel>``, user or link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _signature(identity: str, body: bytes, secret: str, now: datetime) -> dict[str, str]:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("is not base64, with or without the prefix whsec_") from None
    message_id = hashlib.sha256(identity.encode()).hexdigest()[:32]
    stamp = str(int(now.timestamp()))
    signed = b".".join((message_id.encode(), stamp.encode(), body))
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{digest}",
    }
