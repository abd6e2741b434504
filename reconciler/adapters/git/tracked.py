"""Whether git tracks anything of a folder: what it tracks may come from a stranger."""

from __future__ import annotations

import os

from reconciler.adapters.git.command import GitFailedError
from reconciler.adapters.git.repository import find, viewed


def tracked_in(place: str) -> str | None:
    """Return a path at or below ``place`` that is in the index or the commit of its work tree.

    None where there is none, and outside any repository.

    Raises:
        UnreadableError: git is missing, or cannot or will not read the repository.
    """
    folder, name = os.path.split(os.path.abspath(place))  # noqa: PTH100
    repository = find(folder)
    if repository is None:
        return None
    below = os.path.relpath(os.path.join(os.path.realpath(folder), name), repository.top)  # noqa: PTH118
    if below == ".":
        return None  # the top itself holds the fleet, and what git tracks there is that
    path = below.replace(os.sep, "/")
    with viewed(repository, place) as view:
        head = ("ls-tree", "-r", "-z", "--name-only", "--full-tree", "HEAD", "--", path)
        for arguments in (("ls-files", "-z", "--", path), head):
            try:
                found = next(view.records(*arguments), None)
            except GitFailedError:
                if arguments is not head:
                    raise
                found = None  # before the first commit
            if found is not None:
                return found
    return None
