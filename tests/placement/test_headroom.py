"""CapacityBuffers: the number of virtual pods, their spec, and their order."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.decode import decode
from reconciler.model.karpenter.capacitybuffer import CapacityBuffer, Scalable
from reconciler.model.kubernetes.cluster import PodTemplate
from reconciler.model.settings import Packing
from reconciler.placement.pods.headroom import (
    PODS_MAX,
    PRIORITY,
    BufferTemplates,
    Headroom,
    resolve_headroom,
)
from reconciler.placement.question import Question
from tests.placement.builders import (
    HOST,
    Object,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    apart,
    placed,
    pods,
    rule,
)

TEMPLATE: Object = {
    "metadata": {"labels": {"app": "web"}, "annotations": {"karpenter.sh/do-not-disrupt": "true"}},
    "spec": {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
        "nodeName": "n-9",
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}
SHAPE = {"podTemplateRef": {"name": "web"}}
DEPLOYMENT = {"scalableRef": {"kind": "Deployment", "name": "web"}}


def _room(_scale: int | None = 10, **spec: Any) -> Headroom:
    """Return the pods of a buffer, given a PodTemplate and a Deployment, both ``web``."""
    template = decode(TEMPLATE, PodTemplate)
    workload = {"metadata": {"name": "web"}, "spec": {"template": TEMPLATE, "replicas": _scale}}
    known = BufferTemplates(
        {"default/web": template}, {("Deployment", "default/web"): decode(workload, Scalable)}
    )
    data = {"metadata": {"name": "b", "uid": "u-1"}, "spec": spec}
    return resolve_headroom(decode(data, CapacityBuffer), known)


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({**SHAPE, "replicas": 3}, 3),
        ({**DEPLOYMENT, "percentage": 25}, 3),
        ({**DEPLOYMENT, "percentage": 1}, 1),
        ({**DEPLOYMENT, "percentage": 25, "replicas": 2}, 3),
        ({**DEPLOYMENT, "percentage": 25, "replicas": 5}, 5),
        ({**SHAPE, "limits": {"cpu": "2"}}, 4),
        ({**SHAPE, "limits": {"cpu": "2", "memory": "3500Mi"}}, 3),
        ({**SHAPE, "replicas": 9, "limits": {"cpu": "1"}}, 2),
        ({**SHAPE, "replicas": 2, "limits": {"cpu": "40"}}, 2),
        ({**SHAPE, "replicas": 2, "limits": {"example.com/gpu": "0"}}, 2),
    ],
)
def test_the_larger_of_number_and_percentage_applies_within_the_limits(
    spec: dict[str, Any], count: int
) -> None:
    assert len(_room(**spec).pods) == count


def test_a_workload_without_replicas_has_one_pod() -> None:
    assert len(_room(None, **DEPLOYMENT, percentage=300).pods) == 3


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ({**SHAPE, "replicas": 0}, "BufferEmpty", "raise replicas"),
        ({**SHAPE, "limits": {"cpu": "100m"}}, "BufferEmpty", "limits"),
        ({**SHAPE, "limits": {"example.com/gpu": "1"}}, "BufferEmpty", "limits"),
        ({**SHAPE, "limits": {"cpu": "lots"}}, "ResolutionFailed", "lots"),
        ({**SHAPE, "replicas": PODS_MAX + 1}, "TooManyPods", "10,001"),
        ({"replicas": 1}, "ResolutionFailed", "neither"),
        ({"podTemplateRef": {"name": "x"}, "replicas": 1}, "PodTemplateNotFound", "PodTemplate x"),
        (
            {"scalableRef": {"kind": "StatefulSet", "name": "web"}, "replicas": 1},
            "ScalableRefNotFound",
            "StatefulSet web",
        ),
        (
            {"scalableRef": {"apiGroup": "batch", "kind": "Job", "name": "web"}, "replicas": 1},
            "ResolutionFailed",
            "Job.batch",
        ),
        (
            {**SHAPE, "replicas": 1, "provisioningStrategy": "buffer.gke.io/standby"},
            "OtherStrategy",
            "another autoscaler",
        ),
    ],
)
def test_a_buffer_without_pods_reports_the_reason(
    spec: dict[str, Any], code: str, message: str
) -> None:
    room = _room(**spec)

    assert (room.buffer, room.pods, room.code) == ("default/b", (), code)
    assert message in room.message


def test_a_virtual_pod_equals_its_template_without_node_and_volumes() -> None:
    first, second = _room(**SHAPE, replicas=2).pods

    assert [first.key, second.key] == ["default/capacity-buffer-b-1", "default/capacity-buffer-b-2"]
    assert [first.metadata.uid, second.metadata.uid] == ["u-1-1", "u-1-2"]
    assert first.metadata.labels == {"app": "web"}
    assert first.is_virtual
    assert first.is_provisionable
    assert (first.spec.node_name, first.spec.volumes, first.spec.priority) == ("", (), PRIORITY)
    assert first.requests()["cpu"] == 500
    assert not first.metadata.annotations.get("karpenter.sh/do-not-disrupt")


def _virtual(count: int, cpu: str, **spec: Any) -> list[Object]:
    marks = {
        "karpenter.sh/capacity-buffer-fake-pod": "true",
        "karpenter.sh/capacity-buffer-name": "b",
        "karpenter.sh/capacity-buffer-namespace": "default",
    }
    found = [a_pod(f"virtual-{i}", cpu, labels={"app": "app"}, **spec) for i in range(count)]
    for pod in found:
        pod["metadata"] |= {"annotations": marks, "ownerReferences": []}
    return found


def test_real_pods_use_existing_room_before_larger_virtual_pods() -> None:
    placement = placed([a_pool(), *a_node("n-1", cpu="4"), a_pod("app-0", "2"), *_virtual(1, "3")])

    assert dict(placement.on_nodes) == {"default/app-0": "n-1"}
    assert [claim.pods for claim in placement.claims] == [("default/virtual-0",)]


def test_a_real_pod_gets_the_last_room_within_the_limits() -> None:
    pool = a_pool(limits={"cpu": "2"})

    placement = placed([pool, a_pod("app-0", "1"), *_virtual(3, "1900m")])

    assert [claim.pods for claim in placement.claims] == [("default/app-0",)]
    assert sorted(placement.unschedulable) == [f"default/virtual-{i}" for i in range(3)]


def test_real_pods_also_come_first_when_packing_for_cost() -> None:
    pool = a_pool(limits={"cpu": "8"})
    world = [pool, *pods(7, cpu="1"), *_virtual(7, "1")]

    placement = placed(world, packing=Packing.CHEAPEST)

    homeless = [key for key in placement.unschedulable if "virtual" not in key]
    assert homeless == []


def test_topology_rules_apply_to_virtual_pods() -> None:
    spec = {"affinity": apart(rule(HOST))}
    world = [a_pool(), *a_node("n-1"), a_pod("app-0", node="n-1", labels={"app": "app"})]

    placement = placed([*world, *_virtual(2, "100m", **spec)])

    assert placement.on_nodes == {}
    assert len(placement.claims) == 2


def test_calling_a_scheduler_twice_gives_the_same_result() -> None:
    world = [a_pool(), *a_node("n-1", cpu="2"), *pods(3, cpu="500m"), *_virtual(3, "500m")]
    scheduler, cluster = a_scheduler(world)

    first, second = (scheduler.place(Question(pods=cluster.pending)) for _ in range(2))

    assert first.on_nodes == second.on_nodes
    assert [c.pods for c in first.claims] == [c.pods for c in second.claims]
