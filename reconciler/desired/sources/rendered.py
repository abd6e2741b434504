"""The output of a renderer as a file of the fleet, whose findings have places in the source.

A position in rendered output helps nobody. kustomize names the file that each object came from, and
helm the template; the field is then looked for in that file and in the patches of the overlay.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reconciler.desired.fleet import SourceFile
from reconciler.desired.workloads.kinds import BUILT_IN
from reconciler.model.diagnostics import Diagnostic, Place
from reconciler.model.json import JsonDict, as_mapping, as_text
from reconciler.source.document import Document, Pointer, parse_documents
from reconciler.source.schema import value_at

_ORIGIN: Final = "config.kubernetes.io/origin"
_TEMPLATE: Final = re.compile(r"^# Source: (\S+)$", re.MULTILINE)
_VALUE: Final = re.compile(r"\.Values\.([A-Za-z_][\w.]*)")
_PLACE: Final = re.compile(r"(?<![\w./-])([\w./-]+?\.(?:ya?ml|tpl|txt)):(\d+)(?::(\d+))?")
_HOOK: Final = "helm.sh/hook"
_TRANSIENT: Final = ("Job", "Pod")


class SourceIndex:
    """The files that objects were rendered from, parsed when a place in them is asked for.

    ``patches`` are the files that change objects of others, or the values of a chart, in the order
    in which they override each other. ``fallback`` is the place of an object of unknown origin.
    ``parsed`` are the files that were parsed before, which the sources of one tree share.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        patches: Sequence[str],
        folder: str,
        fallback: Place,
        parsed: dict[str, list[Document]],
    ) -> None:
        self._files = files
        self._patches = patches
        self._folder = folder
        self._fallback = fallback
        self._parsed = parsed
        self._values: dict[str, list[Document]] = {}

    def shown(self, path: str) -> str:
        """Return a path of the tree, relative to the fleet folder."""
        return posixpath.relpath(path, self._folder)

    def has_file(self, path: str) -> bool:
        """Return whether an object may have come from that file."""
        return path in self._files

    def place_of(
        self, origin: str, kind: str, name: str, pointer: Pointer, value: object, *, of_key: bool
    ) -> Place:
        """Return the place of a field of a rendered object, or the nearest one that is known."""
        base = self._object(origin, kind, name)
        for path in (*self._patches[::-1], origin):
            document = base if path == origin else self._object(path, kind, name)
            if document is not None and pointer:
                found = value_at(document.data, pointer)
                if found is not None and found == value:
                    return document.place(pointer, of_key=of_key)
        if base is not None:
            return base.place(pointer, of_key=of_key)
        return self._place_in_template(origin, kind, pointer, value)

    def _object(self, path: str, kind: str, name: str) -> Document | None:
        """Return the object in a file that a rendered one came from: of the kind, its own name."""
        found = [d for d in self._documents(path) if as_mapping(d.data).get("kind") == kind]
        for document in found:
            own = value_at(document.data, ("metadata", "name"))
            if isinstance(own, str) and own and own in name:
                return document
        return found[0] if len(found) == 1 else None

    def _documents(self, path: str) -> Sequence[Document]:
        """Return the documents of a file, none of a template or of one that does not exist."""
        if path not in self._parsed:
            content = self._files.get(path)
            if content is None or b"{{" in content:
                self._parsed[path] = []
            else:
                self._parsed[path] = parse_documents(self.shown(path), content)[0]
        return self._parsed[path]

    def _place_in_template(self, origin: str, kind: str, pointer: Pointer, value: object) -> Place:
        content = self._files.get(origin)
        if content is None:
            return self._fallback
        lines = content.decode("utf-8", "replace").splitlines()
        start = next((n for n, t in enumerate(lines) if t.strip() == f"kind: {kind}"), 0)
        for step in reversed([step for step in pointer if isinstance(step, str)]):
            key = re.compile(rf"(?:^|[\s{{,\"'-]){re.escape(step)}[\"']?:")
            for number in range(start, len(lines)):
                match = key.search(lines[number])
                if match is not None:
                    place = self._place_in_values(lines[number][match.end() :], value)
                    column = match.start() + (0 if lines[number].startswith(step) else 1) + 1
                    return place or Place(self.shown(origin), number + 1, column)
        return Place(self.shown(origin), start + 1, 1)

    def _place_in_values(self, text: str, value: object) -> Place | None:
        """Return the place of a value that a template takes from the values, if it is there."""
        match = _VALUE.search(text)
        if match is None:
            return None
        pointer = tuple(match[1].split("."))
        for path in self._patches[::-1]:
            if path not in self._values:
                content = self._files.get(path, b"")
                self._values[path] = parse_documents(self.shown(path), content)[0]
            for document in self._values[path]:
                found = value_at(document.data, pointer)
                if found is not None and str(found) == str(value):
                    return document.place(pointer)
        return None


