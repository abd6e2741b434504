"""Nodes and pods with dull defaults: a test names only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from reconciler.model.kubernetes.metadata import Condition, LabelSelector, Metadata, OwnerReference
from reconciler.model.kubernetes.node import Node, NodeSpec, NodeStatus
from reconciler.model.kubernetes.pod import (
    Affinity,
    Container,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from reconciler.model.kubernetes.profile import DEFAULT_PROFILE, DEFAULT_SCHEDULER, Profile
from reconciler.model.kubernetes.taint import Taint
from reconciler.placement.binding.scheduler import NodeBinder, NodeInfo

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
READY = (Condition("Ready", "True"),)


def a_node(
    name: str,
    zone: str | None = "a",
    *,
    cpu: str = "4",
    memory: str = "8Gi",
    taints: Sequence[Taint] = (),
    unschedulable: bool = False,
    conditions: tuple[Condition, ...] = READY,
    labels: dict[str, str] | None = None,
    **amounts: str,
) -> Node:
    """A node with room for 20 pods; ``zone`` None leaves out the label."""
    zones = {ZONE: zone} if zone is not None else {}
    total = {"cpu": cpu, "memory": memory, "pods": "20", **amounts}
    return Node(
        Metadata(name=name, labels={HOST: name, **zones, **(labels or {})}),
        NodeSpec(taints=tuple(taints), unschedulable=unschedulable),
        NodeStatus(allocatable=total, capacity=total, conditions=conditions),
    )


def a_pod(
    name: str,
    cpu: str = "1",
    memory: str = "2Gi",
    *,
    app: str = "web",
    labels: dict[str, str] | None = None,
    owner: OwnerReference | None = None,
    started: int | None = None,
    deleted: bool = False,
    **spec: object,
) -> Pod:
    """A pod of the app ``web``; ``started`` is the minute at which it started."""
    requests = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v}
    spec.setdefault("containers", (Container(resources=ResourceRequirements(requests)),))
    begin = datetime(2026, 1, 1, 12, started, tzinfo=UTC) if started is not None else None
    return Pod(
        Metadata(
            name=name,
            namespace="shop",
            labels={"app": app, **(labels or {})},
            owner_references=(owner,) if owner is not None else (),
            deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC) if deleted else None,
        ),
        PodSpec(**spec),  # type: ignore[arg-type]
        PodStatus(phase="Running", start_time=begin),
    )


def a_binder(
    *nodes: Node | tuple[Node, Sequence[Pod]],
    profile: Profile = DEFAULT_PROFILE,
    **fields: object,
) -> NodeBinder:
    """A binder for nodes, each alone or with the pods on it."""
    fields.setdefault("profiles", {DEFAULT_SCHEDULER: profile})
    infos = [NodeInfo(*n) if isinstance(n, tuple) else NodeInfo(n) for n in nodes]
    return NodeBinder(infos, **fields)  # type: ignore[arg-type]


def places(binder: NodeBinder, *pods: Pod) -> dict[str, str]:
    """The node of each pod that is bound, by the name of the pod."""
    return {key.removeprefix("shop/"): node.name for key, node in binder.bind(pods).items()}


def selecting(app: str = "web") -> LabelSelector:
    return LabelSelector({"app": app})


def near(app: str = "web", key: str = ZONE) -> Affinity:
    return Affinity(pod_affinity=PodAffinity(required=(PodAffinityTerm(key, selecting(app)),)))


def apart(app: str = "web", key: str = ZONE) -> Affinity:
    return Affinity(pod_anti_affinity=PodAffinity(required=(PodAffinityTerm(key, selecting(app)),)))


def preferring(app: str = "web", key: str = ZONE, weight: int = 10) -> PodAffinity:
    term = PodAffinityTerm(key, selecting(app))
    return PodAffinity(preferred=(WeightedPodAffinityTerm(weight, term),))


def spread(key: str = ZONE, skew: int = 1, **fields: object) -> dict[str, object]:
    fields.setdefault("label_selector", selecting())
    rule = TopologySpreadConstraint(key, skew, **fields)  # type: ignore[arg-type]
    return {"topology_spread_constraints": (rule,)}


SOFT = "ScheduleAnyway"
