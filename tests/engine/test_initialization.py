"""When a node is initialized: ready, without startup taints, with all requested resources."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.engine.steps import lifecycle
from reconciler.model.karpenter.labels import REQUESTED_DRIVERS
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.devices import ResourcePool, ResourceSlice, ResourceSliceSpec
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import ResourceRequirements
from reconciler.model.settings import FeatureGate
from tests.engine.world import World, a_deployment, a_pool, a_world

FUSE = "smarter-devices/fuse"
OVERLAY = {
    "apiVersion": "karpenter.sh/v1alpha1",
    "kind": "NodeOverlay",
    "metadata": {"name": "fuse"},
    "spec": {"requirements": [], "capacity": {FUSE: "1"}},
}


def one_node() -> World:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.converge()
    return world


def asking(claim: NodeClaim, **requests: str) -> NodeClaim:
    """Return a claim that is not initialized yet and asks for more."""
    resources = ResourceRequirements(requests={**claim.spec.resources.requests, **requests})
    spec = replace(claim.spec, resources=resources)
    return lifecycle.without_condition(replace(claim, spec=spec), lifecycle.INITIALIZED)


def initialized_condition(world: World, **requests: str) -> tuple[str, str, str]:
    """Return the Initialized condition after the next observation of a node."""
    (claim,) = world.claims.values()
    pass_ = world.converge()
    (node,) = pass_.seen.snapshot.nodes
    found = lifecycle.with_node(asking(claim, **requests), node, world.clock.now())
    condition = found.condition(lifecycle.INITIALIZED)
    assert condition is not None
    return condition.status, condition.reason, condition.message


def test_a_node_without_its_devices_is_not_initialized() -> None:
    found = initialized_condition(one_node(), **{"nvidia.com/gpu": "1"})
    assert found == (
        "Unknown",
        "ResourceNotRegistered",
        "resource nvidia.com/gpu is not registered yet",
    )


def test_resources_that_were_not_requested_do_not_delay_initialization() -> None:
    assert initialized_condition(one_node(), **{"nvidia.com/gpu": "0"})[0] == "True"


def test_a_simulated_node_registers_the_resources_of_an_overlay() -> None:
    deployment: dict[str, Any] = a_deployment("web", "web", 1)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["resources"]["requests"][FUSE] = "1"
    container["resources"]["limits"] = {FUSE: "1"}
    world = a_world(a_pool("web"), deployment, OVERLAY)
    world.settings = with_fields(world.settings, feature_gates={FeatureGate.NODE_OVERLAY: True})
    seen = world.converge().seen
    (node,) = seen.snapshot.nodes
    assert node.status.allocatable[FUSE] == "1"
    assert [c.is_true(lifecycle.INITIALIZED) for c in seen.claims] == [True]


def _slice(driver: str, node: str, **pool: int) -> ResourceSlice:
    found = ResourcePool(name=node, **pool)
    spec = ResourceSliceSpec(driver=driver, node_name=node, pool=found)
    return ResourceSlice(Metadata(name=f"{driver}-{pool}"), spec)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([], "dra.net"),
        ([_slice("dra.net", "n")], "gpu.nvidia.com"),
        ([_slice("dra.net", "n"), _slice("gpu.nvidia.com", "other")], "gpu.nvidia.com"),
        ([_slice("dra.net", "n"), _slice("gpu.nvidia.com", "n")], ""),
        ([_slice("dra.net", "n", resource_slice_count=2)], "dra.net"),
        ([_slice("dra.net", "n"), _slice("dra.net", "n", generation=2, resource_slice_count=2)],
         "dra.net"),
    ],
)  # fmt: skip
def test_initialization_waits_for_the_drivers_whose_devices_pods_claim(
    slices: list[ResourceSlice], expected: str
) -> None:
    annotations = {REQUESTED_DRIVERS: "dra.net, gpu.nvidia.com"}
    claim = NodeClaim(Metadata(name="c", annotations=annotations))

    assert lifecycle.missing_driver(claim, slices, "n") == expected


def test_a_node_whose_driver_has_not_published_its_devices_is_not_initialized() -> None:
    world = one_node()
    (claim,) = world.claims.values()
    (node,) = world.converge().seen.snapshot.nodes

    found = lifecycle.with_node(asking(claim), node, world.clock.now(), "gpu.nvidia.com")

    condition = found.condition(lifecycle.INITIALIZED)
    assert condition is not None
    assert (condition.status, condition.reason) == ("Unknown", "DRADriversNotPublished")
