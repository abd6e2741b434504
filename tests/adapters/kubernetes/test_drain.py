"""Drains use the eviction API, in Karpenter's order, and delete only at a deadline."""

from __future__ import annotations

import pytest

from reconciler.model.errors import ClusterError
from tests.adapters.kubernetes.apiserver import Call, Object, RefusedError, ResetError
from tests.adapters.kubernetes.town import Town, a_budget, a_pod

pytestmark = pytest.mark.parametrize("town", ["listed", "cached"], indirect=True)


def filled(town: Town, *objects: Object) -> Town:
    for item in objects:
        town.kube.add(item)
    return town


def evicted(town: Town) -> list[str]:
    return [c.name for c in town.kube.calls if c.part == "eviction"]


def test_pods_are_evicted_group_by_group(town: Town) -> None:
    town.kube.leaving = True
    filled(
        town,
        a_pod("critical-daemon", owner="DaemonSet", priorityClassName="system-node-critical"),
        a_pod("critical", priority=2_000_000_000),
        a_pod("daemon", owner="DaemonSet"),
        a_pod("web"),
    )
    for expected in ("web", "daemon", "critical", "critical-daemon"):
        assert town.drain() > 0
        assert evicted(town)[-1] == expected
        assert town.drain() > 0, "one that is leaving is waited for"
        assert evicted(town)[-1] == expected, "and not asked twice"
        town.kube.sweep()
    assert town.drain() == 0
    assert len(evicted(town)) == 4


def test_pods_that_need_no_eviction_stay(town: Town) -> None:
    tolerant = [{"key": "karpenter.sh/disrupted", "operator": "Exists"}]
    mirror = a_pod("mirror")
    mirror["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "n0"}]
    done = {**a_pod("done"), "status": {"phase": "Succeeded"}}
    filled(town, mirror, done, a_pod("tolerant", tolerations=tolerant), a_pod("far", node="n1"))
    assert town.drain() == 0
    assert evicted(town) == []
    assert town.pods() == ["done", "far", "mirror", "tolerant"]


def test_a_pod_disruption_budget_limits_evictions(town: Town) -> None:
    filled(town, a_pod("a"), a_pod("b"), a_budget("web", 1))
    town.drain()
    assert town.pods() == ["b"]
    assert town.drain() == 1
    assert not town.waited, "a budget's no is an answer, not a failure"
    town.kube.add(a_budget("web", 1))
    town.drain()
    assert town.pods() == []
    assert town.drain() == 0


def test_several_budgets_for_one_pod_block_its_eviction(town: Town) -> None:
    filled(town, a_pod("a"), a_budget("one", 1), a_budget("two", 1))
    assert town.drain() == 1
    assert not town.waited


def test_do_not_disrupt_blocks_eviction_until_the_deadline(town: Town) -> None:
    pod = a_pod("a")
    pod["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    filled(town, pod)
    assert town.drain() == 1
    assert town.drain(deadline_s=31) == 1
    assert evicted(town) == []
    town.drain(deadline_s=30)
    assert town.pods() == []


def test_at_the_deadline_all_pods_are_deleted_with_the_remaining_grace_period(
    town: Town,
) -> None:
    town.kube.leaving = True
    daemon = a_pod("daemon", owner="DaemonSet", terminationGracePeriodSeconds=60)
    filled(town, a_pod("web"), a_pod("slow", terminationGracePeriodSeconds=90), daemon)
    town.kube.add(a_budget("web", 0))
    assert town.drain(deadline_s=45) == 3
    deleted = {c.name: c.body for c in town.kube.calls if c.method == "DELETE"}
    assert sorted(deleted) == ["daemon", "slow"]
    assert {body["gracePeriodSeconds"] for body in deleted.values()} == {45}
    assert evicted(town) == ["web"]
    town.kube.calls.clear()
    assert town.drain(deadline_s=45) == 3
    assert not [c for c in town.kube.calls if c.method == "DELETE"], "they leave in time"


def test_a_slowly_terminating_pod_gets_a_shorter_grace_period(town: Town) -> None:
    town.kube.leaving = True
    filled(town, a_pod("slow", terminationGracePeriodSeconds=600))
    town.drain()
    assert town.drain(deadline_s=-5) == 1
    (hurried,) = [c for c in town.kube.calls if c.method == "DELETE"]
    assert hurried.body["gracePeriodSeconds"] == 1, "never 0: the kubelet is to end it"


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_an_eviction_with_a_lost_answer_is_repeated(town: Town, late: bool) -> None:
    filled(town, a_pod("a"), a_budget("web", 1))
    left = [1]

    def break_once(call: Call) -> None:
        if call.part == "eviction" and left:
            left.pop()
            raise ResetError(late=late)

    town.kube.fault = break_once
    town.drain()
    assert town.pods() == []


def test_a_new_pod_of_the_same_name_is_not_evicted(town: Town) -> None:
    filled(town, a_pod("a"))
    left = [1]

    def replace(call: Call) -> None:
        if call.part == "eviction" and left:
            left.pop()
            town.kube.add(a_pod("a", node="n1"))

    town.kube.fault = replace
    assert town.drain() == 0
    assert town.pods() == ["a"]


def test_a_refused_eviction_does_not_block_others(town: Town) -> None:
    filled(town, a_pod("a"), a_pod("b"))

    def refuse(call: Call) -> None:
        if call.name == "a" and call.part:
            raise RefusedError(403, "Forbidden", "a webhook says no")

    town.kube.fault = refuse
    with pytest.raises(ClusterError, match="pods/a/eviction: HTTP 403 Forbidden: a webhook"):
        town.drain()
    assert town.pods() == ["a"]


def test_a_failed_list_of_pods_is_not_an_empty_node(town: Town) -> None:
    town.look()
    filled(town, a_pod("a"))

    def fail(call: Call) -> None:
        if call.resource == "pods":
            raise RefusedError(503, "ServiceUnavailable")

    town.kube.fault = fail
    with pytest.raises(ClusterError, match="HTTP 503"):
        town.cluster.drain("n0", None, town.kube.now())


def attached(town: Town, staying: str = "") -> None:
    tolerant = [{"key": "karpenter.sh/disrupted", "operator": "Exists"}]
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    if staying:
        town.kube.add(a_pod(staying, tolerations=tolerant, volumes=[volume]))
    town.kube.add({**claim, "spec": {"volumeName": "pv-1"}})
    for name, node in (("mine", "n0"), ("other", "n1")):
        spec = {"nodeName": node, "attacher": "ebs", "source": {"persistentVolumeName": "pv-1"}}
        town.kube.add({"kind": "VolumeAttachment", "metadata": {"name": name}, "spec": spec})


def test_a_drain_waits_for_volumes_until_the_deadline(town: Town) -> None:
    attached(town)
    assert town.drain() == 1
    assert town.drain(deadline_s=10) == 1
    assert town.drain(deadline_s=-10) == 0
    del town.kube.objects["storage.k8s.io", "volumeattachments", "", "mine"]
    assert town.drain() == 0


def test_a_drain_does_not_wait_for_volumes_of_pods_that_stay(town: Town) -> None:
    attached(town, staying="agent")
    assert town.drain() == 0


def test_attachments_are_listed_only_once_pods_are_gone(town: Town) -> None:
    filled(town, a_pod("a"), a_budget("web", 0))

    def listed() -> bool:
        return any(c.resource == "volumeattachments" for c in town.kube.calls)

    assert town.drain() == 1
    assert not listed()
    town.kube.add(a_budget("web", 1))
    town.drain()
    town.drain()
    assert town.pods() == []
    assert listed()
