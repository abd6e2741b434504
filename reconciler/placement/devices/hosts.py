"""The devices of running nodes and of the instance types that a new node may get.

A running node has what its drivers publish, minus what claims have. Until it is initialized, and on
a node that does not exist yet, the provider's description of its instance type counts (Karpenter
``provisioning/dra.go``). Pods that are placed on a node and whose claims are not allocated yet use
devices there as well, so that a plan does not change when they are.
"""

from __future__ import annotations

import sys
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
from reconciler.placement.devices.needs import ClaimNeeds, ClaimReader, DeviceNeeds, requests_key
from reconciler.placement.devices.network import Network
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

    ``keys`` are the claims with a name that are allocated here. A load is a value: nodes whose pods
    have claimed the same devices in the same order share one, and what was computed for it.
    """

    __slots__ = ("_added", "_before", "_fitting", "_known", "_profiles", "_states", "keys")

    def __init__(self, profiles: Sequence[DeviceProfile]) -> None:
        self._profiles = profiles
        self._before: DeviceLoad | None = None
        self._added: tuple[tuple[ClaimNeeds, ...], int] = ((), 0)
        self._states: dict[DeviceProfile, DeviceState | None] = {}
        self._fitting: dict[tuple[int, ...], tuple[tuple[ClaimNeeds, ...], int]] = {}
        self._known: dict[tuple[object, ...], DeviceLoad] = {}
        self.keys: frozenset[str] = _EMPTY_SET

    def fitting_types(self, types: int, claims: tuple[ClaimNeeds, ...], count: int = 1) -> int:
        """Return the types that have devices for ``count`` more pods."""
        wanted = missing_claims(claims, self.keys)
        if count > 1:
            return types & self._types_for(types, wanted, count)
        key = requests_key(wanted)
        known = self._fitting.get(key)
        if known is None:
            known = self._fitting[key] = (wanted, self._types_for(-1, wanted, 1))
        return types & known[1]

    def _types_for(self, types: int, claims: tuple[ClaimNeeds, ...], count: int) -> int:
        found = 0
        for profile in self._profiles:
            if profile.mask & types:
                state = self.state(profile)
                if state is not None and _state_after(profile, state, claims, count) is not None:
                    found |= profile.mask
        return found

    def count_fitting(self, types: int, claims: tuple[ClaimNeeds, ...], most: int) -> int:
        """Return how many pods, up to ``most``, any of the types has devices for."""
        wanted, best = missing_claims(claims, self.keys), 0
        for profile in self._profiles:
            state = self.state(profile) if profile.mask & types else None
            if state is not None:
                best = max(best, count_allocations(profile.inventory, state, wanted, most))
        return best

    def with_pods(self, claims: tuple[ClaimNeeds, ...], count: int) -> DeviceLoad:
        """Return the load after allocating the devices of ``count`` pods."""
        wanted = missing_claims(claims, self.keys)
        key = (count, requests_key(wanted), *(claim.key for claim in wanted))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = DeviceLoad(self._profiles)
            known._before, known._added = self, (wanted, count)
            known.keys = self.keys.union(claim.key for claim in wanted if claim.key)
        return known

    def with_states(
        self, states: Mapping[DeviceProfile, DeviceState], keys: frozenset[str]
    ) -> DeviceLoad:
        """Return the load with the given states, for the types that are still possible."""
        found = DeviceLoad(self._profiles)
        found._before = self
        found._states = {profile: states.get(profile) for profile in self._profiles}
        found.keys = self.keys | keys
        return found

    def count_free(self, types: int) -> int:
        """Return the most devices that one of the types has left, which may all be unsuitable."""
        return max((_count_free(p, self.state(p)) for p in self.profiles(types)), default=0)

    def profiles(self, types: int) -> list[DeviceProfile]:
        """Return the profiles of ``types``."""
        return [profile for profile in self._profiles if profile.mask & types]

    def drivers(self, types: int) -> tuple[str, ...]:
        """Return the drivers whose devices are in use on some of ``types``, sorted."""
        found: set[str] = set()
        for profile in self._profiles:
            state = self.state(profile) if profile.mask & types else None
            if state is not None:
                found.update(used_drivers(profile.inventory, state))
        return tuple(sorted(found))

    def state(self, profile: DeviceProfile) -> DeviceState | None:
        """Return what is in use if the node becomes one of these types, None if it cannot."""
        if self._before is None:
            return profile.inventory.empty
        if profile not in self._states:
            before = self._before.state(profile)
            after = _state_after(profile, before, *self._added) if before is not None else None
            self._states[profile] = after
        return self._states[profile]


def _state_after(
    profile: DeviceProfile, state: DeviceState, claims: tuple[ClaimNeeds, ...], count: int
) -> DeviceState | None:
    states = successive_states(profile.inventory, state, claims, count)
    return states[count] if count < len(states) else None


def _count_free(profile: DeviceProfile, state: DeviceState | None) -> int:
    """Return how many requests for one device could still be met; a shared device meets any."""
    if state is None:
        return 0
    inventory = profile.inventory
    if inventory.has_shared:
        return sys.maxsize
    return len(inventory.devices) - state.used.bit_count()


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
        network: Network | None = None,
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._templates = templates
        self._network = network
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

    def recorded(self, name: str) -> HostDevices | None:
        """Return the devices of a node if they are known already."""
        return self._known.get(name)

    def replace(self, node: StateNode, host: HostDevices) -> None:
        """Record that pods of a node use more of its devices."""
        self._known[node.name] = host

    def sites_without(self, names: Collection[str]) -> dict[str, str]:
        """Return the node of each claim that several pods name and that some of them use."""
        return {key: node for key, node in self._sites.items() if node not in names}

    @cached_property
    def _sites(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for node in self._cluster.nodes if self._cluster.resource_claims else ():
            for pod in claiming_pods(node.pods):
                for claim in self._reader.unallocated(pod):
                    if claim.key:
                        found.setdefault(claim.key, node.name)
        return found

    @cached_property
    def _slices(self) -> Mapping[str, list[ResourceSlice]]:
        found: dict[str, list[ResourceSlice]] = defaultdict(list)
        wide = self._network.keys if self._network is not None else ()
        for item in self._cluster.resource_slices:
            if item.spec.node_name and (item.spec.driver, item.spec.pool.name) not in wide:
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

    def _is_used(self, claim: ResourceClaim, node: StateNode) -> bool:
        """Return whether the devices of a claim are in use: not if its pods have left the node.

        A consumer that nobody knows is taken for a pod that runs.
        """
        consumers = claim.status.reserved_for
        if not consumers or not all(consumer.is_pod for consumer in consumers):
            return True
        present = {pod.metadata.uid for pod in node.pods if not pod.is_terminal}
        return any(c.uid in present or c.uid not in self._pods for c in consumers)

    @cached_property
    def _pods(self) -> frozenset[str]:
        """The UIDs of the pods of the cluster."""
        return frozenset(pod.metadata.uid for pod in self._cluster.pods)

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
                if not self._is_used(claim, node):
                    continue
                state = with_claim(inventory, state, pools, claim, pool, counted)
        keys: set[str] = set()
        for pod in claiming_pods(node.pods):
            claims = self._reader.unallocated(pod)
            if self._network is not None and self._network.concerns(claims):
                continue  # counted by the network
            found = allocate(inventory, state, missing_claims(claims, frozenset(keys)))
            if isinstance(found, Allocated):
                state = found.state
                keys.update(claim.key for claim in claims if claim.key)
        return HostDevices(inventory, state, frozenset(keys))


def claiming_pods(pods: Iterable[Pod]) -> Iterator[Pod]:
    return (pod for pod in pods if pod.spec.resource_claims and not pod.is_terminal)


def with_claim(
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
