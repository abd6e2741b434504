"""The plugin DynamicResources of kube-scheduler: whether a node has devices for a pod's claims.

Which devices a claim gets is searched by the same code as for new nodes: it follows that of
kube-scheduler, and has tests of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.binding.host import HostNode
from reconciler.placement.devices.hosts import NodeDevices, count_allocations, missing_claims
from reconciler.placement.devices.networkuse import ClusterDevices, NetworkUse


class DeviceClaims:
    """The claims on devices of a cluster, and the devices that its nodes publish."""

    def __init__(self, cluster: ClusterState) -> None:
        self._own = ClusterDevices(cluster, lambda _: ())
        self._reader, self._network = self._own.reader, self._own.network
        self._cluster = cluster
        self._known: dict[int, tuple[int, NodeDevices]] = {}
        self._used: tuple[tuple[tuple[int, int], ...], NetworkUse] | None = None

    def fits(self, pod: Pod, host: HostNode, others: Iterable[HostNode]) -> bool:
        """Return whether a node has, or reaches, free devices for the claims of a pod.

        A claim that pods of another node use is available only if both reach its devices.
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
        hosts = list(others)
        use = self._network_use(hosts) if needs.uses_network else None
        shared = frozenset(needs.shared).difference(use.places if use is not None else ())
        if shared and any(self._uses(other, shared) for other in hosts if other is not host):
            return False
        node = _state_node(host)
        devices = self._devices(host).of(node)
        if use is not None:
            return use.count(devices, host.labels, node.node_name, needs, 1) == 1
        claims = missing_claims(needs.claims, devices.keys)
        return count_allocations(devices.inventory, devices.state, claims, 1) == 1

    def _devices(self, host: HostNode) -> NodeDevices:
        """Return the devices of a node with the pods that it has now."""
        known = self._known.get(host.number)
        if known is None or known[0] != host.version:
            devices = NodeDevices(self._cluster, self._reader, lambda _: (), self._network)
            known = self._known[host.number] = (host.version, devices)
        return known[1]

    def _network_use(self, hosts: Sequence[HostNode]) -> NetworkUse | None:
        """Return what the pods of all nodes take now of the devices that several nodes reach."""
        if self._network is None:
            return None
        key = tuple((host.number, host.version) for host in hosts)
        if self._used is None or self._used[0] != key:
            cluster = replace(self._cluster, nodes=tuple(map(_state_node, hosts)))
            found = ClusterDevices(cluster, lambda _: ())
            use = found.use((), ())
            assert use is not None, "the slices are the same"
            for host in hosts:
                if (taken := found.nodes.recorded(host.node.name)) is not None:
                    self._devices(host).replace(_state_node(host), taken)
            self._used = key, use
        return self._used[1]

    def _uses(self, host: HostNode, keys: frozenset[str]) -> bool:
        pods = (pod for pod, _ in host.pods.values() if pod.spec.resource_claims)
        return any(c.key in keys for pod in pods for c in self._reader.unallocated(pod))


def _state_node(host: HostNode) -> StateNode:
    return StateNode(host.node, None, tuple(known for known, _ in host.pods.values()))
