"""The trees that sources are rendered from (``desired.sources.tree``): a folder and a commit."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from reconciler.adapters.git.repository import find_repository
from reconciler.desired.sources.tree import (
    OutsideTreeError,
    TreeEntry,
    TreeLimitError,
    is_git_folder,
)
from reconciler.source.document import LIMITS
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from reconciler.adapters.git.objects import TreeObject

_LINK_HOPS_MAX: Final = 8
_ENTRIES_MAX: Final = 20_000
_LEVELS_MAX: Final = 3


def trees_around(path: str) -> Iterator[tuple[str, str]]:
    """Yield the trees that a folder's sources may refer to: each top, and the folder in it.

    In a repository it is the repository. Outside any, it is the folder itself and, where the user
    has named a folder that is not a fleet, those above it, but none that others can write to.
    """
    real = os.path.realpath(path)
    repository = find_repository(path)
    if repository is not None and repository.top:
        yield repository.top, os.path.relpath(real, repository.top).replace(os.sep, "/")
        return
    yield real, "."
    if any(os.path.lexists(os.path.join(real, name)) for name in CONFIG_FILES):
        return
    top = real
    for _ in range(_LEVELS_MAX):
        top = os.path.dirname(top)
        if not _is_private(top):
            return
        yield top, os.path.relpath(real, top).replace(os.sep, "/")


def _is_private(folder: str) -> bool:
    """Return whether a folder is neither shared with other users nor one that holds everything."""
    if os.path.dirname(folder) == folder or folder == os.path.realpath(os.path.expanduser("~")):
        return False
    status = os.stat(folder)
    return not status.st_mode & stat.S_IWOTH and status.st_uid == os.getuid()


class FolderTree:
    """A folder on disk; symbolic links may lead anywhere inside it."""

    def __init__(self, top: str) -> None:
        self._top = os.path.realpath(top)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; see ``Tree``."""
        real = self._real(path)
        if not os.path.isfile(real):
            return None
        try:
            with open(real, "rb") as file:
                content = file.read(LIMITS.bytes_max + 1)
        except OSError:
            return None
        if len(content) > LIMITS.bytes_max:
            raise TreeLimitError(f"{path} has more than {LIMITS.bytes_max >> 20} MiB")
        return content

    def entries(self, path: str) -> Sequence[TreeEntry] | None:
        """Return the entries of a folder; see ``Tree``."""
        real = self._real(path)
        if not os.path.isdir(real):
            return None
        try:
            names = sorted(os.listdir(real))
        except OSError:
            return None
        if len(names) > _ENTRIES_MAX:
            raise TreeLimitError(f"{path} has more than {_ENTRIES_MAX} entries")
        return [TreeEntry(name, os.path.isdir(os.path.join(real, name))) for name in names]

    def _real(self, path: str) -> str:
        if "\0" in path:
            raise OutsideTreeError(path)
        real = os.path.realpath(os.path.join(self._top, path))
        is_inside = real == self._top or real.startswith(self._top.rstrip(os.sep) + os.sep)
        if not is_inside:
            raise OutsideTreeError(path)
        if any(is_git_folder(part) for part in os.path.relpath(real, self._top).split(os.sep)):
            raise OutsideTreeError(path)
        return real


class CommitTree:
    """The files of a commit; submodules are empty."""

    def __init__(self, open_root: Callable[[], TreeObject]) -> None:
        self._open_root = open_root

    @cached_property
    def _root(self) -> TreeObject:
        return self._open_root()

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; see ``Tree``."""
        found = self._find(path)
        if found is None or found.kind != "blob":
            return None
        _, _, content = found.objects.read(found.oid, LIMITS.bytes_max)
        if content is None:
            raise TreeLimitError(f"{path} has more than {LIMITS.bytes_max >> 20} MiB")
        return content

    def entries(self, path: str) -> Sequence[TreeEntry] | None:
        """Return the entries of a folder; see ``Tree``."""
        found = self._find(path)
        if found is None or found.kind != "tree":
            return None
        listed = []
        for entry in found.entries[:_ENTRIES_MAX]:
            kind = entry.kind
            if kind == "link":
                try:
                    target = self._find(posixpath.join(path, entry.name))
                except OutsideTreeError:
                    target = entry
                kind = target.kind if target is not None else "missing"
            if kind in ("tree", "blob", "link"):
                listed.append(TreeEntry(entry.name, kind == "tree"))
        return listed

    def _find(self, path: str, hops: int = 0) -> TreeObject | None:
        """Return the entry of a path; links are followed inside the commit."""
        if hops > _LINK_HOPS_MAX:
            raise OutsideTreeError(path)
        normal = posixpath.normpath(path)
        if normal == ".":
            return self._root
        if normal.startswith(("/", "../")) or normal == "..":
            raise OutsideTreeError(path)
        here, done = self._root, ""
        parts = normal.split("/")
        for number, part in enumerate(parts):
            if here.kind != "tree":
                return None
            found = here.by_name.get(part)
            if found is None:
                return None
            if found.kind == "link":
                _, _, content = found.objects.read(found.oid, 4096)
                target = (content or b"").decode("utf-8", "surrogateescape")
                rest = parts[number + 1 :]
                if target.startswith("/"):
                    raise OutsideTreeError(path)
                return self._find(posixpath.join(done, target, *rest), hops + 1)
            here, done = found, posixpath.join(done, part)
        return here
