"""Kustomizations and HelmReleases of Flux."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from reconciler.desired.sources.gitops.generators import plain, strings
from reconciler.desired.sources.gitops.objects import (
    KUSTOMIZE_FIELDS,
    GitopsObject,
    elsewhere,
    not_here,
    note,
    outside,
    remote_chart,
    values_in,
)
from reconciler.desired.sources.requested import (
    ChartRelease,
    Found,
    Rendering,
    Tool,
    UsedFiles,
    merge_values,
    values_of,
)
from reconciler.desired.sources.tree import OutsideTreeError, join_path
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.json import JsonDict, as_mapping, as_mappings, as_text
from reconciler.source.document import Pointer
from reconciler.source.schema import value_at


def read_kustomization(found: GitopsObject) -> Iterator[Found]:
    entry, spec = found.entry, found.spec
    at: Pointer = ("spec", "path")
    if spec.get("suspend") is True:
        return
    kind = value_at(spec, ("sourceRef", "kind"))
    path = as_text(spec.get("path")) or "./"
    try:
        target = join_path(found.folder, path)
    except OutsideTreeError:
        yield outside(entry, at, path)
        return
    if kind in ("OCIRepository", "Bucket") or found.tree.entries(target) is None:
        yield elsewhere(entry, at, path)
        return
    substitutions, unknown = _substitutions(found)
    yield from unknown
    yield Rendering(
        target,
        place=entry.place(()),
        by=f"Flux Kustomization {entry.name}",
        overlay=_flux_overlay(spec),
        substitutions=substitutions,
    )


def _flux_overlay(spec: JsonDict) -> JsonDict:
    fields = (k for k in KUSTOMIZE_FIELDS if k in spec and k != "namespace")
    overlay: JsonDict = {k: spec[k] for k in fields}
    if isinstance(spec.get("targetNamespace"), str):
        overlay["namespace"] = spec["targetNamespace"]
    metadata = as_mapping(spec.get("commonMetadata"))
    if metadata.get("labels"):
        overlay["labels"] = [{"pairs": metadata["labels"]}]
    return overlay


def _substitutions(found: GitopsObject) -> tuple[dict[str, str] | None, list[Diagnostic]]:
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
            unknown.append(note(found.entry, at, "unknown-variables", not_here(one), hint))
        variables |= {k: str(v) for k, v in (data or {}).items()}
    for key, value in as_mapping(build.get("substitute")).items():
        variables[key] = value if isinstance(value, str) else plain(value)
    return variables, unknown


def read_release(found: GitopsObject) -> Iterator[Found]:
    entry, spec = found.entry, found.spec
    chart = as_mapping(value_at(spec, ("chart", "spec")))
    at: Pointer = ("spec", "chart", "spec", "chart")
    name = as_text(chart.get("chart"))
    kind = value_at(chart, ("sourceRef", "kind"))
    values, unknown = _release_values(found)
    given = [values_in(entry, ("spec", "values"), values)]
    namespace = as_text(spec.get("targetNamespace")) or entry.namespace
    if kind not in ("GitRepository", None) or not name:
        shown = name or as_text(value_at(spec, ("chartRef", "name"))) or "its chart"
        where = "the Helm repository of its sourceRef"
        yield from remote_chart(entry, at, shown, where, given, namespace)
        return
    try:
        target = join_path(found.folder, name)
    except OutsideTreeError:
        yield outside(entry, at, name)
        return
    if found.tree.entries(target) is None:
        where = "another repository"
        yield from remote_chart(entry, at, name, where, given, namespace)
        return
    yield from unknown
    files = tuple(
        posixpath.normpath(posixpath.join(found.folder, f))
        for f in strings(chart.get("valuesFiles"))
    )
    yield UsedFiles(files)
    yield Rendering(
        target,
        Tool.HELM,
        entry.place(()),
        f"Flux HelmRelease {entry.name}",
        release=ChartRelease(as_text(spec.get("releaseName")) or entry.name, files),
        namespace=namespace,
        values=values,
    )


def _release_values(found: GitopsObject) -> tuple[JsonDict, list[Diagnostic]]:
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
        unknown.append(note(found.entry, at, "unknown-variables", not_here(one), hint))
    return merge_values(values, as_mapping(found.spec.get("values"))), unknown
