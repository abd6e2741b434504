"""The scheduling cycle of kube-scheduler: the node that one pod gets.

Nodes are filtered in the order of the scheduler's cache until enough are found, then scored; of the
nodes with the highest score one is drawn (``pkg/scheduler/schedule_one.go``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final

from reconciler.model.karpenter.labels import ZONE
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.profile import Plugin, Profile
from reconciler.model.kubernetes.storage import claim_keys
from reconciler.placement.binding.host import HostNode, stable_hash
from reconciler.placement.binding.resources import MAX_SCORE, has_room, resource_score
from reconciler.placement.binding.selection import Volumes
from reconciler.placement.binding.shape import SchedulingShape, SchedulingShapes
from reconciler.placement.binding.topology import Change, Neighbourhood
from reconciler.placement.binding.verdict import node_verdict
from reconciler.placement.topology.peers import Owners, Peers

_REGION: Final = "topology.kubernetes.io/region"
_NODES_MIN: Final = 100
"""Clusters with fewer nodes are searched completely, and at least that many nodes are scored."""
_PERCENT_MIN: Final = 5
_LOG_MAX: Final = 50_000
"""The number of changes that are kept for neighbourhoods that are not used meanwhile."""

_MASK: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The result of one cycle: the node, or None and the plugins that rejected nodes."""

    host: HostNode | None
    rejected_by: frozenset[Plugin] = frozenset()


