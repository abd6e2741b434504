"""Compute labels, capacity and overhead of an EC2 node from its machine and node class.

The rules are Karpenter's (provider ``pkg/providers/instancetype/types.go``); they are tested
against its published table of 1,363 types. Amounts are thousandths of the unit, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Final

from reconciler.catalog.aws.machine import Accelerator, MachineType, kebab_case
from reconciler.catalog.classfacts import GIB, ClassFacts, Texts
from reconciler.model.karpenter.labels import ARCH, INSTANCE_TYPE, OS, WINDOWS_BUILD
from reconciler.model.kubernetes.devices import DeviceTemplate
from reconciler.model.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    MILLI,
    PODS,
    Resources,
    parse_quantity,
)

AWS: Final = "karpenter.k8s.aws/"
_MIB: Final = 2**20
_MIB_MILLI: Final = _MIB * MILLI
_CPU_SHARES: Final = (
    (0, 1000, 600),
    (1000, 2000, 100),
    (2000, 4000, 50),
    (4000, 10**9, 25),
)
_PODS_WITHOUT_DENSITY: Final = 110
_GPU_RESOURCES: Final = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Habana": "habana.ai/gaudi",
}


Label = Callable[[MachineType], str | None]

TENANCIES: Final = ("default", "dedicated")


def _format_flag(value: bool) -> str:
    return "true" if value else "false"


def _format_optional(value: int | None) -> str | None:
    return None if value is None else str(value)


def _labelled_accelerator(machine: MachineType) -> Accelerator | None:
    """Return the accelerator that has labels; Neuron devices take precedence."""
    devices = machine.neuron or machine.inference
    return devices[0] if len(devices) == 1 else None


def _accelerator_label(read: Callable[[Accelerator], str]) -> Label:
    def label(machine: MachineType) -> str | None:
        device = _labelled_accelerator(machine)
        return None if device is None else read(device)

    return label


def _gpu_label(field: str) -> Label:
    """Return a label of a machine's GPU; only a machine with one kind of GPU has it."""

    def label(machine: MachineType) -> str | None:
        return kebab_case(str(getattr(machine.gpus[0], field))) if len(machine.gpus) == 1 else None

    return label


LABELS: Final[dict[str, Label]] = {
    INSTANCE_TYPE: lambda m: m.name,
    ARCH: lambda m: m.arch,
    AWS + "instance-category": lambda m: m.category,
    AWS + "instance-family": lambda m: m.family,
    AWS + "instance-generation": lambda m: m.generation,
    AWS + "instance-size": lambda m: m.size,
    AWS + "instance-cpu": lambda m: str(m.cpu),
    AWS + "instance-cpu-manufacturer": lambda m: m.cpu_manufacturer,
    AWS + "instance-cpu-sustained-clock-speed-mhz": lambda m: str(m.clock_mhz),
    AWS + "instance-memory": lambda m: str(m.memory_mib),
    AWS + "instance-ebs-bandwidth": lambda m: _format_optional(m.ebs_mbps),
    AWS + "instance-network-bandwidth": lambda m: _format_optional(m.network_mbps),
    AWS + "instance-local-nvme": lambda m: (
        _format_optional(m.storage_gb) if m.storage_nvme else None
    ),
    AWS + "instance-hypervisor": lambda m: m.hypervisor,
    AWS + "instance-encryption-in-transit-supported": lambda m: _format_flag(
        m.encryption_in_transit
    ),
    AWS + "nitro-sandbox": lambda m: _format_flag(m.nitro_enclaves),
    AWS + "instance-capability-flex": lambda m: _format_flag("-flex" in m.family),
    AWS + "instance-gpu-name": _gpu_label("name"),
    AWS + "instance-gpu-manufacturer": _gpu_label("manufacturer"),
    AWS + "instance-gpu-count": _gpu_label("count"),
    AWS + "instance-gpu-memory": _gpu_label("memory_mib"),
    AWS + "instance-accelerator-name": _accelerator_label(lambda d: kebab_case(d.name)),
    AWS + "instance-accelerator-manufacturer": _accelerator_label(
        lambda d: kebab_case(d.manufacturer)
    ),
    AWS + "instance-accelerator-count": _accelerator_label(lambda d: str(d.count)),
}
"""Single-valued labels that depend only on the machine; None means that it is not set."""


