"""The sources that reconciler.yaml lists (``sources``): folders, kustomizations, charts, GitOps."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from reconciler.desired.sources.requested import ChartRelease, Rendering, Tool
from reconciler.desired.sources.tree import OutsideTreeError, Tree, TreeLimitError, join_path
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.json import JsonDict, as_list
from reconciler.model.text.quoting import quote_value
from reconciler.source import schema
from reconciler.source.document import Document, Pointer, parse_documents
from reconciler.source.finding import Finding, field_path
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from reconciler.desired.fleet import SourceFile

KEY: Final = "sources"
_TOOLS: Final = {
    "folder": None,
    "kustomization": Tool.KUSTOMIZE,
    "chart": Tool.HELM,
    "gitops": Tool.FILES,
}
_OPTIONS: Final = {
    "values": ("chart",),
    "set": ("chart",),
    "release": ("chart",),
    "namespace": ("chart",),
    "substitute": ("folder", "kustomization"),
}


def check_sources(config: JsonDict) -> Iterator[Finding]:
    """Yield the findings on the list that its schema cannot express."""
    items = config.get(KEY)
    for number, item in enumerate(as_list(items)):
        if not isinstance(item, dict):
            continue
        kinds = [kind for kind in _TOOLS if kind in item]
        at: Pointer = (KEY, number)
        if len(kinds) != 1:
            message = f"names {' and '.join(kinds) or 'no source'}"
            hint = f"write exactly one of {', '.join(_TOOLS)}"
            yield Finding("bad-setting", at, message, hint)
            continue
        for option, allowed in _OPTIONS.items():
            if option in item and kinds[0] not in allowed:
                message = f"is not used for a {kinds[0]}"
                yield Finding("bad-setting", (*at, option), message, "remove it", of_key=True)


def stated_sources(files: Sequence[SourceFile]) -> tuple[Document, list[JsonDict]] | None:
    """Return the sources of reconciler.yaml; None if it has none, or they are malformed."""
    for file in files:
        if file.path in CONFIG_FILES and KEY.encode() in file.content:
            documents, findings = parse_documents(file.path, file.content)
            data = documents[0].data if documents and not findings else None
            if not isinstance(data, dict) or not isinstance(data.get(KEY), list):
                continue
            faults = [*schema.check_schema("reconciler.v1", data), *check_sources(data)]
            if not any(fault.pointer[:1] == (KEY,) for fault in faults):
                return documents[0], data[KEY]
    return None


def rendering_of(
    item: JsonDict, tree: Tree, below: str, document: Document, at: Pointer
) -> Rendering | Diagnostic:
    """Return the rendering of one source, or why there is none."""
    kind = next(kind for kind in _TOOLS if kind in item)
    named = str(item[kind])
    place = document.place((*at, kind))
    pointer = field_path((*at, kind))
    try:
        path = join_path(below, named)
        exists = tree.entries(path) is not None or tree.read(path) is not None
    except (OutsideTreeError, TreeLimitError):
        message = f"{quote_value(named)} leads out of the repository"
        hint = "refer only to files of the repository"
        return Diagnostic(Severity.ERROR, "outside-source", message, place, pointer, hint)
    if not exists:
        message = f"{quote_value(named)} does not exist"
        hint = "correct the path; it is relative to the fleet folder"
        return Diagnostic(Severity.ERROR, "missing-source", message, place, pointer, hint)
    values = [posixpath.normpath(posixpath.join(below, str(v))) for v in item.get("values", ())]
    return Rendering(
        path,
        _TOOLS[kind],
        place,
        release=ChartRelease(str(item.get("release", "")), tuple(values)),
        namespace=str(item.get("namespace", "")),
        values=item.get("set") or {},
        substitutions=item.get("substitute"),
    )
