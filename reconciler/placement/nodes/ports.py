"""The host ports in use on a node, by port, so that a check takes a step for each port of the pod.

A pod may have any number of host ports, and comparing each of them with each port of a node would
take the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from reconciler.catalog.table import bits, union_of
from reconciler.model.kubernetes.pod import HostPort, Pod

PORTS_PER_CHECK: Final = 8
"""How many ports of a pod are looked up in the time of a check."""

_ADDRESS_MAX: Final = 100
_EVERY: Final = ""
"""The unspecified address, which conflicts with all others."""


def ports_of(pods: Iterable[Pod]) -> Iterator[HostPort]:
    """Yield the host ports that pods use until they have ended."""
    for pod in pods:
        if not pod.is_terminal:
            yield from pod.host_ports()


class UsedPorts:
    """Host ports with the number of their users, by port and by address."""

    __slots__ = ("_addresses", "_ports")

    def __init__(self, ports: Iterable[HostPort] = ()) -> None:
        self._ports: dict[tuple[int, str], int] = {}
        self._addresses: dict[tuple[int, str, str], int] = {}
        self.add(ports)

    def __bool__(self) -> bool:
        return bool(self._ports)

    def add(self, ports: Iterable[HostPort], sign: int = 1) -> None:
        """Count the ports of a pod, or with ``sign`` -1 remove those of one that was counted."""
        for port in ports:
            key = port.port, port.protocol
            address = (*key, _address(port.ip))
            self._ports[key] = self._ports.get(key, 0) + sign
            self._addresses[address] = self._addresses.get(address, 0) + sign
            if not self._ports[key]:
                del self._ports[key]
            if not self._addresses[address]:
                del self._addresses[address]

    def conflict(self, ports: Iterable[HostPort]) -> bool:
        """Return whether a port of a pod conflicts with one in use."""
        used = self._ports
        return bool(used) and any(
            (port.port, port.protocol) in used and self._is_taken(port) for port in ports
        )

    def _is_taken(self, port: HostPort) -> bool:
        address = _address(port.ip)
        if address == _EVERY:
            return True
        key = port.port, port.protocol
        return (*key, _EVERY) in self._addresses or (*key, address) in self._addresses

    def copy(self) -> UsedPorts:
        """Return a copy, which may be changed."""
        found = UsedPorts()
        found._ports = dict(self._ports)
        found._addresses = dict(self._addresses)
        return found


class PortIndex:
    """The nodes on which pods use a host port; a set of nodes is an integer with a bit for each."""

    def __init__(self, used: Iterable[Iterable[HostPort]]) -> None:
        found: dict[tuple[int, str], dict[str, list[int]]] = {}
        for index, ports in enumerate(used):
            for port in ports:
                at_port = found.setdefault((port.port, port.protocol), {})
                at_port.setdefault(_address(port.ip), []).append(index)
        self._nodes = {
            key: {address: bits(members) for address, members in at_port.items()}
            for key, at_port in found.items()
        }

    def conflicting(self, ports: Iterable[HostPort]) -> int:
        """Return the nodes on which one of the ports conflicts with one in use."""
        return union_of(map(self._conflicting_with, ports))

    def _conflicting_with(self, port: HostPort) -> int:
        at_port = self._nodes.get((port.port, port.protocol), {})
        address = _address(port.ip)
        if address == _EVERY:
            return union_of(at_port.values())
        return at_port.get(address, 0) | at_port.get(_EVERY, 0)


def _address(ip: str) -> str:
    return _known_address(ip) if len(ip) <= _ADDRESS_MAX else ip


@lru_cache(maxsize=4096)
def _known_address(ip: str) -> str:
    try:
        return _EVERY if ip_address(ip).is_unspecified else ip
    except ValueError:
        return ip
