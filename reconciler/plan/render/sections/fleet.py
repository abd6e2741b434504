"""The NodePools with their nodes and cost, and the notes about the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.plan.render.sections.cells import (
    MOST,
    Cell,
    Column,
    Dollars,
    Moved,
    Name,
    Number,
    Section,
    SectionRow,
    Text,
    condensed,
    one_of,
    rows_of,
)
from reconciler.plan.render.summary import summed
from reconciler.plan.render.wording import NoteText, counted, findings_of, hourly
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
    that change alike are one row, as are those that do not change.
    """
    if len(pools) <= MOST:
        return tuple(_pools([pair]) for pair in pools)
    moved = sorted(filter(_moves, pools), key=lambda pair: -abs(pair[1].after - pair[1].before))
    still = [pair for pair in pools if not _moves(pair)]
    rows = rows_of(condensed(moved, lambda pair: pair[0], _costs), _pools, "NodePool")
    if not still:
        return rows
    sums = _pools(still, Text(counted(len(still), "unchanged NodePool"), "soft"))
    return (*rows, SectionRow(cells=sums.cells, more=tuple(_pools([pair]) for pair in still)))


def _costs(pair: _Pair) -> tuple[int, int, str, str]:
    pool = pair[1]
    return (pool.nodes_before, pool.nodes_after, hourly(pool.before), hourly(pool.after))


def _moves(pair: _Pair) -> bool:
    before, after, cost_before, cost_after = _costs(pair)
    return (before, cost_before) != (after, cost_after)


def _pools(pairs: Sequence[_Pair], name: Cell | None = None) -> SectionRow:
    names = tuple(name for name, _ in pairs)
    pool = summed(pool for _, pool in pairs)
    change = pool.after - pool.before
    changed = hourly(pool.before) != hourly(pool.after)
    if name is None and len(names) > 1:
        name = Text(counted(len(names), "NodePool"))
    return SectionRow(
        cells=(
            name or (Name(names[0]) if names[0] else Text("(no NodePool)")),
            Moved(Number(pool.nodes_before), Number(pool.nodes_after)),
            Moved(Dollars(pool.before), Dollars(pool.after)),
            Dollars(change, signed=True) if changed else Text(""),
            Dollars(pool.after, per_month=True),
        )
    )


def notes(plan: Plan) -> Section | None:
    """Return the findings, most severe first; those of the same kind are one row if many."""
    found = findings_of(plan.diagnostics)
    if not found:
        return None
    clusters = condensed(found, lambda f: f, lambda f: (f.severity, f.code))
    return Section(
        key="notes",
        title="Notes",
        columns=(Column("note"),),
        rows=rows_of(clusters, _note, "note"),
        folded=all(f.severity == "info" for f in found),
    )


def _note(group: Sequence[NoteText]) -> SectionRow:
    return SectionRow(verb=group[0].severity, cells=(Text(one_of(f.text for f in group)),))
