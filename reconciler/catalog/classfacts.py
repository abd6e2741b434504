"""The parts of a node class that determine the size of its nodes and their zones.

Classes with the same facts resolve to the same instance types, so the facts are the cache key of a
resolved catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from reconciler.model.json import as_mapping
from reconciler.model.karpenter.labels import GPU_SHARING
from reconciler.model.karpenter.nodeclass import BlockDeviceMapping, EC2NodeClass
from reconciler.model.resources import parse_quantity
from reconciler.model.settings import FeatureGate, PlacementGroup, Settings
from reconciler.model.text.quoting import quote_value

GIB: Final = 2**30 * 1000
_DEFAULT_VOLUME: Final = 20 * GIB

_DRIVERS: Final = {
    FeatureGate.DRA_NVIDIA_GPU: "gpu.nvidia.com",
    FeatureGate.DRA_EFA: "dra.net",
}


class ImageFamily(msgspec.Struct, frozen=True):
    """The effects of an image family on capacity and overhead (Karpenter ``FeatureFlags``).

    With ``eni_density``, pods are limited by network interfaces, not to 110. With
    ``pods_per_core``, that kubelet setting applies. With ``eni_overhead``, memory is reserved for
    as many pods as interfaces support, even if fewer are allowed. ``device`` is the volume for
    pods' files and ``volume`` its size in thousandths of a byte. ``own_volumes`` is how many
    volumes a node has if its class does not list them.
    """

    eni_density: bool = True
    pods_per_core: bool = True
    eni_overhead: bool = True
    device: str | None = "/dev/xvda"
    volume: int = _DEFAULT_VOLUME
    windows_build: str | None = None
    own_volumes: int = 1

    @property
    def is_windows(self) -> bool:
        return self.windows_build is not None


def _windows_family(build: str) -> ImageFamily:
    return ImageFamily(
        eni_density=False,
        eni_overhead=False,
        device="/dev/sda1",
        volume=50 * GIB,
        windows_build=build,
    )


FAMILIES: Final = {
    "AL2": ImageFamily(),
    "AL2023": ImageFamily(),
    "Bottlerocket": ImageFamily(
        pods_per_core=False, eni_overhead=False, device="/dev/xvdb", own_volumes=2
    ),
    "Custom": ImageFamily(device=None),
    "Windows2019": _windows_family("10.0.17763"),
    "Windows2022": _windows_family("10.0.20348"),
    "Windows2025": _windows_family("10.0.26100"),
}


class DeviceMapping(msgspec.Struct, frozen=True):
    """A block device mapping: its device, and its size in thousandths of a byte if set."""

    device: str | None
    size: int | None
    is_root: bool = False


class Interface(msgspec.Struct, frozen=True):
    """A network interface that the class requests, by card and device index."""

    card: int
    device: int
    efa_only: bool = False


class Reservation(msgspec.Struct, frozen=True):
    """A capacity reservation that the class may use, and its remaining instances if known."""

    id: str
    instance_type: str
    zone: str
    kind: str = "default"
    interruptible: bool = False
    expiring: bool = False
    remaining: int | None = None


Texts = tuple[tuple[str, str], ...]


class ClassFacts(msgspec.Struct, frozen=True):
    """The facts; the defaults are those of an AL2023 class without settings.

    ``zones`` are the zones of the class's subnets with their ids; None means unknown, and every
    zone of the region is then allowed. ``strategy`` is that of the class's placement group.
    Reserved amounts and eviction thresholds are pairs of key and quantity, sorted by key.
    ``memory`` is the memory reported by registered nodes of the class, by instance type, in
    thousandths of a byte; it replaces the hypervisor estimate. ``problem`` is the reason why no
    type suits the class: its kubelet settings cannot be evaluated, and a node of unknown size must
    not be launched. ``device_drivers`` are the DRA drivers whose devices can be claimed, and
    ``gpu_sharing`` is the mode in which that of NVIDIA shares GPUs.
    """

    family: str = "AL2023"
    max_pods: int | None = None
    pods_per_core: int | None = None
    kube_reserved: Texts = ()
    system_reserved: Texts = ()
    eviction_hard: Texts = ()
    volumes: tuple[DeviceMapping, ...] = ()
    raid0: bool = False
    interfaces: tuple[Interface, ...] = ()
    connection_tracking: bool = False
    nested_virtualization: bool = False
    nitro_enclaves: bool = False
    placement_group: str | None = None
    strategy: str | None = None
    partitions: int = 0
    reservations: tuple[Reservation, ...] = ()
    zones: tuple[tuple[str, str], ...] | None = None
    vm_memory_overhead_percent: float = 0.075
    reserved_enis: int = 0
    problem: str | None = None
    memory: tuple[tuple[str, int], ...] = ()
    device_drivers: tuple[str, ...] = ()
    gpu_sharing: str = ""

    @property
    def flags(self) -> ImageFamily:
        """The flags of the image family; an unknown family is treated as Custom."""
        return FAMILIES.get(self.family, FAMILIES["Custom"])

    @property
    def efa_only(self) -> int | None:
        """The number of EFA-only interfaces; None if the class does not define interfaces."""
        return sum(i.efa_only for i in self.interfaces) if self.interfaces else None

    @property
    def efa_only_first_card(self) -> int:
        """The number of EFA-only interfaces on card 0, which carry no pods."""
        return sum(i.efa_only and i.card == 0 for i in self.interfaces)


def placement_group_of(node_class: EC2NodeClass, settings: Settings) -> PlacementGroup | None:
    """Return the placement group of a class: as resolved, or else from the settings."""
    if node_class.spec.placement_group_selector is None:
        return None
    found = node_class.status.placement_group
    if found is None:
        return settings.placement_group
    return PlacementGroup(found.id, found.name, found.strategy, found.partition_count)


def class_facts(
    node_class: EC2NodeClass, settings: Settings, memory: tuple[tuple[str, int], ...] = ()
) -> ClassFacts:
    """Return the facts of a node class; ``memory`` is what its nodes reported.

    Kubelet settings that are expressions (gate NodeClassCEL) are not evaluated here. They become
    the facts' ``problem``, as do invalid quantities.

    Raises:
        ValueError: a volume size is not a quantity.
    """
    spec, status = node_class.spec, node_class.status
    problem = _kubelet_problem(spec.kubelet)
    kubelet = {} if problem else spec.kubelet
    group = placement_group_of(node_class, settings) or PlacementGroup()
    return ClassFacts(
        family=node_class.ami_family,
        max_pods=_integer_or_none(kubelet.get("maxPods")),
        pods_per_core=_integer_or_none(kubelet.get("podsPerCore")),
        kube_reserved=_sorted_items(kubelet.get("kubeReserved")),
        system_reserved=_sorted_items(kubelet.get("systemReserved")),
        eviction_hard=_sorted_items(kubelet.get("evictionHard")),
        volumes=tuple(map(_volume, spec.block_device_mappings)),
        raid0=spec.instance_store_policy == "RAID0",
        interfaces=tuple(
            Interface(i.network_card_index, i.device_index, i.interface_type == "efa-only")
            for i in spec.network_interfaces
        ),
        connection_tracking=spec.connection_tracking is not None,
        nested_virtualization=spec.cpu_options is not None
        and spec.cpu_options.nested_virtualization == "enabled",
        nitro_enclaves=spec.enclave_options is not None and spec.enclave_options.enabled,
        placement_group=group.id or None,
        strategy=group.strategy or None,
        partitions=group.partition_count,
        reservations=_reservations(node_class, settings),
        zones=tuple(sorted({(s.zone, s.zone_id) for s in status.subnets})) or None,
        vm_memory_overhead_percent=settings.vm_memory_overhead_percent,
        reserved_enis=settings.reserved_enis,
        problem=problem,
        memory=memory,
        device_drivers=device_drivers(settings),
        gpu_sharing=node_class.metadata.annotations.get(GPU_SHARING, ""),
    )


def device_drivers(settings: Settings) -> tuple[str, ...]:
    """Return the DRA drivers whose devices instance types have."""
    if settings.ignores_resource_claims:
        return ()
    return tuple(driver for gate, driver in _DRIVERS.items() if settings.gate(gate))


def _kubelet_problem(kubelet: Mapping[str, object]) -> str | None:
    """Return why the kubelet settings cannot be evaluated, or None."""
    for name in ("maxPods", "podsPerCore"):
        value = kubelet.get(name)
        if value is not None and _integer_or_none(value) is None:
            return f"spec.kubelet.{name} is not a number: {quote_value(value)}"
    for name in ("kubeReserved", "systemReserved", "evictionHard"):
        for key, text in _sorted_items(kubelet.get(name)):
            if not _is_amount(text, share=name == "evictionHard"):
                return f"spec.kubelet.{name}.{key} is not a quantity: {quote_value(text)}"
    return None


def _is_amount(text: str, *, share: bool) -> bool:
    try:
        if share and text.endswith("%"):
            return 0 <= float(text[:-1]) <= 100
        return parse_quantity(text) >= 0
    except ValueError:
        return False


def _reservations(node_class: EC2NodeClass, settings: Settings) -> tuple[Reservation, ...]:
    """Return the reservations of a class; without their feature gate, none is used."""
    if not settings.gate(FeatureGate.RESERVED_CAPACITY):
        return ()
    return tuple(
        Reservation(
            id=r.id,
            instance_type=r.instance_type,
            zone=r.availability_zone,
            kind=r.reservation_type or "default",
            interruptible=r.interruptible,
            expiring=r.state == "expiring",
            remaining=r.available_instance_count,
        )
        for r in node_class.status.capacity_reservations
    )


def _integer_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sorted_items(value: object) -> Texts:
    items = as_mapping(value).items()
    return tuple(sorted((str(key), str(text)) for key, text in items))


def _volume(mapping: BlockDeviceMapping) -> DeviceMapping:
    size = mapping.ebs.volume_size if mapping.ebs else None
    amount = None if size is None else parse_quantity(str(size))
    return DeviceMapping(mapping.device_name, amount, mapping.root_volume)
