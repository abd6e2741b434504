"""The log of a daemon, as an operator and a log collector read it."""

from __future__ import annotations

import io
import json
import logging
import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.notifications.log import (
    Level,
    LogContext,
    LogFormat,
    LogNotifier,
    level_of,
    log_libraries,
)
from reconciler.ports.progress import EventKind, Progress

START = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)


class Log:
    """A captured log, and the time of its events."""

    def __init__(self, form: LogFormat = "text", **context: str) -> None:
        self.out = io.StringIO()
        self.now = START
        self.notifier = LogNotifier(self.out, SystemClock(START), form, LogContext(**context))

    def notify(
        self, kind: EventKind, message: str, after: timedelta = timedelta(0), **more: Any
    ) -> None:
        self.now += after
        self.notifier.notify(Progress(self.now, kind, message, **more))

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


def test_a_line_has_date_level_kind_and_message() -> None:
    log = Log()
    log.notify(EventKind.LAUNCHED, "web-1: m7i.large")
    log.notify(EventKind.FAILED, "throttled", timedelta(seconds=1))
    assert log.lines == [
        "2026-11-22T10:00:00Z INFO    Launched          web-1: m7i.large",
        "2026-11-22T10:00:01Z ERROR   Failed            throttled",
    ]


def test_json_names_fleet_revision_plan_and_subjects() -> None:
    log = Log("json", fleet="shop", revision="a" * 40, plan="59f008df348d")
    log.notify(EventKind.LAUNCHED, "web-1: m7i.large", node_pool="web", node_claim="web-1")
    assert json.loads(log.lines[0]) == {
        "time": "2026-11-22T10:00:00Z",
        "level": "INFO",
        "event": "Launched",
        "message": "web-1: m7i.large",
        "nodePool": "web",
        "nodeClaim": "web-1",
        "fleet": "shop",
        "revision": "a" * 40,
        "plan": "59f008df348d",
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_message_never_makes_a_second_line(form: LogFormat) -> None:
    log = Log(form)
    log.notify(EventKind.LAUNCHED, "a\nb\x1b[31mc\u2028d")
    (line,) = log.out.getvalue().rstrip("\n").split("\n")
    assert "\x1b" not in line
    assert "\u2028" not in line


def test_a_lasting_problem_is_repeated_after_growing_intervals_with_its_duration() -> None:
    log = Log()
    for _ in range(3 * 60 * 2):  # every half minute for three hours
        log.notify(EventKind.RETRYING, "EC2 is throttling", timedelta(seconds=30))
    assert [line.partition("throttling")[2] for line in log.lines] == [
        "",
        " (for 5m)",
        " (for 15m)",
        " (for 35m)",
        " (for 1h15m)",
        " (for 2h15m)",
    ]


def test_problems_of_two_nodes_are_two_problems() -> None:
    log = Log()
    for _ in range(5):
        log.notify(EventKind.FAILED, "the API refused", timedelta(seconds=1), node_claim="web-1")
        log.notify(EventKind.FAILED, "the API refused", timedelta(seconds=1), node_claim="web-2")
    assert len(log.lines) == 2


def test_a_problem_that_changes_is_logged_again() -> None:
    log = Log()
    log.notify(EventKind.FAILED, "one pod is left", node_claim="web-1")
    log.notify(EventKind.FAILED, "no pod is left", timedelta(seconds=9), node_claim="web-1")
    assert log.lines[1].endswith("no pod is left (for 9s)")


def test_the_end_of_a_lasting_problem_is_logged_once() -> None:
    log = Log()
    for _ in range(3):
        log.notify(EventKind.RETRYING, "EC2 is throttling", timedelta(seconds=30))
    log.notifier.log_resolved(log.now + timedelta(seconds=1))
    log.notifier.log_resolved(log.now + timedelta(seconds=9))
    assert len(log.lines) == 2
    assert log.lines[1].endswith("Resolved          no longer: EC2 is throttling (lasted 1m)")


def test_a_problem_that_recurs_is_not_reported_as_ended() -> None:
    log = Log()
    for _ in range(2):
        started = log.now
        log.notify(EventKind.RETRYING, "EC2 is throttling", timedelta(seconds=30))
        log.notifier.log_resolved(started)
    assert len(log.lines) == 1


def test_a_single_event_has_no_end() -> None:
    log = Log()
    log.notify(EventKind.LAUNCH_FAILED, "no capacity")
    log.notifier.log_resolved(log.now + timedelta(seconds=1))
    assert len(log.lines) == 1


def test_events_other_than_problems_are_never_suppressed() -> None:
    log = Log()
    for _ in range(3):
        log.notify(EventKind.POD_EVICTED, "shop/api")
    assert len(log.lines) == 3


def test_libraries_log_and_warn_into_the_same_log() -> None:
    log = Log("json", fleet="shop")
    with log_libraries(log.notifier):
        logging.getLogger("botocore").warning("retrying %s\nagain", "x")
        logging.getLogger("botocore").info("nothing to see")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old Python", DeprecationWarning, stacklevel=1)
    first, second = (json.loads(line) for line in log.lines)
    assert first["logger"] == "botocore"
    assert first["message"] == "retrying x again"
    assert (first["level"], first["fleet"]) == ("WARNING", "shop")
    assert "old Python" in second["message"]
    logging.getLogger("botocore").warning("not here")
    assert len(log.lines) == 2


def test_every_kind_of_event_has_a_level() -> None:
    assert {level_of(kind) for kind in EventKind} == set(Level)
