"""The grammar of label keys and values (Kubernetes ``IsQualifiedName``, ``IsValidLabelValue``)."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PREFIX: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)


def key_fault(key: str) -> str:
    """Return why ``key`` is not a qualified name, "" if it is."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (0 < len(prefix) <= 253 and _PREFIX.fullmatch(prefix)):
        return "the part before the slash must be a DNS subdomain of at most 253 characters"
    if not 0 < len(name) <= 63:
        return f"the name has {len(name)} characters; it must have 1 to 63"
    if _NAME.fullmatch(name) is None:
        return "use letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
    return ""


def value_fault(value: str) -> str:
    """Return why ``value`` is not a label value, "" if it is."""
    if len(value) > 63:
        return f"the value has {len(value)} characters; at most 63 are allowed"
    if _VALUE.fullmatch(value) is None:
        return "use letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
    return ""
