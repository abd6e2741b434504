"""Build the parameters of CreateLaunchTemplate: everything but instance type and subnet."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from reconciler.adapters.aws.bootstrap.family import user_data
from reconciler.adapters.aws.bootstrap.kubelet import with_reserved
from reconciler.adapters.aws.bootstrap.setup import ControlPlane, Setup, node_labels, node_taints
from reconciler.adapters.aws.nodeclass.images import Build
from reconciler.adapters.aws.tags import shared_tags, tag_specification
from reconciler.catalog.classfacts import placement_group_of
from reconciler.model.karpenter.labels import SPOT
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import (
    BlockDevice,
    BlockDeviceMapping,
    ConnectionTracking,
    EC2NodeClass,
    MetadataOptions,
)
from reconciler.model.karpenter.nodepool import requirements_of
from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.resources import MILLI, parse_quantity
from reconciler.model.settings import (
    FeatureGate,
    IPFamily,
    PlacementGroup,
    PlacementStrategy,
    Settings,
)
from reconciler.ports.cloud import Launch

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import RequestLaunchTemplateDataTypeDef

_TENANCY: Final = "karpenter.k8s.aws/instance-tenancy"
_PARTITION: Final = "karpenter.k8s.aws/placement-group-partition"
_NITRO_SANDBOX: Final = "eks.amazonaws.com/nitro-sandbox"
_WITHOUT_IPV6_METADATA: Final = frozenset(
    {
        "us-iso-east-1",
        "us-iso-west-1",
        "us-isob-east-1",
        "us-isob-west-1",
        "us-isof-south-1",
        "us-isof-east-1",
    }
)


def interfaces(
    node_class: EC2NodeClass, build: Build, ip_family: IPFamily
) -> list[dict[str, object]]:
    """Return one entry for each interface: the class's own, else EFA ones, else a single one.

    An EFA-only interface has no address, and therefore neither prefixes nor connection tracking.
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
    node_class: EC2NodeClass, ip_family: IPFamily, groups: list[str], **place: object
) -> dict[str, object]:
    spec = node_class.spec
    row: dict[str, object] = {**place, "Groups": groups}
    if place.get("InterfaceType") == "efa-only":
        return row
    if spec.associate_public_ip_address is not None:
        row["AssociatePublicIpAddress"] = spec.associate_public_ip_address
    if ip_family == IPFamily.IPV6:
        row.update({"PrimaryIpv6": True, "Ipv6AddressCount": 1})
    if spec.ip_prefix_count is not None:
        row["Ipv6PrefixCount" if ip_family == IPFamily.IPV6 else "Ipv4PrefixCount"] = (
            spec.ip_prefix_count
        )
    tracking = _connection_tracking(spec.connection_tracking)
    if tracking:
        row["ConnectionTrackingSpecification"] = tracking
    return row


def _connection_tracking(tracking: ConnectionTracking | None) -> dict[str, int]:
    if tracking is None:
        return {}
    row = {
        "TcpEstablishedTimeout": tracking.tcp_established_timeout,
        "UdpStreamTimeout": tracking.udp_stream_timeout,
        "UdpTimeout": tracking.udp_timeout,
    }
    return {name: seconds for name, seconds in row.items() if seconds is not None}


# The volumes of a machine: the class's own mappings, or else its family's defaults.


def _default_mapping(device: str, size: str) -> BlockDeviceMapping:
    return BlockDeviceMapping(
        device_name=device, ebs=BlockDevice(encrypted=True, volume_size=size, volume_type="gp3")
    )


_LINUX: Final = (_default_mapping("/dev/xvda", "20Gi"),)
_WINDOWS: Final = (_default_mapping("/dev/sda1", "50Gi"),)
_DEFAULTS: Final[Mapping[str, tuple[BlockDeviceMapping, ...]]] = {
    "AL2": _LINUX,
    "AL2023": _LINUX,
    "Bottlerocket": (_default_mapping("/dev/xvda", "4Gi"), _default_mapping("/dev/xvdb", "20Gi")),
    "Windows2019": _WINDOWS,
    "Windows2022": _WINDOWS,
    "Windows2025": _WINDOWS,
}


def block_devices(node_class: EC2NodeClass) -> list[dict[str, object]]:
    """Return ``BlockDeviceMappings``; a Custom class without its own uses those of the image."""
    own = node_class.spec.block_device_mappings
    return [_mapping(m) for m in own or _DEFAULTS.get(node_class.ami_family, ())]


def _mapping(mapping: BlockDeviceMapping) -> dict[str, object]:
    row: dict[str, object] = {"DeviceName": mapping.device_name} if mapping.device_name else {}
    if mapping.ebs is not None:
        row["Ebs"] = _volume(mapping.ebs)
    return row


def _volume(ebs: BlockDevice) -> dict[str, object]:
    row: dict[str, object] = {
        "DeleteOnTermination": ebs.delete_on_termination,
        "Encrypted": ebs.encrypted,
        "Iops": ebs.iops or None,
        "KmsKeyId": ebs.kms_key_id,
        "SnapshotId": ebs.snapshot_id,
        "Throughput": ebs.throughput or None,
        "VolumeInitializationRate": ebs.volume_initialization_rate or None,
        "VolumeSize": None if ebs.volume_size is None else _gibibytes(str(ebs.volume_size)),
        "VolumeType": ebs.volume_type,
    }
    return {name: value for name, value in row.items() if value is not None}


