"""Compare two revisions of a fleet: objects by field, settings by key, and the lock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from reconciler.desired.hash import object_hash
from reconciler.model.decision.changes import Change, ChangeKind, FieldChange
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.karpenter.requirements import Requirement, Requirements, requirement
from reconciler.source.resource import LOCK_FILE

Object = JsonObject

CREATE: Final[ChangeKind] = "create"
UPDATE: Final[ChangeKind] = "update"
DELETE: Final[ChangeKind] = "delete"

_REQUIREMENTS: Final = ("spec", "template", "spec", "requirements")


Place = Callable[[Object], tuple[str | None, int | None]]

_CONTAINERS: Final = "containers"
"""Those of ``initContainers`` have an order that matters."""
_NAME: Final = re.compile(r"[a-z0-9-]{1,63}")
_RESERVED: Final = frozenset({"annotations", "args", "command", "env", "lifecycle"})
"""Names of containers that would look like fields whose values are hidden."""

CONFIGURATION: Final = "Configuration"

_NO_SETTINGS: Final = ("apiVersion", "kind", "metadata")

LOCK: Final = "Lock"


def _unknown_place(_: Object) -> tuple[str | None, int | None]:
    return None, None


def object_changes(
    base: Iterable[Object], head: Iterable[Object], *, place: Place = _unknown_place
) -> tuple[Change, ...]:
    """Return the changes from ``base`` to ``head``, ordered by kind and name.

    ``place`` returns file and line of an object. Status, and metadata except for labels and
    annotations, do not count: they are not desired state.
    """
    old, new = _objects_by_key(base), _objects_by_key(head)
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


def _objects_by_key(objects: Iterable[Object]) -> dict[tuple[str, str, str], Object]:
    return {
        (o["kind"], o.get("metadata", {}).get("namespace") or "", o["metadata"]["name"]): o
        for o in objects
    }


def field_changes(before: Object, after: Object) -> tuple[FieldChange, ...]:
    """Return the leaves that differ between two versions of one object, ordered by path.

    Lists are leaves, because their entries have no names; containers have.
    """
    if before == after:  # nearly always: each plan of a loop compares the same objects
        return ()
    named = _with_named_containers(before), _with_named_containers(after)
    if named[0] != named[1]:  # only the order of containers differs otherwise
        before, after = named
    leaves = sorted(_differing_paths(_desired_part(before), _desired_part(after), ()))
    found: list[FieldChange] = []
    for path in leaves:
        old, new = _value_at(before, path), _value_at(after, path)
        found.append(FieldChange(format_path(path), old, new, drifts_nodes(before, path, new)))
    return tuple(found)


def _with_named_containers(item: Object) -> JsonDict:
    """Return an object with its containers by name, so that a change names one of their fields."""
    return {
        key: _by_name(value)
        if key == _CONTAINERS and isinstance(value, list)
        else _with_named_containers(value)
        if isinstance(value, Mapping)
        else value
        for key, value in item.items()
    }


def _by_name(containers: list[object]) -> object:
    """Return containers by name; the list itself if a name is missing, not unique or not valid."""
    found: dict[str, JsonDict] = {}
    for container in containers:
        name = container.get("name") if isinstance(container, Mapping) else None
        if isinstance(container, Mapping) and isinstance(name, str) and _NAME.fullmatch(name):
            found[name] = {key: value for key, value in container.items() if key != "name"}
    return found if len(found) == len(containers) and _RESERVED.isdisjoint(found) else containers


def _desired_part(item: Object) -> JsonDict:
    metadata = item.get("metadata") or {}
    metadata_kept = {k: metadata[k] for k in ("labels", "annotations") if metadata.get(k)}
    rest = {k: v for k, v in item.items() if k not in ("apiVersion", "kind", "metadata", "status")}
    return {**rest, "metadata": metadata_kept}


def _differing_paths(old: object, new: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
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
        yield from _differing_paths(left.get(key), right.get(key), (*path, key))


def _value_at(item: object, path: Sequence[str]) -> object:
    for step in path:
        item = item.get(step) if isinstance(item, Mapping) else None
    return item


def _with_value(item: object, path: Sequence[str], value: object) -> dict[str, object]:
    """Return a copy of ``item`` with ``value`` at the leaf ``path``; None removes it."""
    copy = dict(item) if isinstance(item, Mapping) else {}
    if len(path) > 1:
        copy[path[0]] = _with_value(copy.get(path[0]), path[1:], value)
    elif value is None:
        copy.pop(path[0], None)
    else:
        copy[path[0]] = value
    return copy


def format_path(path: Sequence[str]) -> str:
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
        return narrows_requirements(_value_at(item, path), new)
    try:
        return object_hash(_with_value(item, path, new)) != object_hash(item)
    except ValueError:
        return True  # unreadable on one side: the reviewer should check it


def narrows_requirements(old: object, new: object) -> bool:
    """Return whether a node that met the ``old`` requirements may not meet the ``new`` ones.

    True if any key allows less than before; the labels of a given node may still match.
    """
    before, after = _parse_requirements(old), _parse_requirements(new)
    for key, allowed in after.items():
        previous = before.get(key)
        if previous is None or not _covers(allowed, previous):
            return True
    return False


def _parse_requirements(entries: Any) -> Requirements:
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


SettingPlace = Callable[[str], tuple[str, int]]
"""Finds file and line of a setting of the current file by its dotted key."""


def configuration_changes(
    base: Object | None, head: Object | None, place: SettingPlace
) -> tuple[Change, ...]:
    """Return the settings that differ, one change for each first-level key."""
    old, new = _settings(base), _settings(head)
    found = []
    for key in sorted(old.keys() | new.keys()):
        fields = tuple(_setting_changes(key, old.get(key), new.get(key)))
        if fields:
            found.append(Change(UPDATE, CONFIGURATION, key, *place(fields[0].path), fields))
    return tuple(found)


def _settings(config: Object | None) -> dict[str, object]:
    return {k: v for k, v in (config or {}).items() if k not in _NO_SETTINGS and v is not None}


def _setting_changes(path: str, old: object, new: object) -> Iterator[FieldChange]:
    """Yield the settings that differ; lists are leaves."""
    if old == new:
        return
    sides = [side for side in (old, new) if side is not None]
    if not all(isinstance(side, Mapping) for side in sides):
        yield FieldChange(path, old, new)
        return
    before_value, after_value = (side if isinstance(side, Mapping) else {} for side in (old, new))
    for key in sorted(before_value.keys() | after_value.keys()):
        yield from _setting_changes(f"{path}.{key}", before_value.get(key), after_value.get(key))


IMAGES, SUBNETS, SECURITY_GROUPS = "amis", "subnets", "securityGroups"
"""The locked facts of a node class that may drift its nodes."""

Line = Callable[[str], int]
"""Finds the line of a field of the current file by its path, as ``nodeClasses.default.amis``."""


def lock_changes(base: Object | None, head: Object | None, line: Line) -> tuple[Change, ...]:
    """Return the changes from one lock to another, one change for each subject.

    A lock that is created or deleted is itself a change, with the images and networks in it.
    """
    if base is None and head is None:
        return ()
    old, new = base or {}, head or {}
    found = list(_class_changes(old, new, line))
    if base is None or head is None:
        op = CREATE if base is None else DELETE
        return (Change(op, LOCK, LOCK_FILE, LOCK_FILE, 1), *found)
    return (*_catalog_changes(old, new, line), *found, *_type_changes(old, new, line))


def _lock_change(name: str, line: int, *fields: FieldChange) -> Iterator[Change]:
    if fields:
        yield Change(UPDATE, LOCK, name, LOCK_FILE, line, fields)


def _catalog_changes(old: Object, new: Object, line: Line) -> Iterator[Change]:
    before, after = _catalog_facts(old), _catalog_facts(new)
    fields = [
        FieldChange(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    yield from _lock_change("catalog", line("catalog"), *fields)


def _catalog_facts(lock: Object) -> dict[str, object]:
    catalog = lock.get("catalog", {})
    sources = {
        f"{name}.source": catalog.get(name, {}).get("source")
        for name in ("instanceTypes", "onDemand", "spot")
    }
    return {
        "region": lock.get("region"),
        "bundle": catalog.get("bundle"),
        "bundleDigest": catalog.get("bundleDigest"),
        **sources,
    }


def _class_changes(old: Object, new: Object, line: Line) -> Iterator[Change]:
    before, after = old.get("nodeClasses", {}), new.get("nodeClasses", {})
    for name in sorted(before.keys() | after.keys()):
        for subject, facts in _SUBJECTS.items():
            before_value, after_value = facts(before.get(name, {})), facts(after.get(name, {}))
            if before_value != after_value:
                path = f"nodeClasses.{name}.{subject}"
                drifts = subject in (IMAGES, SUBNETS, SECURITY_GROUPS)
                field = FieldChange(subject, before_value, after_value, drifts=drifts)
                yield from _lock_change(path, line(path), field)


def _format_images(entry: Object) -> list[str] | None:
    return [_format_image(ami) for ami in entry.get("amis", ())] or None


def _format_image(ami: Object) -> str:
    needs = [
        " ".join((str(r["key"]), str(r["operator"]), ",".join(map(str, r.get("values", ())))))
        for r in ami.get("requirements", ())
    ]
    about = [*filter(None, [ami.get("name", "")]), *needs]
    return f"{ami['id']} ({'; '.join(about)})" if about else str(ami["id"])


def _format_subnets(entry: Object) -> list[str] | None:
    return sorted(f"{s['id']} ({s['zone']})" for s in entry.get("subnets", ())) or None


def _format_security_groups(entry: Object) -> list[str] | None:
    groups = entry.get("securityGroups", ())
    return sorted(f"{g['id']} ({g['name']})" if g.get("name") else g["id"] for g in groups) or None


_SUBJECTS: Final[dict[str, Callable[[Object], object]]] = {
    IMAGES: _format_images,
    SUBNETS: _format_subnets,
    SECURITY_GROUPS: _format_security_groups,
    "instanceProfile": lambda entry: entry.get("instanceProfile") or None,
}


def _type_changes(old: Object, new: Object, line: Line) -> Iterator[Change]:
    """Yield one change for each kind of fact about instance types, with a field for each type."""
    before, after = old.get("types", {}), new.get("types", {})
    names = sorted(before.keys() | after.keys())
    listed_or_unlisted = [
        FieldChange(name, "listed" if name in before else None, "listed" if name in after else None)
        for name in names
        if (name in before) is not (name in after)
    ]
    yield from _lock_change("types", line("types"), *listed_or_unlisted)
    both = [name for name in names if name in before and name in after]
    for subject in ("onDemand", "spot", "zones", "machine"):
        fields = [
            f for name in both for f in _type_fact_changes(name, subject, before[name], after[name])
        ]
        first = fields[0].path.partition(" ")[0] if fields else ""
        yield from _lock_change(f"types.{subject}", line(f"types.{first}"), *fields)


def _type_fact_changes(name: str, subject: str, old: Object, new: Object) -> Iterator[FieldChange]:
    before_value, after_value = old.get(subject), new.get(subject)
    if before_value == after_value:
        return
    if subject != "spot":
        yield FieldChange(name, before_value, after_value)
        return
    before_value, after_value = before_value or {}, after_value or {}
    for zone in sorted(before_value.keys() | after_value.keys()):
        if before_value.get(zone) != after_value.get(zone):
            yield FieldChange(f"{name} {zone}", before_value.get(zone), after_value.get(zone))
