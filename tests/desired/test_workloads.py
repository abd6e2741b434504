"""From the workloads of a folder to the pods that a cluster would have."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.desired.workloads.pods import Workloads, expand
from reconciler.model.diagnostics import Severity
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import CPU, MEMORY
from reconciler.source.resource import Resource

NOW = datetime(2026, 1, 1, tzinfo=UTC)
API = {"Job": "batch/v1", "Pod": "v1", "ReplicationController": "v1"}


def a(kind: str, name: str = "web", namespace: str = "default", **data: Any) -> Resource:
    metadata = {"name": name, **data.pop("metadata", {})}
    content = {"kind": kind, "metadata": metadata, **data}
    return Resource(kind, API.get(kind, "apps/v1"), name, namespace, content, "app.yaml", 3)


def a_template(**spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container], **spec}}


def a_deployment(name: str = "web", replicas: int | None = 2, **spec: Any) -> Resource:
    counted = {} if replicas is None else {"replicas": replicas}
    return a("Deployment", name, spec={**counted, "template": a_template(**spec)})


def a_daemon_set(**spec: Any) -> Resource:
    return a("DaemonSet", "agent", spec={"template": a_template(**spec)})


def pods(*resources: Resource, **options: Any) -> tuple[Pod, ...]:
    workloads, findings = expand(resources, **options)
    assert not [f for f in findings if f.severity is Severity.ERROR]
    return workloads.pods


def names(*resources: Resource) -> list[str]:
    return [pod.key for pod in pods(*resources)]


def test_a_deployments_pods_are_those_of_its_replica_set() -> None:
    first, second = pods(a_deployment(), now=NOW)
    assert (first.key, second.key) == ("default/web-00000", "default/web-00001")
    digest = first.metadata.labels["pod-template-hash"]
    assert first.metadata.labels == {"app": "web", "pod-template-hash": digest}
    (owner,) = first.metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name) == ("apps/v1", "ReplicaSet", f"web-{digest}")
    assert owner.controller
    assert first.is_provisionable
    assert first.status.phase == "Pending"
    assert first.metadata.creation_timestamp == NOW
    assert first.metadata.uid != second.metadata.uid
    assert first.spec is second.spec


def test_a_change_of_the_template_is_another_replica_set() -> None:
    before = pods(a_deployment())[0].metadata.labels
    assert before == pods(a_deployment(replicas=1))[0].metadata.labels
    assert before != pods(a_deployment(nodeSelector={"a": "b"}))[0].metadata.labels


@pytest.mark.parametrize(("replicas", "count"), [(None, 1), (0, 0), (3, 3)])
def test_replicas_default_to_one_and_zero_means_none(replicas: int | None, count: int) -> None:
    assert len(pods(a_deployment(replicas=replicas))) == count


def test_pod_names_sort_in_numeric_order() -> None:
    found = names(a_deployment(replicas=40))
    assert found == sorted(found)
    assert found[10] == "default/web-0000a"
    assert found[36] == "default/web-00010"


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({}, 1),
        ({"parallelism": 4}, 4),
        ({"parallelism": 4, "completions": 2}, 2),
        ({"parallelism": 4, "completions": 9}, 4),
        ({"parallelism": 4, "suspend": True}, 0),
        ({"parallelism": 0}, 0),
    ],
)
def test_a_job_runs_as_many_pods_as_may_run_at_once(spec: dict[str, Any], count: int) -> None:
    found = pods(a("Job", "etl", spec={**spec, "template": a_template()}))
    assert len(found) == count
    assert all(p.metadata.labels["job-name"] == "etl" for p in found)
    assert all(p.metadata.is_owned_by("batch/v1", "Job") for p in found)


def test_an_indexed_job_numbers_its_pods() -> None:
    spec = {"parallelism": 2, "completionMode": "Indexed", "template": a_template()}
    assert names(a("Job", "etl", spec=spec)) == ["default/etl-0", "default/etl-1"]


def test_a_stateful_sets_pods_have_ordinals_and_claims() -> None:
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "gp3"}}
    spec = {
        "replicas": 2,
        "ordinals": {"start": 5},
        "template": a_template(volumes=[{"name": "data"}, {"name": "tmp", "emptyDir": {}}]),
        "volumeClaimTemplates": [claim],
    }
    workloads, findings = expand([a("StatefulSet", "db", spec=spec)])
    assert [f.code for f in findings] == ["assumed-storageclass"]
    assert [p.metadata.name for p in workloads.pods] == ["db-5", "db-6"]
    last = workloads.pods[-1]
    assert last.metadata.labels["apps.kubernetes.io/pod-index"] == "6"
    assert last.metadata.labels["statefulset.kubernetes.io/pod-name"] == "db-6"
    assert [v.name for v in last.spec.volumes] == ["tmp", "data"]
    source = last.spec.volumes[1].persistent_volume_claim
    assert source is not None
    assert source.claim_name == "data-db-6"
    assert [c.key for c in workloads.volume_claims] == ["default/data-db-5", "default/data-db-6"]
    assert workloads.volume_claims[0].spec.storage_class_name == "gp3"


def test_claims_without_a_class_get_the_default_one() -> None:
    mark = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    ephemeral = {"volumeClaimTemplate": {"spec": {}}}
    workloads, _ = expand(
        [
            a("StorageClass", "slow", "", provisioner="ebs.csi.aws.com"),
            a("StorageClass", "usual", "", metadata=mark, provisioner="ebs.csi.aws.com"),
            a("PersistentVolumeClaim", "unset", spec={}),
            a("PersistentVolumeClaim", "none", spec={"storageClassName": ""}),
            a_deployment(replicas=1, volumes=[{"name": "scratch", "ephemeral": ephemeral}]),
        ]
    )
    assert {c.metadata.name: c.spec.storage_class_name for c in workloads.volume_claims} == {
        "unset": "usual",
        "none": "",
        "web-00000-scratch": "usual",
    }


@pytest.mark.parametrize(
    ("spec", "priority"),
    [
        ({}, 5),
        ({"priorityClassName": "high"}, 1000),
        ({"priorityClassName": "system-node-critical"}, 2_000_001_000),
        ({"priorityClassName": "high", "priority": 7}, 7),
    ],
)
def test_a_class_gives_its_priority(spec: dict[str, Any], priority: int) -> None:
    classes = (
        a("PriorityClass", "high", "", value=1000),
        a("PriorityClass", "usual", "", value=5, globalDefault=True),
    )
    workloads, findings = expand([a_deployment(replicas=1, **spec), a_daemon_set(**spec), *classes])
    assert not findings
    assert workloads.pods[0].spec.priority == priority
    assert workloads.daemon_sets[0].pod().spec.priority == priority


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ({}, ""),
        ({"priorityClassName": "polite"}, "Never"),
        (
            {"priorityClassName": "polite", "preemptionPolicy": "PreemptLowerPriority"},
            "PreemptLowerPriority",
        ),
    ],
)
def test_a_class_says_whether_its_pods_evict_others(spec: dict[str, Any], policy: str) -> None:
    polite = a("PriorityClass", "polite", "", value=1000, preemptionPolicy="Never")
    (pod,) = pods(a_deployment(replicas=1, **spec), polite)
    assert pod.spec.preemption_policy == policy


def test_a_missing_priority_class_is_reported_and_counts_as_none() -> None:
    spec = {"priorityClassName": "urgent"}
    workloads, findings = expand([a_deployment(replicas=1, **spec), a_daemon_set(**spec)])
    assert [finding.severity for finding in findings] == [Severity.WARNING] * 2
    assert {finding.code for finding in findings} == {"missing-priorityclass"}
    assert str(findings[0].place) == "app.yaml:3:1"
    assert workloads.pods[0].spec.priority is None


def test_a_pod_keeps_its_name_and_is_pending_whatever_its_status() -> None:
    pod = a("Pod", "once", spec=a_template()["spec"], status={"phase": "Running"})
    gated = a("Pod", "gated", spec={**a_template()["spec"], "schedulingGates": [{"name": "x"}]})
    found = {p.metadata.name: p for p in pods(pod, gated)}
    assert found["once"].is_provisionable
    assert not found["gated"].is_provisionable


def test_limits_are_used_as_requests_if_there_are_none() -> None:
    container = {"name": "a", "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}}
    requests = pods(a_deployment(replicas=1, containers=[container]))[0].requests()
    assert (requests[CPU], requests[MEMORY]) == (2000, 2**30 * 1000)


def test_names_are_unique_across_owners() -> None:
    deployment, job = a_deployment(), a("Job", spec={"parallelism": 2, "template": a_template()})
    found = names(deployment, job)
    assert len(set(found)) == 4
    assert found == names(job, deployment)


def test_objects_of_other_kinds_are_kept_with_the_pods() -> None:
    selector = {"matchLabels": {"app": "web"}}
    workloads, findings = expand(
        [
            a("DaemonSet", "agent", "kube-system", spec={"template": a_template()}),
            a("PodDisruptionBudget", "web", spec={"selector": selector, "minAvailable": 1}),
            a("Namespace", "shop", "", metadata={"labels": {"team": "a"}}),
            a("CSINode", "node-1", "", spec={"drivers": []}),
            a("PersistentVolume", "disk", "", spec={"csi": {"driver": "ebs.csi.aws.com"}}),
            a_deployment(),
        ]
    )
    assert not findings
    assert [d.metadata.namespace for d in workloads.daemon_sets] == ["kube-system"]
    assert workloads.pod_disruption_budgets[0].selects(workloads.pods[0])
    assert [(n.metadata.name, n.metadata.labels) for n in workloads.namespaces] == [
        ("default", {"kubernetes.io/metadata.name": "default"}),
        ("kube-system", {"kubernetes.io/metadata.name": "kube-system"}),
        ("shop", {"team": "a", "kubernetes.io/metadata.name": "shop"}),
    ]
    assert len(workloads.csi_nodes) == len(workloads.volumes) == 1


def test_too_many_pods_are_rejected_before_creation() -> None:
    workloads, (finding,) = expand([a_deployment("a", 10), a_deployment("b", 10**9)])
    assert len(workloads.pods) == 10
    assert (finding.code, finding.severity) == ("too-many-pods", Severity.ERROR)
    assert "Deployment b has 1000000000 pods" in finding.message


def test_an_unreadable_workload_is_a_finding_with_a_path() -> None:
    spec = {"template": a_template(tolerations=[{"operator": 7}])}
    workloads, (finding,) = expand([a("Deployment", spec=spec), a_deployment("other", 1)])
    assert [p.metadata.name for p in workloads.pods] == ["other-00000"]
    assert (finding.code, finding.path) == (
        "wrong-type",
        "spec.template.spec.tolerations[0].operator",
    )
    assert str(finding.place) == "app.yaml:3:1"


@given(st.randoms(use_true_random=False))
def test_the_order_of_the_objects_makes_no_difference(random: Any) -> None:
    resources = [
        a_deployment("a", 2, priorityClassName="p"),
        a_deployment("b", 1),
        a("Job", "a", spec={"template": a_template()}),
        a("PriorityClass", "p", "", value=3),
        a("Namespace", "default", ""),
    ]
    expected: tuple[Workloads, Any] = expand(resources)
    random.shuffle(resources)
    assert expand(resources) == expected
