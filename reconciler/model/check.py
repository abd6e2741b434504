"""What was looked at before anything is written, and what it means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It could not be looked at, or need not be: no reason to stop."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: its ``kind``, its ``name`` where there are several, and how.

    ``remedy`` is what to do where it failed.
    """

    kind: str
    name: str
    verdict: Verdict
    message: str = ""
    remedy: str = ""


def passed(kind: str, name: str, message: str = "") -> Check:
    return Check(kind, name, Verdict.PASSED, message)


def failed(kind: str, name: str, message: str, remedy: str = "") -> Check:
    return Check(kind, name, Verdict.FAILED, message, remedy)


def unknown(kind: str, name: str, message: str) -> Check:
    return Check(kind, name, Verdict.UNKNOWN, message)
