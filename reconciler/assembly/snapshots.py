"""Snapshots read and written: a file, a stream, S3, HTTPS, or a branch of a repository."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.assembly.inputs.files import BYTES_MAX, clones_folder, read_document
from reconciler.assembly.inputs.sources import without_errors
from reconciler.desired.workloads.podsets import MAXIMUM, ReplicaChoice
from reconciler.desired.workloads.remarks import maximum_findings
from reconciler.model.errors import UsageError
from reconciler.model.settings import Settings
from reconciler.observed.snapshot import read_snapshot, snapshot_of_workloads
from reconciler.placement.pods.replicas import rescaled_snapshot

if TYPE_CHECKING:
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.desired.fleet import Fleet
    from reconciler.desired.workloads.scaled import ScaledWorkload
    from reconciler.model.diagnostics import Diagnostic
    from reconciler.observed.snapshot import Snapshot

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FORMS: Final = "pass a file, -, s3://BUCKET/KEY, https://HOST/PATH or git:REF:PATH"

GIT_BYTES_MAX: Final = 256 * 2**20
"""A snapshot in git, in bytes: git unpacks an object in one piece of memory."""
AUTHOR: Final = "reconciler <reconciler@noreply.invalid>"
_DESTINATION_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(://|::)")
_DESTINATION_FORMS: Final = "pass a file, -, s3://BUCKET/KEY or git:BRANCH:PATH"


class NamedContent(NamedTuple):
    """What a snapshot contains, and its name in messages, without secrets."""

    content: bytes
    name: str


def read_snapshot_at(place: str, request: FleetRequest) -> Snapshot:
    """Return the snapshot at a place.

    Raises:
        UsageError: the place has a form that is not read.
        UnreadableError: it cannot be read, or contains no snapshot.
    """
    found = read_content(place, request)
    return read_snapshot(found.content, found.name)


def read_content(place: str, request: FleetRequest) -> NamedContent:
    """Return the bytes at a place, and its name in messages.

    Raises:
        UsageError: the place has a form that is not read.
        UnreadableError: it cannot be read.
    """
    if place.startswith("git:"):
        return NamedContent(_read_git_file(place, request), place)
    scheme = _SCHEME.match(place)
    if scheme is None:
        return NamedContent(read_document(place), "stdin" if place == "-" else place)
    match scheme[1]:
        case "s3":
            return NamedContent(_read_s3_object(place), place)
        case "https":
            from reconciler.adapters.http import redact_url
            from reconciler.adapters.https import download

            return NamedContent(download(place, BYTES_MAX), redact_url(place))
    what = f"snapshots are not read from {scheme[1][:20]}://"
    raise UsageError(what, where="--snapshot", remedy=_FORMS)


def _read_s3_object(place: str) -> bytes:
    """Return an object of S3, with the identity of the environment.

    Neither role nor endpoint of a fleet is used: its settings come partly from the repository.
    """
    from reconciler.adapters.aws.objects import read_object
    from reconciler.assembly.account import connections

    return read_object(connections().connector(Settings(region="")), place, BYTES_MAX)


def _read_git_file(place: str, request: FleetRequest) -> bytes:
    from reconciler.adapters.git.source import read_blob, read_remote_blob

    ref, _, path = place.removeprefix("git:").partition(":")
    if not ref or not path or path.startswith("/") or ".." in path.split("/"):
        raise UsageError("not a file in git", where=place, remedy="use git:REF:PATH")
    if request.repo is not None:
        return read_remote_blob(
            request.repo, clones_folder(request.state), ref, path, GIT_BYTES_MAX
        )
    return read_blob(request.path or ".", ref, path, GIT_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Destination:
    """A place that was checked; ``write`` writes all of the content or nothing."""

    name: str
    write: Callable[[bytes], None]


def _expect_no_options_of_git(options: Mapping[str, str | None]) -> None:
    for flag, value in options.items():
        if value is not None:
            what = f"{flag} is only for a branch of git"
            raise UsageError(what, where=flag, remedy="use it with --out git:BRANCH:PATH")


def destination_of(
    place: str | None, request: FleetRequest, *, remote: str | None, author: str | None
) -> Destination:
    """Return the destination that ``--out`` names, before anything is read or written.

    Raises:
        UsageError: the place has a form that is not written, or an option does not fit it.
    """
    scheme = None if place is None else _DESTINATION_SCHEME.match(place)
    if place is not None and scheme is None and place.startswith("git:"):
        return _git_destination(place, request, remote, author or AUTHOR)
    _expect_no_options_of_git({"--remote": remote, "--author": author})
    if place is None or place == "-":
        return Destination("stdout", _print)
    if scheme is None:
        return Destination(place, lambda content: _write_file(content, place))
    if scheme[0] == "s3://":
        return _s3_destination(place)
    what = f"snapshots are not written to {scheme[1][:20]}{scheme[2]}"
    raise UsageError(what, where="--out", remedy=_DESTINATION_FORMS)


def _print(content: bytes) -> None:
    sys.stdout.write(content.decode())


def _s3_destination(place: str) -> Destination:
    """Return an object of S3, written with the identity of the environment.

    Neither role nor endpoint of a fleet is used: its settings come partly from the repository.
    """
    from reconciler.adapters.aws.objects import location_of, write_object

    def write(content: bytes) -> None:
        from reconciler.assembly.account import connections

        write_object(connections().connector(Settings(region="")), place, content)

    location_of(place)
    return Destination(place, write)


def _git_destination(
    place: str, request: FleetRequest, remote: str | None, author: str
) -> Destination:
    from reconciler.adapters.git.publishing import (
        Publication,
        check_publication,
        publish,
        remote_address,
    )

    branch, _, path = place.removeprefix("git:").partition(":")
    if not branch or not path:
        raise UsageError("not a file of a branch", where=place, remedy="use git:BRANCH:PATH")
    check_publication(branch, path, author, place)
    if request.repo is not None and remote is not None:
        what = "--repo and --remote cannot be used together"
        raise UsageError(what, where="--remote", remedy="leave one of them out")
    url = request.repo or remote_address(request.path or ".", remote or "origin")

    def write(content: bytes) -> None:
        message = f"Update the snapshot {path}"
        publish(url, Publication(branch, path, content, author, message))

    return Destination(place, write)


def _write_file(content: bytes, path: str) -> None:
    """Write the file completely or not at all; a snapshot may contain secrets of environments."""
    from reconciler.adapters.writing import PRIVATE, write_file

    write_file(path, content, mode=PRIVATE)


class ObservedCluster(NamedTuple):
    """The objects of a cluster, and the findings about them.

    ``scaled`` are the workloads with a range of replicas, and ``maximum`` is the cluster with all
    of them at their maximum, None without any. ``captured`` is a snapshot as it was captured, with
    the replicas of that time; None without a snapshot.
    """

    snapshot: Snapshot
    findings: tuple[Diagnostic, ...]
    scaled: tuple[ScaledWorkload, ...] = ()
    maximum: Snapshot | None = None
    captured: Snapshot | None = None


def read_captured(request: FleetRequest) -> Snapshot | None:
    """Return the cluster of ``--snapshot``, None without one."""
    return None if request.snapshot is None else read_snapshot_at(request.snapshot, request)


def read_cluster(
    request: FleetRequest, fleet: Fleet, now: datetime, captured: Snapshot | None = None
) -> ObservedCluster:
    """Return the captured cluster.

    Without one, it is an empty cluster that is to run the fleet's own workloads.
    """
    if captured is not None:
        return scaled_cluster(captured, request, fleet, now)
    from reconciler.desired.workloads.pods import workloads_of

    made, findings = workloads_of(fleet, now=now, choice=ReplicaChoice(request.replicas_percent))
    snapshot = snapshot_of_workloads(made)
    if not made.scaled:
        return ObservedCluster(snapshot, without_errors(findings))
    most, more = workloads_of(fleet, now=now, choice=MAXIMUM)
    found = without_errors((*findings, *maximum_findings(findings, more)))
    return ObservedCluster(snapshot, found, made.scaled, snapshot_of_workloads(most))


def scaled_cluster(
    captured: Snapshot, request: FleetRequest, fleet: Fleet, now: datetime
) -> ObservedCluster:
    """Return a captured cluster with the replicas that the autoscalers of a fleet allow."""
    choice = ReplicaChoice(request.replicas_percent)
    snapshot, scaled = rescaled_snapshot(captured, fleet.workloads, choice, now)
    most = rescaled_snapshot(captured, fleet.workloads, MAXIMUM, now)[0] if scaled else None
    return ObservedCluster(snapshot, snapshot.findings, scaled, most, captured)
