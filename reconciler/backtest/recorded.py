"""Makes a trace from the workload that the daemon of a fleet has recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from reconciler.backtest.market import MarketTimeline
from reconciler.backtest.trace import (
    SECONDS_DIGITS,
    Trace,
    TracedNode,
    TracedPod,
    traced_daemon,
    traced_pod,
    with_unique_names,
)
from reconciler.model.errors import StateError
from reconciler.ports.state import NodeArrival, PodArrival, PodClass, TraceBatch

_KNOWN_FOR: Final = timedelta(days=1)
"""How long a batch is valid: a running daemon records a complete one each day."""


@dataclass(slots=True)
class _PodStay:
    arrival: PodArrival
    pod_class: PodClass
    ended: datetime | None = None


@dataclass(slots=True)
class _NodeStay:
    arrival: NodeArrival
    ended: datetime | None = None


@dataclass(slots=True)
class _Timeline:
    """The pods and nodes that were created and removed, according to successive batches."""

    pods: dict[str, _PodStay] = field(default_factory=dict)
    nodes: dict[str, _NodeStay] = field(default_factory=dict)
    ended_pods: list[_PodStay] = field(default_factory=list)
    ended_nodes: list[_NodeStay] = field(default_factory=list)
    daemons: dict[str, PodClass] = field(default_factory=dict)
    classes: dict[str, PodClass] = field(default_factory=dict)
    market: MarketTimeline = field(default_factory=MarketTimeline)

    def add(self, batch: TraceBatch) -> None:
        """Read the next batch; pods that a complete batch no longer lists ended before it."""
        if batch.is_whole:
            self._end_unlisted(batch)
        self._end(batch.gone, batch.gone_nodes, batch.at)
        for name, kind in batch.classes.items():
            self.classes.setdefault(name, kind)  # a name is a digest: equal classes are one
        for arrival in batch.pods:
            known = self.pods.get(arrival.pod)
            if known is None:
                self.pods[arrival.pod] = _PodStay(arrival, self.classes[arrival.pod_class])
            elif known.arrival.bound is None:
                known.arrival = arrival
        for key, bound in batch.bound.items():
            stay = self.pods[key]
            stay.arrival = PodArrival(key, stay.arrival.pod_class, stay.arrival.created, bound)
        for node in batch.nodes:
            self.nodes.setdefault(node.node, _NodeStay(node))
        if batch.daemons is not None:
            self.daemons = batch.daemons
        self.market.add(batch.at, batch.spot, batch.refused, is_whole=batch.is_whole)

    def _end_unlisted(self, batch: TraceBatch) -> None:
        """End the pods and nodes that a complete batch does not list."""
        created = {arrival.pod: arrival.created for arrival in batch.pods}
        nodes = {arrival.node for arrival in batch.nodes}
        pods = self.pods.items()
        self._end(
            [key for key, stay in pods if created.get(key) != stay.arrival.created],
            [name for name in self.nodes if name not in nodes],
            batch.at,
        )

    def _end(self, pods: Iterable[str], nodes: Iterable[str], at: datetime) -> None:
        for key in pods:
            stay = self.pods.pop(key, None)
            if stay is not None:
                stay.ended = at
                self.ended_pods.append(stay)
        for name in nodes:
            node = self.nodes.pop(name, None)
            if node is not None:
                node.ended = at
                self.ended_nodes.append(node)


def recorded_trace(batches: Iterable[TraceBatch], since: datetime, until: datetime) -> Trace:
    """Return the trace from ``since`` to ``until``, or of the part of it that is recorded.

    Pods that exist when the trace begins are created and bound then. DaemonSets are those of its
    end.

    Raises:
        StateError: there is no record of that time, or the record is damaged.
    """
    timeline, first, last = _Timeline(), None, None
    for batch in batches:
        if batch.at > until:
            break
        try:
            timeline.add(batch)
        except KeyError as error:
            raise StateError(
                f"the record of the workload lacks {error}",
                remedy="run `reconciler state check`",
            ) from error
        first, last = first or batch.at, batch.at
    begin = since if first is None else max(since, first)
    end = until if last is None else min(until, last + _KNOWN_FOR)
    if first is None or begin >= end:
        raise StateError(
            f"there is no record of the workload from {since:%F %H:%M} to {until:%F %H:%M} UTC",
            remedy="`reconciler run` and `watch` record it, unless history.trace is Never",
        )
    pods = with_unique_names(
        sorted(_pods(timeline, begin, end), key=lambda p: (p.created, p.pod.key))
    )
    return Trace(
        tuple(pods),
        _seconds(begin, end),
        nodes=tuple(sorted(_nodes(timeline, begin, end), key=lambda n: (n.created, n.node))),
        daemons=tuple(traced_daemon(key, kind) for key, kind in sorted(timeline.daemons.items())),
        begin=begin,
        market=timeline.market.trace_between(begin, end),
    )


def _pods(timeline: _Timeline, begin: datetime, end: datetime) -> Iterator[TracedPod]:
    for stay in (*timeline.ended_pods, *timeline.pods.values()):
        arrival, ended = stay.arrival, stay.ended
        if arrival.created >= end or (ended is not None and ended <= begin):
            continue
        created = _seconds(begin, arrival.created)
        bound = None if arrival.bound is None else _seconds(begin, arrival.bound)
        over = None if ended is None or ended > end else _seconds(begin, ended)
        yield traced_pod(arrival.pod, stay.pod_class, created, bound, over)


def _nodes(timeline: _Timeline, begin: datetime, end: datetime) -> Iterator[TracedNode]:
    for stay in (*timeline.ended_nodes, *timeline.nodes.values()):
        arrival, ended = stay.arrival, stay.ended
        if arrival.created >= end or (ended is not None and ended <= begin):
            continue
        yield TracedNode(
            node=arrival.node,
            node_pool=arrival.node_pool,
            instance_type=arrival.instance_type,
            zone=arrival.zone,
            capacity_type=arrival.capacity_type,
            price=arrival.price,
            created=_seconds(begin, arrival.created),
            deleted=None if ended is None or ended > end else _seconds(begin, ended),
        )


def _seconds(begin: datetime, at: datetime) -> float:
    """Return the seconds from the beginning, 0 for earlier times."""
    return max(round((at - begin).total_seconds(), SECONDS_DIGITS), 0.0)
