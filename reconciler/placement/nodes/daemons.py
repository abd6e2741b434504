"""Compute the resources that DaemonSets use on a node before any other pod.

Which daemons run depends on the node, so the types of a NodePool are grouped by their daemons. A
pod must fit besides the daemons of the type's group (Karpenter ``scheduler.go``,
``DaemonOverheadGroup``). The alternatives of a daemon's required affinity are tried for each type;
Karpenter drops an alternative for good once a single type does not match it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from reconciler.catalog.table import TypeTable
from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.kubernetes.cluster import DaemonSet
from reconciler.model.kubernetes.pod import Affinity, HostPort, Pod
from reconciler.model.kubernetes.taint import Taint, Toleration, untolerated_taints
from reconciler.model.resources import Resources, add_resources, minimum_resources
from reconciler.observed.fingerprint import Pods
from reconciler.observed.state import ClusterState
from reconciler.placement.nodes.ports import UsedPorts
from reconciler.placement.pods.relaxation import PREFER_NO_SCHEDULE
from reconciler.placement.pods.shape import queue_position
from reconciler.placement.topology.rules import node_terms


class Daemon(msgspec.Struct, frozen=True):
    """The pod that a DaemonSet would create on a new node; ``terms`` are its alternatives."""

    requests: Resources
    tolerations: tuple[Toleration, ...]
    terms: tuple[Requirements, ...]
    ports: tuple[HostPort, ...]


class DaemonGroup(msgspec.Struct, frozen=True):
    """Types on which the same daemons run, and the sum of the daemons' requests."""

    mask: int
    requests: Resources
    ports: UsedPorts


def daemons(cluster: ClusterState, *, ignores_claims: bool = True) -> tuple[Daemon, ...]:
    """Return a daemon for each DaemonSet, taken from its newest pod, or else from its template.

    Required affinity always comes from the template, because the pod's affinity names its own node.
    Daemons that request devices by ResourceClaim do not count if the fleet ``ignores_claims``.
    """
    if not cluster.daemon_sets:
        return ()
    running: dict[tuple[str, str], list[Pod]] = {}
    for pod in Pods.from_tuple(cluster.pods).of_daemons:
        for owner in pod.metadata.owner_references:
            running.setdefault((pod.namespace, owner.name), []).append(pod)
    newest = {key: max(pods, key=queue_position) for key, pods in running.items()}
    found = ((d, newest.get(_key(d), d.pod())) for d in cluster.daemon_sets)
    return tuple(
        _daemon(d, pod) for d, pod in found if not (ignores_claims and pod.spec.claims_devices)
    )


def _daemon(daemon_set: DaemonSet, pod: Pod) -> Daemon:
    template, spec = daemon_set.spec.template.spec, pod.spec
    own = template.affinity.node_affinity if template.affinity is not None else None
    if own is not None and own.required is not None:
        spec = replace(spec, affinity=Affinity(node_affinity=own))
    try:
        terms = node_terms(spec)
    except ValueError:  # see ``unreadable_daemon_sets``
        terms = (Requirements(),)
    try:
        requests = pod.requests()
    except ValueError:
        requests = {}
    return Daemon(requests, spec.tolerations, terms, pod.host_ports())


def _key(daemon_set: DaemonSet) -> tuple[str, str]:
    return (daemon_set.metadata.namespace or "default", daemon_set.metadata.name)


def unreadable_daemon_sets(cluster: ClusterState) -> tuple[tuple[str, str], ...]:
    """Return each DaemonSet that cannot be parsed (``namespace/name``) and the reason.

    A DaemonSet with an invalid affinity counts on every node whose taints it tolerates. Only
    invalid request quantities count as zero.
    """
    found = []
    for daemon_set in cluster.daemon_sets:
        pod = daemon_set.pod()
        try:
            node_terms(pod.spec)
            pod.requests()
        except ValueError as error:
            found.append(("/".join(_key(daemon_set)), str(error)))
    return tuple(sorted(found))


def group_by_daemons(
    known: Iterable[Daemon],
    table: TypeTable,
    types: int,
    requirements: Requirements,
    taints: tuple[Taint, ...],
) -> tuple[DaemonGroup, ...]:
    """Return the types of a NodePool grouped by the daemons that run on them.

    ``requirements`` and ``taints`` are the pool's; its startup taints are ignored.
    """
    found: list[tuple[int, tuple[Daemon, ...]]] = [(types, ())]
    for daemon in known:
        mask = types & _suitable_types(daemon, table, requirements, taints)
        split: list[tuple[int, tuple[Daemon, ...]]] = []
        for members, running in found:
            if members & mask:
                split.append((members & mask, (*running, daemon)))
            if members & ~mask:
                split.append((members & ~mask, running))
        found = split
    return tuple(
        DaemonGroup(
            members,
            add_resources(*(d.requests for d in running)),
            UsedPorts(p for d in running for p in d.ports),
        )
        for members, running in found
    )


def _suitable_types(
    daemon: Daemon, table: TypeTable, requirements: Requirements, taints: tuple[Taint, ...]
) -> int:
    """Return the types of a pool on which the daemon would run."""
    if untolerated_taints(taints, (*daemon.tolerations, PREFER_NO_SCHEDULE)):
        return 0
    mask = 0
    for term in daemon.terms:
        if requirements.is_compatible(term, table.well_known):
            mask |= table.types_meeting(term)
    return mask


def minimum_requests(found: Iterable[DaemonGroup], mask: int) -> Resources:
    """Return the minimum that daemons use over all types of ``mask``."""
    return minimum_resources([g.requests for g in found if g.mask & mask])
