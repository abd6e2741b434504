"""Objects of dynamic resource allocation: claims on devices, their classes, and what nodes publish.

They are read in the versions v1, v1beta2 and v1beta1 of ``resource.k8s.io``. The fields of v1 are
named here; v1beta1 nests those of a device in ``basic`` and does not nest those of a request, which
the properties hide.
"""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import NodeSelector
from reconciler.model.kubernetes.taint import Taint, Toleration

EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"
RESULTS_MAX: Final = 32
"""The maximum number of devices of a claim (``AllocationResultsMaxSize``)."""

Amount = str | int | float


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of an object in the API's spelling."""


class CELSelector(_Struct, frozen=True):
    expression: str = ""


class DeviceSelector(_Struct, frozen=True):
    """A condition on devices; CEL is the only kind so far."""

    cel: CELSelector | None = None


class DeviceClassSpec(_Struct, frozen=True):
    selectors: tuple[DeviceSelector, ...] = ()
    extended_resource_name: str = ""


class DeviceClass(_Struct, frozen=True):
    """A kind of device that requests name."""

    metadata: Metadata
    spec: DeviceClassSpec = DeviceClassSpec()


class CapacityRequirements(_Struct, frozen=True):
    requests: dict[str, Amount] = {}


class DeviceSubRequest(_Struct, frozen=True):
    """What is requested: devices of a class, all or a number of them.

    ``name`` is set in the alternatives of a request.
    """

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequirements = CapacityRequirements()


class DeviceRequest(DeviceSubRequest, frozen=True):
    """A request of a claim: ``exactly`` something, or the ``first_available`` of alternatives.

    The fields of ``DeviceSubRequest`` are those of ``exactly`` in v1beta1.
    """

    exactly: DeviceSubRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()

    @property
    def alternatives(self) -> tuple[DeviceSubRequest, ...]:
        """What is requested, the preferred alternative first."""
        if self.first_available:
            return self.first_available
        if self.exactly is not None:
            return (self.exactly,)
        return (msgspec.structs.replace(self, name=""),)


class DeviceConstraint(_Struct, frozen=True):
    """Requires that the devices of some requests have the same, or different, values.

    Without ``requests`` it applies to all of them.
    """

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class ClaimedDevices(_Struct, frozen=True):
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()


class ResourceClaimSpec(_Struct, frozen=True):
    devices: ClaimedDevices = ClaimedDevices()


class AllocatedDevice(_Struct, frozen=True):
    """A device of an allocated claim."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    consumed_capacity: dict[str, Amount] = {}


class AllocatedDevices(_Struct, frozen=True):
    results: tuple[AllocatedDevice, ...] = ()


class Allocation(_Struct, frozen=True):
    """The devices of a claim, and the nodes from which they can be used."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None


class ClaimConsumer(_Struct, frozen=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""

    @property
    def is_pod(self) -> bool:
        return self.resource == "pods" and not self.api_group


class ResourceClaimStatus(_Struct, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaim(_Struct, frozen=True):
    """Devices that one pod uses, or several that name it."""

    metadata: Metadata
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"


class ResourceClaimTemplateSpec(_Struct, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(_Struct, frozen=True):
    """The claim that each pod gets for itself."""

    metadata: Metadata
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"


class DeviceAttribute(_Struct, frozen=True):
    """The value of an attribute; exactly one field is set."""

    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None

    @property
    def value(self) -> tuple[str, str | int | bool]:
        """The type and the value: values of different types never match."""
        for kind, value in (
            ("string", self.string),
            ("int", self.int_),
            ("bool", self.bool_),
            ("version", self.version),
        ):
            if value is not None:
                return kind, value
        return "none", ""


class CapacityRange(_Struct, frozen=True):
    min: Amount | None = None
    max: Amount | None = None
    step: Amount | None = None


class CapacityRequestPolicy(_Struct, frozen=True):
    """Which amounts of a capacity can be requested; others are rounded up to the next one."""

    default: Amount | None = None
    valid_values: tuple[Amount, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(_Struct, frozen=True):
    value: Amount = "0"
    request_policy: CapacityRequestPolicy | None = None


class Counter(_Struct, frozen=True):
    value: Amount = "0"


class CounterSet(_Struct, frozen=True):
    """Amounts that devices of a pool share: such as the memory of a GPU with partitions."""

    name: str = ""
    counters: dict[str, Counter] = {}


class CounterConsumption(_Struct, frozen=True):
    counter_set: str = ""
    counters: dict[str, Counter] = {}


class BasicDevice(_Struct, frozen=True):
    """The properties of a device; in v1beta1 they have this level of their own."""

    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: tuple[Taint, ...] = ()
    allow_multiple_allocations: bool = False


class Device(BasicDevice, frozen=True):
    """A device that can be allocated."""

    name: str = ""
    basic: BasicDevice | None = None

    @property
    def properties(self) -> BasicDevice:
        return self if self.basic is None else self.basic


class ResourcePool(_Struct, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(_Struct, frozen=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(_Struct, frozen=True):
    """Devices that a driver publishes, usually those of one node."""

    metadata: Metadata
    spec: ResourceSliceSpec = ResourceSliceSpec()

    @property
    def owner_node(self) -> str:
        """The node whose driver published it, empty for devices of the cluster."""
        return next((o.name for o in self.metadata.owner_references if o.kind == "Node"), "")


DeviceObject = DeviceClass | ResourceClaim | ResourceClaimTemplate | ResourceSlice
DEVICE_KINDS: Final[dict[str, type[DeviceObject]]] = {
    "DeviceClass": DeviceClass,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ResourceClaimTemplate,
    "ResourceSlice": ResourceSlice,
}


class AttributeBinding(_Struct, frozen=True):
    """Devices that will share the value of an attribute that only their driver knows."""

    attribute: str = ""
    devices: tuple[str, ...] = ()


class DeviceTemplate(_Struct, frozen=True):
    """The devices of one driver on the nodes of an instance type.

    ``bindings`` name devices of the same driver.
    """

    driver: str = ""
    pool: str = ""
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    bindings: tuple[AttributeBinding, ...] = ()


def published_slices(node: str, templates: tuple[DeviceTemplate, ...]) -> list[ResourceSlice]:
    """Return the slices that the drivers of a node publish."""
    found = []
    for template in templates:
        parts: list[tuple[tuple[Device, ...], tuple[CounterSet, ...]]] = [(template.devices, ())]
        if template.shared_counters:
            parts.insert(0, ((), template.shared_counters))
        for number, (devices, counters) in enumerate(parts):
            pool = ResourcePool(name=node, generation=1, resource_slice_count=len(parts))
            found.append(
                ResourceSlice(
                    Metadata(name=f"{node}-{template.driver}-{number}"),
                    ResourceSliceSpec(
                        driver=template.driver,
                        pool=pool,
                        node_name=node,
                        devices=devices,
                        shared_counters=counters,
                    ),
                )
            )
    return found
