"""From one set of objects to another: what is created, changed, deleted, and which fields.

Objects are plain data, as read from YAML or from a cluster. Of each changed field it is said
whether the change drifts running nodes: that is what a reviewer of a pull request must know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Object = Mapping[str, Any]

CREATE: Final = "create"
UPDATE: Final = "update"
DELETE: Final = "delete"

_TEMPLATE: Final = ("spec", "template")
_REQUIREMENTS: Final = ("spec", "template", "spec", "requirements")
_STATIC_FIELDS: Final = frozenset(
    {
        "nodeClassRef",
        "taints",
        "startupTaints",
        "terminationGracePeriod",
        "expireAfter",
    }
)
_UNHASHED_CLASS_FIELDS: Final = frozenset(
    {
        "subnetSelectorTerms",
        "securityGroupSelectorTerms",
        "amiSelectorTerms",
        "capacityReservationSelectorTerms",
        "placementGroupSelector",
        "role",
        "instanceProfile",
    }
)
"""Fields of an EC2NodeClass outside its hash: what they *find* drifts nodes, not their text."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that differs; ``old`` or ``new`` is None where it is not set on that side.

    ``drifts`` says that nodes launched before the change have to be replaced.
    """

    path: str
    old: Any
    new: Any
    drifts: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One object that git creates, changes or deletes; ``file`` and ``line`` where it stands."""

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
Drifts = Callable[[Object, Object], bool]


def _nowhere(_: Object) -> tuple[str | None, int | None]:
    return None, None


def changes(
    base: Iterable[Object], head: Iterable[Object], *, place: Place = _nowhere
) -> tuple[Change, ...]:
    """Return what changes from ``base`` to ``head``, ordered by kind and name.

    ``place`` tells file and line of an object. Status, and metadata but labels and annotations,
    do not count: they are not desired state.
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
    """Return the leaves that differ between two versions of one object, ordered by path."""
    kind = after["kind"]
    found: list[FieldChange] = []
    _compare(_desired_part(before), _desired_part(after), (), found, kind)
    return tuple(sorted(found, key=lambda f: f.path))


def _desired_part(item: Object) -> dict[str, Any]:
    metadata = item.get("metadata") or {}
    kept = {k: metadata[k] for k in ("labels", "annotations") if metadata.get(k)}
    rest = {k: v for k, v in item.items() if k not in ("apiVersion", "kind", "metadata", "status")}
    return {**({"metadata": kept} if kept else {}), **rest}


def _compare(
    old: Any, new: Any, path: tuple[str, ...], found: list[FieldChange], kind: str
) -> None:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old.keys() | new.keys():
            _compare(old.get(key), new.get(key), (*path, str(key)), found, kind)
        return
    if old == new:
        return
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        # one side lacks the whole branch: name its leaves, so that each says what it means
        branch, other = (old, new) if isinstance(old, Mapping) else (new, old)
        if branch and other is None:
            for key in branch:
                pair = (branch[key], None) if branch is old else (None, branch[key])
                _compare(*pair, (*path, str(key)), found, kind)
            return
    found.append(FieldChange(dotted(path), old, new, drifts_nodes(kind, path, old, new)))


def dotted(path: Sequence[str]) -> str:
    """Return the path as diagnostics write it; a key with dots or slashes stands in brackets."""
    text = ""
    for step in path:
        if "." in step or "/" in step:
            text += f'["{step}"]'
        else:
            text += f".{step}" if text else step
    return text


def drifts_nodes(kind: str, path: Sequence[str], old: Any, new: Any) -> bool:
    """Return whether a change of this field replaces running nodes.

    For a NodePool that is its template: labels, annotations and the static fields by their hash,
    whose lists have no order; requirements where they may leave a node outside. For an
    EC2NodeClass it is all but what selects things in the account.
    """
    if kind == "NodePool":
        if tuple(path[:4]) == _REQUIREMENTS:
            return narrows(old, new)
        if tuple(path[:2]) != _TEMPLATE:
            return False
        if path[2] == "metadata":
            return True
        return (
            path[2] == "spec" and path[3] in _STATIC_FIELDS and _as_hashed(old) != _as_hashed(new)
        )
    if kind == "EC2NodeClass":
        inside = len(path) > 1 and path[0] == "spec"
        return (
            inside and path[1] not in _UNHASHED_CLASS_FIELDS and _as_hashed(old) != _as_hashed(new)
        )
    return False


def _as_hashed(value: Any) -> Any:
    """Return the value as the hash sees it: no order in lists, and zero as if not set."""
    if isinstance(value, Mapping):
        kept = {str(k): _as_hashed(v) for k, v in value.items()}
        return tuple(sorted((k, repr(v)) for k, v in kept.items() if v not in (None, (), "")))
    if isinstance(value, (list, tuple)):
        return tuple(sorted({repr(_as_hashed(v)) for v in value}))
    return None if value in ("", 0, False) else value


def narrows(old: Any, new: Any) -> bool:
    """Return whether a node of the ``old`` requirements may not satisfy the ``new`` ones."""
    before = {_signature(entry) for entry in old or ()}
    return any(_signature(entry) not in before for entry in new or ())


def _signature(entry: Object) -> tuple[str, str, tuple[str, ...]]:
    """Return what a requirement demands of a node; ``minValues`` demands nothing of it."""
    values = tuple(sorted(map(str, entry.get("values") or ())))
    return str(entry.get("key")), str(entry.get("operator")), values
