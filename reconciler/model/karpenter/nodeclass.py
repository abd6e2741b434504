"""EC2NodeClasses: how a node is configured on AWS, and the resources found in the account."""

from __future__ import annotations

from datetime import datetime

import msgspec

from reconciler.model.json import JsonDict
from reconciler.model.karpenter.imagefamily import ALIAS_FAMILIES
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.kubernetes.metadata import Condition, Metadata, condition


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of an object in the API's spelling."""


class SelectorTerm(_Struct, frozen=True):
    """A term that selects subnets, security groups, images or reservations of the account."""

    tags: dict[str, str] = {}
    id: str = ""
    name: str = ""
    alias: str = ""
    owner: str = ""
    ssm_parameter: str = ""
    owner_id: str = msgspec.field(default="", name="ownerID")
    instance_match_criteria: str = ""


class BlockDevice(_Struct, frozen=True):
    delete_on_termination: bool | None = None
    encrypted: bool | None = None
    iops: int | None = None
    kms_key_id: str | None = msgspec.field(default=None, name="kmsKeyID")
    snapshot_id: str | None = msgspec.field(default=None, name="snapshotID")
    throughput: int | None = None
    volume_initialization_rate: int | None = None
    volume_size: str | int | None = None
    volume_type: str | None = None


class BlockDeviceMapping(_Struct, frozen=True):
    device_name: str | None = None
    root_volume: bool = False
    ebs: BlockDevice | None = None


class NetworkInterface(_Struct, frozen=True):
    network_card_index: int = 0
    device_index: int = 0
    interface_type: str = "interface"


class MetadataOptions(_Struct, frozen=True):
    """Instance metadata service options; the defaults are the CRD's."""

    http_endpoint: str = msgspec.field(default="enabled", name="httpEndpoint")
    http_protocol_ipv6: str = msgspec.field(default="disabled", name="httpProtocolIPv6")
    http_put_response_hop_limit: int = 1
    http_tokens: str = "required"


class ConnectionTracking(_Struct, frozen=True):
    tcp_established_timeout: int | None = None
    udp_stream_timeout: int | None = None
    udp_timeout: int | None = None


class CPUOptions(_Struct, frozen=True):
    nested_virtualization: str | None = None


class EnclaveOptions(_Struct, frozen=True):
    enabled: bool = False


class PlacementGroupSelector(_Struct, frozen=True):
    name: str = ""
    id: str = ""


class EC2NodeClassSpec(_Struct, frozen=True):
    subnet_selector_terms: tuple[SelectorTerm, ...] = ()
    security_group_selector_terms: tuple[SelectorTerm, ...] = ()
    capacity_reservation_selector_terms: tuple[SelectorTerm, ...] = ()
    ami_selector_terms: tuple[SelectorTerm, ...] = ()
    ami_family: str | None = None
    placement_group_selector: PlacementGroupSelector | None = None
    associate_public_ip_address: bool | None = msgspec.field(
        default=None, name="associatePublicIPAddress"
    )
    ip_prefix_count: int | None = msgspec.field(default=None, name="ipPrefixCount")
    user_data: str | None = None
    role: str = ""
    instance_profile: str | None = None
    tags: dict[str, str] = {}
    kubelet: JsonDict = {}
    block_device_mappings: tuple[BlockDeviceMapping, ...] = ()
    instance_store_policy: str | None = None
    network_interfaces: tuple[NetworkInterface, ...] = ()
    detailed_monitoring: bool | None = None
    metadata_options: MetadataOptions = MetadataOptions()
    connection_tracking: ConnectionTracking | None = None
    context: str | None = None
    cpu_options: CPUOptions | None = None
    enclave_options: EnclaveOptions | None = None


class Subnet(_Struct, frozen=True):
    id: str
    zone: str
    zone_id: str = msgspec.field(default="", name="zoneID")


class SecurityGroup(_Struct, frozen=True):
    id: str
    name: str = ""


class AMI(_Struct, frozen=True):
    id: str
    name: str = ""
    deprecated: bool = False
    requirements: tuple[NodeSelectorRequirement, ...] = ()


class CapacityReservation(_Struct, frozen=True):
    """A reservation; the number of remaining instances is known only if it was resolved here."""

    id: str
    availability_zone: str = ""
    instance_type: str = ""
    owner_id: str = msgspec.field(default="", name="ownerID")
    instance_match_criteria: str = ""
    reservation_type: str = "default"
    interruptible: bool = False
    state: str = "active"
    end_time: datetime | None = None
    available_instance_count: int | None = None


class FoundPlacementGroup(_Struct, frozen=True):
    """The placement group that a class selects; ``partition_count`` is 0 without partitions."""

    id: str
    name: str = ""
    strategy: str = ""
    partition_count: int = 0


class EC2NodeClassStatus(_Struct, frozen=True):
    """The resources in the account, as Karpenter stores them; the placement group is our own."""

    subnets: tuple[Subnet, ...] = ()
    security_groups: tuple[SecurityGroup, ...] = ()
    amis: tuple[AMI, ...] = ()
    capacity_reservations: tuple[CapacityReservation, ...] = ()
    placement_group: FoundPlacementGroup | None = None
    instance_profile: str = ""
    conditions: tuple[Condition, ...] = ()


class EC2NodeClass(_Struct, frozen=True):
    """An EC2NodeClass as desired in git, with the status that a snapshot may carry."""

    metadata: Metadata
    spec: EC2NodeClassSpec = EC2NodeClassSpec()
    status: EC2NodeClassStatus = EC2NodeClassStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_ready(self) -> bool:
        """Whether it can launch nodes: a class without conditions counts as ready."""
        ready = condition(self.status.conditions, "Ready")
        return ready is None or ready.status == "True"

    @property
    def ami_family(self) -> str:
        """The image family: as set, or else that of the alias, or else Custom."""
        if self.spec.ami_family:
            return self.spec.ami_family
        alias = next((t.alias for t in self.spec.ami_selector_terms if t.alias), "")
        return ALIAS_FAMILIES.get(alias.partition("@")[0].lower(), "Custom")
