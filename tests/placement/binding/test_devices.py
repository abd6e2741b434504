"""The plugin DynamicResources: devices of a node, and those that several nodes reach."""

from __future__ import annotations

import json

from reconciler.model.decode import decode
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.profile import DEFAULT_PROFILE, DEFAULT_SCHEDULER
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import cluster_state
from reconciler.placement.binding.devices import DeviceClaims
from reconciler.placement.binding.host import HostNode
from reconciler.placement.binding.shape import SchedulingShapes
from reconciler.placement.topology.peers import Owners, Peers
from tests.placement.builders import ZONE, Object, a_node
from tests.placement.devices import (
    a_claim,
    a_claim_template,
    a_claiming_pod,
    a_class,
    a_slice,
    gpus,
)
from tests.placement.test_network_devices import a_network_slice, selecting


class _Nodes:
    """Nodes to which pods are bound one after another, where their claims get devices."""

    def __init__(self, *objects: Object) -> None:
        nodes = [item for n in ("n-1", "n-2") for item in a_node(n, zone=f"zone-{n[-1]}")]
        content = {"kind": "List", "items": [*nodes, *objects]}
        snapshot = read_snapshot(json.dumps(content).encode(), "")
        self.hosts = [
            HostNode.of(number, decode(item, Node))
            for number, item in enumerate(nodes)
            if item["kind"] == "Node"
        ]
        self._claims = DeviceClaims(cluster_state(snapshot))
        self._shapes = SchedulingShapes(Peers(Owners()), {DEFAULT_SCHEDULER: DEFAULT_PROFILE})

    def bind(self, pod: Object) -> str | None:
        """Bind a pod to the first node that takes it, and return the node."""
        model = decode(pod, Pod)
        for host in self.hosts:
            if self._claims.fits(model, host, self.hosts):
                host.add(model, self._shapes.of(model))
                return host.node.name
        return None


def test_devices_of_nodes_and_of_the_network_are_used_once() -> None:
    nodes = _Nodes(a_class(), a_claim_template(), a_slice("n-2", gpus(1)), a_network_slice(gpus(2)))

    found = [nodes.bind(a_claiming_pod(f"app-{i}", "one-gpu")) for i in range(4)]

    assert found == ["n-1", "n-1", "n-2", None]


def test_devices_are_for_the_nodes_that_reach_them() -> None:
    reach = a_network_slice(gpus(2), nodeSelector=selecting(ZONE, "zone-2"))
    nodes = _Nodes(a_class(), a_claim_template(), reach)

    found = [nodes.bind(a_claiming_pod(f"app-{i}", "one-gpu")) for i in range(3)]

    assert found == ["n-2", "n-2", None]


def test_pods_share_a_claim_on_several_nodes_only_if_they_reach_its_device() -> None:
    shared = [a_claiming_pod(f"app-{i}", claims=["fabric"]) for i in range(2)]
    own = _Nodes(a_class(), a_claim("fabric"), a_slice("n-1", gpus(1)), a_slice("n-2", gpus(1)))
    wide = _Nodes(a_class(), a_claim("fabric"), a_network_slice(gpus(1)))
    for nodes in (own, wide):
        assert nodes.bind(shared[0]) == "n-1"
        nodes.hosts.reverse()

    assert own.bind(shared[1]) == "n-1"
    assert wide.bind(shared[1]) == "n-2"
