"""``reconciler snapshot``: capture the objects that ``plan --snapshot`` reads, from a live cluster.

For a named or recorded fleet, it captures the inputs of a plan: the cluster as the engine observes
it, the fleet's NodeClaims, and its other records. Otherwise it captures the objects of the cluster
that the kubeconfig names, including those of Karpenter. It only reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from reconciler.assembly.inputs.request import FleetRequest
from reconciler.cli.output.progressline import show_progress
from reconciler.cli.parser import inputs
from reconciler.exitcode import DONE
from reconciler.options import add_options, option, part, switch


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """The objects to capture, and the destination.

    ``names_fleet`` is whether an argument names a fleet.
    """

    fleet: FleetRequest = inputs.of_fleet(
        [name for name in inputs.ACTING if name != "allow_removal"]
    )
    names_fleet: bool
    out: str | None = option(
        "--out",
        "PLACE",
        "write to a file, s3://BUCKET/KEY, or git:BRANCH:PATH, which is committed and pushed "
        "(default: stdout)",
    )
    remote: str | None = option(
        "--remote", "NAME", "remote to push to, without --repo (default: origin)"
    )
    author: str | None = option("--author", "AUTHOR", "author of the commit, as in `NAME <EMAIL>`")
    anonymize: bool = switch(
        "--anonymize",
        "replace names by hashes, with the key in $RECONCILER_ANONYMIZE_KEY (default: a random "
        "key)",
    )
    no_records: bool = switch(
        "--no-records", "capture the objects of the cluster without the records of the fleet"
    )
    kubeconfig_context: str | None = part(inputs.add_context)
    kubectl: str | None = option(
        "--kubectl",
        "PROGRAM",
        "use this kubectl instead of the API, without the records of a fleet",
    )
    output: str = option(
        "--output",
        "FORMAT",
        "output format: json, yaml (default: json)",
        short="-o",
        choices=("json", "yaml"),
        default="json",
    )


add_arguments = partial(add_options, SnapshotRequest)


def request_of(args: argparse.Namespace) -> SnapshotRequest:
    """Return the request in the arguments."""
    named = (args.path, args.repo, args.below, args.ref, args.state)
    names_fleet = any(value is not None for value in named)
    return inputs.request_from(SnapshotRequest, args, names_fleet=names_fleet)


def run(request: SnapshotRequest) -> int:
    """Write one List of every object that a plan reads; all of them or nothing."""
    from reconciler.assembly.snapshots import destination_of

    destination = destination_of(
        request.out, request.fleet, remote=request.remote, author=request.author
    )
    with show_progress("Reading the objects of the cluster"):
        items: Sequence[object] = capture_objects(request)
        if request.anonymize:
            from reconciler.assembly.capturing import anonymize_objects

            items = anonymize_objects(items, request.fleet, has_fleet=_captures_fleet(request))
    content = _encode_list(items, request.output)
    destination.write(content)
    if destination.name != "stdout":
        print(f"{destination.name}: {len(items)} objects", file=sys.stderr)
    return DONE


def capture_objects(request: SnapshotRequest) -> Sequence[object]:
    """Return the objects of the fleet or cluster that the request names.

    Raises:
        ReconcilerError: something could not be read; an incomplete snapshot is never written.
    """
    from reconciler.desired.migration.captured import without_environments

    if request.kubectl is not None:
        from reconciler.adapters.kubernetes.kubectl import read_cluster_objects

        return [
            without_environments(item)
            for item in read_cluster_objects(request.kubectl, request.kubeconfig_context)
        ]
    from reconciler.assembly import capturing

    if not request.no_records and _captures_fleet(request):
        return capturing.objects_of_fleet(request.fleet)
    return capturing.objects_of_cluster(request.fleet)


def _captures_fleet(request: SnapshotRequest) -> bool:
    """Return whether a fleet is captured: one is named, or one is recorded for this folder.

    Without recorded state the nodes of the cluster belong to something else, such as Karpenter
    before they are adopted. Then the objects of the cluster are captured.
    """
    if request.names_fleet:
        return True
    from reconciler.assembly.inputs.records import is_fleet_recorded

    return is_fleet_recorded(request.fleet)


def _encode_list(items: Iterable[object], output: str) -> bytes:
    import msgspec

    whole = {"apiVersion": "v1", "kind": "List", "items": list(items)}
    content = msgspec.json.encode(whole) + b"\n"
    if output == "json":
        return content
    from reconciler.render.listing import json_to_yaml

    return json_to_yaml(content.decode()).encode()
