"""Which sources a fleet has: those that it lists, or those that its folders are.

A folder with a kustomization.yaml is rendered by kustomize, a folder with a Chart.yaml by Helm.
Objects of Flux and Argo CD name further ones. Other files are objects as they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reconciler.desired.contents import may_have_pods
from reconciler.desired.fleet import SourceFile
from reconciler.desired.sources import listed
from reconciler.desired.sources.chart import CHART
from reconciler.desired.sources.kustomization import NAMES, Closure, closure_of
from reconciler.desired.sources.requested import Rendering, Tool
from reconciler.desired.sources.tree import OutsideTreeError, TreeLimitError, folder_of
from reconciler.desired.sources.unread import AMBIGUOUS_WORKLOADS
from reconciler.desired.sources.work import MeteredTree
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.model.text.paths import is_below
from reconciler.source.document import Document
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE

_COMPONENT: Final = b"kind: Component"
_NODES: Final = re.compile(
    rb"""\bkind["']?\s*:\s*["']?(?:NodePool|EC2NodeClass|Provisioner|AWSNodeTemplate|NodeOverlay)\b"""
)
_GITOPS: Final = (
    b"kustomize.toolkit.fluxcd.io",
    b"helm.toolkit.fluxcd.io",
    b"argoproj.io",
)
_LIBRARY: Final = re.compile(rb"""^["']?type["']?\s*:\s*["']?library\b""", re.MULTILINE)
UNLISTED: Final = "unlisted-file"
_LISTED_MAX: Final = 8
_HELMFILES: Final = ("helmfile.yaml", "helmfile.yml", "helmfile.yaml.gotmpl")

AMBIGUOUS: Final = "ambiguous-source"


class Alternatives(NamedTuple):
    """Kustomizations of which one has to be named, and the finding if none is.

    Without a finding, another one is preferred to them.
    """

    folders: tuple[str, ...]
    finding: Diagnostic | None = None


@dataclass
class Detected:
    """The sources of a fleet: ``plain`` files, and what has to be rendered.

    ``alternatives`` are not rendered, unless an object of Flux or Argo CD names one of them.
    ``reads_gitops`` is whether objects of Flux and Argo CD among the plain files name further
    sources, ``is_stated`` whether the fleet lists its sources.
    """

    plain: list[SourceFile] = field(default_factory=list)
    renderings: list[Rendering] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    reads_gitops: bool = True
    is_stated: bool = False


def has_sources(files: Iterable[SourceFile]) -> bool:
    """Return whether anything has to be rendered; most fleets have nothing."""
    for file in files:
        name = file.path.rpartition("/")[2]
        if name in NAMES or name == CHART:
            return True
        if file.path in CONFIG_FILES and f"{listed.KEY}:".encode() in file.content:
            return True
        if any(group in file.content for group in _GITOPS):
            return True
    return False


def detect(
    files: Sequence[SourceFile], tree: MeteredTree, below: str, prefer: Sequence[str] = ()
) -> Detected:
    """Return the sources of the fleet whose folder is ``below`` in the tree.

    Of overlays that share a base, the one below a path of ``prefer`` counts.
    """
    stated = listed.stated_sources(files)
    if stated is not None:
        return _detect_stated(files, tree, below, *stated)
    found = Detected()
    charts = _chart_folders(files)
    libraries = {folder_of(f.path) for f in files if _is_library(f)}
    kustomizations = sorted({folder_of(f.path) for f in files if _is_kustomization(f.path)})
    kustomizations = [k for k in kustomizations if not _is_in(k, charts)]
    closures = _closures(kustomizations, tree, below, found)
    found.plain, unlisted = _plain_files(files, charts, closures.values(), below)
    found.findings += unlisted
    for chart in charts:
        if chart in libraries:
            continue
        path = posixpath.normpath(posixpath.join(below, chart))
        place = Place(posixpath.normpath(f"{chart}/{CHART}"), 1, 1)
        found.renderings.append(Rendering(path, Tool.HELM, place))
    found.findings += _helmfiles(charts, tree, below)
    found.renderings += list(_roots(closures, files, below, found, prefer))
    return found


