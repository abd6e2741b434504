"""NodePools with a fixed number of replicas, whatever the pods."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.json import decode
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import DEFAULT_FEATURE_GATES, FeatureGate, Settings
from reconciler.placement.nodes.static import static_claims
from reconciler.placement.question import LaunchPool, PlannedClaim
from tests.placement.builders import (
    ARCH,
    TYPES,
    Object,
    a_catalog,
    a_node,
    a_pool,
    a_scheduler,
    placed,
    pods,
    wanted,
)


def _claims(objects: list[Object], *, gate: bool = True) -> tuple[PlannedClaim, ...]:
    _, cluster = a_scheduler(objects)
    catalog = a_catalog(TYPES)
    pools = [decode(o, NodePool) for o in objects if o["kind"] == "NodePool"]
    settings = Settings(feature_gates={**DEFAULT_FEATURE_GATES, FeatureGate.STATIC_CAPACITY: gate})
    return static_claims([LaunchPool(p, catalog) for p in pools], cluster, settings)


def test_missing_replicas_are_launched_from_the_template() -> None:
    pool = a_pool("fixed", wanted(ARCH, "In", "arm64"), replicas=3)
    claims = _claims([pool, *a_node("n1", pool="fixed")])
    assert len({claim.name for claim in claims}) == len(claims) == 2
    assert all(claim.pods == () and claim.requests == {} for claim in claims)
    assert [kind.name for kind in claims[0].types] == ["arm"]
    assert "node.kubernetes.io/instance-type" not in claims[0].requirements


@pytest.mark.parametrize(
    ("spec", "gate", "count"),
    [
        ({"replicas": 3}, True, 2),
        ({"replicas": 3}, False, 0),
        ({"replicas": 1}, True, 0),
        ({"replicas": 3, "limits": {"nodes": "2"}}, True, 1),
        ({}, True, 0),
    ],
)
def test_the_gate_the_replicas_and_the_limit_are_respected(
    spec: dict[str, Any], gate: bool, count: int
) -> None:
    world = [a_pool("fixed", **spec), *a_node("n1", pool="fixed")]
    assert len(_claims(world, gate=gate)) == count


def test_a_deleting_node_counts_for_the_limit_but_not_for_the_replicas() -> None:
    world = [a_pool("fixed", replicas=1), *a_node("n1", pool="fixed", deleting=True)]
    assert len(_claims(world)) == 1
    world[0] = a_pool("fixed", replicas=1, limits={"nodes": "1"})
    assert _claims(world) == ()


def test_pods_use_nodes_of_a_static_pool_but_never_launch_them() -> None:
    fixed = a_pool("fixed", replicas=1)
    assert len(placed([fixed, *a_node("n1", pool="fixed"), *pods(1)]).on_nodes) == 1
    assert placed([fixed, *pods(1)]).claims == ()
