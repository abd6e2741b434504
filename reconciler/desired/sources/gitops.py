"""Objects of Flux and Argo CD, and the rendering that each of them asks for.

Only what they say about a path of the same repository is read. A chart from a registry and a source
in another repository are named in a finding.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from reconciler.desired.sources.embedded import embedded_objects
from reconciler.desired.sources.generators import (
    Surroundings,
    UnknownGeneratorError,
    elements_of,
    files_of,
    fill,
    find_own_template,
    plain,
    strings,
)
from reconciler.desired.sources.tree import OutsideTreeError, join_path
from reconciler.desired.sources.work import MeteredTree
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict, as_mapping, as_mappings, as_text
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import without_secrets
from reconciler.source.document import Pointer, parse_documents
from reconciler.source.finding import field_path
from reconciler.source.objects import Entry
from reconciler.source.resource import group_of
from reconciler.source.schema import value_at

_FLUX: Final = "kustomize.toolkit.fluxcd.io"
_FLUX_HELM: Final = "helm.toolkit.fluxcd.io"
_ARGO: Final = "argoproj.io"
_KUSTOMIZE_FIELDS: Final = (
    *("namePrefix", "nameSuffix", "images", "replicas", "patches", "components", "commonLabels"),
    *("commonAnnotations", "namespace"),
)
_APPLICATIONS_MAX: Final = 200
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_UNKNOWN_VALUES: Final = ("{{", "${")
_NAME_MAX: Final = 253
"""The length of the longest name that Kubernetes accepts."""


class Tool(StrEnum):
    """What turns files into objects; ``FILES`` are objects as they are."""

    FILES = "files"
    KUSTOMIZE = "kustomize"
    HELM = "helm"


@dataclass(frozen=True, slots=True)
class ChartRelease:
    """How a chart is rendered: its release's name, and what sets its values.

    Later ``values_files`` take precedence, and ``parameters`` (paths and values) over all.
    """

    name: str = ""
    values_files: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rendering:
    """One source of a fleet: a folder of the tree, and how it becomes objects.

    ``tool`` is None where the content of the folder decides. ``place`` is what declares it, and
    ``by`` names that, empty for a folder that was found. ``overlay`` are further fields of a
    kustomization, ``values`` inline values of a chart, ``substitutions`` the variables of Flux
    (None: none are replaced).
    """

    folder: str
    tool: Tool | None = None
    place: Place | None = None
    by: str = ""
    overlay: JsonDict = field(default_factory=dict)
    namespace: str = ""
    release: ChartRelease = ChartRelease()
    values: JsonDict = field(default_factory=dict)
    substitutions: Mapping[str, str] | None = None
    is_recursive: bool = True


@dataclass(frozen=True, slots=True)
class Embedded:
    """Objects in the values of a chart from elsewhere, which ``place`` gives it.

    ``namespace`` is that of its release.
    """

    objects: tuple[JsonDict, ...]
    place: Place
    namespace: str


class UsedFiles(NamedTuple):
    """Files that an object reads, as values or parameters: they contain no objects."""

    paths: tuple[str, ...]


Found = Rendering | Embedded | UsedFiles | Diagnostic


class OtherObjects(Protocol):
    """The objects in the repository that those of Flux and Argo CD refer to."""

    def config_map(self, namespace: str, name: str) -> JsonDict | None:
        """Return the data of a ConfigMap, None if it is not in the repository."""

    def clusters(self) -> list[JsonDict]:
        """Return the Secrets of Argo CD's clusters."""


def is_gitops(entry: Entry) -> bool:
    """Return whether an object asks for a rendering."""
    return (group_of(entry.api_version), entry.kind) in _READERS


def renderings_of(
    entry: Entry, tree: MeteredTree, folder: str, others: OtherObjects
) -> Iterator[Found]:
    """Yield the renderings that an object asks for; ``folder`` is the one that paths start at."""
    reader = _READERS.get((group_of(entry.api_version), entry.kind))
    if reader is not None:
        yield from reader(_GitopsObject(entry, tree, folder, others))


@dataclass(frozen=True, slots=True)
class _GitopsObject:
    """An object of Flux or Argo CD, and where what it refers to is looked up."""

    entry: Entry
    tree: MeteredTree
    folder: str
    others: OtherObjects

    @property
    def spec(self) -> JsonDict:
        return as_mapping(self.entry.data.get("spec"))


def _note(
    entry: Entry, pointer: Pointer, code: str, message: str, hint: str,
    severity: Severity = Severity.WARNING,
) -> Diagnostic:  # fmt: skip
    name = entry.name if len(entry.name) <= _NAME_MAX else quote_value(entry.name)
    return Diagnostic(
        severity, code, f"{entry.kind} {name}: {message}", entry.place(pointer),
        field_path(pointer), hint,
    )  # fmt: skip


