"""The number of nodes and pods that the files of a fleet may ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from reconciler.source.finding import Finding
from reconciler.source.objects import Entry
from reconciler.source.resource import Resource

if TYPE_CHECKING:
    from reconciler.desired.workloads.kinds import KindTable

STATIC_NODES_MAX: Final = 20_000
"""The maximum number of nodes of all static NodePools of a folder."""

Read = Sequence[tuple[Resource, Entry]]


def beyond_limits(
    node_pools: Read, workloads: Read, kinds: KindTable
) -> Iterator[tuple[Entry, Finding]]:
    """Yield the objects that ask for more than a plan can contain, probably by a typing error."""
    nodes = 0
    for resource, entry in node_pools:
        replicas = resource.data["spec"].get("replicas") or 0
        nodes += replicas
        if replicas and nodes > STATIC_NODES_MAX:
            text = f"replicas is {replicas}: the static NodePools of a folder have more than"
            message = f"{text} {STATIC_NODES_MAX} nodes in total"
            yield entry, Finding("too-many-nodes", ("spec", "replicas"), message, "lower replicas")
    if not workloads:
        return
    from reconciler.desired.workloads.shape import PODS_MAX, count_pods

    pods = 0
    for resource, entry in workloads:
        count = count_pods(resource, kinds)
        if pods + count > PODS_MAX:
            message = (
                f"{resource.kind} {resource.name} has {count} pods; with the {pods} "
                f"before it, that is more than {PODS_MAX}"
            )
            advice = "lower its replicas, or plan with --snapshot"
            yield entry, Finding("too-many-pods", (), message, advice)
        else:
            pods += count
