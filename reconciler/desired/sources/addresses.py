"""What kustomize and Helm would load from an address, or from outside the copy of their files.

Both load addresses wherever they expect the path of a file. Where a machine has no network
namespaces, nothing else than these checks keeps a tool from a connection to any server.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from reconciler.model.json import JsonDict, as_list, as_mapping
from reconciler.source.document import Pointer, parse_documents

SCHEMA: Final = "values.schema.json"
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|git::")
_PATH_NAMES: Final = frozenset({"path", "paths", "file", "files", "env", "envs"})
_KNOWN_SCHEMA: Final = re.compile(
    r"https?://json-schema\.org/(?:draft-0[467]|draft/2019-09|draft/2020-12)/schema#?"
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def is_address(text: str) -> bool:
    """Return whether a tool loads a text from a server, whatever files exist."""
    return _ADDRESS.match(text) is not None


def misspelled_names(data: JsonDict, names: Collection[str]) -> Iterator[Pointer]:
    """Yield the fields that kustomize reads as one of ``names``, in spite of their letters.

    It ignores the case of names, as ``encoding/json`` of Go does.
    """
    for key, value in data.items():
        if _is_misspelled(key, names):
            yield (key,)
        if key == "openapi" and isinstance(value, dict):
            yield from ((key, inner) for inner in value if _is_misspelled(inner, _PATH_NAMES))
        for number, item in enumerate(as_list(value)):
            for inner in as_mapping(item):
                if _is_misspelled(inner, _PATH_NAMES):
                    yield (key, number, inner)


def _is_misspelled(key: object, names: Collection[str]) -> bool:
    if not isinstance(key, str) or key in names:
        return False
    return key.casefold() in {name.casefold() for name in names}


def address_in_plugin(content: bytes) -> str:
    """Return an address that the configuration of a built-in plugin has for a path, or ""."""
    documents, _ = parse_documents("", content)
    for named in _named_paths([document.data for document in documents]):
        for text in (named, named.partition("=")[2]):  # a file may be written as NAME=PATH
            if is_address(text):
                return text
    return ""


def _named_paths(data: Iterable[object]) -> Iterator[str]:
    """Yield the texts in fields that have paths."""
    stack: list[tuple[bool, object]] = [(False, item) for item in data]
    while stack:
        is_path, value = stack.pop()
        if isinstance(value, dict):
            stack += [(str(k).casefold() in _PATH_NAMES, inner) for k, inner in value.items()]
        elif isinstance(value, list):
            stack += [(is_path, inner) for inner in value]
        elif is_path and isinstance(value, str):
            yield value


def foreign_schema(path: str, content: bytes) -> str | None:
    """Return what a schema of a chart's values refers to outside itself, None for any other file.

    It is "" for what is no JSON: Helm accepts some of that, such as text that is no UTF-8.
    """
    if posixpath.basename(path) != SCHEMA:
        return None
    import msgspec

    from reconciler.model.decode import decode_json

    try:
        stack: list[object] = [decode_json(content)]
    except msgspec.DecodeError:
        return ""
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += value
        if isinstance(value, dict):
            stack += value.values()
            outside = _foreign_reference(value)
            if outside is not None:
                return outside
    return None


def _foreign_reference(node: JsonDict) -> str | None:
    """Return what a part of a schema itself refers to outside the schema."""
    for name in _REFERENCES:
        text = node.get(name)
        if isinstance(text, str) and not text.startswith("#"):
            return text
    kind = node.get("$schema")
    return kind if isinstance(kind, str) and not _KNOWN_SCHEMA.fullmatch(kind) else None
