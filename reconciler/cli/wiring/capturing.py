"""Captures a fleet, or a cluster without one, as the objects of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from reconciler.model.errors import UsageError

if TYPE_CHECKING:
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.observed.snapshot import Snapshot

_VERSIONS: Final = {
    "NodeClaim": "karpenter.sh/v1",
    "EC2NodeClass": "karpenter.k8s.aws/v1",
}


def objects_of_fleet(request: FleetRequest) -> list[Any]:
    """Return what a plan of a fleet is made from: its cluster, its NodeClaims, its records.

    Of each object it is what decisions read, and so nothing of an environment or a mounted file.

    Raises:
        ReconcilerError: EC2, the cluster or the state could not be read.
    """
    from dataclasses import replace

    from reconciler.cli.wiring.assembly import look
    from reconciler.engine.records import records_of

    found = look(request)
    if found.settings.cluster == "none":
        raise _no_cluster()
    seen, desired, world = found.seen, found.desired, found.world
    facts = found.inputs()
    snapshot = replace(seen.snapshot, node_claims=seen.before.node_claims)
    records = records_of(
        world.store, world.journal, seen, found.settings.fleet, found.serial, facts.memory
    )
    classes = [_found(c) for c in desired.classes.values()]
    return [*_objects(snapshot), *classes, records]


def _found(node_class: EC2NodeClass) -> dict[str, Any]:
    """Return what was found for a node class; what it selects by is in git."""
    import msgspec

    name, status = node_class.name, msgspec.to_builtins(node_class.status)
    version = _VERSIONS["EC2NodeClass"]
    return {
        "apiVersion": version,
        "kind": "EC2NodeClass",
        "metadata": {"name": name},
        "status": status,
    }


def _no_cluster() -> UsageError:
    return UsageError(
        "no cluster is configured",
        where="cluster",
        remedy="use --set cluster=kubeconfig, and --context to choose one",
    )


def _objects(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield the objects of a snapshot as the API spells them."""
    import msgspec

    from reconciler.adapters.kubernetes.kinds import OBSERVED

    versions = {kind.kind: kind.api_version for kind in OBSERVED} | _VERSIONS
    for kind, item in snapshot.objects():
        yield {"apiVersion": versions[kind], "kind": kind, **msgspec.to_builtins(item)}


def objects_of_snapshot(snapshot: Snapshot) -> Iterator[object]:
    """Yield everything that a snapshot carries, without the fields that no decision reads."""
    import msgspec

    from reconciler.engine.records import API_VERSION
    from reconciler.observed.snapshot import CAPTURE_KIND

    yield from _objects(snapshot)
    yield from snapshot.live
    yield from snapshot.other_classes
    if snapshot.records is not None:
        yield msgspec.json.decode(snapshot.records.content)
    if snapshot.captured_at is not None:
        at = snapshot.captured_at
        yield {"apiVersion": API_VERSION, "kind": CAPTURE_KIND, "at": at}


def objects_of_cluster(request: FleetRequest) -> list[Any]:
    """Return the objects of the cluster that the kubeconfig names, Karpenter's among them.

    Kinds that the cluster does not know are left out.

    Raises:
        ClusterError: the cluster could not be read.
    """
    from reconciler.adapters.clock import SystemClock
    from reconciler.adapters.kubernetes.api import listed
    from reconciler.adapters.kubernetes.kinds import OBSERVED, OF_KARPENTER
    from reconciler.cli.shared import records
    from reconciler.cli.wiring.cluster import api_of
    from reconciler.engine.records import API_VERSION
    from reconciler.observed.snapshot import CAPTURE_KIND

    resolved = records.settings_of(request)
    api = api_of(resolved.settings, SystemClock())
    at = (request.now or SystemClock().now()).astimezone(UTC)
    capture = {"apiVersion": API_VERSION, "kind": CAPTURE_KIND, "at": at}
    objects = [
        _named(item, kind.kind, kind.api_version)
        for kind in (*OBSERVED, *OF_KARPENTER)
        for item in listed(api, kind)
    ]
    return [*objects, capture]


def _named(item: Any, kind: str, version: str) -> dict[str, Any]:
    """Return an object with its kind, which a list of the API does not repeat."""
    import msgspec

    data = msgspec.json.decode(item)
    return {"apiVersion": version, "kind": kind, **data}