def _plain_files(
    files: Sequence[SourceFile], charts: Collection[str], closures: Collection[Closure], below: str
) -> tuple[list[SourceFile], list[Diagnostic]]:
    """Return the files that are read as they are, and findings on those that nothing reads."""
    owned = set[str]().union(*(closure.files for closure in closures))
    owned_folders = set[str]().union(*(closure.folders for closure in closures))
    plain: list[SourceFile] = []
    unlisted: list[Diagnostic] = []
    for file in files:
        path = posixpath.normpath(posixpath.join(below, file.path))
        if file.path in (*CONFIG_FILES, LOCK_FILE):
            plain.append(file)
        elif _is_in(file.path, charts) or path in owned:
            continue
        elif folder_of(path) not in owned_folders:
            plain.append(file)
        elif _NODES.search(file.content) and not _is_kustomization(file.path):
            unlisted.append(_unlisted(file))
    return plain, unlisted


def _helmfiles(charts: Collection[str], tree: MeteredTree, below: str) -> Iterator[Diagnostic]:
    """Yield a warning for each helmfile around a chart, which is rendered without its values."""
    folders: set[str] = set()
    for chart in charts:
        while chart not in ("", ".") and chart not in folders:
            folders.add(chart)
            chart = posixpath.dirname(chart)
    for folder in sorted(folders | {"."}) if charts else ():
        for name in _HELMFILES:
            path = posixpath.normpath(posixpath.join(folder, name))
            if tree.read(posixpath.normpath(posixpath.join(below, path))) is not None:
                message = f"{name} chooses the values of charts, which are rendered without them"
                hint = "pass what it makes instead: `helmfile template`, with -f - or --from -"
                place = Place(path, 1, 1)
                yield Diagnostic(Severity.WARNING, "helmfile", message, place, hint=hint)


def _is_kustomization(path: str) -> bool:
    return path.rpartition("/")[2] in NAMES


def _unlisted(file: SourceFile) -> Diagnostic:
    message = "is not listed in the kustomization.yaml of its folder and is not read"
    hint = "list it under resources, or move it"
    return Diagnostic(Severity.WARNING, UNLISTED, message, Place(file.path, 1, 1), hint=hint)


def _chart_folders(files: Iterable[SourceFile]) -> dict[str, None]:
    """Return the folders of charts, without the charts inside another."""
    every = sorted(folder_of(f.path) for f in files if f.path.rpartition("/")[2] == CHART)
    found: dict[str, None] = {}
    for folder in every:
        if not _is_in(folder, found):
            found[folder] = None
    return found


def _is_library(file: SourceFile) -> bool:
    """Return whether a file is that of a chart which only others use, and which has no objects."""
    is_chart = file.path.rpartition("/")[2] == CHART
    return is_chart and _LIBRARY.search(file.content) is not None


def _is_in(path: str, folders: Collection[str]) -> bool:
    """Return whether a path is one of the folders, or anything in one."""
    while path not in folders:
        if not path or path == ".":
            return False
        path = folder_of(path)
    return True


def _closures(
    folders: Iterable[str], tree: MeteredTree, below: str, found: Detected
) -> dict[str, Closure]:
    closures: dict[str, Closure] = {}
    for folder in folders:
        path = posixpath.normpath(posixpath.join(below, folder))
        try:
            closures[path] = closure_of(tree, path)
        except (OutsideTreeError, TreeLimitError) as error:
            found.findings.append(tree_finding(error, Place(folder, 1, 1)))
        if tree.is_exhausted:
            break
    return closures


def tree_finding(error: OutsideTreeError | TreeLimitError, place: Place) -> Diagnostic:
    """Return the finding on a source that cannot be copied."""
    if isinstance(error, OutsideTreeError):
        message = f"{error} is a symbolic link that leads out of the fleet"
        return Diagnostic(Severity.ERROR, "outside-source", message, place, hint="remove the link")
    message = f"the source is too large: {error}"
    return Diagnostic(Severity.ERROR, "too-large", message, place, hint="render less at once")


