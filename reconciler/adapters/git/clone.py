"""Bare clones of remote repositories, kept in the state directory and only ever fetched.

A clone holds only objects and refs. No remote is configured in it, so the address with its
credentials is not written to disk, and no setting of the remote takes effect. A new clone is
created next to its final path and moved there in one step. One process at a time works on it. A
clone that git cannot read is deleted and created again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from reconciler.adapters import processes
from reconciler.adapters.git.command import (
    NETWORK_TIMEOUT_S,
    TIMEOUT_S,
    GitFailedError,
    git_program,
    local_environment,
    run,
    stream_output,
    users_environment,
)
from reconciler.adapters.git.directory import read_small_file
from reconciler.adapters.git.fetchmessages import FetchReport, FetchRequest
from reconciler.adapters.git.refs import commit_of, expect_one
from reconciler.adapters.git.repository import (
    Repository,
    RepositoryView,
    bare_repository,
    find_repository,
    repository_view,
)
from reconciler.adapters.nofollow import open_file, refuse_link
from reconciler.adapters.processes import private_folder
from reconciler.model.errors import LockedError, UnreadableError, UsageError
from reconciler.model.text.identifiers import COMMIT
from reconciler.model.text.urls import is_loopback, split_credentials, without_secrets
from reconciler.model.text.visible import one_line

T = TypeVar("T")

REMOTE_HEAD: Final = "refs/reconciler/HEAD"
_REFSPECS: Final = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_HEAD_REFSPEC: Final = f"+HEAD:{REMOTE_HEAD}"
"""Fetched only if it is needed: a remote may have branches and a HEAD that is none of them."""
_SCHEMES: Final = ("https", "ssh")
_UNENCRYPTED: Final = ("http", "git")
"""Spoken with this machine only: on the remote from another one anybody could change the fleet."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SSH_ADDRESS: Final = re.compile(r"[\w.-]+@[\w.-]+:(?!:)\S+|[\w.-]+:(?!:)[^\s@]+", re.ASCII)
_HEAD: Final = re.compile(r"HEAD(?:[~^][0-9]*)*", re.ASCII)
_LOCK_WAIT_S: Final = 300.0
_LOCK_POLL_S: Final = 0.1
_FETCHING: Final = "reconciler.adapters.git.fetching"
_PRIVATE: Final = 0o700
"""The mode of a clone: a token of its owner was needed for what it contains."""
_LOG: Final = logging.getLogger(__name__)

_REMEDY: Final = "use https, ssh, or a local path"


class RemoteAccess(NamedTuple):
    """How to reach a remote: the address that is passed to git, and the environment of git.

    ``secrets`` are texts that no message may show.
    """

    target: str
    environment: Mapping[str, str]
    home: str
    where: str
    secrets: tuple[str, ...] = ()

    def run(self, *arguments: str, git_dir: str, timeout_s: float = TIMEOUT_S) -> bytes:
        """Run git on one of our own git directories."""
        return run(
            arguments,
            git_dir=git_dir,
            cwd=self.home,
            environment=self.environment,
            where=self.where,
            timeout_s=timeout_s,
            secrets=self.secrets,
        )

    def fetch(self, place: Path, refspecs: Sequence[str], ref: str = "") -> None:
        """Fetch into the bare clone at ``place``, which is created if it does not exist.

        GitPython does so in a process of its own. The log says how far it is, if it takes longer
        than ten seconds, and which commits of ``ref`` are new.
        """
        request = FetchRequest(str(place), self.target, refspecs, ref)
        command = processes.python_function(_FETCHING, "main", json.dumps(request._asdict()))
        lines = stream_output(
            command,
            cwd=self.home,
            environment={**self.environment, "GIT_PYTHON_GIT_EXECUTABLE": git_program()},
            where=self.where,
            timeout_s=NETWORK_TIMEOUT_S,
            secrets=self.secrets,
        )
        for line in _split_lines(lines):
            _log_report(FetchReport(**json.loads(line)), self.where)


