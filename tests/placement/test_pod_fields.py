"""Each field of a pod decides alike in placement and in the scheduler of the simulated world.

Every row is a pod that two nodes are asked for: ``zone-a`` and ``zone-b``, each in its own zone.
The answer is worked out from the documentation of the field. The validation accepts the pod, and
rejects the same field with a wrong type.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any, Final

import msgspec
import pytest

from reconciler.desired.workloads.shape import check_workload
from reconciler.model.kubernetes.pod import Container, Pod, PodSpec, TopologySpreadConstraint
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.placement.binding.scheduler import NodeBinder, NodeInfo
from reconciler.placement.binding.selection import Volumes
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Question
from tests.placement.builders import (
    HOST,
    NOW,
    ZONE,
    Object,
    a_node,
    a_scheduler,
    apart,
    near,
    on,
    rule,
    spread,
    wanted,
)

TAINT: Final = {"key": "team", "value": "red", "effect": "NoSchedule"}
A, B, BOTH, NOWHERE = {"zone-a"}, {"zone-b"}, {"zone-a", "zone-b"}, set[str]()


class Row(msgspec.Struct, frozen=True):
    """A pod with ``spec``, the nodes on which it may run, and what else is in the cluster."""

    field: str
    spec: Object
    allowed: set[str]
    nodes: dict[str, Object] = {}
    bound: dict[str, list[Object]] = {}
    objects: tuple[Object, ...] = ()
    labels: dict[str, str] = {}


def requesting(cpu: str, **more: Any) -> Object:
    return {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}, **more}


def peer(**fields: Any) -> Object:
    """Return a bound pod labelled ``app=app``, with fields of its spec and ``labels``."""
    labels = fields.pop("labels", {})
    spec = {"containers": [requesting("100m")], **fields}
    return {"labels": {"app": "app", **labels}, "spec": spec}


PORT: Final = {"containerPort": 80, "hostPort": 80}
SMALL_A: Final[dict[str, Object]] = {"zone-a": {"cpu": "3"}}
TAINTED_C: Final[dict[str, Object]] = {"zone-c": {"taints": [TAINT]}}
OWN_A: Final[dict[str, Object]] = {"zone-a": {"labels": {"own": "yes"}}}
ONE_EACH: Final = {"zone-a": [peer()], "zone-b": [peer()]}
IN_A: Final = {"zone-a": [peer()]}
SIDECAR: Final = requesting("2", name="s", restartPolicy="Always")


def spreading(**fields: Any) -> Object:
    return {"topologySpreadConstraints": [spread(ZONE) | fields]}


def a_claim(zone: str) -> tuple[Object, ...]:
    term = {"matchExpressions": [wanted(ZONE, "In", zone)]}
    volume = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    claim = {"name": "data", "namespace": "default", "annotations": bound}
    return (
        {"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": volume},
        {"kind": "PersistentVolumeClaim", "metadata": claim, "spec": {"volumeName": "v"}},
    )


MOUNTED: Final = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
ROWS: Final = [
    Row("containers", {"containers": [requesting("3500m")]}, B, SMALL_A),
    Row(
        "containers.ports",
        {"containers": [requesting("1", ports=[PORT])]},
        B,
        bound={"zone-a": [peer(containers=[requesting("1", ports=[PORT])])]},
    ),
    Row(
        "containers.restartPolicy",
        {"initContainers": [SIDECAR], "containers": [requesting("1500m")]},
        B,
        SMALL_A,
    ),
    Row("initContainers", {"initContainers": [requesting("3500m", name="i")]}, B, SMALL_A),
    Row(
        "initContainers",
        {"initContainers": [SIDECAR, requesting("1500m", name="i")]},
        B,
        SMALL_A,
    ),
    Row(
        "initContainers",
        {"initContainers": [requesting("2500m", name="i")], "containers": [requesting("1")]},
        BOTH,
        SMALL_A,
    ),
    Row("resources", {"resources": {"requests": {"cpu": "3500m"}}}, B, SMALL_A),
    Row(
        "resources",
        {"resources": {"requests": {"cpu": "2"}}, "initContainers": [requesting("1", name="i")]},
        BOTH,
        SMALL_A,
    ),
    Row("overhead", {"overhead": {"cpu": "2500m"}}, B, SMALL_A),
    Row("nodeSelector", {"nodeSelector": {ZONE: "zone-b"}}, B),
    Row("affinity", {"affinity": on([wanted(ZONE, "NotIn", "zone-a")])}, B),
    Row("affinity", {"affinity": near(rule(ZONE))}, A, bound=IN_A),
    Row("affinity", {"affinity": apart(rule(ZONE))}, B, bound=IN_A),
    Row("affinity", {"affinity": apart(rule(ZONE, "other"))}, BOTH, bound=IN_A),
    Row(
        "affinity",
        {"affinity": apart(rule(ZONE, namespaceSelector={"matchLabels": {"a": "b"}}))},
        BOTH,
        bound=IN_A,
    ),
    Row("affinity", {}, B, bound={"zone-a": [peer(affinity=apart(rule(HOST)))]}),
    Row("tolerations", {}, B, {"zone-a": {"taints": [TAINT]}}),
    Row(
        "tolerations",
        {"tolerations": [{"key": "team", "operator": "Exists"}], "nodeSelector": {ZONE: "zone-a"}},
        A,
        {"zone-a": {"taints": [TAINT]}},
    ),
    Row("topologySpreadConstraints.topologyKey", spreading(), B, bound=IN_A),
    Row("topologySpreadConstraints.topologyKey", spreading(topologyKey=HOST), B, bound=IN_A),
    Row("topologySpreadConstraints.maxSkew", spreading(maxSkew=2), BOTH, bound=IN_A),
    Row(
        "topologySpreadConstraints.whenUnsatisfiable",
        spreading(whenUnsatisfiable="ScheduleAnyway", nodeTaintsPolicy="Honor"),
        BOTH,
        bound=IN_A,
    ),
    Row(
        "topologySpreadConstraints.labelSelector",
        spreading(labelSelector={"matchLabels": {"app": "other"}}),
        BOTH,
        bound=IN_A,
    ),
    Row("topologySpreadConstraints.minDomains", spreading(minDomains=2), BOTH, bound=ONE_EACH),
    Row("topologySpreadConstraints.minDomains", spreading(minDomains=3), NOWHERE, bound=ONE_EACH),
    Row(
        "topologySpreadConstraints.nodeTaintsPolicy",
        spreading(nodeTaintsPolicy="Honor"),
        BOTH,
        TAINTED_C,
        ONE_EACH,
    ),
    Row(
        "topologySpreadConstraints.nodeTaintsPolicy",
        spreading(nodeTaintsPolicy="Ignore"),
        NOWHERE,
        TAINTED_C,
        ONE_EACH,
    ),
    Row(
        "topologySpreadConstraints.nodeAffinityPolicy",
        {**spreading(nodeAffinityPolicy="Honor"), "nodeSelector": {"own": "yes"}},
        A,
        OWN_A,
        IN_A,
    ),
    Row(
        "topologySpreadConstraints.nodeAffinityPolicy",
        {**spreading(nodeAffinityPolicy="Ignore"), "nodeSelector": {"own": "yes"}},
        NOWHERE,
        OWN_A,
        IN_A,
    ),
    Row(
        "topologySpreadConstraints.matchLabelKeys",
        {**spreading(matchLabelKeys=["hash"]), "nodeSelector": {ZONE: "zone-a"}},
        A,
        {"zone-a": {}, "zone-b": {}},
        {"zone-a": [peer(labels={"hash": "old"})]},
        labels={"hash": "new"},
    ),
    Row("volumes", {"volumes": MOUNTED}, B, objects=a_claim("zone-b")),
    Row("schedulingGates", {"schedulingGates": [{"name": "quota"}]}, NOWHERE),
    Row("nodeName", {"nodeName": "elsewhere"}, NOWHERE),
    # without effect on where a pod runs
    Row("hostUsers", {"hostUsers": False}, BOTH),
    Row("os", {"os": {"name": "linux"}}, BOTH),
    Row(
        "ephemeralContainers",
        {"ephemeralContainers": [{"name": "debug", "image": "x"}]},
        BOTH,
    ),
    Row("terminationGracePeriodSeconds", {"terminationGracePeriodSeconds": 5}, BOTH),
    Row("activeDeadlineSeconds", {"activeDeadlineSeconds": 5}, BOTH),
    Row("priority", {"priority": 5}, BOTH),
    Row("priorityClassName", {"priorityClassName": "high"}, BOTH),
    Row("preemptionPolicy", {"preemptionPolicy": "Never"}, BOTH),
    Row("schedulerName", {"schedulerName": "default-scheduler"}, BOTH),
]
ELSEWHERE: Final = {"resourceClaims"}
"""Fields with tests of their own: devices are allocated, not selected."""
UNREAD: Final = {"hostUsers", "ephemeralContainers"}
"""Fields that nothing reads: the API server refuses wrong ones."""
IDS: Final = [f"{i}-{row.field}" for i, row in enumerate(ROWS)]


def world(row: Row) -> list[Object]:
    """Return the cluster of a row: its nodes, the pods on them, and the pod, which is pending."""
    nodes: dict[str, Object] = {"zone-a": {}, "zone-b": {}} | row.nodes
    objects = [*row.objects]
    for zone, fields in nodes.items():
        objects += a_node(zone, zone=zone, **fields)
        objects[-2]["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        for number, bound in enumerate(row.bound.get(zone, ())):
            metadata = {"name": f"{zone}-{number}", "namespace": "default"}
            made = deepcopy(bound["spec"]) | {"nodeName": zone}
            described = {"metadata": metadata | {"labels": bound["labels"]}, "spec": made}
            objects.append({"kind": "Pod", **described, "status": {"phase": "Running"}})
    return [*objects, pending(row)]


def pending(row: Row) -> Object:
    why = "SchedulingGated" if "schedulingGates" in row.spec else "Unschedulable"
    condition = {"type": "PodScheduled", "status": "False", "reason": why}
    metadata = {"name": "p", "namespace": "default", "labels": {"app": "app"} | row.labels}
    spec = {"containers": [requesting("1")], **row.spec}
    status = {"phase": "Pending", "conditions": [condition]}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def state(row: Row) -> tuple[ClusterState, Pod]:
    content = json.dumps({"kind": "List", "items": world(row)}).encode()
    cluster = cluster_state(read_snapshot(content, ""))
    return cluster, next(pod for pod in cluster.pods if pod.metadata.name == "p")


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_placement_seats_a_pod_on_an_allowed_node(row: Row) -> None:
    scheduler, cluster = a_scheduler([], cluster=state(row)[0])
    seats = scheduler.place(Question(pods=pods_to_place(cluster, NOW))).on_nodes
    assert set(seats.values()) <= row.allowed
    assert ("default/p" in seats) == bool(row.allowed)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_scheduler_of_the_simulated_world_binds_a_pod_to_the_same_nodes(row: Row) -> None:
    cluster, pod = state(row)
    known = [
        NodeInfo(node.node, tuple(p for p in node.pods if p.is_active))
        for node in cluster.nodes
        if node.node is not None
    ]
    volumes = Volumes(cluster.volume_claims, cluster.volumes, cluster.storage_classes, {})
    bound = NodeBinder(known, volumes=volumes).bind([pod] if not pod.spec.node_name else [])
    assert {node.name for node in bound.values()} <= row.allowed
    assert ("default/p" in bound) == bool(row.allowed)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_validation_accepts_a_pod_and_refuses_a_wrong_type(row: Row) -> None:
    pod = {"apiVersion": "v1", **pending(row)}
    assert check_workload("Pod", pod) == []
    if row.field in UNREAD:
        return
    name = row.field.partition(".")[0]
    wrong = deepcopy(pod)
    wrong["spec"][name] = 7 if not isinstance(pod["spec"].get(name), int) else "seven"
    (finding, *_) = check_workload("Pod", wrong)
    assert finding.code in ("wrong-type", "bad-format", "bad-quantity")


def test_every_field_has_a_row() -> None:
    named = {row.field.partition(".")[0] for row in ROWS} | ELSEWHERE
    assert {f.encode_name for f in msgspec.structs.fields(PodSpec)} <= named
    of_spreads = {r.field.partition(".")[2] for r in ROWS if "spread" in r.field.lower()}
    assert {f.encode_name for f in msgspec.structs.fields(TopologySpreadConstraint)} <= of_spreads
    of_containers = {r.field.partition(".")[2] for r in ROWS if r.field.startswith("containers")}
    used = {f.encode_name for f in msgspec.structs.fields(Container)} - {"name", "resources"}
    assert used <= of_containers
