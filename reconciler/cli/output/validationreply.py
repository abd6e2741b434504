"""The reply of ``validate`` for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from reconciler.model.decision.finding import PlanFinding, finding_of
from reconciler.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from reconciler.assembly.inputs.fixing import Fix, FixResult


class FixReply(msgspec.Struct, frozen=True, kw_only=True, rename={"old": "from", "new": "to"}):
    """A spelling that was rewritten."""

    file: str
    line: int
    column: int
    path: str
    old: str
    new: str


class ValidationReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The findings; with ``--fix`` also what was rewritten, and what must be edited by hand."""

    valid: bool
    diagnostics: tuple[PlanFinding, ...]
    fixed: tuple[FixReply, ...] | msgspec.UnsetType = msgspec.UNSET
    not_fixed: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


def validation_reply(
    diagnostics: Sequence[Diagnostic], valid: bool, fixes: FixResult | None
) -> ValidationReply:
    """Return the reply; ``fixes`` is None without ``--fix``."""
    found = tuple(map(finding_of, diagnostics))
    if fixes is None:
        return ValidationReply(valid=valid, diagnostics=found)
    fixed = tuple(map(_fix_reply, fixes.fixes))
    return ValidationReply(valid=valid, diagnostics=found, fixed=fixed, not_fixed=fixes.failures)


def _fix_reply(fix: Fix) -> FixReply:
    place = fix.place
    return FixReply(
        file=place.file,
        line=place.line,
        column=place.column,
        path=fix.path,
        old=fix.old,
        new=fix.new,
    )