def _split_lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the complete lines of an output that comes in pieces."""
    left = b""
    for part in parts:
        *complete, left = (left + part).split(b"\n")
        yield from complete


def _log_report(report: FetchReport, where: str) -> None:
    """Log a report of ``fetching``."""
    if report.commits:
        _LOG.info("%s: %d new: %s", where, report.commits, one_line("; ".join(report.subjects)))
        return
    of_total = f" of {report.total}" if report.total else ""
    _LOG.info("fetching %s: %s, %d%s", where, report.stage, report.done, of_total)


def split_address(url: str) -> tuple[str, str]:
    """Return an address without its user and password, and the one protocol that git may use.

    https and ssh are supported; http and git, which are not encrypted, only for this machine; a
    repository on this machine only if the address is clearly a path (``/srv/fleet.git``,
    ``./fleet``, ``file:///srv/fleet.git``).

    Raises:
        UsageError: the address is of another kind.
    """
    target, protocol, _, _ = _parse_address(url)
    return target, protocol


def _parse_address(url: str) -> tuple[str, str, str, str]:
    """Return address and protocol, and user and password if there are any."""
    shown = without_secrets(url, is_value=True)
    where = f"--repo {shown}" if shown.isprintable() else "--repo"
    if "::" in url or url.startswith("-") or not url.isprintable() or not url:
        raise UsageError("not a repository URL", where=where)
    scheme = _SCHEME.match(url)
    if scheme is not None:
        return _parse_url(url, scheme[1].lower(), where)
    if url.startswith(("/", "./", "../", "~")) or Path(url).is_dir():
        return str(Path(url).expanduser().resolve()), "file", "", ""
    if _SSH_ADDRESS.fullmatch(url):
        return url, "ssh", "", ""
    raise UsageError("repository does not exist", where=where, remedy=_REMEDY)


def _split_url(url: str, where: str) -> SplitResult:
    """Return the parts of a URL, whose port can be read."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # not chained: the message of urlsplit may contain a part of the password
        what = "the host or the port is malformed"
        raise UsageError(what, where=where, remedy=_REMEDY) from None
    return parts


def _parse_url(url: str, scheme: str, where: str) -> tuple[str, str, str, str]:
    if scheme == "file":
        return url, "file", "", ""
    if scheme not in (*_SCHEMES, *_UNENCRYPTED):
        raise UsageError(f"{scheme}:// is not supported", where=where, remedy=_REMEDY)
    try:
        bare_url, user, password = split_credentials(url)
    except ValueError as error:
        raise UsageError(str(error), where=where) from error
    _check_url(url, scheme, _split_url(bare_url, where), where)
    _check_credentials(scheme, user, password, where)
    return (url, scheme, "", "") if scheme == "ssh" else (bare_url, scheme, user, password)


def _check_url(url: str, scheme: str, parts: SplitResult, where: str) -> None:
    userinfo = url.partition("://")[2].rpartition("@")[0]
    if re.search(r"[/?#\s]", userinfo) or parts.query or parts.fragment:
        what = "a repository URL must not contain ?, # or a space, nor / in a password"
        remedy = "percent-encode them (/ is %2F, # is %23, ? is %3F)"
        raise UsageError(what, where=where, remedy=remedy)
    if not parts.hostname or parts.port == 0:
        raise UsageError("not a repository URL", where=where, remedy=_REMEDY)
    if scheme in _UNENCRYPTED and not is_loopback(parts.hostname or ""):
        what = f"{scheme}:// is not encrypted, so it is allowed only for this machine"
        raise UsageError(what, where=where, remedy="use https or ssh")


def _check_credentials(scheme: str, user: str, password: str, where: str) -> None:
    """Reject credentials that the protocol of a URL cannot use."""
    if not (user + password).isprintable():
        raise UsageError("not a repository URL", where=where, remedy=_REMEDY)
    if scheme == "git" and user:
        raise UsageError("git:// does not support users", where=where, remedy="use https or ssh")
    if scheme == "ssh" and password:
        remedy = "use a key (ssh-agent, or GIT_SSH_COMMAND)"
        raise UsageError("ssh does not accept a password in the URL", where=where, remedy=remedy)


@contextmanager
def remote_access(url: str) -> Iterator[RemoteAccess]:
    """Yield the address of a remote; for a repository on this machine that of a view of it."""
    target, protocol, user, password = _parse_address(url)
    where = without_secrets(url, is_value=True)
    if protocol == "file":
        with repository_view(_local_repository(target, where), where) as view:
            environment = {**local_environment(view.home), "GIT_ALLOW_PROTOCOL": "file"}
            yield RemoteAccess(view.git_dir, environment, view.home, where)
        return
    credential = _credential_variables(target, user, password) if user or password else {}
    environment = users_environment(protocol, **credential)
    userinfo = url.partition("://")[2].rpartition("@")[0]
    secrets = (password, *userinfo.split(":")[1:]) if password else (user,) if credential else ()
    with private_folder() as home:
        yield RemoteAccess(target, environment, home, where, secrets)


def _local_repository(target: str, where: str) -> Repository:
    path = unquote(urlsplit(target).path) if target.lower().startswith("file://") else target
    for place in (path, f"{path}.git"):
        if Path(place).is_dir():
            found = find_repository(place)
            if found is not None and found.top == os.path.realpath(place):
                return found
            found = bare_repository(place)
            if found is not None:
                return found
    raise UnreadableError("not a git repository", where=where, remedy=_REMEDY)


def _credential_variables(target: str, user: str, password: str) -> dict[str, str]:
    """Return the variables that pass user and password to git, for one host only.

    Neither a command line nor a file contains them. Other credential helpers are not used.
    """
    parts = urlsplit(target)
    key = f"credential.{parts.scheme}://{parts.netloc}.helper"
    helper = (
        '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n"'
        ' "$RECONCILER_GIT_USER" "$RECONCILER_GIT_PASSWORD"; }; f'
    )
    return {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": key,
        "GIT_CONFIG_VALUE_0": "",
        "GIT_CONFIG_KEY_1": key,
        "GIT_CONFIG_VALUE_1": helper,
        "RECONCILER_GIT_USER": user,
        "RECONCILER_GIT_PASSWORD": password,
    }


def remote_head(url: str, ref: str) -> str | None:
    """Return the commit that ``ref`` names at the remote, without fetching; None if none does.

    Raises:
        UsageError: it names several.
        UnreadableError: the remote does not answer.
    """
    if COMMIT.fullmatch(ref):
        return ref
    names = ("HEAD",) if ref == "HEAD" else (ref, f"{ref}^{{}}")
    with remote_access(url) as remote:
        answer = _list_refs(remote, *names)
    found: dict[str, str] = {}
    for line in answer.decode("utf-8", "replace").splitlines():
        commit, _, name = line.partition("\t")
        found[name] = commit
    tag, branch = f"refs/tags/{ref}", f"refs/heads/{ref}"
    commits = {tag: found.get(f"{tag}^{{}}", found.get(tag)), branch: found.get(branch)}
    named = {name: commit for name, commit in commits.items() if commit is not None}
    if ref not in found:
        expect_one(ref, named, remote.where)
    return found.get(ref) or next(iter(named.values()), None)


def _list_refs(remote: RemoteAccess, *names: str) -> bytes:
    no_git_dir = os.path.join(remote.home, "none")
    return remote.run("ls-remote", "--quiet", "--", remote.target, *names, git_dir=no_git_dir)


def with_clone(url: str, ref: str, cache: str, use: Callable[[RepositoryView, str], T]) -> T:
    """Update the clone of ``url`` and return ``use(view of the clone, commit)``.

    ``cache`` is the folder that holds clones. While ``use`` runs, no other process changes it.

    Raises:
        UsageError: the address is refused, or the remote has no such ref.
        UnreadableError: the remote does not answer, or git cannot read its answer.
        LockedError: another process has worked on the clone for five minutes.
        StateError: a link is in the place of the clone or its lock.
    """
    target, _ = split_address(url)
    place = Path(cache) / _clone_name(target)
    refuse_link(place.parent)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _lock_clone(place.with_suffix(".lock")), remote_access(url) as remote:
        refuse_link(place)
        known = place.is_dir()
        try:
            return _fetch_and_use(remote, ref, place, use)
        except UnreadableError:
            # An existing clone may be damaged; if the remote is unreachable, cloning reports that
            # again.
            if not known or not _is_reachable(remote):
                raise
            shutil.rmtree(place, ignore_errors=True)
            return _fetch_and_use(remote, ref, place, use)


def _fetch_and_use(
    remote: RemoteAccess, ref: str, place: Path, use: Callable[[RepositoryView, str], T]
) -> T:
    of_head = _HEAD.fullmatch(ref) is not None
    refspecs = (_HEAD_REFSPEC, *_REFSPECS) if of_head else _REFSPECS
    name = REMOTE_HEAD + ref.removeprefix("HEAD") if of_head else ref
    if place.is_dir():
        with suppress(OSError):  # it is as private as an older release has made it
            place.chmod(_PRIVATE)
        _fetch(remote, place, refspecs, "" if name.startswith("-") else name)
    else:
        _create_clone(remote, place, refspecs)
    if COMMIT.fullmatch(ref):
        _fetch_commit(remote, ref, place)
    clone = bare_repository(str(place))
    if clone is None:
        raise UnreadableError("the clone is damaged", where=remote.where)
    with repository_view(clone, remote.where) as view:
        return use(view, commit_of(view, name))


def _create_clone(remote: RemoteAccess, place: Path, refspecs: tuple[str, ...]) -> None:
    """Create the clone next to its final path, and move it there."""
    with tempfile.TemporaryDirectory(prefix=f".{place.stem}-", dir=place.parent) as beside:
        fresh = Path(beside) / "clone"
        remote.fetch(fresh, refspecs)
        fresh.chmod(_PRIVATE)
        fresh.rename(place)


def _fetch(remote: RemoteAccess, place: Path, refspecs: tuple[str, ...], ref: str = "") -> None:
    _write_config(place)
    remote.fetch(place, refspecs, ref)


def _write_config(place: Path) -> None:
    """Write the clone's settings again, so that foreign settings have no effect."""
    is_sha256 = "sha256" in read_small_file(str(place / "config")).lower()
    extension = "[extensions]\n\tobjectformat = sha256\n" if is_sha256 else ""
    version = 1 if is_sha256 else 0
    with suppress(FileNotFoundError):
        (place / "config").unlink()
        text = f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n{extension}"
        (place / "config").write_text(text, encoding="ascii")


def _fetch_commit(remote: RemoteAccess, commit: str, place: Path) -> None:
    """Fetch a commit that no branch or tag reaches any more, if the remote serves it."""
    with suppress(GitFailedError):
        remote.run("cat-file", "-e", f"{commit}^{{commit}}", git_dir=str(place))
        return
    with suppress(GitFailedError):
        _fetch(remote, place, (f"+{commit}:refs/reconciler/{commit}",))


def _is_reachable(remote: RemoteAccess) -> bool:
    try:
        _list_refs(remote, "HEAD")
    except UnreadableError:
        return False
    return True


def _clone_name(target: str) -> str:
    """Return the name of a clone's folder; it does not depend on the credentials in the address."""
    plain = re.sub(r"(?<=://)[^/@]*@", "", target)
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(plain).name.removesuffix(".git"))[:40]
    return f"{stem.strip('-') or 'fleet'}-{hashlib.sha256(plain.encode()).hexdigest()[:12]}.git"


@contextmanager
def _lock_clone(path: Path) -> Iterator[None]:
    """Hold the lock of a clone; the system releases it when a process dies."""
    import fcntl

    with os.fdopen(open_file(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    message = (
                        "another process has been fetching this repository for several minutes"
                    )
                    raise LockedError(message, where=os.fspath(path)) from error
                time.sleep(_LOCK_POLL_S)
        yield
