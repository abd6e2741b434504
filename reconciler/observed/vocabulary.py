"""The names in the files of a fleet, which an anonymized snapshot may show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from reconciler.model.json import JsonDict

LABEL_MAPS: Final = frozenset({"labels", "matchLabels", "nodeSelector", "tags"})
CONFIGURED: Final = frozenset({"NodePool", "NodeOverlay", "EC2NodeClass"})
_REFERRING: Final = frozenset({"CapacityBuffer"})
"""Kinds of the fleet's files that name objects of the cluster."""
_COMPARING: Final = frozenset({"Gt", "Lt", "Gte", "Lte"})


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names in a fleet's own files: ``keys`` of labels, and ``values`` by key.

    ``compared`` are the keys whose values are compared as numbers. ``names`` are those of its
    NodePools, node classes and overlays. ``texts`` are all texts of its configuration, and
    ``terms`` those of a catalog of the user's own: names of types, zones and resources.
    ``resources`` are those with a limit or an added capacity.
    """

    keys: frozenset[str] = frozenset()
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    compared: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    terms: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()


def vocabulary_of_cluster(objects: Iterable[JsonDict], catalog: object = None) -> Vocabulary:
    """Return what a plan without files needs: the labels of NodePools and overlays, and names."""
    mine = [o for o in objects if o.get("kind") in ("NodePool", "NodeOverlay")]
    found = vocabulary_of(mine, catalog)
    classes = {_name(o) for o in objects if o.get("kind") == "EC2NodeClass"}
    return replace(found, names=found.names | classes, texts=frozenset())


def _name(item: JsonDict) -> str:
    return str((item.get("metadata") or {}).get("name", ""))


def vocabulary_of(objects: Iterable[JsonDict], catalog: object = None) -> Vocabulary:
    """Return what NodePools, NodeOverlays and EC2NodeClasses name, in the API's spelling.

    ``catalog`` is the JSON of a catalog of the user's own, whose labels count as well.
    """
    names: set[str] = set()
    texts: set[str] = set()
    specs: list[JsonDict] = []
    for item in objects:
        kind = item.get("kind")
        if kind in _REFERRING:
            names.update(_object_names(item))
        elif kind == "Configuration":
            texts.update(_all_texts(item))
        elif kind in CONFIGURED:
            names.add(_name(item))
            specs.append(item.get("spec") or {})
    values = _values_by_key([*specs, catalog])
    return Vocabulary(
        keys=frozenset(values),
        values=values,
        compared=numeric_label_keys(specs),
        names=frozenset(names),
        texts=frozenset(texts.union(*map(_all_texts, specs))),
        terms=frozenset(_all_texts(catalog)),
        resources=frozenset(name for spec in specs for name in _resource_names(spec)),
    )


def _values_by_key(data: Iterable[object]) -> dict[str, frozenset[str]]:
    """Return the values of labels, taints and tags by their key."""
    values: dict[str, set[str]] = defaultdict(set)
    for item in data:
        for key, found, _ in _label_values(item, ""):
            values[key].update(found)
    return {key: frozenset(found) for key, found in values.items()}


def _resource_names(spec: JsonDict) -> Iterator[str]:
    """Yield the resources with a limit or an added capacity."""
    for part in ("limits", "capacity"):
        amounts = spec.get(part)
        if isinstance(amounts, dict):
            yield from amounts


def _object_names(data: object) -> Iterator[str]:
    """Yield the names and namespaces in an object."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key in ("name", "namespace") and isinstance(value, str):
                yield value
            else:
                yield from _object_names(value)


def _all_texts(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield str(key)
            yield from _all_texts(value)
    elif isinstance(data, (list, tuple)):
        for item in data:
            yield from _all_texts(item)


def _label_values(data: object, name: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield each key of a label, taint or tag with its values and operator."""
    if isinstance(data, dict):
        if name in LABEL_MAPS:
            for key, value in data.items():
                yield str(key), (str(value),), "In"
            return
        if isinstance(data.get("key"), str):
            found = data.get("values") or [data.get("value") or ""]
            yield data["key"], tuple(map(str, found)), str(data.get("operator", ""))
            return
        for key, value in data.items():
            yield from _label_values(value, str(key))
    elif isinstance(data, (list, tuple)):
        for item in data:
            yield from _label_values(item, name)


def numeric_label_keys(objects: Iterable[JsonDict]) -> frozenset[str]:
    """Return the label keys whose values these objects compare as numbers."""
    found: set[str] = set()
    for item in objects:
        found.update(key for key, _, operator in _label_values(item, "") if operator in _COMPARING)
    return frozenset(found)
