"""The NodePools with their nodes and cost, and the notes about the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.plan.render.sections.cells import (
    Cell,
    Column,
    Count,
    Money,
    Moved,
    Name,
    Row,
    Section,
    Text,
)
from reconciler.plan.render.sections.grouping import MOST, condensed, one_of, rows_of
from reconciler.plan.render.summary import summed
from reconciler.plan.render.wording import Finding, counted, findings_of, hourly
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


def _pool_rows(pools: Sequence[tuple[str, PoolCost]]) -> tuple[Row, ...]:
    """Return a row for each NodePool while there are few; else for those that change most."""
    if len(pools) <= MOST:
        return tuple(_pool(Name(name) if name else Text("(no NodePool)"), p) for name, p in pools)
    moved = [pair for pair in pools if _moves(pair[1])]
    still = [pair for pair in pools if not _moves(pair[1])]
    moved.sort(key=lambda pair: -abs(pair[1].after - pair[1].before))
    most = MOST - 2 if len(moved) > MOST - 1 else len(moved)
    shown = {name for name, _ in moved[:most]}
    rows = _pool_rows([pair for pair in pools if pair[0] in shown]) if shown else ()
    others = [pair for pair in pools if pair[0] not in shown and _moves(pair[1])]
    return (*rows, *_folded("more NodePool", others), *_folded("unchanged NodePool", still))


def _folded(noun: str, pools: Sequence[tuple[str, PoolCost]]) -> tuple[Row, ...]:
    if not pools:
        return ()
    every = tuple(_pool(Name(name) if name else Text("(no NodePool)"), p) for name, p in pools)
    row = _pool(Text(counted(len(pools), noun), "soft"), summed(p for _, p in pools))
    return (Row(cells=row.cells, more=every),)


def _moves(pool: PoolCost) -> bool:
    return (pool.nodes_before, hourly(pool.before)) != (pool.nodes_after, hourly(pool.after))


def _pool(name: Cell, pool: PoolCost) -> Row:
    change = pool.after - pool.before
    changed = hourly(pool.before) != hourly(pool.after)
    return Row(
        cells=(
            name,
            Moved(Count(pool.nodes_before), Count(pool.nodes_after)),
            Moved(Money(pool.before), Money(pool.after)),
            Money(change, signed=True) if changed else Text(""),
            Money(pool.after, per_month=True),
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


def _note(group: Sequence[Finding]) -> Row:
    return Row(verb=group[0].severity, cells=(Text(one_of(f.text for f in group)),))
