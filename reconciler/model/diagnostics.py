"""Problems in the files of a fleet: what is wrong, where, and what to do about it.

A diagnostic is a value, not an exception: one pass over a repository collects every problem, so
that a pull request is corrected in one round instead of one error at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.model.text.quoting import shorten_middle

TEXT_MAX: Final = 2_000
"""Characters of a message, a field or a hint; names of a file can be as long as the file."""


class Severity(StrEnum):
    """The severity of a finding: only an error makes a fleet invalid."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in the repository: ``file`` relative to the fleet, line and column from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding.

    ``code`` is stable and greppable (``unknown-field``); ``path`` is the field as the Kubernetes
    API spells it (``spec.template.spec.requirements[0].operator``); ``hint`` says what to do.
    ``folders`` are those of the sources that a finding on them is about, which ``message`` may
    shorten. ``subject`` identifies the object or the content that a finding leaves out of a plan.
    """

    severity: Severity
    code: str
    message: str
    place: Place | None = None
    path: str = ""
    hint: str = ""
    folders: tuple[str, ...] = ()
    subject: str = ""

    def __post_init__(self) -> None:
        for name in ("message", "path", "hint"):
            text = getattr(self, name)
            if len(text) > TEXT_MAX:
                object.__setattr__(self, name, shorten_middle(text, TEXT_MAX))

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        what = f"{self.path}: " if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.severity}: {what}{self.message}{hint} [{self.code}]"

    @property
    def order(self) -> tuple[str, int, int, str, str, str]:
        """The total order in which findings are reported: by position, then by message."""
        file, line, column = (
            (self.place.file, self.place.line, self.place.column) if self.place else ("", 0, 0)
        )
        return (file, line, column, self.path, self.code, self.message)


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


def passed_check(kind: str, name: str, message: str = "") -> Check:
    return Check(kind, name, Verdict.PASSED, message)


def failed_check(kind: str, name: str, message: str, remedy: str = "") -> Check:
    return Check(kind, name, Verdict.FAILED, message, remedy)


def unknown_check(kind: str, name: str, message: str) -> Check:
    return Check(kind, name, Verdict.UNKNOWN, message)
