"""The NodePools with their nodes and cost, and the notes about the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.plan.render.sections.cells import (
    ROWS_SHOWN_MAX,
    Cell,
    Column,
    Dollars,
    Name,
    Number,
    Section,
    SectionRow,
    Text,
    ValueChange,
    group_similar,
    rows_of,
    summarize_texts,
)
from reconciler.plan.render.summary import sum_pools
from reconciler.plan.render.wording import NoteText, format_count, format_hourly, note_texts
from reconciler.plan.value.costs import PoolCost
from reconciler.plan.value.plan import Plan

MONTH: Final = Column("$/month", numeric=True, page_only=True)


def node_pools(plan: Plan) -> Section | None:
    """Return the NodePools: those that change most, and the others in one row each way."""
    pools = sorted(plan.cost.by_node_pool.items())
    if not pools:
        return None
    columns = ("nodes", "$/hour", "change")
    return Section(
        key="pools",
        title="NodePools",
        columns=(Column("NodePool"), *(Column(title, numeric=True) for title in columns), MONTH),
        rows=_pool_rows(pools),
        table=True,
    )


_Pair = tuple[str, PoolCost]


def _pool_rows(pools: Sequence[_Pair]) -> tuple[SectionRow, ...]:
    """Return a row for each NodePool while there are few.

    Otherwise those that change come first, the most expensive change before the others, and those
    with equal changes are one row, as are those that do not change.
    """
    if len(pools) <= ROWS_SHOWN_MAX:
        return tuple(_pools_row([pair]) for pair in pools)
    changed = sorted(
        filter(_has_changed, pools), key=lambda pair: -abs(pair[1].after - pair[1].before)
    )
    unchanged = [pair for pair in pools if not _has_changed(pair)]
    rows = rows_of(group_similar(changed, lambda pair: pair[0], _cost_key), _pools_row, "NodePool")
    if not unchanged:
        return rows
    sums = _pools_row(unchanged, Text(format_count(len(unchanged), "unchanged NodePool"), "soft"))
    return (
        *rows,
        SectionRow(cells=sums.cells, more=tuple(_pools_row([pair]) for pair in unchanged)),
    )


def _cost_key(pair: _Pair) -> tuple[int, int, str, str]:
    pool = pair[1]
    return (
        pool.nodes_before,
        pool.nodes_after,
        format_hourly(pool.before),
        format_hourly(pool.after),
    )


def _has_changed(pair: _Pair) -> bool:
    before, after, cost_before, cost_after = _cost_key(pair)
    return (before, cost_before) != (after, cost_after)


def _pools_row(pairs: Sequence[_Pair], name: Cell | None = None) -> SectionRow:
    names = tuple(name for name, _ in pairs)
    pool = sum_pools(pool for _, pool in pairs)
    change = pool.after - pool.before
    changed = format_hourly(pool.before) != format_hourly(pool.after)
    if name is None and len(names) > 1:
        name = Text(format_count(len(names), "NodePool"))
    return SectionRow(
        cells=(
            name or (Name(names[0]) if names[0] else Text("(no NodePool)")),
            ValueChange(Number(pool.nodes_before), Number(pool.nodes_after)),
            ValueChange(Dollars(pool.before), Dollars(pool.after)),
            Dollars(change, signed=True) if changed else Text(""),
            Dollars(pool.after, per_month=True),
        )
    )


def notes(plan: Plan) -> Section | None:
    """Return the findings, most severe first; those of the same kind are one row if many."""
    found = note_texts(plan.diagnostics)
    if not found:
        return None
    clusters = group_similar(found, lambda f: f, lambda f: (f.severity, f.code))
    return Section(
        key="notes",
        title="Notes",
        columns=(Column("note"),),
        rows=rows_of(clusters, _note_row, "note"),
        folded=all(f.severity == "info" for f in found),
    )


def _note_row(group: Sequence[NoteText]) -> SectionRow:
    return SectionRow(verb=group[0].severity, cells=(Text(summarize_texts(f.text for f in group)),))
