"""Host ports: two pods that want the same port of one node's address cannot share the node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A port that a pod takes on its node, on one address or on all."""

    ip: str
    port: int
    protocol: str = "TCP"

    def matches(self, other: HostPort) -> bool:
        """Return whether both cannot be had at once; the unspecified address meets all."""
        if self.protocol != other.protocol or self.port != other.port:
            return False
        return self.ip == other.ip or _is_unspecified(self.ip) or _is_unspecified(other.ip)

    def __str__(self) -> str:
        return f"IP={self.ip} Port={self.port} Proto={self.protocol}"


def _is_unspecified(ip: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(ip).is_unspecified
    except ValueError:
        return False


def conflict(
    reserved: Mapping[str, Iterable[HostPort]], pod: str, ports: Iterable[HostPort]
) -> tuple[str, HostPort] | None:
    """Return the other pod (``namespace/name``) and the port that stand in the way of ``pod``."""
    wanted = tuple(ports)
    for owner, taken in reserved.items():
        if owner == pod:
            continue
        for port in taken:
            if any(port.matches(mine) for mine in wanted):
                return owner, port
    return None
