"""Parse one file into plain data, with the position of every key and value.

The parser is ruamel.yaml's. Composing is our own, because the limits have to apply *while* a
document grows: a YAML bomb is rejected at the alias that would exceed them, not after it has been
built. The result is always documents and diagnostics, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.text.quoting import quote_value
from reconciler.source.definitions import without_schemas
from reconciler.source.scalars import format_key, parse_decimal, parse_integer, resolve_scalar
from reconciler.source.yamlevents import YamlEvent, YamlParser, yaml_parser

Pointer = tuple[str | int, ...]

Mark = tuple[int, int, Any]
"""Line, column (from 1) and, for a mapping, {key: ((line, column), Mark)}, for a list, [Mark]."""

_SURROGATE_PAIR: Final = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.ASCII | re.IGNORECASE
)
_LINE_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_HEADER: Final = frozenset({"apiVersion", "kind"})
"""What every object has once."""
_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = object()
_CONFLICT_HINT: Final = (
    "resolve the conflict, and remove the lines with <<<<<<<, ======= and >>>>>>>"
)


class FileLimits(NamedTuple):
    """The size limits of one file; far above what people write, small for a machine."""

    bytes_max: int = 4 * 1024 * 1024
    nodes_max: int = 400_000
    expanded_max: int = 400_000
    aliases_max: int = 10_000
    depth_max: int = 100
    documents_max: int = 10_000
    findings_max: int = 100


LIMITS: Final = FileLimits()


class Document(NamedTuple):
    """One YAML document: its data, and the position of each part in ``file``."""

    file: str
    data: Any
    mark: Mark
    text: str = ""

    def token(self, pointer: Sequence[str | int], *, of_key: bool = False) -> tuple[int, int]:
        """Return the offsets at which the value at ``pointer`` starts and its line ends.

        With ``of_key`` it is the key that starts there.
        """
        place = self.place(pointer, of_key=of_key)
        start = 0
        for _ in range(place.line - 1):
            found = _LINE_BREAK.search(self.text, start)
            assert found is not None, "the position is in the text"
            start = found.end()
        end = _LINE_BREAK.search(self.text, start)
        return start + place.column - 1, end.start() if end else len(self.text)

    def word(self, pointer: Sequence[str | int]) -> str:
        """Return the plain scalar at ``pointer`` as it is written, if it is one."""
        place = self.place(pointer)
        lines = self.text.split("\n", place.line)
        found = re.match(r"\w+", lines[place.line - 1][place.column - 1 :])
        return found[0] if found else ""

    def place(self, pointer: Sequence[str | int] = (), *, of_key: bool = False) -> Place:
        """Return the start of the value at ``pointer``, or of its key with ``of_key``.

        A part that is not in the text (a missing field) has the position of its nearest ancestor:
        of the ancestor's key, if there is one, because that is what a reader looks for.
        """
        mark = self.mark
        line, column, parts = mark
        key_at = (line, column)
        for step in pointer:
            try:
                child = parts[step]
            except (KeyError, IndexError, TypeError):
                return Place(self.file, *key_at)
            if isinstance(parts, dict):
                key_at, mark = child
            else:
                mark = child
                key_at = mark[:2]
            line, column, parts = mark
        return Place(self.file, *key_at) if of_key else Place(self.file, line, column)


def parse_documents(
    file: str, content: bytes, limits: FileLimits = LIMITS
) -> tuple[list[Document], list[Diagnostic]]:
    """Return the documents of one file, in order and without empty ones, and all diagnostics.

    After a syntax error the rest of the file is unknown: the documents before it are returned.
    """
    text, finding = _decode_text(file, content, limits)
    if finding is not None:
        return [], [finding]
    composer = _Composer(file, without_schemas(text), limits)
    documents: list[Document] = []
    try:
        composer.open()
        while (document := composer.next_document()) is not None:
            if document.data is not None:
                documents.append(document)
    except _ParseError as refused:
        if refused.code == "syntax":
            composer.findings += composer.probable_causes(refused)
        else:
            composer.findings.append(composer.diagnostic(refused))
    return documents, composer.findings


def _decode_text(file: str, content: bytes, limits: FileLimits) -> tuple[str, Diagnostic | None]:
    """Return the file as text, or a diagnostic if it is not text."""

    def refuse(code: str, message: str, offset: int = 0, hint: str = "") -> tuple[str, Diagnostic]:
        before = content[:offset].decode("utf-8", errors="replace").removeprefix("\ufeff")
        place = Place(file, *_end_position(before))
        return "", Diagnostic(Severity.ERROR, code, message, place, hint=hint)

    if len(content) > limits.bytes_max:
        most = limits.bytes_max / 2**20  # the size is not known: reading ended at the limit
        message = f"the file is too large; at most {most:.0f} MiB are allowed"
        return refuse("too-large", message, hint="split it")
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return refuse("not-utf8", "the file is UTF-16", hint="save it as UTF-8")
    nul = content.find(b"\0")
    if nul >= 0:
        return refuse("binary-file", "the file is binary: it contains a NUL byte", nul)
    try:
        text = content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        message = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        return refuse("not-utf8", message, error.start, "save it as UTF-8")
    return (_join_surrogates(text) if text.lstrip()[:1] in ("{", "[") else text), None


def _join_surrogates(text: str) -> str:
    """Return JSON with its escaped surrogate pairs replaced by the characters they encode.

    JSON writes characters beyond 16 bits as two escapes, which YAML does not support.
    """

    def join(match: re.Match[str]) -> str:
        high, low = int(match[2], 16), int(match[3], 16)
        return match[1] + chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))

    return _SURROGATE_PAIR.sub(join, text)


class _ParseError(Exception):
    """The rest of the file cannot be read; never leaves this module."""

    def __init__(self, code: str, message: str, at: tuple[int, int], hint: str = "") -> None:
        self.code = code
        self.message = message
        self.at = at
        self.hint = hint


class _Composer:
    """Builds data and marks from the parser's events, counting what it builds."""

    def __init__(self, file: str, text: str, limits: FileLimits) -> None:
        self.file = file
        self.text = text
        self.limits = limits
        self.findings: list[Diagnostic] = []
        self.nodes = 0
        self.expanded = 0
        self.aliases = 0
        self.documents = 0
        self.parser: YamlParser | None = None
        self.anchors: dict[str, tuple[object, Mark, int] | None] = {}

    def open(self) -> None:
        """Start parsing."""
        from ruamel.yaml import events

        self.events = events
        with _TranslateErrors(self):
            self.parser = yaml_parser(self.text)
        self._next_event()

    def _next_event(self) -> YamlEvent:
        with _TranslateErrors(self):
            assert self.parser is not None, "the stream has been started"
            return self.parser.get_event()

    def next_document(self) -> Document | None:
        """Return the next document, None at the end of the file."""
        start = self._next_event()
        if not isinstance(start, self.events.DocumentStartEvent):
            return None
        self.documents += 1
        if self.documents > self.limits.documents_max:
            at = _start_position(start)
            raise _ParseError("too-large", f"more than {self.limits.documents_max} documents", at)
        self.anchors = {}
        data, mark, _ = self._node(self._next_event(), 0)
        self._next_event()
        return Document(self.file, data, mark, self.text)

    def _node(self, event: YamlEvent, depth: int) -> tuple[Any, Mark, int]:
        """Return the data, its mark, and its number of nodes with aliases expanded."""
        at = _start_position(event)
        events = self.events
        if isinstance(event, events.AliasEvent):
            return self._alias(event.anchor, at)
        self._count_node(at)
        anchor = event.anchor
        if anchor is not None:
            self.anchors[anchor] = None
        if isinstance(event, events.ScalarEvent):
            node: tuple[object, Mark, int] = (self._scalar(event, at), (*at, None), 1)
        elif depth >= self.limits.depth_max:
            raise _ParseError(
                "too-deep", f"nested more than {self.limits.depth_max} levels deep", at
            )
        elif isinstance(event, events.MappingStartEvent):
            node = self._mapping(event, at, depth)
        else:
            node = self._sequence(event, at, depth)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _count_node(self, at: tuple[int, int]) -> None:
        self.nodes += 1
        self.expanded += 1
        if self.nodes > self.limits.nodes_max:
            raise _ParseError(
                "too-large", f"more than {self.limits.nodes_max} values in a file", at
            )

    def _alias(self, anchor: str, at: tuple[int, int]) -> tuple[object, Mark, int]:
        if anchor not in self.anchors:
            raise _ParseError("unknown-anchor", f"undefined anchor &{anchor[:60]}", at)
        node = self.anchors[anchor]
        if node is None:
            raise _ParseError("recursive-alias", f"*{anchor[:60]} is inside its own anchor", at)
        self.aliases += 1
        self.expanded += node[2]
        if self.aliases > self.limits.aliases_max or self.expanded > self.limits.expanded_max:
            raise _ParseError(
                "alias-bomb",
                "the aliases expand to too much data",
                at,
                "write the data without aliases",
            )
        return node

    def _sequence(
        self, event: YamlEvent, at: tuple[int, int], depth: int
    ) -> tuple[object, Mark, int]:
        self._check_tag(event, "seq", at)
        data: list[object] = []
        marks: list[Mark] = []
        size = 1
        while not isinstance(event := self._next_event(), self.events.SequenceEndEvent):
            value, mark, count = self._node(event, depth + 1)
            data.append(value)
            marks.append(mark)
            size += count
        return data, (*at, marks), size

    def _mapping(
        self, event: YamlEvent, at: tuple[int, int], depth: int
    ) -> tuple[object, Mark, int]:
        self._check_tag(event, "map", at)
        data: dict[str, object] = {}
        marks: dict[str, tuple[tuple[int, int], Mark]] = {}
        merges: list[tuple[object, Mark]] = []
        repeated: list[tuple[str, tuple[int, int]]] = []
        size = 1
        while not isinstance(event := self._next_event(), self.events.MappingEndEvent):
            key_at = _start_position(event)
            key = self._key(event, key_at, depth)
            value, mark, count = self._node(self._next_event(), depth + 1)
            size += count + 1
            if key is _MERGE:
                merges.append((value, mark))
            elif key in data:
                repeated.append((key, key_at))
            elif key is not None:
                data[key] = value
                marks[key] = (key_at, mark)
        self._check_repeated(repeated, marks, is_object=not depth)
        for value, mark in merges:
            self._merge(value, mark, data, marks)
        return data, (*at, marks), size

    def _key(self, event: YamlEvent, at: tuple[int, int], depth: int) -> Any:
        """Return the text of a key, the merge marker, or None if the key is not text."""
        events = self.events
        if isinstance(event, events.ScalarEvent) and event.value == "<<" and event.implicit[0]:
            self._count_node(at)
            return _MERGE
        value, _, _ = self._node(event, depth + 1)
        if isinstance(value, (dict, list)):
            hint = "render Helm templates first" if "{{" in self.text else ""
            self._add_finding("bad-key", "a key must be a string, not a list or mapping", at, hint)
            return None
        key = format_key(value)
        if key is None:
            self._add_finding("bad-key", "a key must be a string, not null", at, 'quote it: "null"')
        return key

    def _check_repeated(
        self,
        repeated: Sequence[tuple[str, tuple[int, int]]],
        marks: Mapping[str, tuple[tuple[int, int], Mark]],
        *,
        is_object: bool,
    ) -> None:
        """Add a finding for each repeated key, or for each object that begins without ``---``."""
        if is_object and {key for key, _ in repeated} >= _HEADER:
            known: set[str] = set()
            for key, at in repeated:
                if not known or key in known:
                    message = "another object begins here, without a line --- before it"
                    self._add_finding("duplicate-key", message, at, "write --- between objects")
                    known.clear()
                known.add(key)
            return
        for key, at in repeated:
            line, column = marks[key][0]
            message = f"duplicate key {quote_value(key)}, first defined at line {line}"
            message += f", column {column}"
            self._add_finding("duplicate-key", message, at, "remove one of them")

    def _merge(
        self,
        value: object,
        mark: Mark,
        data: dict[str, object],
        marks: dict[str, tuple[tuple[int, int], Mark]],
    ) -> None:
        """Add the keys of a ``<<`` that the mapping does not define itself; the first one wins."""
        sources = (
            list(zip(value, mark[2], strict=True)) if isinstance(value, list) else [(value, mark)]
        )
        for source, source_mark in sources:
            if not isinstance(source, dict):
                at = (source_mark[0], source_mark[1])
                self._add_finding("bad-merge", "<< takes a mapping or a list of mappings", at)
                continue
            self.expanded += len(source)
            if self.expanded > self.limits.expanded_max:
                raise _ParseError("alias-bomb", "the merges expand to too much data", mark[:2])
            for key, item in source.items():
                if key not in data:
                    data[key] = item
                    marks[key] = source_mark[2][key]

    def _scalar(self, event: YamlEvent, at: tuple[int, int]) -> object:
        text: str = event.value
        tag: str | None = event.tag
        if tag is None or tag == "!":
            value = resolve_scalar(text) if tag is None and event.implicit[0] else text
        else:
            value = self._tagged_scalar(tag, text, at)
        if isinstance(value, float) and not isfinite(value):
            self._add_finding("bad-number", f"{text} is not a valid JSON number", at, "quote it")
            return text
        return value

    def _tagged_scalar(self, tag: str, text: str, at: tuple[int, int]) -> Any:
        """Return a scalar with a tag of YAML's core schema."""
        value: Any
        match tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool":
                value = resolve_scalar(text)
                value = value if isinstance(value, bool) else None
            case "int":
                value = parse_integer(text.replace("_", ""))
            case "float":
                value = parse_decimal(text.replace("_", ""))
            case _:
                self._add_finding(
                    "unsupported-tag", f"the tag {_format_tag(tag)} is not supported", at
                )
                return text
        if value is None:
            self._add_finding("bad-tag", f"{quote_value(text)} is not a {_format_tag(tag)}", at)
            return text
        return value

    def _check_tag(self, event: YamlEvent, kind: str, at: tuple[int, int]) -> None:
        if event.tag not in (None, "!", _TAG + kind):
            self._add_finding(
                "unsupported-tag", f"the tag {_format_tag(event.tag)} is not supported", at
            )

    def _add_finding(self, code: str, message: str, at: tuple[int, int], hint: str = "") -> None:
        if len(self.findings) >= self.limits.findings_max:
            raise _ParseError("too-many-findings", f"more than {len(self.findings)} errors", at)
        self.findings.append(self.diagnostic(_ParseError(code, message, at, hint)))

    def diagnostic(self, error: _ParseError) -> Diagnostic:
        """Return the diagnostic, with a position inside the file."""
        line, column = error.at
        if line > self.text.count("\n"):  # the parser may report a position beyond the end
            line, column = min((line, column), _end_position(self.text.rstrip("\r\n")))
        place = Place(self.file, line, column)
        return Diagnostic(Severity.ERROR, error.code, error.message, place, hint=error.hint)

    def probable_causes(self, error: _ParseError) -> list[Diagnostic]:
        """Return the likely causes of a syntax error: merge conflicts, indentation, or itself."""
        from reconciler.source.malformed import find_bad_indentation, merge_conflicts

        lines = split_lines(self.text)
        found = [
            _ParseError("merge-conflict", message, (line, 1), _CONFLICT_HINT)
            for line, message in merge_conflicts(lines)
        ]
        if found:
            return [self.diagnostic(conflict) for conflict in found[: self.limits.findings_max]]
        bad_indentation = (
            None if "flow" in error.message else find_bad_indentation(lines, error.at[0])
        )
        if bad_indentation is not None:
            message, column, hint = bad_indentation
            error = _ParseError("indentation", message, (error.at[0], column), hint)
        return [self.diagnostic(error)]


