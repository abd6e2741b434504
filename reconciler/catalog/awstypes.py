"""Labels, capacity and overhead of an EC2 node, from its machine and its node class.

The rules are Karpenter's (provider ``pkg/providers/instancetype/types.go``); the published table
of 1,363 types is what they are tested against. Amounts are thousandths of the unit, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from reconciler.catalog.classfacts import GIB, ClassFacts, Texts
from reconciler.catalog.machine import Accelerator, Machine, kebab
from reconciler.model.labels import ARCH, INSTANCE_TYPE, OS, WINDOWS_BUILD
from reconciler.model.quantity import MILLI, parse_quantity
from reconciler.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources

AWS: Final = "karpenter.k8s.aws/"
_MIB: Final = 2**20
_PODS_WITHOUT_DENSITY: Final = 110
_GPU_RESOURCES: Final = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Habana": "habana.ai/gaudi",
}


Label = Callable[[Machine], str | None]


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _accelerator(machine: Machine) -> Accelerator | None:
    """Return the one accelerator that has labels: Neuron devices come before all others."""
    devices = machine.neuron or machine.inference
    return devices[0] if len(devices) == 1 else None


def _of_accelerator(read: Callable[[Accelerator], str]) -> Label:
    def label(machine: Machine) -> str | None:
        device = _accelerator(machine)
        return None if device is None else read(device)

    return label


def _of_gpu(field: str) -> Label:
    """Return a label of a machine's GPU; only a machine with one kind of GPU has it."""

    def label(machine: Machine) -> str | None:
        return kebab(str(getattr(machine.gpus[0], field))) if len(machine.gpus) == 1 else None

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
    AWS + "instance-ebs-bandwidth": lambda m: _text(m.ebs_mbps),
    AWS + "instance-network-bandwidth": lambda m: _text(m.network_mbps),
    AWS + "instance-local-nvme": lambda m: _text(m.storage_gb) if m.storage_nvme else None,
    AWS + "instance-hypervisor": lambda m: m.hypervisor,
    AWS + "instance-encryption-in-transit-supported": lambda m: _flag(m.encryption_in_transit),
    AWS + "nitro-sandbox": lambda m: _flag(m.nitro_enclaves),
    AWS + "instance-capability-flex": lambda m: _flag("-flex" in m.family),
    AWS + "instance-gpu-name": _of_gpu("name"),
    AWS + "instance-gpu-manufacturer": _of_gpu("manufacturer"),
    AWS + "instance-gpu-count": _of_gpu("count"),
    AWS + "instance-gpu-memory": _of_gpu("memory_mib"),
    AWS + "instance-accelerator-name": _of_accelerator(lambda d: kebab(d.name)),
    AWS + "instance-accelerator-manufacturer": _of_accelerator(lambda d: kebab(d.manufacturer)),
    AWS + "instance-accelerator-count": _of_accelerator(lambda d: str(d.count)),
}
"""The labels that have one value and follow from the machine alone; None is «never borne»."""

TENANCIES: Final = ("default", "dedicated")


def class_labels(facts: ClassFacts) -> dict[str, Label]:
    """Return the single-valued labels that depend on the node class as well."""
    build = facts.flags.windows_build

    def system(machine: Machine) -> str | None:
        if build is None:
            return "linux"
        return "windows" if machine.arch == "amd64" else None  # there is no Windows for arm64

    return {OS: system, WINDOWS_BUILD: lambda _: build}


def capacity(machine: Machine, facts: ClassFacts) -> Resources:
    """Return what a node has before anything is set aside; resources it lacks are left out."""
    amounts = {
        CPU: machine.cpu * MILLI,
        MEMORY: memory(machine, facts.vm_memory_overhead_percent),
        PODS: pods(machine, facts) * MILLI,
        EPHEMERAL_STORAGE: storage(machine, facts),
    }
    for name, count in _devices(machine, facts):
        if count:
            amounts[name] = amounts.get(name, 0) + count * MILLI
    return amounts


def _devices(machine: Machine, facts: ClassFacts) -> Iterable[tuple[str, int]]:
    for gpu in machine.gpus:
        if gpu.manufacturer in _GPU_RESOURCES:
            yield _GPU_RESOURCES[gpu.manufacturer], gpu.count
    if machine.neuron:
        first = machine.neuron[0]
        yield "aws.amazon.com/neuron", sum(d.count for d in machine.neuron)
        yield "aws.amazon.com/neuroncore", first.count * first.cores
    asked = facts.efa_only
    yield "vpc.amazonaws.com/efa", machine.efa_interfaces if asked is None else asked
    yield "vpc.amazonaws.com/pod-eni", machine.branch_interfaces
    if facts.flags.is_windows and machine.windows_ipv4:
        yield "vpc.amazonaws.com/PrivateIPv4Address", machine.windows_ipv4 - 1


