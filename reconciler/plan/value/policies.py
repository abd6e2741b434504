"""The verdicts of policies on a plan."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from reconciler.plan.value.part import Part

PolicyResult = Literal["passed", "failed", "exempted"]


class PlannedExemption(Part, frozen=True, kw_only=True):
    """The exemption that applies to a plan, or the last one that has expired."""

    owner: str
    expires: datetime
    expired: bool
    reason: str = ""

    left_out: ClassVar = ("reason",)


class JudgedPolicy(Part, frozen=True, kw_only=True):
    """One policy and whether the plan complies; ``message`` is empty if it does.

    ``source`` is who set the policy. A failed policy with severity ``error`` forbids the plan.
    """

    name: str
    severity: Literal["error", "warning"]
    result: PolicyResult
    message: str = ""
    source: Literal["operator", "base", "head"]
    file: str | None = None
    line: int | None = None
    column: int | None = None
    exemption: PlannedExemption | None = None

    left_out: ClassVar = ("exemption",)
    parts: ClassVar = ("exemption",)

    @property
    def forbids(self) -> bool:
        """Whether the plan must not be merged or applied."""
        return self.result == "failed" and self.severity == "error"
