"""A commit's files read from git's objects: nothing is checked out, nothing is run.

The same limits and refusals hold as for a folder (``folder.py``): symbolic links may not lead out
of the fleet's folder, submodules are not followed, sizes and counts are bounded.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any, Final

from reconciler.adapters.git import folder as limits
from reconciler.adapters.git.command import GitMissingError, environment, run
from reconciler.desired.document import LIMITS
from reconciler.desired.fleet import SourceFile
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.errors import UnreadableError, UsageError

_LINK_MODE: Final = 0o120000
_LINK_HOPS_MAX: Final = 8
_LINK_BYTES_MAX: Final = 4096
_REF_MAX: Final = 1000


def commit_of(git_dir: str, ref: str, where: str) -> str:
    """Return the full id of the commit that ``ref`` names in a repository.

    Raises:
        UsageError: ``ref`` is no ref, or there is no such commit.
        UnreadableError: git cannot read the repository.
    """
    if not ref or ref.startswith("-") or len(ref) > _REF_MAX or not ref.isprintable():
        raise UsageError(f"{ref[:60]!r} is not a ref", where=where)
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    try:
        answer = run(arguments, folder=git_dir, where=where)
    except GitMissingError:
        raise
    except UnreadableError as error:
        if "rev-parse failed" not in str(error):
            raise
        remedy = "name a branch, a tag or a commit that was fetched"
        raise UsageError(f"no commit {ref}", where=where, remedy=remedy) from error
    return answer.decode().strip()


def read_commit(
    git_dir: str, commit: str, folder: str, where: str
) -> tuple[list[SourceFile], list[Diagnostic], str]:
    """Return the fleet files below ``folder`` at ``commit``, what was refused, and its subject.

    Raises:
        UnreadableError: the folder is not there, or the repository cannot be read.
    """
    try:
        import git
    except ImportError as error:  # GitPython looks for git when it is imported
        raise GitMissingError from error
    try:
        with git.Repo(git_dir) as repository:
            repository.git.update_environment(**environment(GIT_DIR=str(repository.git_dir)))
            found = repository.commit(commit)
            tree = _folder(found.tree, folder, where)
            reading = _Reading(tree)
            reading.walk()
            return reading.files, reading.findings, str(found.summary)
    except (git.exc.GitError, git.exc.ODBError, ValueError, TypeError, OSError) as error:
        text = " ".join(str(error).split())[:200]
        raise UnreadableError(f"{type(error).__name__}: {text}", where=where) from error


def _folder(tree: Any, folder: str, where: str) -> Any:
    if folder in ("", "."):
        return tree
    try:
        found = tree / folder
    except KeyError:
        found = None
    if found is None or found.type != "tree":
        raise UnreadableError(f"there is no folder {folder} in that commit", where=where)
    return found


class _Reading:
    """Walks a tree of git objects, in order of paths."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.prefix = f"{root.path}/" if root.path else ""
        self.files: list[SourceFile] = []
        self.findings: list[Diagnostic] = []
        self.bytes = 0

    def walk(self) -> None:
        for path, blob in self._blobs():
            if len(self.files) >= limits.FILES_MAX or self.bytes >= limits.BYTES_MAX:
                most = f"{limits.FILES_MAX} files or {limits.BYTES_MAX // 2**20} MiB"
                self._refuse("too-large", path, f"the folder holds more than {most}")
                return
            size = blob.size
            if size > LIMITS.bytes_max:
                message = f"{size / 2**20:.1f} MiB are more than {LIMITS.bytes_max >> 20} MiB"
                self._refuse("too-large", path, message)
                continue
            self.bytes += size
            self.files.append(SourceFile(_printable(path), blob.data_stream.read()))

    def _blobs(self) -> Iterator[tuple[str, Any]]:
        """Yield (path below the root, blob) of the files that count; loops end."""
        seen = {self.root.path}
        stack = [("", self.root, 0)]
        entries = 0
        while stack:
            prefix, tree, depth = stack.pop()
            below: list[tuple[str, Any, int]] = []
            for entry in sorted(tree, key=_name):
                entries += 1
                path = f"{prefix}{_name(entry)}"
                if entries > limits.ENTRIES_MAX:
                    self._refuse("too-large", path, f"more than {limits.ENTRIES_MAX} entries")
                    return
                item = self._followed(entry, path)
                if item is None:
                    continue
                if item.type == "blob":
                    if limits.is_fleet_file(path):
                        yield path, item
                elif item.path in seen:
                    self._refuse("directory-loop", path, "leads to a folder that was read")
                elif depth >= limits.DEPTH_MAX:
                    message = f"more than {limits.DEPTH_MAX} folders deep"
                    self._refuse("too-deep", path, message)
                else:
                    seen.add(item.path)
                    below.append((f"{path}/", item, depth + 1))
            stack.extend(reversed(below))

    def _followed(self, entry: Any, path: str) -> Any:
        """Return what an entry leads to; None, perhaps with a finding, for what is not read."""
        if _name(entry).startswith("."):
            return None
        if entry.type == "submodule":
            message = "a submodule is not followed: what it holds is not part of the fleet"
            self._refuse("submodule", path, message, Severity.WARNING)
            return None
        for _ in range(_LINK_HOPS_MAX):
            if entry.mode != _LINK_MODE:
                return entry
            target = self._target(entry)
            if target is None:
                self._refuse_link(path, "outside-link", "the symbolic link leads out of the folder")
                return None
            try:
                entry = self.root / target if target != "." else self.root
            except KeyError:
                self._refuse_link(path, "broken-link", "the symbolic link leads nowhere")
                return None
        self._refuse_link(path, "broken-link", "the symbolic link leads to itself")
        return None

    def _target(self, link: Any) -> str | None:
        """Return where a link leads, below the root; None where it leads out."""
        if link.size > _LINK_BYTES_MAX:
            return None
        text = link.data_stream.read().decode("utf-8", "surrogateescape")
        here = posixpath.dirname(link.path.removeprefix(self.prefix))
        target = posixpath.normpath(posixpath.join(here, text))
        return None if target.startswith(("/", "../")) or target == ".." else target

    def _refuse_link(self, path: str, code: str, message: str) -> None:
        """Record a bad link, where it could have been meant as part of the fleet."""
        if code == "outside-link" or limits.is_fleet_file(path):
            self._refuse(code, path, message)

    def _refuse(
        self, code: str, path: str, message: str, severity: Severity = Severity.ERROR
    ) -> None:
        self.findings.append(Diagnostic(severity, code, message, Place(_printable(path), 1, 1)))


def _name(entry: Any) -> str:
    """Return the last part of an entry's path; a submodule knows no other name of itself."""
    return posixpath.basename(str(entry.path))


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
