from __future__ import annotations

from dataclasses import replace
from typing import Any

from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    DaemonSetSpec,
    PodTemplate,
    PriorityClass,
)
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.observed.fingerprint import Pods
from reconciler.observed.snapshot import snapshot_of
from reconciler.observed.state import KnownNodes, StateNode, cluster_state

POOL = {"karpenter.sh/nodepool": "general"}


def a_node(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Node:
    status = spec.pop("status", {})
    metadata = {"name": name, "labels": labels or {}}
    return decode({"metadata": metadata, "spec": spec, "status": status}, Node)


def a_claim(name: str, provider: str = "", **fields: Any) -> NodeClaim:
    status = {"providerID": provider, **fields.pop("status", {})}
    metadata = {"name": name, "labels": POOL, **fields.pop("metadata", {})}
    return decode({"metadata": metadata, "spec": fields, "status": status}, NodeClaim)


def a_pod(name: str, node: str, cpu: str = "1", **metadata: Any) -> Pod:
    containers = [{"resources": {"requests": {"cpu": cpu}}}]
    spec = {"nodeName": node, "containers": containers}
    return decode({"metadata": {"name": name, **metadata}, "spec": spec}, Pod)


def only(*objects: Any, marked: tuple[str, ...] = ()) -> StateNode:
    (node,) = cluster_state(snapshot_of(objects), marked).nodes
    return node


def test_a_node_and_its_claim_are_matched_by_provider_id() -> None:
    node = only(a_node("n", POOL, providerID="aws:///a/i-1"), a_claim("c", "aws:///a/i-1"))
    assert node.is_managed
    assert node.provider_id == "aws:///a/i-1"


def test_a_claim_without_an_instance_is_separate() -> None:
    state = cluster_state(snapshot_of([a_claim("c")]))
    assert state.nodes == ()
    assert [c.name for c in state.unlaunched] == ["c"]


def test_unidentifiable_nodes_of_a_pool_are_not_tracked() -> None:
    without_provider = a_node("n", POOL)
    without_type = a_node("m", POOL, providerID="aws:///a/i-2")
    assert cluster_state(snapshot_of([without_provider, without_type])).nodes == ()


def test_the_claim_represents_its_node_until_registration() -> None:
    claim = a_claim("c", "p", taints=[{"key": "team", "effect": "NoSchedule"}])
    joining = only(a_node("n", {}, providerID="p", taints=[{"key": "x"}]), claim)
    assert joining.name == "c"
    assert [t.key for t in joining.taints] == ["team"]

    registered = a_node(
        "n", {"karpenter.sh/registered": "true"}, providerID="p", taints=[{"key": "x"}]
    )
    assert only(registered, claim).name == "n"


def test_temporary_taints_are_ignored_before_initialization() -> None:
    taints = [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
        {"key": "startup", "effect": "NoSchedule"},
        {"key": "stays", "effect": "NoSchedule"},
    ]
    claim = a_claim("c", "p", startupTaints=[{"key": "startup", "effect": "NoSchedule"}])
    registered = {"karpenter.sh/registered": "true"}
    starting = only(a_node("n", registered, providerID="p", taints=taints), claim)
    assert [t.key for t in starting.taints] == ["stays"]

    ready = {**registered, "karpenter.sh/initialized": "true"}
    assert len(only(a_node("n", ready, providerID="p", taints=taints), claim).taints) == 3


def test_zero_resources_of_a_starting_kubelet_are_filled_from_the_claim() -> None:
    claim = a_claim("c", "p", status={"allocatable": {"cpu": "4", "nvidia.com/gpu": "1"}})
    labels = {"karpenter.sh/registered": "true"}
    status = {"allocatable": {"cpu": "3900m", "nvidia.com/gpu": "0"}}
    node = only(a_node("n", labels, providerID="p", status=status), claim)
    assert node.allocatable == {"cpu": 3900, "nvidia.com/gpu": 1000}


def test_terminating_pods_use_room_and_finished_ones_do_not() -> None:
    finished = decode(
        {"metadata": {"name": "done"}, "spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}},
        Pod,
    )
    leaving = a_pod("leaving", "n", deletionTimestamp="2026-01-01T00:00:00Z")
    node = only(a_node("n", status={"allocatable": {"cpu": "4"}}), finished, leaving)
    assert node.available["cpu"] == 3000


def test_the_claim_and_not_the_node_decides_about_deletion() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    node = decode({"metadata": {"name": "n", **deleted}, "spec": {"providerID": "p"}}, Node)
    assert not only(node, a_claim("c", "p")).is_deleting
    assert only(node).is_deleting
    assert only(a_node("n", providerID="p"), a_claim("c", "p", metadata=deleted)).is_deleting
    assert only(a_node("n", providerID="p"), a_claim("c", "p"), marked=("c",)).is_deleting


def test_equal_nodes_of_an_earlier_state_are_reused() -> None:
    objects = [a_node("a"), a_node("b"), a_pod("p", "a"), a_pod("q", "b")]
    earlier = cluster_state(snapshot_of(objects))
    later = cluster_state(snapshot_of([*objects, a_pod("new", "b")]))
    shared = later.with_shared_nodes(earlier)
    assert shared == later
    assert shared.by_name["a"] is earlier.by_name["a"]
    assert [pod.metadata.name for pod in shared.by_name["b"].pods] == ["new", "q"]


def test_a_node_is_the_same_as_in_the_last_state_until_one_of_its_objects_changes() -> None:
    objects = [a_node("n", providerID="aws:///a/i-1"), a_node("m", providerID="aws:///a/i-2")]
    pods = (a_pod("p", "n"), a_pod("q", "m"))
    known = KnownNodes()
    first = snapshot_of([*objects, *pods])
    m, n = cluster_state(first, known=known).nodes

    def nodes_after(*changed: Any, marked: tuple[str, ...] = ()) -> tuple[StateNode, ...]:
        found = snapshot_of([*objects, *changed])
        shared = Pods.index_after(found.pods, first.indexed_pods)
        return cluster_state(replace(found, pods=shared), marked, known).nodes

    assert list(map(id, nodes_after(*pods))) == [id(m), id(n)]
    same, other = nodes_after(pods[1], a_pod("p2", "n"))
    assert same is m
    assert [pod.metadata.name for pod in other.pods] == ["p2"]
    marked, _ = nodes_after(*pods, marked=("m",))
    assert marked.is_deleting
    assert not nodes_after(*pods)[0].is_deleting


def test_the_daemons_of_a_cluster_have_the_priority_of_their_class() -> None:
    named = {"high": 1000, "system-node-critical": 2_000_001_000, "": None}
    daemons = [
        DaemonSet(
            Metadata(name=f"agent-{name}", namespace="default"),
            DaemonSetSpec(PodTemplate(spec=PodSpec(priority_class_name=name))),
        )
        for name in named
    ]
    found = cluster_state(snapshot_of([*daemons, PriorityClass(Metadata("high"), 1000)]))
    assert [d.pod().spec.priority for d in found.daemon_sets] == [
        named[d.spec.template.spec.priority_class_name] for d in found.daemon_sets
    ]
