"""Half a price for arm64, both architectures allowed, spot: what is asked, what an answer means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest

from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.catalog.file import read_catalog
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import FeatureGate
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.wire import Request, Response
from tests.engine.faults import wire
from tests.engine.world import (
    SETTINGS,
    ZONES,
    World,
    a_deployment,
    a_node_class,
    a_pool,
    catalog_file,
)

ARCH = "kubernetes.io/arch"
ARM, AMD = "m7g.large", "m7i.large"
BOTH = [{"key": ARCH, "operator": "In", "values": ["amd64", "arm64"]}]
OVERLAY = {
    "apiVersion": "karpenter.sh/v1alpha1",
    "kind": "NodeOverlay",
    "metadata": {"name": "graviton"},
    "spec": {
        "requirements": [{"key": ARCH, "operator": "In", "values": ["arm64"]}],
        "priceAdjustment": "-50%",
    },
}
PREFERENCE = {"veneer.io/preference.1": f"{ARCH}=arm64 adjust=-50%"}


def twins() -> bytes:
    """Return a catalog of two types that differ in their architecture alone."""
    (amd,) = (row for row in json.loads(catalog_file()) if row["name"] == AMD)
    arm = json.loads(json.dumps(amd).replace(AMD, ARM).replace("amd64", "arm64"))
    return json.dumps([amd, arm]).encode()


def a_fleet(by_overlay: bool) -> World:
    clock = SimulatedClock()
    cloud = EmbeddedEC2(clock)
    cloud.seed(decode(a_node_class(), EC2NodeClass))
    settings = replace(SETTINGS, feature_gates={FeatureGate.NODE_OVERLAY: True})
    catalog = read_catalog(twins(), "catalog.json")
    world = World(clock, cloud, settings=settings, catalog=catalog)
    pool = a_pool("web", capacity_types=["spot"], template={"requirements": BOTH})
    if not by_overlay:
        pool["metadata"]["annotations"] = PREFERENCE
    overlays = [OVERLAY] if by_overlay else []
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", 1), *overlays)
    return world


def fleet_requests(world: World) -> list[dict[str, str]]:
    """Return the list to which the parameters of each CreateFleet are added."""
    calls: list[dict[str, str]] = []

    def listen(request: Request, handle: Callable[[Request], Response]) -> Response:
        if request.operation == "CreateFleet":
            calls.append(dict(parse_qsl(request.body.decode())))
        return handle(request)

    wire(world, listen)
    return calls


def overrides(call: dict[str, str], config: int) -> list[tuple[str, float]]:
    """Return type and priority of each override of a config of a request."""
    found: list[tuple[str, float]] = []
    head = f"LaunchTemplateConfigs.{config}.Overrides"
    while (kind := call.get(f"{head}.{len(found) + 1}.InstanceType")) is not None:
        found.append((kind, float(call[f"{head}.{len(found) + 1}.Priority"])))
    return found


@pytest.mark.parametrize("by_overlay", [True, False], ids=["overlay", "preference"])
def test_one_create_fleet_call_requests_both_at_their_adjusted_prices(by_overlay: bool) -> None:
    world = a_fleet(by_overlay)
    calls = fleet_requests(world)
    world.converge()
    (call,) = calls
    assert call["SpotOptions.AllocationStrategy"] == "capacity-optimized-prioritized"
    configs = [overrides(call, 1), overrides(call, 2), overrides(call, 3)]
    assert sorted(configs) == [[], [(ARM, 0.02)] * len(ZONES), [(AMD, 0.04)] * len(ZONES)]
    (instance,) = described(world)
    assert (instance["InstanceType"], instance["InstanceLifecycle"]) == (ARM, "spot")


@pytest.mark.parametrize("by_overlay", [True, False], ids=["overlay", "preference"])
def test_an_answer_with_an_instance_and_an_error_is_a_launch_and_an_unavailable_offering(
    by_overlay: bool,
) -> None:
    world = a_fleet(by_overlay)
    calls = fleet_requests(world)
    world.cloud.market.refuse(ARM)
    world.converge()
    assert len(calls) == 1
    assert [i["InstanceType"] for i in described(world)] == [AMD]
    gone = {
        (u.instance_type, u.zone, u.capacity_type)
        for u in world.store.unavailable(world.clock.now())
    }
    assert gone == {(ARM, zone, "spot") for zone in ZONES}


def described(world: World) -> list[dict[str, Any]]:
    rows = world.cloud.connect("ec2", 1).describe_instances()["Reservations"]
    return [instance for row in rows for instance in row["Instances"]]
