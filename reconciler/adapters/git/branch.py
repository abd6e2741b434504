"""Commits changed files to a new branch, without touching the work tree, its index or its branch.

No hook runs, and no setting of the repository takes effect. The identity is that of the
environment, of the repository's own config or of the user's; its values are only texts.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from reconciler.adapters.git.command import GitFailedError, run
from reconciler.adapters.git.objects import commit_of
from reconciler.adapters.git.repository import RepositoryView, find, viewed
from reconciler.model.errors import UnreadableError, UsageError

_NEW_FILE: Final = "100644"
_LINK: Final = "120000"
_ROLES: Final = ("AUTHOR", "COMMITTER")


class FileChange(NamedTuple):
    """A file as it is in the work tree, None where there is none, and as it is to be committed."""

    before: bytes | None
    after: bytes


def commit_to_branch(
    folder: str, branch: str, changes: Mapping[str, FileChange], message: str
) -> str:
    """Commit changes of files on top of HEAD to a new branch, and return the commit's id.

    The paths of ``changes`` start at ``folder``.

    Raises:
        UsageError: ``folder`` is in no repository, the branch exists or its name is not valid, or a
            file differs from the one that HEAD has.
        UnreadableError: git refuses, or does not know who commits.
    """
    repository = find(folder)
    if repository is None:
        remedy = "use --write, or run the command in a repository"
        raise UsageError("not in a git repository", where=os.path.abspath(folder), remedy=remedy)
    below = os.path.relpath(os.path.realpath(folder), repository.top).replace(os.sep, "/")
    with viewed(repository, folder) as view:
        _expect_new(view, branch)
        head = commit_of(view, "HEAD")
        draft = _DraftCommit(view, folder)
        draft.git("read-tree", head)
        for path, change in changes.items():
            draft.change(head, posixpath.normpath(posixpath.join(below, path)), change)
        commit = draft.committed(head, message)
        draft.git("update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))
    return commit


def _expect_new(view: RepositoryView, branch: str) -> None:
    if not _is_valid(view, branch):
        what = f'"{branch}" is not a valid name of a branch'
        raise UsageError(what, where="--commit", remedy="choose another name")
    if any(view.records("for-each-ref", "--format=%(refname)%00", f"refs/heads/{branch}")):
        remedy = "choose another name, or delete the branch"
        raise UsageError(f'branch "{branch}" exists', where="--commit", remedy=remedy)


def _is_valid(view: RepositoryView, branch: str) -> bool:
    if branch.startswith("-"):
        return False
    try:
        view.run("check-ref-format", f"refs/heads/{branch}")
    except GitFailedError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _DraftCommit:
    """A commit that is being made, with an index of its own."""

    view: RepositoryView
    where: str

    def git(self, *arguments: str, identity: Mapping[str, str] | None = None) -> str:
        """Run git on the draft's index and return what it prints."""
        index = os.path.join(self.view.home, "index")
        return run(
            arguments,
            git_dir=self.view.git_dir,
            work_tree=self.view.repository.top,
            cwd=self.view.home,
            environment={
                **self.view.environment, "GIT_INDEX_FILE": index, **(identity or {}),
            },
            where=self.where,
        ).decode().strip()  # fmt: skip

    def change(self, head: str, path: str, change: FileChange) -> None:
        """Put a changed file into the index.

        Raises:
            UsageError: the file in the work tree is not the one of HEAD.
        """
        mode, content = _NEW_FILE, change.after
        entry = next(iter(self.view.records("ls-tree", "--full-tree", "-z", head, "--", path)), "")
        if entry:
            mode, _, oid = entry.partition("\t")[0].split(" ")
            known = self.view.run("cat-file", "blob", oid)
            if change.before is not None and known == change.before.replace(b"\r\n", b"\n"):
                content = content.replace(b"\r\n", b"\n")  # git converts the ends of lines here
            elif known != change.before:
                raise _uncommitted(path)
        elif change.before is not None:
            raise _uncommitted(path)
        if mode == _LINK:
            remedy = "use --write, which changes the file that the link leads to"
            raise UsageError("is a symbolic link", where=path, remedy=remedy)
        fresh = self.git("hash-object", "-w", "--no-filters", self._file("blob", content))
        self.git("update-index", "--add", "--cacheinfo", f"{mode},{fresh},{path}")

    def committed(self, head: str, message: str) -> str:
        """Return the id of the commit of the index, on top of ``head``."""
        identity = self._identity()
        text = self._file("message", message.encode())
        tree = self.git("write-tree")
        return self.git("commit-tree", tree, "-p", head, "-F", text, identity=identity)

    def _file(self, name: str, content: bytes) -> str:
        path = os.path.join(self.view.home, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def _identity(self) -> dict[str, str]:
        """Return who commits, as git reads it from the environment.

        Raises:
            UnreadableError: nothing says who it is.
        """
        found: dict[str, str] = {}
        for fact in ("name", "email"):
            key = f"user.{fact}"
            for role in _ROLES:
                variable = f"GIT_{role}_{fact.upper()}"
                value = (
                    os.environ.get(variable)
                    or self.view.config.get(key)
                    or self.view.users_setting(key)
                )
                if not value:
                    remedy = f"run `git config --global {key} ...`"
                    raise UnreadableError(f"git has no {key}", where=self.where, remedy=remedy)
                found[variable] = value
        return found


def _uncommitted(path: str) -> UsageError:
    return UsageError("has uncommitted changes", where=path, remedy="commit or stash them first")