def memory(machine: Machine, overhead_percent: float) -> int:
    """Return the memory that a guest sees.

    Arm machines keep 64 MiB for themselves, and every hypervisor takes a share that nobody
    publishes: Karpenter estimates 7.5 %, rounded up to whole MiB, in binary floating point, and
    a MiB more or less would show, so the arithmetic is its own.
    """
    mebibytes = machine.memory_mib - (64 if machine.arch == "arm64" else 0)
    taken = math.ceil(mebibytes * _MIB * overhead_percent / 1024 / 1024)
    return (mebibytes - taken) * _MIB * MILLI


def eni_pods(machine: Machine, facts: ClassFacts, reserved_enis: int) -> int:
    """Return how many pods the network interfaces of the default card have addresses for.

    Each interface keeps one address; two pods more use the node's own (the AWS VPC CNI's rule).
    """
    first_card = machine.cards[0] if machine.cards else 0
    usable = first_card - reserved_enis - facts.efa_only_first_card
    if usable <= 0:
        return 0
    return usable * (machine.ipv4_per_interface - 1) + 2


def pods(machine: Machine, facts: ClassFacts) -> int:
    """Return how many pods the kubelet will accept."""
    family = facts.flags
    if facts.max_pods is not None:
        count = facts.max_pods
    elif family.eni_density:
        count = eni_pods(machine, facts, facts.reserved_enis)
    else:
        count = _PODS_WITHOUT_DENSITY
    if facts.pods_per_core and family.pods_per_core:
        count = min(facts.pods_per_core * machine.cpu, count)
    return count


def storage(machine: Machine, facts: ClassFacts) -> int:
    """Return the size of the volume that pods write to, in thousandths of a byte."""
    if facts.raid0 and machine.storage_gb:
        return machine.storage_gb * 10**9 * MILLI
    return _volume_size(facts)


def _volume_size(facts: ClassFacts) -> int:
    family, volumes = facts.flags, facts.volumes
    for volume in volumes:
        if volume.is_root and volume.size is not None:
            return volume.size
    if family.device is None:  # a Custom image: which device is its root cannot be known
        size = volumes[-1].size if volumes else None
    else:
        size = next((v.size for v in volumes if v.device == family.device), None)
    return family.volume if size is None else size


def overhead(machine: Machine, facts: ClassFacts, amounts: Resources) -> Resources:
    """Return what of the capacity ``amounts`` pods may not use: kubelet, system and eviction."""
    total = _kube_reserved(machine, facts, amounts)
    for name, amount in _quantities(facts.system_reserved):
        total[name] = total.get(name, 0) + amount
    for name, amount in _eviction(facts, amounts).items():
        total[name] = total.get(name, 0) + amount
    return total


def _kube_reserved(machine: Machine, facts: ClassFacts, amounts: Resources) -> Resources:
    count = eni_pods(machine, facts, 0) if facts.flags.eni_overhead else amounts[PODS] // MILLI
    reserved = {
        CPU: _reserved_cpu(machine.cpu),
        MEMORY: (11 * count + 255) * _MIB * MILLI,
        EPHEMERAL_STORAGE: GIB,
    }
    reserved.update(_quantities(facts.kube_reserved))
    return reserved


def _reserved_cpu(cores: int) -> int:
    """Return the milli-cores kept for the kubelet: a share that falls with the number of cores.

    6 % of the first core, 1 % of the second, 0.5 % of the third and fourth, 0.25 % of the rest,
    each cut to whole milli-cores before they are added.
    """
    total, milli = 0, cores * MILLI
    for start, end, per_10000 in ((0, 1, 600), (1, 2, 100), (2, 4, 50), (4, cores, 25)):
        span = min(milli, end * MILLI) - start * MILLI
        total += max(span, 0) * per_10000 // 10000
    return total


def _eviction(facts: ClassFacts, amounts: Resources) -> Resources:
    given = dict(facts.eviction_hard)
    return {
        MEMORY: _threshold(given.get("memory.available"), amounts[MEMORY], 100 * _MIB * MILLI),
        EPHEMERAL_STORAGE: _threshold(
            given.get("nodefs.available"),
            amounts[EPHEMERAL_STORAGE],
            _share(amounts[EPHEMERAL_STORAGE], 10.0),
        ),
    }


def _threshold(text: str | None, amount: int, default: int) -> int:
    """Return an eviction threshold: a share of ``amount``, or a quantity; 100 % switches it off."""
    if text is None:
        return default
    if not text.endswith("%"):
        return parse_quantity(text)
    percent = float(text[:-1])
    return 0 if percent == 100.0 else _share(amount, percent)


def _share(amount: int, percent: float) -> int:
    """Return a share of ``amount`` in whole bytes, rounded up, by Karpenter's floating point."""
    return math.ceil(amount / MILLI / 100 * percent) * MILLI


def _quantities(texts: Texts) -> Iterable[tuple[str, int]]:
    return [(name, parse_quantity(text)) for name, text in texts]
