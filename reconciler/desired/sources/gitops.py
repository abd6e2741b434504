"""Objects of Flux and Argo CD, and the rendering that each of them asks for.

Only what they say about a path of the same repository is read. A chart from a registry and a source
in another repository are named in a finding.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from reconciler.desired.sources.tree import OutsideTreeError, Tree, join_path
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import field_path
from reconciler.source.objects import Entry
from reconciler.source.resource import group_of
from reconciler.source.schema import value_at


class Tool(StrEnum):
    """What turns files into objects; ``FILES`` are objects as they are."""

    FILES = "files"
    KUSTOMIZE = "kustomize"
    HELM = "helm"


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
    release: str = ""
    namespace: str = ""
    values_files: tuple[str, ...] = ()
    values: JsonDict = field(default_factory=dict)
    parameters: tuple[tuple[str, str], ...] = ()
    substitutions: Mapping[str, str] | None = None
    is_recursive: bool = True


Found = Rendering | Diagnostic
ConfigMaps = Callable[[str, str], JsonDict | None]
"""Returns the data of the ConfigMap of a namespace and name in the repository, if it is there."""

_FLUX: Final = "kustomize.toolkit.fluxcd.io"
_FLUX_HELM: Final = "helm.toolkit.fluxcd.io"
_ARGO: Final = "argoproj.io"
_TEMPLATE: Final = re.compile(r"\{\{-?([^{}\n]*(?:(?:\{(?!\{)|\}(?!\}))[^{}\n]*)*)\}\}")
_KUSTOMIZE_FIELDS: Final = (
    *("namePrefix", "nameSuffix", "images", "replicas", "patches", "components", "commonLabels"),
    *("commonAnnotations", "namespace"),
)
_APPLICATIONS_MAX: Final = 200


def is_gitops(entry: Entry) -> bool:
    """Return whether an object asks for a rendering."""
    return (group_of(entry.api_version), entry.kind) in _READERS


def renderings_of(
    entry: Entry, tree: Tree, folder: str, config_maps: ConfigMaps
) -> Iterator[Found]:
    """Yield the renderings that an object asks for; ``folder`` is the one that paths start at."""
    reader = _READERS.get((group_of(entry.api_version), entry.kind))
    if reader is not None:
        yield from reader(entry, tree, folder, config_maps)


def _note(
    entry: Entry, pointer: Pointer, code: str, message: str, hint: str,
    severity: Severity = Severity.WARNING,
) -> Diagnostic:  # fmt: skip
    return Diagnostic(
        severity, code, f"{entry.kind} {entry.name}: {message}", entry.place(pointer),
        field_path(pointer), hint,
    )  # fmt: skip


def _flux_kustomization(
    entry: Entry, tree: Tree, folder: str, config_maps: ConfigMaps
) -> Iterator[Found]:
    spec = _mapping(entry.data.get("spec"))
    if spec.get("suspend") is True:
        return
    kind = value_at(spec, ("sourceRef", "kind"))
    path = _text(spec.get("path")) or "./"
    try:
        target = join_path(folder, path)
    except OutsideTreeError:
        message = f"{quote_value(path)} leads out of the fleet"
        yield _note(entry, ("spec", "path"), "outside-source", message, "", Severity.ERROR)
        return
    if kind in ("OCIRepository", "Bucket") or tree.entries(target) is None:
        message = f"path {quote_value(path)} is not in this repository; its objects are not read"
        hint = "render it there, and pass the result with -f"
        yield _note(entry, ("spec", "path"), "remote-source", message, hint)
        return
    fields = (k for k in _KUSTOMIZE_FIELDS if k in spec and k != "namespace")
    overlay: JsonDict = {k: spec[k] for k in fields}
    if isinstance(spec.get("targetNamespace"), str):
        overlay["namespace"] = spec["targetNamespace"]
    metadata = _mapping(spec.get("commonMetadata"))
    if metadata.get("labels"):
        overlay["labels"] = [{"pairs": metadata["labels"]}]
    substitutions: dict[str, str] | None = None
    build = spec.get("postBuild")
    if isinstance(build, dict):
        substitutions = {}
        for number, one in enumerate(_items(build.get("substituteFrom"))):
            kind, name = one.get("kind"), _text(one.get("name"))
            data = config_maps(entry.namespace, name) if kind == "ConfigMap" else None
            if data is None and one.get("optional") is not True:
                at: Pointer = ("spec", "postBuild", "substituteFrom", number)
                message = f"{kind} {quote_value(name)} is not in this repository"
                hint = "its variables stay placeholders; add them to postBuild.substitute"
                yield _note(entry, at, "unknown-variables", message, hint)
            substitutions |= {k: str(v) for k, v in (data or {}).items()}
        for key, value in _mapping(build.get("substitute")).items():
            substitutions[key] = value if isinstance(value, str) else _plain(value)
    yield Rendering(
        target, place=entry.place(()), by=f"Flux Kustomization {entry.name}",
        overlay=overlay, substitutions=substitutions,
    )  # fmt: skip


def _flux_release(
    entry: Entry, tree: Tree, folder: str, config_maps: ConfigMaps
) -> Iterator[Found]:
    spec = _mapping(entry.data.get("spec"))
    chart = _mapping(value_at(spec, ("chart", "spec")))
    at: Pointer = ("spec", "chart", "spec", "chart")
    name = _text(chart.get("chart"))
    kind = value_at(chart, ("sourceRef", "kind"))
    if kind not in ("GitRepository", None) or not name:
        shown = name or _text(value_at(spec, ("chartRef", "name"))) or "its chart"
        yield _remote_chart(entry, at, shown, "the Helm repository of its sourceRef")
        return
    try:
        target = join_path(folder, name)
    except OutsideTreeError:
        yield _note(entry, at, "outside-source", f"{quote_value(name)} leads out of the fleet", "",
                    Severity.ERROR)  # fmt: skip
        return
    if tree.entries(target) is None:
        yield _remote_chart(entry, at, name, "another repository")
        return
    values: JsonDict = {}
    for number, one in enumerate(_items(spec.get("valuesFrom"))):
        data = config_maps(entry.namespace, _text(one.get("name")))
        text = (data or {}).get(_text(one.get("valuesKey")) or "values.yaml")
        if one.get("kind") != "ConfigMap" or not isinstance(text, str):
            message = f"{one.get('kind')} {quote_value(one.get('name'))} is not in this repository"
            yield _note(entry, ("spec", "valuesFrom", number), "unknown-variables", message,
                        "the chart is rendered without these values")  # fmt: skip
        else:
            values = merge_values(values, values_of(text))
    values = merge_values(values, _mapping(spec.get("values")))
    files = tuple(f for f in _strings(chart.get("valuesFiles")))
    namespace = _text(spec.get("targetNamespace")) or entry.namespace
    yield Rendering(
        target, Tool.HELM, entry.place(()), f"Flux HelmRelease {entry.name}",
        release=_text(spec.get("releaseName")) or entry.name, namespace=namespace,
        values_files=tuple(posixpath.normpath(posixpath.join(folder, f)) for f in files),
        values=values,
    )  # fmt: skip


def _remote_chart(entry: Entry, at: Pointer, name: str, where: str) -> Diagnostic:
    message = f"chart {quote_value(name)} is in {where} and is not read"
    hint = "vendor it: `helm pull --untar`, or pass the output of `helm template` with -f"
    return _note(entry, at, "remote-source", message, hint)


def _application(entry: Entry, tree: Tree, folder: str, config_maps: ConfigMaps) -> Iterator[Found]:
    del config_maps
    spec = _mapping(entry.data.get("spec"))
    yield from _sources_of_application(entry, spec, tree, folder, ("spec",), entry.name)


def _sources_of_application(
    entry: Entry, spec: JsonDict, tree: Tree, folder: str, at: Pointer, name: str
) -> Iterator[Found]:
    listed = _items(spec.get("sources"))
    sources: list[tuple[Pointer, JsonDict]] = [(("sources", n), s) for n, s in enumerate(listed)]
    sources = sources or [(("source",), _mapping(spec.get("source")))]
    references = {_text(s.get("ref")) for _, s in sources if s.get("ref")}
    namespace = _text(value_at(spec, ("destination", "namespace"))) or "default"
    for step, source in sources:
        pointer = (*at, *step)
        if source.get("ref") and not source.get("path"):
            continue
        yield from _application_source(
            entry, source, tree, folder, pointer, name, namespace, references
        )


def _application_source(
    entry: Entry, source: JsonDict, tree: Tree, folder: str, at: Pointer,
    name: str, namespace: str, references: set[str],
) -> Iterator[Found]:  # fmt: skip
    path, chart = _text(source.get("path")), _text(source.get("chart"))
    if chart:
        yield _remote_chart(entry, (*at, "chart"), chart, _text(source.get("repoURL")))
        return
    try:
        target = join_path(folder, path)
    except OutsideTreeError:
        yield _note(entry, (*at, "path"), "outside-source",
                    f"{quote_value(path)} leads out of the fleet", "", Severity.ERROR)  # fmt: skip
        return
    if not path or tree.entries(target) is None:
        message = f"path {quote_value(path)} is not in this repository; its objects are not read"
        hint = "render it there, and pass the result with -f"
        yield _note(entry, (*at, "path"), "remote-source", message, hint)
        return
    helm, kustomize = _mapping(source.get("helm")), _mapping(source.get("kustomize"))
    by = f"Argo CD Application {name}"
    if "plugin" in source:
        message = "a config management plugin is not run"
        yield _note(entry, (*at, "plugin"), "plugin-source", message,
                    "pass its output with -f", Severity.ERROR)  # fmt: skip
        return
    values = merge_values(values_of(_text(helm.get("values"))), _mapping(helm.get("valuesObject")))
    yield Rendering(
        target, place=entry.place(()), by=by,
        overlay=_argo_overlay(kustomize),
        release=_text(helm.get("releaseName")) or name, namespace=namespace,
        values_files=tuple(_values_paths(helm, target, folder, references)), values=values,
        parameters=tuple(
            (_text(p.get("name")), _plain(p.get("value"))) for p in _items(helm.get("parameters"))
        ),
        is_recursive=value_at(source, ("directory", "recurse")) is True,
    )  # fmt: skip


def _argo_overlay(kustomize: JsonDict) -> JsonDict:
    fields = (k for k in _KUSTOMIZE_FIELDS if k in kustomize and k != "images")
    overlay: JsonDict = {k: kustomize[k] for k in fields}
    for number in _items(overlay.get("replicas")):
        count = number.get("count")
        number["count"] = int(count) if isinstance(count, str) and count.isdigit() else count
    return overlay


def _values_paths(helm: JsonDict, target: str, folder: str, references: set[str]) -> Iterator[str]:
    for path in _strings(helm.get("valueFiles")):
        head, _, rest = path.partition("/")
        if head.startswith("$") and head[1:] in references:
            yield posixpath.normpath(posixpath.join(folder, rest))
        elif "://" not in path:
            yield posixpath.normpath(posixpath.join(target, path))


def _application_set(
    entry: Entry, tree: Tree, folder: str, config_maps: ConfigMaps
) -> Iterator[Found]:
    del config_maps
    spec = _mapping(entry.data.get("spec"))
    template = _mapping(spec.get("template"))
    count = 0
    for number, generator in enumerate(_items(spec.get("generators"))):
        at: Pointer = ("spec", "generators", number)
        elements = _elements(generator, tree, folder)
        if elements is None:
            kinds = ", ".join(sorted(generator))[:60]
            message = f"the generator {kinds} cannot be read offline; its Applications are missing"
            hint = "only list and git directories are; pass rendered YAML with -f"
            yield _note(entry, at, "remote-source", message, hint)
            continue
        for element in elements:
            count += 1
            if count > _APPLICATIONS_MAX:
                message = f"more than {_APPLICATIONS_MAX} Applications"
                yield _note(entry, at, "too-large", message, "", Severity.ERROR)
                return
            filled = _mapping(_fill(template, element))
            name = _text(value_at(filled, ("metadata", "name"))) or entry.name
            inner = _mapping(filled.get("spec"))
            yield from _sources_of_application(
                entry, inner, tree, folder, ("spec", "template", "spec"), name
            )


def _elements(generator: JsonDict, tree: Tree, folder: str) -> list[JsonDict] | None:
    """Return the parameters of each Application, None if the generator is not known offline."""
    if "list" in generator:
        return _items(value_at(generator, ("list", "elements")))
    directories = value_at(generator, ("git", "directories"))
    if not isinstance(directories, list):
        return None
    chosen = [_text(d.get("path")) for d in _items(directories) if d.get("exclude") is not True]
    excluded = [_text(d.get("path")) for d in _items(directories) if d.get("exclude") is True]
    found = []
    for path in _folders(tree, folder):
        below = posixpath.relpath(path, folder)
        if any(_matches(below, p) for p in excluded) or not any(_matches(below, p) for p in chosen):
            continue
        base = posixpath.basename(below)
        found.append({"path": {"path": below, "basename": base, "basenameNormalized": base}})
    return found


def _folders(tree: Tree, folder: str, depth: int = 0) -> Iterator[str]:
    for name, is_folder in tree.entries(folder) or ():
        if is_folder and not name.startswith(".") and depth < 8:
            path = posixpath.normpath(posixpath.join(folder, name))
            yield path
            yield from _folders(tree, path, depth + 1)


def _matches(path: str, pattern: str) -> bool:
    pattern = posixpath.normpath(pattern)
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _fill(value: object, element: JsonDict) -> object:
    """Return a template with the parameters of an element filled in."""
    if isinstance(value, dict):
        return {k: _fill(v, element) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, element) for v in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name = match[1].strip().removesuffix("-").rstrip()
        steps = name.lstrip(".").split(".")
        if name == "path":
            steps = ["path", "path"]
        found = value_at(element, tuple(steps))
        return _plain(found) if isinstance(found, str | int | bool) else match[0]

    return _TEMPLATE.sub(replace, value)


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


def values_of(text: str) -> JsonDict:
    """Return the values in a text, empty if it is not a YAML mapping."""
    from reconciler.source.document import parse_documents

    documents, findings = parse_documents("values", text.encode())
    data = documents[0].data if documents and not findings else None
    return data if isinstance(data, dict) else {}


def _mapping(value: object) -> JsonDict:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[JsonDict]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _strings(value: object) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
