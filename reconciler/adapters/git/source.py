"""Where desired state comes from: a working tree, a commit of it, or a remote repository."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

from reconciler.adapters.git.folder import read_folder
from reconciler.adapters.git.objects import (
    find_folder,
    open_objects,
    read_commit,
    submodule_finding,
    walk_files,
)
from reconciler.adapters.git.refs import commit_of
from reconciler.adapters.git.repository import (
    Repository,
    RepositoryView,
    find_repository,
    repository_view,
)
from reconciler.adapters.git.revision import (
    GitRevision,
    revision_of,
    working_revision,
    working_state,
)
from reconciler.adapters.git.trees import CommitTree, FolderTree, trees_around
from reconciler.desired.fleet import SourceFile
from reconciler.desired.sources.tree import Tree
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.errors import MissingFleetError, UnreadableError, UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import without_secrets


@dataclass(frozen=True, slots=True)
class WorkingTree:
    """A folder as it is on disk, committed or not."""

    path: str = "."


@dataclass(frozen=True, slots=True)
class AtRef:
    """The folder ``path`` of a repository on this machine, as it is at ``ref``."""

    path: str
    ref: str


@dataclass(frozen=True, slots=True)
class Remote:
    """The folder ``path`` of a remote repository at ``ref``; clones are kept in ``cache``."""

    url: str
    cache: str
    ref: str = "HEAD"
    path: str = "."


Source = WorkingTree | AtRef | Remote


@dataclass(frozen=True, slots=True)
class SourceContent:
    """The fleet files of a source in order of their paths, diagnostics, and the revision.

    ``leaving`` counts the references of sources that lead out of the tree, and those to what is not
    in it; ``commands`` are those that rendered the files.
    """

    files: tuple[SourceFile, ...]
    diagnostics: tuple[Diagnostic, ...]
    revision: GitRevision
    leaving: tuple[int, int] = (0, 0)
    commands: tuple[str, ...] = ()


Expand = Callable[["SourceContent", Tree, str], SourceContent]
"""Renders what was read: the content, the tree that its sources may refer to, and the folder in
it. ``SourceContent.leaving`` of the result counts the references that led out of the tree."""


def read(source: Source, expand: Expand | None = None) -> SourceContent:
    """Return the current content of the source, rendered by ``expand``.

    Sources may refer to files of the same repository. Outside any, they may refer to the folder,
    and from a folder that is not a fleet of its own (no reconciler.yaml) to the folders around it.

    Raises:
        UnreadableError: it cannot be read, or contains no YAML or JSON file at all: missing files
            must never look like an emptied fleet.
        UsageError: the ref, the address or the folder is not one.
        LockedError: another process works on the clone.
    """
    match source:
        case WorkingTree(path):
            content = read_working_tree(path)
            _expect_files(content, path)
            return content if expand is None else expand_folder(content, path, expand)
        case AtRef(path, ref):
            return _read_ref(path, ref, expand)
        case Remote():
            return _read_remote(source, expand)


def read_working_tree(path: str) -> SourceContent:
    """Return the content of a folder as it is on disk, which may have no file, not rendered.

    Raises:
        UnreadableError: it cannot be read.
    """
    files, findings = read_folder(path)
    state = working_state(path, files)
    findings += map(submodule_finding, state.submodules)
    return SourceContent(tuple(files), tuple(findings), state.revision)


def read_checked_folder(path: str) -> tuple[list[SourceFile], list[Diagnostic]]:
    """Return the files of a folder on disk and findings, also those on submodules.

    The files can be checked also if git refuses the repository around them.

    Raises:
        UnreadableError: the folder cannot be read.
    """
    files, findings = read_folder(path)
    with suppress(UnreadableError):
        findings += map(submodule_finding, working_state(path, files).submodules)
    return files, findings


def expand_folder(content: SourceContent, path: str, expand: Expand) -> SourceContent:
    """Return the content of a folder on disk after rendering.

    Of the trees around it, that counts which leaves the fewest references open.
    """
    found = content
    for top, below in trees_around(path):
        made = expand(content, FolderTree(top), below)
        if found is content or made.leaving < found.leaving:
            found = made
        if not any(found.leaving):
            break
    return found


def head_of(source: Source) -> str | None:
    """Return the commit that the source is at, without reading its files: for polling.

    A working tree's uncommitted changes are not part of it (``watch`` reports those). None if no
    commit is known.

    Raises:
        UnreadableError: the repository or the remote cannot be read.
    """
    match source:
        case WorkingTree(path):
            return working_revision(path).head
        case AtRef(path, ref):
            with repository_view(repository_of(path), path) as view:
                return commit_of(view, ref)
        case Remote():
            from reconciler.adapters.git.clone import remote_head

            return remote_head(source.url, source.ref)


def _read_ref(path: str, ref: str, expand: Expand | None) -> SourceContent:
    repository = repository_of(path)
    where = f"{path} at {ref}"
    below = os.path.relpath(os.path.realpath(path), repository.top).replace(os.sep, "/")
    with repository_view(repository, path) as view:
        commit = commit_of(view, ref)
        files, findings, found = read_commit(view, commit, below, where)
        revision = revision_of(commit, found, repository.name, below)
        content = _source_content(files, findings, revision, where)
        return _expand_commit(content, view, commit, where, expand)


def _expand_commit(
    content: SourceContent, view: RepositoryView, commit: str, where: str, expand: Expand | None
) -> SourceContent:
    """Return the content of a commit after rendering: from git's objects, never from files."""
    if expand is None:
        return content
    with closing(open_objects(view, where)) as objects:
        return expand(
            content, CommitTree(lambda: objects.root(commit)), content.revision.path or "."
        )


