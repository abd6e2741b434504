"""What a migration did to an object, and what it could not do."""

from __future__ import annotations

from typing import NamedTuple

from reconciler.model.diagnostics import Severity
from reconciler.source.document import Pointer


class Note(NamedTuple):
    """A remark on one object.

    ``pointer`` is the field as it was written before. An INFO is a change that keeps the meaning, a
    WARNING a removed field without a successor, and an ERROR something that a person has to
    complete.
    """

    severity: Severity
    pointer: Pointer
    message: str
    hint: str = ""


def changed(pointer: Pointer, message: str) -> Note:
    """Return the note on a change that keeps the meaning."""
    return Note(Severity.INFO, pointer, message)


def dropped(pointer: Pointer, message: str, hint: str = "") -> Note:
    """Return the note on a field that has no successor."""
    return Note(Severity.WARNING, pointer, message, hint)


def unfinished(pointer: Pointer, message: str, hint: str) -> Note:
    """Return the note on what a person has to complete."""
    return Note(Severity.ERROR, pointer, message, hint)
