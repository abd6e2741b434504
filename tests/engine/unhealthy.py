"""Nodes that report a condition that the simulated ones never have."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

from msgspec.structs import replace

from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import Node
from reconciler.observed.snapshot import Snapshot


class UnhealthyNodes:
    """Gives nodes a condition, whatever process observes the cluster."""

    def condition_of(self, node: Node) -> Condition | None:
        """Return the condition of a node, None if it has none of its own."""
        raise NotImplementedError

    def around(self, port: Any, name: str) -> Any:
        """Return a port of the world, whose cluster shows the conditions."""
        return _Shown(port, self) if name == "cluster" else port

    def show(self, node: Node) -> Node:
        """Return the node as the cluster shows it."""
        condition = self.condition_of(node)
        if condition is None:
            return node
        conditions = (*node.status.conditions, condition)
        return replace(node, status=replace(node.status, conditions=conditions))


class _Shown:
    def __init__(self, real: Any, nodes: UnhealthyNodes) -> None:
        self._real, self._nodes = real, nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def observe(self, *args: Any) -> Snapshot:
        seen: Snapshot = self._real.observe(*args)
        return with_fields(seen, nodes=tuple(map(self._nodes.show, seen.nodes)))
