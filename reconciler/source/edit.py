"""Edit a value or key in a YAML file and preserve its comments and layout.

ruamel.yaml's round trip makes the edit and preserves comments, quotes and the order of keys, but
changes the layout of lines. The file is therefore written twice, without the edit and with it, and
only the difference between the two is applied to the original text. The result is parsed again: it
has the new data and no other change, or there is no result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from io import StringIO
from typing import Any, Final

from reconciler.source.document import Pointer, parse_documents
from reconciler.source.finding import field_path
from reconciler.source.scalars import resolve

BYTES_MAX: Final = 1024 * 1024
"""The maximum size of a file to edit; a round trip takes seconds at that size."""

_BLANK: Final = re.compile(r"\s*(?:#.*)?\n?")
_INDENT: Final = re.compile(r"\n([ \t]+)\S")


class EditError(ValueError):
    """The edit is not possible without another change; the message has the reason."""


def set_value(text: str, pointer: Pointer, value: Any, *, document: int = 0) -> str:
    """Return the text with ``value`` at ``pointer`` of a document; missing parents are added.

    ``document`` counts the documents that are not empty, as ``parse_documents`` returns them.

    Raises:
        EditError: the text is not YAML, is too large, or the value is shared through an alias.
    """

    def change(data: Any, plain: Callable[[Any, Any], Any], mapping: type[dict[str, Any]]) -> None:
        for step in pointer[:-1]:
            if isinstance(data, dict) and data.get(step) is None:
                data[step] = mapping()
            data = data[step]
        last: Any = pointer[-1]
        before = data.get(last) if isinstance(data, dict) else data[last]
        data[last] = plain(value, before)

    return _edited(text, pointer, document, change)


def rename_key(text: str, pointer: Pointer, key: str, *, document: int = 0) -> str:
    """Return the text with ``key`` instead of the last key of ``pointer``.

    Raises:
        EditError: as for ``set_value``; or the mapping already has that key.
    """

    def change(data: Any, plain: Callable[[Any, Any], Any], _: type[dict[str, Any]]) -> None:
        for step in pointer[:-1]:
            data = data[step]
        old = pointer[-1]
        if key in data:
            raise EditError(f"{field_path(pointer)}: there is a field {key} already")
        comments = getattr(data, "ca", None)
        comment = comments.items.pop(old, None) if comments is not None else None
        items = [(plain(key, old) if k == old else k, data[k]) for k in list(data)]
        for k in list(data):
            del data[k]
        for k, v in items:
            data[k] = v
        if comments is not None and comment is not None:
            comments.items[key] = comment

    return _edited(text, pointer, document, change)


_Change = Callable[[Any, Callable[[Any, Any], Any], type[dict[str, Any]]], None]
"""Changes data in place, given constructors for values and mappings of its kind."""


def _edited(text: str, pointer: Pointer, document: int, change: _Change) -> str:
    assert pointer, "a document is not replaced as a whole"
    if len(text.encode()) > BYTES_MAX:
        raise EditError(f"a file of more than {BYTES_MAX // 2**20} MiB is not edited")
    body, restored = _unix(text)
    wanted = _read(body)
    try:
        change(wanted[document], lambda value, _: value, dict)
        for candidate in _candidates(body, document, change):
            if _is_wanted(candidate, wanted):
                return restored(candidate)
    except (LookupError, TypeError, AttributeError) as error:
        raise EditError(f"{field_path(pointer)}: does not exist") from error
    raise EditError(f"{field_path(pointer)}: it is shared through an alias; edit it by hand")


def _unix(text: str) -> tuple[str, Callable[[str], str]]:
    """Return the text with plain line ends and without a byte order mark, and the inverse."""
    head = "\ufeff" if text.startswith("\ufeff") else ""
    end = "\r\n" if "\r\n" in text else "\n"
    body = text.removeprefix(head).replace("\r\n", "\n")
    return body, lambda edited: head + edited.replace("\n", end)


def _read(text: str) -> list[Any]:
    """Return the data of each document, with aliases expanded.

    Raises:
        EditError: it is not YAML.
    """
    documents, findings = parse_documents("", text.encode())
    if findings:
        raise EditError(f"it is not read without errors: {findings[0].message}")
    return [json.loads(json.dumps(d.data)) for d in documents]


def _is_wanted(text: str, wanted: list[Any]) -> bool:
    try:
        return json.dumps(_read(text)) == json.dumps(wanted) or _read(text) == wanted
    except EditError:
        return False


def _candidates(text: str, document: int, change: _Change) -> list[str]:
    """Return the edited text in the original layout, and in that of the library."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [_json(text, change)]
        except ValueError:
            pass  # YAML that looks like JSON
    before, after = _documents(text), _documents(text)
    filled = [d for d in after if not isinstance(d, str) or resolve(d) is not None]
    change(filled[document], _scalar, _mapping_type())
    written, edited = _written(before), _written(after)
    return [_laid_out(*(t.splitlines(keepends=True) for t in (text, written, edited))), edited]


