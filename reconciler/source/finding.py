"""A finding on one object, before it has a file position: checks only know field paths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reconciler.model.diagnostics import Severity
from reconciler.source.document import Pointer


class Finding(NamedTuple):
    """One error in an object.

    ``pointer`` is the field from the object's root, ``of_key`` whether the key itself is wrong
    rather than its value. Findings on the fields in ``replaces`` would report the same error again.
    """

    code: str
    pointer: Pointer
    message: str
    hint: str = ""
    severity: Severity = Severity.ERROR
    of_key: bool = False
    replaces: tuple[Pointer, ...] = ()


def field_path(pointer: Iterable[str | int]) -> str:
    """Return a pointer in Kubernetes' notation: ``spec.requirements[0].key``, ``labels[a.b/c]``."""
    text = ""
    for step in pointer:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step and all(c.isalnum() or c in "-_" for c in step):
            text += f".{step}" if text else step
        else:
            text += f"[{step[:80]}]"
    return text


def without_reported(findings: list[Finding], reported: list[Finding]) -> list[Finding]:
    """Return the findings at fields that none of ``reported`` covers."""
    pointers = [f.pointer for f in reported] + [p for f in reported for p in f.replaces]
    return [f for f in findings if not any(f.pointer[: len(p)] == p for p in pointers)]
