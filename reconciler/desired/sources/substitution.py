"""Replaces variables in rendered text as Flux does after its build (``postBuild.substitute``).

Only ``${name}`` is a variable, with a default as ``${name:-default}`` or ``${name:=default}``;
``$${name}`` is the text ``${name}``. A variable without a value stays, so that it is reported as a
placeholder instead of becoming an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from reconciler.desired.sources.tree import TreeLimitError

TEXT_MAX: Final = 32 * 1024 * 1024
"""The maximum length of a text after its variables are replaced."""

_VARIABLE: Final = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?[-=]([^{}]*))?\}")
_DISABLED: Final = re.compile(
    r"kustomize\.toolkit\.fluxcd\.io/substitute[\"']?:\s*[\"']?disabled", re.ASCII
)
_DOCUMENT: Final = re.compile(r"^---[ \t]*$", re.MULTILINE)


def substitute(content: bytes, values: Mapping[str, str] | None) -> bytes:
    """Return a file with its variables replaced; documents that disable it stay as they are.

    Without ``values`` (None), nothing is replaced.

    Raises:
        TreeLimitError: it becomes too long.
    """
    if values is None:
        return content
    replaced = _replace_variables(content.decode("utf-8", "surrogateescape"), values)
    return replaced.encode("utf-8", "surrogateescape")


def _replace_variables(text: str, values: Mapping[str, str]) -> str:
    length = len(text)

    def replace(match: re.Match[str]) -> str:
        nonlocal length
        value = value_of(match)
        length += len(value) - len(match[0])
        if length > TEXT_MAX:
            raise TreeLimitError(f"more than {TEXT_MAX >> 20} MiB with its variables replaced")
        return value

    def value_of(match: re.Match[str]) -> str:
        escaped, name, default = match[1], match[2], match[3]
        if escaped:
            return match[0][1:]
        if name in values:
            return values[name]
        return match[0] if default is None else default

    return "---".join(
        part if _DISABLED.search(part) else _VARIABLE.sub(replace, part)
        for part in _split_documents(text)
    )


def _split_documents(text: str) -> list[str]:
    """Return the parts of a text between its document markers."""
    parts: list[str] = []
    start = 0
    for match in _DOCUMENT.finditer(text):
        parts.append(text[start : match.start()])
        start = match.start() + 3
    return [*parts, text[start:]]
