"""The nodes from which a device can be used, if it does not belong to one node's own slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.kubernetes.devices import BasicDevice
from reconciler.model.kubernetes.pod import NodeSelector
from reconciler.placement.topology.rules import expression_requirements

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reach:
    """The nodes that reach a device: with one of the ``names``, and labels that meet requirements.

    Without ``names``, nodes of any name do, also those that do not exist yet.
    """

    requirements: Requirements | None = None
    names: frozenset[str] | None = None

    def __str__(self) -> str:
        parts = [] if self.names is None else [f"the node {' or '.join(sorted(self.names))}"]
        if self.requirements is not None:
            parts.append(f"nodes with {self.requirements}")
        return " and ".join(parts) or "all nodes"

    def admits(self, labels: Mapping[str, str], name: str) -> bool:
        """Return whether a node reaches the device."""
        if self.names is not None and name not in self.names:
            return False
        wanted = self.requirements.values() if self.requirements is not None else ()
        return all(r.has(labels[r.key]) if r.key in labels else r.is_negative for r in wanted)


def reach_of(device: BasicDevice) -> Reach | None:
    """Return the nodes that a device names, None if its slice belongs to one node."""
    if device.node_name:
        return Reach(names=frozenset((device.node_name,)))
    if device.node_selector is not None:
        return selected(device.node_selector)
    return Reach() if device.all_nodes else None


def selected(selector: NodeSelector) -> Reach:
    """Return the nodes that a selector of a slice admits; the API allows exactly one term."""
    for term in selector.node_selector_terms:
        named = [frozenset(f.values) for f in term.match_fields if f.operator == "In"]
        if named or term.match_expressions:
            wanted = Requirements(expression_requirements(term.match_expressions))
            return Reach(wanted or None, frozenset.intersection(*named) if named else None)
    return Reach(names=_NONE)