def class_labels(facts: ClassFacts) -> dict[str, Label]:
    """Return the single-valued labels that also depend on the node class."""
    build = facts.flags.windows_build

    def system(machine: MachineType) -> str | None:
        if build is None:
            return "linux"
        return "windows" if machine.arch == "amd64" else None  # there is no Windows for arm64

    return {OS: system, WINDOWS_BUILD: lambda _: build}


def eni_pods(machine: MachineType, reserved_enis: int, efa_only: int = 0) -> int:
    """Return how many pods can get an address from the network interfaces of the default card.

    One address of each interface is not available to pods; two more pods use the node's own (the
    AWS VPC CNI's rule). ``efa_only`` interfaces of that card carry no pods.
    """
    usable = (machine.cards[0] if machine.cards else 0) - reserved_enis - efa_only
    if usable <= 0:
        return 0
    return usable * (machine.ipv4_per_interface - 1) + 2


def guest_memory(machine: MachineType, overhead_percent: float) -> int:
    """Return the memory that a guest sees.

    Arm machines reserve 64 MiB, and every hypervisor takes a share that is not published. Karpenter
    estimates 7.5 %, rounded up to whole MiB, in binary floating point. A difference of one MiB
    would be visible, so this uses the same arithmetic.
    """
    mebibytes = machine.memory_mib - (64 if machine.arch == "arm64" else 0)
    overhead = math.ceil(mebibytes * _MIB * overhead_percent / 1024 / 1024)
    return (mebibytes - overhead) * _MIB_MILLI


@cache
def reserved_cpu(cores: int) -> int:
    """Return the milli-cores reserved for the kubelet: a share that falls with the number of cores.

    6 % of the first core, 1 % of the second, 0.5 % of the third and fourth, 0.25 % of the rest,
    each rounded down to whole milli-cores before they are added.
    """
    milli, total = cores * MILLI, 0
    for start, end, per_10000 in _CPU_SHARES:
        if milli <= start:
            break
        total += (min(milli, end) - start) * per_10000 // 10000
    return total


def percent_of(amount: int, percent: float) -> int:
    """Return a percentage of ``amount`` in whole bytes, rounded up, in Karpenter's arithmetic."""
    return math.ceil(amount / MILLI / 100 * percent) * MILLI


