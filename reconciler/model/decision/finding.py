"""Findings in the flat format of JSON: those of a plan, and those of ``validate``."""

from __future__ import annotations

from typing import Literal

from reconciler.model.decision.part import Part
from reconciler.model.diagnostics import Diagnostic


class PlanFinding(Part, frozen=True, kw_only=True):
    """A diagnostic in the flat format of the schema; what is unknown is None."""

    severity: Literal["error", "warning", "info"]
    code: str
    message: str
    path: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None


def finding_of(diagnostic: Diagnostic) -> PlanFinding:
    """Return a diagnostic in the flat format."""
    place = diagnostic.place
    return PlanFinding(
        severity=diagnostic.severity.value,
        code=diagnostic.code,
        message=diagnostic.message,
        path=diagnostic.path or None,
        file=place.file if place is not None else None,
        line=place.line if place is not None else None,
        column=place.column if place is not None else None,
        hint=diagnostic.hint or None,
    )
