"""What the pods of one pass use of existing nodes; the nodes themselves do not change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import CPU, MEMORY, Resources
from reconciler.placement.devices.hosts import HostDevices, count_allocations, missing_claims
from reconciler.placement.devices.needs import DeviceNeeds
from reconciler.placement.devices.networkuse import NetworkUse
from reconciler.placement.nodes.existing import Nodes
from reconciler.placement.nodes.ports import UsedPorts, ports_of
from reconciler.placement.pods.shape import Shape

Attached = Callable[[Pod], Iterable[tuple[str, frozenset[str]]]]


class NodeUse:
    """The use of existing nodes in a pass: ``open`` may be tried, ``placed`` has each one's pods.

    ``guarded`` nodes accept only pods that are not bound to any node. ``attached`` has the volumes
    that a running pod has attached, by driver. ``network`` are devices that several nodes reach.
    """

    def __init__(
        self,
        nodes: Nodes,
        without: Collection[str],
        attached: Attached,
        guarded: int = 0,
        network: NetworkUse | None = None,
    ) -> None:
        self.nodes = nodes
        self.network = network
        self.open = nodes.open & ~nodes.mask_of(without)
        self.guarded = guarded
        self.cpu = list(nodes.cpu)
        self.memory = list(nodes.memory)
        self.placed: dict[int, list[Pod]] = {}
        self._attached = attached
        self._left: dict[int, Resources] = {}
        self._ports: dict[int, UsedPorts] = {}
        self._volumes: dict[int, dict[str, frozenset[str]]] = {}
        self._devices: dict[int, HostDevices] = {}

    def resources_left(self, index: int) -> Resources:
        """Return the resources that pods can still use on the node."""
        known = self._left.get(index)
        return self.nodes.rows[index].left if known is None else known

    def count_fitting(self, index: int, requests: Resources, limit: int) -> int:
        """Return how many pods with ``requests`` fit the node, at most ``limit``."""
        left = self.resources_left(index)
        for name, amount in requests.items():
            if amount > 0:
                limit = min(limit, left.get(name, 0) // amount)
        return max(limit, 0)

    def count_devices(self, index: int, needs: DeviceNeeds, most: int) -> int:
        """Return how many pods, up to ``most``, the node has free devices for."""
        host = self._host_devices(index)
        if (network := self.network_for(needs)) is not None:
            row = self.nodes.rows[index]
            return network.count(host, row.labels, row.node_name, needs, most)
        claims = missing_claims(needs.claims, host.keys)
        return count_allocations(host.inventory, host.state, claims, most)

    def network_for(self, needs: DeviceNeeds | None) -> NetworkUse | None:
        """Return the devices that several nodes reach, None if none of them suits a pod."""
        return self.network if needs is not None and needs.uses_network else None

    def keys_of_nodes(self, needs: DeviceNeeds | None) -> list[str]:
        """Return the claims that other pods may name, except those that several nodes reach."""
        places = self.network.places if self.network is not None else ()
        return [key for key in (needs.shared if needs is not None else ()) if key not in places]

    def _host_devices(self, index: int) -> HostDevices:
        known = self._devices.get(index)
        return self.nodes.host_devices(index) if known is None else known

    def ports(self, index: int) -> UsedPorts:
        """Return the host ports in use on the node."""
        known = self._ports.get(index)
        if known is None:
            known = self._ports[index] = UsedPorts(ports_of(self.nodes.rows[index].pods))
        return known

    def can_attach(self, index: int, shape: Shape) -> bool:
        """Return whether the volumes of a pod can be attached to the node as well."""
        limits = self.nodes.volume_limits(index)
        if not limits:
            return True
        attached = self._attached_volumes_on(index)
        return all(
            driver not in limits or len(attached.get(driver, frozenset()) | names) <= limits[driver]
            for driver, names in shape.volumes.attached
        )

    def _attached_volumes_on(self, index: int) -> dict[str, frozenset[str]]:
        known = self._volumes.get(index)
        if known is None:
            known = self._volumes[index] = {}
            for pod in self.nodes.rows[index].pods:
                for driver, names in () if pod.is_terminal else self._attached(pod):
                    known[driver] = known.get(driver, frozenset()) | names
        return known

    def add(self, index: int, shape: Shape, pods: list[Pod]) -> None:
        """Place pods of a shape on the node."""
        left = dict(self.resources_left(index))
        for name, amount in shape.requests.items():
            left[name] = left.get(name, 0) - amount * len(pods)
        self._left[index] = left
        self.cpu[index] = left.get(CPU, 0)
        self.memory[index] = left.get(MEMORY, 0)
        self.placed.setdefault(index, []).extend(pods)
        if shape.ports:
            self.ports(index).add(shape.ports)
        if shape.devices is not None:
            self._take_devices(index, shape.devices, len(pods))
        if shape.volumes.attached:
            attached = self._attached_volumes_on(index)
            for driver, names in shape.volumes.attached:
                attached[driver] = attached.get(driver, frozenset()) | names

    def _take_devices(self, index: int, needs: DeviceNeeds, count: int) -> None:
        host, row = self._host_devices(index), self.nodes.rows[index]
        if (network := self.network_for(needs)) is None:
            self._devices[index] = host.with_pods(needs, count)
            return
        for _ in range(count):
            found = network.take(host, row.labels, row.node_name, needs.claims)
            assert found is not None, "the devices were counted"
            host = self._devices[index] = found

    def requirements(self, index: int) -> Requirements:
        """Return the node's labels as requirements."""
        return self.nodes.requirements(index)
