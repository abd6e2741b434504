"""The cluster of a simulation: like the embedded one, and it reports what it observes.

Each node takes its own time to join, by chance or never; what came from a snapshot is there from
the first moment on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from reconciler.adapters.simulated.cluster import EmbeddedCluster
from reconciler.adapters.simulated.conditions import Chance, Conditions
from reconciler.adapters.simulated.firststate import FirstState
from reconciler.adapters.simulated.nodes import Types
from reconciler.desired.workloads.pods import Workloads
from reconciler.model.karpenter.labels import DISRUPTED_TAINT
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Instance
from reconciler.ports.progress import EventKind, Notifier, Progress
from reconciler.ports.state import Shelf


class WatchedCluster(EmbeddedCluster):
    """A cluster that tells ``ears`` of pods that are bound and evicted, of taints and drains.

    ``first`` is where it started from; the rest is as for ``EmbeddedCluster``.
    """

    def __init__(
        self,
        shelf: Shelf,
        types: Types,
        workloads: Callable[[], Workloads],
        clock: Clock,
        ears: Notifier,
        first: FirstState,
        conditions: Conditions,
        chance: Chance,
    ) -> None:
        span = conditions.latencies
        super().__init__(
            shelf, types, self._present, clock, starting_s=span.starting, leaving_s=span.leaving
        )
        self._given = workloads
        self._ears = ears
        self._first = first
        self._chance = chance
        self._conditions = conditions
        self._settled = {i.id for i in (*first.instances, *first.foreign)}
        self._seen: tuple[Instance, ...] = ()
        self._claims: dict[str, NodeClaim] = {}
        self._drained: set[str] = set()
        self._shown: tuple[Workloads, frozenset[str], Workloads] | None = None

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now, and tell which pods got or lost their nodes since."""
        self._seen = tuple(instances)
        self._claims = {c.status.provider_id: c for c in claims if c.status.provider_id}
        before = self._places()
        snapshot = super().observe(claims, (*instances, *self._first.foreign))
        for key, record in self._record.pods.items():
            was = before.get(key, "")
            if was and was != record.node and was not in self._record.nodes:
                self._notify(
                    EventKind.POD_EVICTED, f"{key} lost {was}", was, reason="NodeGone", pod=key
                )
            if record.node and was != record.node:
                self._notify(EventKind.POD_BOUND, f"{key} on {record.node}", record.node, pod=key)
        return snapshot

    def taint(self, node: str) -> None:
        """Put the taint ``karpenter.sh/disrupted:NoSchedule`` on a node; twice is once."""
        known = self._record.nodes.get(node)
        fresh = known is not None and all(t.key != DISRUPTED_TAINT for t in known.node.spec.taints)
        super().taint(node)
        if fresh:
            self._notify(EventKind.TAINTED, f"{node} is cordoned", node)

    def untaint(self, node: str) -> None:
        """Remove that taint; a node that is gone is not an error."""
        self._drained.discard(node)
        super().untaint(node)

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> int:
        """Ask the pods of a node to leave, and tell which are asked and when it is empty."""
        there = [k for k, r in self._record.pods.items() if r.node == node and r.leaving is None]
        waits_for = super().drain(node, deadline, now)
        for key in there:
            record = self._record.pods.get(key)
            if record is None or record.node != node or record.leaving is not None:
                self._notify(
                    EventKind.POD_EVICTED, f"{key} leaves {node}", node, reason="Drain", pod=key
                )
        if not waits_for and node in self._record.nodes and node not in self._drained:
            self._drained.add(node)
            self._notify(EventKind.DRAINED, f"{node} is empty", node)
        return waits_for

    def delete_node(self, node: str) -> None:
        """Remove the Node object; one that is gone is not an error."""
        self._drained.discard(node)
        super().delete_node(node)

    def next_moment(self) -> datetime | None:
        """Return the time of the next event, None if there is none."""
        now = self._clock.now()
        return min((m for m in self._moments() if m > now), default=None)

    def homeless(self) -> int:
        """Return how many pods have no node."""
        return sum(not record.node for record in self._record.pods.values())

    def load(self) -> dict[str, int]:
        """Return how many pods each node has, daemons left out."""
        found: dict[str, int] = {}
        for record in self._record.pods.values():
            if record.node:
                found[record.node] = found.get(record.node, 0) + 1
        return found

    def _present(self) -> Workloads:
        """Return the workloads without the pods that ended with their node."""
        workloads, rooted = self._given(), self._first.rooted
        if not rooted:
            return workloads
        record = self._record
        ended = frozenset(
            key
            for key in rooted
            if (there := record.pods.get(key)) is None or there.node not in record.nodes
        )
        if not ended:
            return workloads
        known = self._shown
        if known is None or known[0] is not workloads or known[1] != ended:
            left = tuple(p for p in workloads.pods if p.key not in ended)
            self._shown = known = (workloads, ended, replace(workloads, pods=left))
        return known[2]

    def _save(self) -> None:
        """Store nothing: a simulated cluster ends with its process."""

    def _moments(self) -> Iterator[datetime]:
        for instance in self._seen:
            if instance.id not in self._settled and not instance.is_going:
                for moment in (self._joins_at(instance), self._ready_at(instance)):
                    if moment is not None:
                        yield moment
        for record in self._record.pods.values():
            if record.leaving is not None:
                yield record.leaving + self._pods.leaving
            elif record.bound is not None:
                yield record.bound + self._pods.starting

    def _joins_at(self, instance: Instance) -> datetime | None:
        if instance.id in self._settled:
            return instance.launched_at
        if self._chance.share("joins", instance.id) < self._conditions.never_joins:
            return None
        least, most = self._conditions.latencies.joining
        wait = self._chance.between(least, most, "joining", instance.id)
        return instance.launched_at + timedelta(seconds=wait)

    def _ready_at(self, instance: Instance) -> datetime | None:
        if instance.id in self._first.ill:
            return None
        joins_at = self._joins_at(instance)
        if joins_at is None or instance.id in self._settled:
            return joins_at
        return joins_at + timedelta(seconds=self._conditions.latencies.ready)

    def _places(self) -> dict[str, str]:
        return {key: record.node for key, record in self._record.pods.items()}

    def _notify(self, kind: EventKind, message: str, node: str, **facts: str) -> None:
        reason = facts.pop("reason", "")
        record = self._record.nodes.get(node)
        claim = self._claims.get(record.node.spec.provider_id) if record is not None else None
        self._ears.notify(
            Progress(
                self._clock.now(),
                kind,
                message,
                node=node,
                node_claim=claim.name if claim is not None else "",
                node_pool=claim.node_pool if claim is not None else "",
                reason=reason,
                facts=facts,
            )
        )
