"""The cost and the usage of each node, for lists of nodes."""

from __future__ import annotations

from math import isnan
from typing import Final

from reconciler.engine.desired import Desired
from reconciler.engine.observation import Observation
from reconciler.engine.world import World
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.resources import CPU, MEMORY
from reconciler.observed.state import StateNode
from reconciler.ports.usage import FleetUsage, NodeUsage

_RESOURCES: Final = (CPU, MEMORY)


def record(world: World, seen: Observation, desired: Desired) -> None:
    """Pass the usage of all nodes to its store."""
    if world.keep_usage is None:
        return
    nodes = {
        node.claim.name: usage_of(node, desired)
        for node in seen.state().nodes
        if node.claim is not None
    }
    world.keep_usage(FleetUsage(seen.at, nodes))


def usage_of(node: StateNode, desired: Desired) -> NodeUsage:
    """Return the price and the usage of a node."""
    labels = node.labels
    kind = desired.instance_type(node.node_pool, labels.get(INSTANCE_TYPE, ""))
    price = None
    if kind is not None:
        price = kind.price_of(labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, ""))
    return NodeUsage(
        None if price is None or isnan(price) else price,
        sum(not pod.is_terminal for pod in node.pods),
        {name: node.used.get(name, 0) for name in _RESOURCES},
        {name: node.allocatable.get(name, 0) for name in _RESOURCES},
    )