def _not_here(reference: JsonDict) -> str:
    """Return the message that a ConfigMap or Secret with values is not in the repository."""
    kind = reference.get("kind")
    what = kind if kind in ("ConfigMap", "Secret") else f"an object of kind {quote_value(kind)}"
    return f"{what} {quote_value(reference.get('name'))} is not in this repository"


def _outside(entry: Entry, pointer: Pointer, path: str) -> Diagnostic:
    message = f"{quote_value(path)} leads out of the fleet"
    return _note(entry, pointer, "outside-source", message, "", Severity.ERROR)


def _elsewhere(entry: Entry, pointer: Pointer, path: str) -> Diagnostic:
    message = f"path {quote_value(path)} is not in this repository; its objects are not read"
    hint = "render it there, and pass the result with -f"
    if any(mark in path for mark in _UNKNOWN_VALUES):
        message = f"path {quote_value(path)} depends on a value that is not in this repository; "
        message += "its objects are not read"
        hint = "list the folder in reconciler.yaml, such as sources: [{kustomization: FOLDER}]"
        if entry.kind == "ApplicationSet":
            hint = f"add the Secret of the cluster without its credentials, or {hint}"
    return _note(entry, pointer, "remote-source", message, hint)


def _flux_kustomization(found: _GitopsObject) -> Iterator[Found]:
    entry, spec = found.entry, found.spec
    at: Pointer = ("spec", "path")
    if spec.get("suspend") is True:
        return
    kind = value_at(spec, ("sourceRef", "kind"))
    path = as_text(spec.get("path")) or "./"
    try:
        target = join_path(found.folder, path)
    except OutsideTreeError:
        yield _outside(entry, at, path)
        return
    if kind in ("OCIRepository", "Bucket") or found.tree.entries(target) is None:
        yield _elsewhere(entry, at, path)
        return
    substitutions, unknown = _substitutions(found)
    yield from unknown
    yield Rendering(
        target, place=entry.place(()), by=f"Flux Kustomization {entry.name}",
        overlay=_flux_overlay(spec), substitutions=substitutions,
    )  # fmt: skip


def _flux_overlay(spec: JsonDict) -> JsonDict:
    fields = (k for k in _KUSTOMIZE_FIELDS if k in spec and k != "namespace")
    overlay: JsonDict = {k: spec[k] for k in fields}
    if isinstance(spec.get("targetNamespace"), str):
        overlay["namespace"] = spec["targetNamespace"]
    metadata = as_mapping(spec.get("commonMetadata"))
    if metadata.get("labels"):
        overlay["labels"] = [{"pairs": metadata["labels"]}]
    return overlay


def _substitutions(found: _GitopsObject) -> tuple[dict[str, str] | None, list[Diagnostic]]:
    """Return the variables that Flux replaces, None if it replaces none, and findings."""
    build = found.spec.get("postBuild")
    if not isinstance(build, dict):
        return None, []
    variables: dict[str, str] = {}
    unknown: list[Diagnostic] = []
    for number, one in enumerate(as_mappings(build.get("substituteFrom"))):
        is_config_map, name = one.get("kind") == "ConfigMap", as_text(one.get("name"))
        data = found.others.config_map(found.entry.namespace, name) if is_config_map else None
        if data is None and one.get("optional") is not True:
            at: Pointer = ("spec", "postBuild", "substituteFrom", number)
            hint = "its variables stay placeholders; add them to postBuild.substitute"
            unknown.append(_note(found.entry, at, "unknown-variables", _not_here(one), hint))
        variables |= {k: str(v) for k, v in (data or {}).items()}
    for key, value in as_mapping(build.get("substitute")).items():
        variables[key] = value if isinstance(value, str) else plain(value)
    return variables, unknown


def _flux_release(found: _GitopsObject) -> Iterator[Found]:
    entry, spec = found.entry, found.spec
    chart = as_mapping(value_at(spec, ("chart", "spec")))
    at: Pointer = ("spec", "chart", "spec", "chart")
    name = as_text(chart.get("chart"))
    kind = value_at(chart, ("sourceRef", "kind"))
    values, unknown = _release_values(found)
    namespace = as_text(spec.get("targetNamespace")) or entry.namespace
    if kind not in ("GitRepository", None) or not name:
        shown = name or as_text(value_at(spec, ("chartRef", "name"))) or "its chart"
        where = "the Helm repository of its sourceRef"
        yield from _remote_chart(entry, at, shown, where, values, ("spec", "values"), namespace)
        return
    try:
        target = join_path(found.folder, name)
    except OutsideTreeError:
        yield _outside(entry, at, name)
        return
    if found.tree.entries(target) is None:
        where = "another repository"
        yield from _remote_chart(entry, at, name, where, values, ("spec", "values"), namespace)
        return
    yield from unknown
    files = tuple(posixpath.normpath(posixpath.join(found.folder, f))
                  for f in strings(chart.get("valuesFiles")))  # fmt: skip
    yield UsedFiles(files)
    yield Rendering(
        target, Tool.HELM, entry.place(()), f"Flux HelmRelease {entry.name}",
        release=ChartRelease(as_text(spec.get("releaseName")) or entry.name, files),
        namespace=namespace, values=values,
    )  # fmt: skip


