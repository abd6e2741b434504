"""Checks of the settings in ``reconciler.yaml`` that its schema cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.desired.settings.keys import definition_of
from reconciler.desired.settings.layers import (
    flatten_config,
    misplacement_reason,
    misplacement_remedy,
)
from reconciler.model.diagnostics import Severity
from reconciler.model.errors import UsageError
from reconciler.model.json import JsonObject
from reconciler.model.schedule import parse_schedule
from reconciler.model.text.urls import without_secrets
from reconciler.source.finding import Finding

_SCHEDULED: Final = ("windows", "budgets")


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


def schedules_without_time_zone(config: JsonObject) -> Iterator[Finding]:
    """Yield a warning for each schedule of ours whose time zone is left open.

    It is UTC then, which people who write "22:00" rarely mean. The budgets of a NodePool are
    Karpenter's, whose schedules are always in UTC.
    """
    for key in _SCHEDULED:
        for number, entry in enumerate(config.get("disruption", {}).get(key, ())):
            if "schedule" not in entry or "timeZone" in entry:
                continue
            schedule = parse_schedule(entry["schedule"])
            if schedule.is_hourly:
                continue  # the same in every time zone
            pointer = ("disruption", key, number, "schedule")
            message = "has no time zone, so it is in UTC"
            hint = "add timeZone, such as Europe/Berlin, or UTC if that is meant"
            yield Finding("no-time-zone", pointer, message, hint, Severity.WARNING)
