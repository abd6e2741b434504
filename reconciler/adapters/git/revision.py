"""Which commit a folder is at, whether its files differ, and which files a change touches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reconciler.adapters.git.command import GitFailedError, GitMissingError
from reconciler.adapters.git.folder import is_fleet_file, read_folder
from reconciler.adapters.git.objects import commit_of
from reconciler.adapters.git.repository import RepositoryView, find_repository, repository_view
from reconciler.desired.fleet import SourceFile
from reconciler.model.errors import UsageError
from reconciler.source.document import LIMITS


@dataclass(frozen=True, slots=True)
class GitRevision:
    """The revision that the desired state was read from.

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


def working_revision(path: str, files: Sequence[SourceFile] | None = None) -> GitRevision:
    """Return the revision of the working tree at ``path``.

    Without git, and outside any repository, nothing is known: every part is empty. Only files
    that belong to a fleet make it dirty, and files that the repository ignores do not. ``files``
    are those that were read from the folder; without them they are read here.

    Raises:
        UnreadableError: git cannot or will not read the repository.
    """
    repository = find_repository(path)
    if repository is None:
        return GitRevision()
    top, name = repository.top, repository.name
    below = os.path.relpath(os.path.realpath(path), top).replace(os.sep, "/")
    try:
        with repository_view(repository, path) as view:
            comparison = _Comparison(view, below, lambda: read_files(path, files))
            head, dirty = comparison.compare()
            return GitRevision(head, dirty, name, below)
    except GitMissingError:
        return GitRevision(repo=name, path=below)


def read_files(path: str, files: Sequence[SourceFile] | None) -> Mapping[str, bytes]:
    """Return the content of the fleet's files by path."""
    return dict(read_folder(path)[0] if files is None else files)


class _Comparison:
    """The folder ``below`` of a work tree, compared with its commit."""

    def __init__(
        self, view: RepositoryView, below: str, files: Callable[[], Mapping[str, bytes]]
    ) -> None:
        self._view = view
        self._below = below
        self._prefix = "" if below == "." else f"{below}/"
        self._read = files
        self._files: Mapping[str, bytes] | None = None

    @property
    def _contents(self) -> Mapping[str, bytes]:
        if self._files is None:
            self._files = self._read()
        return self._files

    def compare(self) -> tuple[str | None, bool]:
        """Return the commit, None before the first one, and whether a fleet file differs from it.

        A file differs if it was changed, added or removed.
        """
        head, is_changed = self._status()
        if is_changed:
            # line endings may be converted for this user: git runs again with that setting
            converts = "" if "core.autocrlf" in self._view.config else self._users_autocrlf()
            if converts in ("true", "input"):
                head, is_changed = self._status("-c", f"core.autocrlf={converts}")
        return head, is_changed or (head is not None and self._is_hidden_change(head))

    def _users_autocrlf(self) -> str:
        return self._view.users_setting("core.autocrlf").lower()

    def _status(self, *options: str) -> tuple[str | None, bool]:
        """Return the answer of git: the commit, and whether any fleet file is listed."""
        head: str | None = None
        for entry in self._view.records(*options, *_STATUS, self._below):
            if entry.startswith("# branch.oid "):
                oid = entry.removeprefix("# branch.oid ")
                head = None if oid == "(initial)" else oid
            fields = _FIELDS_BEFORE_PATH.get(entry[:1])
            if fields is not None:
                path = entry.split(" ", fields)[-1].removeprefix(self._prefix)
                if self._contains_fleet_files(path):
                    return head, True
        return head, False

    def _contains_fleet_files(self, path: str) -> bool:
        """Return whether a path is a fleet file, or a repository within this one that has some."""
        if not path.endswith("/"):
            return is_fleet_file(path)
        return any(name.startswith(path) for name in self._contents)

    def _is_hidden_change(self, head: str) -> bool:
        folder = () if self._below == "." else ("--", self._prefix)
        for entry in self._view.records("ls-tree", "-r", "-z", "--full-tree", head, *folder):
            what, _, path = entry.partition("\t")
            mode, _, oid = what.split(" ")
            name = path.removeprefix(self._prefix)
            if mode == _SUBMODULE:
                if self._submodule_differs(name, oid):
                    return True
            elif is_fleet_file(name) and self._differs(name, mode, oid):
                return True
        return False

    def _differs(self, name: str, mode: str, oid: str) -> bool:
        """Return whether a file exists and differs; one that is not checked out does not differ."""
        real = os.path.join(self._view.repository.top, self._prefix + name)
        if mode == _LINK:
            if os.path.islink(real):
                return _object_id(os.fsencode(os.readlink(real)), oid) != oid
            return os.path.lexists(real)
        content = self._contents.get(name)
        if content is None or len(content) > LIMITS.bytes_max:
            return False  # not read as part of the fleet; a missing file is reported elsewhere
        return oid not in (
            _object_id(content, oid),
            _object_id(content.replace(b"\r\n", b"\n"), oid),  # git has compared line endings
        )

    def _submodule_differs(self, name: str, oid: str) -> bool:
        """Return whether files that were read from a submodule differ from its commit."""
        below = {
            path.removeprefix(f"{name}/"): content
            for path, content in self._contents.items()
            if path.startswith(f"{name}/")
        }
        if not below:
            return False
        real = os.path.join(self._view.repository.top, self._prefix + name)
        found = find_repository(real)
        if found is None or found.top != os.path.realpath(real):
            return True
        files = [SourceFile(path, content) for path, content in below.items()]
        revision = working_revision(real, files)
        return revision.head != oid or revision.dirty


def _object_id(content: bytes, like: str) -> str:
    """Return the id of a blob, with the hash function of the id ``like``."""
    algorithm = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return algorithm(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


_LINK = "120000"
_SUBMODULE = "160000"
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
)
_FIELDS_BEFORE_PATH = {"1": 8, "2": 9, "u": 10, "?": 1}


class ChangedFiles(NamedTuple):
    """The files that differ between the merge base with ``base`` and the head, from ``top``.

    ``known`` are those of the given folders that exist at the base.
    """

    top: str
    base: str
    paths: tuple[str, ...]
    known: frozenset[str]


def changed_files(folder: str, base: str, folders: tuple[str, ...]) -> ChangedFiles:
    """Return the changes by the head of the repository around ``folder``.

    ``folders`` are relative to the top of the repository; ``.`` is the top itself.

    Raises:
        UsageError: it is not a repository, or ``base`` is not a commit with a common ancestor.
        UnreadableError: git cannot read the repository.
    """
    repository = find_repository(folder)
    if repository is None:
        remedy = "omit --base, or run the command in a repository"
        raise UsageError("not in a git repository", where=os.path.abspath(folder), remedy=remedy)
    with repository_view(repository, folder) as view:
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