def _release_values(found: _GitopsObject) -> tuple[JsonDict, list[Diagnostic]]:
    """Return the values of a HelmRelease, and findings on those that are not in the repository."""
    values: JsonDict = {}
    unknown: list[Diagnostic] = []
    for number, one in enumerate(as_mappings(found.spec.get("valuesFrom"))):
        data = found.others.config_map(found.entry.namespace, as_text(one.get("name")))
        content = (data or {}).get(as_text(one.get("valuesKey")) or "values.yaml")
        if one.get("kind") == "ConfigMap" and isinstance(content, str):
            values = merge_values(values, values_of(content))
            continue
        hint = "the chart is rendered without these values"
        at: Pointer = ("spec", "valuesFrom", number)
        unknown.append(_note(found.entry, at, "unknown-variables", _not_here(one), hint))
    return merge_values(values, as_mapping(found.spec.get("values"))), unknown


def _remote_chart(
    entry: Entry, at: Pointer, name: str, where: str, values: JsonDict, values_at: Pointer,
    namespace: str,
) -> Iterator[Found]:  # fmt: skip
    """Yield the objects in the values of a chart from elsewhere, and that it is not read.

    ``namespace`` is that of its release.
    """
    message = f"chart {quote_value(name)} is in {where} and is not read"
    hint = "vendor it: `helm pull --untar`, or pass the output of `helm template` with -f"
    objects = tuple(embedded_objects(values))
    if objects:
        yield Embedded(objects, entry.place(values_at), namespace)
        names = ", ".join(
            f"{one.get('kind')} {as_text(value_at(one, ('metadata', 'name')))}"
            for one in objects[:3]
        )
        message += f", except for objects in its values: {names}"
        message += f" and {len(objects) - 3} more" if len(objects) > 3 else ""
    yield _note(entry, at, "remote-source", message, hint)


def _application(found: _GitopsObject) -> Iterator[Found]:
    yield from _sources_of_application(found, found.spec, ("spec",), found.entry.name)


def _sources_of_application(
    found: _GitopsObject, spec: JsonDict, at: Pointer, name: str
) -> Iterator[Found]:
    listed = as_mappings(spec.get("sources"))
    sources: list[tuple[Pointer, JsonDict]] = [(("sources", n), s) for n, s in enumerate(listed)]
    sources = sources or [(("source",), as_mapping(spec.get("source")))]
    references = {as_text(s.get("ref")) for _, s in sources if s.get("ref")}
    namespace = as_text(value_at(spec, ("destination", "namespace"))) or "default"
    for step, source in sources:
        pointer = (*at, *step)
        if source.get("ref") and not source.get("path"):
            continue
        yield from _application_source(found, source, pointer, name, namespace, references)


def _application_source(
    found: _GitopsObject, source: JsonDict, at: Pointer, name: str, namespace: str,
    references: set[str],
) -> Iterator[Found]:  # fmt: skip
    entry, folder = found.entry, found.folder
    path, chart = as_text(source.get("path")), as_text(source.get("chart"))
    helm, kustomize = as_mapping(source.get("helm")), as_mapping(source.get("kustomize"))
    values = values_of_source(helm)
    if chart:
        yield UsedFiles(tuple(_values_paths(helm, ".", folder, references)))
        where = as_text(source.get("repoURL"))
        yield from _remote_chart(
            entry, (*at, "chart"), chart, where, values, (*at, "helm"), namespace
        )
        return
    try:
        target = join_path(folder, path)
    except OutsideTreeError:
        yield _outside(entry, (*at, "path"), path)
        return
    if not path or found.tree.entries(target) is None:
        yield _elsewhere(entry, (*at, "path"), path)
        return
    by = f"Argo CD Application {name}"
    values_files = tuple(_values_paths(helm, target, folder, references))
    yield UsedFiles(values_files)
    yield from _values_elsewhere(entry, (*at, "helm"), helm)
    if "plugin" in source:
        message = "a config management plugin is not run"
        yield _note(entry, (*at, "plugin"), "plugin-source", message,
                    "pass its output with -f", Severity.ERROR)  # fmt: skip
        return
    parameters = tuple(
        (as_text(p.get("name")), plain(p.get("value"))) for p in as_mappings(helm.get("parameters"))
    )
    yield Rendering(
        target, place=entry.place(()), by=by,
        overlay=_argo_overlay(kustomize),
        release=ChartRelease(as_text(helm.get("releaseName")) or name, values_files, parameters),
        namespace=namespace, values=values,
        is_recursive=value_at(source, ("directory", "recurse")) is True,
    )  # fmt: skip


