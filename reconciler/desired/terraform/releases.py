"""Helm releases in the files of Terraform: the chart of each, and the values that it gets.

A chart in the repository is rendered with them. A chart from elsewhere is not read, except for the
objects that its values contain as they are, which charts such as ``raw`` pass on.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Final

from reconciler.desired.migration.controller import ControllerSettings
from reconciler.desired.migration.release import ChartInstallation, settings_of_chart
from reconciler.desired.sources.embedded import embedded_objects
from reconciler.desired.sources.protection import protect, restore
from reconciler.desired.sources.requested import (
    ChartRelease,
    Rendering,
    Tool,
    is_karpenter_chart,
    merge_values,
    values_of,
)
from reconciler.desired.terraform.expressions import evaluate, path_in
from reconciler.desired.terraform.functions import Unknown, Value, plain, to_text
from reconciler.desired.terraform.hcl import HclBlock, HclError, closing_end
from reconciler.desired.terraform.scope import ModuleScope
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict, as_list, as_mapping, nest
from reconciler.model.text.quoting import quote_value

_CHART: Final = "Chart.yaml"
_NODES: Final = ("nodepool", "nodeclass", "provisioner", "nodetemplate")
_CONTROLLER: Final = ("karpenter", "karpenter-crd")
"""Karpenter's own charts, which make no nodes."""
_NAME: Final = re.compile(r"(?<![\w-])[a-z_][\w-]*(?:\.[\w-]+|\[\d+\])+|\b[a-z_]\w*\b(?!\()")
"""A reference, or the argument of a template; the name of a function is neither."""
_NAME_MAX: Final = 1000
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)


def read_release(
    block: HclBlock, scope: ModuleScope, place: Place
) -> Iterator[Rendering | JsonDict | ControllerSettings | Diagnostic]:
    """Yield the release of a resource; of a chart from elsewhere the objects in its values.

    Of Karpenter's own chart, they are settings. A finding names a chart from elsewhere that may
    make nodes.
    """
    chart = _text(block, "chart", scope)
    values = _values(block, scope)
    if is_karpenter_chart(chart):
        values = merge_values(values, nest(dict(_parameters(block, scope))))
        yield settings_of_chart(ChartInstallation(values, _text(block, "version", scope)))
    folder = _chart_folder(chart, _text(block, "repository", scope), scope)
    by = f"helm_release {block.labels[-1] if block.labels else ''}"
    if folder is None:
        objects = [found for _, found in embedded_objects(values)]
        yield from objects
        if not objects and _may_make_nodes(block, chart, values):
            yield _elsewhere(by, chart, _text(block, "repository", scope), place)
        return
    yield Rendering(
        folder,
        Tool.HELM,
        place,
        by,
        release=ChartRelease(
            _text(block, "name", scope), parameters=tuple(_parameters(block, scope))
        ),
        namespace=_text(block, "namespace", scope),
        values=values,
    )


def _text(block: HclBlock, name: str, scope: ModuleScope) -> str:
    attribute = block.attributes.get(name)
    value = evaluate(attribute.text, scope) if attribute is not None else ""
    return "" if isinstance(value, Unknown) or value is None else to_text(value)


def _chart_folder(chart: str, repository: str, scope: ModuleScope) -> str | None:
    """Return the folder of a chart in the repository, None if it is elsewhere."""
    if not chart or "://" in chart or "${" in chart:
        return None
    named = chart if not repository or "://" in repository else f"{repository}/{chart}"
    for folder in (path_in(named, scope), posixpath.normpath(named)):
        if scope.read(posixpath.join(folder, _CHART)) is not None:
            return folder
    return None


def _values(block: HclBlock, scope: ModuleScope) -> JsonDict:
    attribute = block.attributes.get("values")
    listed = evaluate(attribute.text, scope) if attribute is not None else []
    merged: JsonDict = {}
    for item in as_list(listed):
        if isinstance(item, str):
            merged = merge_values(merged, _values_in(item))
    return merged


def _values_in(text: str) -> JsonDict:
    """Return the values in a text; of an expression that is not known, the first name is left.

    Its own text may contain quotes and brackets, which would end up in objects.
    """
    spans: list[tuple[int, int]] = []
    names: list[str] = []
    position = 0
    while (start := text.find("${", position)) >= 0:
        try:
            position = closing_end(text, start + 1)
        except HclError:
            break
        inner = text[start + 2 : min(position - 1, start + _NAME_MAX)]
        name = _NAME.search(_TEXT.sub("", inner))
        spans.append((start, position))
        names.append(f"${{{name[0]}}}" if name is not None else "")
    return as_mapping(restore(values_of(protect(text, spans)), names))


def _parameters(block: HclBlock, scope: ModuleScope) -> Iterator[tuple[str, str]]:
    """Yield the single values: the blocks ``set``, or the list of that name."""
    for inner in (*block.inner("set"), *block.inner("set_sensitive")):
        name = _text(inner, "name", scope)
        if name and "value" in inner.attributes:
            yield name, to_text(plain(evaluate(inner.attributes["value"].text, scope)))
    for inner in block.inner("set_list"):
        items = evaluate(inner.text_of("value"), scope)
        if isinstance(items, list):
            yield _text(inner, "name", scope), f"{{{','.join(to_text(plain(i)) for i in items)}}}"
    listed: Value = evaluate(block.text_of("set"), scope)
    for item in as_list(listed):
        if isinstance(item, Mapping) and isinstance(item.get("name"), str):
            yield item["name"], to_text(plain(item.get("value")))


def _may_make_nodes(block: HclBlock, chart: str, values: JsonDict) -> bool:
    """Return whether a chart from elsewhere may make nodes, by its name and its values."""
    if chart.rpartition("/")[2] in _CONTROLLER:
        return False
    words = " ".join((*block.labels, chart, *values)).lower().replace("-", "").replace("_", "")
    text = block.text_of("values").lower().replace("_", "")
    return any(word in words or word in text for word in (*_NODES, "karpenternodes"))


def _elsewhere(by: str, chart: str, repository: str, place: Place) -> Diagnostic:
    where = f" of {repository}" if repository else ""
    message = f"{by}: chart {quote_value(chart)}{where} is not in this repository and is not read"
    named = f"{repository}/{chart}" if repository.startswith("oci://") else chart
    source = f" --repo {repository}" if repository.startswith("http") else ""
    command = f"helm template {named}{source} --values FILE"
    hint = f"pass what it makes: `{command} | reconciler init --from -`"
    return Diagnostic(Severity.WARNING, "remote-source", message, place, hint=hint)
