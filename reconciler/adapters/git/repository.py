"""Where a repository is, whether it is trusted, and a view of it without its settings.

The contents of ``.git`` may come from a stranger, just as the files may: in a tarball, from a cache
of a build, or in a folder that several jobs share. Its ``config`` can name programs in dozens of
places (filters, monitors, hooks, transports, pagers), so git never reads it. A *view* is a git
directory of our own, in a private folder: objects, refs and index are links to the real ones, while
``config`` is written here and holds a few values of fixed form. See decision 12.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from reconciler.adapters.git.command import (
    TIMEOUT_S,
    GitFailedError,
    command_line,
    is_inside,
    local_environment,
    run,
    stream_output,
    users_environment,
)
from reconciler.adapters.git.directory import (
    check_entries,
    check_objects,
    foreign_error,
    read_head,
    read_small_file,
)
from reconciler.adapters.processes import private_folder
from reconciler.model.errors import UnreadableError

_CONFIG_MAX: Final = 2**20
_SHALLOW_MAX: Final = 2**20
_RECORD_MAX: Final = 2**16
_LINKED: Final = ("objects", "refs", "packed-refs", "shallow", "reftable")
_POINTERS: Final = re.compile(r"(?:[A-Z]+_HEAD|sharedindex\.[0-9a-f]+)")
_EXTENSIONS: Final = frozenset(
    {
        "noop",
        "noop-v1",
        "objectformat",
        "partialclone",
        "preciousobjects",
        "refstorage",
        "relativeworktrees",
        "worktreeconfig",
    }
)
_FORWARDED: Final[Mapping[str, frozenset[str]]] = {
    "core.filemode": frozenset({"true", "false"}),
    "core.symlinks": frozenset({"true", "false"}),
    "core.ignorecase": frozenset({"true", "false"}),
    "core.precomposeunicode": frozenset({"true", "false"}),
    "core.autocrlf": frozenset({"true", "false", "input"}),
    "core.eol": frozenset({"lf", "crlf", "native"}),
    "extensions.objectformat": frozenset({"sha1", "sha256"}),
    "extensions.refstorage": frozenset({"files", "reftable"}),
}
"""The settings that say how a checkout was written, with every value that they may have."""


def find_tracked_path(place: str) -> str | None:
    """Return a path at or below ``place`` that is in the index or the commit of its work tree.

    None if there is none, and outside any repository.

    Raises:
        UnreadableError: git is missing, or cannot or will not read the repository.
    """
    folder, name = os.path.split(os.path.abspath(place))
    repository = find_repository(folder)
    if repository is None:
        return None
    below = os.path.relpath(os.path.join(os.path.realpath(folder), name), repository.top)
    if below == ".":
        return None  # the root itself is the fleet folder, whose files git is expected to track
    path = below.replace(os.sep, "/")
    with repository_view(repository, place) as view:
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


class Repository(NamedTuple):
    """A repository: the top of its work tree ("" for a bare one) and its two git directories.

    ``git_dir`` holds HEAD and index, ``common_dir`` objects and refs; they differ in a linked
    work tree. All paths are absolute and real.
    """

    top: str
    git_dir: str
    common_dir: str

    @property
    def name(self) -> str:
        """The name of the folder."""
        return os.path.basename(self.top) or self.top


def find_repository(path: str) -> Repository | None:
    """Return the repository whose work tree contains ``path``, or None.

    A folder that merely looks like a bare repository is a folder like any other.

    Raises:
        UnreadableError: a ``.git`` file leads to a repository that does not know this work tree.
    """
    folder = os.path.realpath(path)
    while True:
        dot_git = os.path.join(folder, ".git")
        if os.path.lexists(dot_git):
            found = _open_dot_git(folder, dot_git)
            if found is not None:
                return found
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def bare_repository(path: str) -> Repository | None:
    """Return the folder ``path`` as a bare repository, None if it is not one."""
    return _open_git_dir("", os.path.realpath(path))


def _open_dot_git(top: str, dot_git: str) -> Repository | None:
    if not os.path.isfile(dot_git):
        return _open_git_dir(top, os.path.realpath(dot_git))
    prefix, _, target = read_small_file(dot_git).partition("gitdir:")
    if prefix or not target.strip():
        remedy = "remove the file, or clone the repository again"
        raise UnreadableError("does not name a git directory", where=dot_git, remedy=remedy)
    found = _open_git_dir(top, os.path.realpath(os.path.join(top, target.strip())))
    if found is None:
        remedy = "run `git worktree repair` in the main working tree, or clone the repository again"
        raise UnreadableError("leads to no git directory", where=dot_git, remedy=remedy)
    return found


def _open_git_dir(top: str, git_dir: str) -> Repository | None:
    """Return the repository if ``git_dir`` is one, by the same criteria as git."""
    shared = read_small_file(os.path.join(git_dir, "commondir")).strip()
    common = os.path.realpath(os.path.join(git_dir, shared)) if shared else git_dir
    folders = (os.path.join(common, name) for name in ("objects", "refs"))
    if all(map(os.path.isdir, folders)) and read_head(git_dir):
        return Repository(top, git_dir, common)
    return None


@dataclass(frozen=True, slots=True)
class RepositoryView:
    """A repository as git sees it here: ``git_dir`` is our own, ``home`` an empty folder."""

    repository: Repository
    git_dir: str
    home: str
    where: str
    config: Mapping[str, str]

    def run(self, *arguments: str, timeout_s: float = TIMEOUT_S) -> bytes:
        """Run git and return its output.

        Raises:
            GitMissingError, GitFailedError: as ``command.run``.
        """
        return run(
            arguments,
            git_dir=self.git_dir,
            work_tree=self.repository.top,
            cwd=self.home,
            environment=self.environment,
            where=self.where,
            timeout_s=timeout_s,
        )

    def records(self, *arguments: str) -> Iterator[str]:
        """Yield the output of git, split at NUL, with only one record in memory."""
        rest = b""
        line = self.command(*arguments)
        for part in stream_output(
            line, cwd=self.home, environment=self.environment, where=self.where
        ):
            *complete, rest = (rest + part).split(b"\0")
            if len(rest) > _RECORD_MAX:
                raise GitFailedError("a path is longer than 64 KiB", where=self.where)
            for record in complete:
                yield record.decode("utf-8", "surrogateescape")

    def command(self, *arguments: str) -> Sequence[str]:
        """Return the command line of a run on this view."""
        top = self.repository.top
        return command_line(arguments, git_dir=self.git_dir, work_tree=top, tree=top)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a run on this view."""
        return local_environment(self.home, self.repository.top)

    def shallow_commits(self) -> frozenset[str]:
        """Return the commits whose parents were not fetched."""
        path = os.path.join(self.repository.common_dir, "shallow")
        return frozenset(read_small_file(path, _SHALLOW_MAX).split())

    def users_setting(self, key: str) -> str:
        """Return the last value of ``key`` in the user's own settings, empty without one."""
        values = _users_settings(key, self.repository, self.git_dir, self.home, self.where)
        return values[-1] if values else ""