def _gibibytes(size: str) -> int:
    """Return whole GiB, rounded up: EC2 has no smaller unit."""
    return -(-parse_quantity(size) // (MILLI * 2**30))


def template_data(
    launch: Launch, build: Build, settings: Settings
) -> RequestLaunchTemplateDataTypeDef:
    """Return ``LaunchTemplateData`` for the machines of one build (aws reference 3.3)."""
    claim, node_class, spec = launch.node_claim, launch.node_class, launch.node_class.spec
    capacity_type = launch.options[0].capacity_type
    tags = shared_tags(claim, node_class, settings.cluster_name)
    data: dict[str, object] = {
        "ImageId": build.image,
        "Monitoring": {"Enabled": bool(spec.detailed_monitoring)},
        "MetadataOptions": _metadata(spec.metadata_options, settings.region),
        "NetworkInterfaces": interfaces(node_class, build, ip_family(settings)),
        "Placement": _placement(claim, placement_group_of(node_class, settings)),
        "EnclaveOptions": {"Enabled": _runs_enclaves(launch)},
        "TagSpecifications": [
            tag_specification("network-interface", tags),
            *([tag_specification("spot-instances-request", tags)] if capacity_type == SPOT else []),
        ],
    }
    devices = block_devices(node_class)
    if devices:
        data["BlockDeviceMappings"] = devices
    if node_class.status.instance_profile:
        data["IamInstanceProfile"] = {"Name": node_class.status.instance_profile}
    if settings.gate(FeatureGate.RESERVED_CAPACITY):
        data["CapacityReservationSpecification"] = _reservation(build)
    if build.market:
        data["InstanceMarketOptions"] = {"MarketType": build.market}
    if spec.cpu_options is not None and spec.cpu_options.nested_virtualization:
        data["CpuOptions"] = {"NestedVirtualization": spec.cpu_options.nested_virtualization}
    text = user_data(
        node_class.ami_family, _setup(claim, node_class, build, capacity_type, settings)
    )
    if text:
        data["UserData"] = base64.b64encode(text.encode()).decode("ascii")
    # botocore checks the call against its model; the names in it are literals.
    return cast("RequestLaunchTemplateDataTypeDef", data)


def _runs_enclaves(launch: Launch) -> bool:
    """Return whether the node class asks for Nitro Enclaves, or a pod for a sandbox in one."""
    options = launch.node_class.spec.enclave_options
    asked = options is not None and options.enabled
    return asked or _NITRO_SANDBOX in launch.node_claim.spec.resources.requests


def ip_family(settings: Settings) -> IPFamily:
    """Return ``IPv4`` or ``IPv6``: as set, else that of the cluster's DNS service."""
    if settings.ip_family:
        return settings.ip_family
    return IPFamily.IPV6 if ":" in settings.cluster_dns else IPFamily.IPV4


def _setup(
    claim: NodeClaim,
    node_class: EC2NodeClass,
    build: Build,
    capacity_type: str,
    settings: Settings,
) -> Setup:
    kubelet = dict(node_class.spec.kubelet)
    stated = kubelet.get("maxPods")
    if not isinstance(stated, int):  # the value of an expression is in the build
        kubelet.pop("maxPods", None)
    return Setup(
        cluster=ControlPlane(
            name=settings.cluster_name,
            endpoint=settings.cluster_endpoint,
            ca_bundle=settings.cluster_ca_bundle,
            dns=settings.cluster_dns,
            cidr=settings.cluster_cidr,
        ),
        labels=node_labels(claim, capacity_type),
        taints=node_taints(claim),
        max_pods=stated if isinstance(stated, int) else build.max_pods,
        kubelet=with_reserved(kubelet, build.reserved),
        custom=node_class.spec.user_data or "",
        raid0=node_class.spec.instance_store_policy == "RAID0",
        image_version=_image_version(node_class),
    )


def _image_version(node_class: EC2NodeClass) -> str:
    terms = node_class.spec.ami_selector_terms
    return next((t.alias.partition("@")[2] for t in terms if t.alias), "")


def _reservation(build: Build) -> dict[str, object]:
    """Return the reservation that the machine uses; without one, open ones are excluded as well."""
    if not build.reservation:
        return {"CapacityReservationPreference": "none"}
    return {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationId": build.reservation},
    }


def _metadata(options: MetadataOptions, region: str) -> dict[str, object]:
    row: dict[str, object] = {
        "HttpEndpoint": options.http_endpoint,
        "HttpPutResponseHopLimit": options.http_put_response_hop_limit,
        "HttpTokens": options.http_tokens,
        "InstanceMetadataTags": "disabled",
    }
    if region not in _WITHOUT_IPV6_METADATA:
        row["HttpProtocolIpv6"] = options.http_protocol_ipv6
    return row


def _placement(claim: NodeClaim, group: PlacementGroup | None) -> Mapping[str, object]:
    allowed = requirements_of(claim.spec.requirements)
    tenancy = allowed.requirement_on(_TENANCY)
    dedicated = tenancy.has("dedicated") and not tenancy.has("default")
    placement: dict[str, object] = {"Tenancy": "dedicated" if dedicated else "default"}
    if group is not None and (group.id or group.name):
        placement |= {"GroupId": group.id} if group.id else {"GroupName": group.name}
        partition = _partition_in(group, allowed)
        if partition is not None:
            placement["PartitionNumber"] = partition
    return placement


def _partition_in(group: PlacementGroup, allowed: Requirements) -> int | None:
    """Return the partition that the requirements select, None if they select none."""
    if group.strategy != PlacementStrategy.PARTITION or _PARTITION not in allowed:
        return None
    wanted = allowed.requirement_on(_PARTITION)
    partitions = sorted(str(number) for number in range(1, group.partition_count + 1))
    return next((int(partition) for partition in partitions if wanted.has(partition)), None)