class RenderedDocument(Document):
    """A rendered object whose fields have places in its sources; see ``SourceIndex``."""

    sources: SourceIndex
    origin: str

    def place(self, pointer: Sequence[str | int] = (), *, of_key: bool = False) -> Place:
        """Return the place of a field in the sources."""
        data = as_mapping(self.data)
        name = value_at(data, ("metadata", "name"))
        return self.sources.place_of(
            self.origin,
            str(data.get("kind", "")),
            as_text(name),
            tuple(pointer),
            value_at(data, tuple(pointer)),
            of_key=of_key,
        )

    def word(self, pointer: Sequence[str | int]) -> str:
        """Return nothing: how the value is written in the sources is not known."""
        del pointer
        return ""


class RenderedFile(SourceFile):
    """A file of the fleet that a renderer has printed; ``path`` is its source."""

    rendered: Sequence[Document] = ()

    def documents(self) -> tuple[list[Document], list[Diagnostic]]:
        """Return the objects, with places in their sources."""
        return list(self.rendered), []


class NamespacedFile(SourceFile):
    """A file whose objects are in ``namespace`` where they name none."""

    namespace: str = ""

    def documents(self) -> tuple[list[Document], list[Diagnostic]]:
        """Return the documents with their namespaces."""
        documents, findings = super().documents()
        return [d._replace(data=in_namespace(d.data, self.namespace)) for d in documents], findings


def namespaced_file(path: str, content: bytes, namespace: str) -> SourceFile:
    """Return a file whose objects are in a namespace where they name none; "" changes nothing."""
    if not namespace:
        return SourceFile(path, content)
    made = NamespacedFile(path, content)
    made.namespace = namespace
    return made


def in_namespace(data: object, namespace: str) -> object:
    """Return an object, or a list of them, in a namespace unless it names one or is in none.

    Helm does so with the namespace of a release, Argo CD with that of an Application's destination.
    """
    if not isinstance(data, dict) or not namespace:
        return data
    kind, version = data.get("kind"), data.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return data
    if kind.endswith("List") and isinstance(data.get("items"), list):
        return {**data, "items": [in_namespace(item, namespace) for item in data["items"]]}
    metadata = data.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("namespace"):
        return data
    if not BUILT_IN.is_namespaced(version, kind):
        return data
    return {**data, "metadata": {**metadata, "namespace": namespace}}


def rendered_file(
    path: str, output: bytes, index: SourceIndex, root: str, namespace: str = ""
) -> tuple[RenderedFile, list[Diagnostic]]:
    """Return the output of a renderer as a file, and what cannot be read of it.

    ``root`` is the folder that was rendered, which kustomize's origins are relative to. Objects
    that name no namespace are in ``namespace``.
    """
    documents, findings = parse_documents(path, output)
    lines, templates = _templates_by_line(output, root)
    found: list[Document] = []
    for document in documents:
        data = in_namespace(document.data, namespace)
        if not isinstance(data, dict) or _is_transient(data):
            continue
        number = bisect_right(lines, document.mark[0]) - 1
        origin = _origin_of(data, root) or (templates[number] if number >= 0 else "")
        made = RenderedDocument(document.file, _without_origin(data), document.mark, document.text)
        made.sources, made.origin = index, origin
        if index.has_file(origin):
            made = made._replace(file=index.shown(origin))
            made.sources, made.origin = index, origin
        found.append(made)
    file = RenderedFile(path, output)
    file.rendered = found
    findings = [_in_template(finding, lines, templates, index) for finding in findings]
    return file, list(dict.fromkeys(findings))


