"""What a Helm chart is rendered from: its folder, and the dependencies that are in ``charts/``."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from reconciler.desired.sources.addresses import foreign_schema
from reconciler.desired.sources.tree import (
    CopiedFiles,
    OutsideTreeError,
    Tree,
    TreeLimitError,
    join_path,
)
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict, as_list, as_text
from reconciler.model.text.counting import format_list
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import without_secrets
from reconciler.source.document import parse_documents
from reconciler.source.finding import field_path

CHART: Final = "Chart.yaml"
_NESTING_MAX: Final = 5
DEPENDENCIES_MAX: Final = 500
"""The maximum number of dependencies of a chart, with those of its dependencies."""
_LOCAL: Final = "file://"
_FOLDER_NAME: Final = re.compile(r"[\w-][\w.-]*")
_OTHER_VALUES: Final = re.compile(
    r"/ci/[\w.-]+\.ya?ml$|/(?:values[-._][\w.-]+|[\w.-]+[-._]values|examples?)\.ya?ml$"
)
_PRINTED: Final = re.compile(rb"\{\{-?\s*\.Values\.([A-Za-z_][\w.]*)\s*(?:\|\s*quote\s*)?-?\}\}")
_TESTS: Final = re.compile(rb"\{\{-?\s*(?:else )?(?:if|with|range)\b([^}]*)")
_TESTED: Final = re.compile(rb"\.Values\.([A-Za-z_][\w.]*)")
_VALUES_SHOWN: Final = 5
EMPTY_CHART: Final = "empty-chart"
MAKES_NODES: Final = re.compile(rb"^kind: [\"']?(?:NodePool|EC2NodeClass)\b", re.MULTILINE)


@dataclass
class ChartFiles:
    """The files of a chart, and what it refers to that is not there."""

    tree: Tree
    folder: str
    copied: CopiedFiles = field(default_factory=CopiedFiles)
    findings: list[Diagnostic] = field(default_factory=list)
    name: str = ""
    dependencies: int = 0

    def complete_dependencies(self, folder: str, origin: str, depth: int = 0) -> None:
        """Copy the local dependencies of a chart, and leave out missing ones.

        ``folder`` is the chart's folder in the copy, ``origin`` that in the tree.
        """
        path = posixpath.normpath(posixpath.join(folder, CHART))
        content = self.copied.files.get(path)
        documents, findings = parse_documents(path, content or b"")
        if findings or not documents or not isinstance(documents[0].data, dict):
            self.findings += findings
            return
        document, data = documents[0], documents[0].data
        if folder == self.folder:
            name = data.get("name")
            self.name = as_text(name)
        kept: list[object] = []
        declared = as_list(data.get("dependencies"))
        for number, one in enumerate(declared):
            self.dependencies += 1
            if self.dependencies > DEPENDENCIES_MAX:
                raise TreeLimitError(f"more than {DEPENDENCIES_MAX} dependencies")
            if not isinstance(one, dict) or self._add_dependency(folder, origin, one, depth):
                kept.append(one)
                continue
            place = document.place(("dependencies", number))
            self.findings.append(_missing_dependency(one, origin, number, place))
        if len(kept) != len(declared):
            self._rewrite_chart(path, data, kept)

    def _add_dependency(self, folder: str, origin: str, one: JsonDict, depth: int) -> bool:
        """Return whether a dependency is in the copy, after a local one was copied there.

        Its name is that of a folder in ``charts/``, and must not lead to another.
        """
        name, repository = one.get("name"), one.get("repository")
        if not isinstance(name, str) or not _FOLDER_NAME.fullmatch(name):
            return True  # helm itself reports it
        target = f"{posixpath.normpath(posixpath.join(folder, 'charts'))}/{name}"
        if self._is_vendored(target):
            return True
        if not as_text(repository).startswith(_LOCAL) or depth >= _NESTING_MAX:
            return False
        try:
            local = join_path(origin, as_text(repository).removeprefix(_LOCAL))
        except OutsideTreeError:
            return False
        if self.tree.entries(local) is None or local == origin:
            return False
        self.copied.add_folder(self.tree, local, target)
        self.complete_dependencies(target, local, depth + 1)
        return True

    def _is_vendored(self, target: str) -> bool:
        """Return whether the copy has a dependency already, as a folder or as an archive."""
        return any(
            path.startswith(f"{target}/")
            or (path.startswith(f"{target}-") and path.endswith(".tgz"))
            for path in self.copied.files
        )

    def replace_foreign_schemas(self) -> None:
        """Replace each schema of values that refers to another file or to a server, or may do so.

        Helm would read any file of this machine for it, and connect to any server.
        """
        for path, content in list(self.copied.files.items()):
            outside = foreign_schema(path, content)
            if outside is not None:
                self.copied.add(path, b"{}")
                what, hint = "is no JSON", "correct it"
                if outside:
                    what = f"refers to {quote_value(without_secrets(outside))}, which is not read"
                    hint = "write what it refers to into the schema, below $defs"
                message = f"the schema {what}; the values of the chart are not checked"
                self.findings.append(
                    Diagnostic(
                        Severity.WARNING, "remote-source", message, Place(path, 1, 1), hint=hint
                    )
                )

    def _rewrite_chart(self, path: str, data: JsonDict, kept: list[object]) -> None:
        from reconciler.source.plainyaml import dump

        changed = {k: v for k, v in data.items() if k != "dependencies"}
        if kept:
            changed["dependencies"] = kept
        self.copied.add(path, dump(changed, sort_keys=False).encode())
        lock = f"{path.removesuffix(CHART)}Chart.lock"
        if lock in self.copied.files:
            self.copied.add(lock, b"")

    def unset_values(self, shown: str, place: Place) -> Iterator[Diagnostic]:
        """Yield a warning about values that templates of nodes print and that the chart lacks.

        Helm prints nothing in their place. Those that a template also tests may be missing.
        ``shown`` is the folder for people.
        """
        files, templates = self.copied.files, posixpath.normpath(f"{self.folder}/templates")
        path = posixpath.normpath(f"{self.folder}/values.yaml")
        documents, _ = parse_documents(path, files.get(path, b""))
        defaults = documents[0].data if documents else {}
        missing: dict[str, None] = {}
        for name, content in sorted(files.items()):
            if name.startswith(f"{templates}/") and MAKES_NODES.search(content):
                names = (found[1].decode() for found in _PRINTED.finditer(content))
                tested = _tested_values(content)
                missing |= {n: None for n in names if n not in tested and not _is_set(n, defaults)}
        if missing:
            needed = format_list(missing, _VALUES_SHOWN)
            message = f"{_display_name(shown)} has no value for {needed}, which its nodes need"
            hint = _values_remedy(files, shown)
            yield Diagnostic(Severity.WARNING, "unset-values", message, place, hint=hint)


def chart_files(tree: Tree, folder: str) -> ChartFiles:
    """Return the files that the chart in ``folder`` is rendered from.

    A dependency with a path (``file://``) is copied to ``charts/``. One that is neither there nor
    in ``charts/`` is left out of the copy, with a finding.

    Raises:
        OutsideTreeError: a symbolic link in the chart leads out of the tree.
        TreeLimitError: there are too many files, or they are too large.
    """
    found = ChartFiles(tree, folder)
    found.copied.add_folder(tree, folder)
    found.complete_dependencies(folder, folder)
    found.replace_foreign_schemas()
    return found


def _missing_dependency(one: JsonDict, origin: str, number: int, place: Place) -> Diagnostic:
    version = one.get("version")
    message = f"dependency {quote_value(one.get('name'))} {version or ''}".rstrip()
    message += " is not in charts/; its objects are not read"
    hint = f"vendor it: `helm dependency build {origin}`"
    path = field_path(("dependencies", number))
    return Diagnostic(Severity.WARNING, "missing-dependency", message, place, path, hint)


def empty_chart(
    files: Mapping[str, bytes], output: bytes, folder: str, place: Place
) -> Iterator[Diagnostic]:
    """Yield a warning about a chart whose templates make nodes, but not with these values."""
    templates = [c for path, c in files.items() if "/templates/" in f"/{path}"]
    if MAKES_NODES.search(output) or not any(MAKES_NODES.search(c) for c in templates):
        return
    message = f"{_display_name(folder)} makes no NodePool and no EC2NodeClass with these values"
    hint = _values_remedy(files, folder)
    yield Diagnostic(Severity.WARNING, EMPTY_CHART, message, place, hint=hint)


def _tested_values(template: bytes) -> set[str]:
    """Return the names of the values that a template tests, and of those that contain them."""
    found: set[str] = set()
    for test in _TESTS.finditer(template):
        for match in _TESTED.finditer(test[1]):
            parts = match[1].decode("ascii", "replace").split(".")
            found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return found


def _is_set(name: str, values: object) -> bool:
    """Return whether a chart has a value."""
    for key in name.split("."):
        if not isinstance(values, dict):
            return False
        values = values.get(key)
    return values not in (None, "")


def _display_name(folder: str) -> str:
    return "the chart" if folder == "." else f"chart {folder}"


def _values_remedy(files: Iterable[str], folder: str) -> str:
    """Return how to pass a chart other values than its own."""
    at, named = "CHART" if folder == "." else folder, values_of_chart(files) or "FILE"
    return (
        f"pass its values: `reconciler init --from {at} --values {named}`, or list them in "
        "reconciler.yaml, under sources"
    )


def empty_fleet(known: Iterable[Diagnostic], severity: Severity) -> Diagnostic:
    """Return the finding on a folder without a NodePool, with the chart that makes none if any."""
    message = "no NodePool in this folder; an empty fleet is not planned"
    hint = "add one, pass the fleet folder as PATH, or run `reconciler init --from`"
    for found in known:
        if found.code == EMPTY_CHART:
            message, hint = f"no NodePool in this folder: {found.message}", found.hint
            break
    return Diagnostic(severity, "empty-fleet", message, hint=hint)


def values_of_chart(files: Iterable[str]) -> str:
    """Return a file with values other than the chart's own, empty if it has none.

    ``ci/*-values.yaml`` are those that a chart is tested with.
    """
    return next((path for path in sorted(files) if _OTHER_VALUES.search(path)), "")


def release_name(name: str) -> str:
    """Return a name that Helm accepts for a release."""
    cleaned = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:53].strip("-")
    return cleaned or "release"


def missing_values(files: Mapping[str, bytes], folder: str) -> str:
    """Return what to do about a chart that does not render, which often lacks values."""
    named = values_of_chart(files) or "FILE"
    return (
        "pass the values that it needs: in reconciler.yaml, sources: [{chart: "
        f"{folder}, values: [{named}]}}], or `helm template … | reconciler plan -f -`"
    )
