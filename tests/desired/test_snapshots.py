"""A snapshot of a cluster in the folder of a fleet is not desired state."""

from __future__ import annotations

import json

import pytest

from reconciler.desired.contents import count_objects
from reconciler.desired.fleet import Fleet, SourceFile, read_fleet
from reconciler.model.diagnostics import Diagnostic
from tests.engine.world import a_deployment, a_node_class, a_pool
from tests.yamltext import dump_all

POOL = SourceFile(
    "fleet.yaml",
    dump_all([a_node_class(), a_pool("web"), a_deployment("web", "web", 3)]).encode(),
)
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {}}
RECORDS = {"apiVersion": "reconciler/v1", "kind": "FleetRecords"}
CAPTURE = {"apiVersion": "reconciler/v1", "kind": "SnapshotCapture", "at": "2026-03-02T09:00:00Z"}
RUNNING = a_deployment("web", "web", 9)


def read(name: str, *objects: dict[str, object]) -> tuple[Fleet, list[Diagnostic]]:
    """Return the fleet with a file of a list of objects, and the findings on that file."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    content = json.dumps(listed) if name.endswith("json") else dump_all([listed])
    fleet, found = read_fleet([POOL, SourceFile(name, content.encode())])
    return fleet, [d for d in found if d.place is not None and d.place.file == name]


@pytest.mark.parametrize("name", ["cluster.json", "cluster.yaml"])
@pytest.mark.parametrize("sign", [NODE, RECORDS, CAPTURE], ids=["node", "records", "capture"])
def test_a_snapshot_is_not_read_and_named(name: str, sign: dict[str, object]) -> None:
    fleet, found = read(name, sign, RUNNING)
    assert [str(d) for d in found] == [
        (
            f"{name}:1:1: warning: this is a snapshot of a cluster, not desired state; its 2 "
            "objects are not read (move it out of the fleet folder, and pass it as "
            f"`--snapshot {name}`) [snapshot-in-fleet]"
        )
    ]
    assert count_objects(fleet) == "1 NodePool, 1 EC2NodeClass, 1 workload, 3 pods"


def test_a_dump_of_workloads_alone_is_desired_state() -> None:
    fleet, found = read("more.json", a_deployment("api", "web", 2))
    assert found == []
    assert count_objects(fleet) == "1 NodePool, 1 EC2NodeClass, 2 workloads, 5 pods"


def test_a_text_that_mentions_a_node_is_no_snapshot() -> None:
    note = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "note"},
        "data": {"manifest": "kind: Node\n"},
    }
    fleet, found = read("note.yaml", note, a_deployment("api", "web", 2))
    assert found == []
    assert count_objects(fleet).endswith("5 pods")


@pytest.mark.parametrize(
    ("kind", "is_counted"),
    [("PodTemplate", True), ("ResourceClaimTemplate", True), ("ResourceQuota", False)],
)
def test_pods_are_counted_beside_objects_that_do_not_change_their_number(
    kind: str, is_counted: bool
) -> None:
    versions = {"ResourceClaimTemplate": "resource.k8s.io/v1"}
    other = {
        "apiVersion": versions.get(kind, "v1"),
        "kind": kind,
        "metadata": {"name": "other", "namespace": "web"},
    }
    fleet, _ = read("other.json", other)
    assert ("3 pods" in count_objects(fleet)) is is_counted
