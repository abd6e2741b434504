"""The cluster for read-only commands: a plan of the running fleet changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance


class Shown(Protocol):
    """What can be observed: a cluster, or the snapshot of one."""

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now."""

    def has_node(self, node: str) -> bool:
        """Return whether a Node of that name exists now."""


class Onlooker:
    """Reads a cluster or a snapshot, and passes no change on to it.

    The observation of a plan would register the nodes that have joined; here that has no effect.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now."""
        return self._shown.observe(claims, instances)

    def taint(self, node: str) -> None:
        """Do nothing."""

    def untaint(self, node: str) -> None:
        """Do nothing."""

    def cordon(self, node: str) -> None:
        """Do nothing."""

    def uncordon(self, node: str) -> None:
        """Do nothing."""

    def register(self, node: str, claim: NodeClaim) -> None:
        """Do nothing."""

    def hold(self, node: str) -> None:
        """Do nothing."""

    def has_node(self, node: str) -> bool:
        """Return whether a Node of that name exists now."""
        return self._shown.has_node(node)

    def initialize(self, node: str) -> None:
        """Do nothing."""

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> int:
        """Do nothing, and report that there is nothing to wait for."""
        del node, deadline, now
        return 0

    def delete_node(self, node: str) -> None:
        """Do nothing."""
