"""The plugin DynamicResources of kube-scheduler: whether a node has devices for a pod's claims.

Which devices a claim gets is searched by the same code as for new nodes: it follows that of
kube-scheduler, and has tests of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.binding.host import HostNode
from reconciler.placement.devices.hosts import NodeDevices, count_allocations, missing_claims
from reconciler.placement.devices.needs import ClaimReader


class DeviceClaims:
    """The claims on devices of a cluster, and the devices that its nodes publish."""

    def __init__(self, cluster: ClusterState) -> None:
        self._reader = ClaimReader(cluster)
        self._cluster = cluster
        self._known: dict[int, tuple[int, NodeDevices]] = {}

    def fits(self, pod: Pod, host: HostNode, others: Iterable[HostNode]) -> bool:
        """Return whether a node has free devices for the claims of a pod.

        A claim that pods of another node use is not available.
        """
        needs = self._reader.needs(pod)
        if needs is None:
            return True
        if needs.problem is not None:
            return False
        labels: Mapping[str, str] = host.labels
        for alternatives in needs.places:
            if not any(
                all(r.has(labels.get(r.key, "")) for r in place.values()) for place in alternatives
            ):
                return False
        shared = frozenset(needs.shared)
        if shared and any(self._uses(other, shared) for other in others if other is not host):
            return False
        node = StateNode(host.node, None, tuple(known for known, _ in host.pods.values()))
        devices = self._devices(host).of(node)
        claims = missing_claims(needs.claims, devices.keys)
        return count_allocations(devices.inventory, devices.state, claims, 1) == 1

    def _devices(self, host: HostNode) -> NodeDevices:
        """Return the devices of a node with the pods that it has now."""
        known = self._known.get(host.number)
        if known is None or known[0] != host.version:
            devices = NodeDevices(self._cluster, self._reader, lambda _: ())
            known = self._known[host.number] = (host.version, devices)
        return known[1]

    def _uses(self, host: HostNode, keys: frozenset[str]) -> bool:
        pods = (pod for pod, _ in host.pods.values() if pod.spec.resource_claims)
        return any(c.key in keys for pod in pods for c in self._reader.unallocated(pod))
