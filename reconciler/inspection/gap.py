"""What each constraint costs, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_monthly, format_monthly_parts
from reconciler.observed.allocation import NANODOLLARS
from reconciler.plan.value.costs import PlannedGap
from reconciler.render.listing import columns
from reconciler.render.reply import table_section, text_section

if TYPE_CHECKING:
    from reconciler.plan.rest.gap import GapExplanation
    from reconciler.render.cells import Section

_HEADER: Final = ("$/MONTH", "CONSTRAINT", "OWNER", "SMALLEST CHANGE")


class GapReply(PlannedGap, frozen=True, kw_only=True):
    """The reply of ``explain gap`` (``schemas/gapexplanation.v1.json``); money is USD an hour."""

    api_version: str = "reconciler/v1"
    kind: str = "GapExplanation"
    fleet: str


def gap_reply(fleet: str, gap: GapExplanation) -> GapReply:
    """Return the parts for programs."""
    from reconciler.plan.rest.gap import planned_gap

    return GapReply(fleet=fleet, **msgspec.structs.asdict(planned_gap(gap)))


def gap_sections(fleet: str, gap: GapExplanation) -> tuple[Section, ...]:
    """Return the sum in sentences, and the parts as a table."""
    lead = text_section("sum", "", (_head(fleet, gap), *_notes(gap)))
    return (lead, table_section("gap", _HEADER, _rows(gap)[1:])) if gap.parts else (lead,)


def render_gap(fleet: str, gap: GapExplanation) -> str:
    """Return the parts as a table in the order in which the constraints were dropped."""
    notes = "".join(f"\n{note}\n" for note in _notes(gap))
    head = _head(fleet, gap)
    return f"{head}\n\n{columns(_rows(gap))}{notes}" if gap.parts else f"{head}\n{notes}"


def _head(fleet: str, gap: GapExplanation) -> str:
    """Return the cost of the fleet and its minimum."""
    cost, least, bound = (
        format_monthly(amount / NANODOLLARS) for amount in (gap.fleet, gap.minimum, gap.bound)
    )
    head = f"{fleet}: {cost}/month for {format_count(gap.pods, 'pod')} after the first pass"
    if not gap.parts:
        return f"{head}. This is the minimum."
    types = "" if gap.bound == gap.minimum else f" ({bound} with the present capacity types)"
    return f"{head}; {least} without these constraints{types}."


def _rows(gap: GapExplanation) -> list[tuple[str, ...]]:
    ends = gap.fleet / NANODOLLARS, gap.minimum / NANODOLLARS
    *amounts, total = format_monthly_parts([part.per_hour for part in gap.parts], *ends)
    parts = [
        (amount, part.what, part.owner, part.change)
        for part, amount in zip(gap.parts, amounts, strict=True)
    ]
    return [_HEADER, *parts, (total, "all of these", "", "")]


def _notes(gap: GapExplanation) -> list[str]:
    notes = []
    if gap.unplaced:
        notes.append(
            f"{format_count(gap.unplaced, 'pod')} cannot be scheduled, and cost nothing here."
        )
    if gap.is_limited:
        notes.append("The constraints of smaller workloads were dropped together.")
    return notes
