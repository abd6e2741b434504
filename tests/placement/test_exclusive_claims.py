"""A claim with the access mode ReadWriteOncePod is used by one pod at a time, as kube-scheduler."""

from __future__ import annotations

import pytest

from reconciler.model.settings import DecisionRules
from reconciler.placement.question import Question, Rejection
from tests.placement.builders import (
    Object,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    groups,
    placed,
    pods,
)

CLASS: Object = {
    "kind": "StorageClass",
    "metadata": {"name": "gp3"},
    "provisioner": "ebs.csi.aws.com",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def a_claim(name: str, mode: str = "ReadWriteOncePod") -> Object:
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"storageClassName": "gp3", "accessModes": [mode]},
    }


def mounting(*claims: str) -> list[Object]:
    return [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]


WORLD: list[Object] = [a_pool(), CLASS, a_claim("x"), a_claim("y")]


@pytest.mark.parametrize("packing", ["default", "cheapest"])
def test_one_of_several_equal_pods_is_placed(packing: str) -> None:
    found = placed([*WORLD, *pods(3, volumes=mounting("x"))], packing=packing)
    assert groups(found) == [["app-00"]]
    assert found.unschedulable == {
        f"default/app-0{number}": (
            Rejection(
                "ClaimInUse",
                "PersistentVolumeClaim x can be used by one pod at a time (ReadWriteOncePod), and "
                "pod default/app-00 comes first: give each pod a claim of its own, or use another "
                "access mode",
                facts={"claim": "x", "pod": "default/app-00"},
            ),
        )
        for number in (1, 2)
    }


@pytest.mark.parametrize("packing", ["default", "cheapest"])
def test_of_different_pods_the_first_that_fits_is_placed(packing: str) -> None:
    """The larger pod of an older revision fits nowhere, so the smaller one gets the claim."""
    rivals = [
        *pods(1, "old", cpu="90", volumes=mounting("x")),
        *pods(1, "new", volumes=mounting("x")),
        *pods(1, "other", cpu="500m", volumes=mounting("x", "y")),
    ]
    found = placed([*WORLD, *rivals], packing=packing)
    assert groups(found) == [["new-00"]]
    codes = {pod: [r.code for r in reasons] for pod, reasons in found.unschedulable.items()}
    assert codes == {"default/old-00": ["ClaimInUse"], "default/other-00": ["ClaimInUse"]}


@pytest.mark.parametrize(
    ("user", "is_free"),
    [
        pytest.param({}, False, id="running"),
        pytest.param({"deletionTimestamp": "2026-03-01T11:59:00Z"}, True, id="ending"),
    ],
)
def test_a_running_pod_keeps_its_claim_until_it_ends(user: Object, is_free: bool) -> None:
    running = a_pod("user", "3", node="n", volumes=mounting("x"))
    running["metadata"] |= user
    found = placed([*WORLD, *a_node("n"), running, *pods(1, volumes=mounting("x"))])
    assert (found.on_nodes == {"default/app-00": "n"}) == is_free
    if not is_free:
        (reason,) = found.unschedulable["default/app-00"]
        assert reason.code == "ClaimInUse"
        assert "pod default/user uses it: " in reason.message


def test_a_pod_that_moves_keeps_its_claim_before_one_that_waits() -> None:
    running = a_pod("user", "500m", node="n", volumes=mounting("x"))
    world = [*WORLD, *a_node("n"), running, *pods(1, cpu="2", volumes=mounting("x"))]
    scheduler, cluster = a_scheduler(world)
    found = scheduler.place(Question(pods=cluster.pods, without=frozenset({"n"})))
    assert groups(found) == [["user"]]
    assert list(found.unschedulable) == ["default/app-00"]


def test_existing_nodes_take_one_pod() -> None:
    found = placed([*WORLD, *a_node("n"), *pods(2, cpu="100m", volumes=mounting("x"))])
    assert found.on_nodes == {"default/app-00": "n"}
    assert list(found.unschedulable) == ["default/app-01"]


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany"])
def test_other_claims_are_shared(mode: str) -> None:
    world = [a_pool(), CLASS, a_claim("x", mode), *pods(3, cpu="100m", volumes=mounting("x"))]
    assert groups(placed(world)) == [["app-00", "app-01", "app-02"]]


def test_as_karpenter_such_claims_are_shared() -> None:
    world = [*WORLD, *pods(3, cpu="100m", volumes=mounting("x"))]
    assert groups(placed(world, decide=DecisionRules.KARPENTER)) == [["app-00", "app-01", "app-02"]]
