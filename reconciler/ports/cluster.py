"""The Kubernetes cluster: its objects, announcements about them, and the usage of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import msgspec

from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.resources import add_resources
from reconciler.observed.allocation import WorkloadCost
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance

USAGE_RECORD: Final = "usage"
"""The name under which the usage of a fleet is stored."""

PODS_MAX: Final = 3_000
"""How many pods of a fleet are recorded."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Something to know about an object of the cluster: a Kubernetes Event.

    ``reason`` is Karpenter's name for it, ``action`` what was done or attempted. ``uid`` is that of
    the object, empty where the cluster does not have it.
    """

    kind: str
    name: str
    reason: str
    action: str
    message: str
    namespace: str = ""
    uid: str = ""
    is_warning: bool = False


class Announcer(Protocol):
    """Publishes announcements. It neither raises nor waits."""

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Publish what was not published a short while ago, as fast as the limits allow."""


class NodeUsage(msgspec.Struct, frozen=True, rename="camel"):
    """One node: USD an hour (None if unknown), its pods, and what is requested of it.

    ``pods`` are those that need another node if it is removed: without any, it is empty.
    ``requested`` and ``allocatable`` are CPU and memory in thousandths of their unit; pods of
    DaemonSets and pods that terminate request their part, completed pods do not.
    """

    price: float | None
    pods: int
    requested: dict[str, int]
    allocatable: dict[str, int]

    def share(self, resource: str) -> float | None:
        """Return how much of a resource is requested, from 0; None if the node has none of it."""
        total = self.allocatable.get(resource, 0)
        return self.requested.get(resource, 0) / total if total else None

    @classmethod
    def total(cls, usages: Iterable[NodeUsage]) -> NodeUsage:
        """Return the usage of several nodes together; its price is None if one is unknown.

        Its shares are of the sums: a full node of 2 CPUs and an empty one of 32 CPUs are 6 % full.
        """
        known = tuple(usages)
        prices = [usage.price for usage in known if usage.price is not None]
        requested = add_resources(*(usage.requested for usage in known))
        allocatable = add_resources(*(usage.allocatable for usage in known))
        price = sum(prices) if len(prices) == len(known) else None
        return cls(price, sum(usage.pods for usage in known), requested, allocatable)


@dataclass(frozen=True, slots=True)
class DrainStep:
    """What a drain still waits for after a step: pods, and once they are gone, their volumes.

    ``is_blocked`` is whether nothing moved: no pod is leaving, and none could be evicted.
    """

    pods: int = 0
    volumes: int = 0
    is_blocked: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the node is empty."""
        return not self.pods and not self.volumes


class PodUsage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod on a node: its owner, what it requests, and what keeps it from being evicted.

    ``cpu`` and ``memory`` are in thousandths of their unit.
    """

    namespace: str
    name: str
    owner: str
    cpu: int = 0
    memory: int = 0
    priority: int | None = None
    blocker: str = ""


class FleetUsage(msgspec.Struct, frozen=True, rename="camel"):
    """The usage of each node by the name of its NodeClaim, as observed ``at`` a time.

    ``costs`` is what each workload costs. ``pods`` are those of each node, of as many nodes as
    have ``PODS_MAX`` pods together.
    """

    at: datetime
    nodes: dict[str, NodeUsage]
    costs: tuple[WorkloadCost, ...] = ()
    pods: dict[str, tuple[PodUsage, ...]] = {}


class Cluster(Protocol):
    """The Kubernetes API. Methods raise ClusterError."""

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return the current nodes and pods, and the objects that constrain them.

        ``claims`` are our recorded NodeClaims and ``instances`` those of EC2: a simulated cluster
        creates its nodes from them, a real one ignores them.
        """

    def taint(self, node: str) -> None:
        """Put the taint ``karpenter.sh/disrupted:NoSchedule`` on a node; idempotent."""

    def untaint(self, node: str) -> None:
        """Remove that taint; a node that is gone is not an error."""

    def fence(self, node: str) -> None:
        """Put the taint ``karpenter.sh/rebooting:NoSchedule`` on a node; idempotent."""

    def unfence(self, node: str) -> None:
        """Remove that taint, and what a drain has left; a node that is gone is not an error."""

    def cordon(self, node: str) -> None:
        """Prevent new pods from being scheduled to a node (``spec.unschedulable``); idempotent."""

    def uncordon(self, node: str) -> None:
        """Undo that; a node that is gone is not an error."""

    def register(self, node: str, claim: NodeClaim) -> None:
        """Apply the labels, annotations and taints of its claim to a node that has joined."""

    def add_finalizer(self, node: str) -> None:
        """Ensure that a deleted Node exists until its instance is gone."""

    def has_node(self, node: str) -> bool:
        """Return whether a Node of that name exists now."""

    def initialize(self, node: str) -> None:
        """Mark a node as initialized."""

    def uninitialize(self, node: str) -> None:
        """Undo that, since a node that reboots starts again; one that is gone is not an error."""

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> DrainStep | None:
        """Take the next step of a drain, and return what it still waits for.

        Evictions respect PodDisruptionBudgets; after ``deadline`` pods are deleted. None means
        that a step is still under way. A step is done only if no pod can have been bound since.
        """

    def delete_node(self, node: str) -> None:
        """Remove the Node object; one that is gone is not an error."""


class Mirror(Protocol):
    """Copies of our NodeClaims as objects of the cluster. Methods raise ClusterError."""

    def deleted_claims(self) -> Collection[str]:
        """Return the names of the copies that others have deleted."""

    def node_pools(self) -> Collection[str]:
        """Return the names of the NodePools in the cluster."""

    def update(self, claims: Sequence[NodeClaim], drifted: Mapping[str, str]) -> None:
        """Make the copies equal to the claims; ``drifted`` are reasons by claim."""


@dataclass(frozen=True, slots=True)
class PodCost:
    """A pod whose deletion cost is to be written; None is none.

    It runs on ``node`` of ``node_pool``, and has the cost ``current``.
    """

    namespace: str
    name: str
    uid: str
    node: str
    node_pool: str
    current: str | None
    wanted: str | None


@dataclass(frozen=True, slots=True)
class CostWrites:
    """How often each result occurred, by Karpenter's names, and why the rest was not tried."""

    results: Mapping[str, int]
    error: ClusterError | None = None


class PodCosts(Protocol):
    """The deletion costs of pods. A value that somebody else has set is never changed."""

    def write(self, costs: Sequence[PodCost]) -> CostWrites:
        """Write the costs."""


class Arrivals(Protocol):
    """Events of pending pods. They trigger a pass; decisions never rely on them."""

    def has_events(self) -> bool:
        """Return whether a batch of pods has become pending since the last pass."""

    def acknowledge(self) -> None:
        """Acknowledge the events so far: the pass that begins observes those pods."""
