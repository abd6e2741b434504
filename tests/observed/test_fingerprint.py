"""What counts of a cluster's objects for an approval, and what does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.observed.fingerprint import (
    FingerprintCache,
    Fingerprints,
    describe_changes,
    fingerprints,
    join_fingerprints,
)
from reconciler.observed.snapshot import Snapshot, read_snapshot

Object = dict[str, Any]

T0, T1 = "2026-03-02T09:00:00Z", "2026-03-02T10:00:00Z"
OBJECTS: list[Object] = [
    {
        "kind": "Node",
        "metadata": {"name": "n", "uid": "u-n", "labels": {"a": "b"}, "resourceVersion": "1"},
        "spec": {"providerID": "aws:///z/i-1", "taints": [{"key": "t", "effect": "NoSchedule"}]},
        "status": {
            "capacity": {"cpu": "2", "memory": "4Gi"},
            "allocatable": {"cpu": "2", "memory": "4Gi"},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "lastHeartbeatTime": T0,
                    "lastTransitionTime": T0,
                    "message": "kubelet is posting ready status",
                }
            ],
            "images": [{"names": ["a"]}],
        },
    },
    {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "shop",
            "uid": "u-p",
            "resourceVersion": "1",
            "labels": {"app": "web"},
            "annotations": {"karpenter.sh/do-not-disrupt": "1h", "note": "x"},
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {
            "phase": "Running",
            "startTime": T0,
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": T0}],
            "containerStatuses": [{"name": "c", "restartCount": 1}],
        },
    },
    {
        "kind": "NodeClaim",
        "metadata": {
            "name": "c",
            "creationTimestamp": T0,
            "labels": {"karpenter.sh/nodepool": "web"},
            "annotations": {"reconciler/nominated-pods": "shop/p"},
        },
        "spec": {"expireAfter": "720h"},
        "status": {
            "providerID": "aws:///z/i-1",
            "nodeName": "n",
            "imageID": "ami-1",
            "conditions": [
                {"type": "Initialized", "status": "True", "lastTransitionTime": T0},
            ],
        },
    },
    {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "shop", "generation": 1},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 1, "observedGeneration": 1, "currentHealthy": 2},
    },
    {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 10},
    {"kind": "StorageClass", "metadata": {"name": "ebs"}, "provisioner": "ebs.csi.aws.com"},
]


def snapshot_of(objects: list[Object]) -> Snapshot:
    content = json.dumps({"kind": "List", "items": objects}).encode()
    return read_snapshot(content, "test")


def marks(objects: list[Object]) -> Fingerprints:
    return fingerprints(snapshot_of(objects))


BEFORE = marks(OBJECTS)

READ = {
    "Node n": [
        ("metadata", "labels", "a"),
        ("metadata", "annotations", "karpenter.sh/do-not-disrupt"),
        ("metadata", "deletionTimestamp"),
        ("spec", "providerID"),
        ("spec", "unschedulable"),
        ("spec", "taints", 0, "key"),
        ("status", "capacity", "memory"),
        ("status", "allocatable", "cpu"),
        ("status", "conditions", 0, "status"),
        ("status", "conditions", 0, "lastTransitionTime"),
    ],
    "Pod shop/p": [
        ("metadata", "uid"),
        ("metadata", "labels", "app"),
        ("metadata", "annotations", "karpenter.sh/do-not-disrupt"),
        ("metadata", "annotations", "controller.kubernetes.io/pod-deletion-cost"),
        ("metadata", "deletionTimestamp"),
        ("spec", "nodeName"),
        ("spec", "containers", 0, "resources", "requests", "cpu"),
        ("spec", "priorityClassName"),
        ("status", "startTime"),
        ("status", "nominatedNodeName"),
        ("status", "conditions", 0, "status"),
    ],
    "NodeClaim c": [
        ("metadata", "creationTimestamp"),
        ("metadata", "deletionTimestamp"),
        ("metadata", "labels", "karpenter.sh/nodepool"),
        ("metadata", "annotations", "reconciler/nominated-pods"),
        ("spec", "expireAfter"),
        ("status", "providerID"),
        ("status", "imageID"),
        ("status", "lastPodEventTime"),
        ("status", "conditions", 0, "status"),
        ("status", "conditions", 0, "lastTransitionTime"),
    ],
    "PodDisruptionBudget shop/b": [
        ("spec", "minAvailable"),
        ("spec", "selector", "matchLabels", "app"),
        ("status", "disruptionsAllowed"),
    ],
    "PriorityClass high": [("value",)],
    "StorageClass ebs": [("provisioner",), ("volumeBindingMode",)],
}
UNREAD = [
    ("metadata", "resourceVersion"),
    ("metadata", "generation"),
    ("metadata", "annotations", "note"),
    ("metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"),
    ("status", "conditions", 0, "message"),
    ("status", "conditions", 0, "lastHeartbeatTime"),
    ("status", "observedGeneration"),
    ("status", "podIP"),
    ("status", "containerStatuses", 0, "restartCount"),
    ("status", "currentHealthy"),
    ("status", "images", 0, "sizeBytes"),
]
_NUMBERS = ("value", "disruptionsAllowed", "minAvailable", "generation", "restartCount")


def with_other(item: Object, path: tuple[str | int, ...], value: object) -> Object:
    """Return the object with another value at a path; itself where the path leads nowhere."""
    fresh = copy.deepcopy(item)
    at: Any = fresh
    for step in path[:-1]:
        if isinstance(step, int):
            if not at or step >= len(at):
                return item
            at = at[step]
        else:
            at = at.setdefault(step, [] if step in ("conditions", "images") else {})
            if isinstance(at, dict) and step == "containerStatuses":
                return item
    at[path[-1]] = value
    return fresh


def value_for(path: tuple[str | int, ...]) -> object:
    last = str(path[-1])
    if last.endswith(("Timestamp", "Time")):
        return T1
    if last == "unschedulable":
        return True
    if last in _NUMBERS:
        return 7
    known = {"memory": "8Gi", "cpu": "3", "status": "False", "expireAfter": "1h"}
    return known.get(last, "other")


ROWS = [(name, path) for name, paths in READ.items() for path in paths]


@pytest.mark.parametrize(
    ("name", "path"), ROWS, ids=[f"{name}: {'.'.join(map(str, path))}" for name, path in ROWS]
)
def test_facts_used_by_decisions_change_the_fingerprint(
    name: str, path: tuple[str | int, ...]
) -> None:
    kind = name.partition(" ")[0]
    after = [
        with_other(item, path, value_for(path)) if item["kind"] == kind else item
        for item in OBJECTS
    ]
    assert describe_changes(BEFORE, marks(after)) == [f"{name} has changed"]


@given(
    st.lists(st.tuples(st.integers(0, len(OBJECTS) - 1), st.sampled_from(UNREAD)), max_size=4),
    st.permutations(range(len(OBJECTS))),
)
def test_facts_unused_by_decisions_do_not_change_the_fingerprint(
    changes: list[tuple[int, tuple[str | int, ...]]], order: list[int]
) -> None:
    after = list(OBJECTS)
    for index, path in changes:
        after[index] = with_other(after[index], path, value_for(path))
    shuffled = [after[index] for index in order]
    assert join_fingerprints(marks(shuffled)) == join_fingerprints(BEFORE)


def quieter(items: list[Object]) -> list[Object]:
    """Return the objects after ``consolidateAfter`` has passed."""
    mark = {"type": "Consolidatable", "status": "True", "lastTransitionTime": T1}
    at = ("status", "conditions")
    return [
        with_other(i, at, [*i["status"]["conditions"], mark]) if i["kind"] == "NodeClaim" else i
        for i in items
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda items: [i for i in items if i["kind"] != "Pod"], ["Pod shop/p is gone"]),
        (
            lambda items: [*items, {"kind": "Pod", "metadata": {"name": "q"}}],
            ["Pod default/q is new"],
        ),
        (
            lambda items: [
                *items,
                {"kind": "Pod", "metadata": {"name": "q"}, "status": {"phase": "Succeeded"}},
            ],
            [],
        ),
        (quieter, []),
    ],
    ids=["a pod is evicted", "a pod comes", "a job ends", "a node becomes consolidatable"],
)
def test_a_change_is_named(
    change: Callable[[list[Object]], list[Object]], message: list[str]
) -> None:
    assert describe_changes(BEFORE, marks(change(OBJECTS))) == message


def test_cached_fingerprints_equal_recomputed_ones() -> None:
    cache, before = FingerprintCache(), snapshot_of(OBJECTS)
    for name, path in ROWS:
        kind = name.partition(" ")[0]
        after = snapshot_of(
            [
                with_other(item, path, value_for(path)) if item["kind"] == kind else item
                for item in OBJECTS
            ]
        )
        assert cache.fingerprints(before) == fingerprints(before)
        assert cache.fingerprints(after) == fingerprints(after), (name, path)


def test_removed_objects_are_dropped() -> None:
    cache, before = FingerprintCache(), snapshot_of(OBJECTS)

    assert cache.fingerprints(before) == fingerprints(before)
    assert cache.fingerprints(snapshot_of([])) == {}
    assert cache.fingerprints(before) == fingerprints(before)
