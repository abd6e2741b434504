"""The table of kinds: where the pod templates of a workload are, and how many pods it has.

One row describes one kind, as data. ``reconciler.yaml`` may add rows (``workloadKinds``), which is
how an operator that is not listed is supported. Paths are dotted, as in ``spec.template``; ``~``
stands for a dot within a key, and ``|`` separates alternatives. The sources are the API references
of the projects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from reconciler.model.json import JsonObject
from reconciler.source.document import Pointer
from reconciler.source.resource import NAMESPACED, group_of, is_kubernetes


class Naming(StrEnum):
    """How the controller of a kind names and labels its pods."""

    REPLICA_SET = "replica set"
    DEPLOYMENT = "deployment"
    STATEFUL_SET = "stateful set"
    JOB = "job"
    GROUP = "group"
    """The name of the workload, that of the group, and a serial number."""


class PodShape(StrEnum):
    """How the pod of a group is derived from its object."""

    TEMPLATE = "template"
    SPARK = "spark"
    CLOUDNATIVEPG = "cloudnativepg"
    RAY_HEAD = "ray-head"


class Factor(NamedTuple):
    """A number that the count is multiplied by: the value at ``path`` minus ``less``."""

    path: str
    default: int = 1
    less: int = 0


class PodGroup(NamedTuple):
    """Pods of a workload with one template, and where the object states their number.

    ``each`` is a list or mapping: there is one group for each entry, and the other paths start
    there. ``name`` is the path of the entry's name; in a mapping it is the key. Without ``each``,
    ``suffix`` tells apart the groups of one object. ``when`` is a path that must exist.

    ``template`` is a pod template, ``fallback`` the one that is used if it is missing. ``pod`` are
    mappings with fields of a pod spec. ``containers`` are the names of containers that the operator
    adds, each with the path of its resources and its requests if there are none.

    The count is that at ``replicas``, else ``default``, times the ``factors``, at most that at
    ``at_most``. It is scaled between ``minimum`` and ``maximum``, if ``scaled_if`` is true in
    the object. ``present`` is the number that runs now. ``suspended`` is true, or ``on`` or
    ``enabled`` in an annotation, while there are no pods, ``group_suspended`` while an entry
    has none.
    """

    template: str = "spec.template"
    fallback: str = ""
    each: str = ""
    name: str = "name"
    suffix: str = ""
    when: str = ""
    pod: tuple[str, ...] = ()
    containers: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = ()
    shape: PodShape = PodShape.TEMPLATE
    replicas: str = "spec.replicas"
    default: int = 1
    factors: tuple[Factor, ...] = ()
    at_most: str = ""
    minimum: str = ""
    maximum: str = ""
    default_minimum: int = 0
    default_maximum: int | None = None
    scaled_if: str = ""
    present: str = ""
    suspended: str = ""
    group_suspended: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    spread_over_hosts_by: str = ""
    """The label that replicas prefer not to share a host by, if they have no affinity."""

    @property
    def is_scaled(self) -> bool:
        """Whether the object itself states a minimum or a maximum."""
        return bool(self.minimum or self.maximum)


class WorkloadKind(NamedTuple):
    """A kind of workload: its API group, its name, and its groups of pods.

    ``follows`` is the path of a reference to a workload whose template it uses.
    """

    group: str
    kind: str
    groups: tuple[PodGroup, ...]
    naming: Naming = Naming.GROUP
    follows: str = ""

    @property
    def is_kubernetes(self) -> bool:
        """Whether it is a kind of Kubernetes itself, which has a complete schema here."""
        return self.group in ("", "apps", "batch")


class ScalerKind(NamedTuple):
    """A kind that scales another workload: where its target, minimum and maximum are.

    ``present`` are the paths of the number of replicas that it has set, the first that exists.
    ``idle`` is a number below the minimum, which holds while nothing is to be done. ``fixed`` is an
    annotation that sets the number, ``paused`` one with which it leaves the number as it is.
    """

    group: str
    kind: str
    minimum: str
    default_minimum: int
    maximum: str
    default_maximum: int
    target: str = "spec.scaleTargetRef"
    present: tuple[str, ...] = ()
    idle: str = ""
    fixed: str = ""
    paused: str = ""


def _ray(root: str) -> tuple[PodGroup, ...]:
    """Return the groups of a RayCluster whose spec is at ``root``."""
    return (
        PodGroup(
            f"{root}.headGroupSpec.template", suffix="head", replicas="", shape=PodShape.RAY_HEAD,
            suspended="spec.suspend", labels=(("ray.io/node-type", "head"),),
        ),
        PodGroup(
            "template", each=f"{root}.workerGroupSpecs", name="groupName", replicas="replicas",
            default=0, factors=(Factor("numOfHosts"),), minimum="minReplicas",
            maximum="maxReplicas", scaled_if=f"{root}.enableInTreeAutoscaling",
            suspended="spec.suspend", group_suspended="suspend",
            labels=(("ray.io/node-type", "worker"), ("ray.io/group", "{group}")),
        ),
    )  # fmt: skip


def _kubeflow(field: str) -> tuple[PodGroup, ...]:
    """Return the groups of a training job: one for each role of its replicas."""
    return (
        PodGroup(
            "template", each=f"spec.{field}", replicas="replicas",
            suspended="spec.runPolicy.suspend",
            labels=(
                ("training.kubeflow.org/job-name", "{name}"),
                ("training.kubeflow.org/replica-type", "{group}"),
            ),
        ),
    )  # fmt: skip


def _prometheus(container: str, *requests: tuple[str, str], shards: bool = False) -> PodGroup:
    """Return the pods of a kind of the Prometheus operator, which has fields of a pod spec."""
    return PodGroup(
        "", pod=("spec",),
        containers=(
            (container, "spec.resources", requests),
            ("config-reloader", "", (("cpu", "10m"), ("memory", "50Mi"))),
        ),
        factors=(Factor("spec.shards"),) if shards else (),
        labels=(
            ("app.kubernetes.io/name", container),
            ("app.kubernetes.io/instance", "{name}"),
            (container, "{name}"),
        ),
    )  # fmt: skip


def _spark(role: str) -> PodGroup:
    """Return the driver or the executors of a Spark application."""
    return PodGroup(
        f"spec.{role}.template", pod=("spec", f"spec.{role}"), suffix=role, shape=PodShape.SPARK,
        replicas="", suspended="spec.suspend", labels=(("spark-role", role),),
    )  # fmt: skip


_REPLICAS: Final = PodGroup(present="status.replicas")
_KNATIVE: Final = "spec.template.metadata.annotations.autoscaling~knative~dev"
_STRIMZI: Final = (("strimzi.io/cluster", "{name}"), ("strimzi.io/kind", "Kafka"))


def _strimzi_part(
    name: str, path: str, *containers: str, is_replicated: bool = False, suspended: str = ""
) -> PodGroup:
    """Return the pods of a part of a Kafka, one if it has no number; ``containers`` are paths."""
    replicas = f"{path}.replicas" if is_replicated else ""
    return PodGroup(
        "", suffix=name, when=replicas or path, replicas=replicas, pod=(f"{path}.template.pod",),
        containers=tuple(
            (c or name, f"{path}.{c}.resources" if c else f"{path}.resources", ())
            for c in containers or ("",)
        ),
        suspended=suspended, labels=(*_STRIMZI, ("strimzi.io/name", f"{{name}}-{name}")),
    )  # fmt: skip


# fmt: off
WORKLOAD_KINDS: Final = (
    WorkloadKind("apps", "Deployment", (_REPLICAS,), Naming.DEPLOYMENT),
    WorkloadKind("apps", "ReplicaSet", (_REPLICAS,), Naming.REPLICA_SET),
    WorkloadKind("", "ReplicationController", (_REPLICAS,), Naming.REPLICA_SET),
    WorkloadKind("apps", "StatefulSet", (_REPLICAS,), Naming.STATEFUL_SET),
    WorkloadKind(
        "batch", "Job",
        (PodGroup(
            replicas="spec.parallelism", at_most="spec.completions", suspended="spec.suspend",
        ),),
        Naming.JOB,
    ),
    WorkloadKind(
        "argoproj.io", "Rollout", (_REPLICAS,), Naming.DEPLOYMENT,
        follows="spec.workloadRef",
    ),
    WorkloadKind(
        "serving.knative.dev", "Service",
        (PodGroup(
            replicas="", default=0,
            minimum=f"{_KNATIVE}/min-scale|{_KNATIVE}/minScale",
            maximum=f"{_KNATIVE}/max-scale|{_KNATIVE}/maxScale",
            containers=(("queue-proxy", "", (("cpu", "25m"),)),),
            labels=(("serving.knative.dev/service", "{name}"),),
        ),),
    ),
    WorkloadKind(
        "keda.sh", "ScaledJob",
        (PodGroup(
            "spec.jobTargetRef.template", replicas="", default=0,
            factors=(Factor("spec.jobTargetRef.parallelism"),),
            minimum="spec.minReplicaCount", maximum="spec.maxReplicaCount", default_maximum=100,
            labels=(("scaledjob.keda.sh/name", "{name}"),),
        ),),
    ),
    WorkloadKind("ray.io", "RayCluster", _ray("spec")),
    WorkloadKind(
        "ray.io", "RayJob",
        (
            *_ray("spec.rayClusterSpec"),
            PodGroup(
                "spec.submitterPodTemplate", suffix="submitter", replicas="",
                suspended="spec.suspend",
                containers=(
                    ("ray-job-submitter", "", (("cpu", "500m"), ("memory", "200Mi"))),
                ),
            ),
        ),
    ),
    WorkloadKind("ray.io", "RayService", _ray("spec.rayClusterConfig")),
    WorkloadKind(
        "sparkoperator.k8s.io", "SparkApplication",
        (
            _spark("driver"),
            _spark("executor")._replace(
                replicas="spec.executor.instances",
                minimum="spec.dynamicAllocation.minExecutors",
                maximum="spec.dynamicAllocation.maxExecutors",
                scaled_if="spec.dynamicAllocation.enabled",
            ),
        ),
    ),
    WorkloadKind(
        "jobset.x-k8s.io", "JobSet",
        (PodGroup(
            "template.spec.template", each="spec.replicatedJobs",
            replicas="template.spec.parallelism", at_most="template.spec.completions",
            factors=(Factor("replicas"),), suspended="spec.suspend",
            labels=(
                ("jobset.sigs.k8s.io/jobset-name", "{name}"),
                ("jobset.sigs.k8s.io/replicatedjob-name", "{group}"),
            ),
        ),),
    ),
    WorkloadKind(
        "leaderworkerset.x-k8s.io", "LeaderWorkerSet",
        (
            PodGroup(
                "spec.leaderWorkerTemplate.leaderTemplate", suffix="leader",
                fallback="spec.leaderWorkerTemplate.workerTemplate", present="status.replicas",
                labels=(("leaderworkerset.sigs.k8s.io/name", "{name}"),),
            ),
            PodGroup(
                "spec.leaderWorkerTemplate.workerTemplate", suffix="worker",
                factors=(Factor("spec.leaderWorkerTemplate.size", less=1),),
                present="status.replicas",
                labels=(("leaderworkerset.sigs.k8s.io/name", "{name}"),),
            ),
        ),
    ),
    WorkloadKind("kubeflow.org", "MPIJob", _kubeflow("mpiReplicaSpecs")),
    WorkloadKind("kubeflow.org", "PyTorchJob", _kubeflow("pytorchReplicaSpecs")),
    WorkloadKind("kubeflow.org", "TFJob", _kubeflow("tfReplicaSpecs")),
    WorkloadKind("kubeflow.org", "XGBoostJob", _kubeflow("xgbReplicaSpecs")),
    WorkloadKind("kubeflow.org", "PaddleJob", _kubeflow("paddleReplicaSpecs")),
    WorkloadKind("kubeflow.org", "MXJob", _kubeflow("mxReplicaSpecs")),
    WorkloadKind("kubeflow.org", "JAXJob", _kubeflow("jaxReplicaSpecs")),
    WorkloadKind(
        "batch.volcano.sh", "Job",
        (PodGroup(
            "template", each="spec.tasks", replicas="replicas",
            labels=(
                ("volcano.sh/job-name", "{name}"),
                ("volcano.sh/task-spec", "{group}"),
            ),
        ),),
    ),
    WorkloadKind(
        "kafka.strimzi.io", "Kafka",
        (
            _strimzi_part(
                "kafka", "spec.kafka", is_replicated=True,
                suspended="metadata.annotations.strimzi~io/node-pools",  # they have the brokers
            ),
            _strimzi_part(
                "zookeeper", "spec.zookeeper", is_replicated=True,
                suspended="metadata.annotations.strimzi~io/kraft",
            ),
            _strimzi_part(
                "entity-operator", "spec.entityOperator", "topicOperator", "userOperator"
            ),
            _strimzi_part("cruise-control", "spec.cruiseControl"),
            _strimzi_part("kafka-exporter", "spec.kafkaExporter"),
        ),
    ),
    WorkloadKind(
        "kafka.strimzi.io", "KafkaNodePool",
        (PodGroup(
            "", pod=("spec.template.pod",), containers=(("kafka", "spec.resources", ()),),
            labels=(("strimzi.io/kind", "Kafka"), ("strimzi.io/pool-name", "{name}")),
        ),),
    ),
    WorkloadKind("monitoring.coreos.com", "Prometheus", (_prometheus("prometheus", shards=True),)),
    WorkloadKind(
        "monitoring.coreos.com", "Alertmanager", (_prometheus("alertmanager", ("memory", "200Mi")),)
    ),
    WorkloadKind("monitoring.coreos.com", "ThanosRuler", (_prometheus("thanos-ruler"),)),
    WorkloadKind(
        "elasticsearch.k8s.elastic.co", "Elasticsearch",
        (PodGroup(
            "podTemplate", each="spec.nodeSets", replicas="count",
            containers=(("elasticsearch", "", (("memory", "2Gi"),)),),
            labels=(
                ("common.k8s.elastic.co/type", "elasticsearch"),
                ("elasticsearch.k8s.elastic.co/cluster-name", "{name}"),
            ),
            spread_over_hosts_by="elasticsearch.k8s.elastic.co/cluster-name",
        ),),
    ),
    WorkloadKind(
        "postgresql.cnpg.io", "Cluster",
        (PodGroup(
            "", pod=("spec",), containers=(("postgres", "spec.resources", ()),),
            shape=PodShape.CLOUDNATIVEPG, replicas="spec.instances", present="status.instances",
            suspended="metadata.annotations.cnpg~io/hibernation",
            labels=(("cnpg.io/cluster", "{name}"), ("cnpg.io/podRole", "instance")),
        ),),
    ),
)
# fmt: on
"""The kinds that are built in; DaemonSet, CronJob and Pod have rules of their own."""

SCALER_KINDS: Final = (
    ScalerKind(
        "autoscaling", "HorizontalPodAutoscaler", "spec.minReplicas", 1, "spec.maxReplicas", 1,
        present=("status.desiredReplicas", "status.currentReplicas"),
    ),
    ScalerKind(
        "keda.sh", "ScaledObject", "spec.minReplicaCount", 0, "spec.maxReplicaCount", 100,
        idle="spec.idleReplicaCount", fixed="autoscaling.keda.sh/paused-replicas",
        paused="autoscaling.keda.sh/paused",
    ),
)  # fmt: skip
"""The kinds that set the number of replicas of another workload."""

RECOMMENDERS: Final = (("autoscaling.k8s.io", "VerticalPodAutoscaler"),)
"""The kinds that set the requests of another workload."""


class KindTable(NamedTuple):
    """The kinds that make or scale pods, built in and from ``reconciler.yaml``."""

    workloads: dict[tuple[str, str], WorkloadKind]

    def workload(self, api_version: str, kind: str) -> WorkloadKind | None:
        """Return the row of a kind, None if it makes no pods or is unknown."""
        return self.workloads.get((group_of(api_version), kind))

    def reads(self, api_version: str, kind: str) -> bool:
        """Return whether an object of the kind has an effect on a plan without a cluster."""
        if is_kubernetes(api_version, kind):
            return True
        key = (group_of(api_version), kind)
        return key in self.workloads or key in SCALERS or key in RECOMMENDERS

    def object_kind(self, api_version: str, kind: str) -> str:
        """Return a name of the kind that is unique among groups, such as ``Job.batch.volcano.sh``.

        Kinds of Kubernetes and Karpenter are known by their own name.
        """
        is_other = self.reads(api_version, kind) and not is_kubernetes(api_version, kind)
        return f"{kind}.{group_of(api_version)}" if is_other else kind

    def is_namespaced(self, api_version: str, kind: str) -> bool:
        """Return whether the name of such an object is unique only in its namespace."""
        return kind in NAMESPACED or self.object_kind(api_version, kind) != kind


SCALERS: Final = {(row.group, row.kind): row for row in SCALER_KINDS}
BUILT_IN: Final = KindTable({(row.group, row.kind): row for row in WORKLOAD_KINDS})


def kind_table(config: JsonObject) -> KindTable:
    """Return the table with the ``workloadKinds`` of a configuration that fits its schema.

    Rows for one kind are joined, and take the place of a built-in row.
    """
    added: dict[tuple[str, str], list[PodGroup]] = {}
    for row in config.get("workloadKinds") or ():
        key = (group_of(row["apiVersion"]), row["kind"])
        added.setdefault(key, []).append(_group_of_paths(row.get("paths") or {}))
    if not added:
        return BUILT_IN
    rows = {key: WorkloadKind(*key, tuple(groups)) for key, groups in added.items()}
    return KindTable({**BUILT_IN.workloads, **rows})


def _group_of_paths(paths: JsonObject) -> PodGroup:
    resources = paths.get("resources", "")
    return PodGroup(
        template=paths.get("template", "" if resources else "spec.template"),
        each=paths.get("each", ""),
        name=paths.get("name", "name"),
        suffix=paths.get("suffix", ""),
        pod=(paths["pod"],) if "pod" in paths else (),
        containers=(("main", resources, ()),) if resources else (),
        replicas=paths.get("replicas", "spec.replicas"),
        factors=tuple(Factor(path) for path in paths.get("factors") or ()),
        minimum=paths.get("minimum", ""),
        maximum=paths.get("maximum", ""),
        present=paths.get("present", ""),
        suspended=paths.get("suspended", ""),
    )


def pointer_of(path: str) -> Pointer:
    """Return the steps of a dotted path, those of its first alternative."""
    first = path.partition("|")[0]
    return tuple(step.replace("~", ".") for step in first.split(".")) if first else ()


def value_of(data: object, path: str) -> Any:
    """Return the value at a path, that of the first alternative with one; None without any."""
    first, _, others = path.partition("|")
    found = data
    for step in pointer_of(first):
        found = found.get(step) if isinstance(found, dict) else None
    return value_of(data, others) if found is None and others else found


class GroupEntry(NamedTuple):
    """One group of pods in an object: its pointer, its data, and its name ("" for the only one)."""

    pointer: Pointer
    data: object
    name: str


def entries_of(group: PodGroup, data: object) -> Iterator[GroupEntry]:
    """Yield the entries of a group in an object; entries of another form are left out."""
    if not group.each:
        if not group.when or value_of(data, group.when) is not None:
            yield GroupEntry((), data, group.suffix)
        return
    found = value_of(data, group.each)
    pairs: Iterable[tuple[str | int, object]] = ()
    if isinstance(found, dict):
        pairs = found.items()
    elif isinstance(found, list):
        pairs = enumerate(found)
    for key, item in pairs:
        if isinstance(item, dict):
            name = key if isinstance(key, str) else value_of(item, group.name)
            yield GroupEntry((*pointer_of(group.each), key), item, _entry_name(name, key))


def _entry_name(name: object, key: object) -> str:
    return name.lower() if isinstance(name, str) and name else str(key)
