"""Values for charts of nodes that have none of their own: `init` looks for them, and says so."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from reconciler.adapters.git.trees import FolderTree
from reconciler.assembly.inputs.files import read_start
from reconciler.assembly.inputs.rendering import expanded_folder
from reconciler.desired.fleet import SourceFile
from reconciler.desired.sources.chart import CHART, MAKES_NODES, chart_files
from reconciler.desired.sources.chartvalues import (
    ChartValues,
    ValuesOrigin,
    makes_nodes,
    merged_values,
    values_for_nodes,
)
from reconciler.desired.sources.requested import Purpose, Rendering, RenderOptions, Tool
from reconciler.desired.sources.tree import OutsideTreeError, TreeLimitError
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.json import JsonDict
from reconciler.model.text.paths import is_below
from reconciler.source.document import LIMITS, parse_documents

_CHARTS_MAX: Final = 20
_TRIED_MAX: Final = 12
_LISTED_MAX: Final = 5
_WORDS: Final = {
    ValuesOrigin.FILE: "with the values in {place.file}",
    ValuesOrigin.EXAMPLE: "with the example values in {place.file}",
    ValuesOrigin.DISABLED: "with what {place.file} switches off",
    ValuesOrigin.PAGE: "with the example at {place.file}:{place.line}",
    ValuesOrigin.COMMENT: "with the example values in the comments of {place.file}",
}


class ChartRenderings(NamedTuple):
    """Charts of nodes with the values that were found for them, and a note on each."""

    renderings: tuple[Rendering, ...] = ()
    notes: tuple[Diagnostic, ...] = ()


NO_CHARTS: Final = ChartRenderings()


def read_values(paths: Sequence[str]) -> JsonDict:
    """Return the values in files, merged in their order as Helm does.

    Raises:
        UnreadableError: a file cannot be read, or is no mapping.
    """
    found: list[JsonDict] = []
    for path in paths:
        documents, findings = parse_documents(path, read_start(path, LIMITS.bytes_max))
        data = documents[0].data if len(documents) == 1 and not findings else None
        if not isinstance(data, dict):
            why = str(findings[0]) if findings else "is no mapping of values"
            raise UnreadableError(why, where=path, remedy="pass a values file of the chart")
        found.append(data)
    return merged_values(found)


def charts_with_values(path: str, files: Sequence[SourceFile], values: JsonDict) -> ChartRenderings:
    """Return the charts of nodes in a folder, rendered with the values of ``--values``."""
    place = Place("--values", 1, 1)
    charts = [
        _rendering(folder, place, values)
        for folder, content in _charts(path, files)
        if makes_nodes(content)
    ]
    if not charts:
        why = "no chart with a NodePool or an EC2NodeClass is in this folder"
        raise UsageError(why, where="--values", remedy="leave it out; nothing was written")
    return ChartRenderings(tuple(charts))


def charts_with_found_values(path: str, files: Sequence[SourceFile]) -> ChartRenderings:
    """Return the charts of nodes in a folder with values of the repository that make a NodePool.

    Examples count only where nothing else makes one.

    Raises:
        UsageError: several files of one kind do.
    """
    renderings: list[Rendering] = []
    notes: list[Diagnostic] = []
    charts = (found for found in _charts(path, files) if makes_nodes(found[1]))
    for folder, content in islice(charts, _CHARTS_MAX):
        chosen = _choose(path, folder, values_for_nodes(folder, content, files))
        if chosen is None:
            continue
        renderings.append(_rendering(folder, chosen.place, chosen.values))
        where = _WORDS[chosen.origin].format(place=chosen.place)
        message = f"chart {folder} is rendered {where}: its own make no NodePool"
        hint = "pass those of your cluster with --values FILE"
        notes.append(Diagnostic(Severity.WARNING, "chart-values", message, chosen.place, hint=hint))
    return ChartRenderings(tuple(renderings), tuple(notes))


def _charts(path: str, files: Sequence[SourceFile]) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """Yield the folders of charts, without those inside another, and the files of each."""
    tree = FolderTree(path)
    done: list[str] = []
    for folder in sorted(posixpath.dirname(f.path) or "." for f in files if _is_chart(f.path)):
        if any(is_below(folder, other) for other in done):
            continue
        done.append(folder)
        try:
            yield folder, chart_files(tree, folder).copied.files
        except (OutsideTreeError, TreeLimitError):
            continue  # rendering it reports that


def _is_chart(path: str) -> bool:
    return posixpath.basename(path) == CHART


def _rendering(folder: str, place: Place, values: JsonDict) -> Rendering:
    return Rendering(folder, Tool.HELM, place, by="values", values=values)


def _choose(path: str, folder: str, candidates: Sequence[ChartValues]) -> ChartValues | None:
    """Return the values that make a NodePool, None if none do."""
    tried = candidates[:_TRIED_MAX]
    for origin in ValuesOrigin:
        working: list[ChartValues] = []
        for one in tried:
            if one.origin is not origin or (working and origin is ValuesOrigin.PAGE):
                continue
            if _makes_node_pools(path, _rendering(folder, one.place, one.values)):
                working.append(one)
        if len(working) > 1:
            raise _ambiguous_values(path, folder, [one.place.file for one in working])
        if working:
            return working[0]
    return None


def _ambiguous_values(path: str, folder: str, names: Sequence[str]) -> UsageError:
    shown = ", ".join(names[:_LISTED_MAX])
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return UsageError(
        f"chart {folder} makes NodePools with each of {len(names)} files of values: {shown}{more}",
        where="--from",
        remedy=f"name one with --values {posixpath.join(path, names[0])}; nothing was written",
    )


def _makes_node_pools(path: str, rendering: Rendering) -> bool:
    made, _ = expanded_folder(path, (), (), RenderOptions((rendering,), purpose=Purpose.TAKE_OVER))
    return any(MAKES_NODES.search(f.content) and b"kind: NodePool" in f.content for f in made)
