"""Reads the snapshot that ``--snapshot`` names: a file, stdin, S3, HTTPS or a commit of git.

Only the command line names it; no file of a repository does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.cli.shared.sources import BYTES_MAX, clones, read_bytes

if TYPE_CHECKING:
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.observed.snapshot import Snapshot

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FORMS: Final = "pass a file, -, s3://BUCKET/KEY, https://HOST/PATH or git:REF:PATH"


class NamedContent(NamedTuple):
    """What a snapshot contains, and its name in messages, without secrets."""

    content: bytes
    name: str


def read_named(place: str, request: FleetRequest) -> Snapshot:
    """Return the snapshot at a place.

    Raises:
        UsageError: the place has a form that is not read.
        UnreadableError: it cannot be read, or contains no snapshot.
    """
    from reconciler.observed.snapshot import read_snapshot

    found = read_content(place, request)
    return read_snapshot(found.content, found.name)


def read_content(place: str, request: FleetRequest) -> NamedContent:
    """Return the bytes at a place, and its name in messages.

    Raises:
        UsageError: the place has a form that is not read.
        UnreadableError: it cannot be read.
    """
    if place.startswith("git:"):
        return NamedContent(_of_git(place, request), place)
    scheme = _SCHEME.match(place)
    if scheme is None:
        return NamedContent(read_bytes(place), "stdin" if place == "-" else place)
    match scheme[1]:
        case "s3":
            return NamedContent(_of_s3(place), place)
        case "https":
            from reconciler.adapters.download.https import download, shown

            return NamedContent(download(place, BYTES_MAX), shown(place))
    from reconciler.model.errors import UsageError

    what = f"snapshots are not read from {scheme[1][:20]}://"
    raise UsageError(what, where="--snapshot", remedy=_FORMS)


def _of_s3(place: str) -> bytes:
    """Return an object of S3, with the identity of the environment.

    Neither role nor endpoint of a fleet is used: its settings come partly from the repository.
    """
    from reconciler.adapters.aws.objects import read_object
    from reconciler.cli.wiring.account import connections
    from reconciler.model.settings import Settings

    return read_object(connections().of(Settings(region="")), place, BYTES_MAX)


def _of_git(place: str, request: FleetRequest) -> bytes:
    from reconciler.adapters.git.blob import read_blob, read_remote_blob
    from reconciler.model.errors import UsageError

    ref, _, path = place.removeprefix("git:").partition(":")
    if not ref or not path or path.startswith("/") or ".." in path.split("/"):
        raise UsageError("not a file in git", where=place, remedy="use git:REF:PATH")
    if request.repo is not None:
        return read_remote_blob(request.repo, clones(request.state), ref, path, BYTES_MAX)
    return read_blob(request.path or ".", ref, path, BYTES_MAX)
