"""The table of kinds: each kind with an object as the documentation of its project describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

from reconciler.desired.fleet import Fleet, SourceFile, read_fleet
from reconciler.desired.workloads.kinds import SCALER_KINDS, WORKLOAD_KINDS
from reconciler.desired.workloads.pods import Workloads, workloads_of
from reconciler.desired.workloads.podsets import MAXIMUM, PRESENT, ReplicaChoice
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import format_resources

FILE: Final = Path(__file__).with_name("workload_kinds.yaml")

CONTAINER: Final = "{name: c, image: x, resources: {requests: {cpu: 500m, memory: 1Gi}}}"
TEMPLATE: Final = "{metadata: {labels: {app: a}}, spec: {containers: [" + CONTAINER + "]}}"
GPU: Final = (
    "{spec: {containers: [{name: c, image: x, resources: {limits: {cpu: 4, memory: 16Gi, "
    "nvidia.com/gpu: 1}}}]}}"
)


def read(*documents: str, config: str = "") -> tuple[Fleet, list[Diagnostic]]:
    """Return the fleet of YAML documents, and its findings without notes."""
    content = "\n---\n".join(documents).replace("TEMPLATE", TEMPLATE).replace("GPU", GPU)
    content = content.replace("CONTAINER", CONTAINER)
    files = [SourceFile("app.yaml", content.encode())]
    if config:
        files.append(SourceFile("reconciler.yaml", config.encode()))
    fleet, findings = read_fleet(files, allow_empty=True)
    return fleet, [
        d for d in findings if d.code not in ("empty-fleet", "skipped-kinds", "owned-objects")
    ]


def expand(*documents: str, choice: ReplicaChoice = PRESENT, config: str = "") -> Workloads:
    fleet, findings = read(*documents, config=config)
    assert findings == []
    made, more = workloads_of(fleet, choice=choice)
    assert [d for d in more if d.severity is Severity.ERROR] == []
    return made


def by_group(pods: tuple[Pod, ...]) -> dict[str, tuple[int, dict[str, str]]]:
    """Return for the name of each set of pods their number and the requests of one."""
    found: dict[str, tuple[int, dict[str, str]]] = {}
    for pod in pods:
        requests = format_resources({n: v for n, v in pod.requests().items() if n != "pods"})
        name = pod.metadata.name.rpartition("-")[0]
        found[name] = (found.get(name, (0, {}))[0] + 1, requests)
    return found


SMALL: Final = {"cpu": "500m", "memory": "1Gi"}
LARGE: Final = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}


class Documented(NamedTuple):
    """An object of a kind, and the pods that its controller makes."""

    document: str
    pods: dict[str, tuple[int, dict[str, str]]]


def read_documented() -> dict[str, Documented]:
    """Return an object of each kind, by API group and kind."""
    found: dict[str, Documented] = {}
    for row in yaml.safe_load(FILE.read_text(encoding="utf-8")):
        item = row["object"]
        group = item["apiVersion"].rpartition("/")[0]
        pods = {name: (p["count"], p["requests"]) for name, p in row["pods"].items()}
        document = yaml.safe_dump(item, default_flow_style=True, width=10**6)
        found[f"{group}/{item['kind']}"] = Documented(document, pods)
    return found


OBJECTS: Final = read_documented()


def test_every_kind_of_the_table_has_an_object() -> None:
    assert sorted(OBJECTS) == sorted(f"{row.group}/{row.kind}" for row in WORKLOAD_KINDS)


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_has_the_pods_that_its_controller_makes(kind: str) -> None:
    document, expected = OBJECTS[kind]
    assert by_group(expand(document).pods) == expected


@pytest.mark.parametrize(
    ("kind", "ranges"),
    [
        ("serving.knative.dev/Service", [("hello", 2, 2, 8)]),
        ("keda.sh/ScaledJob", [("rabbit", 3, 3, 30)]),
        ("ray.io/RayCluster", [("ray/gpu", 0, 0, 2), ("ray/small", 1, 1, 5)]),
        ("ray.io/RayJob", []),
    ],
)
def test_an_object_that_scales_itself_has_a_range(
    kind: str, ranges: list[tuple[str, int, int, int]]
) -> None:
    found = expand(OBJECTS[kind][0]).scaled
    assert [(s.name, s.minimum, s.present, s.maximum) for s in found] == ranges


def test_hosts_of_a_ray_group_are_scaled_together() -> None:
    made = expand(OBJECTS["ray.io/RayCluster"][0], choice=MAXIMUM)
    assert by_group(made.pods)["ray-gpu"] == (8, LARGE)


SCALED: Final = (
    "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector: "
    "{matchLabels: {app: a}}, template: TEMPLATE}}"
)
SCALERS: Final = {
    "HorizontalPodAutoscaler": (
        "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web}, spec: "
        "{scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, minReplicas: 4, "
        "maxReplicas: 12, metrics: []}}"
    ),
    "ScaledObject": (
        "{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {name: web}, spec: "
        "{scaleTargetRef: {name: web}, minReplicaCount: 4, maxReplicaCount: 12, triggers: []}}"
    ),
}


def test_every_kind_of_autoscaler_has_an_object() -> None:
    assert sorted(SCALERS) == sorted(row.kind for row in SCALER_KINDS)


@pytest.mark.parametrize("kind", SCALERS)
@pytest.mark.parametrize(
    ("choice", "count"),
    [
        (PRESENT, 4), (ReplicaChoice(0), 4), (ReplicaChoice(25), 6), (ReplicaChoice(26), 7),
        (MAXIMUM, 12),
    ],
)  # fmt: skip
def test_a_scaled_workload_has_as_many_pods_as_asked_for(
    kind: str, choice: ReplicaChoice, count: int
) -> None:
    made = expand(SCALED, SCALERS[kind], choice=choice)
    assert len(made.pods) == count
    (row,) = made.scaled
    assert (row.kind, row.namespace, row.name, row.by) == (
        "Deployment", "default", "web", f"{kind}/web",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("minReplicas: 4, ", "", (1, 1, 12)),
        ("maxReplicas: 12, ", "maxReplicas: 2, ", (4, 4, 4)),
        (
            "metrics: []}",
            "metrics: []}, status: {currentReplicas: 5, desiredReplicas: 7}",
            (4, 7, 12),
        ),
        ("metrics: []}", "metrics: []}, status: {desiredReplicas: 70}", (4, 12, 12)),
    ],
)
def test_the_range_of_an_autoscaler(field: str, value: str, expected: tuple[int, int, int]) -> None:
    made = expand(SCALED, SCALERS["HorizontalPodAutoscaler"].replace(field, value))
    (row,) = made.scaled
    assert (row.minimum, row.present, row.maximum) == expected
    assert len(made.pods) == expected[1]


def test_a_workload_of_a_dump_has_its_present_replicas() -> None:
    live = SCALED.replace("spec: {selector", "status: {replicas: 9}, spec: {replicas: 9, selector")
    assert len(expand(live, SCALERS["HorizontalPodAutoscaler"]).pods) == 9


def test_an_autoscaler_does_not_scale_a_workload_that_was_set_to_zero() -> None:
    stopped = SCALED.replace("spec: {selector", "spec: {replicas: 0, selector")
    assert expand(stopped, SCALERS["HorizontalPodAutoscaler"]).pods == ()


def test_a_paused_scaled_object_has_a_fixed_number() -> None:
    paused = SCALERS["ScaledObject"].replace(
        "{name: web}, spec",
        "{name: web, annotations: {autoscaling.keda.sh/paused-replicas: '2'}}, spec",
    )
    assert len(expand(SCALED, paused, choice=MAXIMUM).pods) == 2


def test_a_scaled_object_that_is_paused_leaves_the_number_as_it_is() -> None:
    paused = SCALERS["ScaledObject"].replace(
        "{name: web}, spec", "{name: web, annotations: {autoscaling.keda.sh/paused: 'true'}}, spec"
    )
    assert len(expand(SCALED, paused, choice=MAXIMUM).pods) == 1
    both = paused.replace(
        "paused: 'true'", "paused: 'true', autoscaling.keda.sh/paused-replicas: '3'"
    )
    assert len(expand(SCALED, both).pods) == 3


ENDED: Final = {
    "sparkoperator.k8s.io/SparkApplication": ("applicationState: {state: COMPLETED}", True),
    "ray.io/RayJob": ("jobDeploymentStatus: Complete", False),
    "batch.volcano.sh/Job": ("state: {phase: Completed}", True),
    "jobset.x-k8s.io/JobSet": ("conditions: [{type: Completed, status: 'True'}]", True),
    "kubeflow.org/PyTorchJob": ("conditions: [{type: Succeeded, status: 'True'}]", True),
    "kubeflow.org/MPIJob": ("conditions: [{type: Failed, status: 'True'}]", True),
}


@pytest.mark.parametrize("kind", ENDED)
def test_an_object_of_a_dump_that_has_ended_has_no_pods(kind: str) -> None:
    status, is_ended = ENDED[kind]
    document, _ = OBJECTS[kind]
    data = {**yaml.safe_load(document), "status": yaml.safe_load(status)}
    made = expand(yaml.safe_dump(data))
    assert len(made.pods) == (0 if is_ended else len(expand(document).pods))


def test_a_ray_job_that_shuts_its_cluster_down_has_no_pods_after_its_end() -> None:
    data = yaml.safe_load(OBJECTS["ray.io/RayJob"][0])
    data["spec"]["shutdownAfterJobFinishes"] = True
    data["status"] = {"jobDeploymentStatus": "Complete"}
    assert expand(yaml.safe_dump(data)).pods == ()


def test_an_idle_scaled_object_has_fewer_than_its_minimum() -> None:
    idle = SCALERS["ScaledObject"].replace(
        "minReplicaCount: 4", "minReplicaCount: 4, idleReplicaCount: 0"
    )
    assert len(expand(SCALED, idle).pods) == 0


def test_a_rollout_uses_the_template_of_its_deployment() -> None:
    deployment = SCALED.replace("spec: {selector", "spec: {replicas: 0, selector")
    rollout = (
        "{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: canary}, spec: "
        "{replicas: 3, workloadRef: {apiVersion: apps/v1, kind: Deployment, name: web}, strategy: "
        "{canary: {}}}}"
    )
    assert by_group(expand(deployment, rollout).pods) == {"canary": (3, SMALL)}


def test_instances_of_a_cloudnativepg_cluster_keep_apart() -> None:
    pod = expand(OBJECTS["postgresql.cnpg.io/Cluster"][0]).pods[0]
    assert pod.spec.affinity is not None
    assert pod.spec.affinity.pod_anti_affinity is not None
    (term,) = pod.spec.affinity.pod_anti_affinity.required
    assert term.topology_key == "kubernetes.io/hostname"
    assert term.label_selector is not None
    assert term.label_selector.matches(pod.metadata.labels)
    assert pod.spec.node_selector == {"disk": "ssd"}


def test_a_python_application_of_spark_has_more_overhead() -> None:
    document = OBJECTS["sparkoperator.k8s.io/SparkApplication"][0]
    python = document.replace("type: Scala", "type: Python").replace("512m", "10g")
    assert by_group(expand(python).pods)["pi-driver"] == (1, {"cpu": "1", "memory": "14Gi"})


OWN: Final = """
apiVersion: reconciler/v1
kind: Configuration
workloadKinds:
  - apiVersion: example.com/v1
    kind: Widget
    paths:
      each: spec.parts
      template: podTemplate
      replicas: size
      minimum: autoscale.min
      maximum: autoscale.max
