"""Applications and ApplicationSets of Argo CD."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Final

from reconciler.desired.sources.gitops.generators import (
    Surroundings,
    UnknownGeneratorError,
    elements_of,
    files_of,
    fill,
    find_own_template,
    limited_pattern,
    plain,
    strings,
)
from reconciler.desired.sources.gitops.objects import (
    KUSTOMIZE_FIELDS,
    GitopsObject,
    GivenValues,
    elsewhere,
    note,
    outside,
    remote_chart,
    values_in,
)
from reconciler.desired.sources.requested import (
    ChartRelease,
    Embedded,
    Found,
    Rendering,
    UsedFiles,
    is_karpenter_chart,
    merge_values,
    values_of,
)
from reconciler.desired.sources.tree import OutsideTreeError, join_path
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.json import JsonDict, as_mapping, as_mappings, as_text
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import without_secrets
from reconciler.source.document import Pointer
from reconciler.source.objects import Entry
from reconciler.source.schema import value_at

_APPLICATIONS_MAX: Final = 200
_COUNT: Final = re.compile(r"[0-9]{1,9}")


def read_application(found: GitopsObject) -> Iterator[Found]:
    yield from _sources_of_application(found, found.spec, ("spec",), found.entry.name)


def _sources_of_application(
    found: GitopsObject, spec: JsonDict, at: Pointer, name: str
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
    found: GitopsObject,
    source: JsonDict,
    at: Pointer,
    name: str,
    namespace: str,
    references: set[str],
) -> Iterator[Found]:
    entry, folder = found.entry, found.folder
    path, chart = as_text(source.get("path")), as_text(source.get("chart"))
    helm, kustomize = as_mapping(source.get("helm")), as_mapping(source.get("kustomize"))
    values = values_of_source(helm)
    if chart:
        yield from _chart_from_elsewhere(found, source, at, name, namespace, references)
        return
    try:
        target = join_path(folder, path)
    except OutsideTreeError:
        yield outside(entry, (*at, "path"), path)
        return
    if not path or found.tree.entries(target) is None:
        yield elsewhere(entry, (*at, "path"), path)
        return
    by = f"Argo CD Application {name}"
    values_files = tuple(_values_paths(helm, target, folder, references))
    if helm.get("ignoreMissingValueFiles") is True:
        values_files = tuple(file for file in values_files if found.tree.read(file) is not None)
    yield UsedFiles(values_files)
    yield from _values_elsewhere(entry, (*at, "helm"), helm)
    if "plugin" in source:
        message = "a config management plugin is not run; its objects are not read"
        yield note(entry, (*at, "plugin"), "plugin-source", message, "pass its output with -f")
        return
    parameters = tuple(
        (as_text(p.get("name")), plain(p.get("value"))) for p in as_mappings(helm.get("parameters"))
    )
    yield Rendering(
        target,
        place=entry.place(()),
        by=by,
        overlay=_argo_overlay(kustomize),
        release=ChartRelease(as_text(helm.get("releaseName")) or name, values_files, parameters),
        namespace=namespace,
        values=values,
        is_recursive=value_at(source, ("directory", "recurse")) is True,
        include=limited_pattern(value_at(source, ("directory", "include"))),
        exclude=limited_pattern(value_at(source, ("directory", "exclude"))),
    )


def _chart_from_elsewhere(
    found: GitopsObject,
    source: JsonDict,
    at: Pointer,
    name: str,
    namespace: str,
    references: set[str],
) -> Iterator[Found]:
    """Yield what the values of a chart from elsewhere have, also those in files of ``$ref``."""
    entry, helm, chart = found.entry, as_mapping(source.get("helm")), as_text(source.get("chart"))
    referred = [path for path in strings(helm.get("valueFiles")) if path.startswith("$")]
    files = tuple(_values_paths({"valueFiles": referred}, ".", found.folder, references))
    yield UsedFiles(files)
    in_files = [one for path in files for one in _values_in_file(found, path)]
    inline = (*at, "helm")
    given = [
        *in_files,
        GivenValues(
            values_of(as_text(helm.get("values"))), lambda _: entry.place((*inline, "values"))
        ),
        values_in(entry, (*inline, "valuesObject"), as_mapping(helm.get("valuesObject"))),
    ]
    where = as_text(source.get("repoURL"))
    yield from remote_chart(entry, (*at, "chart"), chart, where, given, namespace)
    if is_karpenter_chart(chart) and (in_files or entry.kind == "ApplicationSet"):
        place = in_files[-1].place(()) if in_files else entry.place(())
        application = _with_values(name, source, given)
        yield Embedded((application,), place, namespace, is_installation=True)


def _with_values(name: str, source: JsonDict, given: Iterable[GivenValues]) -> JsonDict:
    """Return an Application of a chart with all the values that it gets."""
    values: JsonDict = {}
    for one in given:
        values = merge_values(values, one.data)
    helm: JsonDict = {"valuesObject": values}
    if parameters := value_at(source, ("helm", "parameters")):
        helm["parameters"] = parameters
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"source": {**source, "helm": helm}},
    }


def _values_in_file(found: GitopsObject, path: str) -> Iterator[GivenValues]:
    """Yield the values in a file of the repository, none if it is not there or not valid."""
    content = found.tree.read(path)
    documents, findings = found.tree.documents(path, content) if content else ([], [])
    if documents and not findings and isinstance(documents[0].data, dict):
        yield GivenValues(documents[0].data, documents[0].place)


def _argo_overlay(kustomize: JsonDict) -> JsonDict:
    fields = (k for k in KUSTOMIZE_FIELDS if k in kustomize and k != "images")
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
            yield note(entry, (*at, "valueFiles", number), "remote-source", message, hint)
    for number, one in enumerate(as_mappings(helm.get("fileParameters"))):
        message = f"file parameter {quote_value(one.get('name'))} is not read"
        yield note(entry, (*at, "fileParameters", number), "unknown-variables", message, hint)


def _values_paths(helm: JsonDict, target: str, folder: str, references: set[str]) -> Iterator[str]:
    for path in strings(helm.get("valueFiles")):
        head, _, rest = path.partition("/")
        if head.startswith("$") and head[1:] in references:
            yield posixpath.normpath(posixpath.join(folder, rest))
        elif "://" not in path:
            yield posixpath.normpath(posixpath.join(target, path))


def read_application_set(found: GitopsObject) -> Iterator[Found]:
    entry, spec = found.entry, found.spec
    template = as_mapping(spec.get("template"))
    if spec.get("templatePatch"):
        message = "templatePatch is not applied; its changes are missing"
        hint = "write them into template, or pass rendered YAML with -f"
        yield note(entry, ("spec", "templatePatch"), "remote-source", message, hint)
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
            yield note(entry, at, "remote-source", message, hint)
            continue
        yield UsedFiles(
            tuple(path for element in elements for path in files_of(element, found.folder))
        )
        for element in elements:
            count += 1
            if count > _APPLICATIONS_MAX:
                message = f"more than {_APPLICATIONS_MAX} Applications"
                yield note(entry, at, "too-large", message, "", Severity.ERROR)
                return
            whole = merge_values(template, as_mapping(find_own_template(generator)))
            filled = as_mapping(fill(whole, element, found.tree))
            name = as_text(value_at(filled, ("metadata", "name"))) or entry.name
            inner = as_mapping(filled.get("spec"))
            yield from _sources_of_application(found, inner, ("spec", "template", "spec"), name)


def values_of_source(helm: JsonDict) -> JsonDict:
    """Return the values that a source of Argo CD gives its chart, without single parameters."""
    return merge_values(
        values_of(as_text(helm.get("values"))), as_mapping(helm.get("valuesObject"))
    )
