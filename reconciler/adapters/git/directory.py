"""The files of a git directory, all of which may come from a stranger.

git follows links and lists of alternates wherever they lead, and would show what is there as the
content of this repository.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from reconciler.adapters.git.command import is_inside
from reconciler.model.errors import UnreadableError

_TEXT_MAX: Final = 4096
_ALTERNATES_MAX: Final = 5
"""How many repositories git follows from one to the next."""
_LEVELS_MAX: Final = 64
ALTERNATES_VARIABLE: Final = "RECONCILER_GIT_ALTERNATES"
"""The variable that names the folders whose repositories may lend objects to others."""
_HEAD: Final = re.compile(r"(?:ref:\s*refs/[^\s\x00-\x1f\x7f]+|[0-9a-f]{40}(?:[0-9a-f]{24})?)\s*")


def read_head(git_dir: str) -> str:
    """Return the content of HEAD if it is valid, else an empty text."""
    path = os.path.join(git_dir, "HEAD")
    if os.path.islink(path):
        target = os.readlink(path)
        return f"ref: {target}\n" if _HEAD.fullmatch(f"ref: {target}") else ""
    text = read_small_file(path)
    return text if _HEAD.fullmatch(text) else ""


def read_small_file(path: str, bytes_max: int = _TEXT_MAX) -> str:
    """Return the first ``bytes_max`` bytes of a regular file as text, empty if there is none."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return ""
        return os.read(number, bytes_max).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(number)


def foreign_error(place: str) -> UnreadableError:
    """Return the error of a link that leads to the files of others."""
    what = "leads out of the repository"
    return UnreadableError(what, where=place, remedy="clone the repository again")


def _lending_folders() -> list[str]:
    """Return the folders whose repositories may lend objects, as the user has named them."""
    named = os.environ.get(ALTERNATES_VARIABLE, "").split(os.pathsep)
    return [os.path.realpath(folder) for folder in named if os.path.isabs(folder)]


def check_entries(folder: str) -> None:
    """Reject what git would not have created below a folder: a pipe, or a link that leads out.

    Raises:
        UnreadableError: there is such an entry, or there are more levels of folders than of a name.
    """
    below = [(folder, _LEVELS_MAX)]
    while below:
        here, left = below.pop()
        with suppress(OSError), os.scandir(here) as listing:
            for entry in listing:
                if entry.is_symlink():
                    if not is_inside(os.path.realpath(entry.path), folder):
                        raise foreign_error(entry.path)
                elif entry.is_dir() and left:
                    below.append((entry.path, left - 1))
                elif not entry.is_file():
                    what = "is not a file of git"
                    remedy = "clone the repository again"
                    raise UnreadableError(what, where=entry.path, remedy=remedy)


def check_objects(objects: str, own: Sequence[str]) -> None:
    """Reject a store of objects that leads to files of others; ``own`` are its own folders.

    Raises:
        UnreadableError: it does.
    """
    _check_objects(objects, [*own, *_lending_folders()], _ALTERNATES_MAX)


def _check_objects(objects: str, lenders: Sequence[str], levels: int) -> None:
    """Reject a store of objects that leads to files of others.

    Whoever knows the id of a commit could read it from any repository of the user that a list of
    alternates names. git also prints lines of such a list that it cannot read.

    Raises:
        UnreadableError: an entry is a link that leads out, or an alternate is not the objects of a
            repository below one of the ``lenders``.
    """
    check_entries(objects)
    listed = os.path.join(objects, "info", "alternates")
    for line in _lines_of_alternates(listed):
        alternate = os.path.realpath(os.path.join(objects, line))
        if not any(is_inside(alternate, folder) for folder in lenders):
            raise UnreadableError(
                "names objects outside the repository",
                where=listed,
                remedy=f"run `git repack -a -d` and delete the file, or, if you trust this "
                f"repository, set {ALTERNATES_VARIABLE} to the folder that may lend objects",
            )
        git_dir = os.path.dirname(alternate)
        folders = (os.path.join(git_dir, name) for name in ("objects", "refs"))
        is_store = os.path.basename(alternate) == "objects" and all(map(os.path.isdir, folders))
        if not is_store or not read_head(git_dir) or levels == 0:
            raise _alternates_error(listed, "names a folder without the objects of a repository")
        _check_objects(alternate, lenders, levels - 1)


def _lines_of_alternates(listed: str) -> list[str]:
    if not os.path.lexists(listed):
        return []
    text = read_small_file(listed)
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    if not os.path.isfile(listed) or os.path.getsize(listed) >= _TEXT_MAX:
        raise _alternates_error(listed, "is not a list of a few folders")
    if any(line.startswith('"') for line in lines):
        raise _alternates_error(listed, "names a folder in quotation marks")
    return lines


def _alternates_error(listed: str, what: str) -> UnreadableError:
    return UnreadableError(what, where=listed, remedy="clone the repository again")
