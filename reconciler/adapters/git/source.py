"""Where desired state comes from: a working tree, a commit of it, or a remote repository."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass

from reconciler.adapters.git.folder import read_folder
from reconciler.adapters.git.repository import Repository, RepositoryView, find, viewed
from reconciler.adapters.git.revision import GitRevision, working_revision
from reconciler.desired.fleet import SourceFile
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.errors import UnreadableError, UsageError


@dataclass(frozen=True, slots=True)
class WorkingTree:
    """A folder as it lies there, committed or not."""

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
    """The fleet files of a source in order of their paths, what was refused, and the revision."""

    files: tuple[SourceFile, ...]
    diagnostics: tuple[Diagnostic, ...]
    revision: GitRevision


def read(source: Source) -> SourceContent:
    """Return what the source holds now.

    Raises:
        UnreadableError: it cannot be read, or holds no YAML or JSON file at all: what is not
            there must never look like a fleet that was emptied.
        UsageError: the ref, the address or the folder is not one.
        LockedError: another process works on the clone.
    """
    match source:
        case WorkingTree(path):
            files, findings = read_folder(path)
            return _checked(files, findings, working_revision(path, files), path)
        case AtRef(path, ref):
            return _read_ref(path, ref)
        case Remote():
            return _read_remote(source)


def head_of(source: Source) -> str | None:
    """Return the commit that the source is at, without reading its files: for polling.

    A working tree's uncommitted changes do not show in it (``watch`` sees those). None where no
    commit is known.

    Raises:
        UnreadableError: the repository or the remote cannot be read.
    """
    match source:
        case WorkingTree(path):
            return working_revision(path).head
        case AtRef(path, ref):
            from reconciler.adapters.git.objects import commit_of

            with viewed(repository_of(path), path) as view:
                return commit_of(view, ref)
        case Remote():
            from reconciler.adapters.git.clone import remote_head

            return remote_head(source.url, source.ref)


def _read_ref(path: str, ref: str) -> SourceContent:
    from reconciler.adapters.git.objects import commit_of, read_commit

    repository = repository_of(path)
    where = f"{path} at {ref}"
    below = os.path.relpath(os.path.realpath(path), repository.top).replace(os.sep, "/")
    with viewed(repository, path) as view:
        commit = commit_of(view, ref)
        files, findings, subject = read_commit(view, commit, below, where)
    revision = GitRevision(commit, dirty=False, repo=repository.name, path=below, subject=subject)
    return _checked(files, findings, revision, where)


def _read_remote(source: Remote) -> SourceContent:
    from reconciler.adapters.git.clone import with_clone
    from reconciler.adapters.git.objects import read_commit
    from reconciler.model.text.urls import without_secrets

    folder = posixpath.normpath(source.path or ".")
    if folder.startswith(("/", "../")) or folder == "..":
        raise UsageError(f"{source.path!r} leads out of the repository", where="--path")
    repo = without_secrets(source.url, is_value=True)
    where = f"{repo} at {source.ref}"

    def read_clone(clone: RepositoryView, commit: str) -> SourceContent:
        files, findings, subject = read_commit(clone, commit, folder, where)
        revision = GitRevision(commit, dirty=False, repo=repo, path=folder, subject=subject)
        return _checked(files, findings, revision, where)

    return with_clone(source.url, source.ref, source.cache, read_clone)


def repository_of(path: str) -> Repository:
    """Return the repository that a folder is in.

    Raises:
        UsageError: it is in none.
    """
    found = find(path)
    if found is None:
        remedy = "remove the ref, or pass a folder in a repository"
        raise UsageError("not in a git repository", where=path, remedy=remedy)
    return found


def _checked(
    files: list[SourceFile], findings: list[Diagnostic], revision: GitRevision, where: str
) -> SourceContent:
    if not files and not findings:
        remedy = "pass the fleet folder; an empty checkout is never planned"
        raise UnreadableError(
            "the folder contains no YAML or JSON file", where=where, remedy=remedy
        )
    return SourceContent(tuple(files), tuple(findings), revision)