def _read_remote(source: Remote, expand: Expand | None) -> SourceContent:
    from reconciler.adapters.git.clone import with_clone

    folder = posixpath.normpath(source.path or ".")
    if folder.startswith(("/", "../")) or folder == "..":
        raise UsageError(f"{quote_value(source.path)} leads out of the repository", where="--path")
    repo = without_secrets(source.url, is_value=True)
    where = f"{repo} at {source.ref}"

    def read_clone(clone: RepositoryView, commit: str) -> SourceContent:
        files, findings, found = read_commit(clone, commit, folder, where)
        revision = revision_of(commit, found, repo, folder)
        content = _source_content(files, findings, revision, where)
        return _expand_commit(content, clone, commit, where, expand)

    return with_clone(source.url, source.ref, source.cache, read_clone)


def repository_of(path: str) -> Repository:
    """Return the repository that a folder is in.

    Raises:
        UsageError: it is not in a repository.
    """
    found = find_repository(path)
    if found is None:
        remedy = "remove the ref, or pass a folder in a repository"
        raise UsageError("not in a git repository", where=path, remedy=remedy)
    return found


def _source_content(
    files: list[SourceFile], findings: list[Diagnostic], revision: GitRevision, where: str
) -> SourceContent:
    content = SourceContent(tuple(files), tuple(findings), revision)
    _expect_files(content, where)
    return content


def _expect_files(content: SourceContent, where: str) -> None:
    """Refuse a folder without any file, unless findings say why.

    Raises:
        UnreadableError: there is no file.
    """
    if not content.files and not content.diagnostics:
        remedy = (
            "pass the fleet folder (an empty checkout is never planned), or take over the "
            "NodePools of Terraform with `reconciler init --from`"
        )
        raise MissingFleetError(
            "the folder contains no YAML or JSON file", where=where, remedy=remedy
        )


def find_folders(source: Source, names: Collection[str]) -> list[str]:
    """Return the folders below a source that contain a file with one of these names, in order.

    They are relative, ``.`` for the source itself. Hidden folders are skipped.

    Raises:
        UnreadableError: the source cannot be read.
        UsageError: the ref, the address or the folder is not one.
    """
    match source:
        case WorkingTree(path):
            return _matching_folders(_walk_files(path), names)
        case AtRef(path, ref):
            repository = repository_of(path)
            below = os.path.relpath(os.path.realpath(path), repository.top).replace(os.sep, "/")
            with repository_view(repository, path) as view:
                return _matching_folders(
                    _list_commit_files(view, commit_of(view, ref), below), names
                )
        case Remote(url, cache, ref, path):
            from reconciler.adapters.git.clone import with_clone

            below = posixpath.normpath(path or ".")
            if below.startswith(("/", "../")) or below == "..":
                raise UsageError(f"{quote_value(path)} leads out of the repository", where="--path")
            return with_clone(
                url,
                ref,
                cache,
                lambda view, commit: _matching_folders(
                    _list_commit_files(view, commit, below), names
                ),
            )


def _matching_folders(paths: Iterable[str], names: Collection[str]) -> list[str]:
    found = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name in names and not any(part.startswith(".") for part in folder.split("/")):
            found.add(folder or ".")
    return sorted(found)


def _walk_files(top: str) -> Iterator[str]:
    if not os.path.isdir(top):
        raise UnreadableError(f'folder "{top}" does not exist')
    for path, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(path, top).replace(os.sep, "/")
        yield from (name if below == "." else f"{below}/{name}" for name in files)


def _list_commit_files(view: RepositoryView, commit: str, below: str) -> Iterator[str]:
    with closing(open_objects(view, view.where)) as objects:
        folder = find_folder(objects.root(commit), below, view.where)
        yield from (file.path for file in walk_files(folder))


def read_blob(folder: str, ref: str, path: str, bytes_max: int) -> bytes:
    """Return the file ``path``, from the top of the repository that ``folder`` is in, at ``ref``.

    Raises:
        UsageError: ``folder`` is in no repository, or ``ref`` names no commit.
        UnreadableError: the file does not exist, or has more than ``bytes_max`` bytes.
    """
    repository = find_repository(folder)
    if repository is None:
        remedy = "pass a fleet folder in a repository, or --repo URL"
        raise UsageError("not in a git repository", where=folder, remedy=remedy)
    with repository_view(repository, folder) as view:
        return _read_commit_blob(view, commit_of(view, ref), path, bytes_max, f"{path} at {ref}")


def read_remote_blob(url: str, cache: str, ref: str, path: str, bytes_max: int) -> bytes:
    """Return the file ``path`` of a remote repository at ``ref``; its clone is kept in ``cache``.

    Raises:
        UsageError: the address is refused, or ``ref`` names no commit.
        UnreadableError: the remote does not answer, the file does not exist, or has more than
            ``bytes_max`` bytes.
        LockedError: another process is using the clone.
    """
    from reconciler.adapters.git.clone import with_clone

    def read(view: RepositoryView, commit: str) -> bytes:
        return _read_commit_blob(view, commit, path, bytes_max, f"{path} at {ref}")

    return with_clone(url, ref, cache, read)


def _read_commit_blob(
    view: RepositoryView, commit: str, path: str, bytes_max: int, where: str
) -> bytes:
    with closing(open_objects(view, where, unpacked_max=bytes_max + 1)) as objects:
        entry = objects.root(commit).find_entry(path)
        if entry is None or entry.kind != "blob":
            raise UnreadableError(
                "the file does not exist in that commit", where=where, remedy="check the path"
            )
        _, size, content = objects.read(entry.oid, bytes_max)
    if content is None:
        raise UnreadableError(
            f"the file has {size} bytes, more than {bytes_max}",
            where=where,
            remedy="capture fewer objects",
        )
    return content
