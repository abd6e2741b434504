"""Writes to nodes: idempotent, and without overwriting other writers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconciler.adapters.kubernetes.cluster import KubernetesCluster
from reconciler.model.errors import ClusterError
from tests.adapters.kubernetes.apiserver import Call, RefusedError, ResetError
from tests.adapters.kubernetes.sandbox import OURS, Sandbox, a_claim, a_node

UNREGISTERED = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
VERBS: dict[str, Callable[[KubernetesCluster], None]] = {
    "taint": lambda cluster: cluster.taint("n0"),
    "untaint": lambda cluster: cluster.untaint("n0"),
    "register": lambda cluster: cluster.register("n0", a_claim()),
    "initialize": lambda cluster: cluster.initialize("n0"),
    "delete_node": lambda cluster: cluster.delete_node("n0"),
}

pytestmark = pytest.mark.parametrize("sandbox", ["listed", "cached"], indirect=True)


@pytest.fixture
def joined(sandbox: Sandbox) -> Sandbox:
    """The node has joined, is unregistered, and was marked for disruption by another controller."""
    other = {"key": "other", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    sandbox.kube.add(a_node(taints=[UNREGISTERED, other]))
    sandbox.observe()
    return sandbox


def test_registration_copies_labels_and_taints_and_removes_the_unregistered_taint(
    joined: Sandbox,
) -> None:
    joined.cluster.register("n0", a_claim())
    node = joined.node()
    assert node["metadata"]["labels"] == {
        "kubernetes.io/hostname": "n0",
        "karpenter.sh/nodepool": "web",
        "karpenter.sh/registered": "true",
    }
    assert node["metadata"]["annotations"] == {"note": "kept"}
    assert joined.taints() == ["other:NoSchedule", "team:NoSchedule", "starting:NoExecute"]
    assert node["spec"]["taints"][0]["timeAdded"], "fields that we do not know stay"


def test_a_removed_startup_taint_is_not_added_again(joined: Sandbox) -> None:
    joined.cluster.register("n0", a_claim())
    joined.kube.change("nodes", "n0", lambda node: node["spec"].update(taints=[]))
    joined.cluster.register("n0", a_claim())
    assert joined.taints() == []


def test_taints_set_by_the_kubelet_are_kept(joined: Sandbox) -> None:
    label = {"karpenter.sh/do-not-sync-taints": "true"}
    joined.kube.change("nodes", "n0", lambda node: node["metadata"]["labels"].update(label))
    joined.cluster.register("n0", a_claim())
    assert joined.taints() == ["other:NoSchedule"]


def test_the_node_of_another_instance_is_not_registered(joined: Sandbox) -> None:
    with pytest.raises(ClusterError, match=f"the node belongs to {OURS}, not to web-1"):
        joined.cluster.register("n0", a_claim("aws:///us-east-1a/i-1"))


def test_the_taint_is_added_and_removed(joined: Sandbox) -> None:
    joined.cluster.taint("n0")
    assert joined.taints()[-1] == "karpenter.sh/disrupted:NoSchedule"
    joined.cluster.untaint("n0")
    assert joined.taints() == ["karpenter.sh/unregistered:NoExecute", "other:NoSchedule"]


def test_a_taint_of_our_key_with_another_effect_is_replaced(joined: Sandbox) -> None:
    odd = {"key": "karpenter.sh/disrupted", "effect": "NoExecute"}
    joined.kube.change("nodes", "n0", lambda node: node["spec"].update(taints=[odd]))
    joined.cluster.taint("n0")
    assert joined.taints() == ["karpenter.sh/disrupted:NoSchedule"]


def test_untainting_removes_the_load_balancer_exclusion_of_the_drain(joined: Sandbox) -> None:
    joined.cluster.drain("n0", None, joined.kube.now())
    key = "node.kubernetes.io/exclude-from-external-load-balancers"
    assert joined.node()["metadata"]["labels"][key] == "karpenter"
    joined.cluster.untaint("n0")
    assert key not in joined.node()["metadata"]["labels"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_node_operation_is_idempotent(joined: Sandbox, verb: str) -> None:
    VERBS[verb](joined.cluster)
    after, version = joined.kube.of("nodes"), str(joined.kube.of("nodes"))
    VERBS[verb](joined.cluster)
    assert str(joined.kube.of("nodes")) == version, after


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_lost_answer_changes_nothing(joined: Sandbox, verb: str, late: bool) -> None:
    left = [1]

    def break_once(call: Call) -> None:
        if call.method in ("PATCH", "DELETE") and left:
            left.pop()
            raise ResetError(late=late)

    joined.kube.fault = break_once
    VERBS[verb](joined.cluster)
    got = _plain(joined)
    joined.kube.add(a_node(taints=[UNREGISTERED, {"key": "other", "effect": "NoSchedule"}]))
    joined.observe()
    VERBS[verb](joined.cluster)
    assert got == _plain(joined)


def _plain(sandbox: Sandbox) -> list[object]:
    return [
        (n["metadata"]["labels"], sandbox.taints(name))
        for name, n in sandbox.kube.of("nodes").items()
    ]


@pytest.mark.parametrize("verb", ["taint", "register", "initialize"])
def test_another_writer_is_not_overwritten(joined: Sandbox, verb: str) -> None:
    left = [1]

    def write_between(call: Call) -> None:
        if call.method == "PATCH" and left:
            left.pop()
            late = {"key": "late", "effect": "NoSchedule"}
            joined.kube.change("nodes", "n0", lambda node: node["spec"]["taints"].append(late))

    joined.kube.fault = write_between
    VERBS[verb](joined.cluster)
    assert "late:NoSchedule" in joined.taints()


def test_constant_conflicts_with_another_writer_end_with_an_error(joined: Sandbox) -> None:
    def write_always(call: Call) -> None:
        if call.method == "PATCH":
            joined.kube.change("nodes", "n0", lambda node: None)

    joined.kube.fault = write_always
    with pytest.raises(ClusterError, match="PATCH /api/v1/nodes/n0: HTTP 409 Conflict"):
        joined.cluster.taint("n0")


@pytest.mark.parametrize("status", [403, 422, 500])
@pytest.mark.parametrize("verb", VERBS)
def test_a_refusal_is_one_line_with_the_call_and_the_reason(
    joined: Sandbox, verb: str, status: int
) -> None:
    joined.cluster.taint("n0")

    def refuse(call: Call) -> None:
        if call.method != "GET":
            raise RefusedError(status, "Because", "two\nlines")

    joined.kube.fault = refuse
    with pytest.raises(ClusterError) as caught:
        VERBS["untaint" if verb == "taint" else verb](joined.cluster)
    message = str(caught.value)
    assert f"/api/v1/nodes/n0: HTTP {status} Because: two lines" in message
    assert "\n" not in message


def test_deleting_a_missing_node_is_not_an_error(sandbox: Sandbox) -> None:
    sandbox.observe()
    sandbox.kube.objects.clear()
    sandbox.cluster.untaint("n0")
    sandbox.cluster.delete_node("n0")
    assert sandbox.drain() == 0
    sandbox.observe()
    sandbox.cluster.untaint("n0")
    sandbox.cluster.delete_node("n0")
    assert sandbox.drain() == 0
    for verb in ("taint", "register", "initialize"):
        with pytest.raises(ClusterError, match='Node n0: nodes "n0" not found'):
            VERBS[verb](sandbox.cluster)


def test_a_later_node_of_the_same_name_is_left_alone(sandbox: Sandbox) -> None:
    """The name is derived from an address, which another instance may have by now."""
    sandbox.observe()
    sandbox.kube.objects.clear()
    sandbox.kube.add(a_node())
    sandbox.cluster.delete_node("n0")
    sandbox.cluster.untaint("n0")
    assert list(sandbox.kube.of("nodes")) == ["n0"]
    with pytest.raises(ClusterError, match="not found"):
        sandbox.cluster.taint("n0")
    assert sandbox.taints() == []


def test_the_finalizer_of_karpenter_is_removed_from_an_adopted_node(sandbox: Sandbox) -> None:
    """Without Karpenter, nothing else would remove its finalizer; other finalizers stay."""
    node = a_node()
    node["metadata"]["finalizers"] = ["karpenter.sh/termination"]
    sandbox.kube.add(node)
    sandbox.observe()
    sandbox.cluster.delete_node("n0")
    assert sandbox.kube.of("nodes") == {}
    node["metadata"]["finalizers"].append("example.com/mine")
    sandbox.kube.add(node)
    sandbox.observe()
    sandbox.cluster.delete_node("n0")
    assert sandbox.node()["metadata"]["finalizers"] == ["example.com/mine"]
    assert "deletionTimestamp" in sandbox.node()["metadata"]
