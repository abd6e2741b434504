"""What may be written at a cursor: keys from the schemas, and values that are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from reconciler.catalog.names import LABEL_VALUES, bundled_names
from reconciler.catalog.regions import REGIONS
from reconciler.lsp import cursors
from reconciler.lsp.cursors import Cursor
from reconciler.lsp.editedfleet import CheckedFleet, objects_of
from reconciler.model.json import as_list, as_mapping
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    NODEPOOL,
    ON_DEMAND,
    RESERVED,
    SPOT,
    WELL_KNOWN_AWS,
    ZONE,
    normalize_label,
)
from reconciler.source.document import Pointer
from reconciler.source.resource import CONFIG_FILES, EC2, VALIDATED_KINDS
from reconciler.source.schema import Schema, value_at

PROPOSALS_MAX: Final = 2_000
_YAML_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "~"})


class WordProposal(NamedTuple):
    """A word that may be written: its text in the file, and what it means."""

    label: str
    text: str
    meaning: str = ""
    is_key: bool = False


def propose(cursor: Cursor, checked: CheckedFleet) -> list[WordProposal]:
    """Return what may be written at the cursor, in order; at most 2,000.

    A name of another file that could write more than itself, such as a line break, is left out.
    """
    name = cursors.schema_of(cursor.entry)
    if name is None:
        found = _header_proposals(cursor)
    else:
        node = cursors.node_at(name, cursor.pointer)
        is_mapping = "object" in _types(node) or "properties" in node
        if cursor.is_key and is_mapping:
            found = _keys(cursor, node, name, checked)
        else:
            found = _values(cursor, node, checked)
    shown = (proposal for proposal in found if proposal.label.isprintable())
    return [proposal for proposal, _ in zip(shown, range(PROPOSALS_MAX), strict=False)]


def _types(node: Schema) -> list[str]:
    kinds = node.get("type", ())
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _header_proposals(cursor: Cursor) -> Iterator[WordProposal]:
    """Yield the start of an object whose kind is not known yet."""
    if cursor.is_key and not cursor.pointer:
        present = cursors.data_at(cursor)
        for key in ("apiVersion", "kind", "metadata", "spec"):
            if key not in present:
                yield WordProposal(key, key if cursor.has_value else f"{key}: ", is_key=True)
    elif cursor.pointer == ("kind",):
        yield from _plain(VALIDATED_KINDS)
    elif cursor.pointer == ("apiVersion",):
        yield from _plain(sorted({"/".join(version) for version in VALIDATED_KINDS.values()}))


def _keys(cursor: Cursor, node: Schema, name: str, checked: CheckedFleet) -> Iterator[WordProposal]:
    present = cursors.data_at(cursor)
    required = node.get("required", ())
    fields = [key for key in node.get("properties", {}) if key not in present]
    for key in sorted(fields, key=lambda key: key not in required):
        below = cursors.node_at(name, (*cursor.pointer, key))
        is_open = bool({"object", "array"} & set(_types(below)))
        text = key if cursor.has_value else f"{key}:" if is_open else f"{key}: "
        yield WordProposal(key, text, below.get("description", ""), is_key=True)
    if name == "reconciler.v1" and cursor.pointer == ("nodePools",):
        names = set(objects_of(checked.files, "NodePool")) - present.keys()
        for pool in sorted(names):
            text = _quoted(pool) if cursor.has_value else f"{_quoted(pool)}:"
            yield WordProposal(pool, text, "A NodePool of this fleet.", is_key=True)


def _values(cursor: Cursor, node: Schema, checked: CheckedFleet) -> Iterator[WordProposal]:
    known = list(_known_values(cursor, checked))
    if known:
        yield from _plain(known)
        return
    allowed = node.get("enum", [node["const"]] if "const" in node else [])
    if "boolean" in _types(node):
        yield WordProposal("true", "true")
        yield WordProposal("false", "false")
    stated = [
        *allowed,
        *([node["default"]] if "default" in node else []),
        *node.get("examples", ()),
    ]
    texts = dict.fromkeys(v for v in stated if isinstance(v, str) and v)
    yield from _plain(texts)


def _known_values(cursor: Cursor, checked: CheckedFleet) -> Iterable[str]:
    """Return the values that the fleet or the catalog knows for a field."""
    pointer, entry = cursor.pointer, cursor.entry
    if entry.document.file in CONFIG_FILES:
        return REGIONS if pointer == ("aws", "region") else ()
    if pointer[-2:-1] == ("nodeClassRef",):
        classes = sorted(set(objects_of(checked.files, "EC2NodeClass")))
        return {"name": classes, "kind": ["EC2NodeClass"], "group": [EC2]}.get(str(pointer[-1]), ())
    at = _requirement(pointer)
    if at is None:
        return ()
    if pointer[len(at) :] == ("key",):
        return sorted(WELL_KNOWN_AWS - {NODEPOOL})
    if pointer[len(at) : len(at) + 1] == ("values",):
        return _unchosen_values(value_at(entry.data, at), checked)
    return ()


def _unchosen_values(requirement: object, checked: CheckedFleet) -> list[str]:
    """Return the known values of a requirement's label that it does not list yet."""
    data = as_mapping(requirement)
    key, chosen = data.get("key"), as_list(data.get("values"))
    values = label_values(key, checked) if isinstance(key, str) else ()
    return [value for value in values if value not in chosen]


def _requirement(pointer: Pointer) -> Pointer | None:
    """Return the pointer of the requirement that a pointer leads into."""
    for index in range(len(pointer) - 1):
        if pointer[index] == "requirements" and isinstance(pointer[index + 1], int):
            return pointer[: index + 2]
    return None


def label_values(key: str, checked: CheckedFleet) -> list[str]:
    """Return the values of a label that instance types have, in order."""
    label = normalize_label(key)
    if label in LABEL_VALUES:
        return list(LABEL_VALUES[label])
    if label == CAPACITY_TYPE:
        return [ON_DEMAND, SPOT, RESERVED]
    names = bundled_names()
    region = value_at(checked.fleet.config, ("aws", "region"))
    if label == ZONE and region in names.zones:
        return sorted(names.zones[region])
    if label in names.values:
        return sorted(names.values[label])
    if label not in WELL_KNOWN_AWS:
        return []
    from reconciler.catalog.catalog import bundled_catalog
    from reconciler.catalog.table import table_of

    values = table_of(bundled_catalog()).values(label)
    return sorted(values, key=lambda text: (not text.isdigit(), text.zfill(12)))


def _plain(words: Iterable[str]) -> Iterator[WordProposal]:
    return (WordProposal(word, _quoted(word)) for word in words)


def _quoted(word: str) -> str:
    """Return a word as YAML reads it as a string."""
    is_number = word.replace(".", "", 1).replace("_", "").lstrip("-+").isdigit()
    is_plain = word[:1].isalnum() and ": " not in word and " #" not in word
    if is_number or not is_plain or word.lower() in _YAML_WORDS:
        return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return word
