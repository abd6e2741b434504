"""The files of a fleet as an editor has them: unsaved texts in place of those on disk.

Nothing of a workspace runs: sources are not rendered, and no link out of the folder is followed.
Files and folders have smaller limits than elsewhere, because they are read again with every change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from reconciler.adapters.git.folder import FolderLimits, is_fleet_file, read_folder
from reconciler.assembly.inputs.checking import CheckContext, check_files
from reconciler.desired.fleet import Fleet, SourceFile
from reconciler.desired.sources import kustomization
from reconciler.desired.sources.chart import CHART
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.text.paths import is_below
from reconciler.source.document import Document, FileLimits, parse_documents
from reconciler.source.objects import entries
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE, VALIDATED_KINDS, group_of

FILE_BYTES_MAX: Final = 1024 * 1024
FOLDER: Final = FolderLimits(files_max=2_000, bytes_max=4 * 1024 * 1024, entries_max=20_000)
_YAML: Final = FileLimits(
    bytes_max=FILE_BYTES_MAX,
    nodes_max=100_000,
    expanded_max=100_000,
    aliases_max=1_000,
    documents_max=2_000,
)
_OF_PATCHES: Final = frozenset(
    {"missing-field", "missing-kind", "no-object", "duplicate-name", "not-an-object", "too-few"}
)
"""Findings on what a patch of kustomize may be: a part of an object that another file has."""
_OURS: Final = frozenset(group for group, _ in VALIDATED_KINDS.values())


class EditedFile(SourceFile):
    """A file that is parsed once, however often its fleet is checked."""

    parsed: tuple[list[Document], list[Diagnostic]] | None = None

    def documents(self) -> tuple[list[Document], list[Diagnostic]]:
        """Return the documents of the file, and what cannot be read of it."""
        if self.parsed is None:
            self.parsed = parse_documents(self.path, self.content, _YAML)
        documents, findings = self.parsed
        return list(documents), list(findings)


@dataclass(frozen=True, slots=True)
class CheckedFleet:
    """The files that were checked, their findings by path, and the fleet that they describe."""

    files: Mapping[str, EditedFile]
    findings: Mapping[str, Sequence[Diagnostic]]
    fleet: Fleet


@dataclass
class EditedFleet:
    """A fleet folder with the texts of an editor over its files; see the module."""

    root: str
    context: CheckContext
    has_config: bool = True
    _known: dict[str, EditedFile] = field(default_factory=dict)

    def check(self, texts: Mapping[str, str]) -> CheckedFleet:
        """Return every finding, with ``texts`` by relative path in place of files on disk.

        Raises:
            UnreadableError: the folder cannot be listed.
        """
        on_disk, unread = read_folder(self.root, FOLDER)
        unread = [finding for finding in unread if not _is_replaced(finding, texts)]
        large = self._read_files(on_disk, texts)
        charts, patches = (
            _folders_of(self._known, {CHART}),
            _folders_of(self._known, kustomization.NAMES),
        )
        read = {p: f for p, f in self._known.items() if not _is_in(p, charts)}
        is_partial = any((large, charts, patches, unread, not self.has_config))
        fleet, found = check_files(
            self.context, list(read.values()), unread, allow_empty=is_partial, any_class=is_partial
        )
        findings = [d for d in found if not _is_of_patch(d, patches)]
        findings += map(_too_large_finding, sorted(large))
        return CheckedFleet(self._known, self._by_file(findings), fleet)

    def _read_files(self, on_disk: Iterable[SourceFile], texts: Mapping[str, str]) -> set[str]:
        """Read the changed files again; return those that are too large to be read."""
        contents = {file.path: file.content for file in on_disk}
        contents |= {path: _encode(text) for path, text in texts.items() if is_fleet_file(path)}
        large = {path for path, content in contents.items() if len(content) > FILE_BYTES_MAX}
        self._known = {
            path: self._file(path, content)
            for path, content in sorted(contents.items())
            if path not in large
        }
        return large

    def _file(self, path: str, content: bytes) -> EditedFile:
        known = self._known.get(path)
        return (
            known if known is not None and known.content == content else EditedFile(path, content)
        )

    def _by_file(self, findings: Sequence[Diagnostic]) -> dict[str, list[Diagnostic]]:
        """Return findings by file; one of the folder is at the start of its settings."""
        config = next((name for name in CONFIG_FILES if name in self._known), None)
        found: dict[str, list[Diagnostic]] = {}
        for one in findings:
            if one.place is None and one.severity is not Severity.INFO and config is not None:
                one = replace(one, place=Place(config, 1, 1))
            if one.place is not None and (self.has_config or self._has_ours(one.place.file)):
                found.setdefault(one.place.file, []).append(one)
        return found

    def _has_ours(self, path: str) -> bool:
        """Return whether a file has objects of ours; a folder may hold YAML of any other tool."""
        file = self._known.get(path)
        return file is not None and any(group.encode() in file.content for group in _OURS)


def objects_of(files: Mapping[str, EditedFile], kind: str) -> Iterator[str]:
    """Yield the names of the objects of one of our kinds."""
    for file in files.values():
        if kind.encode() not in file.content or file.path in (*CONFIG_FILES, LOCK_FILE):
            continue
        for document in file.documents()[0]:
            for entry, _ in entries(document):
                if entry.kind == kind and group_of(entry.api_version) in _OURS and entry.name:
                    yield entry.name


def fleet_root(path: str, workspaces: Sequence[str]) -> tuple[str, bool]:
    """Return the folder of the fleet that a file belongs to, and whether it has settings.

    It is the nearest folder with a ``reconciler.yaml`` inside the workspace of the file, else the
    workspace, or without one the folder of the file. All paths are real and absolute.
    """
    folder = os.path.dirname(path)
    around = [w for w in workspaces if folder == w or folder.startswith(w.rstrip(os.sep) + os.sep)]
    top = max(around, key=len, default=folder)
    at = folder
    while True:
        if any(os.path.lexists(os.path.join(at, name)) for name in CONFIG_FILES):
            return at, True
        if at == top or os.path.dirname(at) == at:
            return top, False
        at = os.path.dirname(at)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_replaced(finding: Diagnostic, texts: Mapping[str, str]) -> bool:
    """Return whether a file that could not be read is open, so that its text is known."""
    is_unread = finding.code in ("unreadable", "broken-link", "not-a-file")
    return is_unread and finding.place is not None and finding.place.file in texts


def _folders_of(files: Mapping[str, EditedFile], names: Sequence[str] | set[str]) -> list[str]:
    """Return the folders that hold a file of one of the names."""
    return sorted({p.rpartition("/")[0] or "." for p in files if p.rpartition("/")[2] in names})


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


def _is_of_patch(finding: Diagnostic, folders: Sequence[str]) -> bool:
    is_inside = finding.place is not None and _is_in(finding.place.file, folders)
    return is_inside and finding.code in _OF_PATCHES


def _too_large_finding(path: str) -> Diagnostic:
    most = f"{FILE_BYTES_MAX // 2**20} MiB"
    message = f"the file is too large to be checked in an editor; at most {most} are read"
    place, hint = Place(path, 1, 1), "run `reconciler validate`"
    return Diagnostic(Severity.INFO, "too-large", message, place, hint=hint)
