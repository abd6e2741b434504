"""``reconciler snapshot``: capture what ``plan --snapshot`` reads from a live cluster.

Of a fleet that is named or recorded it captures what a plan of that fleet is made from: the
cluster as the engine observes it, our NodeClaims, and what else is recorded. Otherwise it captures
the objects of the cluster that the kubeconfig names, those of Karpenter among them. It only reads.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from reconciler.cli.shared.request import FleetRequest


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """What is captured, and where it is written.

    ``names_fleet`` is whether an argument names a fleet. ``kubectl`` is a program to read the
    cluster with instead of the API, ``context`` one of the kubeconfig's. ``file`` is None for
    stdout.
    """

    fleet: FleetRequest
    names_fleet: bool
    kubectl: str | None
    context: str | None
    file: str | None
    output: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the snapshot goes, and which fleet or cluster it is of."""
    inputs.add_path(parser)
    add = parser.add_argument
    add("--out", metavar="FILE", help="write to this file (default: stdout)")
    add("--context", metavar="NAME", help="context of the kubeconfig to use")
    add(
        "--kubectl", metavar="PROGRAM",
        help="use this kubectl instead of the API; records of a fleet are then left out",
    )  # fmt: skip
    add(
        "-o", "--output", choices=("json", "yaml"), default="json", metavar="FORMAT",
        help="output format: json, yaml (default: json)",
    )  # fmt: skip
    inputs.add_flags(parser, [name for name in inputs.ACTING if name != "allow_removal"])


def request_of(args: argparse.Namespace) -> SnapshotRequest:
    """Return what the arguments ask for."""
    fleet = inputs.fleet_request(args, args.path)
    if args.context:
        settings = (*fleet.settings, f"kubernetes.context={args.context}")
        fleet = replace(fleet, settings=settings)
    named = (args.path, args.repo, args.below, args.ref, args.state)
    names_fleet = any(value is not None for value in named)
    return SnapshotRequest(fleet, names_fleet, args.kubectl, args.context, args.out, args.output)


def run(request: SnapshotRequest) -> int:
    """Write one List of every object that a plan reads; all of them or nothing."""
    from reconciler.cli.output.progressline import progress
    from reconciler.cli.shared.exitcode import DONE

    with progress("Reading the objects of the cluster"):
        items = captured(request)
    content = _encoded(items, request.output)
    if request.file is None:
        sys.stdout.write(content.decode())
        return DONE
    _save(content, request.file)
    print(f"{request.file}: {len(items)} objects", file=sys.stderr)
    return DONE


def captured(request: SnapshotRequest) -> Sequence[object]:
    """Return the objects of the fleet or cluster that the request names.

    Raises:
        ReconcilerError: something could not be read; a part is never taken for the whole.
    """
    if request.kubectl is not None:
        from reconciler.adapters.kubernetes.kubectl import objects_of_cluster

        return objects_of_cluster(request.kubectl, request.context)
    from reconciler.cli.wiring import capturing

    if _is_of_fleet(request):
        return capturing.objects_of_fleet(request.fleet)
    return capturing.objects_of_cluster(request.fleet)


def _is_of_fleet(request: SnapshotRequest) -> bool:
    """Return whether a fleet is captured: one is named, or one is recorded for this folder.

    Without recorded state the nodes of the cluster belong to something else, such as Karpenter
    before they are adopted. Then the objects of the cluster are captured.
    """
    if request.names_fleet:
        return True
    from reconciler.cli.shared.records import is_recorded

    return is_recorded(request.fleet)


def _encoded(items: Iterable[object], output: str) -> bytes:
    import msgspec

    whole = {"apiVersion": "v1", "kind": "List", "items": list(items)}
    content = msgspec.json.encode(whole) + b"\n"
    if output == "json":
        return content
    from reconciler.cli.output.listing import yaml_of_json

    return yaml_of_json(content.decode()).encode()


def _save(content: bytes, path: str) -> None:
    """Write the file whole or not at all; a snapshot may show secrets in its environment."""
    from reconciler.model.errors import UnreadableError

    draft = f"{path}.{os.getpid()}.tmp"
    try:
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.replace(draft, path)  # noqa: PTH105
    except OSError as error:
        why = f"cannot be written: {error.strerror}"
        raise UnreadableError(
            why, where=path, remedy="pass a file in an existing folder"
        ) from error
