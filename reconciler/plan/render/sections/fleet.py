"""The NodePools with their nodes and cost, and the notes about the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Final

from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import (
    format_hourly,
    format_monthly,
    format_percent_change,
    hourly_difference,
    monthly_difference,
)
from reconciler.observed.allocation import IDLE_NAME
from reconciler.observed.isolation import CODE as UNREADABLE_OBJECT
from reconciler.plan.render.headline import deletes_every_pool
from reconciler.plan.render.risks import other_findings
from reconciler.plan.render.unknown import format_vcpu_price, is_cost_unknown
from reconciler.plan.render.wording import NoteText, note_texts
from reconciler.plan.value.costs import AtRest, PoolChange, PoolCost, sum_pools
from reconciler.plan.value.nodes import OfferedTypes, OffersChange
from reconciler.plan.value.plan import Plan
from reconciler.plan.value.ranges import FleetAtRest
from reconciler.plan.value.shares import ShareChange
from reconciler.render.cells import (
    ROWS_SHOWN_MAX,
    Cell,
    Column,
    Dollars,
    Line,
    Name,
    Number,
    Section,
    SectionRow,
    Text,
    ValueChange,
    group_similar,
    name_cell,
    rows_of,
    summarize_texts,
)

MONTH: Final = Column("$/month", numeric=True, page_only=True)

_TYPES_SHOWN: Final = 3

_GROUPS_SHOWN: Final = 20

_OBJECTS_NAMED: Final = 10


def node_pools(plan: Plan) -> Section | None:
    """Return the NodePools: those that change most, and the others in one row each way."""
    pools = sorted(plan.cost.by_node_pool.items())
    if not pools or (plan.at_rest is not None and plan.at_rest.by_node_pool):
        return None
    if is_cost_unknown(plan):
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
    change = hourly_difference(pool.before, pool.after)
    if name is None and len(names) > 1:
        name = Text(format_count(len(names), "NodePool"))
    return SectionRow(
        cells=(
            name or (Name(names[0]) if names[0] else Text("(no NodePool)")),
            ValueChange(Number(pool.nodes_before), Number(pool.nodes_after)),
            ValueChange(Dollars(pool.before), Dollars(pool.after)),
            Dollars(change, signed=True) if change else Text(""),
            Dollars(pool.after, per_month=True),
        )
    )


def steady_pools(plan: Plan) -> Section | None:
    """Return the NodePools in steady state, without the change and with it.

    Nodes of deleted NodePools stay there while their pods have no other, unlike in the headline.
    """
    change = plan.at_rest
    if change is None or not change.by_node_pool or deletes_every_pool(plan):
        return None
    columns = ("nodes", "$/month", "change")
    pairs = sorted(
        change.by_node_pool.items(),
        key=lambda pair: (-abs(pair[1].after.per_hour - pair[1].before.per_hour), pair[0]),
    )
    clusters = group_similar(pairs, lambda pair: pair[0], _steady_key)
    return Section(
        key="steady",
        title="NodePools in steady state",
        note=f"(base → head{_runs_note(change)})",
        columns=(Column("NodePool"), *(Column(title, numeric=True) for title in columns)),
        rows=rows_of(clusters, _steady_row, "NodePool"),
        lines_title="instance types",
        table=True,
    )


def _runs_note(change: AtRest) -> str:
    """Return that the costs are means of runs, and whether these differ only by chance."""
    if change.range is None or not _has_interval(change):
        return ""
    differ = " and differ by chance" if _is_chance(change) else ""
    return f"; costs are means of {format_count(change.range.seeds, 'run')}{differ}"


def _has_interval(change: AtRest) -> bool:
    found = change.difference
    return found is not None and format_hourly(found.low) != format_hourly(found.high)


def _is_chance(change: AtRest) -> bool:
    """Return whether the runs of a change differ, and do not agree that it has an effect."""
    found = change.difference
    return found is not None and _has_interval(change) and not found.beyond_chance


def _steady_key(pair: tuple[str, PoolChange]) -> bool:
    return pair[1].before == pair[1].after


def _steady_row(pairs: Sequence[tuple[str, PoolChange]]) -> SectionRow:
    before, after = (
        FleetAtRest(nodes=sum(s.nodes for s in sides), per_hour=fsum(s.per_hour for s in sides))
        for sides in ([p.before for _, p in pairs], [p.after for _, p in pairs])
    )
    if len(pairs) == 1:
        ((name, change),) = pairs
        cell: Cell = Name(name) if name else Text("(no NodePool)")
        lines = _type_lines(change)
    else:
        cell, lines = Text(format_count(len(pairs), "NodePool")), ()
    return SectionRow(
        cells=(
            cell,
            ValueChange(Number(before.nodes), Number(after.nodes)),
            ValueChange(
                Dollars(before.per_hour, per_month=True), Dollars(after.per_hour, per_month=True)
            ),
            Text(_percent(before.per_hour, after.per_hour)),
        ),
        lines=lines,
    )


def _percent(before: float, after: float) -> str:
    """Return a change of the cost in percent of what it was, empty without one."""
    if not before or format_monthly(before) == format_monthly(after):
        return ""
    return format_percent_change(100 * (after - before) / before)


def _type_lines(change: PoolChange) -> tuple[Line, ...]:
    before, after = _types(change.before.types), _types(change.after.types)
    if before == after:
        return (Line((Text(after),)),) if after else ()
    texts = [f"{before} →"] if before else []
    return tuple(Line((Text(text),)) for text in (*texts, after or "none"))


def _types(types: Mapping[str, int]) -> str:
    ordered = sorted(types.items(), key=lambda row: (-row[1], row[0]))
    return format_list((f"{count}\xa0×\xa0{name}" for name, count in ordered), _TYPES_SHOWN)


def who_pays(plan: Plan) -> Section | None:
    """Return the workloads whose cost a change affects, those with the largest change first."""
    change = plan.at_rest
    if change is None or change.shares is None or is_cost_unknown(plan):
        return None
    if deletes_every_pool(plan) or _is_chance(change):
        return None
    pairs = change.shares.changes()
    if len(pairs) < 2:  # a single one has the amount of the headline
        return None
    by, columns = change.shares.by.removeprefix("label="), ("$/month", "change")
    return Section(
        key="shares",
        title=f"Cost by {by}",
        note="(steady state, base → head, with shared idle capacity)",
        columns=(Column(by), *(Column(c, numeric=True) for c in columns)),
        rows=tuple(_share_rows(pairs, change.shares.groups)),
        table=True,
        folded=True,
    )


def _share_rows(
    changed: Sequence[tuple[str, ShareChange]], groups: Mapping[str, ShareChange]
) -> Iterator[SectionRow]:
    """Yield the groups with the largest change, and if there are more, the sum of all others."""
    shown = changed[:_GROUPS_SHOWN]
    for name, group in shown:
        yield _share_row(Name(name) if name else Text(IDLE_NAME), group)
    if len(changed) > len(shown):
        names = {name for name, _ in shown}
        others = [group for name, group in groups.items() if name not in names]
        rest = ShareChange(
            before=fsum(group.before for group in others),
            after=fsum(group.after for group in others),
        )
        yield _share_row(Text(f"{len(others)} others"), rest)


def _share_row(name: Cell, group: ShareChange) -> SectionRow:
    return SectionRow(
        cells=(
            name,
            ValueChange(
                Dollars(group.before, per_month=True), Dollars(group.after, per_month=True)
            ),
            Dollars(monthly_difference(group.before, group.after), signed=True, per_month=True),
        )
    )


def offers(plan: Plan) -> Section | None:
    """Return how the change narrows or widens what NodePools may launch."""
    if not plan.offers:
        return None
    clusters = group_similar(sorted(plan.offers.items()), lambda pair: pair[1])
    return Section(
        key="offers",
        title="Offerings",
        note="(what NodePools may launch, base → head)",
        columns=(Column("NodePool"), Column("instance types")),
        rows=rows_of(clusters, _offers_row, "NodePool"),
        lines_title="price",
        folded=plan.at_rest is not None and not is_cost_unknown(plan),
    )


def _offers_row(pairs: Sequence[tuple[str, OffersChange]]) -> SectionRow:
    before, after = pairs[0][1].sides
    prices = dict.fromkeys(map(_cheapest, (before, after)))
    return SectionRow(
        cells=(
            name_cell(tuple(name for name, _ in pairs), "NodePool"),
            ValueChange(Number(before.types, "type"), Number(after.types, "type")),
        ),
        lines=(Line((Text(f"cheapest vCPU a month: {' → '.join(prices)}"),)),),
    )


def _cheapest(side: OfferedTypes) -> str:
    price = format_vcpu_price(side)
    return f"{price} ({side.cheapest})" if side.cheapest else price


def notes(plan: Plan) -> Section | None:
    """Return the findings, most severe first; those of the same kind are one row if many.

    What the headline states is not repeated.
    """
    found = note_texts(other_findings(plan))
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
    text = summarize_texts(f.text for f in group)
    if len(group) > 1 and group[0].code == UNREADABLE_OBJECT:
        others = filter(None, (_subject(f.text) for f in group[1:]))
        text = f"{group[0].text} (also {format_list(others, _OBJECTS_NAMED)})"
    return SectionRow(verb=group[0].severity, cells=(Text(text),))


def _subject(text: str) -> str:
    """Return the object that a finding about one names after its place: ``Pod shop/web-1``."""
    for part in text.split(": "):
        kind, _, name = part.partition(" ")
        if kind.isalpha() and kind[:1].isupper() and name and " " not in name:
            return part
    return ""