"""
WIDGET: Final = (
    "{apiVersion: example.com/v1, kind: Widget, metadata: {name: w}, spec: {parts: [{name: a, "
    "size: 2, podTemplate: TEMPLATE}, {name: b, size: 1, podTemplate: TEMPLATE}]}}"
)


def test_the_configuration_adds_kinds() -> None:
    assert by_group(expand(WIDGET, config=OWN).pods) == {"w-a": (2, SMALL), "w-b": (1, SMALL)}


def test_an_added_kind_may_scale_its_pods() -> None:
    document = WIDGET.replace("name: a, ", "name: a, autoscale: {max: 7}, ")
    (row,) = expand(document, config=OWN).scaled
    assert (row.name, row.minimum, row.present, row.maximum) == ("w/a", 2, 2, 7)


def test_an_unknown_kind_with_a_pod_template_is_a_warning() -> None:
    _, findings = read(WIDGET)
    (finding,) = findings
    assert (finding.severity, finding.code) == (Severity.WARNING, "unknown-workload")
    assert "Widget w" in finding.message


POD_CHANGES: Final = "[{name: kibana, resources: {requests: {cpu: 1}}}]"


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (
            (
                "{apiVersion: kibana.k8s.elastic.co/v1, kind: Kibana, metadata: {name: a}, "
                f"spec: {{count: 2, podTemplate: {{spec: {{containers: {POD_CHANGES}}}}}}}}}"
            ),
            "a pod template",
        ),
        (
            (
                "{apiVersion: kafka.strimzi.io/v1beta2, kind: KafkaConnect, metadata: {name: a}, "
                "spec: {replicas: 3, resources: {limits: {memory: 2Gi}}}}"
            ),
            "requests of containers",
        ),
        (
            (
                "{apiVersion: sparkoperator.k8s.io/v1beta2, kind: ScheduledSparkApplication, "
                "metadata: {name: a}, spec: {schedule: '@daily', template: {type: Scala, "
                "driver: {cores: 1, memory: 512m}, executor: {cores: 1, memory: 512m}}}}"
            ),
            "requests of containers",
        ),
    ],
)
def test_what_an_operator_makes_pods_of_is_a_warning(document: str, shown: str) -> None:
    _, findings = read(document)
    (finding,) = [d for d in findings if d.code == "unknown-workload"]
    assert shown in finding.message


KAFKA: Final = (
    "{{apiVersion: kafka.strimzi.io/v1beta2, kind: Kafka, metadata: {{name: k, annotations: {0}}}, "
    "spec: {{kafka: {{replicas: 3}}, zookeeper: {{replicas: 3}}}}}}"
)
RAY: Final = (
    "{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: r}, spec: {headGroupSpec: "
    "{template: TEMPLATE}, workerGroupSpecs: [{groupName: a, suspend: true, replicas: 5, template: "
    "TEMPLATE}, {groupName: b, numOfHosts: 2, replicas: 2, template: TEMPLATE}]}}"
).replace("TEMPLATE", "{spec: {containers: [{name: m, image: m}]}}")
POSTGRES: Final = (
    "{{apiVersion: postgresql.cnpg.io/v1, kind: Cluster, metadata: {{name: c, annotations: "
    "{{cnpg.io/hibernation: '{0}'}}}}, spec: {{instances: 3}}}}"
)


@pytest.mark.parametrize(
    ("document", "counts"),
    [
        (KAFKA.format("{}"), {"k-kafka": 3, "k-zookeeper": 3}),
        (KAFKA.format("{strimzi.io/node-pools: enabled}"), {"k-zookeeper": 3}),
        (KAFKA.format("{strimzi.io/node-pools: enabled, strimzi.io/kraft: enabled}"), {}),
        (KAFKA.format("{strimzi.io/node-pools: disabled}"), {"k-kafka": 3, "k-zookeeper": 3}),
        (RAY, {"r-head": 1, "r-b": 4}),
        (POSTGRES.format("off"), {"c": 3}),
        (POSTGRES.format("on"), {}),
    ],
)
def test_what_is_suspended_or_made_of_another_object_has_no_pods(
    document: str, counts: dict[str, int]
) -> None:
    assert {name: count for name, (count, _) in by_group(expand(document).pods).items()} == counts


@pytest.mark.parametrize(
    "document",
    [
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: 'containers: [x]'}}",
        (
            "{apiVersion: kyverno.io/v1, kind: ClusterPolicy, metadata: {name: a}, spec: {rules: "
            "[{validate: {pattern: {spec: {containers: [{image: '*'}]}}}}]}}"
        ),
    ],
)
def test_objects_without_pods_are_one_quiet_line(document: str) -> None:
    fleet, findings = read_fleet([SourceFile("a.yaml", document.encode())], allow_empty=True)
    assert fleet.workloads == ()
    codes = {d.code: d.severity for d in findings}
    assert codes == {"empty-fleet": Severity.WARNING, "skipped-kinds": Severity.INFO}


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        (("replicas: 5", "replicas: 1.5"), "wrong-type", "spec.replicas"),
        (("replicas: 5", f"replicas: {2**63}"), "out-of-range", "spec.replicas"),
        (("cpu: 500m", "cpu: 5oom"), "bad-format", ""),
        (("template:", "pods:"), "no-pod-template", ""),
    ],
)
def test_an_error_in_an_operators_object_is_a_finding(
    change: tuple[str, str], code: str, path: str
) -> None:
    document = OBJECTS["argoproj.io/Rollout"][0].replace("TEMPLATE", TEMPLATE).replace(*change)
    _, (finding,) = read(document)
    assert finding.code == code
    assert finding.path.startswith(path)


def test_jobs_of_two_groups_may_have_one_name() -> None:
    job = OBJECTS["batch/Job"][0].replace("name: etl", "name: mpi")
    assert len(expand(job, OBJECTS["batch.volcano.sh/Job"][0]).pods) == 6


@pytest.mark.parametrize(
    ("options", "head"),
    [
        ("enableInTreeAutoscaling: false", {"cpu": "500m", "memory": "1Gi"}),
        ("enableInTreeAutoscaling: true", {"cpu": "1", "memory": "1536Mi"}),
        (
            "enableInTreeAutoscaling: true, autoscalerOptions: {idleTimeoutSeconds: 60}",
            {"cpu": "1", "memory": "1536Mi"},
        ),
        (
            "enableInTreeAutoscaling: true, autoscalerOptions: {resources: {limits: {cpu: 200m}}}",
            {"cpu": "700m", "memory": "1Gi"},
        ),
    ],
)
def test_the_head_of_a_scaled_ray_cluster_has_the_autoscaler(
    options: str, head: dict[str, str]
) -> None:
    document = (
        "{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: ray}, "
        f"spec: {{{options}, headGroupSpec: {{template: TEMPLATE}}}}}}"
    )
    assert by_group(expand(document).pods) == {"ray-head": (1, head)}
