"""Bare clones of remote repositories, kept in the state directory and only ever fetched.

A clone holds objects and refs, nothing else: no remote is configured in it, so that neither the
address with its credentials is written to disk nor a setting of the remote's takes effect. A new
clone is made beside its place and moved there in one step; one process at a time works on it; one
that git can no longer read is thrown away and made again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from reconciler.adapters.git.command import NETWORK_TIMEOUT_S, GitFailedError, run
from reconciler.adapters.git.objects import commit_of
from reconciler.model.errors import LockedError, UnreadableError, UsageError
from reconciler.model.urls import without_secrets

T = TypeVar("T")

REMOTE_HEAD: Final = "refs/reconciler/HEAD"
_REFSPECS: Final = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_HEAD_REFSPEC: Final = f"+HEAD:{REMOTE_HEAD}"
"""Asked for only where it is wanted: a remote may have branches and a HEAD that is none of them."""
_SCHEMES: Final = ("https", "ssh", "git")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SSH_ADDRESS: Final = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!:)[^\s]+", re.ASCII)
_HEAD: Final = re.compile(r"HEAD(?:[~^][0-9]*)*", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_LOCK_WAIT_S: Final = 300.0
_LOCK_LOOK_S: Final = 0.1


def address(url: str) -> tuple[str, str]:
    """Return an address as git is given it, and the one protocol that it may speak.

    https, ssh and git are spoken; a repository on this machine only where the address is plainly
    a path (``/srv/fleet.git``, ``./fleet``, ``file:///srv/fleet.git``).

    Raises:
        UsageError: it is another kind of address.
    """
    scheme = _SCHEME.match(url)
    if "::" in url or url.startswith("-") or not url.isprintable() or not url:
        raise UsageError("not an address of a repository", where=f"--repo {without_secrets(url)}")
    if scheme is not None:
        name = scheme[1].lower()
        if name == "file" or name in _SCHEMES:
            return url, name
        remedy = f"use {', '.join(_SCHEMES)}, or the path of a repository on this machine"
        where = f"--repo {without_secrets(url)}"
        raise UsageError(f"{name}:// is not spoken here", where=where, remedy=remedy)
    if url.startswith(("/", "./", "../", "~")) or Path(url).is_dir():
        return str(Path(url).expanduser().resolve()), "file"
    if _SSH_ADDRESS.fullmatch(url):
        return url, "ssh"
    raise UsageError(f"there is no such repository: {url}", where="--repo")


def remote_head(url: str, ref: str) -> str | None:
    """Return the commit that ``ref`` names at the remote, without fetching; None if none does.

    Raises:
        UnreadableError: the remote does not answer.
    """
    if _COMMIT.fullmatch(ref):
        return ref
    target, protocol = address(url)
    names = ("HEAD",) if ref == "HEAD" else (ref, f"{ref}^{{}}")
    answer = run(
        ("ls-remote", "--", target, *names),
        folder=tempfile.gettempdir(),
        where=without_secrets(url),
        protocols=protocol,
    )
    found: dict[str, str] = {}
    for line in answer.decode("utf-8", "replace").splitlines():
        commit, _, name = line.partition("\t")
        found[name] = commit
    wanted = (ref, f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}")
    return next((found[name] for name in wanted if name in found), None)


def with_clone(url: str, ref: str, cache: str, use: Callable[[str, str], T]) -> T:
    """Bring the clone of ``url`` up to date and return ``use(folder of the clone, commit)``.

    ``cache`` is the folder that holds clones. While ``use`` runs, no other process changes it.

    Raises:
        UsageError: the address is refused, or the remote has no such ref.
        UnreadableError: the remote does not answer, or git cannot read what it gave.
        LockedError: another process has worked on the clone for five minutes.
    """
    target, protocol = address(url)
    place = Path(cache) / _key(target)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_suffix(".lock")):
        known = place.is_dir()
        try:
            return _fetch_and_use(target, protocol, ref, place, use)
        except UnreadableError:
            # A clone that was there may be damaged; a remote that is away will say so again.
            if not known or not _answers(target, protocol):
                raise
            shutil.rmtree(place, ignore_errors=True)
            return _fetch_and_use(target, protocol, ref, place, use)


def _fetch_and_use(
    target: str, protocol: str, ref: str, place: Path, use: Callable[[str, str], T]
) -> T:
    of_head = _HEAD.fullmatch(ref) is not None
    refspecs = (_HEAD_REFSPEC, *_REFSPECS) if of_head else _REFSPECS
    if place.is_dir():
        _fetch(target, protocol, place, refspecs)
    else:
        _create(target, protocol, place, refspecs)
    where = without_secrets(target)
    name = REMOTE_HEAD + ref.removeprefix("HEAD") if of_head else ref
    if _COMMIT.fullmatch(ref):
        _fetch_commit(target, protocol, ref, place)
    return use(str(place), commit_of(str(place), name, where))


def _create(target: str, protocol: str, place: Path, refspecs: tuple[str, ...]) -> None:
    """Make the clone beside its place and move it there whole."""
    with tempfile.TemporaryDirectory(prefix=f".{place.stem}-", dir=place.parent) as beside:
        fresh = Path(beside) / "clone"
        arguments = ("init", "--quiet", "--bare", "--template=", str(fresh))
        run(arguments, folder=beside, where=without_secrets(target))
        _fetch(target, protocol, fresh, refspecs)
        fresh.rename(place)


def _fetch(target: str, protocol: str, place: Path, refspecs: tuple[str, ...]) -> None:
    arguments = ("fetch", "--quiet", "--prune", "--no-tags", "--no-recurse-submodules", "--force")
    run(
        (*arguments, "--no-write-fetch-head", "--", target, *refspecs),
        folder=str(place),
        where=without_secrets(target),
        timeout_s=NETWORK_TIMEOUT_S,
        protocols=protocol,
    )


def _fetch_commit(target: str, protocol: str, commit: str, place: Path) -> None:
    """Fetch a commit that no branch or tag leads to any more, if the remote gives it."""
    with suppress(GitFailedError):
        run(("cat-file", "-e", f"{commit}^{{commit}}"), folder=str(place), where=target)
        return
    with suppress(GitFailedError):
        _fetch(target, protocol, place, (f"+{commit}:refs/reconciler/{commit}",))


def _answers(target: str, protocol: str) -> bool:
    arguments = ("ls-remote", "--quiet", "--", target, "HEAD")
    folder = tempfile.gettempdir()
    try:
        run(arguments, folder=folder, where=target, timeout_s=60.0, protocols=protocol)
    except UnreadableError:
        return False
    return True


def _key(target: str) -> str:
    """Return the name of a clone's folder; the same whatever credentials the address bears."""
    bare = re.sub(r"(?<=://)[^/@]*@", "", target)
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(bare).name.removesuffix(".git"))[:40]
    return f"{stem.strip('-') or 'fleet'}-{hashlib.sha256(bare.encode()).hexdigest()[:12]}.git"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a clone; the system gives it back when a process dies."""
    import fcntl

    with path.open("w") as file:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    message = "another process has been fetching this repository for minutes"
                    raise LockedError(message, where=os.fspath(path)) from error
                time.sleep(_LOCK_LOOK_S)
        yield