def _in_template(
    finding: Diagnostic, lines: Sequence[int], templates: Sequence[str], index: SourceIndex
) -> Diagnostic:
    """Return what cannot be read of an output at the template that made that part of it."""
    number = bisect_right(lines, finding.place.line) - 1 if finding.place is not None else -1
    if number < 0 or not index.has_file(templates[number]):
        return finding
    place = Place(index.shown(templates[number]), 1, 1)
    return replace(finding, place=place, message=f"its output is not valid: {finding.message}")


def embedded_file(objects: Sequence[JsonDict], place: Place, namespace: str) -> RenderedFile:
    """Return objects in the values of a chart as a file; ``place`` is where the values start.

    Objects that name no namespace are in ``namespace``.
    """
    from reconciler.source.plainyaml import dump

    index = SourceIndex({}, (), ".", place, {})
    found: list[Document] = []
    for data in objects:
        placed = in_namespace(data, namespace)
        made = RenderedDocument(place.file, placed, (place.line - 1, place.column - 1, None), "")
        made.sources, made.origin = index, ""
        found.append(made)
    content = "---\n".join(dump(data, sort_keys=False) for data in objects)
    file = RenderedFile(place.file, content.encode())
    file.rendered = found
    return file


def _is_transient(data: dict[str, object]) -> bool:
    """Return whether an object is a hook of Helm that runs once, such as a test or a migration."""
    annotations = value_at(data, ("metadata", "annotations"))
    is_hook = isinstance(annotations, dict) and _HOOK in annotations
    return is_hook and data.get("kind") in _TRANSIENT


def _origin_of(data: dict[str, object], root: str) -> str:
    text = value_at(data, ("metadata", "annotations", _ORIGIN))
    if not isinstance(text, str):
        return ""
    for line in text.splitlines():
        key, _, path = line.partition(": ")
        if key in ("path", "configuredIn") and path:
            return posixpath.normpath(posixpath.join(root, path.strip("'\"")))
    return ""


def _without_origin(data: dict[str, object]) -> dict[str, object]:
    metadata = data.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(annotations, dict):
        return data
    if _ORIGIN not in annotations:
        return data
    rest = {k: v for k, v in annotations.items() if k != _ORIGIN}
    kept = {k: v for k, v in metadata.items() if k != "annotations"}
    return {**data, "metadata": {**kept, "annotations": rest} if rest else kept}


def _templates_by_line(output: bytes, root: str) -> tuple[list[int], list[str]]:
    """Return the lines of helm's comments that name a template, and the templates."""
    lines: list[int] = []
    paths: list[str] = []
    for number, line in enumerate(output.decode("utf-8", "replace").splitlines(), 1):
        match = _TEMPLATE.match(line)
        if match is not None:
            lines.append(number)
            paths.append(posixpath.normpath(posixpath.join(root, match[1].partition("/")[2])))
    return lines, paths


def place_in_message(
    message: str, files: Collection[str], folder: str, chart: str = ""
) -> Place | None:
    """Return the place in one of the files that a tool's message names.

    ``folder`` is that of the chart, which the message calls by its name.
    """
    for match in _PLACE.finditer(message):
        name = match[1]
        if chart and name.startswith(f"{chart}/"):
            name = posixpath.normpath(f"{folder}/{name.removeprefix(f'{chart}/')}")
        if name in files:
            return Place(name, int(match[2]), int(match[3] or 1))
    return None
