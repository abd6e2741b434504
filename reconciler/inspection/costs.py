"""Who costs what, as a table, an object, or CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

from reconciler.inspection.replies import CostOfGroup, CostReply, CostTotal
from reconciler.model.grouping import Grouping
from reconciler.model.text.money import format_monthly
from reconciler.model.text.visible import one_line
from reconciler.observed.allocation import NANODOLLARS, GroupCost, WorkloadCost, group_costs
from reconciler.render.cells import Section
from reconciler.render.listing import columns
from reconciler.render.reply import table_section

_FORMULA: Final = ("=", "+", "-", "@")
"""The beginnings of a cell that a spreadsheet evaluates."""


def cost_reply(fleet: str, by: Grouping, rows: Iterable[WorkloadCost]) -> CostReply:
    """Return the cost by group; money is USD an hour, and adds up to ``total``."""
    groups = group_costs(rows, by)
    total = CostTotal(
        pods=sum(group.pods for group in groups),
        price_per_hour=round(sum(g.nanodollars for g in groups) / NANODOLLARS, 9),
        idle_per_hour=round(sum(g.idle for g in groups) / NANODOLLARS, 9),
    )
    shown = tuple(
        CostOfGroup(
            name=group.shown_name,
            pods=group.pods,
            price_per_hour=group.per_hour,
            idle_per_hour=group.idle_per_hour,
        )
        for group in groups
    )
    return CostReply(fleet=fleet, by=str(by), groups=shown, total=total)


def cost_section(by: Grouping, rows: Iterable[WorkloadCost]) -> Section:
    """Return the cost by group as a section of a page, the most expensive first."""
    groups = group_costs(rows, by)
    whole = sum(group.nanodollars for group in groups)
    header = (_noun(by), "pods", "$/month", "of which idle", "share")
    return table_section("costs", header, [_cells(group, whole) for group in groups])


def render_costs(fleet: str, by: Grouping, rows: Iterable[WorkloadCost]) -> str:
    """Return the cost by group as a table, the most expensive first."""
    groups = group_costs(rows, by)
    whole = sum(group.nanodollars for group in groups)
    per_hour = whole / NANODOLLARS
    idle = sum(group.idle for group in groups) / NANODOLLARS
    lines = (
        f"{fleet}: {format_monthly(per_hour)}/month by {by}, "
        f"including {format_monthly(idle)} of idle capacity\n"
    )
    if not groups:
        return f"{lines}No pods were observed yet.\n"
    header = (_noun(by).upper(), "PODS", "$/MONTH", "OF WHICH IDLE", "SHARE")
    return f"{lines}\n{columns([header, *(_cells(group, whole) for group in groups)])}"


def _noun(by: Grouping) -> str:
    return by.label or str(by)


def _cells(group: GroupCost, whole: int) -> tuple[str, ...]:
    share = group.nanodollars / whole if whole else 0.0
    return (
        group.shown_name,
        f"{group.pods:,}",
        format_monthly(group.per_hour),
        format_monthly(group.idle_per_hour),
        f"{share:.0%}",
    )


def costs_csv(by: Grouping, rows: Iterable[WorkloadCost]) -> str:
    """Return the cost by group as CSV, in USD an hour."""
    header = (_noun(by), "pods", "usd_per_hour", "idle_usd_per_hour")
    cells = (
        (
            group.shown_name,
            str(group.pods),
            f"{group.per_hour:.9f}",
            f"{group.idle_per_hour:.9f}",
        )
        for group in group_costs(rows, by)
    )
    return to_csv([header, *cells])


def to_csv(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as CSV that no spreadsheet evaluates.

    Names come from a repository and a cluster. A cell that a spreadsheet would take for a formula
    gets an apostrophe before it; negative numbers do not. A cell is one line: a carriage return,
    which the writer does not quote, would begin another row.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([_inert(one_line(cell)) for cell in row])
    return out.getvalue()


def _inert(cell: str) -> str:
    is_number = cell.removeprefix("-").replace(".", "", 1).isdecimal() and cell.isascii()
    return f"'{cell}" if cell.startswith(_FORMULA) and not is_number else cell
