"""The devices of instance types that pods can claim from DRA drivers: NVIDIA GPUs and EFA.

The data is what both drivers publish on each type, as the AWS provider of Karpenter 1.15 has
collected it (``pkg/providers/drametadata``). What a driver only knows at run time is left out; the
GPUs of a node are bound to share it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Final

import msgspec

from reconciler.catalog.classfacts import device_drivers
from reconciler.model.decode import decode_json
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import GPU_SHARING
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.kubernetes.devices import (
    AttributeBinding,
    CapacityRange,
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTemplate,
)
from reconciler.model.settings import Settings

GPU_DRIVER: Final = "gpu.nvidia.com"
EFA_DRIVER: Final = "dra.net"

_BOUND: Final = ("gpu.nvidia.com/driverVersion", "gpu.nvidia.com/cudaDriverVersion")
_PATH: Final = os.path.join(os.path.dirname(__file__), "data", "devices.json")


class _Kind(msgspec.Struct, frozen=True):
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}


class _Devices(msgspec.Struct, frozen=True):
    """``types`` has the kind of each device of a type, by its position in ``kinds``."""

    kinds: tuple[_Kind, ...]
    types: dict[str, tuple[int, ...]]


class _Data(msgspec.Struct, frozen=True):
    gpu: _Devices
    efa: _Devices


@cache
def _data() -> _Data:
    with open(_PATH, "rb") as file:
        return decode_json(file.read(), _Data)


def drivers_of_nodes(
    settings: Settings, classes: Callable[[], Mapping[str, EC2NodeClass]]
) -> Callable[[InstanceType, str], tuple[DeviceTemplate, ...]]:
    """Return a function from a node's type and the name of its class to what its drivers publish.

    EC2's drivers run where they are enabled, and share the GPUs of a node as its class says;
    ``classes`` returns the classes now. The types of a catalog file have devices of their own.
    """
    drivers = device_drivers(settings)

    def devices_of_node(kind: InstanceType, class_name: str) -> tuple[DeviceTemplate, ...]:
        if kind.devices or not drivers:
            return kind.devices
        node_class = classes().get(class_name)
        sharing = node_class.metadata.annotations.get(GPU_SHARING, "") if node_class else ""
        return devices_of_type(kind.name, drivers, sharing)

    return devices_of_node


@lru_cache(maxsize=4096)
def devices_of_type(
    name: str, drivers: tuple[str, ...], sharing: str = ""
) -> tuple[DeviceTemplate, ...]:
    """Return the devices of an instance type, from those of its drivers that are enabled."""
    found = []
    if GPU_DRIVER in drivers and name in _data().gpu.types:
        found.append(_gpus(name, sharing))
    if EFA_DRIVER in drivers and name in _data().efa.types:
        kinds = _data().efa
        devices = tuple(
            Device(name=f"efa-{number}", attributes=kinds.kinds[kind].attributes)
            for number, kind in enumerate(kinds.types[name])
        )
        found.append(DeviceTemplate(EFA_DRIVER, f"network-{name}", devices))
    return tuple(found)


def _gpus(name: str, sharing: str) -> DeviceTemplate:
    known = _data().gpu
    devices = []
    for number, position in enumerate(known.types[name]):
        kind = known.kinds[position]
        memory = kind.capacity.get("memory")
        shares = memory is not None and sharing not in ("", "disabled")
        devices.append(
            Device(
                name=f"gpu-{number}",
                attributes=kind.attributes,
                capacity=_shared(memory, sharing) if memory and shares else kind.capacity,
                allow_multiple_allocations=shares,
            )
        )
    names = tuple(device.name for device in devices)
    bindings = tuple(AttributeBinding(attribute, names) for attribute in _BOUND)
    return DeviceTemplate(GPU_DRIVER, f"gpus-{name}", tuple(devices), bindings=bindings)


def _shared(memory: DeviceCapacity, sharing: str) -> dict[str, DeviceCapacity]:
    """Return the capacities of a GPU that several claims share, by the driver's policies."""
    whole = sharing == "memory"
    policy = CapacityRequestPolicy(
        default=memory.value if whole else "0",
        valid_range=CapacityRange("1Mi" if whole else "0", memory.value, "1Mi"),
    )
    found = {"memory": DeviceCapacity(memory.value, policy)}
    if sharing.isdecimal():
        share = CapacityRequestPolicy(default="1", valid_range=CapacityRange("1", sharing, "1"))
        found["shares"] = DeviceCapacity(sharing, share)
    return found
