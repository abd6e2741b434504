"""The cluster as the Kubernetes API shows it, and what the engine does in it.

Kubernetes Events are deduplicated and limited as Karpenter's recorder does it. A plan of a running
fleet uses a cluster that can be observed and not changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, Protocol

import msgspec

from reconciler.adapters.kubernetes import nodes
from reconciler.adapters.kubernetes.api import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    Api,
    ApiError,
    ObjectList,
    list_objects,
    missing_permissions,
)
from reconciler.adapters.kubernetes.evictions import BlockedEvictions
from reconciler.adapters.kubernetes.informers import ClusterCache
from reconciler.adapters.kubernetes.karpenter import ClusterMirror
from reconciler.adapters.kubernetes.kinds import EVENT, NODE, OBSERVED, Kind
from reconciler.adapters.kubernetes.nodes import Drain
from reconciler.adapters.kubernetes.podcosts import ClusterPodCosts
from reconciler.model.decode import decode_json
from reconciler.model.errors import ClusterError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import DISRUPTED_TAINT, REBOOTING_TAINT
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.taint import REBOOTING
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.times import precise_timestamp
from reconciler.observed.reader import SnapshotReader
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.calls import Answer, Calls, InlineCalls
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Instance
from reconciler.ports.cluster import Announcement, DrainStep

SILENT_S: Final = 120.0
BURST: Final = 10.0
RATE: Final = 5.0
"""Events a second for one reason, after the burst."""
_GROUPS: Final = {
    "Pod": "v1",
    "Node": "v1",
    "NodePool": "karpenter.sh/v1",
    "NodeClaim": "karpenter.sh/v1",
}
_NAMESPACE: Final = "default"
"""Where Events about objects without a namespace are."""
_CONTROLLER: Final = "reconciler"

_TRIES: Final = 5
"""The maximum number of attempts of a change, if others write at the same time."""


class ClusterEvents:
    """The port ``Announcer`` over the Kubernetes API."""

    def __init__(self, api: Api, calls: Calls, clock: Clock, instance: str) -> None:
        self._api = api
        self._calls = calls
        self._clock = clock
        self._instance = instance
        self._written: dict[Announcement, datetime] = {}
        self._tokens: dict[str, tuple[float, datetime]] = {}

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Write new Events, outside the pass; rejected ones are not retried."""
        now = self._clock.now()
        self._written = {a: at for a, at in self._written.items() if _age_s(at, now) < SILENT_S}
        due = []
        for item in announcements:
            if item not in self._written and self._may_write(item.reason, now):
                self._written[item] = now
                due.append(item)
        self._calls.answer("events")
        if due:
            self._calls.start("events", lambda: self._write(due, now))

    def _may_write(self, reason: str, now: datetime) -> bool:
        """Return whether one more Event of this reason is within the limits, and count it."""
        left, at = self._tokens.get(reason, (BURST, now))
        left = min(BURST, left + max(_age_s(at, now), 0.0) * RATE)
        self._tokens[reason] = (max(left - 1.0, 0.0) if left >= 1.0 else left, now)
        return left >= 1.0

    def _write(self, due: Sequence[Announcement], now: datetime) -> None:
        for item in due:
            namespace = item.namespace or _NAMESPACE
            path = f"/apis/{EVENT.group}/{EVENT.version}/namespaces/{namespace}/{EVENT.resource}"
            self._api.call("POST", path, body=self._event(item, namespace, now))

    def _event(self, item: Announcement, namespace: str, now: datetime) -> JsonDict:
        stamp = precise_timestamp(now)
        facts = f"{item.kind}/{namespace}/{item.name}/{item.reason}/{item.message}/{stamp}"
        regarding = {"apiVersion": _GROUPS[item.kind], "kind": item.kind, "name": item.name}
        extra = {"namespace": item.namespace, "uid": item.uid}
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {
                "name": f"{item.name[:200]}.{hashlib.sha256(facts.encode()).hexdigest()[:16]}",
                "namespace": namespace,
            },
            "eventTime": stamp,
            "type": "Warning" if item.is_warning else "Normal",
            "reason": item.reason,
            "action": item.action,
            "note": item.message,
            "regarding": regarding | {key: value for key, value in extra.items() if value},
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance[:128] or _CONTROLLER,
        }


