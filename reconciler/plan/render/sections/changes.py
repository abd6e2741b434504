"""What git changes: objects, their fields, and how many nodes no longer match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from reconciler.plan.render.sections.cells import (
    Cell,
    Column,
    Edit,
    Line,
    Name,
    NameList,
    Number,
    Section,
    SectionRow,
    Text,
    common,
    condensed,
    rows_of,
)
from reconciler.plan.render.wording import (
    compared,
    counted,
    fields_summary,
    format_value,
    list_changes,
    plural,
)
from reconciler.plan.value.actions import PlannedChange, PlannedFieldChange
from reconciler.plan.value.plan import Plan

_EDITS_MAX: Final = 10
_VALUE_MAX: Final = 400


def changes(plan: Plan) -> Section | None:
    """Return what git changes; objects with the same change are one row."""
    if not plan.changes:
        return None
    clusters = condensed(plan.changes, _same, _same_fields, _same_paths, _same_kind)
    return Section(
        key="changes",
        title="Git changes",
        note=compared(plan),
        columns=(Column("object"), Column("effect"), Column("where")),
        rows=rows_of(clusters, _change, "object"),
        lines_title="fields",
    )


def _same(change: PlannedChange) -> object:
    own = () if change.op == "update" else (change.name, change.file)
    return (*own, _same_fields(change))


def _same_fields(change: PlannedChange) -> object:
    return (change.op, change.kind, msgspec.json.encode(change.fields))


def _same_paths(change: PlannedChange) -> object:
    return (change.op, change.kind, tuple(field.path for field in change.fields))


def _same_kind(change: PlannedChange) -> object:
    return (change.op, change.kind)


def _change(group: Sequence[PlannedChange]) -> SectionRow:
    first = group[0]
    drifted = sum(len(change.drifted) for change in group)
    lines, more = _lines(group)
    if len(group) > 1:
        more = tuple(msgspec.structs.replace(_change([c]), lines=(), more=()) for c in group)
    return SectionRow(
        verb=first.op,
        cells=(
            _object(group),
            Number(drifted, "node", "drifted") if drifted else Text(""),
            _place(group),
        ),
        lines=lines,
        more=more,
    )


def _object(group: Sequence[PlannedChange]) -> Cell:
    kind = group[0].kind
    if len(group) == 1:
        return Name(group[0].name, kind)
    many = counted(len(group), kind, plural(kind))
    return NameList(tuple(change.name for change in group), kind, f"{many}:", most=3)


def _place(group: Sequence[PlannedChange]) -> Cell:
    places = [f"{c.file}:{c.line}" if c.line else c.file for c in group if c.file]
    if not places:
        return Text("")
    where = common(places)
    return Name(where) if where else Text(counted(len(set(places)), "place"), "soft")


def _lines(group: Sequence[PlannedChange]) -> tuple[tuple[Line, ...], tuple[SectionRow, ...]]:
    """Return the fields that change, and as rows those beyond what is listed."""
    first = group[0]
    if first.op != "update":
        return (), ()
    summary = fields_summary(first)
    if summary is not None:
        return (Line((Text(summary),)),), tuple(map(_unfolded, map(_edit, first.fields)))
    cells = _edits(group)
    shown = tuple(Line((cell,)) for cell in cells[:_EDITS_MAX])
    rest = cells[_EDITS_MAX:]
    if rest:
        shown = (*shown, Line((Text(f"and {counted(len(rest), 'more field')}", "soft"),)))
    return shown, tuple(map(_unfolded, rest))


def _unfolded(cell: Cell) -> SectionRow:
    return SectionRow(cells=(cell, Text(""), Text("")))


def _edits(group: Sequence[PlannedChange]) -> list[Cell]:
    """Return each field with its values, or with how many different changes it has."""
    by_path: dict[str, list[PlannedFieldChange]] = {}
    for change in group:
        for field in change.fields:
            by_path.setdefault(field.path, []).append(field)
    cells: list[Cell] = []
    for path, fields in by_path.items():
        kinds = {msgspec.json.encode(field) for field in fields}
        if len(fields) == len(group) and len(kinds) == 1:
            cells.append(_edit(fields[0]))
        else:
            drift = ", causes drift" if any(field.drifts for field in fields) else ""
            cells.append(Text(f"{path}: {counted(len(kinds), 'different change')}{drift}"))
    return cells


def _edit(field: PlannedFieldChange) -> Edit:
    lists = list_changes(field.old, field.new)
    old, new = lists if lists is not None else ([field.old], [field.new])
    width = _VALUE_MAX if lists is not None else 60
    return Edit(
        field.path, _values(old, width), _values(new, width), field.drifts, lists is not None
    )


def _values(values: Sequence[Any], width: int) -> tuple[str, ...]:
    return tuple(format_value(value, width) for value in values)