@contextmanager
def repository_view(repository: Repository, where: str) -> Iterator[RepositoryView]:
    """Yield a view of a repository while the block runs.

    Raises:
        GitMissingError: there is no git.
        UnreadableError: the repository belongs to another user, its ``.git`` file leads to a
            repository that does not know it, or its format is not supported.
    """
    with private_folder() as folder:
        home, git_dir = (os.path.join(folder, name) for name in ("home", "view"))
        for path in (home, git_dir, os.path.join(git_dir, "info")):
            os.mkdir(path, 0o700)
        _link_objects(repository, git_dir)
        _write_file(git_dir, "config", _view_config({}, is_bare=not repository.top))
        _check_owner(repository, git_dir, home, where)
        config = _read_config(repository, git_dir, home, where)
        _check_work_tree(repository, config, where)
        _check_format(config, where)
        _write_file(git_dir, "config", _view_config(config, is_bare=not repository.top))
        yield RepositoryView(repository, git_dir, home, where, config)


def _link_objects(repository: Repository, git_dir: str) -> None:
    """Create the view of objects, refs and index; nothing in it names a program.

    Raises:
        UnreadableError: one of them is a link to another repository, whose files would show here.
    """
    own, common = repository.git_dir, repository.common_dir
    links = {name: os.path.join(common, name) for name in _LINKED}
    links["index"] = os.path.join(own, "index")
    links["logs"] = os.path.join(common, "logs")
    links["info/exclude"] = os.path.join(common, "info", "exclude")
    with os.scandir(own) as listing:
        links |= {e.name: e.path for e in listing if _POINTERS.fullmatch(e.name)}
    if own != common and os.path.dirname(own) != os.path.join(common, "worktrees"):
        raise foreign_error(os.path.join(own, "commondir"))
    for name, target in links.items():
        if not is_inside(os.path.realpath(target), common):
            raise foreign_error(target)
        if os.path.isdir(target) or os.path.isfile(target):
            os.symlink(target, os.path.join(git_dir, name))
    check_entries(os.path.join(common, "refs"))
    check_objects(os.path.join(common, "objects"), (common, repository.top or common))
    _write_file(git_dir, "HEAD", read_head(own))


def _write_file(git_dir: str, name: str, text: str) -> None:
    with open(os.path.join(git_dir, name), "w", encoding="utf-8") as file:
        file.write(text)


