"""The cached facts about the pods of an observation agree with the pods, and are computed once."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.fingerprint import Pods, fingerprints
from reconciler.observed.reader import SnapshotReader
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import cluster_state

OWNERS = {"DaemonSet": "apps/v1", "StatefulSet": "apps/v1", "Node": "v1"}


@st.composite
def some_pods(draw: st.DrawFn) -> tuple[Pod, ...]:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["", "a", "b"]),
                st.sampled_from(["", "n0", "n1", "n2"]),
                st.sampled_from(["Running", "Pending", "Failed", "Succeeded"]),
                st.sampled_from(["", *OWNERS]),
                st.booleans(),
            ),
            max_size=8,
        )
    )
    return tuple(
        msgspec.convert(a_pod(f"p{n}", *row), Pod, strict=False) for n, row in enumerate(rows)
    )


def a_pod(
    name: str,
    namespace: str = "",
    node: str = "",
    phase: str = "Running",
    owner: str = "",
    ends: bool = False,
) -> dict[str, Any]:
    owners = [{"apiVersion": OWNERS[owner], "kind": owner, "name": "o"}] if owner else []
    deleted = {"deletionTimestamp": "2026-03-01T12:00:00Z"} if ends else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": owners, **deleted},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


@given(some_pods())
def test_the_index_agrees_with_the_pods(pods: tuple[Pod, ...]) -> None:
    found = Pods(pods)
    nodes = {p.spec.node_name for p in pods} - {""}

    assert found == pods
    assert found.by_node == {n: tuple(p for p in pods if p.spec.node_name == n) for n in nodes}
    assert found.workload_names == {
        n: tuple(
            p.key
            for p in pods
            if p.spec.node_name == n
            and p.status.phase in ("Running", "Pending")
            and p.metadata.deletion_timestamp is None
            and not any(o.kind in ("DaemonSet", "Node") for o in p.metadata.owner_references)
        )
        for n in nodes
    }
    assert found.namespaces == {p.metadata.namespace or "default" for p in pods}
    assert found.fingerprints == fingerprints(Snapshot(pods=pods))


def test_unchanged_pods_are_not_indexed_again() -> None:
    reader = SnapshotReader()
    texts = [
        json.dumps({"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "n"}}, *pods]})
        for pods in ([a_pod("a", node="n")], [a_pod("a", node="n")], [a_pod("a", node="m")])
    ]
    first, again, moved = (reader.read(text.encode(), "x") for text in texts)

    kept = Pods.from_tuple(first.pods)
    assert Pods.from_tuple(again.pods).by_node is kept.by_node
    assert cluster_state(again).nodes[0].pods is kept.by_node["n"]
    assert Pods.from_tuple(moved.pods).by_node == {"m": moved.pods}
    assert [node.pods for node in cluster_state(moved).nodes] == [()]


@given(some_pods(), some_pods())
def test_pods_that_follow_others_have_the_same_index(
    before: tuple[Pod, ...], pods: tuple[Pod, ...]
) -> None:
    earlier = Pods(before)
    later, plain = Pods.index_after(pods, earlier), Pods(pods)
    assert (later, later.by_node, later.workload_names) == (
        plain,
        plain.by_node,
        plain.workload_names,
    )
    for name, on_node in later.by_node.items():
        if earlier.by_node.get(name) == on_node:
            assert on_node is earlier.by_node[name]
