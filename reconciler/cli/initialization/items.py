"""The objects of a file or a cluster, each apart: as data, and with its comments where it can be.

Every document has been parsed under the limits of ``source.document`` before anything else reads
it. ruamel.yaml's round trip only carries comments: an object is written from it where what is
written reads back as the very same data, and from the plain data otherwise.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Final, TypeVar

from reconciler.desired.fleet import SourceFile
from reconciler.model.diagnostics import Diagnostic, Place
from reconciler.model.json import JsonDict
from reconciler.source.document import Document, Pointer, parse_documents
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry, entries, without_nulls

if TYPE_CHECKING:
    from ruamel.yaml import YAML

T = TypeVar("T")

_MARKER: Final = re.compile(r"^(?:---(?=[ \t\r\n]|$)[ \t]*|\.\.\.(?=[ \t\r\n]|$).*)", re.MULTILINE)
_INDENTED_LIST: Final = re.compile(r"^( *)[^\s#-][^\n]*:[ \t]*\n\1 +- ", re.MULTILINE)
_BLANK: Final = re.compile(r"\A(?:[ \t]*\r?\n)+")


@dataclass
class SourceObject:
    """One object: its plain data, and the same with comments (``tree``) if it has any.

    ``text`` is how it was written, None where it was part of a List. ``entry`` and ``finding`` are
    what the reader of a fleet makes of it.
    """

    entry: Entry
    finding: Finding | None
    data: JsonDict
    tree: JsonDict | None = None
    text: str | None = None
    is_changed: bool = False

    @property
    def kind(self) -> str:
        return str(self.data.get("kind", ""))

    @property
    def name(self) -> str:
        metadata = self.data.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return name if isinstance(name, str) else ""

    @property
    def place(self) -> Place:
        return self.entry.place(())

    def place_of(self, pointer: Pointer) -> Place:
        """Return where a field was read, or its nearest ancestor."""
        return self.entry.place(pointer)

    def change(self, edit: Callable[[JsonDict], T]) -> T:
        """Apply an edit to the data, and to the copy with comments; return what it returns."""
        before = copy.deepcopy(self.data)
        result = edit(self.data)
        if self.data != before:
            self.is_changed = True
        if self.tree is not None:
            try:
                edit(self.tree)
            except (AttributeError, LookupError, TypeError, ValueError):
                self.tree = None  # ruamel.yaml reads a key or value otherwise than Kubernetes
        return result

    def written(self) -> str:
        """Return the object as YAML: as it was where nothing has changed, else with its comments.

        Of an object in a List, and where a round trip would alter data, comments are not kept.
        """
        if self.text is not None and not self.is_changed:
            return self.text.rstrip() + "\n"
        kept = _with_comments(self.tree, self.text) if self.tree is not None and self.text else None
        if kept is not None and _reads_as(kept, self.data):
            return kept
        from reconciler.source.plainyaml import dump

        return dump(self.data, sort_keys=False)


def items_of(file: SourceFile) -> tuple[list[SourceObject], list[Diagnostic]]:
    """Return the objects of a file, and why parts of it cannot be read."""
    documents, findings = parse_documents(file.path, file.content)
    if findings:
        return [], findings
    texts = _texts(documents)
    return [item for d in documents for item in _items(d, texts.get(d.mark[:2]))], []


def items_of_objects(objects: Sequence[JsonDict], source: str) -> list[SourceObject]:
    """Return the objects that a cluster has listed."""
    return [
        SourceObject(entry, finding, copy.deepcopy(entry.plain))
        for number, data in enumerate(objects, 1)
        for entry, finding in entries(Document(f"{source}#{number}", data, (1, 1, None)))
        if isinstance(entry.plain, dict)
    ]


def _items(document: Document, text: str | None) -> Iterator[SourceObject]:
    for entry, finding in entries(document):
        plain = entry.plain
        data = copy.deepcopy(plain) if isinstance(plain, dict) else {}
        if entry.base or text is None:
            yield SourceObject(entry, finding, data)
        else:
            yield SourceObject(entry, finding, data, _tree(text), text)


def _texts(documents: Sequence[Document]) -> dict[tuple[int, int], str]:
    """Return the text of each document by its position, where the file can be cut into them.

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
    return {
        document.mark[:2]: part
        for document, part in zip(documents, found, strict=True)
        if _reads_as(part, document.data)
    }


def _reads_as(text: str, data: object) -> bool:
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


def _tree(text: str) -> JsonDict | None:
    from ruamel.yaml.error import YAMLError

    try:
        tree = _yaml(text).load(text)
    except (YAMLError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def _with_comments(tree: JsonDict, text: str) -> str | None:
    from ruamel.yaml.error import YAMLError

    stream = StringIO()
    try:
        _yaml(text).dump(tree, stream)
    except (YAMLError, ValueError, RecursionError):
        return None
    return stream.getvalue()