def _view_config(settings: Mapping[str, str], *, is_bare: bool) -> str:
    """Return the settings of a view: only those that describe how the checkout was written.

    ``sparseCheckout`` makes git compare existing files although they are marked as not checked out:
    the mark must not hide that they differ.
    """
    sections: dict[str, list[str]] = {
        "core": [
            "repositoryformatversion = 1",
            f"bare = {str(is_bare).lower()}",
            "sparseCheckout = true",
        ],
        "uploadpack": ["allowAnySHA1InWant = true"],
    }
    for key, allowed in _FORWARDED.items():
        value = settings.get(key, "").lower()
        if value in allowed:
            section, _, name = key.partition(".")
            sections.setdefault(section, []).append(f"{name} = {value}")
    return "".join(
        f"[{section}]\n" + "".join(f"\t{line}\n" for line in lines)
        for section, lines in sections.items()
    )


def _read_config(repository: Repository, git_dir: str, home: str, where: str) -> Mapping[str, str]:
    """Return the settings in the repository's own config, the last value of each key.

    git reads it as an ordinary file: no include is followed, and nothing takes effect.
    """
    found: dict[str, str] = {}
    for file in _config_files(repository, found):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_size > _CONFIG_MAX:
            remedy = "clone the repository again"
            raise UnreadableError("is not a git config", where=file, remedy=remedy)
        answer = run(
            ("config", "--file", file, "--no-includes", "--null", "--list"),
            git_dir=git_dir,
            cwd=home,
            environment=local_environment(home, repository.top),
            tree=repository.top,
            where=where,
        )
        for entry in answer.decode("utf-8", "surrogateescape").split("\0"):
            key, has_value, value = entry.partition("\n")
            found[key] = value if has_value else "true"
    return found


def _config_files(repository: Repository, found: Mapping[str, str]) -> Iterator[str]:
    yield os.path.join(repository.common_dir, "config")
    if found.get("extensions.worktreeconfig", "").lower() in ("true", "yes", "on", "1"):
        yield os.path.join(repository.git_dir, "config.worktree")


def _check_format(config: Mapping[str, str], where: str) -> None:
    """Reject a repository whose format is newer than this release.

    Raises:
        UnreadableError: its version or an extension is not known.
    """
    version = config.get("core.repositoryformatversion", "0")
    unknown = [
        key.removeprefix("extensions.")
        for key in config
        if key.startswith("extensions.") and key.removeprefix("extensions.") not in _EXTENSIONS
    ]
    if version not in ("0", "1"):
        what = f"repository format version {version[:20]} is not supported"
    elif version == "1" and unknown:
        what = f"repository extension {unknown[0][:60]} is not supported"
    else:
        return
    raise UnreadableError(what, where=where, remedy="clone the repository without it")


def _check_work_tree(repository: Repository, config: Mapping[str, str], where: str) -> None:
    """Reject a ``.git`` file that leads to a repository which does not name this work tree.

    Otherwise a folder from a stranger could show the files of any repository on this machine.

    Raises:
        UnreadableError: it does.
    """
    top, git_dir = repository.top, repository.git_dir
    if not top or is_inside(git_dir, top):
        return
    back = read_small_file(os.path.join(git_dir, "gitdir")).strip()
    folder, name = os.path.split(os.path.join(git_dir, back))
    if back and name == ".git" and os.path.realpath(folder) == top:
        return
    claimed = config.get("core.worktree", "")
    if claimed and os.path.realpath(os.path.join(git_dir, claimed)) == top:
        return
    raise UnreadableError(
        f".git leads to {git_dir}, which does not name this folder as its working tree",
        where=where,
        remedy="run `git worktree repair` or, if this is a separate git directory of yours, "
        f"`git config core.worktree {top}`",
    )


def _check_owner(repository: Repository, git_dir: str, home: str, where: str) -> None:
    """Apply git's rule: another user's repository is used only if ``safe.directory`` names it.

    git itself applies it only when it searches for a repository.

    Raises:
        UnreadableError: the repository belongs to another user and is not named.
    """
    top = repository.top
    places = [repository.git_dir, *([top, os.path.join(top, ".git")] if top else [])]
    if os.name != "posix" or all(map(_is_owned_by_user, places)):
        return
    name = top or repository.git_dir
    for safe in _users_settings("safe.directory", repository, git_dir, home, where):
        if safe in ("*", name) or (safe.endswith("/*") and is_inside(name, safe[:-2])):
            return
    raise GitFailedError(
        "the repository belongs to another user, so git does not trust it",
        where=where,
        remedy=f"if you trust it, run `git config --global --add safe.directory {name}`",
    )


def _is_owned_by_user(path: str) -> bool:
    user, owner = os.geteuid(), os.lstat(path).st_uid
    return owner == user or (user == 0 and str(owner) == os.environ.get("SUDO_UID"))


def _users_settings(
    key: str, repository: Repository, git_dir: str, home: str, where: str
) -> list[str]:
    """Return the values of a key in the settings of user and machine, with resets applied."""
    try:
        answer = run(
            ("config", "--includes", "--null", "--type=path", "--get-all", key),
            git_dir=git_dir,
            cwd=home,
            environment=users_environment(),
            tree=repository.top,
            where=where,
        )
    except GitFailedError:
        return []
    values: list[str] = []
    for value in answer.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        values = [*values, value] if value else []
    return values
