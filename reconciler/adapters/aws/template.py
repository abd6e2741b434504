"""The parameters of CreateLaunchTemplate: everything of a machine but its type and place."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from reconciler.adapters.aws.bootstrap.family import user_data
from reconciler.adapters.aws.bootstrap.kubelet import with_reserved
from reconciler.adapters.aws.bootstrap.setup import (
    ControlPlane,
    Setup,
    node_labels,
    node_taints,
)
from reconciler.adapters.aws.images import Build
from reconciler.adapters.aws.network import interfaces
from reconciler.adapters.aws.tags import shared_tags, specification
from reconciler.adapters.aws.volumes import block_devices
from reconciler.catalog.classfacts import placement_group_of
from reconciler.model.labels import SPOT
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.nodeclass import EC2NodeClass, MetadataOptions
from reconciler.model.nodepool import requirements_of
from reconciler.model.settings import PlacementGroup, Settings
from reconciler.ports import Launch

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


def template_data(launch: Launch, build: Build, settings: Settings) -> dict[str, Any]:
    """Return ``LaunchTemplateData`` for the machines of one build (aws reference 3.3)."""
    claim, node_class, spec = launch.node_claim, launch.node_class, launch.node_class.spec
    capacity_type = launch.options[0].capacity_type
    tags = shared_tags(claim, node_class, settings.cluster_name)
    data: dict[str, Any] = {
        "ImageId": build.image,
        "Monitoring": {"Enabled": bool(spec.detailed_monitoring)},
        "MetadataOptions": _metadata(spec.metadata_options, settings.region),
        "NetworkInterfaces": interfaces(node_class, build, ip_family(settings)),
        "Placement": _placement(claim, placement_group_of(node_class, settings)),
        "EnclaveOptions": {"Enabled": _NITRO_SANDBOX in claim.spec.resources.requests},
        "TagSpecifications": [
            specification(kind, tags)
            for kind in (
                "network-interface",
                *(["spot-instances-request"] * (capacity_type == SPOT)),
            )
        ],
    }
    devices = block_devices(node_class)
    if devices:
        data["BlockDeviceMappings"] = devices
    if node_class.status.instance_profile:
        data["IamInstanceProfile"] = {"Name": node_class.status.instance_profile}
    if settings.gate("ReservedCapacity"):
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
    return data


def ip_family(settings: Settings) -> str:
    """Return ``IPv4`` or ``IPv6``: as set, else that of the cluster's DNS service."""
    if settings.ip_family:
        return settings.ip_family
    return "IPv6" if ":" in settings.cluster_dns else "IPv4"


def _setup(
    claim: NodeClaim,
    node_class: EC2NodeClass,
    build: Build,
    capacity_type: str,
    settings: Settings,
) -> Setup:
    stated = node_class.spec.kubelet.get("maxPods")
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
        kubelet=with_reserved(node_class.spec.kubelet, build.reserved),
        custom=node_class.spec.user_data or "",
        raid0=node_class.spec.instance_store_policy == "RAID0",
        image_version=_image_version(node_class),
    )


def _image_version(node_class: EC2NodeClass) -> str:
    terms = node_class.spec.ami_selector_terms
    return next((t.alias.partition("@")[2] for t in terms if t.alias), "")


def _reservation(build: Build) -> dict[str, Any]:
    """Return which reservation the machine uses; none keeps it out of open ones as well."""
    if not build.reservation:
        return {"CapacityReservationPreference": "none"}
    return {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationId": build.reservation},
    }


def _metadata(options: MetadataOptions, region: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "HttpEndpoint": options.http_endpoint,
        "HttpPutResponseHopLimit": options.http_put_response_hop_limit,
        "HttpTokens": options.http_tokens,
        "InstanceMetadataTags": "disabled",
    }
    if region not in _WITHOUT_IPV6_METADATA:
        row["HttpProtocolIpv6"] = options.http_protocol_ipv6
    return row


def _placement(claim: NodeClaim, group: PlacementGroup | None) -> Mapping[str, Any]:
    allowed = requirements_of(claim.spec.requirements)
    tenancy = allowed.allowed(_TENANCY)
    dedicated = tenancy.has("dedicated") and not tenancy.has("default")
    placement: dict[str, Any] = {"Tenancy": "dedicated" if dedicated else "default"}
    if group is not None and (group.id or group.name):
        placement.update({"GroupId": group.id} if group.id else {"GroupName": group.name})
        if group.strategy == "partition" and _PARTITION in allowed:
            partitions = [str(n) for n in range(1, group.partition_count + 1)]
            fitting = sorted(p for p in partitions if allowed.allowed(_PARTITION).has(p))
            placement.update({"PartitionNumber": int(fitting[0])} if fitting else {})
    return placement
