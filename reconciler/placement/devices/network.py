"""Devices that several nodes reach, such as those of a fabric: they exist once for all of them.

Their slices have a node selector, name all nodes, or select nodes for each device. What a claim
takes of them is taken for every node, in contrast to the devices that nodes have. A pod whose
claims none of them suits is placed as if there were none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from reconciler.catalog.table import mask_of_flags
from reconciler.model.kubernetes.devices import Device, ResourceSlice
from reconciler.observed.state import ClusterState
from reconciler.placement.devices.inventory import (
    DeviceState,
    Inventory,
    InventoryBook,
    ListedDevice,
    PoolDevices,
    is_valid,
    pools_of,
)
from reconciler.placement.devices.needs import ClaimNeeds, requests_key
from reconciler.placement.devices.reach import Reach, reach_of

PoolKey = tuple[str, str]
"""A driver and the name of one of its pools."""


@dataclass(frozen=True, slots=True)
class JoinedInventory:
    """The devices of the network with those of a node, the former first if ``network_first``.

    Karpenter tries those that exist before those of a node that does not.
    """

    inventory: Inventory
    network: Inventory
    own: Inventory
    network_first: bool

    def state(self, network: DeviceState, own: DeviceState) -> DeviceState:
        """Return what is in use of both."""
        first, second = (network, own) if self.network_first else (own, network)
        start = len((self.network if self.network_first else self.own).devices)
        return DeviceState(
            first.used | second.used << start,
            first.consumed + second.consumed,
            first.left + second.left,
        )

    def split(self, state: DeviceState) -> tuple[DeviceState, DeviceState]:
        """Return what is in use of the network, and of the node."""
        inventory = self.network if self.network_first else self.own
        start, empty = len(inventory.devices), inventory.empty
        amounts, counters = len(empty.consumed), len(empty.left)
        first = DeviceState(
            state.used & (1 << start) - 1, state.consumed[:amounts], state.left[:counters]
        )
        second = DeviceState(state.used >> start, state.consumed[amounts:], state.left[counters:])
        return (first, second) if self.network_first else (second, first)

    def reach(self, index: int) -> Reach | None:
        """Return the nodes that reach a device, None for one of the node's own."""
        return self.inventory.devices[index].reach


class Network:
    """The devices of a cluster that several nodes reach."""

    def __init__(self, slices: Iterable[ResourceSlice]) -> None:
        items = list(slices)
        pools = [_with_reaches(pool, items) for pool in pools_of(items)]
        self.keys = frozenset((pool.driver, pool.pool) for pool in pools)
        self.pools = tuple(pools)
        self.inventory = InventoryBook().inventory(self.pools)
        self._broken = tuple(
            _reach(device)
            for pool in pools
            if not (pool.is_complete and is_valid(pool))
            for device in pool.devices
        )
        self._concerned: dict[tuple[int, ...], tuple[tuple[ClaimNeeds, ...], bool]] = {}
        self._joined: dict[tuple[int, int, bool, bool], tuple[Inventory, JoinedInventory]] = {}

    def concerns(self, claims: tuple[ClaimNeeds, ...]) -> bool:
        """Return whether a device of the network may be chosen for some of the claims."""
        key = requests_key(claims)
        known = self._concerned.get(key)
        if known is None:
            known = self._concerned[key] = claims, self._is_concerned(claims)
        return known[1]

    def _is_concerned(self, claims: Iterable[ClaimNeeds]) -> bool:
        inventory = self.inventory
        return any(
            inventory.matching(wanted.conditions)
            or (wanted.takes_all and (self._broken or inventory.unreadable(wanted.conditions)))
            for claim in claims
            for request in claim.requests
            for wanted in request
        )

    def joined_for_node(
        self, own: Inventory, labels: Mapping[str, str], name: str
    ) -> JoinedInventory:
        """Return the devices that a running node has or reaches."""
        found = mask_of_flags(_reach(d).admits(labels, name) for d in self.inventory.devices)
        is_complete = not any(reach.admits(labels, name) for reach in self._broken)
        return self._join(own, found, is_complete=is_complete, network_first=False)

    def joined_for_types(self, own: Inventory, reached: Sequence[Reach]) -> JoinedInventory:
        """Return the devices of a node that does not exist, and those that may be reached."""
        found = mask_of_flags(_reach(d) in reached for d in self.inventory.devices)
        is_complete = not any(reach in reached for reach in self._broken)
        return self._join(own, found, is_complete=is_complete, network_first=True)

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """The different sets of nodes that reach some of the devices."""
        listed = (_reach(device) for device in self.inventory.devices)
        return tuple(dict.fromkeys((*listed, *self._broken)))

    def _join(
        self, own: Inventory, reachable: int, *, is_complete: bool, network_first: bool
    ) -> JoinedInventory:
        key = id(own), reachable, is_complete, network_first
        known = self._joined.get(key)
        if known is None:
            first, second = (self.inventory, own) if network_first else (own, self.inventory)
            start = len(first.devices)
            every = (1 << len(own.devices)) - 1
            masks = (reachable, every) if network_first else (every, reachable)
            inventory = Inventory(
                (*first.devices, *(_moved(device, first) for device in second.devices)),
                DeviceState(
                    0,
                    first.empty.consumed + second.empty.consumed,
                    first.empty.left + second.empty.left,
                ),
                own.is_complete and is_complete,
                reachable=masks[0] | masks[1] << start,
            )
            known = own, JoinedInventory(inventory, self.inventory, own, network_first)
            self._joined[key] = known
        return known[1]


