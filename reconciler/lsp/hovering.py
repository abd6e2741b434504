"""What is known about the field at a cursor: its meaning, instance types, and findings on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from reconciler.lsp import cursors
from reconciler.model.json import as_text
from reconciler.model.text.visible import markdown_code
from reconciler.source.codes import FindingCode, known_codes
from reconciler.source.schema import value_at

if TYPE_CHECKING:
    from reconciler.lsp.cursors import Cursor
    from reconciler.lsp.editedfleet import CheckedFleet
    from reconciler.model.diagnostics import Diagnostic
    from reconciler.source.document import Pointer
    from reconciler.source.objects import Entry

_REQUIREMENTS: Final[dict[str, Pointer]] = {
    "NodePool": ("spec", "template", "spec", "requirements"),
    "NodeOverlay": ("spec", "requirements"),
}
_NAME: Final = (("metadata", "name"), ("kind",), ())


def describe(
    cursor: Cursor, checked: CheckedFleet, found: Sequence[Diagnostic], sets: Sequence[str]
) -> str:
    """Return what is known about a field, as Markdown; empty if nothing is.

    ``found`` are the findings on it, and ``sets`` the settings of the command line.
    """
    parts = [*_type_lines(cursor, checked, sets), *_meaning(cursor), *map(_finding_line, found)]
    return "\n\n".join(part for part in parts if part)


def _meaning(cursor: Cursor) -> Iterator[str]:
    name = cursors.schema_of(cursor.entry)
    node = cursors.node_at(name, cursor.pointer) if name is not None else {}
    if "description" in node:
        yield node["description"]
    if "default" in node and not isinstance(node["default"], (dict, list)):
        yield f"Default: {markdown_code(_as_yaml(node['default']))}"
    if "enum" in node:
        yield "One of " + ", ".join(markdown_code(_as_yaml(value)) for value in node["enum"])


def _as_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_lines(cursor: Cursor, checked: CheckedFleet, sets: Sequence[str]) -> Iterator[str]:
    """Yield the types that one requirement leaves, and those that all of them leave."""
    at = _REQUIREMENTS.get(cursor.entry.kind)
    if at is None:
        return
    pointer, inside = cursor.pointer, cursor.pointer[: len(at)] == at
    every = value_at(cursor.entry.data, at)
    if inside and len(pointer) > len(at) and isinstance(every, list) and len(every) > 1:
        alone = _selection(cursor.entry, [every[int(pointer[len(at)])]], checked, sets)
        if alone:
            yield f"This requirement alone: {alone}"
        together = _selection(cursor.entry, every, checked, sets)
        if together:
            yield f"All requirements of this {cursor.entry.kind}: {together}"
    elif inside or pointer in _NAME:
        yield _selection(cursor.entry, every or [], checked, sets)


def _selection(
    entry: Entry, requirements: object, checked: CheckedFleet, sets: Sequence[str]
) -> str:
    from reconciler.lsp.offers import fleet_catalog, read_requirements, select_types

    wanted = read_requirements(requirements)
    reference: object = value_at(entry.data, ("spec", "template", "spec", "nodeClassRef", "name"))
    if wanted is None:
        return ""
    name = as_text(reference)
    catalog = fleet_catalog(checked.fleet, sets, name)
    return "" if catalog is None else str(select_types(catalog, wanted))


@lru_cache(maxsize=1)
def _codes() -> dict[str, FindingCode]:
    return known_codes()


def _finding_line(finding: Diagnostic) -> str:
    known = _codes().get(finding.code)
    if known is None:
        return ""
    return f"{markdown_code(finding.code)}: {known.meaning} {known.remedy}"
