"""The devices of running nodes and of the instance types that a new node may get.

A running node has what its drivers publish, minus what claims have. Until it is initialized, and on
a node that does not exist yet, the provider's description of its instance type counts (Karpenter
``provisioning/dra.go``). Pods that are placed on a node and whose claims are not allocated yet use
devices there as well, so that a plan does not change when they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import msgspec

from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.kubernetes.devices import DeviceTemplate, ResourceClaim, ResourceSlice
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import parse_resources
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.devices.inventory import (
    DeviceState,
    Inventory,
    InventoryBook,
    PoolDevices,
    pools_of,
    position_of,
)
from reconciler.placement.devices.needs import ClaimNeeds, ClaimReader, DeviceNeeds
from reconciler.placement.devices.search import Allocated, allocate, successive_states

_EMPTY_SET: frozenset[str] = frozenset()


class HasDevices(Protocol):
    """An instance type with the devices of its nodes."""

    @property
    def devices(self) -> tuple[DeviceTemplate, ...]: ...


class HasTypes(Protocol):
    """A catalog as a table."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def types(self) -> Sequence[HasDevices]: ...


def devices_of_node(tables: Iterable[HasTypes], node: StateNode) -> tuple[DeviceTemplate, ...]:
    """Return the devices of a node's instance type, none if it is in no catalog."""
    name = node.labels.get(INSTANCE_TYPE, "")
    for table in tables:
        if name in table.names:
            return table.types[table.names.index(name)].devices
    return ()


def template_pools(templates: Iterable[DeviceTemplate]) -> tuple[PoolDevices, ...]:
    """Return the pools that an instance type's nodes will have."""
    return tuple(
        PoolDevices(t.driver, t.pool, t.devices, t.shared_counters, t.bindings) for t in templates
    )


class DeviceProfile(msgspec.Struct, frozen=True, eq=False):
    """Instance types whose nodes have equal devices; type *i* is bit *i* of ``mask``."""

    inventory: Inventory
    mask: int


def device_profiles(types: Iterable[HasDevices], book: InventoryBook) -> tuple[DeviceProfile, ...]:
    """Return the types of a catalog by their devices, in the order of the first type of each."""
    masks: dict[Inventory, int] = {}
    known: dict[int, Inventory] = {}
    for index, kind in enumerate(types):
        found = known.get(id(kind.devices))
        if found is None:
            found = book.inventory(template_pools(kind.devices))
            known[id(kind.devices)] = found
        masks[found] = masks.get(found, 0) | 1 << index
    return tuple(DeviceProfile(inventory, mask) for inventory, mask in masks.items())


class DeviceLoad:
    """The devices in use on a planned node, for each profile that it may still become.

    ``keys`` are the claims with a name that are allocated here.
    """

    __slots__ = ("_states", "keys")

    def __init__(self) -> None:
        self._states: dict[DeviceProfile, DeviceState] = {}
        self.keys: frozenset[str] = _EMPTY_SET

    def fitting_types(
        self,
        profiles: Sequence[DeviceProfile],
        types: int,
        claims: tuple[ClaimNeeds, ...],
        count: int = 1,
    ) -> int:
        """Return the types that have devices for ``count`` more pods."""
        wanted, found = missing_claims(claims, self.keys), 0
        for profile in profiles:
            here = profile.mask & types
            if here and self._after(profile, wanted, count) is not None:
                found |= here
        return found

    def count_fitting(
        self,
        profiles: Sequence[DeviceProfile],
        types: int,
        claims: tuple[ClaimNeeds, ...],
        most: int,
    ) -> int:
        """Return how many pods, up to ``most``, any of the types has devices for."""
        wanted, best = missing_claims(claims, self.keys), 0
        for profile in profiles:
            if profile.mask & types:
                state = self._states.get(profile, profile.inventory.empty)
                best = max(best, count_allocations(profile.inventory, state, wanted, most))
        return best

    def add(
        self,
        profiles: Sequence[DeviceProfile],
        types: int,
        claims: tuple[ClaimNeeds, ...],
        count: int,
    ) -> None:
        """Allocate the devices of ``count`` pods on the types that are left."""
        wanted = missing_claims(claims, self.keys)
        states: dict[DeviceProfile, DeviceState] = {}
        for profile in profiles:
            if profile.mask & types:
                after = self._after(profile, wanted, count)
                assert after is not None, "types without the devices have been excluded"
                states[profile] = after
        self._states = states
        self.keys |= {claim.key for claim in claims if claim.key}

    def drivers(self, types: int) -> tuple[str, ...]:
        """Return the drivers whose devices are in use on some of ``types``, sorted."""
        found: set[str] = set()
        for profile, state in self._states.items():
            if profile.mask & types:
                found.update(used_drivers(profile.inventory, state))
        return tuple(sorted(found))

    def _after(
        self, profile: DeviceProfile, claims: tuple[ClaimNeeds, ...], count: int
    ) -> DeviceState | None:
        state = self._states.get(profile, profile.inventory.empty)
        states = successive_states(profile.inventory, state, claims, count)
        return states[count] if count < len(states) else None


def used_drivers(inventory: Inventory, state: DeviceState) -> Iterator[str]:
    """Yield the drivers of the devices in use."""
    for index, device in enumerate(inventory.devices):
        shares = device.is_shared and any(state.consumed[c.index] for c in device.capacities)
        if state.used >> index & 1 or shares:
            yield device.driver