def _age_s(at: datetime, now: datetime) -> float:
    return (now - at).total_seconds()


Change = Callable[[nodes.Object], nodes.Patch | None]


class KubernetesCluster:
    """The port ``Cluster`` over a Kubernetes API.

    NodeClaims are not among its objects: they live in our own state. With a ``cache``, which must
    be running, an observation lists only the kinds whose copy is not up to date.
    """

    def __init__(
        self, api: Api, calls: Calls | None = None, cache: ClusterCache | None = None
    ) -> None:
        self._api = api
        self._cache = cache
        if cache is not None:
            api.on_answer = cache.record_answer
        self._calls = calls or InlineCalls()
        self._blocked = cache.blocked_evictions if cache is not None else BlockedEvictions()
        self._sealed: set[str] = set()
        self._retries: dict[str, int] = {}
        self._reader = SnapshotReader()
        self._seen: dict[str, Node] = {}
        self._ours: frozenset[str] = frozenset()
        self._with_finalizer: set[str] = set()
        self._drain = Drain(api, Snapshot(), self._blocked)

    @property
    def where(self) -> str:
        """The server, and how it was selected."""
        return str(self._api.access)

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return self._api.access.server

    def mirror(self, fleet: str) -> ClusterMirror:
        """Return the copies of our NodeClaims in this cluster."""
        return ClusterMirror(self._api, fleet, self._objects_of)

    def pod_costs(self) -> ClusterPodCosts:
        """Return what writes the deletion costs of pods."""
        return ClusterPodCosts(self._api)

    def events(self, clock: Clock, instance: str) -> ClusterEvents:
        """Return what writes Events to this cluster; ``instance`` names the process."""
        return ClusterEvents(self._api, self._calls, clock, instance)

    def missing_permissions(self) -> list[str]:
        """Return the missing permissions, each with the rule that grants it."""
        return missing_permissions(self._api, self._calls)

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now: every kind is complete, or nothing is returned.

        ``claims`` and ``instances`` determine which of the nodes are ours.
        """
        self._api.confirm()
        versions: dict[str, str] = {}
        seen = self._reader.read_lists(self._read_lists(versions))
        known = {c.status.provider_id for c in claims} | {i.provider_id for i in instances}
        self._seen = {node.name: node for node in seen.nodes}
        self._ours = frozenset(n.name for n in seen.nodes if n.spec.provider_id in known - {""})
        self._drain = Drain(self._api, seen, self._blocked)
        self._blocked.keep_only({pod.metadata.uid for pod in seen.pods})
        ordered = tuple(sorted(claims, key=lambda c: c.name))
        return replace(seen, node_claims=ordered, versions=versions)

    def _read_lists(
        self, versions: dict[str, str]
    ) -> Iterator[tuple[str, str, Sequence[bytes | msgspec.Raw]]]:
        """Yield source, kind and items of each list, and record its version."""
        for kind in OBSERVED:
            found = self._objects_of(kind)
            if found.version:
                versions[kind.resource] = found.version
            yield f"GET {kind.path}", kind.kind, found.items

    def _objects_of(self, kind: Kind) -> ObjectList:
        """Return the objects of a kind: from the cache if it is up to date, otherwise a list."""
        if self._cache is not None:
            return self._cache.read(kind, self._api)
        return list_objects(self._api, kind)

    def taint(self, node: str) -> None:
        """Add the taint ``karpenter.sh/disrupted:NoSchedule`` to a node; this is idempotent."""
        self._change(node, nodes.taint_patch)

    def untaint(self, node: str) -> None:
        """Remove that taint; a missing node is not an error."""
        self._change(node, nodes.untaint_patch, may_be_gone=True)

    def fence(self, node: str) -> None:
        """Add the taint ``karpenter.sh/rebooting:NoSchedule`` to a node; this is idempotent."""
        self._change(node, partial(nodes.taint_patch, taint=REBOOTING))

    def unfence(self, node: str) -> None:
        """Remove that taint; a missing node is not an error. Its next drain starts again."""
        self._change(node, partial(nodes.untaint_patch, taint=REBOOTING), may_be_gone=True)
        known = self._own_node(node)
        if known is not None:
            self._forget_drain(known)

    def cordon(self, node: str) -> None:
        """Cordon a node; this is idempotent."""
        self._change(node, nodes.cordon_patch)

    def uncordon(self, node: str) -> None:
        """Undo that; a missing node is not an error."""
        self._change(node, nodes.uncordon_patch, may_be_gone=True)

    def register(self, node: str, claim: NodeClaim) -> None:
        """Add the labels, annotations and taints of its claim to a node that has joined."""

        def registration(found: nodes.Object) -> nodes.Patch | None:
            if found["spec"].get("providerID") != claim.status.provider_id:
                raise ClusterError(
                    f"the node belongs to {found['spec'].get('providerID')}, not to {claim.name}",
                    where=f"Node {node}",
                )
            return nodes.registration_patch(found, claim)

        self._change(node, registration)
        self._with_finalizer.add(node)

    def add_finalizer(self, node: str) -> None:
        """Add our finalizer to a Node that has joined; one that is being deleted is not changed."""
        self._change(node, nodes.hold_patch, may_be_gone=True)
        self._with_finalizer.add(node)

    def has_node(self, node: str) -> bool:
        """Return whether a Node of that name exists now, regardless of the last list."""
        return self._read_node(node) is not None

    def initialize(self, node: str) -> None:
        """Mark a node as initialized."""
        self._change(node, nodes.initialization_patch)

    def uninitialize(self, node: str) -> None:
        """Mark a node as not initialized; a missing node is not an error."""
        self._change(node, nodes.uninitialization_patch, may_be_gone=True)

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> DrainStep | None:
        """Evict the pods of a node, group by group; return what it waits for.

        Once the pods are gone, it waits for their volumes, until the deadline. Each step runs
        outside the pass; the next pass reads its result, and begins another one.
        """
        known = self._own_node(node)
        if known is None:
            return DrainStep()
        name = _drain_name(known)
        answer, retries = self._step_answer(name), self._retries.get(name)
        if answer is None or not _is_done(answer):
            if not self._calls.is_open(name):
                self._begin_step(name, known, deadline, now)
            if answer is None:
                answer, retries = self._step_answer(name), self._retries.get(name)
        if answer is None:
            return None
        if answer.error is not None:
            raise answer.error
        step = _step_of(answer)
        if step.is_blocked and retries != self._blocked.retries:
            return replace(step, is_blocked=False)  # a budget has changed since that step
        return step

    def _step_answer(self, name: str) -> Answer | None:
        """Return the answer of a step; None for an empty node that pods could still be bound to.

        One may have been bound after that step and before the taint.
        """
        answer = self._calls.answer(name)
        if answer is not None and _is_done(answer) and name not in self._sealed:
            return None
        return answer

    def _begin_step(self, name: str, node: Node, deadline: datetime | None, now: datetime) -> None:
        """Begin a step of a drain; it is sealed if the scheduler binds no more pods there."""
        is_tainted = node.has_taint(DISRUPTED_TAINT) or node.has_taint(REBOOTING_TAINT)
        if is_tainted or node.spec.unschedulable:
            self._sealed.add(name)
        self._retries[name] = self._blocked.retries
        self._calls.start(name, partial(self._drain_step, node, self._drain, deadline, now))

    def _drain_step(
        self, node: Node, drain: Drain, deadline: datetime | None, now: datetime
    ) -> DrainStep:
        if nodes.EXCLUDED_FROM_BALANCERS not in node.metadata.labels:
            self._change(node.name, nodes.balancer_exclusion_patch, may_be_gone=True)
        return drain.advance(node.name, deadline, now)

    def delete_node(self, node: str) -> None:
        """Remove the Node object; a missing one is not an error, nor another with its name."""
        known = self._own_node(node)
        if known is None:
            return
        if known.metadata.finalizers or node in self._with_finalizer:
            self._change(node, nodes.release_patch, may_be_gone=True)
            self._with_finalizer.discard(node)
        self._forget_drain(known)
        body = {"kind": "DeleteOptions", "apiVersion": "v1"}
        try:
            self._api.call(
                "DELETE",
                f"{NODE.path}/{node}",
                body={**body, "preconditions": {"uid": known.metadata.uid}},
            )
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def _forget_drain(self, node: Node) -> None:
        name = _drain_name(node)
        self._calls.answer(name)
        self._sealed.discard(name)
        self._retries.pop(name, None)

    def _own_node(self, node: str) -> Node | None:
        """Return one of our nodes from the last observation, None if it is not in it.

        Raises: ClusterError: it exists, and its instance is not ours.
        """
        known = self._seen.get(node)
        if known is not None and node not in self._ours:
            raise ClusterError(
                f"no instance of this fleet has providerID {quote_value(known.spec.provider_id)}",
                where=f"Node {node}",
                remedy="the node was not changed",
            )
        return known

    def _change(self, node: str, change: Change, *, may_be_gone: bool = False) -> None:
        """Change a node based on its present version, again after a conflict."""
        known = self._own_node(node)
        for left in reversed(range(_TRIES)):
            found = self._read_node(node) if known is not None else None
            if found is None or found["metadata"].get("uid", "") != _uid(known):
                if may_be_gone:
                    return
                raise ClusterError(f'nodes "{node}" not found', where=f"Node {node}")
            patch = change(found)
            if patch is None:
                return
            try:
                self._api.call("PATCH", f"{NODE.path}/{node}", body=patch, content=MERGE_PATCH)
            except ApiError as error:
                if error.status != NOT_FOUND and (error.status != CONFLICT or not left):
                    raise
            else:
                return

    def _read_node(self, node: str) -> JsonDict | None:
        """Return the Node as it is now, None if it is gone."""
        try:
            content = self._api.call("GET", f"{NODE.path}/{node}")
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        try:
            return decode_json(content, dict[str, object])
        except msgspec.MsgspecError as error:
            raise ClusterError(
                "the answer is not a Node", where=f"GET {NODE.path}/{node}"
            ) from error


def _step_of(answer: Answer) -> DrainStep:
    assert isinstance(answer.value, DrainStep), "a step says what is left"
    return answer.value


def _is_done(answer: Answer) -> bool:
    return answer.error is None and _step_of(answer).is_done


def _drain_name(node: Node) -> str:
    """Return the name of the steps of a drain."""
    return f"drain {node.name} {node.metadata.uid}"


def _uid(node: Node | None) -> str:
    """Return the uid of an observed node, empty for none."""
    return node.metadata.uid if node is not None else ""


class ObservableCluster(Protocol):
    """What can be observed: a cluster, or the snapshot of one."""

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now."""

    def has_node(self, node: str) -> bool:
        """Return whether a Node of that name exists now."""


class ReadOnlyCluster:
    """Reads a cluster or a snapshot, and passes no change on to it.

    The observation of a plan would register the nodes that have joined; here that has no effect.
    """

    def __init__(self, cluster: ObservableCluster) -> None:
        self._cluster = cluster

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now."""
        return self._cluster.observe(claims, instances)

    def _ignore(self, node: str) -> None:
        """Do nothing."""

    taint = untaint = fence = unfence = cordon = uncordon = _ignore
    add_finalizer = initialize = uninitialize = delete_node = _ignore

    def register(self, node: str, claim: NodeClaim) -> None:
        """Do nothing."""

    def has_node(self, node: str) -> bool:
        """Return whether a Node of that name exists now."""
        return self._cluster.has_node(node)

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> DrainStep:
        """Do nothing, and report that there is nothing to wait for."""
        del node, deadline, now
        return DrainStep()