class NodeRules:
    """Capacity and overhead of the nodes of a class, with constant parts computed once."""

    def __init__(self, facts: ClassFacts) -> None:
        self._facts = facts
        self._family = facts.flags
        self._volume = _volume_size(facts)
        self._efa_only = facts.efa_only
        self._efa_only_first_card = facts.efa_only_first_card
        self._kube_reserved = _parse_quantities(facts.kube_reserved)
        self._system_reserved = _parse_quantities(facts.system_reserved)
        eviction = dict(facts.eviction_hard)
        self._seen_memory = dict(facts.memory)
        self._evict_memory = eviction.get("memory.available")
        self._evict_storage = eviction.get("nodefs.available")

    def capacity(self, machine: MachineType) -> Resources:
        """Return the capacity of a node; resources that it does not have are left out."""
        amounts = {
            CPU: machine.cpu * MILLI,
            MEMORY: self.memory(machine),
            PODS: self.pods(machine) * MILLI,
            EPHEMERAL_STORAGE: self.storage(machine),
        }
        if machine.branch_interfaces:
            amounts["vpc.amazonaws.com/pod-eni"] = machine.branch_interfaces * MILLI
        efa = machine.efa_interfaces if self._efa_only is None else self._efa_only
        if efa:
            amounts["vpc.amazonaws.com/efa"] = efa * MILLI
        if machine.gpus or machine.neuron:
            _add_devices(machine, amounts)
        if self._family.is_windows and machine.windows_ipv4 > 1:
            address_count = machine.windows_ipv4 - 1
            amounts["vpc.amazonaws.com/PrivateIPv4Address"] = address_count * MILLI
        return amounts

    def memory(self, machine: MachineType) -> int:
        """Return the memory of a node: as reported by nodes of the type, or else the estimate."""
        seen = self._seen_memory.get(machine.name)
        if seen is not None:
            return seen
        return guest_memory(machine, self._facts.vm_memory_overhead_percent)

    def pods(self, machine: MachineType) -> int:
        """Return the maximum number of pods that the kubelet accepts."""
        facts, family = self._facts, self._family
        if facts.max_pods is not None:
            count = facts.max_pods
        elif family.eni_density:
            count = eni_pods(machine, facts.reserved_enis, self._efa_only_first_card)
        else:
            count = _PODS_WITHOUT_DENSITY
        if facts.pods_per_core and family.pods_per_core:
            count = min(facts.pods_per_core * machine.cpu, count)
        return count

    def volume_limit(self, machine: MachineType) -> int | None:
        """Return how many volumes of pods a node attaches beside its own, None if it is unknown.

        This is what the EBS CSI driver reports for a node with one network interface. Interfaces
        that the CNI adds later take further slots of types that share them.
        """
        most = machine.ebs_attachments
        own = len(self._facts.volumes) or self._family.own_volumes
        return None if most is None else max(most - own, 0)

    def devices(self, machine: MachineType) -> tuple[DeviceTemplate, ...]:
        """Return the devices that pods on a node can claim."""
        if not self._facts.device_drivers:
            return ()
        from reconciler.catalog.aws.devices import devices_of_type

        return devices_of_type(machine.name, self._facts.device_drivers, self._facts.gpu_sharing)

    def storage(self, machine: MachineType) -> int:
        """Return the size of the volume that pods write to, in thousandths of a byte."""
        if self._facts.raid0 and machine.storage_gb:
            return machine.storage_gb * 10**9 * MILLI
        return self._volume

    def overhead(self, machine: MachineType, amounts: Resources) -> Resources:
        """Return the part of the capacity ``amounts`` that is not available to pods.

        It is the sum of kubelet and system reservations and the eviction threshold.
        """
        if self._family.eni_overhead:
            count = eni_pods(machine, 0, self._efa_only_first_card)
        else:
            count = amounts[PODS] // MILLI
        total = {
            CPU: reserved_cpu(machine.cpu),
            MEMORY: (11 * count + 255) * _MIB_MILLI,
            EPHEMERAL_STORAGE: GIB,
        }
        total.update(self._kube_reserved)
        for name, amount in self._system_reserved:
            total[name] = total.get(name, 0) + amount
        storage = amounts[EPHEMERAL_STORAGE]
        evict_memory = _eviction_threshold(self._evict_memory, amounts[MEMORY])
        evict_storage = _eviction_threshold(self._evict_storage, storage)
        total[MEMORY] += 100 * _MIB_MILLI if evict_memory is None else evict_memory
        total[EPHEMERAL_STORAGE] += (
            percent_of(storage, 10.0) if evict_storage is None else evict_storage
        )
        return total


def _add_devices(machine: MachineType, amounts: Resources) -> None:
    for gpu in machine.gpus:
        name = _GPU_RESOURCES.get(gpu.manufacturer)
        if name and gpu.count:
            amounts[name] = amounts.get(name, 0) + gpu.count * MILLI
    if machine.neuron:
        first = machine.neuron[0]
        amounts["aws.amazon.com/neuron"] = sum(d.count for d in machine.neuron) * MILLI
        amounts["aws.amazon.com/neuroncore"] = first.count * first.cores * MILLI


def _volume_size(facts: ClassFacts) -> int:
    family, volumes = facts.flags, facts.volumes
    for volume in volumes:
        if volume.is_root and volume.size is not None:
            return volume.size
    if family.device is None:  # a Custom image: its root device is unknown
        size = volumes[-1].size if volumes else None
    else:
        size = next((v.size for v in volumes if v.device == family.device), None)
    return family.volume if size is None else size


def _eviction_threshold(text: str | None, amount: int) -> int | None:
    """Return an eviction threshold: a percentage of ``amount`` or a quantity; 100 % disables it."""
    if text is None:
        return None
    if not text.endswith("%"):
        return parse_quantity(text)
    percent = float(text[:-1])
    return 0 if percent == 100.0 else percent_of(amount, percent)


def _parse_quantities(texts: Texts) -> list[tuple[str, int]]:
    return [(name, parse_quantity(text)) for name, text in texts]
