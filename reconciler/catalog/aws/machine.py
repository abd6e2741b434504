"""The facts of an EC2 instance type from which labels, capacity and overhead are computed.

``DescribeInstanceTypes`` returns about four kilobytes for each type; only these forty values are
needed. The bundle stores them. Live responses are reduced in the same way, so both use the same
code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from reconciler.model.json import JsonObject
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import WELL_KNOWN_AWS
from reconciler.model.karpenter.nodeclass import AMI
from reconciler.model.karpenter.nodepool import requirements_of

_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}
_NAME: Final = re.compile(r"([a-z]+)(?:-[0-9]+tb)?([0-9]++).*\.")


def image_for(amis: Iterable[AMI], kind: InstanceType) -> AMI | None:
    """Return the first image whose requirements the type meets; the status lists newest first."""
    return next(
        (
            ami
            for ami in amis
            if kind.requirements.is_compatible(requirements_of(ami.requirements), WELL_KNOWN_AWS)
        ),
        None,
    )


class Gpu(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """GPUs of one kind: their number, and the memory of each in MiB."""

    name: str
    manufacturer: str
    count: int
    memory_mib: int


class Accelerator(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Inference or training devices of one kind."""

    name: str
    manufacturer: str
    count: int
    cores: int = 0


class MachineType(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An instance type, reduced. ``None`` means that a feature is absent, never that it is unknown.

    ``cards`` are the maximum network interfaces of each network card, with the default card at
    ``cards[0]``. ``branch_interfaces`` is 0 if the type does not support trunking. ``windows_ipv4``
    is the number of IPv4 addresses of an interface in the table of limits, which Windows nodes
    offer to pods. ``ebs_attachments`` is how many EBS volumes an instance can attach, its own
    included; None is the one value that may be unknown.
    """

    name: str
    arch: str
    cpu: int
    memory_mib: int
    clock_mhz: int
    cpu_manufacturer: str
    hypervisor: str
    spot: bool
    on_demand: bool
    encryption_in_transit: bool
    nitro_enclaves: bool
    nested_virtualization: bool
    cluster_placement: bool
    ena: bool
    cards: tuple[int, ...]
    ipv4_per_interface: int
    efa_interfaces: int
    branch_interfaces: int
    windows_ipv4: int
    storage_gb: int | None
    storage_nvme: bool
    ebs_mbps: int | None
    network_mbps: int | None
    gpus: tuple[Gpu, ...]
    inference: tuple[Accelerator, ...]
    neuron: tuple[Accelerator, ...]
    ebs_attachments: int | None = None

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def size(self) -> str:
        return self.name.partition(".")[2]

    @property
    def category(self) -> str | None:
        """The letters of the family: ``m`` of ``m7g``, ``u`` of ``u-6tb1``."""
        match = _NAME.match(self.name)
        return match[1] if match else None

    @property
    def generation(self) -> str | None:
        """The number of the family: ``7`` of ``m7g``, ``1`` of ``u-6tb1``."""
        match = _NAME.match(self.name)
        return match[2] if match else None


def is_usable(body: JsonObject) -> bool:
    """Return whether a node can run on the type, by the two filters of Karpenter's fetch."""
    virtualization = body.get("SupportedVirtualizationTypes", ())
    architectures = body.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    return "hvm" in virtualization and any(a in _ARCHITECTURES for a in architectures)


def reduce_body(
    body: JsonObject,
    limits: JsonObject | None = None,
    network_mbps: int | None = None,
) -> MachineType:
    """Return the facts of a ``DescribeInstanceTypes`` body.

    ``limits`` is the type's entry in the table of ENI limits (trunking, branch interfaces), and
    ``network_mbps`` its network bandwidth. EC2 reports neither.

    Raises:
        KeyError: the body lacks a mandatory field.
    """
    processor, network = body["ProcessorInfo"], body["NetworkInfo"]
    limits = limits or {}
    storage = body.get("InstanceStorageInfo") or {}
    ebs = body.get("EbsInfo", {})
    by_default = ebs.get("EbsOptimizedSupport") == "default"
    usage = body.get("SupportedUsageClasses", ())
    return MachineType(
        name=body["InstanceType"],
        arch=next(
            _ARCHITECTURES[a] for a in processor["SupportedArchitectures"] if a in _ARCHITECTURES
        ),
        cpu=body["VCpuInfo"]["DefaultVCpus"],
        memory_mib=body["MemoryInfo"]["SizeInMiB"],
        clock_mhz=round(processor.get("SustainedClockSpeedInGhz", 0) * 1000),
        cpu_manufacturer=kebab_case(processor.get("Manufacturer", "")),
        hypervisor=body.get("Hypervisor", ""),
        spot="spot" in usage,
        on_demand="on-demand" in usage,
        encryption_in_transit=bool(network.get("EncryptionInTransitSupported")),
        nitro_enclaves=body.get("NitroEnclavesSupport") == "supported",
        nested_virtualization="nested-virtualization" in processor.get("SupportedFeatures", ()),
        cluster_placement="cluster"
        in body.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        ena=network.get("EnaSupport", "unsupported") != "unsupported",
        cards=_cards(network),
        ipv4_per_interface=network["Ipv4AddressesPerInterface"],
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        branch_interfaces=limits.get("branchInterfaces", 0) if limits.get("trunking") else 0,
        windows_ipv4=limits.get("ipv4PerInterface", 0),
        storage_gb=storage.get("TotalSizeInGB"),
        storage_nvme=storage.get("NvmeSupport", "unsupported") != "unsupported",
        ebs_mbps=ebs["EbsOptimizedInfo"]["MaximumBandwidthInMbps"] if by_default else None,
        network_mbps=network_mbps,
        gpus=_gpus(body),
        inference=_inference(body),
        neuron=_neuron(body),
        ebs_attachments=ebs.get("MaximumEbsAttachments"),
    )


def kebab_case(text: str) -> str:
    """Return an EC2 name as a label value: lower case, with hyphens instead of spaces."""
    return text.lower().replace(" ", "-")


def _cards(network: JsonObject) -> tuple[int, ...]:
    """Return the number of interfaces of each network card, the default card first."""
    default = network.get("DefaultNetworkCardIndex", 0)
    cards = sorted(network["NetworkCards"], key=lambda c: c["NetworkCardIndex"])
    cards.sort(key=lambda c: c["NetworkCardIndex"] != default)
    return tuple(c["MaximumNetworkInterfaces"] for c in cards)


def _gpus(body: JsonObject) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            g["Name"],
            g["Manufacturer"],
            g.get("Count", 0),
            g.get("MemoryInfo", {}).get("SizeInMiB", 0),
        )
        for g in body.get("GpuInfo", {}).get("Gpus", ())
    )


def _inference(body: JsonObject) -> tuple[Accelerator, ...]:
    return tuple(
        Accelerator(a["Name"], a["Manufacturer"], a["Count"])
        for a in body.get("InferenceAcceleratorInfo", {}).get("Accelerators", ())
    )


def _neuron(body: JsonObject) -> tuple[Accelerator, ...]:
    return tuple(
        Accelerator(d["Name"], "AWS", d["Count"], d.get("CoreInfo", {}).get("Count", 0))
        for d in body.get("NeuronInfo", {}).get("NeuronDevices", ())
    )
