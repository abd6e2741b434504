"""Compare two sets of objects: created, changed and deleted objects, and changed fields.

Objects are plain data, read from YAML or from a cluster. For each changed field the result includes
whether the change drifts running nodes, which a reviewer of a pull request must know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reconciler.desired.hash import object_hash
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.karpenter.requirements import Requirement, Requirements, requirement

Object = JsonObject

CREATE: Final = "create"
UPDATE: Final = "update"
DELETE: Final = "delete"

_REQUIREMENTS: Final = ("spec", "template", "spec", "requirements")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that differs; ``old`` or ``new`` is None if it is not set on that side.

    ``drifts`` is whether nodes launched before the change have to be replaced.
    """

    path: str
    old: object
    new: object
    drifts: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One object that git creates, changes or deletes, with its ``file`` and ``line``."""

    op: str
    kind: str
    name: str
    file: str | None = None
    line: int | None = None
    fields: tuple[FieldChange, ...] = ()

    @property
    def drifts(self) -> bool:
        """Whether running nodes have to be replaced because of it."""
        return any(field.drifts for field in self.fields)


Place = Callable[[Object], tuple[str | None, int | None]]


def _nowhere(_: Object) -> tuple[str | None, int | None]:
    return None, None


def changes(
    base: Iterable[Object], head: Iterable[Object], *, place: Place = _nowhere
) -> tuple[Change, ...]:
    """Return the changes from ``base`` to ``head``, ordered by kind and name.

    ``place`` returns file and line of an object. Status, and metadata except for labels and
    annotations, do not count: they are not desired state.
    """
    old, new = _by_key(base), _by_key(head)
    found: list[Change] = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        kind, _, name = key
        if before is None:
            assert after is not None
            found.append(Change(CREATE, kind, name, *place(after)))
        elif after is None:
            found.append(Change(DELETE, kind, name, *place(before)))
        elif fields := field_changes(before, after):
            found.append(Change(UPDATE, kind, name, *place(after), fields))
    return tuple(found)


def _by_key(objects: Iterable[Object]) -> dict[tuple[str, str, str], Object]:
    return {
        (o["kind"], o.get("metadata", {}).get("namespace") or "", o["metadata"]["name"]): o
        for o in objects
    }


def field_changes(before: Object, after: Object) -> tuple[FieldChange, ...]:
    """Return the leaves that differ between two versions of one object, ordered by path.

    Lists are leaves, because their entries have no names.
    """
    if before == after:  # nearly always: each plan of a loop compares the same objects
        return ()
    leaves = sorted(_differing(_desired_part(before), _desired_part(after), ()))
    found: list[FieldChange] = []
    for path in leaves:
        old, new = _at(before, path), _at(after, path)
        found.append(FieldChange(dotted(path), old, new, drifts_nodes(before, path, new)))
    return tuple(found)


def _desired_part(item: Object) -> JsonDict:
    metadata = item.get("metadata") or {}
    kept = {k: metadata[k] for k in ("labels", "annotations") if metadata.get(k)}
    rest = {k: v for k, v in item.items() if k not in ("apiVersion", "kind", "metadata", "status")}
    return {**rest, "metadata": kept}


def _differing(old: object, new: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the leaves that differ; a branch on one side only is expanded."""
    branches = [side for side in (old, new) if isinstance(side, Mapping)]
    others = [side for side in (old, new) if not isinstance(side, Mapping) and side is not None]
    if not branches or others:
        if old != new:
            yield path
        return
    left, right = (side if isinstance(side, Mapping) else {} for side in (old, new))
    if left == right and old != new:
        yield path  # an empty branch on one side only: there is no leaf to name
    for key in left.keys() | right.keys():
        yield from _differing(left.get(key), right.get(key), (*path, key))


def _at(item: object, path: Sequence[str]) -> object:
    for step in path:
        item = item.get(step) if isinstance(item, Mapping) else None
    return item


def _with(item: object, path: Sequence[str], value: object) -> dict[str, object]:
    """Return a copy of ``item`` with ``value`` at the leaf ``path``; None removes it."""
    copy = dict(item) if isinstance(item, Mapping) else {}
    if len(path) > 1:
        copy[path[0]] = _with(copy.get(path[0]), path[1:], value)
    elif value is None:
        copy.pop(path[0], None)
    else:
        copy[path[0]] = value
    return copy


def dotted(path: Sequence[str]) -> str:
    """Return the path as diagnostics write it; a key with dots or slashes is in brackets."""
    text = ""
    for step in path:
        if "." in step or "/" in step:
            text += f'["{step}"]'
        else:
            text += f".{step}" if text else step
    return text


def drifts_nodes(item: Object, path: Sequence[str], new: object) -> bool:
    """Return whether setting this one field to ``new`` replaces running nodes.

    Karpenter's own rule is applied: the hash of the object with the change is compared with the one
    without it. Requirements are not part of the hash; they count if a node may no longer satisfy
    them. What a selector of an EC2NodeClass *finds* may drift nodes, its text does not.
    """
    if item["kind"] == "NodePool" and tuple(path) == _REQUIREMENTS:
        return narrows(_at(item, path), new)
    try:
        return object_hash(_with(item, path, new)) != object_hash(item)
    except ValueError:
        return True  # unreadable on one side: the reviewer should check it


def narrows(old: object, new: object) -> bool:
    """Return whether a node that met the ``old`` requirements may not meet the ``new`` ones.

    True if any key allows less than before; the labels of a given node may still match.
    """
    before, after = _by_label(old), _by_label(new)
    for key, wanted in after.items():
        had = before.get(key)
        if had is None or not _covers(wanted, had):
            return True
    return False


def _by_label(entries: Any) -> Requirements:
    return Requirements(
        requirement(str(e["key"]), str(e["operator"]), map(str, e.get("values") or ()))
        for e in entries or ()
    )


def _covers(wide: Requirement, narrow: Requirement) -> bool:
    """Return whether every value that ``narrow`` allows is allowed by ``wide``."""
    if not narrow.complement:
        return all(wide.has(value) for value in narrow.values)
    if not wide.complement or not wide.values <= narrow.values:
        return False
    above = wide.gte is None or (narrow.gte is not None and narrow.gte >= wide.gte)
    below = wide.lte is None or (narrow.lte is not None and narrow.lte <= wide.lte)
    return above and below
