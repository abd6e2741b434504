"""Which files of a repository a change touches."""

from __future__ import annotations

import os
from typing import NamedTuple

from reconciler.adapters.git.command import GitFailedError
from reconciler.adapters.git.objects import commit_of
from reconciler.adapters.git.repository import find, viewed
from reconciler.model.errors import UsageError


class ChangedFiles(NamedTuple):
    """The files that differ between the merge base with ``base`` and the head, from ``top``.

    ``known`` are those of the asked folders that exist at the base.
    """

    top: str
    base: str
    paths: tuple[str, ...]
    known: frozenset[str]


def changed_files(folder: str, base: str, folders: tuple[str, ...]) -> ChangedFiles:
    """Return what the head of the repository around ``folder`` changes.

    ``folders`` are relative to the top of the repository; ``.`` is the top itself.

    Raises:
        UsageError: it is not a repository, or ``base`` is not a commit with a common ancestor.
        UnreadableError: git cannot read the repository.
    """
    repository = find(folder)
    if repository is None:
        remedy = "omit --base, or run the command in a repository"
        raise UsageError("not in a git repository", where=os.path.abspath(folder), remedy=remedy)
    with viewed(repository, folder) as view:
        before, head = commit_of(view, base), commit_of(view, "HEAD")
        arguments = ("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z")
        try:
            paths = tuple(p for p in view.records(*arguments, f"{before}...{head}", "--") if p)
        except GitFailedError as error:
            raise UsageError(
                f"{base} and the head have no common ancestor here",
                where="--base",
                remedy="fetch the complete history (fetch-depth: 0 of actions/checkout)",
            ) from error
        known = frozenset(
            f for f in folders
            if f == "." or any(view.records("ls-tree", "-z", "--name-only", before, "--", f))
        )  # fmt: skip
    return ChangedFiles(repository.top, before, paths, known)
