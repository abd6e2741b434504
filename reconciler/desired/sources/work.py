"""The work of finding what a fleet is rendered from: a small repository can ask for very much.

Objects, kustomizations and links can refer to the same files again and again, and a parameter can
stand in a template ten thousand times. So answers of the tree are kept, and every step is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.desired.sources.tree import (
    LISTED_MAX,
    Tree,
    TreeEntry,
    TreeLimitError,
    files_below,
    folders_below,
)
from reconciler.model.diagnostics import Diagnostic
from reconciler.source.document import Document, parse_documents

STEPS_MAX: Final = 5_000_000
"""The maximum number of steps for all sources of a fleet, such as a path that is matched."""
LOADS_MAX: Final = 2_000
"""The maximum number of kustomizations that one is made of, each as often as it is referred to."""
SOURCES_MAX: Final = 300
"""The maximum number of sources that are rendered for a fleet."""
FILES_MAX: Final = 20_000
"""The maximum number of files that all sources make together."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""The maximum size of these files."""
_STEPS_OF_READING: Final = 10
_ENTRIES_OF_A_STEP: Final = 10
_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024


class MeteredTree:
    """A tree that keeps its answers, and ends all further work beyond the limit."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._steps = 0
        self._kept = 0
        self._contents: dict[str, bytes | None] = {}
        self._entries: dict[str, Sequence[TreeEntry] | None] = {}
        self._documents: dict[str, tuple[list[Document], list[Diagnostic]]] = {}
        self._files: dict[str, Sequence[str]] = {}
        self._folders: dict[str, Sequence[str]] = {}

    @property
    def is_exhausted(self) -> bool:
        """Whether no further work is done."""
        return self._steps > STEPS_MAX

    def charge(self, steps: int) -> None:
        """Count steps.

        Raises:
            TreeLimitError: there were too many.
        """
        self._steps += steps
        if self.is_exhausted:
            raise TreeLimitError(f"finding its files takes more than {STEPS_MAX:,} steps")

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; see ``Tree``."""
        self.charge(_STEPS_OF_READING)
        if path in self._contents:
            return self._contents[path]
        content = self._tree.read(path)
        self._kept += len(content or b"")
        if self._kept <= _KEPT_BYTES_MAX:
            self._contents[path] = content
        return content

    def entries(self, path: str) -> Sequence[TreeEntry] | None:
        """Return the entries of a folder by name; see ``Tree``."""
        if path not in self._entries:
            self._entries[path] = self._tree.entries(path)
        found = self._entries[path]
        self.charge(_STEPS_OF_READING + len(found or ()) // _ENTRIES_OF_A_STEP)
        return found

    def documents(self, path: str, content: bytes) -> tuple[list[Document], list[Diagnostic]]:
        """Return the documents of a file of the tree, parsed once."""
        if path not in self._documents:
            self._documents[path] = parse_documents(path, content)
        return self._documents[path]

    def files_below(self, folder: str) -> Sequence[str]:
        """Return the paths of all files below a folder.

        Raises:
            OutsideTreeError: a symbolic link leads out of the tree.
            TreeLimitError: there are too many.
        """
        if folder not in self._files:
            self._files[folder] = tuple(files_below(self, folder, LISTED_MAX))
        return self._files[folder]

    def folders_below(self, folder: str) -> Sequence[str]:
        """Return the folders below one, in the order of a walk; see ``files_below``."""
        if folder not in self._folders:
            self._folders[folder] = tuple(folders_below(self, folder))
        return self._folders[folder]


@dataclass
class Made:
    """What the sources of a fleet have made so far; when it is full, no further one is rendered."""

    sources: int = 0
    files: int = 0
    size: int = 0
    is_full: bool = False

    def add_source(self, tree: MeteredTree) -> None:
        """Count a source that is read from ``tree``.

        Raises:
            TreeLimitError: there are too many, or finding their files takes too long.
        """
        self.sources += 1
        self.is_full = self.sources > SOURCES_MAX or tree.is_exhausted
        tree.charge(0)
        if self.is_full:
            raise TreeLimitError(f"more than {SOURCES_MAX} sources")

    def add_files(self, contents: Sequence[bytes]) -> None:
        """Count the files that a source has made.

        Raises:
            TreeLimitError: there are too many, or they are too large.
        """
        self.files += len(contents)
        self.size += sum(map(len, contents))
        if self.files > FILES_MAX or self.size > BYTES_MAX:
            self.is_full = True
            most = f"{FILES_MAX:,} files or {BYTES_MAX >> 20} MiB"
            raise TreeLimitError(f"all sources together make more than {most}")
