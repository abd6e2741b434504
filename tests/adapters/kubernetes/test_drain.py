"""Drains use the eviction API, in Karpenter's order, and delete only at a deadline."""

from __future__ import annotations

import pytest

from reconciler.model.errors import ClusterError
from tests.adapters.kubernetes.apiserver import Call, Object, RefusedError, ResetError
from tests.adapters.kubernetes.sandbox import Sandbox, a_budget, a_pod

pytestmark = pytest.mark.parametrize("sandbox", ["listed", "cached"], indirect=True)


@pytest.fixture(autouse=True)
def tainted(sandbox: Sandbox) -> None:
    """Taint the node first, as the engine does: before that, no node counts as empty."""
    sandbox.observe()
    sandbox.cluster.taint("n0")


def filled(sandbox: Sandbox, *objects: Object) -> Sandbox:
    for item in objects:
        sandbox.kube.add(item)
    return sandbox


def evicted(sandbox: Sandbox) -> list[str]:
    return [c.name for c in sandbox.kube.calls if c.part == "eviction"]


def test_pods_are_evicted_group_by_group(sandbox: Sandbox) -> None:
    sandbox.kube.leaving = True
    filled(
        sandbox,
        a_pod("critical-daemon", owner="DaemonSet", priorityClassName="system-node-critical"),
        a_pod("critical", priority=2_000_000_000),
        a_pod("daemon", owner="DaemonSet"),
        a_pod("web"),
    )
    for expected in ("web", "daemon", "critical", "critical-daemon"):
        assert sandbox.drain() > 0
        assert evicted(sandbox)[-1] == expected
        assert sandbox.drain() > 0, "one that is leaving is waited for"
        assert evicted(sandbox)[-1] == expected, "and not asked twice"
        sandbox.kube.sweep()
    assert sandbox.drain() == 0
    assert len(evicted(sandbox)) == 4


