"""What a pass takes of the devices that several nodes reach, and what the cluster takes before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from reconciler.model.kubernetes.devices import DeviceTemplate, ResourceClaim
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.devices.hosts import (
    DeviceProfile,
    HostDevices,
    NodeDevices,
    claiming_pods,
    count_allocations,
    missing_claims,
    with_claim,
)
from reconciler.placement.devices.inventory import DeviceState
from reconciler.placement.devices.needs import ClaimNeeds, ClaimReader, DeviceNeeds
from reconciler.placement.devices.network import (
    Network,
    network_of,
    reaches_picked,
    sum_taken,
    taken_between,
    with_taken,
    without_taken,
)
from reconciler.placement.devices.reach import Reach
from reconciler.placement.devices.search import Allocated, allocate


class NetworkShare(NamedTuple):
    """What a planned node takes of the network: by type, and altogether while none is chosen."""

    by_profile: dict[DeviceProfile, DeviceState]
    taken: DeviceState


class HasPlaces(Protocol):
    """What a planned node gets of the network, with where claims can be used."""

    @property
    def places(self) -> Mapping[str, tuple[Reach, ...]]: ...


class NetworkUse:
    """The devices of the network that are in use in a pass.

    ``places`` are the nodes from which a claim that several pods name can be used, if no device of
    a node is part of it.
    """

    def __init__(
        self, network: Network, taken: DeviceState, places: Mapping[str, tuple[Reach, ...]]
    ) -> None:
        self.network = network
        self.taken = taken
        self.places = dict(places)

    def exchange(
        self, before: NetworkShare | None, after: NetworkShare | None, found: HasPlaces | None
    ) -> None:
        """Take what a planned node takes now instead of before; ``found`` has its claims."""
        if before is not None:
            self.taken = without_taken(self.taken, before.taken)
        if after is not None:
            self.taken = with_taken(self.taken, after.taken)
        if found is not None:
            self.places.update(found.places)

    def unplaced(
        self, claims: tuple[ClaimNeeds, ...], keys: frozenset[str]
    ) -> tuple[ClaimNeeds, ...]:
        """Return the claims that have no devices yet, neither of the network nor of a node."""
        return missing_claims(claims, keys.union(self.places))

    def count(
        self, host: HostDevices, labels: Mapping[str, str], name: str, needs: DeviceNeeds, most: int
    ) -> int:
        """Return how many pods, up to ``most``, a running node has or reaches devices for."""
        for key in needs.shared:
            if not all(reach.admits(labels, name) for reach in self.places.get(key, ())):
                return 0
        joined = self.network.joined_for_node(host.inventory, labels, name)
        claims = self.unplaced(needs.claims, host.keys)
        state = joined.state(self.taken, host.state)
        return count_allocations(joined.inventory, state, claims, most)

    def take(
        self, host: HostDevices, labels: Mapping[str, str], name: str, claims: Iterable[ClaimNeeds]
    ) -> HostDevices | None:
        """Take the devices of a pod on a running node; None if there are too few."""
        joined = self.network.joined_for_node(host.inventory, labels, name)
        wanted = self.unplaced(tuple(claims), host.keys)
        found = allocate(joined.inventory, joined.state(self.taken, host.state), wanted)
        if not isinstance(found, Allocated):
            return None
        self.taken, own = joined.split(found.state)
        kept = set(host.keys)
        for number, claim in enumerate(wanted):
            picked = (pick.device for pick in found.picks if pick.claim == number)
            reaches = reaches_picked(joined, picked)
            if claim.key and reaches is None:
                kept.add(claim.key)
            elif claim.key and reaches is not None:
                self.places[claim.key] = reaches
        return HostDevices(host.inventory, own, frozenset(kept))


@dataclass
class NetworkBase:
    """What the pods and claims of a cluster take of the network.

    ``by_pod`` is what a pod gives back if it leaves its node, by its UID. ``by_node`` is what those
    pods of a node take whose claims have no devices yet.
    """

    network: Network
    taken: DeviceState
    by_pod: dict[str, DeviceState] = field(default_factory=dict)
    by_node: dict[str, DeviceState] = field(default_factory=dict)
    places: dict[str, tuple[str, tuple[Reach, ...]]] = field(default_factory=dict)

    def use(self, leaving: Iterable[str], without: Collection[str]) -> NetworkUse:
        """Return what is in use before a pass that moves pods and leaves nodes out."""
        taken = self.taken
        given_back = [self.by_pod.get(uid) for uid in leaving]
        given_back += [self.by_node.get(name) for name in without]
        for part in given_back:
            taken = taken if part is None else without_taken(taken, part)
        places = {k: reaches for k, (node, reaches) in self.places.items() if node not in without}
        return NetworkUse(self.network, taken, places)


class ClusterDevices:
    """The devices of a cluster, of its nodes and of the network, and what its pods request.

    ``templates`` returns the devices of the instance type of a node that has not joined. If claims
    are ignored, ``claims`` is None instead of their reader.
    """

    def __init__(
        self,
        cluster: ClusterState,
        templates: Callable[[StateNode], tuple[DeviceTemplate, ...]],
        *,
        is_ignored: bool = False,
    ) -> None:
        self._cluster = cluster
        self.network = None if is_ignored else network_of(cluster)
        concerns = self.network.concerns if self.network is not None else lambda _: False
        self.reader = ClaimReader(cluster, concerns)
        self.claims = None if is_ignored else self.reader
        self.nodes = NodeDevices(cluster, self.reader, templates, self.network)

    @cached_property
    def _base(self) -> NetworkBase | None:
        """What the cluster takes of the network; this also completes what nodes have in use."""
        if self.network is None:
            return None
        return network_base(self.network, self._cluster, self.reader, self.nodes)

    def use(self, pods: Iterable[Pod], without: Collection[str]) -> NetworkUse | None:
        """Return what is in use of the network in a pass that places pods and leaves nodes out."""
        if self._base is None:
            return None
        return self._base.use((p.metadata.uid for p in pods if p.spec.node_name), without)

    def sites_without(self, names: Collection[str]) -> dict[str, str]:
        """Return the node of each claim that several pods name and that some of them use."""
        known = self.nodes.sites_without(names) if self.claims is not None else {}
        places = self._base.places if self._base is not None else ()
        return {key: node for key, node in known.items() if key not in places}


def network_base(
    network: Network, cluster: ClusterState, reader: ClaimReader, devices: NodeDevices
) -> NetworkBase:
    """Return what a cluster takes of the network, and record what its pods take of their nodes."""
    base = NetworkBase(network, network.inventory.empty)
    _take_allocated(base, cluster)
    _take_unallocated(base, cluster, reader, devices)
    return base


def _take_allocated(base: NetworkBase, cluster: ClusterState) -> None:
    """Take the devices of claims that have some, unless all their pods have terminated."""
    terminated = {pod.metadata.uid for pod in cluster.pods}
    terminated -= {pod.metadata.uid for pod in cluster.pods if not pod.is_terminal}
    for claim in cluster.resource_claims.values():
        before = base.taken
        after = _with_allocation(base.network, before, claim)
        consumers = claim.status.reserved_for
        pods = [c.uid for c in consumers if c.is_pod]
        is_given_back = len(pods) == len(consumers) > 0 and terminated.issuperset(pods)
        if after == before or is_given_back:
            continue
        base.taken = after
        if len(consumers) == len(pods) == 1:
            part, others = taken_between(before, after), base.by_pod.get(pods[0])
            base.by_pod[pods[0]] = part if others is None else sum_taken(others, part)


def _take_unallocated(
    base: NetworkBase, cluster: ClusterState, reader: ClaimReader, devices: NodeDevices
) -> None:
    """Take devices for the pods on nodes whose claims have none yet."""
    network = base.network
    for node in cluster.nodes:
        use = NetworkUse(network, base.taken, {k: r for k, (_, r) in base.places.items()})
        host = None
        for pod in claiming_pods(node.pods):
            claims = reader.unallocated(pod)
            if network.concerns(claims):
                host = host or devices.of(node)
                host = use.take(host, node.labels, node.node_name, claims) or host
        if host is not None:
            devices.replace(node, host)
            base.by_node[node.name] = taken_between(base.taken, use.taken)
            base.taken = with_taken(base.taken, base.by_node[node.name])
            new = use.places.keys() - base.places.keys()
            base.places.update((key, (node.name, use.places[key])) for key in sorted(new))


def _with_allocation(network: Network, state: DeviceState, claim: ResourceClaim) -> DeviceState:
    allocation = claim.status.allocation
    for pool in network.pools if allocation is not None else ():
        state = with_claim(network.inventory, state, network.pools, claim, pool, set())
    return state
