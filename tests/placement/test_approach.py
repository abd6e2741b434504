"""The order in which pods are served: alternatives to Karpenter's order, if they are better."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconciler.placement.approach import ApproachScore
from tests.placement.builders import (
    ARCH,
    ZONE,
    ZONES,
    Object,
    a_pod,
    a_pool,
    a_type,
    apart,
    groups,
    near,
    placed,
    pods,
    rule,
    wanted,
)


def test_the_queue_decides_which_pods_wait() -> None:
    """Leaving out the large pod would leave the same number, and use a cheaper node."""
    large = a_pod("large", "3", labels={"app": "db"}, nodeSelector={ZONE: "zone-a"})
    away = apart(rule(ZONE, "db"))
    choosy = {ZONE: "zone-a", ARCH: "amd64"}
    small = a_pod("small", "100m", affinity=away, nodeSelector=choosy)
    placement = placed([a_pool(), large, small])
    assert groups(placement) == [["large"]]
    assert list(placement.unschedulable) == ["default/small"]


def _volume(name: str, zone: str) -> list[Object]:
    """Return a claim and the volume in ``zone`` that it is bound to."""
    term = {"matchExpressions": [wanted(ZONE, "In", zone)]}
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    return [
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default", "annotations": bound},
            "spec": {"volumeName": f"pv-{name}"},
        },
        {
            "kind": "PersistentVolume",
            "metadata": {"name": f"pv-{name}"},
            "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
        },
    ]


@pytest.mark.parametrize("memory", ["1Gi", "3Gi"], ids=["same size", "larger"])
@pytest.mark.parametrize("bystanders", [0, 600])
def test_a_pod_with_a_volume_is_placed_before_those_that_follow_it(
    memory: str, bystanders: int
) -> None:
    """Another order costs more here, because zone-c has only the larger type."""
    follows = near(rule(ZONE, "pair"))
    data = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    first = a_pod("first", "1", "1Gi", labels={"app": "pair"}, affinity=follows)
    tied = a_pod("tied", "1", memory, labels={"app": "pair"}, affinity=follows, volumes=data)
    kinds = (a_type("small", 4, 0.2, zones=("zone-a",)), a_type("large", 16, 0.9, zones=ZONES))
    others = pods(bystanders, "other", cpu="10m", memory="1Mi")
    world = [a_pool(), *_volume("data", "zone-c"), first, tied, *others]
    placement = placed(world, types=kinds)
    assert placement.unschedulable == {}
    (shared,) = [c for c in placement.claims if "default/tied" in c.pods]
    assert "default/first" in shared.pods
    assert shared.launch[1].zone == "zone-c"


def test_fewer_unscheduled_pods_outweigh_nodes_and_dollars() -> None:
    one_short = ApproachScore(unplaced=1, left=(0, 1), unbuffered=0, nodes=1, cost=0.1)
    complete = ApproachScore(unplaced=0, left=(0, 0), unbuffered=5, nodes=9, cost=9.0)
    assert complete.improves_on(one_short)
    assert not one_short.improves_on(complete)


def test_nodes_and_dollars_decide_between_orders_that_leave_the_same_pods() -> None:
    base = ApproachScore(unplaced=1, left=(0, 1), unbuffered=0, nodes=3, cost=0.3)
    assert replace(base, cost=0.2).improves_on(base)
    assert replace(base, nodes=2).improves_on(base)
    assert not replace(base, nodes=2, cost=0.4).improves_on(base)
    assert not replace(base, left=(1, 0), cost=0.2).improves_on(base)
    assert not base.improves_on(base)