def network_of(cluster: ClusterState) -> Network | None:
    """Return the devices of a cluster that several nodes reach, None if there are none.

    A pool belongs to the network if any of its slices is not that of one node. As in Karpenter, the
    slices of a node that is not initialized do not count.
    """
    wide = {_key(item) for item in cluster.resource_slices if not item.spec.node_name}
    if not wide:
        return None
    ready = {node.node_name for node in cluster.nodes if node.is_initialized}
    return Network(
        item
        for item in cluster.resource_slices
        if _key(item) in wide and (not item.owner_node or item.owner_node in ready)
    )


def _key(item: ResourceSlice) -> PoolKey:
    return item.spec.driver, item.spec.pool.name


def _reach(device: Device | ListedDevice) -> Reach:
    found = device.reach if isinstance(device, ListedDevice) else reach_of(device.properties)
    return Reach(names=frozenset()) if found is None else found


def _with_reaches(pool: PoolDevices, slices: Iterable[ResourceSlice]) -> PoolDevices:
    """Return a pool whose devices name the nodes that reach them, as some slices do."""
    members = [s for s in slices if _key(s) == (pool.driver, pool.pool)]
    newest = max(s.spec.pool.generation for s in members)
    found: list[Device] = []
    for item in sorted(members, key=lambda s: s.metadata.name):
        if item.spec.pool.generation == newest and not item.spec.shared_counters:
            found += (_with_reach(device, item) for device in item.spec.devices)
    return msgspec.structs.replace(pool, devices=tuple(found))


def _with_reach(device: Device, item: ResourceSlice) -> Device:
    spec = item.spec
    if spec.per_device_node_selection:
        return device
    own = msgspec.structs.replace(
        device.properties,
        node_name=spec.node_name,
        node_selector=spec.node_selector,
        all_nodes=spec.all_nodes,
    )
    return own if isinstance(own, Device) else msgspec.structs.replace(device, basic=own)


def _moved(device: ListedDevice, before: Inventory) -> ListedDevice:
    """Return a device as it is listed after those of another inventory."""
    amounts, counters = len(before.empty.consumed), len(before.empty.left)
    return replace(
        device,
        kind=device.kind + len(before.devices),
        capacities=tuple(replace(c, index=c.index + amounts) for c in device.capacities),
        consumes=tuple((at + counters, amount) for at, amount in device.consumes),
    )


# What nodes take of the network: devices, capacity and counters, as amounts that can be added.


def taken_between(before: DeviceState, after: DeviceState) -> DeviceState:
    """Return what was taken between two states."""
    return DeviceState(
        after.used & ~before.used,
        tuple(a - b for a, b in zip(after.consumed, before.consumed, strict=True)),
        tuple(b - a for a, b in zip(after.left, before.left, strict=True)),
    )


def with_taken(state: DeviceState, taken: DeviceState) -> DeviceState:
    """Return the state in which more is taken."""
    return DeviceState(
        state.used | taken.used,
        tuple(a + b for a, b in zip(state.consumed, taken.consumed, strict=True)),
        tuple(a - b for a, b in zip(state.left, taken.left, strict=True)),
    )


def without_taken(state: DeviceState, taken: DeviceState) -> DeviceState:
    """Return the state in which something was given back."""
    return DeviceState(
        state.used & ~taken.used,
        tuple(a - b for a, b in zip(state.consumed, taken.consumed, strict=True)),
        tuple(a + b for a, b in zip(state.left, taken.left, strict=True)),
    )


def sum_taken(first: DeviceState, second: DeviceState) -> DeviceState:
    """Return what two pods of a node take together."""
    return DeviceState(
        first.used | second.used,
        tuple(a + b for a, b in zip(first.consumed, second.consumed, strict=True)),
        tuple(a + b for a, b in zip(first.left, second.left, strict=True)),
    )


def largest_taken(each: Iterable[DeviceState]) -> DeviceState | None:
    """Return what a node takes at most if each of its types takes something else."""
    found: DeviceState | None = None
    for taken in each:
        found = (
            taken
            if found is None
            else DeviceState(
                found.used | taken.used,
                tuple(map(max, found.consumed, taken.consumed)),
                tuple(map(max, found.left, taken.left)),
            )
        )
    return found


def reaches_picked(joined: JoinedInventory, picked: Iterable[int]) -> tuple[Reach, ...] | None:
    """Return which nodes reach all of some devices, None if only the node that has one does."""
    found = dict.fromkeys(joined.reach(index) for index in picked)
    return None if None in found else tuple(reach for reach in found if reach is not None)
