"""An object of Flux or Argo CD, and the findings on what it refers to.

Only what they say about a path of the same repository is read. A chart from a registry and a source
in another repository are named in a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from reconciler.desired.fleet import SourceFile
from reconciler.desired.sources.embedded import embedded_objects
from reconciler.desired.sources.requested import Embedded, Found, merge_values
from reconciler.desired.sources.work import MeteredTree
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict, as_mapping, as_text
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import field_path
from reconciler.source.objects import Entry, entries
from reconciler.source.schema import value_at

KUSTOMIZE_FIELDS: Final = (
    *("namePrefix", "nameSuffix", "images", "replicas", "patches", "components", "commonLabels"),
    *("commonAnnotations", "namespace"),
)
_UNKNOWN_VALUES: Final = ("{{", "${")
_NAME_MAX: Final = 253
"""The length of the longest name that Kubernetes accepts."""


def has_objects(file: SourceFile) -> bool:
    """Return whether a file has an object without a finding."""
    return any(f is None for document in file.documents()[0] for _, f in entries(document))


class OtherObjects(Protocol):
    """The objects in the repository that those of Flux and Argo CD refer to."""

    def config_map(self, namespace: str, name: str) -> JsonDict | None:
        """Return the data of a ConfigMap, None if it is not in the repository."""

    def clusters(self) -> list[JsonDict]:
        """Return the Secrets of Argo CD's clusters."""


@dataclass(frozen=True, slots=True)
class ObjectsOfFiles:
    """The objects in the files so far that others refer to; see ``OtherObjects``."""

    files: Sequence[SourceFile]

    def config_map(self, namespace: str, name: str) -> JsonDict | None:
        """Return the data of a ConfigMap in the files, None without it."""
        del namespace  # kustomize may set it later
        for data in self._objects("ConfigMap", name):
            if value_at(data, ("metadata", "name")) == name:
                return as_mapping(data.get("data"))
        return None

    def clusters(self) -> list[JsonDict]:
        """Return the Secrets of Argo CD's clusters in the files."""
        label = ("metadata", "labels", "argocd.argoproj.io/secret-type")
        return [d for d in self._objects("Secret", label[-1]) if value_at(d, label) == "cluster"]

    def _objects(self, kind: str, word: str) -> Iterator[JsonDict]:
        """Yield the objects of a kind in files that contain a word."""
        for file in self.files:
            if kind.encode() in file.content and word.encode() in file.content:
                for document in file.documents()[0]:
                    if isinstance(document.data, dict) and document.data.get("kind") == kind:
                        yield document.data


@dataclass(frozen=True, slots=True)
class GitopsObject:
    """An object of Flux or Argo CD, and where what it refers to is looked up."""

    entry: Entry
    tree: MeteredTree
    folder: str
    others: OtherObjects

    @property
    def spec(self) -> JsonDict:
        return as_mapping(self.entry.data.get("spec"))


def note(
    entry: Entry,
    pointer: Pointer,
    code: str,
    message: str,
    hint: str,
    severity: Severity = Severity.WARNING,
) -> Diagnostic:
    name = entry.name if len(entry.name) <= _NAME_MAX else quote_value(entry.name)
    return Diagnostic(
        severity,
        code,
        f"{entry.kind} {name}: {message}",
        entry.place(pointer),
        field_path(pointer),
        hint,
    )


def not_here(reference: JsonDict) -> str:
    """Return the message that a ConfigMap or Secret with values is not in the repository."""
    kind = reference.get("kind")
    what = kind if kind in ("ConfigMap", "Secret") else f"an object of kind {quote_value(kind)}"
    return f"{what} {quote_value(reference.get('name'))} is not in this repository"


def outside(entry: Entry, pointer: Pointer, path: str) -> Diagnostic:
    message = f"{quote_value(path)} leads out of the fleet"
    return note(entry, pointer, "outside-source", message, "", Severity.ERROR)


def elsewhere(entry: Entry, pointer: Pointer, path: str) -> Diagnostic:
    message = f"path {quote_value(path)} is not in this repository; its objects are not read"
    hint = "render it there, and pass the result with -f"
    if any(mark in path for mark in _UNKNOWN_VALUES):
        message = f"path {quote_value(path)} depends on a value that is not in this repository; "
        message += "its objects are not read"
        hint = "list the folder in reconciler.yaml, such as sources: [{kustomization: FOLDER}]"
        if entry.kind == "ApplicationSet":
            hint = f"add the Secret of the cluster without its credentials, or {hint}"
    return note(entry, pointer, "remote-source", message, hint)


class GivenValues(NamedTuple):
    """Values that a chart gets, and what returns the place of a field in them."""

    data: JsonDict
    place: Callable[[Pointer], Place]


def values_in(entry: Entry, at: Pointer, data: JsonDict) -> GivenValues:
    """Return the values in a field of an object."""
    return GivenValues(data, lambda pointer: entry.place((*at, *pointer)))


def remote_chart(
    entry: Entry, at: Pointer, name: str, where: str, given: Sequence[GivenValues], namespace: str
) -> Iterator[Found]:
    """Yield the objects in the values of a chart from elsewhere, and that it is not read.

    Later values take precedence. ``namespace`` is that of its release.
    """
    message = f"chart {quote_value(name)} is in {where} and is not read"
    hint = "vendor it: `helm pull --untar`, or pass the output of `helm template` with -f"
    objects = list(_effective_objects(given))
    for one, place in objects:
        yield Embedded((one,), place, namespace)
    if objects:
        names = ", ".join(
            f"{one.get('kind')} {as_text(value_at(one, ('metadata', 'name')))}"
            for one, _ in objects[:3]
        )
        message += f", except for objects in its values: {names}"
        message += f" and {len(objects) - 3} more" if len(objects) > 3 else ""
    yield note(entry, at, "remote-source", message, hint)


def _effective_objects(given: Sequence[GivenValues]) -> Iterator[tuple[JsonDict, Place]]:
    """Yield the objects in values that no later values replace, with their places."""
    merged: JsonDict = {}
    for values in given:
        merged = merge_values(merged, values.data)
    for number, values in enumerate(given):
        for pointer, one in embedded_objects(values.data):
            stated = value_at(values.data, pointer)
            later = (value_at(other.data, pointer) == stated for other in given[number + 1 :])
            if value_at(merged, pointer) == stated and not any(later):
                yield one, values.place(pointer)
