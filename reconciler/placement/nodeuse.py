"""What one pass puts on the nodes that are there; the nodes themselves stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from reconciler.model.hostport import HostPort
from reconciler.model.pod import Pod
from reconciler.model.requirements import Requirements
from reconciler.model.resources import CPU, MEMORY, Resources
from reconciler.placement.nodes import Nodes
from reconciler.placement.shape import Shape

Attached = Callable[[Pod], Iterable[tuple[str, frozenset[str]]]]


class NodeUse:
    """The nodes of a pass: ``open`` are those that may be tried, ``placed`` what came to each.

    ``guarded`` are nodes that only pods without any place may go to. ``attached`` tells which
    volumes of a running pod are attached, by driver.
    """

    def __init__(
        self, nodes: Nodes, without: Collection[str], attached: Attached, guarded: int = 0
    ) -> None:
        self.nodes = nodes
        self.open = nodes.open
        for name in without:
            index = nodes.index.get(name)
            if index is not None:
                self.open &= ~(1 << index)
        self.guarded = guarded
        self.cpu = list(nodes.cpu)
        self.memory = list(nodes.memory)
        self.placed: dict[int, list[Pod]] = {}
        self._attached = attached
        self._left: dict[int, Resources] = {}
        self._ports: dict[int, list[HostPort]] = {}
        self._volumes: dict[int, dict[str, frozenset[str]]] = {}

    def left(self, index: int) -> Resources:
        """Return what pods may still take of the node."""
        known = self._left.get(index)
        return self.nodes.rows[index].left if known is None else known

    def holds(self, index: int, requests: Resources, most: int) -> int:
        """Return how many pods with ``requests`` the node holds, at most ``most``."""
        left = self.left(index)
        for name, amount in requests.items():
            if amount > 0:
                most = min(most, left.get(name, 0) // amount)
        return max(most, 0)

    def ports(self, index: int) -> list[HostPort]:
        """Return the host ports taken on the node."""
        known = self._ports.get(index)
        if known is None:
            state = self.nodes.rows[index].state
            pods = state.pods if state is not None else ()
            known = [port for pod in pods if not pod.is_terminal for port in pod.host_ports()]
            self._ports[index] = known
        return known

    def can_attach(self, index: int, shape: Shape) -> bool:
        """Return whether the node may attach the volumes of a pod as well."""
        limits = self.nodes.volume_limits(index)
        if not limits:
            return True
        taken = self._volumes_on(index)
        return all(
            driver not in limits or len(taken.get(driver, frozenset()) | names) <= limits[driver]
            for driver, names in shape.volumes.attached
        )

    def _volumes_on(self, index: int) -> dict[str, frozenset[str]]:
        known = self._volumes.get(index)
        if known is None:
            known = self._volumes[index] = {}
            state = self.nodes.rows[index].state
            for pod in state.pods if state is not None else ():
                for driver, names in () if pod.is_terminal else self._attached(pod):
                    known[driver] = known.get(driver, frozenset()) | names
        return known

    def add(self, index: int, shape: Shape, pods: list[Pod]) -> None:
        """Put pods of a shape on the node."""
        left = dict(self.left(index))
        for name, amount in shape.requests.items():
            left[name] = left.get(name, 0) - amount * len(pods)
        self._left[index] = left
        self.cpu[index] = left.get(CPU, 0)
        self.memory[index] = left.get(MEMORY, 0)
        self.placed.setdefault(index, []).extend(pods)
        if shape.ports:
            self._ports[index] = [*self.ports(index), *shape.ports]
        if shape.volumes.attached:
            taken = self._volumes_on(index)
            for driver, names in shape.volumes.attached:
                taken[driver] = taken.get(driver, frozenset()) | names

    def requirements(self, index: int) -> Requirements:
        """Return what the node's labels say, as requirements."""
        return self.nodes.requirements(index)
