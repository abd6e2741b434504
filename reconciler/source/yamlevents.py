"""Parse YAML into events with ruamel.yaml's parser, in C if its wheel is installed.

Callers compose documents from events, because limits have to apply *while* a document grows. The
parser neither resolves scalars nor follows aliases, and does not recurse.

The C parser of ``ruamel.yaml.clib`` is libyaml 0.1.7. It rejects ``[nginx:1.25]`` and ``%YAML
1.2``, and reads ``[what?]`` differently from Kubernetes. These characters are therefore replaced by
letters in its input and restored in the events; positions do not change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

_SEPARATORS: Final = r"\s,\[\]{}"
_MISREAD: Final = re.compile(
    rf"(?<=[^{_SEPARATORS}\"'])(?:(?P<colon>:)(?=[^{_SEPARATORS}])|(?P<mark>\?))"
    rf"|(?<![^{_SEPARATORS}])!(?:<[^>\s]*>|[^{_SEPARATORS}]*)"  # a tag may contain a colon
    rf"|(?<![^{_SEPARATORS}])[&*][0-9A-Za-z_-]*[:?]?"  # an anchor ends where a colon begins
    rf"|^%(?:(?P<version>YAML[ ]1\.[2-9])\b|.*$)",
    re.MULTILINE,
)
_PRIVATE_USE: Final = range(0xE000, 0xF900)


class YamlMark(Protocol):
    """A place in a text, counted from 0."""

    line: int
    column: int


class YamlEvent(Protocol):
    """The attributes of an event that callers read; its kind is its class."""

    anchor: str | None
    tag: str
    value: str
    implicit: Sequence[bool]
    start_mark: YamlMark


class YamlParser(Protocol):
    """A parser that returns the events of a text one after another."""

    def get_event(self) -> YamlEvent: ...


def yaml_parser(text: str) -> YamlParser:
    """Return a parser of ``text``; its ``get_event`` returns one event after the other.

    Without ``ruamel.yaml.clib``, ruamel.yaml's own parser reads the same documents, more slowly and
    with different messages for syntax errors.

    Raises:
        YAMLError: (of ruamel.yaml, here and in ``get_event``) it is not YAML.
    """
    try:
        from ruamel.yaml.cyaml import CParser  # type: ignore[attr-defined]
    except ImportError:
        from ruamel.yaml import YAML

        pure: YamlParser = YAML(typ="safe", pure=True).get_constructor_parser(text)[1]
        return pure
    letters = [c for c in map(chr, _PRIVATE_USE) if c not in text][:2]
    if len(letters) < 2:
        plain: YamlParser = CParser(text)
        return plain
    colon, mark = letters

    def replace_character(match: re.Match[str]) -> str:
        if match["version"]:
            return "%YAML 1.1"
        return colon if match["colon"] else mark if match["mark"] else match[0]

    prepared = _MISREAD.sub(replace_character, text)
    parser: YamlParser = CParser(prepared)
    return parser if prepared == text else _RestoringParser(parser, colon, mark)


class _RestoringParser:
    """A parser that restores the characters that were replaced in its input."""

    def __init__(self, parser: YamlParser, colon: str, mark: str) -> None:
        self._next = parser.get_event
        self._colon = colon
        self._mark = mark

    def get_event(self) -> YamlEvent:
        """Return the next event."""
        event = self._next()
        value = getattr(event, "value", None)
        if value:
            event.value = value.replace(self._colon, ":").replace(self._mark, "?")
        return event
