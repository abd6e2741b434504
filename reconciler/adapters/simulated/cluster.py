"""A Kubernetes cluster simulated from the instances in EC2 and the workloads of the fleet.

Nodes join as their instances run, pods find nodes, drains respect budgets. Everything follows
from its inputs but for what happened on the way (who is bound where, who was tainted): that is
kept on a shelf after every change, so that a process that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Final

from reconciler.adapters.simulated import nodes as node_objects
from reconciler.adapters.simulated.budgets import CoveringBudgets
from reconciler.adapters.simulated.conditions import REBOOTED_TAG
from reconciler.adapters.simulated.nodes import Drivers, Types, boot_of, devices_of_catalog
from reconciler.adapters.simulated.pods import PodBook
from reconciler.adapters.simulated.records import NodeRecord, decode_record, encode_record
from reconciler.catalog.table import iterate_members
from reconciler.desired.workloads.pods import Workloads
from reconciler.model.chance import Chance
from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.labels import (
    INSTANCE_TYPE,
    NODECLASS,
    REGISTERED,
    UNREGISTERED_TAINT,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.cluster import EBS_DRIVER, PodDisruptionBudget
from reconciler.model.kubernetes.devices import published_slices
from reconciler.model.kubernetes.eviction import drain_groups, may_evict, must_delete_now
from reconciler.model.kubernetes.node import CSINode, Node, csi_node
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.profile import Profile
from reconciler.model.kubernetes.taint import DISRUPTED, REBOOTING
from reconciler.observed.fingerprint import Pods
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import cluster_state
from reconciler.placement.binding.devices import DeviceClaims
from reconciler.placement.binding.selection import volumes_of
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Instance
from reconciler.ports.cluster import DrainStep
from reconciler.ports.state import Shelf

SHELF_NAME: Final = "embedded-cluster"


class EmbeddedCluster:
    """A cluster whose nodes are instances seen in EC2 and whose pods are those of the workloads.

    ``types`` finds an instance type of the catalog; ``workloads`` returns what should run now.
    A node joins ``joining_s`` seconds after its instance was launched and is ready ``ready_s``
    later; a pod is ready ``starting_s`` after it was bound to its node, and gone ``leaving_s``
    after it was evicted, None for its grace period. ``chance`` decides what is undetermined;
    ``drivers`` returns the devices that the drivers of a node publish.
    """

    def __init__(
        self,
        shelf: Shelf,
        types: Types,
        workloads: Callable[[], Workloads],
        clock: Clock,
        *,
        joining_s: float = 0.0,
        ready_s: float = 0.0,
        starting_s: float = 0.0,
        leaving_s: float | None = 0.0,
        chance: Chance | None = None,
        drivers: Drivers = devices_of_catalog,
    ) -> None:
        self._shelf = shelf
        self._types = types
        self._drivers = drivers
        self._workloads = workloads
        self._clock = clock
        self._joining = timedelta(seconds=joining_s)
        self._ready = timedelta(seconds=ready_s)
        self._stored = shelf.read(SHELF_NAME)
        self._record = decode_record(self._stored)
        self._last = Pods()
        self._budgets = CoveringBudgets()
        self._shown_budgets: tuple[PodDisruptionBudget, ...] = ()
        self._schedulable: frozenset[str] | None = None
        self._observed_at = clock.now()
        self._pods = PodBook(
            self._record,
            starting=timedelta(seconds=starting_s),
            leaving=timedelta(seconds=leaving_s) if leaving_s is not None else None,
            chance=chance,
        )

    def schedule_with(self, profiles: Mapping[str, Profile]) -> None:
        """Bind pods as schedulers with these profiles do, by name, instead of by the defaults."""
        self._pods.scheduler.profiles = profiles

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now, after applying what was due: nodes join, pods are bound."""
        now, workloads = self._clock.now(), self._workloads()
        self._follow_instances(claims, instances, now)
        csi_nodes = self._csi_nodes(workloads)
        devices = self._devices(workloads)
        claimed = DeviceClaims(cluster_state(devices)) if workloads.has_devices else None
        volumes = volumes_of(workloads, self._record.volume_zones, csi_nodes, claimed)
        self._pods.follow(workloads, now)
        self._pods.bind(
            workloads, volumes, now, self._arrivals(instances, now), self._shown_budgets
        )
        pods = self._index_pods(self._pods.objects(workloads, now))
        volume_claims, made = volumes.objects()
        self._save()
        budgets = workloads.pod_disruption_budgets
        self._shown_budgets = self._budgets.with_allowed_evictions(budgets, pods)
        return replace(
            Snapshot(**workloads.workload_objects()),
            nodes=tuple(self._nodes()),
            node_claims=tuple(sorted(claims, key=lambda c: c.name)),
            pods=pods,
            pod_disruption_budgets=self._shown_budgets,
            volume_claims=volume_claims,
            volumes=made,
            csi_nodes=csi_nodes,
            resource_slices=devices.resource_slices,
        )

    def _csi_nodes(self, workloads: Workloads) -> tuple[CSINode, ...]:
        """Return the attachment limits of the nodes; the EBS driver reports that of each type."""
        if not workloads.volume_claims:
            return workloads.csi_nodes
        found = {node.metadata.name: node for node in workloads.csi_nodes}
        for name, record in self._record.nodes.items():
            kind = self._types(record.node.metadata.labels.get(INSTANCE_TYPE, ""))
            if name not in found and kind is not None and kind.volume_limit is not None:
                found[name] = csi_node(name, {EBS_DRIVER: kind.volume_limit})
        return tuple(found[name] for name in sorted(found))

    def _devices(self, workloads: Workloads) -> Snapshot:
        """Return the claims on devices, and what the drivers of the nodes publish."""
        if not workloads.has_devices:
            return Snapshot()
        found = Snapshot(
            device_classes=workloads.device_classes,
            resource_claims=workloads.resource_claims,
            claim_templates=workloads.claim_templates,
            resource_slices=workloads.resource_slices,
        )
        known = {item.spec.node_name for item in found.resource_slices}
        slices = list(found.resource_slices)
        nodes = []
        for name, record in sorted(self._record.nodes.items()):
            nodes.append(record.node)
            labels = record.node.metadata.labels
            kind = self._types(labels.get(INSTANCE_TYPE, ""))
            if name not in known and kind is not None:
                slices += published_slices(name, self._drivers(kind, labels.get(NODECLASS, "")))
        return replace(found, nodes=tuple(nodes), resource_slices=tuple(slices))

    def _arrivals(
        self, instances: Iterable[Instance], now: datetime
    ) -> list[tuple[float, list[str]]]:
        """Return the nodes that have become schedulable since the last call, moment by moment.

        Each moment is in seconds since that call, or since the first of them if it was earlier.
        """
        since, self._observed_at = self._observed_at, now
        nodes = {name: r for name, r in self._record.nodes.items() if _is_schedulable(r.node)}
        before, self._schedulable = self._schedulable, frozenset(nodes)
        by_id = {instance.id: instance for instance in instances}
        groups: dict[datetime, list[str]] = {}
        for name in sorted(nodes.keys() - before) if before is not None else ():
            instance = by_id.get(nodes[name].instance)
            ready = self._ready_time(instance) if instance is not None else None
            groups.setdefault(ready or since, []).append(name)
        first = min(groups, default=since)
        begin = min(first, since)
        return [((at - begin).total_seconds(), groups[at]) for at in sorted(groups)]

    def _index_pods(self, pods: Iterable[Pod]) -> Pods:
        ordered = sorted(pods, key=attrgetter("metadata.name"))
        ordered.sort(key=attrgetter("metadata.namespace"))  # two keys take half as long as pairs
        self._last = Pods.index_after(ordered, self._last)
        return self._last

    def taint(self, node: str) -> None:
        """Add the taint ``karpenter.sh/disrupted:NoSchedule`` to a node; this is idempotent."""
        self._change(node, lambda known: node_objects.with_taint(known, DISRUPTED))

    def untaint(self, node: str) -> None:
        """Remove that taint; a missing node is not an error."""
        self._change(
            node, lambda known: node_objects.without_taints(known, DISRUPTED), may_be_gone=True
        )

    def fence(self, node: str) -> None:
        """Add the taint ``karpenter.sh/rebooting:NoSchedule`` to a node; this is idempotent."""
        self._change(node, lambda known: node_objects.with_taint(known, REBOOTING))

    def unfence(self, node: str) -> None:
        """Remove that taint; a missing node is not an error."""
        self._change(
            node, lambda known: node_objects.without_taints(known, REBOOTING), may_be_gone=True
        )

    def cordon(self, node: str) -> None:
        """Cordon a node, with the taint that its controller adds."""
        self._change(node, partial(node_objects.with_cordon, is_cordoned=True))

    def uncordon(self, node: str) -> None:
        """Undo that; a missing node is not an error."""
        self._change(node, partial(node_objects.with_cordon, is_cordoned=False), may_be_gone=True)

    def register(self, node: str, claim: NodeClaim) -> None:
        """Apply the labels, annotations and taints of its claim to a node that has joined."""
        self._change(node, lambda known: node_objects.with_registration(known, claim))

    def add_finalizer(self, node: str) -> None:
        """Add our finalizer to a Node, as to one of a real cluster; this is idempotent."""
        self._change(node, node_objects.with_finalizer)

    def has_node(self, node: str) -> bool:
        """Return True: nothing else deletes a Node, and one that is not shown will still join."""
        del node
        return True

    def initialize(self, node: str) -> None:
        """Mark a node as initialized."""
        self._change(node, node_objects.with_initialization)

    def uninitialize(self, node: str) -> None:
        """Mark a node as not initialized; a missing node is not an error."""
        self._change(node, node_objects.without_initialization, may_be_gone=True)

    def _change(
        self, node: str, change: Callable[[Node], Node], *, may_be_gone: bool = False
    ) -> None:
        record = self._record.nodes.get(node)
        if record is not None:
            record.node = change(record.node)
            self._save()
        elif not may_be_gone:
            raise ClusterError(f'nodes "{node}" not found', where=f"Node {node}")

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> DrainStep:
        """Evict the pods of a node, group by group; return what it waits for."""
        if node not in self._record.nodes:
            return DrainStep()
        workloads = self._workloads()
        self._pods.follow(workloads, now)
        going = _draining_pods(self._pods.objects(workloads, now, node), node, now)
        if not going:
            self._save()
            return DrainStep()
        budgets, protected = self._protection_of(going, workloads, now)
        pods = {pod.key: pod for pod in (*going, *protected)}
        has_evicted = True
        while has_evicted:
            has_evicted = False
            groups = drain_groups(_draining_pods(pods.values(), node, now))
            for pod in groups[0] if groups else ():
                forced = must_delete_now(pod, deadline, now)
                evictable = pod.is_evictable(now) and may_evict(pod, budgets, list(pods.values()))
                if pod.is_terminating or not (forced or evictable):
                    continue
                has_evicted = True
                del pods[pod.key]
                pods.update((after.key, after) for after in self._pods.evict(pod, now))
        self._save()
        return DrainStep(pods=len(_draining_pods(pods.values(), node, now)))

    def _protection_of(
        self, going: Iterable[Pod], workloads: Workloads, now: datetime
    ) -> tuple[list[PodDisruptionBudget], list[Pod]]:
        """Return the budgets that protect these pods, and all pods that those budgets select."""
        known, budgets = self._budgets, workloads.pod_disruption_budgets
        protecting = known.protecting_budgets(budgets, going)
        if not protecting:
            return [], []
        keys = known.selected_keys(budgets, protecting, workloads.pods)
        daemons = [d for d in workloads.daemon_sets if known.selects(budgets, protecting, d.pod())]
        others = self._pods.other_pods(replace(workloads, daemon_sets=tuple(daemons)), now)
        selected = self._pods.pods_with_keys(keys, workloads, now)
        selected += [pod for pod in others if known.selects(budgets, protecting, pod)]
        return [budgets[number] for number in iterate_members(protecting)], selected

    def delete_node(self, node: str) -> None:
        """Remove the Node object; a missing one is not an error."""
        record = self._record.nodes.pop(node, None)
        if record is not None:
            self._record.removed.append(record.instance)
            self._pods.remove_from_node(node, self._clock.now())
            self._save()

    def _nodes(self) -> list[Node]:
        return [self._record.nodes[name].node for name in sorted(self._record.nodes)]

    def _save(self) -> None:
        content = encode_record(self._record)
        if content != self._stored:
            self._shelf.write(SHELF_NAME, content)
            self._stored = content

    def _remove_nodes(self, alive: AbstractSet[str], now: datetime) -> None:
        """Remove the nodes whose instances are not alive, with their pods."""
        record = self._record
        record.removed = [identity for identity in record.removed if identity in alive]
        for name in [n for n, r in record.nodes.items() if r.instance not in alive]:
            del record.nodes[name]
            self._pods.remove_from_node(name, now)

    def _follow_instances(
        self, claims: Sequence[NodeClaim], instances: Sequence[Instance], now: datetime
    ) -> None:
        """Let nodes join, become ready, and be removed with their instances."""
        record = self._record
        by_provider = {c.status.provider_id: c for c in claims if c.status.provider_id}
        alive = {i.id: i for i in instances if i.state != "terminated"}
        self._remove_nodes(alive.keys(), now)
        known = {r.instance: r for r in record.nodes.values()}
        for instance in sorted(alive.values(), key=lambda i: i.id):
            claim = by_provider.get(instance.provider_id)
            node = known.get(instance.id)
            if node is None:
                node = self._join(instance, claim, now)
            if node is not None:
                self._update_readiness(node, instance, claim, now)

    def _join_time(self, instance: Instance) -> datetime | None:
        """Return when the node of an instance joins, None if it never does."""
        return started_at(instance) + self._joining

    def _ready_time(self, instance: Instance) -> datetime | None:
        """Return when the node of an instance is ready, None if it never is."""
        return started_at(instance) + self._joining + self._ready

    def _join(
        self, instance: Instance, claim: NodeClaim | None, now: datetime
    ) -> NodeRecord | None:
        """Add the node of a running instance once its join time has passed."""
        if instance.state != "running" or instance.id in self._record.removed:
            return None
        joins_at = self._join_time(instance)
        if joins_at is None or now < joins_at:
            return None
        name = instance.private_dns_name or instance.id
        if name in self._record.nodes:
            name = instance.id
        record = NodeRecord(
            node_objects.create_node(instance, claim, self._types, name), instance.id
        )
        self._record.nodes[name] = record
        return record

    def _update_readiness(
        self, record: NodeRecord, instance: Instance, claim: NodeClaim | None, now: datetime
    ) -> None:
        """Update readiness; remove startup taints when the node is ready and registered.

        A kubelet reports another boot once its machine has started again.
        """
        joins_at = self._join_time(instance)
        if REBOOTED_TAG in instance.tags and joins_at is not None and now >= joins_at:
            record.node = node_objects.with_boot(record.node, boot_of(instance), now)
        due = self._ready_time(instance)
        ready = instance.state == "running" and due is not None and now >= due
        record.node = node_objects.with_readiness(record.node, ready=ready, now=now)
        is_registered = record.node.metadata.labels.get(REGISTERED) == "true"
        if claim is not None and ready and is_registered:
            record.node = node_objects.without_taints(record.node, *claim.spec.startup_taints)


def started_at(instance: Instance) -> datetime:
    """Return when a machine last started: at its launch, or when it was last rebooted."""
    rebooted = instance.tags.get(REBOOTED_TAG, "")
    return datetime.fromisoformat(rebooted) if rebooted else instance.launched_at


def _is_schedulable(node: Node) -> bool:
    """Return whether a node has joined completely: ready, and registered with its claim."""
    return node.is_ready and all(t.key != UNREGISTERED_TAINT for t in node.spec.taints)


def _draining_pods(pods: Iterable[Pod], node: str, now: datetime) -> list[Pod]:
    return [p for p in pods if p.spec.node_name == node and p.is_drainable(now)]