def _parts_of_others(
    closures: Mapping[str, Closure], files: Sequence[SourceFile], below: str
) -> set[str]:
    """Return the kustomizations that another one refers to, and components."""
    referred = {f for path, c in closures.items() for f in c.folders if f != path}
    components = {
        posixpath.normpath(posixpath.join(below, folder_of(f.path)))
        for f in files
        if _is_kustomization(f.path) and _COMPONENT in f.content
    }
    return referred | components


def _roots(
    closures: dict[str, Closure],
    files: Sequence[SourceFile],
    below: str,
    found: Detected,
    prefer: Sequence[str],
) -> Iterator[Rendering]:
    """Yield the kustomizations that no other one refers to.

    Several that share a base are alternatives, such as overlays for staging and production: only
    ``prefer`` chooses one, because anything else would be a guess. Those without an object that a
    plan depends on, such as policies, are left out.
    """
    parts = _parts_of_others(closures, files, below)
    roots = {path: closure for path, closure in sorted(closures.items()) if path not in parts}
    several: list[list[str]] = []
    for group in _alternatives(roots):
        if len(group) > 1 and not any(_may_count(roots[path]) for path in group):
            continue
        shown = {posixpath.relpath(path, below): path for path in group}
        if (chosen := _chosen(shown, prefer)) is None:
            several.append(group)
            continue
        path = shown.pop(chosen)
        if shown:
            found.alternatives.append(Alternatives(tuple(shown.values())))
        yield Rendering(path, Tool.KUSTOMIZE, place_of_kustomization(roots[path], below))
    choices = _OpenChoices(roots, several, below)
    found.alternatives += choices.alternatives(choices.sources_to_name(files, found))


def _may_count(closure: Closure) -> bool:
    """Return whether a kustomization may have an object that a plan depends on."""
    return bool(closure.findings) or any(
        _NODES.search(content)
        or any(group in content for group in _GITOPS)
        or may_have_pods(content)
        for content in closure.files.values()
    )


def _chosen(overlays: Collection[str], prefer: Sequence[str]) -> str | None:
    """Return the overlay that counts: the only one, or the only one below a preferred path."""
    for path in (".", *prefer):
        preferred = [name for name in overlays if is_below(name, posixpath.normpath(path))]
        if len(preferred) == 1:
            return preferred[0]
    return None


class _OpenChoices(NamedTuple):
    """The groups of kustomizations of which none is chosen, among all that nothing refers to."""

    roots: Mapping[str, Closure]
    groups: Sequence[Sequence[str]]
    below: str

    @property
    def of_nodes(self) -> set[str]:
        """The kustomizations that make nodes."""
        return {p for p, c in self.roots.items() if any(map(_NODES.search, c.files.values()))}

    def alternatives(self, named: str) -> Iterator[Alternatives]:
        """Yield each group with a finding; ``named`` are the ``sources`` that would choose."""
        of_nodes = self.of_nodes
        for group in self.groups:
            names = [posixpath.relpath(path, self.below) for path in group]
            place = place_of_kustomization(self.roots[group[0]], self.below)
            code = AMBIGUOUS_WORKLOADS if of_nodes.isdisjoint(group) else AMBIGUOUS
            first = folder_of_one(names)
            is_fleet = any(is_below(posixpath.relpath(p, self.below), first) for p in of_nodes)
            finding = _ambiguous(names, place, code, "" if named and not is_fleet else first, named)
            yield Alternatives(tuple(group), finding)

    def sources_to_name(self, files: Sequence[SourceFile], found: Detected) -> str:
        """Return the ``sources`` with all that makes nodes and the first of each kind of overlays.

        It is empty if a single entry is enough, or if there are too many.
        """
        named = list(dict.fromkeys(self._named_sources(files, found)))
        if not 1 < len(named) <= _LISTED_MAX:
            return ""
        return ", ".join(f"{{{kind}: {path}}}" for kind, path in named)

    def _named_sources(
        self, files: Sequence[SourceFile], found: Detected
    ) -> Iterator[tuple[str, str]]:
        makers = filter(_makes_nodes, files)
        paths = {posixpath.normpath(posixpath.join(self.below, file.path)) for file in makers}
        for file in filter(_makes_nodes, found.plain):
            yield "folder", folder_of(file.path)
        for rendering in found.renderings:
            chart = rendering.folder
            if rendering.tool is Tool.HELM and any(is_below(path, chart) for path in paths):
                yield "chart", posixpath.relpath(chart, self.below)
        chosen = sorted(self.of_nodes.difference(*self.groups))
        for path in (*chosen, *(group[0] for group in self.groups)):
            yield "kustomization", posixpath.relpath(path, self.below)


