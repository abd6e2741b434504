"""What git changes: objects, their fields, and how many nodes no longer match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from reconciler.diff.changes import CONFIGURATION
from reconciler.model.decision.changes import Change, FieldChange
from reconciler.model.grouping import group_pairs
from reconciler.model.text.counting import format_count, pluralize
from reconciler.plan.render.wording import (
    format_comparison,
    format_value,
    list_changes,
    summarize_fields,
)
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import (
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
    common_value,
    group_similar,
    rows_of,
)

_EDITS_MAX: Final = 10
_VALUE_MAX: Final = 400
_SETTINGS_NAMED_MAX: Final = 6
_SETTINGS_LISTED_MAX: Final = 2


def changes(plan: Plan) -> Section | None:
    """Return what git changes; objects with the same change are one row."""
    if not plan.changes:
        return None
    settings = [change for change in plan.changes if change.kind == CONFIGURATION]
    objects = [change for change in plan.changes if change.kind != CONFIGURATION]
    clusters = group_similar(objects, _row_key, _fields_key, _paths_key, _kind_key)
    rows = rows_of(clusters, _change_row, "object")
    return Section(
        key="changes",
        title="Git changes",
        note=format_comparison(plan),
        columns=(Column("object"), Column("effect"), Column("where")),
        rows=(*rows, _settings_row(settings)) if settings else rows,
        lines_title="fields",
        folded=plan.at_rest is not None,
    )


def _row_key(change: Change) -> object:
    own = () if change.op == "update" else (change.name, change.file)
    return (*own, _fields_key(change))


def _fields_key(change: Change) -> object:
    return (change.op, change.kind, msgspec.json.encode(change.fields))


def _paths_key(change: Change) -> object:
    return (change.op, change.kind, tuple(field.path for field in change.fields))


def _kind_key(change: Change) -> object:
    return (change.op, change.kind)


def _change_row(group: Sequence[Change]) -> SectionRow:
    first = group[0]
    drifted = sum(len(change.drifted) for change in group)
    lines, more = _field_lines(group)
    if len(group) > 1:
        more = tuple(msgspec.structs.replace(_change_row([c]), lines=(), more=()) for c in group)
    return SectionRow(
        verb=first.op,
        cells=(
            _object_cell(group),
            Number(drifted, "node", "drifted") if drifted else Text(""),
            _place_cell(group),
        ),
        lines=lines,
        more=more,
    )


def _settings_row(group: Sequence[Change]) -> SectionRow:
    """Return the settings that change as one row; those of a new fleet are only named."""
    row = _change_row([msgspec.structs.replace(group[0], fields=tuple(_fields(group)))])
    if len(group) > 1:
        names = tuple(change.name for change in group)
        many = NameList(names, CONFIGURATION, f"{len(group)} settings:", most=_SETTINGS_NAMED_MAX)
        row = msgspec.structs.replace(row, cells=(many, *row.cells[1:-1], _place_cell(group)))
    is_new = all(field.old is None for field in _fields(group))
    is_long = len(group) > 1 and len(row.lines) > _SETTINGS_LISTED_MAX
    return msgspec.structs.replace(row, lines=(), more=()) if is_new and is_long else row


def _fields(group: Iterable[Change]) -> Iterator[FieldChange]:
    return (field for change in group for field in change.fields)


def _object_cell(group: Sequence[Change]) -> Cell:
    kind = group[0].kind
    if len(group) == 1:
        return Name(group[0].name, kind)
    many = format_count(len(group), kind, pluralize(kind))
    return NameList(tuple(change.name for change in group), kind, f"{many}:", most=3)


def _place_cell(group: Sequence[Change]) -> Cell:
    files = {change.file for change in group if change.file}
    if len(files) > 1:
        return Text(format_count(len(group), "place"), "soft")
    places = {f"{c.file}:{c.line}" if c.line else c.file for c in group if c.file}
    where = common_value(places) or common_value(files)
    return Name(where) if where else Text("")


def _field_lines(group: Sequence[Change]) -> tuple[tuple[Line, ...], tuple[SectionRow, ...]]:
    """Return the fields that change, and as rows those beyond what is listed."""
    first = group[0]
    if first.op != "update":
        return (), ()
    summary = summarize_fields(first)
    if summary is not None:
        return (Line((Text(summary),)),), tuple(map(_folded_row, map(_edit_cell, first.fields)))
    cells = _edit_cells(group)
    shown = tuple(Line((cell,)) for cell in cells[:_EDITS_MAX])
    rest = cells[_EDITS_MAX:]
    if rest:
        shown = (*shown, Line((Text(f"and {format_count(len(rest), 'more field')}", "soft"),)))
    return shown, tuple(map(_folded_row, rest))


def _folded_row(cell: Cell) -> SectionRow:
    return SectionRow(cells=(cell, Text(""), Text("")))


def _edit_cells(group: Sequence[Change]) -> list[Cell]:
    """Return each field with its values, or with its number of different changes."""
    by_path = group_pairs((field.path, field) for change in group for field in change.fields)
    cells: list[Cell] = []
    for path, fields in by_path.items():
        kinds = {msgspec.json.encode(field) for field in fields}
        if len(fields) == len(group) and len(kinds) == 1:
            cells.append(_edit_cell(fields[0]))
        else:
            drift = ", causes drift" if any(field.drifts for field in fields) else ""
            cells.append(Text(f"{path}: {format_count(len(kinds), 'different change')}{drift}"))
    return cells


def _edit_cell(field: FieldChange) -> Edit:
    lists = list_changes(field.old, field.new)
    old, new = lists if lists is not None else ([field.old], [field.new])
    width = _VALUE_MAX if lists is not None else 60
    return Edit(
        field.path,
        _format_values(old, width),
        _format_values(new, width),
        field.drifts,
        lists is not None,
    )


def _format_values(values: Sequence[Any], width: int) -> tuple[str, ...]:
    return tuple(format_value(value, width) for value in values)
