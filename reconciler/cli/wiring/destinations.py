"""Writes a snapshot to where ``--out`` names: a file, stdout, S3, or a branch of a repository.

Only the command line names it; no file of a repository does.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from reconciler.cli.shared.request import FleetRequest

AUTHOR: Final = "reconciler <reconciler@noreply.invalid>"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(://|::)")
_FORMS: Final = "pass a file, -, s3://BUCKET/KEY or git:BRANCH:PATH"


@dataclass(frozen=True, slots=True)
class Destination:
    """A place that was checked; ``write`` writes all of the content or nothing."""

    name: str
    write: Callable[[bytes], None]


def destination_of(
    place: str | None, request: FleetRequest, *, remote: str | None, author: str | None
) -> Destination:
    """Return the destination that ``--out`` names, before anything is read or written.

    Raises:
        UsageError: the place has a form that is not written, or an option does not fit it.
    """
    from reconciler.model.errors import UsageError

    scheme = None if place is None else _SCHEME.match(place)
    if place is not None and scheme is None and place.startswith("git:"):
        return _git(place, request, remote, author or AUTHOR)
    for flag, value in (("--remote", remote), ("--author", author)):
        if value is not None:
            what = f"{flag} is only for a branch of git"
            raise UsageError(what, where=flag, remedy="use it with --out git:BRANCH:PATH")
    if place is None or place == "-":
        return Destination("stdout", _print)
    if scheme is None:
        return Destination(place, lambda content: _save(content, place))
    if scheme[0] == "s3://":
        return _s3(place)
    what = f"snapshots are not written to {scheme[1][:20]}{scheme[2]}"
    raise UsageError(what, where="--out", remedy=_FORMS)


def _print(content: bytes) -> None:
    sys.stdout.write(content.decode())


def _s3(place: str) -> Destination:
    """Return an object of S3, written with the identity of the environment.

    Neither role nor endpoint of a fleet is used: its settings come partly from the repository.
    """
    from reconciler.adapters.aws.objects import location_of, write_object

    def write(content: bytes) -> None:
        from reconciler.cli.wiring.account import connections
        from reconciler.model.settings import Settings

        write_object(connections().of(Settings(region="")), place, content)

    location_of(place)
    return Destination(place, write)


def _git(place: str, request: FleetRequest, remote: str | None, author: str) -> Destination:
    from reconciler.adapters.git.publishing import Publication, check, publish, remote_address
    from reconciler.model.errors import UsageError

    branch, _, path = place.removeprefix("git:").partition(":")
    if not branch or not path:
        raise UsageError("not a file of a branch", where=place, remedy="use git:BRANCH:PATH")
    check(branch, path, author, place)
    if request.repo is not None and remote is not None:
        what = "--repo and --remote cannot be used together"
        raise UsageError(what, where="--remote", remedy="leave one of them out")
    url = request.repo or remote_address(request.path or ".", remote or "origin")

    def write(content: bytes) -> None:
        message = f"Update the snapshot {path}"
        publish(url, Publication(branch, path, content, author, message))

    return Destination(place, write)


def _save(content: bytes, path: str) -> None:
    """Write the file whole or not at all; a snapshot may show secrets in its environment."""
    from reconciler.model.errors import UnreadableError

    draft = f"{path}.{os.getpid()}.tmp"
    try:
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.replace(draft, path)
    except OSError as error:
        why = f"cannot be written: {error.strerror}"
        raise UnreadableError(
            why, where=path, remedy="pass a file in an existing folder"
        ) from error
