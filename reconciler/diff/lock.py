"""Compare two versions of ``reconciler.lock``: images, networks, instance types, prices.

Data about the file itself (its time, its digest, which selectors an entry matches) is not desired
state and does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from reconciler.diff.changes import CREATE, DELETE, UPDATE, Change, FieldChange
from reconciler.model.json import JsonObject
from reconciler.source.resource import LOCK_FILE

KIND: Final = "Lock"
IMAGES, SUBNETS, SECURITY_GROUPS = "amis", "subnets", "securityGroups"
"""The locked facts of a node class that may drift its nodes."""

Object = JsonObject
Line = Callable[[str], int]
"""Finds the line of a field of the current file by its path, as ``nodeClasses.default.amis``."""


def lock_changes(base: Object | None, head: Object | None, line: Line) -> tuple[Change, ...]:
    """Return the changes from one lock to another, one change for each subject.

    A lock that is created or deleted is itself a change, with the images and networks in it.
    """
    if base is None and head is None:
        return ()
    old, new = base or {}, head or {}
    found = list(_classes(old, new, line))
    if base is None or head is None:
        op = CREATE if base is None else DELETE
        return (Change(op, KIND, LOCK_FILE, LOCK_FILE, 1), *found)
    return (*_catalog(old, new, line), *found, *_types(old, new, line))


def _change(name: str, line: int, *fields: FieldChange) -> Iterator[Change]:
    if fields:
        yield Change(UPDATE, KIND, name, LOCK_FILE, line, fields)


def _catalog(old: Object, new: Object, line: Line) -> Iterator[Change]:
    before, after = _catalog_facts(old), _catalog_facts(new)
    fields = [
        FieldChange(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    yield from _change("catalog", line("catalog"), *fields)


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


def _classes(old: Object, new: Object, line: Line) -> Iterator[Change]:
    before, after = old.get("nodeClasses", {}), new.get("nodeClasses", {})
    for name in sorted(before.keys() | after.keys()):
        for subject, facts in _SUBJECTS.items():
            was, wanted = facts(before.get(name, {})), facts(after.get(name, {}))
            if was != wanted:
                path = f"nodeClasses.{name}.{subject}"
                drifts = subject in (IMAGES, SUBNETS, SECURITY_GROUPS)
                field = FieldChange(subject, was, wanted, drifts=drifts)
                yield from _change(path, line(path), field)


def _images(entry: Object) -> list[str] | None:
    return [_image(ami) for ami in entry.get("amis", ())] or None


def _image(ami: Object) -> str:
    needs = [
        " ".join((str(r["key"]), str(r["operator"]), ",".join(map(str, r.get("values", ())))))
        for r in ami.get("requirements", ())
    ]
    about = [*filter(None, [ami.get("name", "")]), *needs]
    return f"{ami['id']} ({'; '.join(about)})" if about else str(ami["id"])


def _subnets(entry: Object) -> list[str] | None:
    return sorted(f"{s['id']} ({s['zone']})" for s in entry.get("subnets", ())) or None


def _groups(entry: Object) -> list[str] | None:
    groups = entry.get("securityGroups", ())
    return sorted(f"{g['id']} ({g['name']})" if g.get("name") else g["id"] for g in groups) or None


_SUBJECTS: Final[dict[str, Callable[[Object], object]]] = {
    IMAGES: _images,
    SUBNETS: _subnets,
    SECURITY_GROUPS: _groups,
    "instanceProfile": lambda entry: entry.get("instanceProfile") or None,
}


def _types(old: Object, new: Object, line: Line) -> Iterator[Change]:
    """Yield one change for each kind of fact about instance types, with a field for each type."""
    before, after = old.get("types", {}), new.get("types", {})
    names = sorted(before.keys() | after.keys())
    came_or_went = [
        FieldChange(name, "listed" if name in before else None, "listed" if name in after else None)
        for name in names
        if (name in before) is not (name in after)
    ]
    yield from _change("types", line("types"), *came_or_went)
    both = [name for name in names if name in before and name in after]
    for subject in ("onDemand", "spot", "zones", "machine"):
        fields = [f for name in both for f in _facts(name, subject, before[name], after[name])]
        first = fields[0].path.partition(" ")[0] if fields else ""
        yield from _change(f"types.{subject}", line(f"types.{first}"), *fields)


def _facts(name: str, subject: str, old: Object, new: Object) -> Iterator[FieldChange]:
    was, wanted = old.get(subject), new.get(subject)
    if was == wanted:
        return
    if subject != "spot":
        yield FieldChange(name, was, wanted)
        return
    was, wanted = was or {}, wanted or {}
    for zone in sorted(was.keys() | wanted.keys()):
        if was.get(zone) != wanted.get(zone):
            yield FieldChange(f"{name} {zone}", was.get(zone), wanted.get(zone))
