"""What a change brings about later, and what is wrong with the objects that it changes."""

from __future__ import annotations

from typing import Final

from reconciler.model.decision.finding import PlanFinding
from reconciler.model.text.quoting import without_backticks
from reconciler.plan.render.unknown import is_cost_unknown
from reconciler.plan.value.plan import Plan

_RISKS: Final = (
    "fleet-renamed",
    "region-unstated",
    "change-not-read",
    "image-version",
    "change-not-included",
    "cost-of-requests",
    "change-never-disrupts",
    "change-blocks-evictions",
    "change-of-budgets",
    "change-waits-for-windows",
    "change-untolerated-taint",
    "change-of-architecture",
    "change-of-spot-types",
    "change-adds-taint",
    "change-lowers-limit",
    "change-leaves-little-room",
    "change-follows-images",
    "change-expires-earlier",
    "change-of-grace-period",
    "change-consolidates-later",
    "change-of-overlay",
)
"""The findings that a reviewer must see at once, in this order."""

_RISKS_SHOWN: Final = 4
_RISKS_OF_FILES: Final = (
    "short-expiry",
    "short-grace-period",
    "idle-requirement",
    "idle-limit",
    "idle-consolidation",
    "limit-below-node",
    "memory-unit",
    "overlay-gate-off",
)
"""The findings on an object that a reviewer must see at once if the object changes."""


def risk_lines(plan: Plan) -> list[str]:
    """Return what the change brings about later (``plan.rest.risks``)."""
    found = _risks_of(plan)
    lines = [f"{without_backticks(_risk_phrase(f))}." for f in found[:_RISKS_SHOWN]]
    more = len(found) - _RISKS_SHOWN
    return [*lines, f"And {more} more (see the notes)."] if more > 0 else lines


def other_findings(plan: Plan) -> list[PlanFinding]:
    """Return the findings that the headline does not state, which are the notes."""
    shown = _risks_of(plan)[:_RISKS_SHOWN]
    return [finding for finding in plan.diagnostics if finding not in shown]


def _risks_of(plan: Plan) -> list[PlanFinding]:
    """Return the findings that a reviewer must see, the most important first.

    A fleet that changes its region has none: only what the new region costs is known.
    """
    is_moved = plan.findings_of("region-changed")
    if is_moved and plan.at_rest is not None and not is_cost_unknown(plan):
        return []
    found = [f for f in plan.diagnostics if f.code in _RISKS or _is_of_change(plan, f)]
    return sorted(found, key=lambda f: (*_RISKS, *_RISKS_OF_FILES).index(f.code))


def _is_of_change(plan: Plan, finding: PlanFinding) -> bool:
    """Return whether a finding is on an object that changes: its file does, if it is in one."""
    if finding.code not in _RISKS_OF_FILES or plan.at_rest is None:
        return False
    kind = "NodeOverlay" if finding.code == "overlay-gate-off" else "NodePool"
    return any(
        change.kind == kind and change.op != "delete" and finding.file in (None, change.file)
        for change in plan.changes
    )


def _risk_phrase(finding: PlanFinding) -> str:
    """Return a message with the field that it is about, if it does not name an object."""
    text = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
    if finding.code not in _RISKS_OF_FILES or finding.path is None or finding.file is None:
        return text
    return f"{finding.file}:{finding.line}: {finding.path.rpartition('.')[2]}: {text}"
