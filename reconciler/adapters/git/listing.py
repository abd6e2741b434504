"""The folders of a source that hold certain files: where its fleets are."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Iterator

from reconciler.adapters.git.objects import commit_of
from reconciler.adapters.git.repository import RepositoryView, viewed
from reconciler.adapters.git.source import AtRef, Remote, Source, WorkingTree, repository_of
from reconciler.model.errors import UnreadableError, UsageError


def folders_with(source: Source, names: Collection[str]) -> list[str]:
    """Return the folders below a source that hold a file of one of these names, in order.

    They are relative, ``.`` for the source itself. Hidden folders are left out.

    Raises:
        UnreadableError: the source cannot be read.
        UsageError: the ref, the address or the folder is not one.
    """
    match source:
        case WorkingTree(path):
            return _chosen(_files(path), names)
        case AtRef(path, ref):
            repository = repository_of(path)
            below = os.path.relpath(os.path.realpath(path), repository.top).replace(os.sep, "/")
            with viewed(repository, path) as view:
                return _chosen(_listed(view, commit_of(view, ref), below), names)
        case Remote(url, cache, ref, path):
            from reconciler.adapters.git.clone import with_clone

            below = posixpath.normpath(path or ".")
            if below.startswith(("/", "../")) or below == "..":
                raise UsageError(f"{path!r} leads out of the repository", where="--path")
            return with_clone(
                url, ref, cache, lambda view, commit: _chosen(_listed(view, commit, below), names)
            )


def _chosen(paths: Iterable[str], names: Collection[str]) -> list[str]:
    found = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name in names and not any(part.startswith(".") for part in folder.split("/")):
            found.add(folder or ".")
    return sorted(found)


def _files(top: str) -> Iterator[str]:
    if not os.path.isdir(top):
        raise UnreadableError(f'folder "{top}" does not exist')
    for path, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(path, top).replace(os.sep, "/")
        yield from (name if below == "." else f"{below}/{name}" for name in files)


def _listed(view: RepositoryView, commit: str, below: str) -> Iterator[str]:
    tree = commit if below == "." else f"{commit}:{below}"
    yield from view.records("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
