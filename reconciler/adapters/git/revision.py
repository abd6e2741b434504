"""Which commit a folder stands at, and whether its files differ from it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from reconciler.adapters.git.command import GitFailedError, GitMissingError, run, top_of
from reconciler.adapters.git.folder import is_fleet_file


@dataclass(frozen=True, slots=True)
class Revision:
    """What desired state was read from.

    ``head`` is a full commit id, None outside any repository and before the first commit.
    ``dirty`` says that fleet files differ from it. ``repo`` is the address, or for a repository
    on this machine the name of its folder; ``path`` the fleet's folder in it (``.`` at its top).
    ``subject`` is the first line of the commit's message, where it was read.
    """

    head: str | None = None
    dirty: bool = False
    repo: str | None = None
    path: str | None = None
    subject: str | None = None


def working_revision(path: str) -> Revision:
    """Return where the working tree at ``path`` stands, by one run of git.

    Without git, and outside any repository, nothing is known: every part is empty. Only files
    that belong to a fleet make it dirty, and files that git ignores do not.

    Raises:
        UnreadableError: git cannot or will not read the repository.
    """
    top = top_of(path)
    if top is None:
        return Revision()
    folder = os.path.realpath(path)
    below = os.path.relpath(folder, top).replace(os.sep, "/")
    try:
        answer = run(_STATUS, folder=folder, where=path)
    except GitMissingError:
        return Revision(repo=_name(top), path=below)
    except GitFailedError as error:
        if "not a git repository" in error.said:
            return Revision()
        raise
    prefix = "" if below == "." else f"{below}/"
    head, dirty = _parsed(answer.decode("utf-8", "surrogateescape"), prefix)
    return Revision(head, dirty, _name(top), below)


_STATUS = (
    "status",
    "--porcelain=v2",
    "--branch",
    "-z",
    "--no-renames",
    "--no-ahead-behind",
    "--ignore-submodules=all",
    "--untracked-files=all",
    "--",
    ".",
)
_FIELDS_BEFORE_PATH = {"1": 8, "2": 9, "u": 10, "?": 1}


def _parsed(answer: str, prefix: str) -> tuple[str | None, bool]:
    """Return the commit and whether a fleet file below ``prefix`` differs from it."""
    head: str | None = None
    dirty = False
    for entry in answer.split("\0"):
        if entry.startswith("# branch.oid "):
            oid = entry.removeprefix("# branch.oid ")
            head = None if oid == "(initial)" else oid
        fields = _FIELDS_BEFORE_PATH.get(entry[:1])
        if fields is not None:
            path = entry.split(" ", fields)[-1]
            dirty = dirty or is_fleet_file(path.removeprefix(prefix))
    return head, dirty


def _name(top: str) -> str:
    return os.path.basename(top) or top  # noqa: PTH119
