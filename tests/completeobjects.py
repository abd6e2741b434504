"""Kubernetes objects with every field that the package reads, built from its own Structs."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from reconciler.observed import snapshot

KINDS: Final[dict[str, type]] = dict(snapshot._KINDS)
Path = tuple[str | int, ...]

_TEXT: Final = {
    "operator": "In",
    "topology_key": "kubernetes.io/hostname",
    "node_name": "node-1",
    "phase": "Running",
    "status": "True",
    "effect": "NoSchedule",
    "when_unsatisfiable": "DoNotSchedule",
    "requests": "1",
    "limits": "1",
    "capacity": "1",
    "allocatable": "1",
    "overhead": "1",
    "allocated_resources": "1",
    "min_available": "1",
    "expire_after": "720h",
    "termination_grace_period": "1h",
}


def complete_object(kind: str) -> dict[str, Any]:
    """Return an object of a kind with a value in every field."""
    made = _value(msgspec.inspect.type_info(KINDS[kind]), kind, "", 0)
    assert isinstance(made, dict)
    made |= {"kind": kind, "apiVersion": "v1"}
    made["metadata"] |= {"name": f"the-{kind.lower()}", "namespace": "shop"}
    made["metadata"].pop("deletionTimestamp", None)
    return made


def _value(  # noqa: C901 - one case for each type
    info: Any, owner: str, name: str, depth: int
) -> Any:
    inspect = msgspec.inspect
    match info:
        case inspect.StructType():
            return {
                f.encode_name: _value(f.type, info.cls.__name__, f.name, depth + 1)
                for f in info.fields
            }
        case inspect.UnionType():
            real = [t for t in info.types if not isinstance(t, inspect.NoneType)]
            return _value(real[0], owner, name, depth)
        case (
            inspect.VarTupleType()
            | inspect.ListType()
            | inspect.FrozenSetType()
            | inspect.SetType()
        ):
            return [_value(info.item_type, owner, name, depth)]
        case inspect.TupleType():
            return [_value(t, owner, name, depth) for t in info.item_types]
        case inspect.DictType():
            return {"example.com/key": _value(info.value_type, owner, name, depth)}
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.DateTimeType():
            return "2026-01-01T00:00:00Z"
        case inspect.LiteralType():
            return info.values[0]
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case _:
            return _TEXT.get(name, "text")


def paths(data: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the path of every value below ``data``."""
    pairs = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in pairs:
        yield (*at, key)
        yield from paths(value, (*at, key))


def replaced(data: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value at a path."""
    made = copy.deepcopy(data)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return made


def as_list(*items: dict[str, Any]) -> bytes:
    """Return the items as a List in JSON."""
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": [*items]}).encode()