def _argo_overlay(kustomize: JsonDict) -> JsonDict:
    fields = (k for k in _KUSTOMIZE_FIELDS if k in kustomize and k != "images")
    overlay: JsonDict = {k: kustomize[k] for k in fields}
    for number in as_mappings(overlay.get("replicas")):
        count = number.get("count")
        if isinstance(count, str) and _COUNT.fullmatch(count):
            number["count"] = int(count)
    return overlay


def _values_elsewhere(entry: Entry, at: Pointer, helm: JsonDict) -> Iterator[Diagnostic]:
    """Yield the values that Argo CD passes to a chart, and that its rendering here lacks."""
    hint = "copy them into a file of the repository, and list it in valueFiles"
    for number, path in enumerate(strings(helm.get("valueFiles"))):
        if "://" in path:
            message = f"values file {quote_value(without_secrets(path))} is remote and is not read"
            yield _note(entry, (*at, "valueFiles", number), "remote-source", message, hint)
    for number, one in enumerate(as_mappings(helm.get("fileParameters"))):
        message = f"file parameter {quote_value(one.get('name'))} is not read"
        yield _note(entry, (*at, "fileParameters", number), "unknown-variables", message, hint)


def _values_paths(helm: JsonDict, target: str, folder: str, references: set[str]) -> Iterator[str]:
    for path in strings(helm.get("valueFiles")):
        head, _, rest = path.partition("/")
        if head.startswith("$") and head[1:] in references:
            yield posixpath.normpath(posixpath.join(folder, rest))
        elif "://" not in path:
            yield posixpath.normpath(posixpath.join(target, path))


def _application_set(found: _GitopsObject) -> Iterator[Found]:
    entry, spec = found.entry, found.spec
    template = as_mapping(spec.get("template"))
    if spec.get("templatePatch"):
        message = "templatePatch is not applied; its changes are missing"
        hint = "write them into template, or pass rendered YAML with -f"
        yield _note(entry, ("spec", "templatePatch"), "remote-source", message, hint)
    count = 0
    around = Surroundings(found.tree, found.folder, found.others.clusters())
    for number, generator in enumerate(as_mappings(spec.get("generators"))):
        at: Pointer = ("spec", "generators", number)
        try:
            elements = elements_of(generator, around)
        except UnknownGeneratorError as error:
            message = f"{error}; its Applications are missing"
            hint = (
                "list the folders of its Applications in reconciler.yaml, such as sources: "
                "[{kustomization: FOLDER}], or pass what they render to with -f"
            )
            yield _note(entry, at, "remote-source", message, hint)
            continue
        yield UsedFiles(
            tuple(path for element in elements for path in files_of(element, found.folder))
        )
        for element in elements:
            count += 1
            if count > _APPLICATIONS_MAX:
                message = f"more than {_APPLICATIONS_MAX} Applications"
                yield _note(entry, at, "too-large", message, "", Severity.ERROR)
                return
            whole = merge_values(template, as_mapping(find_own_template(generator)))
            filled = as_mapping(fill(whole, element, found.tree))
            name = as_text(value_at(filled, ("metadata", "name"))) or entry.name
            inner = as_mapping(filled.get("spec"))
            yield from _sources_of_application(found, inner, ("spec", "template", "spec"), name)


_READERS: Final = {
    (_FLUX, "Kustomization"): _flux_kustomization,
    (_FLUX_HELM, "HelmRelease"): _flux_release,
    (_ARGO, "Application"): _application,
    (_ARGO, "ApplicationSet"): _application_set,
}


def merge_values(first: JsonDict, second: JsonDict) -> JsonDict:
    """Return the values of a chart with those of ``second`` over them, as Helm merges files."""
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = merge_values(old, value)
        else:
            merged[key] = value
    return merged


def values_of_source(helm: JsonDict) -> JsonDict:
    """Return the values that a source of Argo CD gives its chart, without single parameters."""
    return merge_values(
        values_of(as_text(helm.get("values"))), as_mapping(helm.get("valuesObject"))
    )


def values_of(written: str) -> JsonDict:
    """Return the values in a text, empty if it is not a YAML mapping."""
    documents, findings = parse_documents("values", written.encode())
    data = documents[0].data if documents and not findings else None
    return as_mapping(data)


def folders_above(folder: str) -> Iterator[str]:
    """Yield the folders that paths of Flux and Argo CD may start at: the top of the tree first."""
    yield "."
    here = folder
    while here not in (".", ""):
        yield here
        here = posixpath.dirname(here)
