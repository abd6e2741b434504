"""Finds placeholders of templates in an object: ``${NAME}``, ``{{ .Values.name }}``, ``<name>``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from reconciler.source.document import Pointer

_PLACEHOLDER: Final = re.compile(
    r"\$\{[A-Za-z_][A-Za-z0-9_]*\}|\{\{.{0,200}?\}\}|<[A-Z][A-Z0-9_]{2,40}>"
)
_SCRIPTS: Final = ("userData",)
"""Fields with scripts, in which ``${NAME}`` is a variable of the shell."""


class Placeholder(NamedTuple):
    """A placeholder, and the field that holds it."""

    pointer: Pointer
    text: str


def placeholders(data: object, at: Pointer = ()) -> Iterator[Placeholder]:
    """Yield the placeholders in the values of an object; scripts are left out."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in _SCRIPTS:
                yield from placeholders(value, (*at, str(key)))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from placeholders(value, (*at, number))
    elif isinstance(data, str):
        for found in _PLACEHOLDER.finditer(data):
            yield Placeholder(at, found[0])


def filled(text: str, values: dict[str, str]) -> str:
    """Return a text with the ``${NAME}`` of ``values`` filled in."""
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    return text
