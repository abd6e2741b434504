"""The checks that run before anything is written, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It could not be checked, or need not be: no reason to stop."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its ``kind``, its ``name`` if there are several, and its result.

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