def _makes_nodes(file: SourceFile) -> bool:
    return _NODES.search(file.content) is not None


def _ambiguous(
    shown: Sequence[str], place: Place, code: str, folder: str, named: str
) -> Diagnostic:
    """Return the finding that one of several overlays has to be named.

    ``folder`` is that to plan instead, if one is enough, and ``named`` are the sources to list if
    the overlay alone is not.
    """
    names = ", ".join(shown[:_LISTED_MAX])
    more = f" and {len(shown) - _LISTED_MAX} more" if len(shown) > _LISTED_MAX else ""
    message = f"{len(shown)} overlays share a base: {names}{more}; one of them has to be named"
    hint = f"name it in reconciler.yaml: sources: [{{kustomization: {shown[0]}}}]"
    if named:
        hint = f"name it in reconciler.yaml, which then lists all that is read: sources: [{named}]"
    if folder:
        hint = f"pass the folder of one, such as {folder}, or {hint}"
    return Diagnostic(Severity.ERROR, code, message, place, hint=hint, folders=tuple(shown))


def folder_of_one(overlays: Sequence[str]) -> str:
    """Return the folder of the first overlay up to the name in which they differ.

    Beside it may be other parts of the same environment, as in ``prod/nodes`` and ``prod/apps``.
    """
    names = [overlay.split("/") for overlay in overlays]
    depth = next((n for n, parts in enumerate(zip(*names, strict=False)) if len(set(parts)) > 1), 0)
    return "/".join(names[0][: depth + 1])


def place_of_kustomization(closure: Closure, below: str) -> Place:
    """Return the start of the kustomization's file, relative to the fleet folder."""
    names = [p for p in closure.files if folder_of(p) == closure.root]
    path = next((p for p in names if _is_kustomization(p)), closure.root)
    return Place(posixpath.relpath(path, below), 1, 1)


def _alternatives(roots: dict[str, Closure]) -> list[list[str]]:
    """Return the roots in groups that share a folder, directly or through another root."""
    groups: list[tuple[set[str], list[str]]] = []
    for path, closure in roots.items():
        folders = {f for f in closure.folders if f != path}
        names = [path]
        rest: list[tuple[set[str], list[str]]] = []
        for other, members in groups:
            if other & folders:
                folders |= other
                names = [*members, *names]
            else:
                rest.append((other, members))
        groups = [*rest, (folders, names)]
    return [sorted(names) for _, names in groups]


def _detect_stated(
    files: Sequence[SourceFile],
    tree: MeteredTree,
    below: str,
    document: Document,
    items: list[JsonDict],
) -> Detected:
    """Return the sources that reconciler.yaml lists; nothing else of the folder is read."""
    found = Detected(reads_gitops=any("gitops" in item for item in items), is_stated=True)
    found.plain += [f for f in files if f.path in (*CONFIG_FILES, LOCK_FILE)]
    for number, item in enumerate(items):
        rendering = listed.rendering_of(item, tree, below, document, (listed.KEY, number))
        if isinstance(rendering, Diagnostic):
            found.findings.append(rendering)
        else:
            found.renderings.append(rendering)
    return found