def test_pods_that_need_no_eviction_stay(sandbox: Sandbox) -> None:
    tolerant = [{"key": "karpenter.sh/disrupted", "operator": "Exists"}]
    mirror = a_pod("mirror")
    mirror["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "n0"}]
    done = {**a_pod("done"), "status": {"phase": "Succeeded"}}
    filled(sandbox, mirror, done, a_pod("tolerant", tolerations=tolerant), a_pod("far", node="n1"))
    assert sandbox.drain() == 0
    assert evicted(sandbox) == []
    assert sandbox.pods() == ["done", "far", "mirror", "tolerant"]


def test_a_pod_disruption_budget_limits_evictions(sandbox: Sandbox) -> None:
    filled(sandbox, a_pod("a"), a_pod("b"), a_budget("web", 1))
    sandbox.drain()
    assert sandbox.pods() == ["b"]
    assert sandbox.drain() == 1
    assert not sandbox.waited, "a budget's no is an answer, not a failure"
    sandbox.kube.add(a_budget("web", 1))
    sandbox.drain()
    assert sandbox.pods() == []
    assert sandbox.drain() == 0


def test_several_budgets_for_one_pod_block_its_eviction(sandbox: Sandbox) -> None:
    filled(sandbox, a_pod("a"), a_budget("one", 1), a_budget("two", 1))
    assert sandbox.drain() == 1
    assert not sandbox.waited


def test_do_not_disrupt_blocks_eviction_until_the_deadline(sandbox: Sandbox) -> None:
    pod = a_pod("a")
    pod["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    filled(sandbox, pod)
    assert sandbox.drain() == 1
    assert sandbox.drain(deadline_s=31) == 1
    assert evicted(sandbox) == []
    sandbox.drain(deadline_s=30)
    assert sandbox.pods() == []


def test_at_the_deadline_all_pods_are_deleted_with_the_remaining_grace_period(
    sandbox: Sandbox,
) -> None:
    sandbox.kube.leaving = True
    daemon = a_pod("daemon", owner="DaemonSet", terminationGracePeriodSeconds=60)
    filled(sandbox, a_pod("web"), a_pod("slow", terminationGracePeriodSeconds=90), daemon)
    sandbox.kube.add(a_budget("web", 0))
    assert sandbox.drain(deadline_s=45) == 3
    deleted = {c.name: c.body for c in sandbox.kube.calls if c.method == "DELETE"}
    assert sorted(deleted) == ["daemon", "slow"]
    assert {body["gracePeriodSeconds"] for body in deleted.values()} == {45}
    assert evicted(sandbox) == ["web"]
    sandbox.kube.calls.clear()
    assert sandbox.drain(deadline_s=45) == 3
    assert not [c for c in sandbox.kube.calls if c.method == "DELETE"], "they leave in time"


def test_a_slowly_terminating_pod_gets_a_shorter_grace_period(sandbox: Sandbox) -> None:
    sandbox.kube.leaving = True
    filled(sandbox, a_pod("slow", terminationGracePeriodSeconds=600))
    sandbox.drain()
    assert sandbox.drain(deadline_s=-5) == 1
    (hurried,) = [c for c in sandbox.kube.calls if c.method == "DELETE"]
    assert hurried.body["gracePeriodSeconds"] == 1, "never 0: the kubelet is to end it"


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_an_eviction_with_a_lost_answer_is_repeated(sandbox: Sandbox, late: bool) -> None:
    filled(sandbox, a_pod("a"), a_budget("web", 1))
    left = [1]

    def break_once(call: Call) -> None:
        if call.part == "eviction" and left:
            left.pop()
            raise ResetError(late=late)

    sandbox.kube.fault = break_once
    sandbox.drain()
    assert sandbox.pods() == []


def test_a_new_pod_of_the_same_name_is_not_evicted(sandbox: Sandbox) -> None:
    filled(sandbox, a_pod("a"))
    left = [1]

    def replace(call: Call) -> None:
        if call.part == "eviction" and left:
            left.pop()
            sandbox.kube.add(a_pod("a", node="n1"))

    sandbox.kube.fault = replace
    assert sandbox.drain() == 0
    assert sandbox.pods() == ["a"]


def test_a_refused_eviction_does_not_block_others(sandbox: Sandbox) -> None:
    filled(sandbox, a_pod("a"), a_pod("b"))

    def refuse(call: Call) -> None:
        if call.name == "a" and call.part:
            raise RefusedError(403, "Forbidden", "a webhook says no")

    sandbox.kube.fault = refuse
    with pytest.raises(ClusterError, match="pods/a/eviction: HTTP 403 Forbidden: a webhook"):
        sandbox.drain()
    assert sandbox.pods() == ["a"]


def test_a_failed_list_of_pods_is_not_an_empty_node(sandbox: Sandbox) -> None:
    sandbox.observe()
    filled(sandbox, a_pod("a"))

    def fail(call: Call) -> None:
        if call.resource == "pods":
            raise RefusedError(503, "ServiceUnavailable")

    sandbox.kube.fault = fail
    with pytest.raises(ClusterError, match="HTTP 503"):
        sandbox.cluster.drain("n0", None, sandbox.kube.now())


def attached(sandbox: Sandbox, staying: str = "") -> None:
    tolerant = [{"key": "karpenter.sh/disrupted", "operator": "Exists"}]
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    if staying:
        sandbox.kube.add(a_pod(staying, tolerations=tolerant, volumes=[volume]))
    sandbox.kube.add({**claim, "spec": {"volumeName": "pv-1"}})
    for name, node in (("mine", "n0"), ("other", "n1")):
        spec = {"nodeName": node, "attacher": "ebs", "source": {"persistentVolumeName": "pv-1"}}
        sandbox.kube.add({"kind": "VolumeAttachment", "metadata": {"name": name}, "spec": spec})


def test_a_drain_waits_for_volumes_until_the_deadline(sandbox: Sandbox) -> None:
    attached(sandbox)
    assert sandbox.drain() == 1
    assert sandbox.drain(deadline_s=10) == 1
    assert sandbox.drain(deadline_s=-10) == 0
    del sandbox.kube.objects["storage.k8s.io", "volumeattachments", "", "mine"]
    assert sandbox.drain() == 0


@pytest.mark.parametrize(
    ("spec", "left"), [({"nodeName": "n0", "source": 7}, 1), ({"nodeName": "n1", "source": 7}, 0),
                       ({"nodeName": 7}, 0), (7, 0)],
)  # fmt: skip
def test_an_attachment_that_cannot_be_read_delays_the_drain_of_its_node_alone(
    sandbox: Sandbox, spec: object, left: int
) -> None:
    sandbox.kube.add({"kind": "VolumeAttachment", "metadata": {"name": "odd"}, "spec": spec})
    assert sandbox.drain() == left
    assert sandbox.drain(deadline_s=-10) == 0


def test_a_drain_does_not_wait_for_volumes_of_pods_that_stay(sandbox: Sandbox) -> None:
    attached(sandbox, staying="agent")
    assert sandbox.drain() == 0


def test_attachments_are_listed_only_once_pods_are_gone(sandbox: Sandbox) -> None:
    filled(sandbox, a_pod("a"), a_budget("web", 0))

    def listed() -> bool:
        return any(c.resource == "volumeattachments" for c in sandbox.kube.calls)

    assert sandbox.drain() == 1
    assert not listed()
    sandbox.kube.add(a_budget("web", 1))
    sandbox.drain()
    sandbox.drain()
    assert sandbox.pods() == []
    assert listed()


def test_a_blocked_pod_is_tried_again_with_growing_pauses(sandbox: Sandbox) -> None:
    filled(sandbox, *(a_pod(f"web-{n}") for n in range(3)), a_budget("web", 0))
    for _ in range(60):
        sandbox.drain()
    in_the_first_minute = len(evicted(sandbox))
    for _ in range(120):
        step = sandbox.drain_step()
    assert step is not None
    assert (step.pods, step.volumes, step.is_blocked) == (3, 0, True)
    assert in_the_first_minute <= 3 * 12
    assert len(evicted(sandbox)) - in_the_first_minute <= 2 * 8 * 3


def test_a_drain_moves_while_pods_leave_and_is_blocked_once_none_can(sandbox: Sandbox) -> None:
    sandbox.kube.leaving = True
    filled(sandbox, a_pod("a"), a_pod("b"), a_budget("web", 1))

    def is_blocked() -> bool:
        step = sandbox.drain_step()
        assert step is not None
        return step.is_blocked

    assert not is_blocked(), "one was evicted"
    assert not is_blocked(), "it is leaving"
    sandbox.kube.sweep()
    assert is_blocked()
    assert sandbox.pods() == ["b"]


def test_a_pod_that_the_deadline_will_delete_soon_is_waited_for(sandbox: Sandbox) -> None:
    filled(sandbox, a_pod("a"), a_budget("web", 0))
    far, near = sandbox.drain_step(deadline_s=3600), sandbox.drain_step(deadline_s=60)
    assert far is not None
    assert near is not None
    assert (far.is_blocked, near.is_blocked) == (True, False)


def test_a_budget_that_allows_evictions_again_is_noticed_by_its_watch(sandbox: Sandbox) -> None:
    if sandbox.cache is None:
        pytest.skip("without a copy the pause ends by itself")
    filled(sandbox, a_pod("a"), a_budget("web", 0))
    for _ in range(30):
        sandbox.drain()
    tried = len(evicted(sandbox))
    sandbox.drain()
    assert len(evicted(sandbox)) == tried, "it pauses"
    sandbox.kube.add(a_budget("web", 1))
    sandbox.drain()
    assert sandbox.pods() == []
