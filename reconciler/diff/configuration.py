"""Compare two versions of ``reconciler.yaml`` by setting, including the price book."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from reconciler.diff.changes import UPDATE, Change, FieldChange
from reconciler.model.json import JsonObject

KIND: Final = "Configuration"

Object = JsonObject
Place = Callable[[str], tuple[str, int]]
"""Finds file and line of a setting of the current file by its dotted key."""

_NO_SETTINGS: Final = ("apiVersion", "kind", "metadata")


def configuration_changes(
    base: Object | None, head: Object | None, place: Place
) -> tuple[Change, ...]:
    """Return the settings that differ, one change for each first-level key."""
    old, new = _settings(base), _settings(head)
    found = []
    for key in sorted(old.keys() | new.keys()):
        fields = tuple(_differing(key, old.get(key), new.get(key)))
        if fields:
            found.append(Change(UPDATE, KIND, key, *place(fields[0].path), fields))
    return tuple(found)


def _settings(config: Object | None) -> dict[str, object]:
    return {k: v for k, v in (config or {}).items() if k not in _NO_SETTINGS and v is not None}


def _differing(path: str, old: object, new: object) -> Iterator[FieldChange]:
    """Yield the settings that differ; lists are leaves."""
    if old == new:
        return
    sides = [side for side in (old, new) if side is not None]
    if not all(isinstance(side, Mapping) for side in sides):
        yield FieldChange(path, old, new)
        return
    was, wanted = (side if isinstance(side, Mapping) else {} for side in (old, new))
    for key in sorted(was.keys() | wanted.keys()):
        yield from _differing(f"{path}.{key}", was.get(key), wanted.get(key))
