"""The pods of a simulated cluster: which exist, where they run, and their state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from msgspec.structs import replace

from reconciler.adapters.simulated.binders import ClusterBinder
from reconciler.adapters.simulated.daemons import DaemonBook
from reconciler.adapters.simulated.podstatus import (
    has_own_claims,
    named_pod,
    nominated_status,
    pod_of_template,
    present_key,
    running_pod,
    waiting_pod,
)
from reconciler.adapters.simulated.records import ClusterRecord, EndingPod, PodRecord, pod_hash
from reconciler.desired.workloads.pods import Workloads
from reconciler.model.chance import Chance
from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.controllers import (
    grace_period,
    has_generated_name,
    is_completed_when_gone,
    is_replaced_at_once,
    successor_name,
)
from reconciler.model.kubernetes.pod import UNSCHEDULABLE, Pod
from reconciler.observed.fingerprint import Pods
from reconciler.placement.binding import scheduler
from reconciler.placement.binding.preemption import EVICTION_ROUNDS_MAX
from reconciler.placement.binding.scheduler import JoiningNodes, NodeBinder, NodeInfo, node_infos
from reconciler.placement.binding.selection import Volumes


@dataclass(slots=True)
class _View:
    """The pods of the workloads as observed at ``at``, by key in the order of ``rows``.

    ``changed`` are those with changes since then, ``starting`` those that become
    ready without a change; ``ready`` is the readiness of the nodes.
    """

    rows: list[tuple[str, str, Pod]]
    shown: dict[str, Pod]
    at: datetime
    ready: dict[str, bool] = field(default_factory=dict)
    starting: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)


class PodBook:
    """Keeps the record's pods in step with the workloads.

    A pod that its workload no longer has terminates on its node; one of a Job has completed. With
    ``chance``, pods are replaced as their controllers do it (``model.kubernetes.controllers``);
    otherwise every successor has the name of the evicted pod. A pod whose spec changes and whose
    name does not is replaced at once. ``leaving`` is how long a pod takes to terminate, None for
    its grace period. ``preempted`` are the pods, each with its node, that made room for more
    important ones when pods were bound last.
    """

    def __init__(
        self,
        record: ClusterRecord,
        *,
        starting: timedelta,
        leaving: timedelta | None,
        chance: Chance | None = None,
    ) -> None:
        self._record = record
        self.starting = starting
        self.leaving = leaving
        self.scheduler = ClusterBinder(chance)
        self._daemons = DaemonBook(record, starting)
        self.preempted: list[tuple[str, str]] = []
        self._chance = chance
        self._by_name: dict[str, str] = {}
        self._source: tuple[Pod, ...] = ()
        self._listed: list[tuple[str, str, Pod]] = []
        self._by_key: dict[str, Pod] = {}
        self._followed: tuple[Pod, ...] | None = None
        self._next_end: datetime | None = None
        self._shapes: dict[str, tuple[Pod, tuple[object, ...], Pod]] = {}
        self._places: dict[str, list[str]] | None = None
        self._failed_attempt: tuple[object, ...] | None = None
        self._view: _View | None = None
        self._moved: dict[str, tuple[str, str]] | None = None

    def watch_moves(self) -> Mapping[str, tuple[str, str]]:
        """Return the name and node that pods had before their first change from now on, by key."""
        self._moved = {}
        return self._moved

    def follow(self, workloads: Workloads, now: datetime) -> None:
        """Add pods and let pods terminate as the workloads change, and remove terminated ones.

        Nothing is done while the workloads are the same and no pod has terminated.
        """
        is_due = self._next_end is not None and now >= self._next_end
        if workloads.pods is self._followed and not is_due:
            return
        earlier, rows, known = self._by_key, self._rows(workloads), self._record.pods
        ending = self._record.ending_pods(self._by_key)
        ending = [one for one in ending if not self._is_over(one.shown, one.record, now)]
        if workloads.pods is not self._followed:
            ending += self._unwanted(rows, earlier, now)
        fresh = self._next_records(rows, {one.pod: one for one in ending}, now)
        for key, record in fresh.items():
            if record is not known.get(key):
                self._mark_changed(key)
        self._record.pods = fresh
        takes_time = self.leaving is None or bool(self.leaving)  # to terminate
        self._record.templates = {make: pod for _, make, pod in rows} if takes_time else {}
        self._record.ending = [one for one in ending if one.record is not fresh.get(one.pod)]
        self._followed, self._places = workloads.pods, None
        self._next_end = min(self._ends(), default=None)
        self._limit_shapes(fresh)

    def _limit_shapes(self, pods: Collection[str]) -> None:
        if len(self._shapes) > 2 * len(pods):
            self._shapes = {key: shape for key, shape in self._shapes.items() if key in pods}

    def _rows(self, workloads: Workloads) -> list[tuple[str, str, Pod]]:
        """Return the pods with their keys and hashes, computed once for each."""
        if workloads.pods is not self._source:
            makes: dict[tuple[int, int, int], str] = {}
            self._listed = [(pod.key, pod_hash(pod, makes), pod) for pod in workloads.pods]
            self._by_key = {key: pod for key, _, pod in self._listed}
            self._source = workloads.pods
        return self._listed

    def _next_records(
        self, rows: Sequence[tuple[str, str, Pod]], ending: Mapping[str, EndingPod], now: datetime
    ) -> dict[str, PodRecord]:
        """Return the records of the pods of the workloads, new ones for those that begin."""
        known, fresh = self._record.pods, dict[str, PodRecord]()
        for key, make, pod in rows:
            record, before = known.get(key), ending.get(key)
            if record is None or record.make != make:
                record = self._created(pod, make, before, now)
            elif self._is_over(pod, record, now):
                record = self._successor(key, record, now)
            fresh[key] = record
        return fresh

    def _unwanted(
        self, rows: Sequence[tuple[str, str, Pod]], earlier: Mapping[str, Pod], now: datetime
    ) -> Iterator[EndingPod]:
        """Yield the pods on nodes that the workloads no longer have, as they begin to terminate."""
        makes = {key: make for key, make, _ in rows}
        for key, record in self._record.pods.items():
            pod = earlier.get(key) or pod_of_template(self._record.templates.get(record.make), key)
            if pod is None or not record.node or makes.get(key) == record.make:
                continue
            if key in makes and self._keeps_name(pod):
                continue
            ending = replace(record, leaving=record.leaving or now)
            if not is_completed_when_gone(pod) and not self._is_over(pod, ending, now):
                yield EndingPod(key, ending, pod)

    def _created(self, pod: Pod, make: str, before: EndingPod | None, now: datetime) -> PodRecord:
        """Return the record of a pod that its workload has now; ``before`` still terminates.

        A controller that needs the name of that pod waits for its end.
        """
        if before is None:
            return PodRecord(born=now, make=make)
        if not self._keeps_name(pod):
            return self._successor(pod.key, replace(before.record, make=make), now)
        return before.record if before.record.make == make else PodRecord(born=now, make=make)

    def _is_over(self, pod: Pod, record: PodRecord, now: datetime) -> bool:
        """Return whether a pod has ended, or lost its node; its successor then replaces it."""
        if record.leaving is not None and now >= record.leaving + self._grace(pod):
            return True
        return bool(record.node) and record.node not in self._record.nodes

    def has_left(self, key: str, now: datetime) -> bool:
        """Return whether an evicted pod of the workloads has terminated."""
        leaving = self._record.pods[key].leaving
        pod = self._by_key.get(key)
        return pod is not None and leaving is not None and now >= leaving + self._grace(pod)

    def _grace(self, pod: Pod) -> timedelta:
        return grace_period(pod) if self.leaving is None else self.leaving

    def _ends(self) -> Iterator[datetime]:
        """Yield when pods that terminate have terminated."""
        for key, record in self._record.pods.items():
            if record.leaving is not None:
                yield record.leaving + self._grace(self._by_key[key])
        for one in self._record.ending:
            if one.record.leaving is not None:
                yield one.record.leaving + self._grace(one.shown)

    def moments(self) -> Iterator[datetime]:
        """Yield when pods start or have terminated."""
        yield from self._ends()
        for record in self._record.pods.values():
            if record.leaving is None and record.bound is not None:
                yield record.bound + self.starting

    def _successor(self, key: str, record: PodRecord, now: datetime) -> PodRecord:
        """Return the record of the pod that replaces another one."""
        pod, nth = self._by_key[key], record.nth + 1
        if self._chance is None or self._keeps_name(pod):
            return PodRecord(born=now, make=record.make)
        name = successor_name(pod, self._chance, nth)
        return PodRecord(born=now, make=record.make, name=name, nth=nth)

    def _keeps_name(self, pod: Pod) -> bool:
        """Return whether the successor of a pod has its name; claims named after it are kept."""
        return self._chance is None or not has_generated_name(pod) or has_own_claims(pod)

    def key_of(self, key: str) -> str:
        """Return ``namespace/name`` of the present pod for a pod of the workloads."""
        return present_key(key, self._record.pods[key].name)

    def _workload_key(self, pod: Pod) -> str:
        """Return the key in the workloads of a pod that exists."""
        if pod.key in self._record.pods and not self._record.pods[pod.key].name:
            return pod.key
        found = self._by_name.get(pod.key)
        if found is None or self.key_of(found) != pod.key:
            self._by_name = {self.key_of(key): key for key in self._record.pods}
            found = self._by_name[pod.key]
        return found

    def bind(
        self,
        workloads: Workloads,
        volumes: Volumes,
        now: datetime,
        arrivals: Sequence[tuple[float, Sequence[str]]] = (),
        budgets: Sequence[PodDisruptionBudget] = (),
    ) -> None:
        """Bind the pods of DaemonSets and then pending pods, as kube-scheduler does.

        ``arrivals`` are nodes that have become ready since the last call, and after how many
        seconds. ``budgets`` protect pods from making room for more important ones. If nothing could
        be bound, the next attempt waits for a change of a pod or a node.
        """
        self._daemons.follow(workloads.daemon_sets)
        self.preempted = []
        for _ in range(EVICTION_ROUNDS_MAX):
            evicted = len(self.preempted)
            if self._bind_once(workloads, volumes, now, arrivals, budgets):
                arrivals = ()
            if evicted == len(self.preempted):
                return

    def _bind_once(
        self,
        workloads: Workloads,
        volumes: Volumes,
        now: datetime,
        arrivals: Sequence[tuple[float, Sequence[str]]],
        budgets: Sequence[PodDisruptionBudget],
    ) -> bool:
        """Bind pods until some have to be evicted; return False if those were for daemons."""
        self._rows(workloads)
        pending = self._queue()
        wanted = {scheduler.daemon_set_key(daemon) for daemon in workloads.daemon_sets}
        nodes = [
            record.node
            for record in self._record.nodes.values()
            if pending or record.daemons.keys() != wanted
        ]
        if not nodes:
            return True
        placed = [pod for pod in self.objects(workloads, now) if pod.spec.node_name]
        attempt = (pending, nodes, placed, workloads)
        if attempt == self._failed_attempt:
            return True
        infos = {info.node.name: info for info in node_infos(nodes, Pods(placed).by_node)}
        binder = self.scheduler.binder_for(workloads)
        joining = []
        for after, names in arrivals if pending else ():
            group = [infos.pop(name) for name in names if name in infos]
            joining.append(JoiningNodes(after, partial(self._join, workloads, binder, group, now)))
        binder.follow(infos.values(), volumes, budgets, sets_aside=not pending)
        binder.keep_nominations(pod for _, pod in pending.values())
        has_changed, victims = self._daemons.start(workloads.daemon_sets, binder, infos, now)
        if victims:
            self._failed_attempt = None
            self._evict_victims(victims, now)
            return False
        has_changed |= self._bind_queue(binder, pending, joining, now)
        if pending:
            self._nominate(binder, pending)
            victims = binder.victims()
            self._evict_victims(victims, now)
        self._failed_attempt = None if has_changed or victims or joining else attempt
        return True

    def _join(
        self, workloads: Workloads, binder: NodeBinder, infos: Sequence[NodeInfo], now: datetime
    ) -> None:
        """Let nodes join while pods are being bound."""
        for info in infos:
            binder.join(info)
        names = [info.node.name for info in infos]
        self._daemons.start(workloads.daemon_sets, binder, names, now)

    def _queue(self) -> dict[str, tuple[str, Pod]]:
        """Return the pending pods in the order of their creation, by their keys.

        Each with its key in the workloads. Chance decides between pods of the same moment.
        """
        records, chance = self._record.pods, self._chance
        keys = [
            key
            for key, record in records.items()
            if not record.node and not self._by_key[key].spec.scheduling_gates
        ]
        if chance is not None:
            keys.sort(key=lambda key: chance.share("creation", self.key_of(key)))
        keys.sort(key=lambda key: records[key].born)
        named = ((key, waiting_pod(self._by_key[key], records[key])) for key in keys)
        return {pod.key: (key, pod) for key, pod in named}

    def _bind_queue(
        self,
        binder: NodeBinder,
        pending: dict[str, tuple[str, Pod]],
        joining: Sequence[JoiningNodes],
        now: datetime,
    ) -> bool:
        """Bind what can be bound of a queue, and remove it from there; return if there was any."""
        if not pending:
            return False
        bound = binder.bind([pod for _, pod in pending.values()], joining)
        for name, node in bound.items():
            key, _ = pending.pop(name)
            self._mark_changed(key)
            record = self._record.pods[key]
            record.node, record.bound, record.nominated = node.name, now, ""
        self._places = None if bound else self._places
        return bool(bound)

    def _nominate(self, binder: NodeBinder, pending: Mapping[str, tuple[str, Pod]]) -> None:
        """Record on which nodes pending pods wait for room; no other node is provided for them."""
        for name, (key, _) in pending.items():
            nominated, record = binder.nominations.get(name, ""), self._record.pods[key]
            if record.nominated != nominated:
                self._mark_changed(key)
                record.nominated = nominated

    def _evict_victims(self, victims: Iterable[tuple[Pod, str]], now: datetime) -> None:
        """Evict the pods that make room for more important ones on their nodes."""
        for pod, node in victims:
            self.preempted.append((pod.key, node))
            if pod.is_daemon:
                self._daemons.remove(pod, node)
            else:
                self.evict(pod, now)

    def objects(self, workloads: Workloads, now: datetime, node: str = "") -> list[Pod]:
        """Return the observed pods: all, or those of one node."""
        if not node:
            return self._all_pods(workloads, now) + self.other_pods(workloads, now)
        pods = self.pods_with_keys(self.keys_on_node(node), workloads, now)
        return pods + self.other_pods(workloads, now, node)

    def pods_with_keys(self, keys: Iterable[str], workloads: Workloads, now: datetime) -> list[Pod]:
        """Return the observed pods for some of the workloads' pods."""
        self._rows(workloads)
        return [self._observed_pod(self._by_key[k], self._record.pods[k], now) for k in keys]

    def other_pods(self, workloads: Workloads, now: datetime, node: str = "") -> list[Pod]:
        """Return pods that end beside those of the workloads, and daemons: all, or of one node."""
        ending = (one for one in self._record.ending if not node or one.record.node == node)
        pods = [self._build_pod(one.shown, one.record, now) for one in ending]
        for name in (node,) if node else sorted(self._record.nodes):
            pods += self._daemons.pods(workloads.daemon_sets, name, now)
        return pods

    def _all_pods(self, workloads: Workloads, now: datetime) -> list[Pod]:
        """Return all observed pods of the workloads.

        Only pods with changes since the last call are evaluated.
        """
        rows, records, nodes = self._rows(workloads), self._record.pods, self._record.nodes
        ready = {name: record.node.is_ready for name, record in nodes.items()}
        known = self._view
        if known is None or known.rows is not rows or now < known.at:
            shown = {key: self._observed_pod(pod, records[key], now) for key, _, pod in rows}
            known = self._view = _View(rows, shown, now)
            known.starting = {k for k, r in records.items() if self._is_starting(r, now)}
        else:
            for name, is_ready in ready.items():
                if known.ready.get(name) != is_ready:
                    known.changed.update(self.keys_on_node(name))
            started = {k for k in known.starting if not self._is_starting(records[k], now)}
            known.starting -= started
            for key in known.changed | started:
                known.shown[key] = self._observed_pod(self._by_key[key], records[key], now)
                if self._is_starting(records[key], now):
                    known.starting.add(key)
        known.ready, known.at, known.changed = ready, now, set()
        return list(known.shown.values())

    def _is_starting(self, record: PodRecord, now: datetime) -> bool:
        return record.bound is not None and now < record.bound + self.starting

    def _mark_changed(self, key: str) -> None:
        """Record that a pod is about to change."""
        if self._view is not None:
            self._view.changed.add(key)
        if self._moved is not None and key not in self._moved:
            record = self._record.pods.get(key)
            self._moved[key] = ("", "") if record is None else (record.name, record.node)

    def keys_on_node(self, node: str) -> Sequence[str]:
        """Return the keys of the pods on a node, in the order of the workloads."""
        if self._places is None:
            self._places = {}
            for key, record in self._record.pods.items():
                if record.node:
                    self._places.setdefault(record.node, []).append(key)
        return self._places.get(node, ())

    def evict(self, pod: Pod, now: datetime) -> list[Pod]:
        """Evict a pod; return it if it still terminates, and its successor if there is one already.

        A daemon is removed at once.
        """
        if pod.is_daemon:
            self._daemons.remove(pod, pod.spec.node_name)
            return []
        key = self._workload_key(pod)
        original, known = self._by_key[key], self._record.pods[key]
        self._mark_changed(key)
        remains = []
        if grace := self._grace(original):
            known.leaving = now
            self._next_end = min(self._next_end or now + grace, now + grace)
            remains.append(self._build_pod(original, known, now))
            if self._keeps_name(original) or not is_replaced_at_once(original):
                return remains
            self._record.ending.append(EndingPod(key, known, original))
        if self._places is not None and known.node:
            self._places[known.node].remove(key)
        self._record.pods[key] = fresh = self._successor(key, known, now)
        return [*remains, self._observed_pod(original, fresh, now)]

    def remove_from_node(self, node: str, now: datetime) -> None:
        """Remove all pods from a removed node; they are pending again, or their successors are."""
        self._places = None
        self._record.ending = [one for one in self._record.ending if one.record.node != node]
        self._daemons.forget_node(node)
        for key, record in self._record.pods.items():
            if record.nominated == node:
                self._mark_changed(key)
                record.nominated = ""
            if record.node == node:
                self._mark_changed(key)
                if self._chance is not None and key in self._by_key:
                    self._record.pods[key] = self._successor(key, record, now)
                else:
                    record.node, record.bound, record.leaving = "", None, None

    def _observed_pod(self, pod: Pod, record: PodRecord, now: datetime) -> Pod:
        """Return the observed pod, the same object while nothing changes.

        Of thousands of pods few change between two observations.
        """
        due = record.bound is not None and now >= record.bound + self.starting
        host = self._record.nodes[record.node].node.is_ready if record.node else False
        times = (record.born, record.bound, record.leaving, due)
        facts = (record.node, record.nominated, record.name, host, *times)
        known = self._shapes.get(pod.key)
        if known is not None and known[0] is pod and known[1] == facts:
            return known[2]
        shown = self._build_pod(pod, record, now)
        self._shapes[pod.key] = (pod, facts, shown)
        return shown

    def _build_pod(self, pod: Pod, record: PodRecord, now: datetime) -> Pod:
        pod = named_pod(pod, record)
        if record.node:
            assert record.bound is not None, f"{pod.key} has a node without a time"
            host, bound = self._record.nodes[record.node].node, record.bound
            shown = running_pod(pod, host, record.born, (bound, bound + self.starting), now)
            if record.leaving is None:
                return shown
            gone = record.leaving + self._grace(pod)
            return replace(shown, metadata=replace(shown.metadata, deletion_timestamp=gone))
        metadata = replace(pod.metadata, creation_timestamp=record.born)
        status = pod.status if pod.spec.scheduling_gates else UNSCHEDULABLE
        return replace(pod, metadata=metadata, status=nominated_status(status, record))
