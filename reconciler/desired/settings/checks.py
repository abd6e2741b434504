"""Checks of the settings in ``reconciler.yaml`` that its schema cannot express."""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.desired.settings.keys import definition_of
from reconciler.desired.settings.layers import (
    flatten_config,
    misplacement_reason,
    misplacement_remedy,
)
from reconciler.model.errors import UsageError
from reconciler.model.json import JsonObject
from reconciler.model.text.urls import without_secrets
from reconciler.source.finding import Finding


def misplaced_settings(config: JsonObject) -> Iterator[Finding]:
    """Yield a finding for each setting that only the operator may set."""
    for key, value in flatten_config(config):
        reason = misplacement_reason(key, value)
        if reason:
            pointer = tuple(key.split("."))
            hint = misplacement_remedy(key)
            yield Finding("operator-setting", pointer, reason, hint, of_key=True)


def unusable_settings(config: JsonObject) -> Iterator[Finding]:
    """Yield a finding for each setting that fits the schema but cannot be used."""
    for key, value in flatten_config(config):
        try:
            definition_of(key, "").read(value)
        except (UsageError, ValueError) as error:
            message = without_secrets(str(error))
            path: tuple[str | int, ...] = getattr(error, "path", ())
            yield Finding("bad-setting", (*key.split("."), *path), message)
