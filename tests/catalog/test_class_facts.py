"""The facts of an EC2NodeClass that determine its instance types."""

from typing import Any

import msgspec
import pytest

from reconciler.catalog.catalog import bundled_catalog
from reconciler.catalog.classfacts import (
    ClassFacts,
    DeviceMapping,
    Interface,
    Reservation,
    class_facts,
)
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.resources import parse_quantity
from reconciler.model.settings import FeatureGate, PlacementGroup, Settings

AL2023 = {"amiSelectorTerms": [{"alias": "al2023@latest"}]}


def facts(
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    settings: Settings | None = None,
) -> ClassFacts:
    body = {"metadata": {"name": "default"}, "spec": AL2023 | (spec or {}), "status": status or {}}
    return class_facts(msgspec.convert(body, EC2NodeClass), settings or Settings())


def test_a_class_without_settings_has_the_default_facts() -> None:
    assert facts() == ClassFacts()


def test_kubelet_settings_count() -> None:
    kubelet = {
        "maxPods": 20,
        "podsPerCore": 2,
        "kubeReserved": {"memory": "1Gi", "cpu": "1"},
        "systemReserved": {"cpu": "50m"},
        "evictionHard": {"memory.available": "5%"},
        "clusterDNS": ["10.0.0.10"],
    }
    assert facts({"kubelet": kubelet}) == ClassFacts(
        max_pods=20,
        pods_per_core=2,
        kube_reserved=(("cpu", "1"), ("memory", "1Gi")),
        system_reserved=(("cpu", "50m"),),
        eviction_hard=(("memory.available", "5%"),),
    )


@pytest.mark.parametrize(
    ("kubelet", "problem"),
    [
        ({"maxPods": "vcpus * 8"}, 'spec.kubelet.maxPods is not a number: "vcpus * 8"'),
        ({"podsPerCore": True}, "spec.kubelet.podsPerCore is not a number: true"),
        (
            {"kubeReserved": {"cpu": "max_pods * 10"}},
            'spec.kubelet.kubeReserved.cpu is not a quantity: "max_pods * 10"',
        ),
        (
            {"systemReserved": {"memory": "-1Gi"}},
            'spec.kubelet.systemReserved.memory is not a quantity: "-1Gi"',
        ),
        (
            {"evictionHard": {"memory.available": "x%"}},
            'spec.kubelet.evictionHard.memory.available is not a quantity: "x%"',
        ),
        ({"evictionHard": {"memory.available": "5%", "nodefs.available": "1Gi"}}, None),
    ],
)
def test_kubelet_settings_that_cannot_be_evaluated_launch_nothing(
    kubelet: dict[str, Any], problem: str | None
) -> None:
    found = facts({"kubelet": kubelet})
    assert found.problem == problem
    catalog = bundled_catalog().for_node_class(found)
    assert catalog.launch_rejection("m5.large") == problem
    kind = catalog.get("m5.large")
    assert kind is not None
    assert bool(kind.available_offerings()) == (problem is None)


def test_volumes_interfaces_and_policies_count() -> None:
    spec = {
        "blockDeviceMappings": [
            {"deviceName": "/dev/xvda", "rootVolume": True, "ebs": {"volumeSize": "50Gi"}},
            {"deviceName": "/dev/xvdb", "ebs": {"snapshotID": "snap-1"}},
        ],
        "instanceStorePolicy": "RAID0",
        "networkInterfaces": [
            {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
            {"networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only"},
        ],
        "connectionTracking": {"udpTimeout": 30},
        "cpuOptions": {"nestedVirtualization": "enabled"},
        "enclaveOptions": {"enabled": True},
    }
    assert facts(spec) == ClassFacts(
        volumes=(
            DeviceMapping("/dev/xvda", parse_quantity("50Gi"), is_root=True),
            DeviceMapping("/dev/xvdb", None),
        ),
        raid0=True,
        interfaces=(Interface(0, 0), Interface(1, 1, efa_only=True)),
        connection_tracking=True,
        nested_virtualization=True,
        nitro_enclaves=True,
    )


def test_zones_are_those_of_the_resolved_subnets() -> None:
    subnets = [
        {"id": "subnet-2", "zone": "us-east-1b", "zoneID": "use1-az2"},
        {"id": "subnet-1", "zone": "us-east-1a", "zoneID": "use1-az1"},
        {"id": "subnet-3", "zone": "us-east-1a", "zoneID": "use1-az1"},
    ]
    assert facts(status={"subnets": subnets}).zones == (
        ("us-east-1a", "use1-az1"),
        ("us-east-1b", "use1-az2"),
    )


def test_reservations_count_if_their_gate_is_enabled() -> None:
    status = {
        "capacityReservations": [
            {"id": "cr-1", "instanceType": "m5.large", "availabilityZone": "us-east-1a"}
        ]
    }
    assert facts(status=status).reservations == (Reservation("cr-1", "m5.large", "us-east-1a"),)
    closed = Settings(feature_gates={FeatureGate.RESERVED_CAPACITY: False})
    assert facts(status=status, settings=closed).reservations == ()


def test_a_placement_group_counts_if_the_class_selects_one() -> None:
    settings = Settings(placement_group=PlacementGroup(id="pg-1", strategy="cluster"))
    assert facts(settings=settings) == ClassFacts()
    selected = facts({"placementGroupSelector": {"name": "near"}}, settings=settings)
    assert (selected.placement_group, selected.strategy) == ("pg-1", "cluster")


def test_the_settings_of_the_engine_count() -> None:
    settings = Settings(vm_memory_overhead_percent=0.05, reserved_enis=1)
    assert facts(settings=settings) == ClassFacts(vm_memory_overhead_percent=0.05, reserved_enis=1)


def test_an_invalid_volume_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        facts({"blockDeviceMappings": [{"deviceName": "/dev/a", "ebs": {"volumeSize": "much"}}]})
