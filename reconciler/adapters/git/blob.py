"""One file of a commit, read from git's objects: nothing is checked out, nothing is run."""

from __future__ import annotations

from contextlib import closing

from reconciler.adapters.git.objects import commit_of, opened
from reconciler.adapters.git.repository import RepositoryView, find, viewed
from reconciler.model.errors import UnreadableError, UsageError


def read_blob(folder: str, ref: str, path: str, most: int) -> bytes:
    """Return the file ``path``, from the top of the repository that ``folder`` is in, at ``ref``.

    Raises:
        UsageError: ``folder`` is in no repository, or ``ref`` names no commit.
        UnreadableError: the file does not exist, or has more than ``most`` bytes.
    """
    repository = find(folder)
    if repository is None:
        remedy = "pass a fleet folder in a repository, or --repo URL"
        raise UsageError("not in a git repository", where=folder, remedy=remedy)
    with viewed(repository, folder) as view:
        return _read(view, commit_of(view, ref), path, most, f"{path} at {ref}")


def read_remote_blob(url: str, cache: str, ref: str, path: str, most: int) -> bytes:
    """Return the file ``path`` of a remote repository at ``ref``; its clone is kept in ``cache``.

    Raises:
        UsageError: the address is refused, or ``ref`` names no commit.
        UnreadableError: the remote does not answer, the file does not exist, or has more than
            ``most`` bytes.
        LockedError: another process is using the clone.
    """
    from reconciler.adapters.git.clone import with_clone

    def read(view: RepositoryView, commit: str) -> bytes:
        return _read(view, commit, path, most, f"{path} at {ref}")

    return with_clone(url, ref, cache, read)


def _read(view: RepositoryView, commit: str, path: str, most: int, where: str) -> bytes:
    with closing(opened(view, where)) as objects:
        entry = objects.root(commit).at(path)
        if entry is None or entry.kind != "blob":
            raise UnreadableError(
                "the file does not exist in that commit", where=where, remedy="check the path"
            )
        _, size, content = objects.read(entry.oid, most)
    if content is None:
        raise UnreadableError(
            f"the file has {size} bytes, more than {most}",
            where=where,
            remedy="capture fewer objects",
        )
    return content
