"""An observation of a live cluster: what has changed for a plan, and what is read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reconciler.watch.livecluster import facts_of


def a_node(
    *, version: str = "1", beat: str = "10:00", ready: str = "True", **more: Any
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "n1",
            "resourceVersion": version,
            "managedFields": [{"manager": "kubelet", "time": beat}],
            **more,
        },
        "status": {
            "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": beat}],
        },
    }


def facts(item: dict[str, Any]) -> bytes:
    return facts_of(json.dumps(item).encode())


@pytest.mark.parametrize(
    ("after", "is_same"),
    [
        (a_node(version="2", beat="10:05"), True),
        (dict(reversed(a_node().items())), True),
        ({"apiVersion": "v1", "kind": "Node", **a_node(version="2")}, True),
        (a_node(ready="False"), False),
        (a_node(labels={"team": "web"}), False),
        ({**a_node(), "spec": {"unschedulable": True}}, False),
    ],
    ids=["heartbeat", "order", "event of a watch", "not ready", "label", "cordoned"],
)
def test_a_heartbeat_of_a_node_changes_nothing_for_a_plan(
    after: dict[str, Any], *, is_same: bool
) -> None:
    assert (facts(a_node()) == facts(after)) is is_same


@pytest.mark.parametrize(
    "item", [{}, {"metadata": None, "status": None}, {"metadata": [], "status": {"conditions": 1}}]
)
def test_a_malformed_object_has_facts(item: dict[str, Any]) -> None:
    assert len(facts(item)) == 16
