"""The daemons of a simulated cluster: which run on each node, and as which pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from reconciler.adapters.simulated.podstatus import running_pod
from reconciler.adapters.simulated.records import ClusterRecord
from reconciler.model.kubernetes.cluster import DaemonSet, PodTemplate
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.binding import scheduler
from reconciler.placement.binding.scheduler import NodeBinder


class DaemonBook:
    """Keeps the record's daemons in step with the DaemonSets.

    ``starting`` is how long a pod takes to become ready.
    """

    def __init__(self, record: ClusterRecord, starting: timedelta) -> None:
        self._record = record
        self._starting = starting
        self._shapes: dict[tuple[str, str], tuple[tuple[object, ...], Pod]] = {}
        self._templates: dict[str, PodTemplate] = {}

    def follow(self, sets: Iterable[DaemonSet]) -> None:
        """Remove the daemons whose template has changed: they start again where they fit."""
        known = self._templates
        self._templates = {scheduler.daemon_set_key(d): d.spec.template for d in sets}
        changed = {k for k, made in self._templates.items() if known.get(k, made) != made}
        if not changed:
            return
        for record in self._record.nodes.values():
            record.daemons = {k: at for k, at in record.daemons.items() if k not in changed}

    def start(
        self, sets: Iterable[DaemonSet], binder: NodeBinder, nodes: Iterable[str], now: datetime
    ) -> tuple[bool, list[tuple[Pod, str]]]:
        """Start the daemons that have room on these nodes.

        Return whether there was any, and the less important pods that have to make room for others,
        with their nodes.
        """
        wanted = {scheduler.daemon_set_key(daemon): daemon for daemon in sets}
        for record in self._record.nodes.values():
            record.daemons = {k: at for k, at in record.daemons.items() if k in wanted}
        has_started, victims = False, dict[str, tuple[Pod, str]]()
        for name in nodes:
            node, running = self._record.nodes[name].node, self._record.nodes[name].daemons
            for key, daemon in wanted.items():
                if key in running:
                    continue
                pod = scheduler.daemon_pod(daemon, node)
                if binder.place(pod, name):
                    running[key] = now
                    has_started = True
                else:
                    victims |= {v.key: (v, name) for v in binder.make_room(pod, name)}
        return has_started, list(victims.values())

    def remove(self, pod: Pod, node: str) -> None:
        """Remove a daemon from its node at once."""
        owner = pod.metadata.owner_references[0].name
        self._record.nodes[node].daemons.pop(f"{pod.namespace}/{owner}", None)

    def forget_node(self, node: str) -> None:
        """Forget the pods of a node that is gone."""
        self._shapes = {key: shape for key, shape in self._shapes.items() if key[0] != node}

    def pods(self, sets: Iterable[DaemonSet], node: str, now: datetime) -> Iterator[Pod]:
        """Yield the observed pods on a node."""
        record = self._record.nodes[node]
        for daemon in sets:
            started = record.daemons.get(scheduler.daemon_set_key(daemon))
            if started is not None:
                yield self._observed_pod(daemon, record.node, started, now)

    def _observed_pod(self, daemon: DaemonSet, node: Node, started: datetime, now: datetime) -> Pod:
        """Return a daemon's pod on a node, the same object while nothing changes."""
        key = (node.name, scheduler.daemon_set_key(daemon))
        facts = (daemon, started, now >= started + self._starting, node.is_ready)
        known = self._shapes.get(key)
        if known is None or known[0] != facts:
            pod = scheduler.daemon_pod(daemon, node)
            times = (started, started + self._starting)
            known = self._shapes[key] = (facts, running_pod(pod, node, started, times, now))
        return known[1]
