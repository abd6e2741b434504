"""A plan whose texts can be shown as they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from reconciler.model.visible import DECEIVING, visible

_ESCAPED: Final = re.compile(r"\\(?:u00[01]|[bfrt])")

T = TypeVar("T")


def all_visible(value: T) -> T:
    """Return a Struct in which every text is visible; itself where nothing has to be changed."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return _filtered(value)  # type: ignore[no-any-return]
    if DECEIVING.search(text) is None and _ESCAPED.search(text) is None:
        return value
    return _filtered(value)  # type: ignore[no-any-return]


def _filtered(value: Any) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, msgspec.Struct):
        fields = {name: _filtered(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_filtered, value))
    if isinstance(value, Mapping):
        return {_filtered(key): _filtered(item) for key, item in value.items()}
    return value
