"""What each constraint costs, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_monthly
from reconciler.observed.allocation import NANODOLLARS
from reconciler.render.listing import columns

if TYPE_CHECKING:
    from reconciler.model.json import JsonDict
    from reconciler.plan.rest.gap import GapExplanation, GapPart


def gap_document(fleet: str, gap: GapExplanation) -> JsonDict:
    """Return the parts as an object; money is USD an hour."""
    from reconciler.plan.rest.gap import planned_gap

    parts: JsonDict = msgspec.to_builtins(planned_gap(gap))
    return {"apiVersion": "reconciler/v1", "kind": "GapExplanation", "fleet": fleet, **parts}


def render_gap(fleet: str, gap: GapExplanation) -> str:
    """Return the parts as a table in the order in which the constraints were dropped."""
    cost, least = (amount / NANODOLLARS for amount in (gap.fleet, gap.minimum))
    pods = format_count(gap.pods, "pod")
    head = f"{fleet}: {format_monthly(cost)}/month for {pods}"
    if not gap.parts:
        return f"{head}. This is the minimum.\n{_notes(gap)}"
    bound = gap.bound / NANODOLLARS
    types = ""
    if gap.bound != gap.minimum:
        types = f" ({format_monthly(bound)} with the present capacity types)"
    lines = f"{head}; {format_monthly(least)} without these constraints{types}.\n"
    header = ("$/MONTH", "CONSTRAINT", "OWNER", "SMALLEST CHANGE")
    rows = [
        *(_cells(part) for part in gap.parts),
        (format_monthly(cost - least), "all of these", "", ""),
    ]
    return f"{lines}\n{columns([header, *rows])}{_notes(gap)}"


def _cells(part: GapPart) -> tuple[str, ...]:
    return format_monthly(part.per_hour), part.what, part.owner, part.change


def _notes(gap: GapExplanation) -> str:
    notes = []
    if gap.unplaced:
        notes.append(
            f"{format_count(gap.unplaced, 'pod')} cannot be scheduled, and cost nothing here."
        )
    if gap.is_limited:
        notes.append("The constraints of smaller workloads were dropped together.")
    return "".join(f"\n{note}\n" for note in notes)
