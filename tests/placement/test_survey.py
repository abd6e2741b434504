"""The options of one pod: existing nodes, and what each NodePool would launch."""

from __future__ import annotations

from typing import Any

from reconciler.model.decode import decode
from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.explain.survey import PoolVerdict, Survey
from reconciler.placement.question import Question, Rejection
from tests.placement.builders import (
    ARCH,
    HOST,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    pods,
    spread,
    wanted,
)


def _survey(pod: Object, *objects: Object, **how: Any) -> Survey | Rejection:
    return a_scheduler([pod, *objects], **how)[0].survey(decode(pod, Pod))


def _found(pod: Object, *objects: Object) -> Survey:
    found = _survey(pod, *objects)
    assert isinstance(found, Survey)
    return found


def _pool(found: Survey, name: str) -> PoolVerdict:
    return next(pool for pool in found.pools if pool.node_pool == name)


def test_every_pool_has_a_launch_or_a_rejection() -> None:
    found = _found(
        a_pod("app-0", "10"),
        a_pool("any"),
        a_pool("arm", wanted(ARCH, "In", "arm64")),
        a_pool("expensive", taints=[{"key": "team", "value": "red", "effect": "NoSchedule"}]),
    )
    option = _pool(found, "any").cheapest
    assert option is not None
    assert (option.instance_type, option.capacity_type, option.zone) == ("huge", "spot", "zone-a")
    assert option.price == round(0.8 / 3, 6)
    assert _pool(found, "any").filters == (
        ("catalog", 6),
        ("NodePool", 6),
        ("offerings", 6),
        ("resources", 1),
        ("limits", 1),
    )
    arm = _pool(found, "arm")
    assert arm.cheapest is None
    assert arm.rejection is not None
    assert arm.rejection.message == (
        "NodePool arm: requests 10 cpu, but the largest allowed instance type has 7.9"
    )
    assert arm.rejection.facts["nearest type"] == "arm"
    assert arm.filters[-1] == ("resources", 0)
    assert _pool(found, "expensive").filters[-1] == ("team=red:NoSchedule", 0)


def test_existing_nodes_and_suitable_nodes_are_counted_separately() -> None:
    found = _found(
        a_pod("app-0", "3", nodeSelector={ZONE: "zone-a"}),
        a_pool(),
        *a_node("free"),
        *a_node("full", "2"),
        *a_node("elsewhere", zone="zone-b"),
    )
    assert (found.nodes, found.nodes_suited, found.nodes_total) == (("free",), 2, 3)


def test_rules_of_running_pods_apply_to_a_pod_placed_alone() -> None:
    crowd = [a_pod(f"app-{i}", node="full", labels={"app": "app"}) for i in range(1, 3)]
    one = a_pod("app-0", labels={"app": "app"}, topologySpreadConstraints=[spread(HOST)])
    found = _found(one, a_pool(), *crowd, *a_node("full", "16"), *a_node("free"))
    assert found.nodes == ("free",)


def test_other_pending_pods_do_not_count() -> None:
    others = pods(30, "other", cpu="4")
    alone = _found(a_pod("app-0", "1"), a_pool(limits={"cpu": "2"}))
    assert _found(a_pod("app-0", "1"), a_pool(limits={"cpu": "2"}), *others) == alone


def test_preferences_are_dropped_until_the_pod_fits() -> None:
    soft = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {"matchExpressions": [wanted(ZONE, "In", "zone-x")]},
                }
            ]
        }
    }
    found = _found(a_pod("app-0", affinity=soft), a_pool())
    assert len(found.dropped) == 1
    assert _pool(found, "default").cheapest is not None


def test_a_pod_that_can_never_be_placed_is_rejected_at_once() -> None:
    found = _survey(a_pod("app-0", nodeSelector={"karpenter.sh/initialized": "true"}), a_pool())
    assert isinstance(found, Rejection)
    assert found.code == "RestrictedLabel"


def test_a_reused_scheduler_gives_the_same_survey_as_a_new_one() -> None:
    plain = pods(3, "plain", cpu="2", labels={"app": "app"}, nodeSelector={ZONE: "zone-a"})
    choosy = pods(3, "choosy", labels={"app": "app"}, topologySpreadConstraints=[spread(ZONE)])
    world = [a_pool(), *plain, *choosy]
    scheduler, cluster = a_scheduler(world)
    scheduler.place(Question(pods=[pod for pod in cluster.pods if "plain" in pod.key]))
    fresh, again = a_scheduler(world)
    assert scheduler.place(Question(pods=cluster.pods)) == fresh.place(Question(pods=again.pods))
