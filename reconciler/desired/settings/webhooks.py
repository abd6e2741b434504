"""Reads the webhooks that receive notifications from the operator's config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template
from typing import Final

from reconciler.desired.settings.policy import names_in, read_entries, text_in
from reconciler.model.notification import NoticeKind, Webhook, WebhookFormat

_KEYS: Final = ("urlVariable", "format", "events", "secretVariable", "template")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
FIELDS: Final = ("fleet", "kind", "title", "text", "node_pool", "revision")
"""What a template can show."""


def webhooks(value: object) -> tuple[Webhook, ...]:
    """Return the webhooks, in order.

    Raises:
        ValueError: an entry cannot be read.
    """
    return tuple(read_entries(value, _KEYS, _webhook))


def _webhook(entry: Mapping[str, object]) -> Webhook:
    url, secret = _variable(entry, "urlVariable"), _variable(entry, "secretVariable")
    if not url:
        raise ValueError("urlVariable: required field is missing")
    form = text_in(entry, "format") or WebhookFormat.SLACK.value
    if form not in tuple(WebhookFormat):
        raise ValueError(f"format: {form[:40]!r} is not allowed (one of slack, json)")
    if secret and form != WebhookFormat.JSON:
        raise ValueError("secretVariable: only requests in the format json are signed")
    kinds = names_in(entry, "events", tuple(kind.value for kind in NoticeKind))
    return Webhook(
        url, WebhookFormat(form), tuple(map(NoticeKind, kinds)), secret, _template(entry)
    )


def _variable(entry: Mapping[str, object], key: str) -> str:
    name = text_in(entry, key)
    if name and not _VARIABLE.fullmatch(name):
        # Never the value: somebody who confuses the two writes a secret here.
        raise ValueError(f"{key}: must be the name of an environment variable, not the value")
    return name


def _template(entry: Mapping[str, object]) -> str:
    text = text_in(entry, "template")
    template = Template(text)
    if not template.is_valid():
        raise ValueError("template: write $$ for a dollar sign that begins no name")
    unknown = [name for name in template.get_identifiers() if name not in FIELDS]
    if unknown:
        known = ", ".join(f"${name}" for name in FIELDS)
        raise ValueError(f"template: ${unknown[0][:40]} is unknown (one of {known})")
    return text
