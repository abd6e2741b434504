"""The bodies and signatures of the requests to webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest

from reconciler.model.notification import NoticeKind, Webhook, WebhookFormat
from reconciler.notifications.delivery import TEXT_MAX, webhook_request
from reconciler.notifications.notices import Notice

NOW = datetime(2026, 3, 3, 12, 0, tzinfo=UTC)
NOTICE = Notice(
    "shop/1", NOW, NoticeKind.FAILED, "shop", "Launch failed", "no capacity", "web", "4f2c9e1a"
)
JSON = Webhook("URL", WebhookFormat.JSON)


def text_of(notice: Notice, template: str = "") -> str:
    body = webhook_request(notice, Webhook("URL", template=template), "", NOW).body
    text: str = json.loads(body)["text"]
    return text


def test_a_slack_message_has_the_fleet_the_title_and_the_text() -> None:
    assert text_of(NOTICE) == "*shop: Launch failed*\nno capacity"


def test_slack_requests_no_address_that_a_message_contains() -> None:
    body = json.loads(webhook_request(NOTICE, Webhook("URL"), "", NOW).body)
    assert (body["unfurl_links"], body["unfurl_media"]) == (False, False)


def test_a_template_decides_the_text() -> None:
    assert text_of(NOTICE, "$kind $node_pool $revision $$5") == "Failed web 4f2c9e1a $5"


@pytest.mark.parametrize("text", ["<!channel>", "<https://evil|click>", "a\n*bold*\x1b[2J"])
def test_text_of_a_fleet_cannot_form_mentions_links_or_lines(text: str) -> None:
    from dataclasses import replace

    shown = text_of(replace(NOTICE, text=text), "$text")
    assert not set("<>\n\x1b") & set(shown)


def test_a_long_text_is_truncated() -> None:
    from dataclasses import replace

    assert len(text_of(replace(NOTICE, text="x" * 10_000))) == TEXT_MAX


def test_json_has_every_field() -> None:
    assert json.loads(webhook_request(NOTICE, JSON, "", NOW).body) == {
        "apiVersion": "reconciler/v1", "kind": "Notice", "id": "shop/1", "type": "Failed",
        "at": "2026-03-03T12:00:00Z", "fleet": "shop", "nodePool": "web", "revision": "4f2c9e1a",
        "title": "Launch failed", "text": "no capacity",
    }  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "whsec_"])
def test_the_signature_is_that_of_standard_webhooks(prefix: str) -> None:
    key = b"a secret of 24 bytes or so"
    message = webhook_request(NOTICE, JSON, prefix + base64.b64encode(key).decode(), NOW)
    headers = message.headers
    assert headers["webhook-timestamp"] == str(int(NOW.timestamp()))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + message.body
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


def test_the_id_of_a_message_is_the_same_in_every_attempt() -> None:
    later = NOW.replace(hour=13)
    secret = base64.b64encode(b"a secret of 24 bytes or so").decode()
    ids = {webhook_request(NOTICE, JSON, secret, at).headers["webhook-id"] for at in (NOW, later)}
    assert len(ids) == 1


@pytest.mark.parametrize("key", [b"", b"a", b"fifteen bytes !"])
@pytest.mark.parametrize("prefix", ["", "whsec_"])
def test_a_key_that_anybody_can_guess_signs_nothing(prefix: str, key: bytes) -> None:
    secret = prefix + base64.b64encode(key).decode()
    if not secret:
        assert "webhook-signature" not in webhook_request(NOTICE, JSON, "", NOW).headers
        return
    with pytest.raises(ValueError, match=rf"is a key of {len(key)} bytes; use at least 16"):
        webhook_request(NOTICE, JSON, secret, NOW)


def test_a_secret_that_is_not_base64_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="is not base64") as caught:
        webhook_request(NOTICE, JSON, "s3cr3t!", NOW)
    assert "s3cr3t" not in str(caught.value)
