"""The files that a fleet's sources may refer to: a folder, or a commit, up to its boundary.

Paths are relative to the top of the tree, with forward slashes; ``.`` is the top. No tree follows
a symbolic link that leads out of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

FILES_MAX: Final = 5_000
"""The maximum number of files that one source is rendered from."""
BYTES_MAX: Final = 32 * 1024 * 1024
"""The maximum size of these files."""
LISTED_MAX: Final = 50_000
"""The maximum number of files that patterns choose from."""
DEPTH_MAX: Final = 32
_SUFFIXES: Final = (".yaml", ".yml", ".json")
LEVELS_MAX: Final = 8
"""The maximum depth of the folders that patterns choose from."""


class OutsideTreeError(ValueError):
    """A path leads out of the tree, by itself or through a symbolic link."""


class TreeLimitError(ValueError):
    """A source has more files, or larger ones, than a tool is given; the message has the limit."""


class TreeEntry(NamedTuple):
    """One name of a folder."""

    name: str
    is_folder: bool


class Tree(Protocol):
    """A folder or a commit, read on demand."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None if there is none.

        Raises:
            OutsideTreeError: the path leads out of the tree.
            TreeLimitError: the file is too large.
        """
        ...

    def entries(self, path: str) -> Sequence[TreeEntry] | None:
        """Return the entries of a folder by name, None if it does not exist.

        Raises:
            OutsideTreeError: the path leads out of the tree.
        """
        ...


def join_path(folder: str, path: str) -> str:
    """Return a path that is relative to ``folder``, relative to the top of the tree.

    Raises:
        OutsideTreeError: it leads out of the tree.
    """
    joined = posixpath.normpath(posixpath.join(folder, path))
    if joined.startswith(("/", "../")) or joined == ".." or "\0" in path:
        raise OutsideTreeError(path)
    return joined


def files_below(tree: Tree, folder: str, most: int = FILES_MAX) -> Iterator[str]:
    """Yield the paths of all files below a folder, in order; ``.git`` is left out.

    Raises:
        OutsideTreeError: a symbolic link leads out of the tree.
        TreeLimitError: there are too many.
    """
    count = 0
    stack = [(folder, 0)]
    while stack:
        here, depth = stack.pop()
        if depth > DEPTH_MAX:
            raise TreeLimitError(f"more than {DEPTH_MAX} folders deep")
        below: list[tuple[str, int]] = []
        for name, is_folder in tree.entries(here) or ():
            path = posixpath.normpath(posixpath.join(here, name))
            if is_git_folder(name):
                continue
            if is_folder:
                below.append((path, depth + 1))
            else:
                count += 1
                if count > most:
                    raise TreeLimitError(f"more than {most} files")
                yield path
        stack.extend(reversed(below))


def folders_below(tree: Tree, top: str) -> Iterator[str]:
    """Yield the folders below one, in the order of a walk.

    Raises:
        TreeLimitError: there are too many.
    """
    count = 0
    stack = [(top, 0)]
    while stack:
        folder, depth = stack.pop()
        if folder != top:
            yield folder
        below = [
            (posixpath.normpath(posixpath.join(folder, name)), depth + 1)
            for name, is_folder in tree.entries(folder) or ()
            if is_folder and not name.startswith(".") and depth < LEVELS_MAX
        ]
        count += len(below)
        if count > LISTED_MAX:
            raise TreeLimitError(f"more than {LISTED_MAX} folders")
        stack.extend(reversed(below))


def is_git_folder(name: str) -> bool:
    """Return whether a name is git's own folder, where file systems ignore the case of names."""
    return name.casefold() == ".git"


class CopiedFiles:
    """The files that a tool is given, within the limits."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._bytes = 0

    @property
    def files(self) -> Mapping[str, bytes]:
        """The content by path."""
        return self._files

    def add(self, path: str, content: bytes) -> None:
        """Add a file, or replace it.

        Raises:
            TreeLimitError: there are too many, or they are too large.
        """
        self._bytes += len(content) - len(self._files.get(path, b""))
        self._files[path] = content
        if len(self._files) > FILES_MAX:
            raise TreeLimitError(f"more than {FILES_MAX} files")
        if self._bytes > BYTES_MAX:
            raise TreeLimitError(f"more than {BYTES_MAX >> 20} MiB")

    def add_folder(self, tree: Tree, folder: str, below: str | None = None) -> None:
        """Add all files below a folder, at the same paths or below another folder.

        Raises:
            OutsideTreeError: a symbolic link leads out of the tree.
            TreeLimitError: there are too many, or they are too large.
        """
        for path in files_below(tree, folder):
            content = tree.read(path)
            if content is not None:
                name = path if below is None else f"{below}/{posixpath.relpath(path, folder)}"
                self.add(name, content)


def folder_of(path: str) -> str:
    """Return the folder that a file of a tree is in."""
    return posixpath.dirname(path) or "."


def manifests_in(
    tree: Tree, folder: str, is_kept: Callable[[str], bool], is_recursive: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield the YAML and JSON files of a folder, or the file of that path, with their content.

    ``is_kept`` is given a path below the folder.
    """
    if tree.entries(folder) is None:
        content = tree.read(folder)
        if content is not None:
            yield folder, content
        return
    for path in files_below(tree, folder):
        is_direct = folder_of(path) == folder
        hidden = "/." in f"/{path}"
        if path.endswith(_SUFFIXES) and not hidden and (is_direct or is_recursive):
            content = tree.read(path) if is_kept(posixpath.relpath(path, folder)) else None
            if content is not None:
                yield path, content