def missing_claims(claims: tuple[ClaimNeeds, ...], keys: frozenset[str]) -> tuple[ClaimNeeds, ...]:
    """Return the claims that are not allocated here already."""
    if not keys:
        return claims
    return tuple(claim for claim in claims if not claim.key or claim.key not in keys)


def count_allocations(
    inventory: Inventory, state: DeviceState, claims: tuple[ClaimNeeds, ...], most: int
) -> int:
    """Return how often the claims can be allocated one after another, up to ``most``."""
    return min(len(successive_states(inventory, state, claims, most)) - 1, most)


class HostDevices(msgspec.Struct, frozen=True, eq=False):
    """The devices of a running node, those in use, and the named claims allocated there."""

    inventory: Inventory
    state: DeviceState
    keys: frozenset[str] = _EMPTY_SET

    def with_pods(self, needs: DeviceNeeds, count: int) -> HostDevices:
        """Return what is in use with ``count`` more pods, for which there are free devices."""
        state, keys = self.state, self.keys
        for _ in range(count):
            found = allocate(self.inventory, state, missing_claims(needs.claims, keys))
            assert isinstance(found, Allocated), "the devices were counted"
            state, keys = found.state, keys.union(needs.shared)
        return HostDevices(self.inventory, state, keys)


class NodeDevices:
    """The devices of the nodes of a cluster, computed when they are first asked for.

    ``templates`` returns the devices of the instance type of a node that has not joined.
    """

    def __init__(
        self,
        cluster: ClusterState,
        reader: ClaimReader,
        templates: Callable[[StateNode], tuple[DeviceTemplate, ...]],
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._templates = templates
        self._book = InventoryBook()
        self._known: dict[str, HostDevices] = {}

    def of(self, node: StateNode | None) -> HostDevices:
        """Return the devices of a node; one that has not been launched has none yet."""
        if node is None:
            return HostDevices(self._book.none, self._book.none.empty)
        known = self._known.get(node.name)
        if known is None:
            known = self._known[node.name] = self._host(node)
        return known

    def sites_without(self, names: Collection[str]) -> dict[str, str]:
        """Return the node of each claim that several pods name and that some of them use."""
        return {key: node for key, node in self._sites.items() if node not in names}

    @cached_property
    def _sites(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for node in self._cluster.nodes if self._cluster.resource_claims else ():
            for pod in _claiming_pods(node.pods):
                for claim in self._reader.unallocated(pod):
                    if claim.key:
                        found.setdefault(claim.key, node.name)
        return found

    @cached_property
    def _slices(self) -> Mapping[str, list[ResourceSlice]]:
        found: dict[str, list[ResourceSlice]] = defaultdict(list)
        for item in self._cluster.resource_slices:
            if item.spec.node_name:
                found[item.spec.node_name].append(item)
        return found

    @cached_property
    def _allocated(self) -> Mapping[tuple[str, str], list[ResourceClaim]]:
        """The allocated claims by driver and pool."""
        found: dict[tuple[str, str], list[ResourceClaim]] = defaultdict(list)
        for claim in self._cluster.resource_claims.values():
            allocation = claim.status.allocation
            results = allocation.devices.results if allocation is not None else ()
            for key in {(r.driver, r.pool) for r in results}:
                found[key].append(claim)
        return found

    def _host(self, node: StateNode) -> HostDevices:
        if node.is_initialized and node.node is not None:
            pools = pools_of(self._slices.get(node.node_name, ()))
        else:
            pools = template_pools(self._templates(node))
        inventory = self._book.inventory(pools)
        state = inventory.empty
        counted: set[int] = set()
        for pool in pools:
            for claim in self._allocated.get((pool.driver, pool.pool), ()):
                if not _is_used(claim, node):
                    continue
                state = _with_claim(inventory, state, pools, claim, pool, counted)
        keys: set[str] = set()
        for pod in _claiming_pods(node.pods):
            claims = self._reader.unallocated(pod)
            found = allocate(inventory, state, missing_claims(claims, frozenset(keys)))
            if isinstance(found, Allocated):
                state = found.state
                keys.update(claim.key for claim in claims if claim.key)
        return HostDevices(inventory, state, frozenset(keys))


def _is_used(claim: ResourceClaim, node: StateNode) -> bool:
    """Return whether the devices of a claim are in use: not if its pods have left the node."""
    consumers = claim.status.reserved_for
    if not consumers or not all(consumer.is_pod for consumer in consumers):
        return True
    present = {pod.metadata.uid for pod in node.pods if not pod.is_terminal}
    return any(consumer.uid in present for consumer in consumers)


def _claiming_pods(pods: Iterable[Pod]) -> Iterator[Pod]:
    return (pod for pod in pods if pod.spec.resource_claims and not pod.is_terminal)


def _with_claim(
    inventory: Inventory,
    state: DeviceState,
    pools: tuple[PoolDevices, ...],
    claim: ResourceClaim,
    pool: PoolDevices,
    counted: set[int],
) -> DeviceState:
    """Return the state with the devices of a pool that a claim has; admin access uses none."""
    allocation = claim.status.allocation
    assert allocation is not None
    for result in allocation.devices.results:
        if result.admin_access or (result.driver, result.pool) != (pool.driver, pool.pool):
            continue
        index = position_of(pools, result.driver, result.pool, result.device)
        if index is None:
            continue
        try:
            consumed = parse_resources(result.consumed_capacity)
        except ValueError:
            consumed = {}
        after = inventory.with_device(state, index, consumed)
        if index in counted:  # counters are consumed once for a device that is shared
            after = after._replace(left=state.left)
        counted.add(index)
        state = after
    return state
