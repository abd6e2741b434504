"""Write TOML: tables in the order of their keys, values as Bottlerocket reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def dumps(document: Mapping[str, Any]) -> str:
    """Return the text of a document of tables, lists, strings, numbers and booleans."""
    return "\n".join(_table(document, ())) + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: its own values first, then the tables within it."""
    own = {key: value for key, value in table.items() if not _is_table(value)}
    if path and (own or not table):
        yield f"[{'.'.join(map(_key, path))}]"
    for key in sorted(own):
        yield f"{_key(key)} = {_value(own[key])}"
    if own and len(own) < len(table):
        yield ""
    for key in sorted(table):
        value = table[key]
        if isinstance(value, Mapping):
            yield from _table(value, (*path, key))
        elif _is_table(value):
            for item in value:
                yield f"[[{'.'.join(map(_key, (*path, key)))}]]"
                yield from _flat(item)


def _flat(item: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(item):
        yield f"{_key(key)} = {_value(item[key])}"


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{_key(k)} = {_value(v)}' for k, v in sorted(value.items()))}}}"
    return json.dumps(str(value))
