"""What is kept of an instance type as EC2 describes it: the facts that nodes follow from.

``DescribeInstanceTypes`` answers some four kilobytes a type; these forty numbers are all that
labels, capacity and overhead need. The bundle stores them, and a live answer of EC2 is reduced
in the same way, so that both take one path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import WELL_KNOWN_AWS
from reconciler.model.karpenter.nodeclass import AMI
from reconciler.model.karpenter.nodepool import requirements_of

# Which image of a node class an instance type boots.


def image_for(amis: Iterable[AMI], kind: InstanceType) -> AMI | None:
    """Return the first image whose requirements the type meets; the status lists newest first."""
    return next(
        (
            ami
            for ami in amis
            if kind.requirements.compatible(requirements_of(ami.requirements), WELL_KNOWN_AWS)
        ),
        None,
    )


_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}
_NAME: Final = re.compile(r"([a-z]+)(?:-[0-9]+tb)?([0-9]+).*\.")


class Gpu(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One kind of GPU of a machine: how many, and MiB of memory for each."""

    name: str
    manufacturer: str
    count: int
    memory_mib: int


class Accelerator(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One kind of inference or training device of a machine."""

    name: str
    manufacturer: str
    count: int
    cores: int = 0


class MachineType(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An instance type, reduced. ``None`` is «not there», never «not known».

    ``cards`` are the maximum network interfaces of each network card, ``cards[0]`` the default
    card's. ``branch_interfaces`` is 0 where the type cannot trunk. ``windows_ipv4`` are the IPv4
    addresses of an interface by the table of limits, which Windows nodes offer to pods.
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


def is_usable(body: Mapping[str, Any]) -> bool:
    """Return whether a node can run on the type: Karpenter's two filters of the fetch."""
    virtualization = body.get("SupportedVirtualizationTypes", ())
    architectures = body.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    return "hvm" in virtualization and any(a in _ARCHITECTURES for a in architectures)


def reduce_body(
    body: Mapping[str, Any],
    limits: Mapping[str, Any] | None = None,
    network_mbps: int | None = None,
) -> MachineType:
    """Return the facts of a ``DescribeInstanceTypes`` body.

    ``limits`` is the type's entry in the table of ENI limits (trunking, branch interfaces), and
    ``network_mbps`` its network bandwidth; EC2 itself tells neither.

    Raises:
        KeyError: the body lacks a field that every type of EC2 has.
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
        cpu_manufacturer=kebab(processor.get("Manufacturer", "")),
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
    )


def kebab(text: str) -> str:
    """Return a name of EC2 as a label value: lower case, spaces as hyphens."""
    return text.lower().replace(" ", "-")


def _cards(network: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the interfaces of each network card, the default card first."""
    default = network.get("DefaultNetworkCardIndex", 0)
    cards = sorted(network["NetworkCards"], key=lambda c: c["NetworkCardIndex"])
    cards.sort(key=lambda c: c["NetworkCardIndex"] != default)
    return tuple(c["MaximumNetworkInterfaces"] for c in cards)


def _gpus(body: Mapping[str, Any]) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            g["Name"],
            g["Manufacturer"],
            g.get("Count", 0),
            g.get("MemoryInfo", {}).get("SizeInMiB", 0),
        )
        for g in body.get("GpuInfo", {}).get("Gpus", ())
    )


def _inference(body: Mapping[str, Any]) -> tuple[Accelerator, ...]:
    return tuple(
        Accelerator(a["Name"], a["Manufacturer"], a["Count"])
        for a in body.get("InferenceAcceleratorInfo", {}).get("Accelerators", ())
    )


def _neuron(body: Mapping[str, Any]) -> tuple[Accelerator, ...]:
    return tuple(
        Accelerator(d["Name"], "AWS", d["Count"], d.get("CoreInfo", {}).get("Count", 0))
        for d in body.get("NeuronInfo", {}).get("NeuronDevices", ())
    )