class KubeScheduler:
    """A scheduler with its cache of nodes and of the pods on them.

    ``seed`` decides between nodes with equal scores. Nothing else is drawn: equal calls in equal
    order have equal results. ``profiles`` are those of the schedulers by name; kube-scheduler's
    defaults apply to pods of others. Pods of a lower priority leave room on a node for those that
    are nominated for it.
    """

    def __init__(
        self,
        *,
        profiles: Mapping[str, Profile] | None = None,
        seed: int = 0,
        namespaces: Mapping[str, Mapping[str, str]],
        owners: Owners,
        volumes: Volumes | None = None,
    ) -> None:
        self.volumes = volumes
        self.hosts: dict[str, HostNode] = {}
        self.aside: dict[str, HostNode] = {}
        self._positions: dict[str, int] = {}
        self._seed = seed
        self._namespaces = namespaces
        self._claims_in_use: Counter[str] = Counter()
        self.shapes = SchedulingShapes(Peers(owners, assumes_template=True), profiles or {})
        self._neighbourhoods: dict[SchedulingShape, tuple[Neighbourhood, int, int]] = {}
        self._repelling: Counter[SchedulingShape] = Counter()
        self._unaffected: dict[SchedulingShape, tuple[int, Neighbourhood | None]] = {}
        self._repelling_number = 0
        self._epoch = 0
        self._log: list[Change] = []
        self._next_number = 0
        self._order: list[HostNode] | None = None
        self._order_number = 0
        self._start = 0
        self._version = 0
        self._failures: dict[SchedulingShape, tuple[int, CycleResult]] = {}
        self._nominated: dict[str, dict[str, Pod]] = {}

    def restart(self, seed: int, order: Iterable[str]) -> None:
        """Forget what was decided, and search the nodes in this order, as a new scheduler would.

        What is known of nodes and pods is kept.
        """
        self._seed, self._start = seed, 0
        self._nominated.clear()
        self._failures.clear()
        self.hosts = {name: self.hosts[name] for name in order}
        self._positions = {name: position for position, name in enumerate(self.hosts)}
        self._order = None
        self._version += 1

    # The cache.

    def put_node(self, node: Node) -> HostNode:
        """Add a node, replace it by a newer version, or take it back if it was set aside."""
        known = self.hosts.get(node.name) or self._take_back(node.name)
        if known is not None and known.node is node:
            return known
        if known is not None and known.node.metadata.labels == node.metadata.labels:
            known.replace_node(node)
            self.shapes.forget(known.number)
            self._record(None, known, 0)
            self._order = None
            return known
        number = self._next_number = self._next_number + 1
        if known is None:
            host = HostNode.of(number, node)
            self._positions[node.name] = number
        else:
            host = known.successor(number, node)
            self._forget(known)
        self.hosts[node.name] = host
        self._record(None, host, 1)
        for shape, count in host.shapes.items():
            self._record(shape, host, count)
        self._order = None
        return host

    def set_aside(self, name: str) -> None:
        """Try a node no more until it is added again, at its place; its pods count for rules."""
        self.aside[name] = self.hosts.pop(name)
        self._order = None
        self._version += 1

    def _take_back(self, name: str) -> HostNode | None:
        host = self.aside.pop(name, None)
        if host is not None:
            self.hosts[name], self._order = host, None
            self._version += 1
        return host

    def drop_node(self, name: str) -> None:
        """Remove a node and the pods on it."""
        host = self._take_back(name) or self.hosts[name]
        for key in list(host.pods):
            self.drop_pod(key, host)
        self._forget(host)
        del self.hosts[name], self._positions[name]
        self._order = None

    def _forget(self, host: HostNode) -> None:
        """Forget a version of a node."""
        for shape, count in host.shapes.items():
            self._record(shape, host, -count)
        self._record(None, host, -1)
        self.shapes.forget(host.number)

    def bind(self, pod: Pod, host: HostNode) -> None:
        """Bind a pod to a node, and its unbound volumes to the zone of the node."""
        self.put_pod(pod, host)
        if self.volumes is not None:
            self.volumes.provision(pod, host.node)

    def put_pod(self, pod: Pod, host: HostNode) -> None:
        """Add a pod that is bound to a node, or assumed to be, or replace it by a newer version."""
        shape = self.shapes.of(pod)
        known = host.pods.get(pod.key)
        if known is not None:
            if known[1] is shape:
                host.pods[pod.key], host.followed = (pod, shape), None
                return
            self.drop_pod(pod.key, host)
        host.add(pod, shape)
        self._claims_in_use.update(claim_keys(pod))
        self._record(shape, host, 1)

    def drop_pod(self, key: str, host: HostNode) -> None:
        """Remove a pod from its node."""
        pod, shape = host.remove(key)
        self._claims_in_use -= Counter(claim_keys(pod))
        self._record(shape, host, -1)

    def _record(self, shape: SchedulingShape | None, host: HostNode, count: int) -> None:
        """Record a change of the cache."""
        if len(self._log) >= _LOG_MAX:
            self._epoch += 1
            self._log.clear()
        self._log.append((shape, host, count))
        self._version += 1
        if shape is not None and shape.anti_affinity:
            self._count_repelling(shape, count)

    def _count_repelling(self, shape: SchedulingShape, count: int) -> None:
        """Count the bound pods of a shape with required anti-affinity."""
        before = self._repelling[shape]
        self._repelling[shape] += count
        if not self._repelling[shape]:
            del self._repelling[shape]
        if not before or shape not in self._repelling:
            self._repelling_number += 1

    def nominate(self, pod: Pod, node: str) -> None:
        """Keep room for a pod on a node that others are evicted from."""
        self._nominated.setdefault(node, {})[pod.key] = pod
        self._version += 1

    def withdraw(self, pod: Pod, node: str) -> None:
        """Keep no more room for a pod."""
        pods = self._nominated[node]
        del pods[pod.key]
        if not pods:
            del self._nominated[node]
        self._version += 1

    def nominated_pods(self, node: str) -> list[Pod]:
        """Return the pods that are nominated for a node."""
        return list(self._nominated.get(node, {}).values())

    # The cycle.

    def attempt(self, pod: Pod, nominated: str = "") -> CycleResult:
        """Return the node that a pod gets now; the cache does not change.

        The ``nominated`` node is taken if it passes the filters. Pods of a shape that has failed
        fail again while nothing changes.
        """
        if not self.hosts:
            return CycleResult(None)
        shape = self.shapes.of(pod)
        target = self.hosts.get(nominated)
        if target is not None and self.accepts(pod, target):
            return CycleResult(target)
        failure, is_plain = self._failures.get(shape), not pod.spec.resource_claims
        is_plain = is_plain and not pod.spec.volumes
        if failure is not None and failure[0] == self._version and is_plain:
            return failure[1]
        rejected: set[Plugin] = set()
        found = self._feasible(pod, shape, rejected)
        if not found:
            result = CycleResult(None, frozenset(rejected))
            if not pod.spec.resource_claims:  # shapes do not distinguish claims on devices
                self._failures[shape] = (self._version, result)
            return result
        if len(found) == 1:
            return CycleResult(found[0])
        scores = self._scores(shape, self._neighbourhood(shape), found)
        best = max(scores)
        tied = [host for host, score in zip(found, scores, strict=True) if score == best]
        return CycleResult(tied[0] if len(tied) == 1 else self._draw(pod, tied))

    def accepts(self, pod: Pod, host: HostNode) -> bool:
        """Return whether a node passes the filters for a pod now, beside the pods nominated."""
        shape = self.shapes.of(pod)
        if not node_verdict(shape.rules, host, shape.profile).is_allowed:
            return False
        if self._filter(pod, shape, self._unaffected_neighbourhood(shape))(host) is not None:
            return False
        return host.node.name not in self._nominated or self._accepts_beside_nominated(pod, host)

    def _accepts_beside_nominated(self, pod: Pod, host: HostNode) -> bool:
        """Return whether a pod still passes with the pods that are nominated for the node."""
        shape = self.shapes.of(pod)
        others = [
            other
            for key, other in self._nominated[host.node.name].items()
            if key != pod.key and (other.spec.priority or 0) >= shape.priority
        ]
        if not others:
            return True
        for other in others:
            self.put_pod(other, host)
        passes = self._filter(pod, shape)(host) is None
        for other in others:
            self.drop_pod(other.key, host)
        self._neighbourhood(shape)  # up to date again for the filter in progress
        return passes

    def may_help(self, pod: Pod, host: HostNode) -> bool:
        """Return whether a pod may fit on a node once other pods have left it."""
        shape = self.shapes.of(pod)
        around = self._neighbourhood(shape)
        if not node_verdict(shape.rules, host, shape.profile).is_allowed:
            return False
        return host.offers(shape.demand) and (
            not shape.affinity or around.is_near(host, around.starts_group())
        )

    def _unaffected_neighbourhood(self, shape: SchedulingShape) -> Neighbourhood | None:
        """Return an empty neighbourhood if no pod can keep this shape off a node, otherwise None.

        It is enough for the filters, and no node has to be read for it.
        """
        known = self._unaffected.get(shape)
        if known is None or known[0] != self._repelling_number:
            bare = Neighbourhood.of(shape, self._namespaces)
            affected = bare.has_requirements or any(map(bare.is_repelled_by, self._repelling))
            known = (self._repelling_number, None if affected else bare)
            self._unaffected[shape] = known
        return known[1]

    def _neighbourhood(self, shape: SchedulingShape) -> Neighbourhood:
        """Return the neighbourhood of a shape, with all changes since it was used last."""
        known = self._neighbourhoods.get(shape)
        if known is None:
            around, epoch, seen = Neighbourhood.of(shape, self._namespaces), -1, 0
        else:
            around, epoch, seen = known
        changes = self._log[seen:] if epoch == self._epoch else None
        if changes is None or not around.apply(changes):
            around.rebuild(chain(self.hosts.values(), self.aside.values()))
        self._neighbourhoods[shape] = (around, self._epoch, len(self._log))
        return around

    def _feasible(self, pod: Pod, shape: SchedulingShape, rejected: set[Plugin]) -> list[HostNode]:
        """Return the nodes that pass the filters, as many as are scored."""
        order = self.search_order
        start = self._start % len(order)
        wanted = self._count_wanted(len(order), shape.profile)
        positions = self._allowed_positions(shape)
        if len(positions) < len(order):
            rejected.add(Plugin.NODE_AFFINITY)
        first = bisect_left(positions, start)
        found: list[HostNode] = []
        processed = len(order)
        check = self._filter(pod, shape)
        for position in (*positions[first:], *positions[:first]):
            host = order[position]
            plugin = check(host)
            if plugin is None and self._nominated and not self.accepts(pod, host):
                plugin = Plugin.NODE_RESOURCES_FIT
            if plugin is not None:
                rejected.add(plugin)
            elif len(found) == wanted:
                processed = (position - start) % len(order)
                break
            else:
                found.append(host)
        if not self.aside:  # a pod of a DaemonSet that has one node to go to moves no start
            self._start = (start + processed) % len(order)
        return found

    def _allowed_positions(self, shape: SchedulingShape) -> list[int]:
        """Return the positions in the search order of the nodes that a shape may use."""
        order, rules = self.search_order, shape.rules
        if rules.order != self._order_number:
            rules.allowed = [
                n for n, h in enumerate(order) if node_verdict(rules, h, shape.profile).is_allowed
            ]
            rules.order = self._order_number
        return rules.allowed

    def _filter(
        self, pod: Pod, shape: SchedulingShape, around: Neighbourhood | None = None
    ) -> Callable[[HostNode], Plugin | None]:
        """Return a function that returns the first plugin that rejects an allowed node, if any.

        Without ``around``, the rules between pods are read for the first node that has room: most
        pods that wait find none, and a tenant's may each have a rule of its own.
        """
        profile, demand = shape.profile, shape.demand
        rooms = demand.known
        ports = shape.ports if profile.filters(Plugin.NODE_PORTS) else ()
        checks_fit = profile.filters(Plugin.NODE_RESOURCES_FIT)
        claims = self.volumes.devices if pod.spec.resource_claims and self.volumes else None
        claims = claims if profile.filters(Plugin.DYNAMIC_RESOURCES) else None

        @cache
        def rejection() -> Callable[[HostNode], Plugin | None] | None:
            return (around or self._neighbourhood(shape)).rejection()

        def check(host: HostNode) -> Plugin | None:
            if ports and host.has_port_conflict(shape):
                return Plugin.NODE_PORTS
            room = rooms.get(host.number)
            if room is None or room[0] != host.version:
                fits = has_room(host, demand, profile) or not checks_fit
                score = resource_score(host, demand, profile) if fits else 0
                room = rooms[host.number] = (host.version, fits, score)
            if not room[1]:
                return Plugin.NODE_RESOURCES_FIT
            if pod.spec.volumes:
                plugin = self._volume_rejection(pod, host)
                if plugin is not None:
                    return plugin
            if claims is not None and not claims.fits(pod, host, self.hosts.values()):
                return Plugin.DYNAMIC_RESOURCES
            rejects_neighbours = rejection()
            return rejects_neighbours(host) if rejects_neighbours is not None else None

        return check

    def _volume_rejection(self, pod: Pod, host: HostNode) -> Plugin | None:
        """Return the first plugin that rejects a node for the volumes of a pod."""
        profile, volumes = self.shapes.of(pod).profile, self.volumes
        if volumes is None:
            return None
        if profile.filters(Plugin.VOLUME_RESTRICTIONS) and not volumes.is_free(
            pod, self._claims_in_use
        ):
            return Plugin.VOLUME_RESTRICTIONS
        if profile.filters(Plugin.NODE_VOLUME_LIMITS) and not volumes.can_attach(
            pod, host.node, host.claims
        ):
            return Plugin.NODE_VOLUME_LIMITS
        if profile.filters(Plugin.VOLUME_BINDING) and not volumes.can_reach(pod, host.node):
            return Plugin.VOLUME_BINDING
        return None

    def scores_by_node(self, pod: Pod) -> dict[str, int]:
        """Return the final score of each node that passes the filters, of as many as are scored."""
        shape, start = self.shapes.of(pod), self._start
        found = self._feasible(pod, shape, set())
        self._start = start
        scores = self._scores(shape, self._neighbourhood(shape), found) if found else []
        return {host.node.name: score for host, score in zip(found, scores, strict=True)}

    def _scores(
        self, shape: SchedulingShape, around: Neighbourhood, hosts: list[HostNode]
    ) -> list[int]:
        """Return the final score of each of the nodes that passed the filters."""
        profile, rules, rooms = shape.profile, shape.rules, shape.demand.known
        totals = [rooms[host.number][2] for host in hosts]
        verdicts = [rules.known[host.number] for host in hosts]
        weight = profile.weight(Plugin.TAINT_TOLERATION)
        most = max(verdict.avoided for verdict in verdicts) if weight else 0
        if most:
            for n, verdict in enumerate(verdicts):
                totals[n] += weight * (MAX_SCORE - MAX_SCORE * verdict.avoided // most)
        weight = profile.weight(Plugin.NODE_AFFINITY)
        most = max(verdict.preference for verdict in verdicts) if weight else 0
        if most:
            for n, verdict in enumerate(verdicts):
                totals[n] += weight * (MAX_SCORE * verdict.preference // most)
        weight = profile.weight(Plugin.POD_TOPOLOGY_SPREAD)
        if weight and around.soft:
            for n, score in enumerate(around.spread_scores(hosts)):
                totals[n] += weight * score
        weight = profile.weight(Plugin.INTER_POD_AFFINITY)
        near = around.affinity_scores(hosts) if weight and around.weights else None
        if near is not None:
            for n, score in enumerate(near):
                totals[n] += weight * score
        return totals

    def _draw(self, pod: Pod, tied: Iterable[HostNode]) -> HostNode:
        """Return one of the nodes, each with the same probability over the seeds.

        The pod and the names of the nodes decide, so that runs of two fleets with the same seed
        differ only where the fleets do.
        """
        salt = stable_hash(f"{self._seed}/{pod.key}")
        return min(tied, key=lambda host: _mixed(salt ^ host.salt))

    def _count_wanted(self, nodes: int, profile: Profile) -> int:
        """Return how many nodes are scored at most (``numFeasibleNodesToFind``)."""
        if nodes < _NODES_MIN:
            return nodes
        percent = profile.percentage_of_nodes_to_score
        if not percent:
            percent = max(50 - nodes // 125, _PERCENT_MIN)
        return max(nodes * percent // 100, _NODES_MIN)

    @property
    def search_order(self) -> list[HostNode]:
        """The nodes in the order of the cache: one of each zone in turn."""
        if self._order is None:
            zones: dict[tuple[str, str], list[HostNode]] = {}
            names = sorted(self.hosts, key=self._positions.__getitem__)
            for host in map(self.hosts.__getitem__, names):
                labels = host.node.metadata.labels
                zone = labels.get(_REGION, ""), labels.get(ZONE, "")
                zones.setdefault(zone, []).append(host)
            self._order = list(_round_robin(zones.values()))
            self._order_number += 1
        return self._order


def _round_robin(lists: Iterable[list[HostNode]]) -> Iterator[HostNode]:
    rows = [iter(hosts) for hosts in lists]
    while rows:
        left = []
        for row in rows:
            host = next(row, None)
            if host is not None:
                yield host
                left.append(row)
        rows = left


def _mixed(value: int) -> int:
    """Return 64 bits that look random, one for each value (the finalizer of SplitMix64)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