class _TranslateErrors:
    """A context that converts the parser's exceptions to ``_ParseError``, with a position."""

    def __init__(self, composer: _Composer) -> None:
        self.composer = composer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        from ruamel.yaml.error import YAMLError

        if not isinstance(error, (YAMLError, ValueError)):
            return
        text = self.composer.text
        hint = "render Helm templates first" if "{{" in text else ""
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is not None:
            at = (mark.line + 1, mark.column + 1)
            problem = getattr(error, "problem", None) or "not YAML"
            context = getattr(error, "context", None)
            message = f"not YAML: {problem}" + (f" {context}" if context else "")
        else:
            offset = min(max(getattr(error, "position", 0), 0), len(text))
            at = _end_position(text[:offset])
            message = f"not YAML: {getattr(error, 'reason', None) or error}"
        raise _ParseError("syntax", message, at, hint) from error


def split_lines(text: str) -> list[str]:
    """Split a text into lines as positions count them: at all line breaks of YAML."""
    return _LINE_BREAK.split(text)


def _end_position(text: str) -> tuple[int, int]:
    """Return the position immediately after ``text``."""
    lines = split_lines(text)
    return len(lines), len(lines[-1]) + 1


def _start_position(event: YamlEvent) -> tuple[int, int]:
    """Return the line and column at which an event starts, from 1."""
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


def _format_tag(tag: str) -> str:
    return tag.replace(_TAG, "!!")[:60]
