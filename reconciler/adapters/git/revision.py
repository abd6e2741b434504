"""Which commit a folder is at, whether its files differ, and which files a change touches."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush
from typing import Final, NamedTuple

from reconciler.adapters.git.command import GitMissingError
from reconciler.adapters.git.folder import is_fleet_file, read_folder
from reconciler.adapters.git.objects import (
    Commit,
    Objects,
    TreeObject,
    changed_paths,
    object_id,
    open_objects,
    walk_files,
)
from reconciler.adapters.git.refs import commit_of
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
    ``subject`` is the first line of the commit's message, ``author`` the name of its author and
    ``committed_at`` its time, where the commit was read.
    """

    head: str | None = None
    dirty: bool = False
    repo: str | None = None
    path: str | None = None
    subject: str | None = None
    author: str | None = None
    committed_at: datetime | None = None

    @property
    def title(self) -> str:
        """The subject with the author, ``Raise the limit (Ada)``; empty if the subject is."""
        if not self.subject:
            return ""
        return f"{self.subject} ({self.author})" if self.author else self.subject


def revision_of(oid: str, commit: Commit, repo: str, path: str) -> GitRevision:
    """Return the revision of files that were read from a commit."""
    return GitRevision(
        oid, False, repo, path, commit.subject, commit.author or None, _time_of(commit)
    )


def commit_time(path: str, oid: str) -> datetime | None:
    """Return the time of a commit in the repository of a folder, None if git cannot tell it.

    Raises:
        UnreadableError: the commit cannot be read.
    """
    repository = find_repository(path)
    if repository is None:
        return None
    with repository_view(repository, path) as view, closing(open_objects(view, path)) as objects:
        return _time_of(objects.commit(oid))


def _time_of(commit: Commit) -> datetime | None:
    """Return the time that a commit states, None if it states none that exists."""
    try:
        return datetime.fromtimestamp(commit.committed_at, UTC) if commit.committed_at else None
    except (OverflowError, ValueError, OSError):
        return None


class WorkingState(NamedTuple):
    """The revision of a working tree, and the submodules below the folder.

    A submodule counts if its folder is as git leaves it: empty, or a repository. One that was
    replaced by files is on its way out.
    """

    revision: GitRevision
    submodules: tuple[str, ...] = ()


def working_revision(path: str, files: Sequence[SourceFile] | None = None) -> GitRevision:
    """Return the revision of the working tree at ``path``, as ``working_state`` does.

    Raises:
        UnreadableError: git cannot or will not read the repository.
    """
    return working_state(path, files).revision


