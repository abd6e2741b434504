"""The network interfaces of a machine."""

from __future__ import annotations

from typing import Any

from reconciler.adapters.aws.images import Build
from reconciler.model.nodeclass import ConnectionTracking, EC2NodeClass


def interfaces(node_class: EC2NodeClass, build: Build, ip_family: str) -> list[dict[str, Any]]:
    """Return one entry for each interface: the class's own, else EFA ones, else a single one.

    An interface for EFA alone carries no address, hence neither prefixes nor tracking.
    """
    spec = node_class.spec
    groups = [group.id for group in node_class.status.security_groups]
    if spec.network_interfaces:
        return [
            _interface(
                node_class,
                ip_family,
                groups,
                NetworkCardIndex=own.network_card_index,
                DeviceIndex=own.device_index,
                InterfaceType=own.interface_type,
            )
            for own in spec.network_interfaces
        ]
    if build.efa_interfaces:
        return [
            _interface(
                node_class,
                ip_family,
                groups,
                NetworkCardIndex=card,
                DeviceIndex=0 if card == 0 else 1,
                InterfaceType="efa",
            )
            for card in range(build.efa_interfaces)
        ]
    return [_interface(node_class, ip_family, groups, DeviceIndex=0)]


def _interface(
    node_class: EC2NodeClass, ip_family: str, groups: list[str], **place: Any
) -> dict[str, Any]:
    spec = node_class.spec
    row: dict[str, Any] = {**place, "Groups": groups}
    if place.get("InterfaceType") == "efa-only":
        return row
    if spec.associate_public_ip_address is not None:
        row["AssociatePublicIpAddress"] = spec.associate_public_ip_address
    if ip_family == "IPv6":
        row.update({"PrimaryIpv6": True, "Ipv6AddressCount": 1})
    if spec.ip_prefix_count is not None:
        row["Ipv6PrefixCount" if ip_family == "IPv6" else "Ipv4PrefixCount"] = spec.ip_prefix_count
    tracking = _tracking(spec.connection_tracking)
    if tracking:
        row["ConnectionTrackingSpecification"] = tracking
    return row


def _tracking(tracking: ConnectionTracking | None) -> dict[str, int]:
    if tracking is None:
        return {}
    row = {
        "TcpEstablishedTimeout": tracking.tcp_established_timeout,
        "UdpStreamTimeout": tracking.udp_stream_timeout,
        "UdpTimeout": tracking.udp_timeout,
    }
    return {name: seconds for name, seconds in row.items() if seconds is not None}
