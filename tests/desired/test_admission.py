"""What the API server, quotas and owners make of the pods of a folder."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.workloads.pods import Workloads, workloads_of
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import format_resources

Data = dict[str, Any]


def an_object(api_version: str, kind: str, name: str = "x", **fields: Any) -> Data:
    metadata = {"name": name, "namespace": "shop", **fields.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def a_deployment(
    replicas: int = 1, requests: Data | None = None, limits: Data | None = None, **spec: Any
) -> Data:
    resources = {"requests": requests or {}, "limits": limits or {}}
    container = {"name": "c", "image": "x", "resources": resources}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container], **spec}}
    return an_object(
        "apps/v1", "Deployment", "web",
        spec={
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template,
        },
    )  # fmt: skip


def a_limit_range(**item: Any) -> Data:
    return an_object("v1", "LimitRange", spec={"limits": [{"type": "Container", **item}]})


def a_quota(hard: Data, name: str = "q", **spec: Any) -> Data:
    return an_object("v1", "ResourceQuota", name, spec={"hard": hard, **spec})


def expand(*objects: Data) -> tuple[Workloads, list[Diagnostic]]:
    """Return the workloads of these objects, and every finding but notes."""
    files = [SourceFile(f"{n:02}.json", json.dumps(o).encode()) for n, o in enumerate(objects)]
    fleet, findings = read_fleet(files, allow_empty=True)
    made, more = workloads_of(fleet)
    return made, [d for d in (*findings, *more) if d.code != "empty-fleet"]


def only_pod(*objects: Data) -> Pod:
    made, findings = expand(*objects)
    assert [f for f in findings if f.severity is Severity.ERROR] == []
    (pod,) = made.pods
    return pod


def requests_of(pod: Pod) -> Data:
    return format_resources({n: v for n, v in pod.requests().items() if n != "pods"})


@pytest.mark.parametrize(
    ("item", "requests", "limits", "expected"),
    [
        ({"defaultRequest": {"cpu": "200m"}}, {}, {}, {"cpu": "200m"}),
        ({"default": {"cpu": "1"}}, {}, {}, {"cpu": "1"}),
        ({"max": {"cpu": "2"}}, {}, {}, {"cpu": "2"}),
        ({"min": {"cpu": "50m"}, "max": {"cpu": "2"}}, {}, {}, {"cpu": "2"}),
        ({"min": {"cpu": "50m"}}, {}, {}, {"cpu": "50m"}),
        ({"default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}}, {}, {}, {"cpu": "100m"}),
        ({"defaultRequest": {"cpu": "100m"}}, {"cpu": "3"}, {}, {"cpu": "3"}),
        ({"defaultRequest": {"cpu": "100m"}}, {}, {"cpu": "3"}, {"cpu": "3"}),
    ],
)
def test_a_limit_range_sets_default_requests(
    item: Data, requests: Data, limits: Data, expected: Data
) -> None:
    pod = only_pod(a_limit_range(**item), a_deployment(1, requests, limits))
    assert requests_of(pod) == expected


@pytest.mark.parametrize(
    ("item", "requests", "limits", "why"),
    [
        ({"max": {"cpu": "2"}}, {"cpu": "3"}, {"cpu": "3"}, "the maximum of cpu is 2"),
        ({"min": {"cpu": "1"}}, {"cpu": "500m"}, {}, "the minimum of cpu is 1"),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}}, {"cpu": "1"}, {"cpu": "3"},
            "the maximum ratio of limit to request of cpu is 2",
        ),
        (
            {"type": "Pod", "max": {"memory": "1Gi"}}, {"memory": "2Gi"}, {"memory": "2Gi"},
            "the maximum of memory is 1Gi of all containers",
        ),
        (
            {"type": "Pod", "max": {"memory": "1Gi"}}, {"memory": "100Mi"}, {},
            "and there is no limit",
        ),
    ],
)  # fmt: skip
def test_a_pod_outside_a_limit_range_is_never_created(
    item: Data, requests: Data, limits: Data, why: str
) -> None:
    made, (finding,) = expand(a_limit_range(**item), a_deployment(4, requests, limits))
    assert made.pods == ()
    assert (finding.severity, finding.code) == (Severity.WARNING, "pod-rejected")
    assert finding.message.startswith("4 pods of Deployment shop/web are never created: ")
    assert why in finding.message


def test_a_limit_range_of_another_namespace_does_not_count() -> None:
    other = a_limit_range(defaultRequest={"cpu": "4"})
    other["metadata"]["namespace"] = "other"
    assert requests_of(only_pod(other, a_deployment(1, {"cpu": "1"}))) == {"cpu": "1"}


def test_a_daemon_set_is_admitted_like_its_pods() -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
    daemon = an_object("apps/v1", "DaemonSet", spec={"template": template})
    made, _ = expand(a_limit_range(defaultRequest={"cpu": "250m"}), daemon)
    assert requests_of(made.daemon_sets[0].pod()) == {"cpu": "250m"}


RUNTIME: Final = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "kata"},
    "handler": "kata",
    "overhead": {"podFixed": {"cpu": "250m", "memory": "160Mi"}},
    "scheduling": {"nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata"}]},
}


def test_a_runtime_class_adds_overhead_node_selector_and_tolerations() -> None:
    toleration = {**RUNTIME, "scheduling": {
        "nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata", "operator": "Exists"}],
    }}  # fmt: skip
    pod = only_pod(toleration, a_deployment(1, {"cpu": "1"}, runtimeClassName="kata"))
    assert requests_of(pod) == {"cpu": "1250m", "memory": "160Mi"}
    assert pod.spec.node_selector == {"kata": "yes"}
    assert [t.key for t in pod.spec.tolerations] == ["kata"]


def test_a_pod_that_contradicts_its_runtime_class_is_never_created() -> None:
    runtime = {**RUNTIME, "scheduling": {"nodeSelector": {"kata": "yes"}}}
    deployment = a_deployment(1, {"cpu": "1"}, runtimeClassName="kata", nodeSelector={"kata": "no"})
    made, (finding,) = expand(runtime, deployment)
    assert made.pods == ()
    assert "conflicts with RuntimeClass kata: kata=yes" in finding.message


def test_a_missing_runtime_class_is_a_warning() -> None:
    made, (finding,) = expand(a_deployment(1, {"cpu": "1"}, runtimeClassName="gvisor"))
    assert len(made.pods) == 1
    assert (finding.severity, finding.code) == (Severity.WARNING, "missing-runtimeclass")


def _affinity(*terms: str) -> dict[str, Any]:
    selected = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": ["windows"]}]}
        for key in terms
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": selected}}
    return {"nodeAffinity": required}


WINDOWS: Final = {
    **RUNTIME,
    "metadata": {"name": "windows"},
    "overhead": {},
    "scheduling": {"nodeSelector": {"kubernetes.io/os": "windows"}},
}


@pytest.mark.parametrize(
    ("spec", "is_reported"),
    [
        ({"os": {"name": "windows"}}, True),
        ({"os": {"name": "windows"}, "nodeSelector": {"team": "shop"}}, True),
        ({"os": {"name": "windows"}, "nodeSelector": {"kubernetes.io/os": "windows"}}, False),
        ({"os": {"name": "windows"}, "nodeSelector": {"beta.kubernetes.io/os": "windows"}}, False),
        ({"os": {"name": "windows"}, "runtimeClassName": "windows"}, False),
        ({"os": {"name": "windows"}, "affinity": _affinity("kubernetes.io/os")}, False),
        ({"os": {"name": "windows"}, "affinity": _affinity("kubernetes.io/os", "team")}, True),
        ({"os": {"name": "linux"}}, False),
        ({}, False),
    ],
)
def test_pods_for_windows_that_select_no_such_nodes_are_reported(
    spec: dict[str, Any], is_reported: bool
) -> None:
    made, findings = expand(WINDOWS, a_deployment(2, {"cpu": "1"}, **spec))
    assert len(made.pods) == 2
    assert [f.code for f in findings] == ["unselected-os"] * is_reported


def test_the_annotation_of_a_namespace_selects_nodes() -> None:
    annotations = {"scheduler.alpha.kubernetes.io/node-selector": "team=shop, disk=ssd"}
    namespace = {
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "shop", "annotations": annotations},
    }  # fmt: skip
    pod = only_pod(namespace, a_deployment(1, {"cpu": "1"}, nodeSelector={"disk": "ssd"}))
    assert pod.spec.node_selector == {"team": "shop", "disk": "ssd"}
    made, (finding,) = expand(
        namespace, a_deployment(1, {"cpu": "1"}, nodeSelector={"disk": "hdd"})
    )
    assert made.pods == ()
    assert "disk=hdd conflicts with the annotation of Namespace shop" in finding.message


def test_the_default_priority_class_counts_for_pods_without_one() -> None:
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value, "globalDefault": value == 7,
        }
        for name, value in (("low", 7), ("high", 900))
    ]  # fmt: skip
    assert only_pod(*classes, a_deployment(1, {"cpu": "1"})).spec.priority == 7
    high = a_deployment(1, {"cpu": "1"}, priorityClassName="high")
    assert only_pod(*classes, high).spec.priority == 900


def test_of_two_default_priority_classes_the_lower_one_counts() -> None:
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value, "globalDefault": True,
        }
        for name, value in (("high", 900), ("low", 7))
    ]  # fmt: skip
    assert only_pod(*classes, a_deployment(1, {"cpu": "1"})).spec.priority == 7


def test_pods_tolerate_taints_named_like_their_extended_resources() -> None:
    pod = only_pod(a_deployment(1, limits={"nvidia.com/gpu": 1, "cpu": "1"}))
    assert [(t.key, t.operator) for t in pod.spec.tolerations] == [("nvidia.com/gpu", "Exists")]


def a_vpa(update_mode: str, **policy: Any) -> Data:
    spec: Data = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "updatePolicy": {"updateMode": update_mode},
    }
    if policy:
        spec["resourcePolicy"] = {"containerPolicies": [{"containerName": "c", **policy}]}
    rows = [{"containerName": "c", "target": {"cpu": "1500m", "memory": "3Gi"}}]
    status = {"recommendation": {"containerRecommendations": rows}}
    return an_object("autoscaling.k8s.io/v1", "VerticalPodAutoscaler", spec=spec, status=status)


@pytest.mark.parametrize(
    ("vpa", "expected"),
    [
        (a_vpa("Off"), {"cpu": "1", "memory": "1Gi"}),
        (a_vpa("Auto"), {"cpu": "1500m", "memory": "3Gi"}),
        (a_vpa("Initial"), {"cpu": "1500m", "memory": "3Gi"}),
        (a_vpa("InPlace"), {"cpu": "1500m", "memory": "3Gi"}),
        (a_vpa("Recreate", mode="Off"), {"cpu": "1", "memory": "1Gi"}),
        (a_vpa("Auto", maxAllowed={"memory": "2Gi"}), {"cpu": "1500m", "memory": "2Gi"}),
        (a_vpa("Auto", controlledResources=["cpu"]), {"cpu": "1500m", "memory": "1Gi"}),
    ],
)
def test_the_recommendation_of_a_vertical_autoscaler_counts(vpa: Data, expected: Data) -> None:
    pod = only_pod(vpa, a_deployment(1, {"cpu": "1", "memory": "1Gi"}))
    assert requests_of(pod) == expected


@pytest.mark.parametrize(
    ("hard", "created"),
    [
        ({"requests.cpu": "8"}, 4),
        ({"cpu": "7"}, 3),
        ({"pods": "5"}, 5),
        ({"count/pods": "2"}, 2),
        ({"limits.memory": "3Gi"}, 3),
        ({"requests.cpu": "8", "pods": "1"}, 1),
        ({"requests.nvidia.com/gpu": "0"}, 10),
        ({"count/deployments.apps": "0"}, 10),
    ],
)
def test_pods_beyond_a_quota_are_never_created(hard: Data, created: int) -> None:
    deployment = a_deployment(10, {"cpu": "2", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"})
    made, findings = expand(a_quota(hard), deployment)
    assert len(made.pods) == created
    if created == 10:
        assert findings == []
    else:
        (finding,) = findings
        assert finding.code == "quota-exceeded"
        assert f"{10 - created} pods of Deployment shop/web are never created" in finding.message


def test_a_quota_counts_the_pods_of_all_workloads_of_its_namespace() -> None:
    second = a_deployment(4, {"cpu": "1"})
    second["metadata"]["name"] = "worker"
    made, _ = expand(a_quota({"requests.cpu": "6"}), a_deployment(4, {"cpu": "1"}), second)
    assert len(made.pods) == 6


def test_a_quota_on_cpu_rejects_pods_that_state_none() -> None:
    made, findings = expand(a_quota({"requests.cpu": "8"}), a_deployment(2, {"memory": "1Gi"}))
    assert made.pods == ()
    assert [f.code for f in findings] == ["pod-rejected"]
    assert (
        "container c has no requests of cpu, which ResourceQuota q requires" in findings[0].message
    )


@pytest.mark.parametrize(
    ("scope", "created"),
    [
        ({"scopes": ["NotTerminating"]}, 1),
        ({"scopes": ["Terminating"]}, 3),
        ({"scopes": ["BestEffort"]}, 3),
        (
            {"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
            ]}},
            3,
        ),
    ],
)  # fmt: skip
def test_a_quota_counts_only_the_pods_in_its_scopes(scope: Data, created: int) -> None:
    made, _ = expand(a_quota({"pods": "1"}, **scope), a_deployment(3, {"cpu": "1"}))
    assert len(made.pods) == created


def test_pods_without_requests_are_one_warning_with_their_number() -> None:
    made, (finding,) = expand(a_deployment(12))
    assert len(made.pods) == 12
    assert (finding.severity, finding.code) == (Severity.WARNING, "no-requests")
    assert finding.message == "12 pods have no requests: shop/web"


@pytest.mark.parametrize(
    ("field", "severity", "code", "message"),
    [
        (
            {"schedulingGates": [{"name": "example.com/quota"}]},
            Severity.INFO,
            "gated-pods",
            (
                "2 pods have scheduling gates: shop/web; no node is planned for them until the "
                "gates are removed"
            ),
        ),
        (
            {"nodeName": "ip-10-0-0-1"},
            Severity.WARNING,
            "named-node",
            (
                "2 pods have spec.nodeName: shop/web; they run on that node or not at all, so no "
                "node is planned for them"
            ),
        ),
    ],
)
def test_pods_that_the_scheduler_passes_over_are_named(
    field: Data, severity: Severity, code: str, message: str
) -> None:
    workload = a_deployment(2, {"cpu": "1"})
    workload["spec"]["template"]["spec"].update(field)
    _, (finding,) = expand(workload)
    assert (finding.severity, finding.code, finding.message) == (severity, code, message)


def an_owner(kind: str, name: str, api_version: str = "apps/v1") -> Data:
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": "u", "controller": True}
    return {"ownerReferences": [owner]}


def a_pod(name: str = "p", **fields: Any) -> Data:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    return an_object("v1", "Pod", name, spec={"containers": [container]}, **fields)


@pytest.mark.parametrize(
    ("extra", "pods"),
    [
        (a_pod(metadata=an_owner("ReplicaSet", "web-5d4f")), 2),
        (a_pod(metadata=an_owner("ReplicaSet", "other-5d4f")), 3),
        (a_pod(metadata=an_owner("DaemonSet", "agent")), 2),
        (a_pod(metadata=an_owner("Node", "ip-1", "v1")), 2),
        (a_pod(status={"phase": "Succeeded"}), 2),
        (a_pod(status={"phase": "Failed"}), 2),
        (a_pod(status={"phase": "Running"}), 3),
        (a_pod(metadata={"deletionTimestamp": "2026-11-01T12:00:00Z"}), 2),
    ],
)
def test_an_object_that_another_has_made_or_that_ended_is_not_counted(
    extra: Data, pods: int
) -> None:
    made, _ = expand(a_deployment(2, {"cpu": "1"}), extra)
    assert len(made.pods) == pods


def a_job(**fields: Any) -> Data:
    pod = a_pod()["spec"]
    return an_object("batch/v1", "Job", spec={"template": {"spec": pod}}, **fields)


@pytest.mark.parametrize(
    ("conditions", "pods"),
    [([{"type": "Complete", "status": "True"}], 0), ([{"type": "Failed", "status": "True"}], 0),
     ([{"type": "Suspended", "status": "False"}], 1)],
)  # fmt: skip
def test_a_job_that_has_ended_has_no_pods(conditions: list[Data], pods: int) -> None:
    made, _ = expand(a_job(status={"conditions": conditions}))
    assert len(made.pods) == pods


def test_a_job_that_a_cron_job_has_started_still_runs() -> None:
    cron = an_object(
        "batch/v1", "CronJob", "nightly",
        spec={"schedule": "0 3 * * *", "jobTemplate": {"spec": a_job()["spec"]}},
    )  # fmt: skip
    made, _ = expand(cron, a_job(metadata=an_owner("CronJob", "nightly", "batch/v1")))
    assert len(made.pods) == 1


def test_an_object_that_is_not_planned_never_makes_a_fleet_invalid() -> None:
    broken = a_pod(status={"phase": "Succeeded"})
    broken["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "lots"}}
    _, findings = expand(a_deployment(1, {"cpu": "1"}), broken)
    assert [f for f in findings if f.severity is Severity.ERROR] == []


def test_jobs_with_generated_names_have_names_of_their_own() -> None:
    job = a_job(metadata={"name": None, "generateName": "train-"})
    made, _ = expand(job, job)
    names = {pod.metadata.name.rpartition("-")[0] for pod in made.pods}
    assert len(names) == 2
    assert all(name.startswith("train-") for name in names)


def test_ports_in_the_network_of_the_host_are_host_ports() -> None:
    web = a_deployment(requests={"cpu": "1"}, hostNetwork=True)
    pod = web["spec"]["template"]["spec"]
    pod["containers"][0]["ports"] = [{"containerPort": 80}, {"containerPort": 90, "hostPort": 90}]
    pod["initContainers"] = [
        {"name": "s", "image": "x", "restartPolicy": "Always", "ports": [{"containerPort": 70}]},
        {"name": "i", "image": "x", "ports": [{"containerPort": 60}]},
    ]
    assert {port.port for port in only_pod(web).host_ports()} == {70, 80, 90}
    del pod["hostNetwork"]
    assert {port.port for port in only_pod(web).host_ports()} == {90}


@pytest.mark.parametrize(
    ("resources", "cpu"),
    [
        ({"limits": {"cpu": "3"}}, "1"),
        ({"limits": {"cpu": "3"}, "requests": {"cpu": "2"}}, "2"),
        ({"requests": {"cpu": "2"}}, "2"),
    ],
)
def test_the_requests_of_a_pod_as_a_whole_default_to_those_of_its_containers(
    resources: Data, cpu: str
) -> None:
    pod = only_pod(a_deployment(requests={"cpu": "1"}, resources=resources))
    assert format_resources(pod.requests())["cpu"] == cpu


def test_a_pod_without_requests_of_containers_requests_its_limits() -> None:
    pod = only_pod(a_deployment(resources={"limits": {"cpu": "3", "memory": "1Gi"}}))
    assert format_resources(pod.requests()) == {"cpu": "3", "memory": "1Gi", "pods": "1"}


def test_a_default_limit_below_the_request_rejects_the_pod() -> None:
    made, findings = expand(
        a_limit_range(default={"cpu": "500m"}), a_deployment(2, requests={"cpu": "1"})
    )
    assert made.pods == ()
    (found,) = [f for f in findings if f.code == "pod-rejected"]
    assert "the request of cpu is more than its limit 500m" in found.message
