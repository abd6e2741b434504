"""Existing nodes: which pods they can take and what is left on them.

They are prepared once for a cluster and used by every pass. As with instance types, node *i* is bit
*i*. Labels are indexed by value when a pod first requests one, so finding the nodes a pod can use
takes a few ``&`` operations; most labels are never used. A pass only records what it uses
(``nodes.use``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from types import MappingProxyType

from reconciler.catalog.table import bits, indices, mask_of_flags, union_of
from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Requirement, Requirements
from reconciler.model.kubernetes.cluster import EBS_DRIVER
from reconciler.model.kubernetes.node import CSINode
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import Taint, Toleration, untolerated_taints
from reconciler.model.resources import CPU, MEMORY, Resources, add_resources
from reconciler.observed.state import ClusterState, StateNode, last_pod_change
from reconciler.placement.devices.hosts import HostDevices, NodeDevices, count_allocations
from reconciler.placement.devices.inventory import DeviceState
from reconciler.placement.devices.needs import DeviceNeeds
from reconciler.placement.nodes.daemons import Daemon, daemons
from reconciler.placement.nodes.ports import PortIndex, ports_of
from reconciler.placement.nodes.space import Demand
from reconciler.placement.pods.shape import Shape, SpecKeys


class LabelIndex:
    """An index of labels and taints; ``names`` replace missing hostname labels."""

    def __init__(
        self,
        names: Sequence[str],
        labels: Sequence[Mapping[str, str]],
        taints: Sequence[tuple[Taint, ...]],
    ) -> None:
        self.all = (1 << len(names)) - 1
        self._names = names
        self._labels = labels
        self._taints = taints
        self._by_key: dict[str, dict[str | None, int]] = {}

    @cached_property
    def _by_taints(self) -> Mapping[tuple[Taint, ...], int]:
        found: dict[tuple[Taint, ...], list[int]] = {}
        for index, row in enumerate(self._taints):
            found.setdefault(row, []).append(index)
        return {row: bits(members) for row, members in found.items()}

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset((HOSTNAME,)).union(*self._labels)

    def values(self, key: str) -> dict[str | None, int]:
        """Return the nodes for each value of a label; None stands for nodes without it.

        A tenant may name any number of labels that no node has: those are not kept.
        """
        if key not in self._keys:
            return {None: self.all} if self.all else {}
        known = self._by_key.get(key)
        if known is None:
            column = [row.get(key) for row in self._labels]
            if key == HOSTNAME:
                column = [v or n for v, n in zip(column, self._names, strict=True)]
            found: dict[str | None, list[int]] = {}
            for index, value in enumerate(column):
                members = found.get(value)
                if members is None:
                    found[value] = [index]
                else:
                    members.append(index)
            known = self._by_key[key] = {v: bits(members) for v, members in found.items()}
        return known

    def _nodes_matching(self, requirement: Requirement) -> int:
        """Return the nodes whose label matches; a missing label matches only negative operators."""
        values = self.values(requirement.key)
        mask = values.get(None, 0) if requirement.is_negative else 0
        if requirement.complement:
            for value, members in values.items():
                if value is not None and requirement.has(value):
                    mask |= members
        else:
            for value in requirement.values:
                mask |= values.get(value, 0)
        return mask

    def nodes_meeting(self, requirements: Mapping[str, Requirement]) -> int:
        """Return the nodes whose labels meet the requirements; a missing label has no value."""
        mask = self.all
        for wanted in requirements.values():
            mask &= self._nodes_matching(wanted)
        return mask

    def nodes_meeting_demand(self, demand: Demand) -> int:
        """Return the nodes whose labels meet a demand."""
        mask = self.nodes_meeting(demand.requirements)
        if demand.hostname is not None:
            mask &= self.nodes_meeting({HOSTNAME: demand.hostname})
        return mask

    def nodes_tolerated_by(self, tolerations: tuple[Toleration, ...]) -> int:
        """Return the nodes whose taints are all tolerated."""
        mask = 0
        for taints, members in self._by_taints.items():
            if not taints or not untolerated_taints(taints, tolerations):
                mask |= members
        return mask


@dataclass(frozen=True)
class Target:
    """A node that pods can be placed on: a running one, or a NodeClaim that waits for its instance.

    ``left`` is what pods can use once its daemons run. ``capacity`` is what a waiting NodeClaim
    counts towards its NodePool's limits; a running node counts with its own. ``volume_limit`` is
    how many EBS volumes its type can attach, which holds until its driver reports a number.
    """

    name: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    left: Resources
    is_initialized: bool
    state: StateNode | None = None
    capacity: Resources = field(default_factory=dict)
    volume_limit: int | None = None

    @property
    def host(self) -> str:
        return self.labels.get(HOSTNAME) or self.name

    @property
    def pods(self) -> Sequence[Pod]:
        """The pods that run there."""
        return self.state.pods if self.state is not None else ()

    @property
    def node_name(self) -> str:
        """The name of its Node, empty while it has none."""
        return self.state.node_name if self.state is not None else ""


def running_target(node: StateNode, volume_limit: int | None) -> Target:
    """Return a node that has an instance as a target."""
    return Target(
        name=node.name,
        labels=dict(node.labels),
        taints=node.taints,
        left=node.available,
        is_initialized=node.is_initialized,
        state=node,
        volume_limit=volume_limit,
    )


def room_beside_daemons(states: Sequence[StateNode], cluster: ClusterState) -> list[Resources]:
    """Return what pods can use on each node once the DaemonSets of the cluster run there."""
    nodes = Nodes((running_target(state, None) for state in states), daemons(cluster))
    return [nodes.rows[nodes.index[state.name]].left for state in states]


class KnownTargets:
    """Running nodes as targets, for clusters that share most of their nodes with the last ones.

    ``due`` in ``beside`` are the daemons that will run; with others, everything is computed again.
    """

    def __init__(self) -> None:
        self._targets: dict[int, tuple[StateNode, Target]] = {}
        self._beside: dict[int, tuple[Target, Target]] = {}
        self._due: tuple[Daemon, ...] = ()

    def of_nodes(
        self, nodes: Iterable[StateNode], volume_limit: Callable[[StateNode], int | None]
    ) -> list[Target]:
        """Return the nodes as targets; those of a node that is the same object are the same."""
        last, self._targets = self._targets, {}
        for node in nodes:
            known, limit = last.get(id(node)), volume_limit(node)
            if known is None or known[1].volume_limit != limit:
                known = (node, running_target(node, limit))
            self._targets[id(node)] = known  # the node is kept, so that no other gets its id
        return [target for _, target in self._targets.values()]

    def beside(self, due: tuple[Daemon, ...], targets: Sequence[Target]) -> list[Target | None]:
        """Return each target with what is left beside its daemons, None where it is not known."""
        if due != self._due:
            self._beside, self._due = {}, due
        found = [self._beside.get(id(target)) for target in targets]
        self._beside = {id(known[0]): known for known in found if known is not None}
        return [known and known[1] for known in found]

    def keep(self, target: Target, beside: Target) -> None:
        """Remember a target with what is left beside its daemons."""
        self._beside[id(target)] = (target, beside)


@dataclass(frozen=True)
class SchedulerMemory:
    """What a scheduler takes over from those of similar clusters; it changes no result."""

    spec_keys: SpecKeys = field(default_factory=SpecKeys)
    targets: KnownTargets = field(default_factory=KnownTargets)


class Nodes:
    """The nodes of a cluster as targets, in the order in which pods try them.

    Initialized nodes come first, then by name. Nodes that are being deleted are not included.
    ``known`` has the targets of similar clusters.
    """

    def __init__(
        self,
        targets: Iterable[Target],
        due: Iterable[Daemon],
        csi_nodes: Mapping[str, CSINode] = MappingProxyType({}),
        devices: NodeDevices | None = None,
        known: KnownTargets | None = None,
    ) -> None:
        self._csi_nodes = csi_nodes
        self._devices = devices
        self._requirements: dict[int, Requirements] = {}
        rows = sorted(targets, key=lambda t: (not t.is_initialized, t.name))
        self._rows = rows
        self.labels = _index_labels(rows)
        self._suited: dict[tuple[Demand, tuple[Toleration, ...]], int] = {}
        self._roomy: dict[Shape, int] = {}
        self._rich: dict[tuple[str, int], int] = {}
        self.rows = self._subtract_daemons(tuple(due), known or KnownTargets())
        self.index = {row.name: index for index, row in enumerate(rows)}
        self.cpu = [row.left.get(CPU, 0) for row in self.rows]
        self.memory = [row.left.get(MEMORY, 0) for row in self.rows]
        self.initialized = mask_of_flags(row.is_initialized for row in rows)
        self.open = mask_of_flags(all(v >= 0 for v in row.left.values()) for row in self.rows)

    @property
    def room(self) -> list[Resources]:
        """What pods can use on each node."""
        return [row.left for row in self.rows]

    def recently_changed(self, pools: Iterable[NodePool], now: datetime) -> int:
        """Return the initialized nodes of pools whose pods changed within ``consolidateAfter``."""
        after = {pool.name: pool.spec.disruption.consolidates_after for pool in pools}
        mask = 0
        for index, row in enumerate(self.rows):
            state = row.state
            if state is None or state.claim is None or not state.claim.is_true("Initialized"):
                continue
            wait, since = after.get(state.node_pool), last_pod_change(state.claim)
            if wait and since is not None and now - since < wait:
                mask |= 1 << index
        return mask

    def _subtract_daemons(self, running: tuple[Daemon, ...], known: KnownTargets) -> list[Target]:
        """Return the targets minus the requests of daemons that do not run there yet."""
        if not running:
            return self._rows
        found = known.beside(running, self._rows)
        fresh = [row for row, beside in zip(self._rows, found, strict=True) if beside is None]
        if fresh:  # often a few of hundreds, whose labels alone are then indexed
            labels = self.labels if len(fresh) == len(self._rows) else _index_labels(fresh)
            for row, beside in zip(fresh, _beside_daemons(fresh, labels, running), strict=True):
                known.keep(row, beside)
            found = known.beside(running, self._rows)
        return [beside or row for row, beside in zip(self._rows, found, strict=True)]

    def mask_of(self, names: Iterable[str]) -> int:
        """Return the nodes with these names; other names are ignored."""
        return bits(index for name in names if (index := self.index.get(name)) is not None)

    def volume_limits(self, index: int) -> dict[str, int]:
        """Return how many volumes of each driver can be attached to a node."""
        row = self.rows[index]
        name = row.state.node_name if row.state is not None else row.name
        known = self._csi_nodes.get(name)
        if known is not None:
            return known.limits()
        return {} if row.volume_limit is None else {EBS_DRIVER: row.volume_limit}

    def host_devices(self, index: int) -> HostDevices:
        """Return the devices of a node before any pod is placed."""
        assert self._devices is not None, "pods that claim devices are placed with them"
        return self._devices.of(self.rows[index].state)

    def suitable_nodes(self, demand: Demand, tolerations: tuple[Toleration, ...]) -> int:
        """Return the nodes whose labels and taints suit a pod."""
        key = (demand, tolerations)
        known = self._suited.get(key)
        if known is None:
            known = self.labels.nodes_tolerated_by(tolerations) & self.nodes_meeting(demand)
            self._suited[key] = known
        return known

    def nodes_with_room(self, shape: Shape) -> int:
        """Return the nodes with room, host ports and devices for a pod before any is placed."""
        known = self._roomy.get(shape)
        if known is None:
            known = self.labels.all
            for name, amount in shape.requests.items():
                if amount > 0:
                    known &= self._nodes_with_amount(name, amount)
            if shape.ports:
                known &= ~self._port_index.conflicting(shape.ports)
            if shape.devices is not None:
                known &= self._with_devices(shape.devices)
            self._roomy[shape] = known
        return known

    def _with_devices(self, needs: DeviceNeeds) -> int:
        """Return the nodes that have free devices for a pod, or that have one of its claims.

        Any node may have them for one that may use devices that several nodes reach.
        """
        if needs.uses_network:
            return self.labels.all
        hosts, by_claim = self._device_hosts
        return union_of(by_claim.get(key, 0) for key in needs.shared) | union_of(
            members
            for host, members in hosts
            if count_allocations(host.inventory, host.state, needs.claims, 1)
        )

    @cached_property
    def _device_hosts(self) -> tuple[Sequence[tuple[HostDevices, int]], Mapping[str, int]]:
        """The devices of nodes, and the nodes with the same ones in use; and those by claim."""
        found: dict[tuple[int, DeviceState], list[int]] = {}
        by_claim: dict[str, int] = {}
        hosts = [self.host_devices(index) for index in range(len(self.rows))]
        for index, host in enumerate(hosts):
            found.setdefault((id(host.inventory), host.state), []).append(index)
            for key in host.keys:
                by_claim[key] = by_claim.get(key, 0) | 1 << index
        return [(hosts[members[0]], bits(members)) for members in found.values()], by_claim

    @cached_property
    def _port_index(self) -> PortIndex:
        return PortIndex(ports_of(row.pods) for row in self.rows)

    def _nodes_with_amount(self, name: str, amount: int) -> int:
        """Return the nodes with at least this amount left; pods request few different amounts."""
        known = self._rich.get((name, amount))
        if known is None:
            known = mask_of_flags(row.left.get(name, 0) >= amount for row in self.rows)
            self._rich[name, amount] = known
        return known

    def nodes_meeting(self, demand: Demand) -> int:
        """Return the nodes whose labels meet a demand."""
        return self.labels.nodes_meeting_demand(demand)

    def requirements(self, index: int) -> Requirements:
        """Return a node's labels as requirements."""
        known = self._requirements.get(index)
        if known is None:
            known = Requirements.from_labels(self.rows[index].labels)
            self._requirements[index] = known
        return known


def _index_labels(rows: Sequence[Target]) -> LabelIndex:
    return LabelIndex([t.name for t in rows], [t.labels for t in rows], [t.taints for t in rows])


def _beside_daemons(
    rows: Sequence[Target], labels: LabelIndex, running: Iterable[Daemon]
) -> Iterator[Target]:
    """Yield the targets, indexed by ``labels``, minus what daemons request that do not run yet.

    As in Karpenter, only the first alternative of a daemon counts on an existing node.
    """
    due: list[list[Resources]] = [[] for _ in rows]
    for daemon in running:
        suitable = labels.nodes_meeting_demand(Demand(daemon.terms[0]))
        for index in indices(suitable & labels.nodes_tolerated_by(daemon.tolerations)):
            due[index].append(daemon.requests)
    for row, requests in zip(rows, due, strict=True):
        here = row.state.daemons_used if row.state is not None else {}
        left = dict(row.left)
        for name, amount in add_resources(*requests).items():
            missing = amount - here.get(name, 0)
            if missing > 0 and name in left:
                left[name] -= missing
        yield replace(row, left=left) if requests else row