def working_state(path: str, files: Sequence[SourceFile] | None = None) -> WorkingState:
    """Return the revision of the working tree at ``path``, and the submodules below it.

    Without git, and outside any repository, nothing is known: every part is empty. Only files
    that belong to a fleet make it dirty, and files that the repository ignores do not. ``files``
    are those that were read from the folder; without them they are read here.

    Raises:
        UnreadableError: git cannot or will not read the repository.
    """
    repository = find_repository(path)
    if repository is None:
        return WorkingState(GitRevision())
    top, name = repository.top, repository.name
    below = os.path.relpath(os.path.realpath(path), top).replace(os.sep, "/")
    try:
        with repository_view(repository, path) as view:
            comparison = _Comparison(view, below, lambda: read_files(path, files))
            head, dirty = comparison.compare()
            submodules = tuple(sorted(comparison.submodules))
            return WorkingState(GitRevision(head, dirty, name, below), submodules)
    except GitMissingError:
        return WorkingState(GitRevision(repo=name, path=below))


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
        self.submodules: list[str] = []

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
        if head is not None:
            is_changed = self._compare_tree(head, is_changed=is_changed)
        return head, is_changed

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

    def _compare_tree(self, head: str, *, is_changed: bool) -> bool:
        """Return whether a file differs, whatever git has recorded about it in its index.

        The objects are compared with their names, so what ``_status`` has read is genuine as well.
        Submodules are noted on the way.
        """
        with closing(open_objects(self._view, self._view.where)) as objects:
            root = objects.root(head)
            folder = root if self._below == "." else root.find_entry(self._below)
            if folder is None or folder.kind != "tree":
                return is_changed
            for file in walk_files(folder):
                name = file.path.removeprefix(self._prefix)
                if file.kind == "submodule" and self._is_left(name):
                    self.submodules.append(name)
                is_changed = is_changed or self._is_changed(name, file)
        return is_changed

    def _is_left(self, name: str) -> bool:
        """Return whether the folder of a submodule is as git leaves it, and part of the fleet."""
        real = os.path.join(self._view.repository.top, self._prefix + name)
        if any(part.startswith(".") for part in name.split("/")) or not os.path.isdir(real):
            return False
        return os.path.lexists(os.path.join(real, ".git")) or not os.listdir(real)

    def _is_changed(self, name: str, file: TreeObject) -> bool:
        if file.kind == "submodule":
            return self._submodule_differs(name, file.oid)
        return is_fleet_file(name) and self._differs(name, file)

    def _differs(self, name: str, file: TreeObject) -> bool:
        """Return whether a file exists and differs; one that is not checked out does not differ."""
        real = os.path.join(self._view.repository.top, self._prefix + name)
        oid = file.oid
        if file.kind == "link":
            if os.path.islink(real):
                return _blob_id(os.fsencode(os.readlink(real)), oid) != oid
            return os.path.lexists(real)
        content = self._contents.get(name)
        if content is None or len(content) > LIMITS.bytes_max:
            return False  # not read as part of the fleet; a missing file is reported elsewhere
        return oid not in (
            _blob_id(content, oid),
            _blob_id(content.replace(b"\r\n", b"\n"), oid),  # git has compared line endings
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


def _blob_id(content: bytes, like: str) -> str:
    return object_id("blob", content, like)


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
    merge_base: str
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
        with closing(open_objects(view, folder)) as objects:
            ancestor = _merge_base(objects, before, head, view.shallow_commits())
            if ancestor is None:
                raise UsageError(
                    f"{base} and the head have no common ancestor here",
                    where="--base",
                    remedy="fetch the complete history (fetch-depth: 0 of actions/checkout)",
                )
            paths = tuple(changed_paths(objects.root(ancestor), objects.root(head)))
            tree = objects.root(before)
            known = frozenset(f for f in folders if f == "." or tree.find_entry(f) is not None)
    return ChangedFiles(repository.top, before, ancestor, paths, known)


def shares_kept(
    folder: str, base: str, before: Collection[str], after: Collection[str]
) -> dict[tuple[str, str], float]:
    """Return the share of the files of each folder at ``base`` that are the same in each other one.

    ``before`` are folders at ``base``, and ``after`` those at the head of the repository around
    ``folder``. The share is 0 if one of them is not there.

    Raises:
        UsageError: ``base`` is not a commit.
        UnreadableError: git cannot read the repository.
    """
    repository = find_repository(folder)
    if repository is None or not before or not after:
        return {}
    with (
        repository_view(repository, folder) as view,
        closing(open_objects(view, folder)) as objects,
    ):
        tree, head = objects.root(commit_of(view, base)), objects.root(commit_of(view, "HEAD"))
        old = {path: _files_below(tree, path) for path in before}
        new = {path: _files_below(head, path) for path in after}
    return {
        (one, other): len(files & new[other]) / len(files) if files else 0.0
        for one, files in old.items()
        for other in new
    }


def has_fleet_files(folder: str, base: str) -> bool:
    """Return whether the folder has a file at ``base`` that may belong to a fleet.

    Raises:
        UsageError: ``base`` is not a commit.
        UnreadableError: git cannot read the repository.
    """
    repository = find_repository(folder)
    if repository is None:
        return False
    path = os.path.relpath(os.path.realpath(folder), os.path.realpath(repository.top))
    with (
        repository_view(repository, folder) as view,
        closing(open_objects(view, folder)) as objects,
    ):
        tree = objects.root(commit_of(view, base))
        return any(is_fleet_file(name) for name, _ in _files_below(tree, path.replace(os.sep, "/")))


def _files_below(root: TreeObject, path: str) -> set[tuple[str, str]]:
    """Return the files of a folder, each with its path in it and its content's name."""
    tree = root if path == "." else root.find_entry(path)
    if tree is None or tree.kind != "tree":
        return set()
    return {(entry.path.removeprefix(tree.path), entry.oid) for entry in walk_files(tree)}


_OF_ONE, _OF_OTHER, _BELOW = 1, 2, 4
_OF_BOTH: Final = _OF_ONE | _OF_OTHER


def _merge_base(objects: Objects, one: str, other: str, shallow: Collection[str]) -> str | None:
    """Return the newest common ancestor of two commits, None if they have none.

    As in git, commits are visited in order of their dates, and one that is an ancestor of a common
    ancestor is not a result. ``shallow`` are the commits whose parents were not fetched.

    Raises:
        UnreadableError: a commit between them cannot be read.
    """
    marks: dict[str, int] = defaultdict(int)
    queue: list[tuple[int, str, Commit]] = []
    pending: set[str] = set()

    def visit(oid: str, mark: int) -> None:
        if marks[oid] | mark == marks[oid]:
            return
        marks[oid] |= mark
        commit = objects.commit(oid)
        heappush(queue, (-commit.committed_at, oid, commit))
        if marks[oid] & _BELOW:
            pending.discard(oid)
        else:
            pending.add(oid)

    visit(one, _OF_ONE)
    visit(other, _OF_OTHER)
    common: list[str] = []
    while pending:
        _, oid, commit = heappop(queue)
        pending.discard(oid)
        mark = marks[oid]
        if mark & _OF_BOTH == _OF_BOTH and not mark & _BELOW:
            if oid not in common:
                common.append(oid)
            mark |= _BELOW
        for parent in () if oid in shallow else commit.parents:
            visit(parent, mark)
    return next((oid for oid in common if not marks[oid] & _BELOW), None)