def _json(text: str, change: _Change) -> str:
    data = json.loads(text)
    change(data, lambda value, _: value, dict)
    indent = _INDENT.search(text)
    edited = json.dumps(data, indent=indent[1] if indent else None, ensure_ascii=False)
    return edited + text[len(text.rstrip()) :]


def _round_trip() -> Any:
    """Return ruamel.yaml's round trip, configured to read every scalar as its text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.resolver import VersionedResolver

    class Unresolved(VersionedResolver):
        @property
        def versioned_resolver(self) -> Any:
            return {}

        @property
        def processing_version(self) -> Any:
            return (1, 2)

    yaml: Any = YAML()
    yaml.Resolver = Unresolved
    yaml.preserve_quotes = True
    yaml.width = 10**6
    return yaml


def _documents(text: str) -> list[Any]:
    from ruamel.yaml.error import YAMLError

    try:
        return list(_round_trip().load_all(text))
    except (YAMLError, ValueError, RecursionError) as error:
        raise EditError("the library for editing YAML does not read it") from error


def _written(documents: list[Any]) -> str:
    stream = StringIO()
    _round_trip().dump_all(documents, stream)
    return stream.getvalue()


def _mapping_type() -> type[dict[str, Any]]:
    from ruamel.yaml.comments import CommentedMap

    found: type[dict[str, Any]] = CommentedMap
    return found


def _scalar(value: Any, before: Any) -> Any:
    """Return a value as the round trip writes it, in the quotes of the previous one."""
    from ruamel.yaml.scalarstring import (
        DoubleQuotedScalarString,
        PlainScalarString,
        ScalarString,
        SingleQuotedScalarString,
    )

    if isinstance(value, dict):
        return _mapping_type()((_scalar(k, ""), _scalar(v, "")) for k, v in value.items())
    if isinstance(value, list):
        return [_scalar(item, "") for item in value]
    if not isinstance(value, str):
        return PlainScalarString(json.dumps(value))
    if isinstance(before, (DoubleQuotedScalarString, SingleQuotedScalarString)):
        quoted: ScalarString = type(before)(value)
        return quoted
    is_text = isinstance(resolve(value), str)
    return PlainScalarString(value) if is_text else DoubleQuotedScalarString(value)


def _laid_out(text: Sequence[str], written: Sequence[str], edited: Sequence[str]) -> str:
    """Return the lines of ``text`` with the difference between the other two applied.

    Lines that differ from ``text`` only in blanks count as equal.
    """
    place = _places(text, written)
    lines = list(text)
    for kind, i, j, k, m in reversed(_differences(written, edited)):
        new = list(edited[k:m])
        at = i
        if kind == "insert":
            while at and _BLANK.fullmatch(written[at - 1]):
                at -= 1
            start = end = place.get(at - 1, -1) + 1
        else:
            start, end = place.get(i, -1), place.get(j - 1, -1) + 1
            if start < 0 or end - start != j - i:
                return "".join(edited)
        if m - k == j - i:
            shifts = [_shift(line, i + n, text, written, place) for n, line in enumerate(new)]
        else:
            shifts = [_shift(new[0], at - 1 if i == j else i, text, written, place)] * len(new)
        if start and not lines[start - 1].endswith("\n"):
            lines[start - 1] += "\n"
        lines[start:end] = map(_moved, new, shifts)
    return "".join(lines)


def _differences(one: Sequence[str], other: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    found = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return [code for code in found if code[0] != "equal"]


def _places(text: Sequence[str], written: Sequence[str]) -> dict[int, int]:
    """Return the line numbers in ``text`` for the lines of ``written``."""
    one, other = ([" ".join(line.split()) for line in lines] for lines in (written, text))
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return {b.a + n: b.b + n for b in blocks for n in range(b.size)}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _shift(
    line: str, at: int, text: Sequence[str], written: Sequence[str], place: dict[int, int]
) -> int:
    """Return by how many columns a line is indented more than the library indents it."""
    for near in range(min(at, len(written) - 1), -1, -1):
        is_line = near in place and not _BLANK.fullmatch(written[near])
        if is_line and _indent(written[near]) <= _indent(line):
            return _indent(text[place[near]]) - _indent(written[near])
    return 0


def _moved(line: str, columns: int) -> str:
    return " " * max(_indent(line) + columns, 0) + line.lstrip(" ") if line.strip() else line
