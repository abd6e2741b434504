"""The cluster for whoever only looks: a plan of the running fleet shows, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance

Observe = Callable[[Sequence[NodeClaim], Sequence[Instance]], Snapshot]


class Onlooker:
    """Shows what ``observe`` shows, a cluster's or a snapshot's, and lets nothing through to it.

    The look that a plan begins with would register the nodes that have joined; here it is only
    told that they would be.
    """

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._names: frozenset[str] = frozenset()

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now."""
        seen = self._observe(claims, instances)
        self._names = frozenset(node.name for node in seen.nodes)
        return seen

    def taint(self, node: str) -> None:
        """Do nothing."""

    def untaint(self, node: str) -> None:
        """Do nothing."""

    def register(self, node: str, claim: NodeClaim) -> None:
        """Do nothing."""

    def hold(self, node: str) -> None:
        """Do nothing."""

    def has_node(self, node: str) -> bool:
        """Return whether the last look showed it."""
        return node in self._names

    def initialize(self, node: str) -> None:
        """Do nothing."""

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> int:
        """Do nothing, and say that there is nothing to wait for."""
        del node, deadline, now
        return 0

    def delete_node(self, node: str) -> None:
        """Do nothing."""
