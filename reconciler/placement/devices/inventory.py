"""The devices that a node has, and how much of them is in use.

An inventory is a value: nodes and instance types with equal devices share one, whatever their pools
are called. Its state is a value as well, so the result of an allocation is computed once for any
number of nodes. A set of devices is one integer in which device *i* is bit *i*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from reconciler.catalog.table import mask_of_flags
from reconciler.model.expressions.evaluation import evaluate
from reconciler.model.expressions.selectors import selector_tree
from reconciler.model.expressions.syntax import CELError
from reconciler.model.expressions.values import DefaultingMap, Quantity, parse_version
from reconciler.model.kubernetes.devices import (
    AttributeBinding,
    BasicDevice,
    CapacityRequestPolicy,
    CounterSet,
    Device,
    ResourceSlice,
)
from reconciler.model.kubernetes.taint import Taint, repelling_taints
from reconciler.model.resources import parse_quantity
from reconciler.placement.devices.needs import Alternative
from reconciler.placement.devices.reach import Reach, reach_of

_encode = msgspec.json.Encoder(order="deterministic").encode


class DeviceState(NamedTuple):
    """What is in use of an inventory: devices, consumed capacity, and what counters have left."""

    used: int
    consumed: tuple[int, ...]
    left: tuple[int, ...]


class PoolDevices(msgspec.Struct, frozen=True):
    """The devices of one pool of a driver, from all of its slices.

    ``is_complete`` is whether all slices of the current generation are there.
    """

    driver: str
    pool: str
    devices: tuple[Device, ...] = ()
    counters: tuple[CounterSet, ...] = ()
    bindings: tuple[AttributeBinding, ...] = ()
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Capacity:
    """An amount of a device that can be shared: ``index`` is its position in a state."""

    name: str
    total: int
    policy: CapacityRequestPolicy | None
    index: int

    def consumed_by(self, requested: int | None) -> int | None:
        """Return what a request consumes, in thousandths; None if the policy does not allow it."""
        policy = self.policy
        if requested is None:
            default = _amount(policy.default) if policy is not None else None
            return self.total if default is None else default
        return requested if policy is None else _rounded(requested, policy)


@dataclass(frozen=True, slots=True, eq=False)
class ListedDevice:
    """A device of an inventory.

    Devices of one ``kind`` are interchangeable. ``consumes`` are amounts by the position of the
    counter in a state. ``bound`` has the group of devices that share each attribute which only
    the driver knows. ``reach`` is None for a device that belongs to a node.
    """

    driver: str
    pool: str
    name: str
    kind: int
    variables: Mapping[str, object]
    attributes: Mapping[str, object]
    capacities: tuple[Capacity, ...]
    consumes: tuple[tuple[int, int], ...]
    taints: tuple[Taint, ...]
    is_shared: bool
    bound: Mapping[str, int]
    reach: Reach | None = None

    def attribute(self, name: str) -> object | None:
        """Return the value of a qualified attribute, or the group with which it will be shared."""
        domain, _, short = name.partition("/")
        found = self.attributes.get(name)
        if found is None and domain == self.driver:
            found = self.attributes.get(short)
        if found is not None:
            return found
        group = self.bound.get(name)
        return None if group is None else ("bound", group)


@dataclass(eq=False)
class Inventory:
    """The devices of a node, with the state in which none is in use.

    ``reachable`` are those that can be chosen.
    """

    devices: tuple[ListedDevice, ...]
    empty: DeviceState
    is_complete: bool = True
    reachable: int = -1
    _matching: dict[tuple[str, ...], tuple[int, str]] = field(default_factory=dict)
    _tolerated: dict[object, int] = field(default_factory=dict)
    known: dict[object, tuple[object, Any]] = field(default_factory=dict)

    @cached_property
    def has_shared(self) -> bool:
        """Whether a device can be allocated several times."""
        return any(device.is_shared for device in self.devices)

    def matching(self, conditions: tuple[str, ...]) -> int:
        """Return the devices that meet all conditions; one without a value does not meet it."""
        return self._evaluated(conditions)[0]

    def unreadable(self, conditions: tuple[str, ...]) -> str:
        """Return a device for which a condition cannot be evaluated, empty if there is none."""
        return self._evaluated(conditions)[1]

    def _evaluated(self, conditions: tuple[str, ...]) -> tuple[int, str]:
        known = self._matching.get(conditions)
        if known is None:
            verdicts = [
                meets_all(device, conditions) if self.reachable >> index & 1 else False
                for index, device in enumerate(self.devices)
            ]
            failed = (d.name for d, v in zip(self.devices, verdicts, strict=True) if v is None)
            known = mask_of_flags(verdict is True for verdict in verdicts), next(failed, "")
            self._matching[conditions] = known
        return known

    def tolerated(self, request: Alternative) -> int:
        """Return the devices whose taints a request tolerates."""
        known = self._tolerated.get(request.tolerations)
        if known is None:
            known = mask_of_flags(
                not repelling_taints(device.taints, request.tolerations) for device in self.devices
            )
            self._tolerated[request.tolerations] = known
        return known

    def with_device(
        self, state: DeviceState, index: int, consumed: Mapping[str, int] | None = None
    ) -> DeviceState:
        """Return the state in which a device is in use as well, also if that is too much."""
        device = self.devices[index]
        left = list(state.left)
        for counter, amount in device.consumes:
            left[counter] -= amount
        if not device.is_shared:
            return DeviceState(state.used | 1 << index, state.consumed, tuple(left))
        amounts = list(state.consumed)
        for capacity in device.capacities:
            amounts[capacity.index] += (consumed or {}).get(capacity.name, 0)
        return DeviceState(state.used, tuple(amounts), tuple(left))


def meets_all(device: ListedDevice, conditions: Iterable[str]) -> bool | None:
    """Return whether a device meets all conditions, None if one cannot be evaluated for it.

    Those after the first that is not met are not evaluated.
    """
    try:
        return all(evaluate(selector_tree(text), device.variables) is True for text in conditions)
    except CELError:
        return None


class InventoryBook:
    """All inventories of a scheduler, one object for equal devices."""

    def __init__(self) -> None:
        self._known: dict[bytes, Inventory] = {}
        self.none = self.inventory(())

    def inventory(self, pools: Sequence[PoolDevices]) -> Inventory:
        """Return the inventory of these pools, in the order of drivers."""
        ordered = sorted(pools, key=lambda p: (p.driver, p.pool))
        content = _encode(
            [(p.driver, p.devices, p.counters, p.bindings, p.is_complete) for p in ordered]
        )
        known = self._known.get(content)
        if known is None:
            known = self._known[content] = _build(ordered)
        return known


def position_of(pools: Iterable[PoolDevices], driver: str, pool: str, device: str) -> int | None:
    """Return the position of a device in the inventory of these pools, or None."""
    start = 0
    for known in sorted(pools, key=lambda p: (p.driver, p.pool)):
        listed = known.devices if known.is_complete and is_valid(known) else ()
        if (known.driver, known.pool) == (driver, pool):
            names = [item.name for item in listed]
            return start + names.index(device) if device in names else None
        start += len(listed)
    return None


def pools_of(slices: Iterable[ResourceSlice]) -> tuple[PoolDevices, ...]:
    """Return the pools that slices describe, each in its newest generation.

    As in kube-scheduler, devices are in the order of the names of their slices.
    """
    by_pool: dict[tuple[str, str], list[ResourceSlice]] = {}
    for item in sorted(slices, key=lambda s: s.metadata.name):
        key = item.spec.driver, item.spec.pool.name
        known = by_pool.setdefault(key, [])
        newest = known[0].spec.pool.generation if known else item.spec.pool.generation
        if item.spec.pool.generation > newest:
            known.clear()
        if item.spec.pool.generation >= newest:
            known.append(item)
    return tuple(
        PoolDevices(
            driver,
            pool,
            tuple(d for s in members if not s.spec.shared_counters for d in s.spec.devices),
            tuple(chain.from_iterable(s.spec.shared_counters for s in members)),
            is_complete=len(members) == members[0].spec.pool.resource_slice_count,
        )
        for (driver, pool), members in sorted(by_pool.items())
    )


def is_valid(pool: PoolDevices) -> bool:
    """Return whether names are unique, counters exist, and amounts can be read."""
    sets = {c.name: c.counters for c in pool.counters}
    if len(sets) < len(pool.counters) or len({d.name for d in pool.devices}) < len(pool.devices):
        return False
    for device in pool.devices:
        for item in device.properties.consumes_counters:
            if not item.counters.keys() <= sets.get(item.counter_set, {}).keys():
                return False
    try:
        _read_amounts(pool)
    except ValueError:
        return False
    return True


def _read_amounts(pool: PoolDevices) -> None:
    for counters in pool.counters:
        for counter in counters.counters.values():
            parse_quantity(str(counter.value))
    for device in pool.devices:
        for capacity in device.properties.capacity.values():
            parse_quantity(str(capacity.value))
            if capacity.request_policy is not None:
                _rounded(0, capacity.request_policy)
        for item in device.properties.consumes_counters:
            for counter in item.counters.values():
                parse_quantity(str(counter.value))


def _build(pools: Sequence[PoolDevices]) -> Inventory:
    devices: list[ListedDevice] = []
    left: list[int] = []
    kinds: dict[bytes, int] = {}
    dimensions = 0
    is_complete = True
    for pool in pools:
        if not pool.is_complete or not is_valid(pool):
            is_complete = False
            continue
        positions: dict[tuple[str, str], int] = {}
        for counters in pool.counters:
            for name, counter in counters.counters.items():
                positions[counters.name, name] = len(left)
                left.append(parse_quantity(str(counter.value)))
        groups = _groups(pool)
        for device in pool.devices:
            bound = groups.get(device.name, {})
            listed = _listed(pool, device, positions, kinds, dimensions, bound)
            dimensions += len(listed.capacities) if listed.is_shared else 0
            devices.append(listed)
    empty = DeviceState(0, (0,) * dimensions, tuple(left))
    return Inventory(tuple(devices), empty, is_complete)


def _listed(
    pool: PoolDevices,
    device: Device,
    positions: Mapping[tuple[str, str], int],
    kinds: dict[bytes, int],
    start: int,
    bound: Mapping[str, int],
) -> ListedDevice:
    own = device.properties
    content = _encode(
        (
            pool.driver,
            pool.pool,
            own.attributes,
            own.capacity,
            own.consumes_counters,
            own.taints,
            own.allow_multiple_allocations,
            sorted(bound.items()),
            own.node_name,
            own.node_selector,
            own.all_nodes,
        )
    )
    capacities = tuple(
        Capacity(name, parse_quantity(str(item.value)), item.request_policy, start + position)
        for position, (name, item) in enumerate(sorted(own.capacity.items()))
    )
    consumes: dict[int, int] = {}
    for item in own.consumes_counters:
        for name, counter in item.counters.items():
            at = positions[item.counter_set, name]
            consumes[at] = consumes.get(at, 0) + parse_quantity(str(counter.value))
    return ListedDevice(
        pool.driver,
        pool.pool,
        device.name,
        kinds.setdefault(content, len(kinds)),
        {"device": _variables(pool.driver, own)},
        {name: item.value for name, item in own.attributes.items()},
        capacities,
        tuple(sorted(consumes.items())),
        own.taints,
        own.allow_multiple_allocations,
        bound,
        reach_of(own),
    )


def _groups(pool: PoolDevices) -> dict[str, dict[str, int]]:
    """Return the group of each device by attribute; bindings that overlap are one group."""
    found: dict[str, dict[str, int]] = {}
    for number, binding in enumerate(pool.bindings):
        if len(binding.devices) < 2:
            continue
        known = {found.get(name, {}).get(binding.attribute) for name in binding.devices} - {None}
        for name in binding.devices:
            found.setdefault(name, {})[binding.attribute] = number
        for groups in found.values():
            if groups.get(binding.attribute) in known:
                groups[binding.attribute] = number
    return found


def _variables(driver: str, device: BasicDevice) -> dict[str, object]:
    """Return the variable ``device`` of selectors, as Kubernetes defines it."""
    attributes: dict[str, dict[str, object]] = {}
    for name, item in device.attributes.items():
        domain, short = _split(name, driver)
        kind, value = item.value
        try:
            attributes.setdefault(domain, {})[short] = (
                parse_version(str(value)) if kind == "version" else value
            )
        except CELError:
            continue
    capacity: dict[str, dict[str, object]] = {}
    for name, amount in device.capacity.items():
        domain, short = _split(name, driver)
        capacity.setdefault(domain, {})[short] = Quantity(parse_quantity(str(amount.value)))
    return {
        "driver": driver,
        "attributes": DefaultingMap(attributes),
        "capacity": DefaultingMap(capacity),
        "allowMultipleAllocations": device.allow_multiple_allocations,
    }


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, short = name.partition("/")
    return (domain, short) if slash else (driver, name)


def _amount(value: str | float | None) -> int | None:
    return None if value is None else parse_quantity(str(value))


def _rounded(requested: int, policy: CapacityRequestPolicy) -> int | None:
    """Return a request, rounded up to what a policy allows; None if that is too much."""
    values = sorted(parse_quantity(str(value)) for value in policy.valid_values)
    if policy.valid_range is not None:
        least, most = _amount(policy.valid_range.min), _amount(policy.valid_range.max)
        step = _amount(policy.valid_range.step)
        if least is not None and requested < least:
            requested = least
        elif least is not None and step:
            requested = least + -(-(requested - least) // step) * step
        return None if most is not None and requested > most else requested
    if values:
        return next((value for value in values if requested <= value), None)
    return requested
