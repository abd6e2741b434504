"""Parts of a cluster with defaults: a test names only what it is about."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from msgspec.structs import replace as with_fields

from reconciler.adapters.simulated.cluster import EmbeddedCluster
from reconciler.adapters.simulated.conditions import START, SimulatedClock
from reconciler.adapters.simulated.memory import MemoryShelf
from reconciler.desired.workloads.pods import Workloads
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from reconciler.model.karpenter.requirements import Requirements, equals
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    DaemonSetSpec,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodTemplate,
)
from reconciler.model.kubernetes.metadata import LabelSelector, Metadata
from reconciler.model.kubernetes.pod import Container, Pod, PodSpec, ResourceRequirements
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance

GIB = 2**30 * 1000


def a_type(name: str) -> InstanceType | None:
    """An instance type of 4 vCPU, 16 GiB and 10 pods."""
    return InstanceType(
        name,
        {"cpu": 4000, "memory": 16 * GIB, "pods": 10_000},
        {},
        Requirements([equals("kubernetes.io/arch", "amd64"), equals("kubernetes.io/os", "linux")]),
    )


def a_pod(name: str, cpu: str = "1", app: str = "web", **spec: object) -> Pod:
    container = Container(resources=ResourceRequirements(requests={"cpu": cpu}))
    defaults: dict[str, object] = {"containers": (container,)}
    return Pod(
        Metadata(name=name, namespace="default", labels={"app": app}),
        PodSpec(**{**defaults, **spec}),
    )


def pods(count: int, cpu: str = "1", app: str = "web", **spec: object) -> tuple[Pod, ...]:
    """The pods of one workload: alike, sharing their parts."""
    first = a_pod(f"{app}-0", cpu, app, **spec)
    return tuple(
        Pod(with_fields(first.metadata, name=f"{app}-{n}"), first.spec) for n in range(count)
    )


def a_budget(name: str = "web", app: str = "web", **spec: object) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        Metadata(name=name, namespace="default"),
        PodDisruptionBudgetSpec(selector=LabelSelector({"app": app}), **spec),
    )


def a_daemon(name: str = "agent", cpu: str = "100m", **spec: object) -> DaemonSet:
    container = Container(resources=ResourceRequirements(requests={"cpu": cpu}))
    template = PodTemplate(spec=PodSpec(containers=(container,), **spec))
    return DaemonSet(Metadata(name=name, namespace="kube-system"), DaemonSetSpec(template))


def an_instance(name: str, zone: str = "us-east-1a", **fields: object) -> Instance:
    instance = Instance(
        id=f"i-{name}",
        instance_type="m7i.xlarge",
        zone=zone,
        capacity_type="on-demand",
        state="running",
        launched_at=START,
        tags={"karpenter.sh/nodepool": "general"},
        private_dns_name=f"{name}.internal",
    )
    return with_fields(instance, **fields)


def a_claim(instance: Instance, **spec: object) -> NodeClaim:
    return NodeClaim(
        Metadata(name=f"claim-{instance.id}", labels={"karpenter.sh/nodepool": "general"}),
        NodeClaimSpec(**spec),
        NodeClaimStatus(provider_id=instance.provider_id),
    )


@dataclass
class Sandbox:
    """A cluster with its instances; ``look`` observes and registers whatever has joined."""

    instances: list[Instance] = field(default_factory=list)
    workloads: Workloads = field(default_factory=Workloads)
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    shelf: MemoryShelf = field(default_factory=MemoryShelf)
    claims: dict[str, NodeClaim] = field(default_factory=dict)
    course: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Kill the cluster's process and start it again on the same shelf."""
        self.cluster = EmbeddedCluster(
            self.shelf, a_type, lambda: self.workloads, self.clock, **self.course
        )

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def observe(self) -> Snapshot:
        for instance in self.instances:
            self.claims.setdefault(instance.id, a_claim(instance))
        alive = {i.id for i in self.instances}
        claims = [claim for identity, claim in self.claims.items() if identity in alive]
        return self.cluster.observe(claims, self.instances)

    def observe_registered(self) -> Snapshot:
        for node in self.observe().nodes:
            self.cluster.register(node.name, self.claims[node.metadata.uid])
        return self.observe()

    def places(self) -> dict[str, str]:
        """The nodes of all pods but daemons, by pod name; pending ones have none."""
        return {
            p.metadata.name: p.spec.node_name
            for p in self.observe_registered().pods
            if not p.is_daemon
        }


def a_sandbox(*workload_pods: Pod, nodes: int = 2, **fields: object) -> Sandbox:
    """Nodes ``n0``, ``n1``… in zones a, b, c in turn, and the workloads."""
    course = {k: fields.pop(k) for k in list(fields) if k.endswith("_s") or k == "chance"}
    instances = [an_instance(f"n{n}", f"us-east-1{'abc'[n % 3]}") for n in range(nodes)]
    ordered = tuple(sorted(workload_pods, key=lambda p: p.metadata.name))
    return Sandbox(instances, Workloads(pods=ordered, **fields), course=course)
