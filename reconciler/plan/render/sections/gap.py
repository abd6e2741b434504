"""What each constraint costs, from the first pass down to the minimum."""

from __future__ import annotations

from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_monthly, format_monthly_parts
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import Column, Section, SectionRow, Text


def constraint_costs(plan: Plan) -> Section | None:
    """Return the parts of the gap between the fleet after the plan and its minimum.

    Each part is what its constraint saves if those above it are dropped as well.
    """
    gap = plan.gap
    if gap is None or not gap.costs:
        return None
    *amounts, total = format_monthly_parts(
        [part.price_per_hour for part in gap.costs], gap.price_per_hour, gap.minimum
    )
    rows = [
        SectionRow(cells=(Text(amount), Text(part.constraint), Text(part.owner), Text(part.change)))
        for part, amount in zip(gap.costs, amounts, strict=True)
    ]
    rows.append(SectionRow(cells=(Text(total), Text("all of these"), Text(""), Text(""))))
    cost = f"{format_monthly(gap.price_per_hour)} → {format_monthly(gap.minimum)}/month"
    pods = format_count(gap.pods, "pod")
    return Section(
        key="gap",
        title="What each constraint costs",
        note=f"({cost} for {pods}, after the first pass → without them)",
        columns=(
            Column("$/month", numeric=True),
            Column("constraint"),
            Column("owner"),
            Column("smallest change"),
        ),
        rows=tuple(rows),
        folded=True,
        table=True,
    )
