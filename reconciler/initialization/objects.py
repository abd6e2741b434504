"""One object that `init` reads: its data, its place, and its text with comments.

Most objects of a repository are left out, so nothing is copied or parsed a second time before an
object is changed or written.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Final, TypeVar

from reconciler.desired.fleet import SourceFile
from reconciler.model.diagnostics import Diagnostic, Place
from reconciler.model.json import JsonDict, as_mapping, as_text
from reconciler.source.document import Document, Pointer, parse_documents
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry, entries, without_nulls

if TYPE_CHECKING:
    from ruamel.yaml import YAML

T = TypeVar("T")

_MARKER: Final = re.compile(r"^(?:---(?=[ \t\r\n]|$)[ \t]*|\.\.\.(?=[ \t\r\n]|$).*)", re.MULTILINE)
_INDENTED_LIST: Final = re.compile(r"^( *)[^\s#-][^\n]*:[ \t]*\n\1 +- ", re.MULTILINE)
_BLANK: Final = re.compile(r"\A(?:[ \t]*+\r?\n)++")


@dataclass
class SourceObject:
    """One object: its ``data``, and ``text``, its text in a file of its own.

    ``text`` is None if it was part of a List or was rendered. ``entry`` and ``finding`` are the
    result of reading it as part of a fleet. ``edits`` are the changes to the data, which are
    repeated on the text with its comments when it is written. ``is_made`` is whether a template or
    a tool made it, so that its values may be elsewhere.
    """

    entry: Entry
    finding: Finding | None
    data: JsonDict
    text: str | None = None
    edits: list[Callable[[JsonDict], object]] = field(default_factory=list)
    is_own: bool = False
    is_made: bool = False

    @property
    def kind(self) -> str:
        return str(self.data.get("kind", ""))

    @property
    def name(self) -> str:
        metadata = self.data.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return as_text(name)

    @property
    def place(self) -> Place:
        return self.entry.place(())

    def place_of(self, pointer: Pointer) -> Place:
        """Return the place of a field, or of its nearest ancestor."""
        return self.entry.place(pointer)

    def change(self, edit: Callable[[JsonDict], T]) -> T:
        """Apply an edit to the data, and later to the text; return what it returns."""
        before = copy.deepcopy(self.data)
        if not self.is_own:
            self.data, self.is_own = copy.deepcopy(self.data), True
        result = edit(self.data)
        if self.data != before:
            self.edits.append(edit)
        return result

    def to_yaml(self) -> str:
        """Return the object as YAML: the original text if unchanged, else with its comments.

        Comments of an object in a List, or if a round trip would alter data, are not kept.
        """
        if self.text is not None and _parses_to(self.text, self.entry.data):
            if not self.edits:
                return self.text.rstrip() + "\n"
            text = self._edited_text(self.text)
            if text is not None and _parses_to(text, self.data):
                return text
        from reconciler.source.plainyaml import dump

        return dump(self.data, sort_keys=False)

    def _edited_text(self, text: str) -> str | None:
        """Return the text with its comments after the edits, None if they do not apply to it."""
        tree = _parse_tree(text)
        if tree is None:
            return None
        try:
            for edit in self.edits:
                edit(tree)
        except (AttributeError, LookupError, TypeError, ValueError):
            return None  # ruamel.yaml reads a key or value differently from Kubernetes
        return _dump_tree(tree, text)


def objects_in_file(file: SourceFile) -> tuple[list[SourceObject], list[Diagnostic]]:
    """Return the objects of a file, and why parts of it cannot be read."""
    documents, findings = file.documents()
    if findings:
        return [], findings
    is_made = type(file) is not SourceFile
    texts = {} if is_made else _document_texts(documents)
    items = [i for d in documents for i in _objects_in_document(d, texts.get(d.mark[:2]))]
    for item in items:
        item.is_made = is_made
    return items, []


def objects_from_cluster(objects: Sequence[JsonDict]) -> list[SourceObject]:
    """Return the objects that a cluster has listed."""
    return [
        SourceObject(entry, finding, entry.pruned_data)
        for number, data in enumerate(objects, 1)
        for entry, finding in entries(Document(f"cluster#{number}", data, (1, 1, None)))
        if isinstance(entry.pruned_data, dict)
    ]


def _objects_in_document(document: Document, text: str | None) -> Iterator[SourceObject]:
    for entry, finding in entries(document):
        plain = entry.pruned_data
        data = as_mapping(plain)
        yield SourceObject(entry, finding, data, None if entry.base else text)


def _document_texts(documents: Sequence[Document]) -> dict[tuple[int, int], str]:
    """Return the text of each document by its position, empty if the file cannot be split.

    Comments before the first marker belong to the document after it.
    """
    if not documents:
        return {}
    text = documents[0].text
    starts = [0, *(m.end() for m in _MARKER.finditer(text))]
    ends = [*(m.start() for m in _MARKER.finditer(text)), len(text)]
    found: list[str] = []
    comments = ""
    for start, end in zip(starts, ends, strict=True):
        part = _BLANK.sub("", text[start:end])
        if all(not line.strip() or line.lstrip().startswith("#") for line in part.splitlines()):
            comments += part
        else:
            found.append(comments + part)
            comments = ""
    if len(found) != len(documents):
        return {}
    return {document.mark[:2]: part for document, part in zip(documents, found, strict=True)}


def _parses_to(text: str, data: object) -> bool:
    documents, findings = parse_documents("", text.encode())
    if findings or len(documents) != 1:
        return False
    return without_nulls(documents[0].data) == without_nulls(data)


def _yaml(text: str) -> YAML:
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 10**6
    if _INDENTED_LIST.search(text):
        yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _parse_tree(text: str) -> JsonDict | None:
    from ruamel.yaml.error import YAMLError

    try:
        tree = _yaml(text).load(text)
    except (YAMLError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def _dump_tree(tree: JsonDict, text: str) -> str | None:
    from ruamel.yaml.error import YAMLError

    stream = StringIO()
    try:
        _yaml(text).dump(tree, stream)
    except (YAMLError, ValueError, RecursionError):
        return None
    return stream.getvalue()
