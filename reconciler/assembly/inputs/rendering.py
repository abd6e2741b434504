"""Renders the sources of a fleet: its files in, the objects that they stand for out.

Everything that reads a fleet does so through ``expand``, at the head, at the base and in the daemon
alike, so that all of them see what kustomize and helm make of that revision.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from reconciler.desired.fleet import SourceFile
from reconciler.desired.sources import kustomization, unread
from reconciler.desired.sources.chart import (
    CHART,
    chart_files,
    empty_chart,
    missing_values,
    release_name,
)
from reconciler.desired.sources.detection import (
    Detected,
    detect,
    has_sources,
    place_of_kustomization,
    tree_finding,
)
from reconciler.desired.sources.gitops.objects import ObjectsOfFiles, has_objects
from reconciler.desired.sources.gitops.reading import folders_above, is_gitops, renderings_of
from reconciler.desired.sources.kustomization import Closure, closure_of, kustomization_file
from reconciler.desired.sources.references import broken_references
from reconciler.desired.sources.rendered import (
    RenderedFile,
    SourceIndex,
    embedded_file,
    namespaced_file,
    place_in_message,
    rendered_file,
)
from reconciler.desired.sources.requested import (
    FOR_A_PLAN,
    Embedded,
    Found,
    Purpose,
    Rendering,
    RenderOptions,
    Tool,
    UsedFiles,
)
from reconciler.desired.sources.substitution import substitute
from reconciler.desired.sources.tree import OutsideTreeError, Tree, TreeLimitError, manifests_in
from reconciler.desired.sources.unread import AMBIGUOUS_WORKLOADS, FailedSource, makes_nodes
from reconciler.desired.sources.work import Made, MeteredTree
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.model.text.quoting import quote_value
from reconciler.ports.rendering import RenderBuild, Renderer, RenderError
from reconciler.source.document import Document
from reconciler.source.objects import Entry, entries
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE

if TYPE_CHECKING:
    from reconciler.adapters.git.source import Expand, Source, SourceContent

_VALUES: Final = ".reconciler-values.yaml"
_ENTRY_FILES: Final = (*CONFIG_FILES, LOCK_FILE)


@dataclass(frozen=True, slots=True)
class Expanded:
    """The files of a fleet after rendering, the findings on its sources, and what rendered them."""

    files: tuple[SourceFile, ...]
    findings: tuple[Diagnostic, ...]
    commands: tuple[str, ...] = ()


def _leaving(findings: Sequence[Diagnostic]) -> tuple[int, int]:
    """Return how many references may be to a folder around the fleet, the certain ones first."""
    codes = [finding.code for finding in findings]
    return codes.count("outside-source"), codes.count("remote-source")


def expansion(source: Source | None = None, options: RenderOptions = FOR_A_PLAN) -> Expand:
    """Return what renders the files of a source, with the tools of this machine.

    ``RECONCILER_KUSTOMIZE`` and ``RECONCILER_HELM`` name them, otherwise PATH does; a program in
    the repository is never used.
    """
    from reconciler.adapters.git.source import AtRef, WorkingTree

    path = source.path if isinstance(source, WorkingTree | AtRef) else ""

    def expand_content(content: SourceContent, tree: Tree, below: str) -> SourceContent:
        if not options.renderings and not has_sources(content.files):
            return content
        found = expand(content.files, tree, below, _renderer(path), options)
        return replace(
            content, files=found.files, diagnostics=(*content.diagnostics, *found.findings),
            leaving=_leaving(found.findings), commands=found.commands,
        )  # fmt: skip

    return expand_content


def expanded_folder(
    path: str,
    files: Sequence[SourceFile],
    refused: Sequence[Diagnostic],
    options: RenderOptions = FOR_A_PLAN,
) -> tuple[list[SourceFile], list[Diagnostic]]:
    """Return the files of a folder on disk after rendering, and all findings."""
    if not options.renderings and not has_sources(files):
        return list(files), list(refused)
    from reconciler.adapters.git.revision import GitRevision
    from reconciler.adapters.git.source import SourceContent, WorkingTree, expand_folder

    content = SourceContent(tuple(files), tuple(refused), GitRevision())
    found = expand_folder(content, path, expansion(WorkingTree(path), options))
    return list(found.files), list(found.diagnostics)


def _renderer(path: str) -> Renderer:
    import os

    from reconciler.adapters.git.repository import find_repository
    from reconciler.adapters.rendering.tools import CommandLineRenderer

    named = {
        tool: os.environ[f"RECONCILER_{tool.value.upper()}"]
        for tool in (Tool.KUSTOMIZE, Tool.HELM)
        if os.environ.get(f"RECONCILER_{tool.value.upper()}")
    }
    repository = find_repository(path) if path else None
    return CommandLineRenderer(named, repository.top if repository is not None else path)


def expand(
    files: Sequence[SourceFile],
    tree: Tree,
    below: str,
    renderer: Renderer,
    options: RenderOptions = FOR_A_PLAN,
) -> Expanded:
    """Return the fleet in folder ``below`` of the tree after rendering.

    ``files`` are those of the folder as they are. Errors in sources that no node depends on are
    warnings, except to take over a fleet. That also gives the Applications of Karpenter's chart,
    with the values that they get.
    """
    metered = MeteredTree(tree)
    detected = detect(files, metered, below, options.prefer)
    asked = [
        replace(r, folder=posixpath.normpath(posixpath.join(below, r.folder)))
        for r in options.renderings
    ]
    expanded = _Expansion(metered, below, renderer, detected, asked, purpose=options.purpose)
    found = expanded.run()
    findings = found.findings
    if options.purpose is not Purpose.TAKE_OVER and not detected.is_stated:
        findings = unread.left_out(findings, expanded.failed, found.files, options.purpose)
    return replace(found, findings=unread.with_each_tool_once(findings))


@dataclass
class _Expansion:
    tree: MeteredTree
    below: str
    renderer: Renderer
    detected: Detected
    asked: list[Rendering]
    files: list[SourceFile] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    consumed: list[str] = field(default_factory=list)
    flat: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    rendered: list[SourceFile] = field(default_factory=list)
    made: list[tuple[str, list[SourceFile]]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    parsed: dict[str, list[Document]] = field(default_factory=dict)
    made_so_far: Made = field(default_factory=Made)
    failed: list[FailedSource] = field(default_factory=list)
    purpose: Purpose = Purpose.PLAN

    def run(self) -> Expanded:
        self.findings += self.detected.findings
        queue = self._gitops_of(self.detected.plain) if self.detected.reads_gitops else []
        self._render_all([*self.asked, *queue])
        made = [self._render_folder(r) for r in self.detected.renderings]
        for folder, files, findings in made:
            if not self._is_consumed(folder):  # by an object in one that was rendered later
                self.files += files
                self.findings += findings
        for folders, finding in self.detected.alternatives:
            if finding is None or sum(map(self._is_consumed, folders)) != 1:
                if finding is not None:
                    self.findings.append(finding)
                    shown = self._shown(folders[0])
                    is_of_nodes = finding.code != AMBIGUOUS_WORKLOADS
                    failed = FailedSource(shown, (finding,), is_of_nodes, is_read=False)
                    self.failed.append(failed)
                self._drop(folders)
        plain = [f for f in self.detected.plain if not self._is_plain_consumed(f)]
        return Expanded((*plain, *self.files), tuple(self.findings), tuple(self.commands))

    def _note_failure(
        self, rendering: Rendering, tool: Tool, findings: Sequence[Diagnostic], *, is_read: bool
    ) -> None:
        """Note the errors in a source, and whether it may have nodes."""
        errors = tuple(f for f in findings if f.severity is Severity.ERROR)
        if not errors:
            return
        folder = rendering.folder
        contents = (
            chart_files(self.tree, folder).copied.files
            if tool is Tool.HELM
            else closure_of(self.tree, folder).files
        )
        is_spare = tool is Tool.HELM and not rendering.by and rendering not in self.asked
        self.failed.append(FailedSource(
            self._shown(folder), errors, any(map(makes_nodes, contents.values())),
            is_spare=is_spare and not is_read, is_read=is_read,
        ))  # fmt: skip

    def _drop(self, folders: Sequence[str]) -> None:
        """Drop the objects of alternatives: duplicates would hide that one has to be named."""
        dropped = {id(f) for folder, made in self.made if folder in folders for f in made}
        self.files = [file for file in self.files if id(file) not in dropped]

    def _render_folder(
        self, rendering: Rendering
    ) -> tuple[str, Sequence[SourceFile], Sequence[Diagnostic]]:
        """Return a folder that was found, the files of it alone, and the findings on them."""
        if self._is_consumed(rendering.folder):
            return rendering.folder, (), ()
        start = len(self.findings)
        made = self._render(rendering)
        findings = self.findings[start:]
        del self.findings[start:]
        if self.detected.reads_gitops:
            self._render_all(self._gitops_of(made))
        return rendering.folder, made, findings

    def _render_all(self, queue: list[Rendering]) -> None:
        while queue:
            rendering = queue.pop(0)
            key = repr(replace(rendering, place=None))  # equal names may have other values
            if key in self.seen:
                continue
            self.seen.add(key)
            made = self._render(rendering)
            self.made.append((rendering.folder, made))
            self.files += made
            if rendering.by or self.detected.reads_gitops:
                queue += self._gitops_of(made)

    def _is_consumed(self, folder: str) -> bool:
        return any(folder == c or folder.startswith(f"{c}/") for c in self.consumed)

    def _is_plain_consumed(self, file: SourceFile) -> bool:
        if file.path in _ENTRY_FILES:
            return False
        path = posixpath.normpath(posixpath.join(self.below, file.path))
        is_used = path in self.used and not has_objects(file)
        is_in_whole = "." in self.consumed or self._is_consumed(path)
        return is_used or is_in_whole or (posixpath.dirname(path) or ".") in self.flat

    def _gitops_of(self, files: Sequence[SourceFile]) -> list[Rendering]:
        """Return the renderings that objects of Flux and Argo CD in these files ask for."""
        found: list[Rendering] = []
        for file in files:
            if not any(word in file.content for word in (b"fluxcd.io", b"argoproj.io")):
                continue
            for document in file.documents()[0]:
                for entry, finding in entries(document):
                    if finding is None and is_gitops(entry):
                        found += self._read_gitops(entry)
        return found

    def _read_gitops(self, entry: Entry) -> Iterator[Rendering]:
        """Yield what an object asks for, read from the folder that its paths start at."""
        best: list[Found] = []
        others = ObjectsOfFiles((*self.detected.plain, *self.rendered))
        for number, folder in enumerate(folders_above(self.below)):
            items: list[Found]
            try:
                items = list(renderings_of(entry, self.tree, folder, others))
            except (OutsideTreeError, TreeLimitError) as error:
                items = [tree_finding(error, entry.place(()))]
            if number == 0:
                best = items
            if any(isinstance(item, Rendering) for item in items):
                best = items
                break
        for item in best:
            if isinstance(item, Diagnostic):
                self.findings.append(item)
            elif isinstance(item, Embedded):
                self._add_embedded(item)
            elif isinstance(item, UsedFiles):
                self.used.update(item.paths)
            else:
                yield item

    def _add_embedded(self, item: Embedded) -> None:
        is_asked = self.purpose is Purpose.TAKE_OVER or not item.is_installation
        if is_asked and repr(item) not in self.seen:  # a folder of Applications may be read twice
            self.seen.add(repr(item))
            self.files.append(embedded_file(item.objects, item.place, item.namespace))

    def _render(self, rendering: Rendering) -> list[SourceFile]:
        """Return the files of one source; a finding says why there are none."""
        if self.made_so_far.is_full:
            return []
        place = rendering.place or Place(self._shown(rendering.folder), 1, 1)
        made: list[SourceFile] = []
        start = len(self.findings)
        try:
            self.made_so_far.add_source(self.tree)
            tool = rendering.tool or self._tool_of(rendering)
            is_flat = tool is Tool.FILES and not rendering.is_recursive
            if rendering.by and not (tool is Tool.FILES and rendering.include):
                if is_flat:
                    self.flat.add(rendering.folder)
                else:
                    self.consumed.append(rendering.folder)
            match tool:
                case Tool.FILES:
                    made = self._plain_files(rendering)
                case Tool.KUSTOMIZE:
                    made = self._kustomize(rendering, place)
                case Tool.HELM:
                    made = self._helm(rendering, place)
            self.made_so_far.add_files([file.content for file in made])
            self._note_failure(rendering, tool, self.findings[start:], is_read=bool(made))
        except (OutsideTreeError, TreeLimitError) as error:
            self.findings.append(tree_finding(error, place))
            made = []
        self.rendered += made
        return made

    def _tool_of(self, rendering: Rendering) -> Tool:
        folder = rendering.folder
        if self.tree.read(posixpath.join(folder, CHART)) is not None:
            return Tool.HELM
        is_kustomized = kustomization_file(self.tree, folder) is not None or rendering.overlay
        return Tool.KUSTOMIZE if is_kustomized else Tool.FILES

    def _manifests(self, rendering: Rendering) -> Iterator[tuple[str, bytes]]:
        keeps = rendering.keeps(self.tree.charge)
        return manifests_in(self.tree, rendering.folder, keeps, rendering.is_recursive)

    def _plain_files(self, rendering: Rendering) -> list[SourceFile]:
        found = []
        inner: list[str] = []
        for path, content in self._manifests(rendering):
            folder, name = posixpath.dirname(path) or ".", posixpath.basename(path)
            if rendering.folder != folder and name in (*kustomization.NAMES, CHART):
                inner.append(folder)
            text = substitute(content, rendering.substitutions)
            found.append((path, namespaced_file(self._shown(path), text, rendering.namespace)))
        if rendering.by and rendering.include:  # other folders are not known to be left out
            self.flat.update(posixpath.dirname(path) or "." for path, _ in found)
        below = tuple(f"{folder}/" for folder in inner)
        for folder in sorted(inner):
            if not folder.startswith(below):
                self._render_all([replace(rendering, folder=folder, by=rendering.by or "nested")])
        return [file for path, file in found if not path.startswith(below)]

    def _kustomize(self, rendering: Rendering, place: Place) -> list[SourceFile]:
        folder = rendering.folder
        closure = closure_of(self.tree, folder)
        if not closure.folders or kustomization_file(self.tree, folder) is None:
            paths = []
            for path, content in self._manifests(rendering):
                closure.copied.add(path, content)
                paths.append(path)
            listed = kustomization.listing(paths, folder)
            closure.copied.add(posixpath.join(folder, "kustomization.yaml"), listed)
        refused = list(kustomization.overlay_refusals(rendering.overlay, place))
        self.findings += [*(self._relative(f) for f in closure.findings), *refused]
        if refused or not closure.files:
            return []
        root = folder
        components: list[Closure] = []
        if rendering.overlay:
            overlay = self._with_components(rendering, closure, components)
            root = kustomization.add_overlay(closure, overlay)
        if rendering.by:
            self.consumed += closure.folders
        closure.check_loads(components)
        command = f"kustomize build {self._shown(folder)}"
        output = self._run(RenderBuild(Tool.KUSTOMIZE, closure.files, root), command, place)
        if output is None:
            lacks = any(f.code == "remote-source" for f in closure.findings)
            if lacks and self.findings[-1].code == "render-failed":
                self.findings.pop()  # it lacks what a patch changes, for example
            return []
        made = self._rendered(output, rendering, closure.files, closure.patches, root, place)
        names = (closure.name_prefix, closure.name_suffix)
        file = place_of_kustomization(closure, self.below).file
        self.findings += broken_references(made, *names, file)
        return [made]

    def _with_components(
        self, rendering: Rendering, closure: Closure, components: list[Closure]
    ) -> JsonDict:
        """Return the fields of an overlay with the paths of its components in the copy."""
        overlay = dict(rendering.overlay)
        listed = overlay.get("components")
        if isinstance(listed, list):
            paths = []
            for item in listed:
                path = posixpath.normpath(posixpath.join(rendering.folder, str(item)))
                inner = closure_of(self.tree, path)
                components.append(inner)
                self.findings += [self._relative(f) for f in inner.findings]
                for name, content in inner.files.items():
                    closure.copied.add(name, content)
                paths.append(posixpath.relpath(path, kustomization.OVERLAY))
            overlay["components"] = paths
        return overlay

    def _helm(self, rendering: Rendering, place: Place) -> list[SourceFile]:
        from reconciler.source.plainyaml import dump

        folder = rendering.folder
        chart = chart_files(self.tree, folder)
        self.findings += [self._relative(f) for f in chart.findings]
        release = rendering.release
        values = []
        for path in release.values_files:
            content = self.tree.read(path)
            if content is None:
                message = f"values file {quote_value(self._shown(path))} does not exist"
                hint = missing_values(chart.copied.files, folder)
                missing = Diagnostic(Severity.ERROR, "missing-source", message, place, hint=hint)
                self.findings.append(missing)
                return []
            chart.copied.add(path, content)
            values.append(path)
        if rendering.values:
            chart.copied.add(_VALUES, dump(rendering.values, sort_keys=False).encode())
            values.append(_VALUES)
        name = release_name(release.name or chart.name or "release")
        words = [f" -f {self._shown(path)}" for path in release.values_files]
        command = f"helm template {name} {self._shown(folder)}{''.join(words)}"
        used = replace(release, name=name, values_files=tuple(values))
        build = RenderBuild(Tool.HELM, chart.copied.files, folder, used, rendering.namespace)
        output = self._run(build, command, place, chart.name)
        if output is None:
            return []
        self.findings += empty_chart(chart.copied.files, output, self._shown(folder), place)
        if not values and not release.parameters:
            self.findings += chart.unset_values(self._shown(folder), place)
        defaults = posixpath.normpath(posixpath.join(folder, "values.yaml"))
        ordered = (defaults, *release.values_files)
        return [self._rendered(output, rendering, chart.copied.files, ordered, folder, place)]

    def _run(self, build: RenderBuild, command: str, place: Place, chart: str = "") -> bytes | None:
        self.commands.append(command)
        try:
            return self.renderer.render(build)
        except RenderError as error:
            code = "missing-tool" if error.is_missing else "render-failed"
            at = place_in_message(error.message, build.files, build.folder, chart)
            where = place if at is None else replace(at, file=self._shown(at.file))
            message, folders = f"`{command}` failed: {error.message}", tuple[str, ...]()
            if error.is_missing:
                message, folders = error.message, (self._shown(build.folder),)
            remedy = error.remedy or "correct it; `kustomize build` shows the same error"
            if build.tool is Tool.HELM and not error.remedy:
                remedy = missing_values(build.files, build.folder)
            found = Diagnostic(Severity.ERROR, code, message, where, hint=remedy, folders=folders)
            self.findings.append(found)
            return None

    def _rendered(
        self, output: bytes, rendering: Rendering, files: Mapping[str, bytes],
        patches: Sequence[str], root: str, place: Place,
    ) -> RenderedFile:  # fmt: skip
        index = SourceIndex(files, patches, self.below, place, self.parsed)
        shown = self._shown(rendering.folder)
        content = substitute(output, rendering.substitutions)
        made, findings = rendered_file(shown, content, index, root, rendering.namespace)
        self.findings += findings
        return made

    def _relative(self, finding: Diagnostic) -> Diagnostic:
        """Return a finding on a file of the tree with its path relative to the fleet folder."""
        if finding.place is None:
            return finding
        place = replace(finding.place, file=self._shown(finding.place.file))
        return replace(finding, place=place)

    def _shown(self, path: str) -> str:
        return posixpath.relpath(path, self.below)
