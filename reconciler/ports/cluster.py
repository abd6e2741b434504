"""The Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance


class Cluster(Protocol):
    """The Kubernetes API. Methods raise ClusterError."""

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now: nodes, pods and what governs them.

        ``claims`` are our recorded NodeClaims and ``instances`` what EC2 says: an imitated
        cluster makes its nodes from them, a real one ignores them.
        """

    def taint(self, node: str) -> None:
        """Put the taint ``karpenter.sh/disrupted:NoSchedule`` on a node; twice is once."""

    def untaint(self, node: str) -> None:
        """Take that taint away; a node that is gone is no error."""

    def register(self, node: str, claim: NodeClaim) -> None:
        """Give a node that has joined the labels, annotations and taints of its claim."""

    def initialize(self, node: str) -> None:
        """Mark a node as initialized."""

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> int:
        """Ask the pods of a node to leave, and return how many it still waits for.

        Evictions respect PodDisruptionBudgets; after ``deadline`` pods are deleted.
        """

    def delete_node(self, node: str) -> None:
        """Remove the Node object; one that is gone is no error."""


class Arrivals(Protocol):
    """Word of pods that wait for a node. It is a reason to look, and is believed in nothing."""

    def has_news(self) -> bool:
        """Return whether pods began to wait since the last look, and enough have come together."""

    def acknowledge(self) -> None:
        """Say that a look begins: it will see whatever has come until now."""
