"""Creates commits: changed files on a new branch, or one file added to a remote branch.

Neither touches the working tree, its index or its branch, and no hook runs.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from reconciler.adapters.git.clone import RemoteAccess, remote_access
from reconciler.adapters.git.command import NETWORK_TIMEOUT_S, GitFailedError, run
from reconciler.adapters.git.refs import commit_of
from reconciler.adapters.git.repository import (
    Repository,
    RepositoryView,
    find_repository,
    repository_view,
)
from reconciler.adapters.processes import private_folder
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.text.quoting import quote_value

_NEW_FILE: Final = "100644"
_LINK: Final = "120000"
_ROLES: Final = ("AUTHOR", "COMMITTER")

ATTEMPTS: Final = 5
_REF_MAX: Final = 200
_AUTHOR: Final = re.compile(r"(?P<name>[^<>\s][^<>]*?) <(?P<email>[^<>\s]+)>")
_WITHOUT_HOOKS: Final = f"git -c core.hooksPath={os.devnull} receive-pack"


class FileChange(NamedTuple):
    """A file as it is in the work tree, None if there is none, and as it will be committed."""

    before: bytes | None
    after: bytes


def commit_to_branch(
    folder: str, branch: str, changes: Mapping[str, FileChange], message: str
) -> str:
    """Commit changes of files on top of HEAD to a new branch, and return the commit's id.

    The paths of ``changes`` start at ``folder``.

    Raises:
        UsageError: ``folder`` is not in a repository, the branch exists or its name is invalid, or
            a file differs from the one that HEAD has.
        UnreadableError: git fails, or does not know the author.
    """
    repository = _repository_of(folder)
    below = os.path.relpath(os.path.realpath(folder), repository.top).replace(os.sep, "/")
    with repository_view(repository, folder) as view:
        _expect_new(view, branch)
        head = commit_of(view, "HEAD")
        draft = _DraftCommit(view, folder)
        draft.git("read-tree", head)
        for path, change in changes.items():
            draft.add(head, posixpath.normpath(posixpath.join(below, path)), change)
        commit = draft.create_commit(head, message)
        draft.git("update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))
    return commit


def expect_new_branch(folder: str, branch: str) -> None:
    """Refuse a branch that ``commit_to_branch`` would refuse, whatever is committed.

    Raises:
        UsageError: ``folder`` is not in a repository, the branch exists or its name is invalid.
    """
    with repository_view(_repository_of(folder), folder) as view:
        _expect_new(view, branch)


def _repository_of(folder: str) -> Repository:
    repository = find_repository(folder)
    if repository is None:
        remedy = "use --write, or run the command in a repository"
        raise UsageError("not in a git repository", where=os.path.abspath(folder), remedy=remedy)
    return repository


def _expect_new(view: RepositoryView, branch: str) -> None:
    if not _is_valid_branch(view, branch):
        what = f'"{branch}" is not a valid name of a branch'
        raise UsageError(what, where="--commit", remedy="choose another name")
    if any(view.records("for-each-ref", "--format=%(refname)%00", f"refs/heads/{branch}")):
        remedy = "choose another name, or delete the branch"
        raise UsageError(f'branch "{branch}" exists', where="--commit", remedy=remedy)


def _is_valid_branch(view: RepositoryView, branch: str) -> bool:
    if branch.startswith("-"):
        return False
    try:
        view.run("check-ref-format", f"refs/heads/{branch}")
    except GitFailedError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _DraftCommit:
    """A commit that is being created, with a separate index."""

    view: RepositoryView
    where: str

    def git(self, *arguments: str, identity: Mapping[str, str] | None = None) -> str:
        """Run git on the draft's index and return its output."""
        index = os.path.join(self.view.home, "index")
        return (
            run(
                arguments,
                git_dir=self.view.git_dir,
                work_tree=self.view.repository.top,
                cwd=self.view.home,
                environment={**self.view.environment, "GIT_INDEX_FILE": index, **(identity or {})},
                where=self.where,
            )
            .decode()
            .strip()
        )

    def add(self, head: str, path: str, change: FileChange) -> None:
        """Add a changed file to the index.

        Raises:
            UsageError: the file in the work tree is not the one of HEAD.
        """
        mode, content = _NEW_FILE, change.after
        entry = next(iter(self.view.records("ls-tree", "--full-tree", "-z", head, "--", path)), "")
        if entry:
            mode, _, oid = entry.partition("\t")[0].split(" ")
            known = self.view.run("cat-file", "blob", oid)
            if change.before is not None and known == change.before.replace(b"\r\n", b"\n"):
                content = content.replace(b"\r\n", b"\n")  # git converts line endings here
            elif known != change.before:
                raise _uncommitted_error(path)
        elif change.before is not None:
            raise _uncommitted_error(path)
        if mode == _LINK:
            remedy = "use --write, which changes the file that the link leads to"
            raise UsageError("is a symbolic link", where=path, remedy=remedy)
        fresh = self.git("hash-object", "-w", "--no-filters", self._write_file("blob", content))
        self.git("update-index", "--add", "--cacheinfo", f"{mode},{fresh},{path}")

    def create_commit(self, head: str, message: str) -> str:
        """Return the id of the commit of the index, on top of ``head``."""
        identity = self._identity()
        text = self._write_file("message", message.encode())
        tree = self.git("write-tree")
        return self.git("commit-tree", tree, "-p", head, "-F", text, identity=identity)

    def _write_file(self, name: str, content: bytes) -> str:
        path = os.path.join(self.view.home, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def _identity(self) -> dict[str, str]:
        """Return the author, as git reads it from the environment.

        Raises:
            UnreadableError: no author is configured.
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


def _uncommitted_error(path: str) -> UsageError:
    return UsageError("has uncommitted changes", where=path, remedy="commit or stash them first")


@dataclass(frozen=True, slots=True)
class Publication:
    """A file for a branch: ``path`` from the top of the repository, ``author`` ``NAME <EMAIL>``."""

    branch: str
    path: str
    content: bytes
    author: str
    message: str


def remote_address(folder: str, remote: str) -> str:
    """Return the address of a remote of the repository that ``folder`` is in.

    Raises:
        UsageError: it is not in a repository, or the repository has no such remote.
    """
    repository = find_repository(folder)
    remedy = "pass the repository with --repo URL, or a remote with --remote NAME"
    if repository is None:
        raise UsageError("not in a git repository", where=folder, remedy=remedy)
    if remote.startswith("-") or not remote.isprintable() or not remote:
        raise UsageError(f"{quote_value(remote)} is not the name of a remote", where="--remote")
    with repository_view(repository, folder) as view:
        config = os.path.join(_common_dir(repository.git_dir), "config")
        try:
            arguments = ("config", "--file", config, "--no-includes", "--get")
            return view.run(*arguments, f"remote.{remote}.url").decode().strip()
        except GitFailedError as error:
            what = f"the repository has no remote {quote_value(remote)}"
            raise UsageError(what, where=folder, remedy=remedy) from error


def _common_dir(git_dir: str) -> str:
    """Return the directory with the settings: of a linked worktree it is the main one's."""
    try:
        found = Path(git_dir, "commondir").read_text(encoding="utf-8").strip()
    except OSError:
        return git_dir
    return os.path.join(git_dir, found)


def check_publication(branch: str, path: str, author: str, where: str) -> None:
    """Reject a branch, path or author that git would reject, or interpret as an option.

    Raises:
        UsageError: one of them is.
    """
    named = branch.startswith(("-", "+", "refs/")) or branch in ("HEAD", "@")
    if named or not _is_branch_name(branch):
        remedy = "use the name of a branch, as in git:snapshots:prod.json"
        raise UsageError(f"{quote_value(branch)} is not a branch", where=where, remedy=remedy)
    if not _is_file_path(path):
        remedy = "use a path from the top of the repository, as in git:snapshots:prod.json"
        raise UsageError(
            f"{quote_value(path)} is not a file of a repository", where=where, remedy=remedy
        )
    if _AUTHOR.fullmatch(author) is None or not author.isprintable():
        remedy = 'use --author "NAME <EMAIL>"'
        raise UsageError(f"{quote_value(author)} is not an author", where="--author", remedy=remedy)


def _is_dot_git(part: str) -> bool:
    """Return whether some file system would treat the name as ``.git``."""
    return part.lower().rstrip(". ") in (".git", "git~1")


def _is_file_path(path: str) -> bool:
    """Return whether a repository can have a file at a path, and no command reads it otherwise."""
    if path.startswith("-") or ":" in path or not path.isprintable():
        return False
    return not any(part in ("", ".", "..") or _is_dot_git(part) for part in path.split("/"))


def _is_branch_name(branch: str) -> bool:
    """Return whether git accepts the name of a branch (``git check-ref-format``)."""
    if not 0 < len(branch) <= _REF_MAX or not branch.isprintable():
        return False
    if any(c in " ~^:?*[\\" for c in branch) or ".." in branch or "@{" in branch:
        return False
    parts = branch.split("/")
    return not any(not p or p.startswith(".") or p.endswith((".lock", ".")) for p in parts)


def publish(url: str, publication: Publication) -> str | None:
    """Commit the file and push it; return the commit, None if the branch already has that file.

    Raises:
        UsageError: the address, branch, path or author is refused.
        UnreadableError: the remote does not answer or rejects the commit.
    """
    where = f"git:{publication.branch}:{publication.path}"
    check_publication(publication.branch, publication.path, publication.author, where)
    with remote_access(url) as remote, private_folder() as folder:
        for _ in range(ATTEMPTS):
            tip = _remote_tip(remote, publication.branch)
            draft = _TemporaryRepository.create(remote, folder, tip, publication.branch)
            commit = draft.commit(publication)
            if commit is None:
                return None
            try:
                draft.push(commit, publication.branch)
            except GitFailedError as error:
                if _remote_tip(remote, publication.branch) == draft.tip:
                    raise UnreadableError(
                        f"the push was refused: {error.git_message}",
                        where=f"{remote.where} {publication.branch}",
                        remedy="give the credentials the permission to push to this branch",
                    ) from error
            else:
                return commit
    raise UnreadableError(
        f"the branch changed during each of {ATTEMPTS} attempts to push",
        where=f"{remote.where} {publication.branch}",
        remedy="run it again, or give each cluster a branch of its own",
    )


def _remote_tip(remote: RemoteAccess, branch: str) -> str:
    """Return the commit of a branch of the remote, empty if the branch does not exist."""
    no_git_dir = os.path.join(remote.home, "none")
    ref = f"refs/heads/{branch}"
    output = remote.run("ls-remote", "--quiet", "--", remote.target, ref, git_dir=no_git_dir)
    for line in output.decode("utf-8", "replace").splitlines():
        commit, _, name = line.partition("\t")
        if name == ref:
            return commit
    return ""


@dataclass(frozen=True, slots=True)
class _TemporaryRepository:
    """A temporary bare repository in which the commit is created, on top of ``tip`` if any."""

    remote: RemoteAccess
    folder: str
    git_dir: str
    tip: str = ""

    @classmethod
    def create(
        cls, remote: RemoteAccess, folder: str, tip: str, branch: str
    ) -> _TemporaryRepository:
        form = "sha256" if len(tip) > len("0" * 40) else "sha1"
        repository = cls(remote, folder, os.path.join(folder, f"{form}.git"))
        if not os.path.isdir(repository.git_dir):
            repository.run("init", "--quiet", "--bare", "--template=", f"--object-format={form}")
        if tip:
            arguments = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--depth=1")
            refspec = f"+refs/heads/{branch}:refs/reconciler/tip"
            remote.run(
                *(*arguments, "--no-write-fetch-head", "--", remote.target, refspec),
                git_dir=repository.git_dir,
                timeout_s=NETWORK_TIMEOUT_S,
            )
            # it may have moved since it was listed
            return replace(
                repository, tip=repository.run("rev-parse", "--verify", "refs/reconciler/tip")
            )
        return repository

    def run(self, *arguments: str, **variables: str) -> str:
        output = run(
            arguments,
            git_dir=self.git_dir,
            cwd=self.remote.home,
            environment={**self.remote.environment, **variables},
            where=self.remote.where,
            secrets=self.remote.secrets,
        )
        return output.decode("utf-8", "replace").strip()

    def commit(self, publication: Publication) -> str | None:
        """Return a commit with the file on top of the branch, None if that has the same file."""
        tip = self.tip
        draft = os.path.join(self.folder, "content")
        with open(draft, "wb") as file:
            file.write(publication.content)
        blob = self.run("hash-object", "-w", "--no-filters", "--", draft)
        self.run("read-tree", *([tip] if tip else ["--empty"]))
        before = self.run("write-tree") if tip else ""
        entry = f"100644,{blob},{publication.path}"
        try:
            self.run("update-index", "--add", "--cacheinfo", entry)
        except GitFailedError as error:
            raise UnreadableError(
                "a file of the branch is where the path needs a folder, or the reverse",
                where=f"git:{publication.branch}:{publication.path}",
                remedy="choose another path",
            ) from error
        tree = self.run("write-tree")
        if tree == before:
            return None
        who = _AUTHOR.fullmatch(publication.author)
        assert who is not None
        author = {
            f"GIT_{role}_{fact}": who[fact.lower()]
            for role in ("AUTHOR", "COMMITTER")
            for fact in ("NAME", "EMAIL")
        }
        parents = ("-p", tip) if tip else ()
        return self.run("commit-tree", tree, *parents, "-m", publication.message, **author)

    def push(self, commit: str, branch: str) -> None:
        """Push without force; hooks of a repository on this machine do not run."""
        is_local = self.remote.environment.get("GIT_ALLOW_PROTOCOL") == "file"
        receiver = (f"--receive-pack={_WITHOUT_HOOKS}",) if is_local else ()
        arguments = ("push", "--quiet", "--no-verify", "--no-follow-tags", *receiver)
        refspec = f"{commit}:refs/heads/{branch}"
        self.remote.run(
            *(*arguments, "--", self.remote.target, refspec),
            git_dir=self.git_dir,
            timeout_s=NETWORK_TIMEOUT_S,
        )
