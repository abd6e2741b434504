"""Pods: their requests, node constraints, and protection from disruption.

The predicates are Karpenter's (``pkg/utils/pod/scheduling.go``); ``now`` is always a parameter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.model.duration import parse_duration
from reconciler.model.karpenter.labels import (
    DISRUPTION_COST,
    DO_NOT_DISRUPT,
    FAKE_POD,
    POD_DELETION_COST,
)
from reconciler.model.kubernetes.metadata import Condition, LabelSelector, Metadata, condition
from reconciler.model.kubernetes.taint import DISRUPTED, Toleration
from reconciler.model.resources import (
    CPU,
    HUGEPAGES,
    MEMORY,
    PODS,
    Resources,
    add_resources,
    maximum_resources,
    parse_resources,
    pod_amount,
)

_STUCK_AFTER: Final = timedelta(seconds=60)


class DeviceClaim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A reference by a container to one of its pod's ResourceClaims."""

    name: str = ""


class PodClaim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A ResourceClaim of a pod: one that exists, or one of its own from a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The claim that was created for a pod from a template."""

    name: str = ""
    resource_claim_name: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A port that a pod uses on its node, on one address or on all."""

    ip: str
    port: int
    protocol: str = "TCP"

    def __str__(self) -> str:
        return f"IP={self.ip} Port={self.port} Proto={self.protocol}"


Amounts = dict[str, str | int | float]


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of a pod in the API's spelling."""


class ResourceRequirements(_Struct, frozen=True):
    requests: Amounts = {}
    limits: Amounts = {}
    claims: tuple[DeviceClaim, ...] = ()


class ContainerPort(_Struct, frozen=True):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(_Struct, frozen=True):
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str | None = None


class NodeSelectorExpression(_Struct, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(_Struct, frozen=True):
    match_expressions: tuple[NodeSelectorExpression, ...] = ()
    match_fields: tuple[NodeSelectorExpression, ...] = ()


class NodeSelector(_Struct, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredNodeTerm(_Struct, frozen=True):
    weight: int = 1
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(_Struct, frozen=True):
    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredNodeTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(_Struct, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(_Struct, frozen=True):
    weight: int = 1
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(_Struct, frozen=True):
    """Pod affinity; anti-affinity has the same form."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Struct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(_Struct, frozen=True):
    topology_key: str
    max_skew: int = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None

    @property
    def is_hard(self) -> bool:
        """Whether a pod that would violate it stays pending."""
        return self.when_unsatisfiable == "DoNotSchedule"


class PersistentVolumeClaimSource(_Struct, frozen=True):
    claim_name: str = ""


class ClaimResources(_Struct, frozen=True):
    requests: Amounts = {}


class ClaimSpec(_Struct, frozen=True):
    """The spec of a PersistentVolumeClaim; without a class name it gets the default class."""

    storage_class_name: str | None = None
    volume_name: str = ""
    access_modes: tuple[str, ...] = ()
    resources: ClaimResources = ClaimResources()
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"


class VolumeClaimTemplate(_Struct, frozen=True):
    spec: ClaimSpec = ClaimSpec()


class EphemeralVolumeSource(_Struct, frozen=True):
    volume_claim_template: VolumeClaimTemplate | None = None


class Volume(_Struct, frozen=True):
    """A volume that may need a PersistentVolumeClaim; other kinds have neither source."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralVolumeSource | None = None


class SchedulingGate(_Struct, frozen=True):
    name: str = ""


class PodSpec(_Struct, frozen=True):
    """The parts of a pod's spec that decisions depend on; pods of one workload have equal ones."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    volumes: tuple[Volume, ...] = ()
    overhead: Amounts = {}
    resources: ResourceRequirements | None = None
    resource_claims: tuple[PodClaim, ...] = ()
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None

    @property
    def required_node_terms(self) -> tuple[NodeSelectorTerm, ...]:
        """The terms of which a node must match one, none if it states none."""
        node = self.affinity.node_affinity if self.affinity is not None else None
        return node.required.node_selector_terms if node and node.required else ()

    @property
    def claims_devices(self) -> bool:
        """Whether it requests devices by ResourceClaim (dynamic resource allocation)."""
        if self.resource_claims:
            return True
        return any(c.resources.claims for c in (*self.init_containers, *self.containers))


class ContainerStatus(_Struct, frozen=True):
    name: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: Amounts = {}


class PodStatus(_Struct, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    start_time: datetime | None = None
    resize: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()


UNSCHEDULABLE: Final = PodStatus(
    phase="Pending", conditions=(Condition("PodScheduled", "False", "Unschedulable"),)
)
"""The status of a pod for which the scheduler has found no node."""


class Pod(_Struct, frozen=True):
    """A pod of the cluster, or of a workload in the repository."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """``namespace/name``; objects without a namespace are in ``default``."""
        metadata = self.metadata  # no properties: called very often
        return f"{metadata.namespace or 'default'}/{metadata.name}"

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or "default"

    @property
    def is_terminal(self) -> bool:
        return self.status.phase in ("Failed", "Succeeded")

    @property
    def is_terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def is_active(self) -> bool:
        return not self.is_terminal and not self.is_terminating

    @property
    def is_unscheduled(self) -> bool:
        """Whether it is to run, and not bound to a node."""
        return self.is_active and not self.spec.node_name

    @property
    def is_daemon(self) -> bool:
        return self.metadata.is_owned_by("apps/v1", "DaemonSet")

    @property
    def is_mirror(self) -> bool:
        """Whether a kubelet runs it from a file (a static pod)."""
        return self.metadata.is_owned_by("v1", "Node")

    @property
    def is_virtual(self) -> bool:
        """Whether it represents the capacity of a CapacityBuffer, and never runs."""
        return self.metadata.annotations.get(FAKE_POD) == "true"

    @property
    def is_provisionable(self) -> bool:
        """Whether the scheduler found no node for it, and a new node may help."""
        if self.spec.node_name or self.status.nominated_node_name:
            return False
        for c in self.status.conditions:
            if c.type == "PodScheduled" and c.reason == "Unschedulable":
                return not self.is_daemon and not self.is_mirror
        return False

    @property
    def is_reschedulable(self) -> bool:
        """Whether it needs another node when its node is removed."""
        is_stateful = self.is_terminating and self.metadata.is_owned_by("apps/v1", "StatefulSet")
        needs_to_run = self.is_active or (is_stateful and not self.is_terminal)
        return needs_to_run and not self.is_daemon and not self.is_mirror

    @property
    def tolerates_disruption(self) -> bool:
        """Whether it tolerates the taint of nodes being disrupted, and so is not evicted."""
        return any(t.tolerates(DISRUPTED) for t in self.spec.tolerations)

    def do_not_disrupt(self, now: datetime) -> bool:
        """Return whether the annotation protects it at ``now``.

        ``true`` protects permanently, a positive duration from the pod's start. An invalid duration
        does not protect; a pod without a start time is protected, to be safe.
        """
        text = self.metadata.annotations.get(DO_NOT_DISRUPT)
        if text is None or text == "true":
            return text is not None
        try:
            duration = parse_duration(text)
        except ValueError:
            return False
        if duration <= timedelta(0):
            return False
        started = self.status.start_time
        return started is None or now - started < duration

    def is_disruptable(self, now: datetime) -> bool:
        """Return whether the annotation does not protect it."""
        return not self.is_active or not self.do_not_disrupt(now)

    def is_evictable(self, now: datetime) -> bool:
        """Return whether a drain would evict it through the eviction API."""
        if not self.is_active or self.tolerates_disruption or self.is_mirror:
            return False
        return not self.do_not_disrupt(now)

    def is_stuck_terminating(self, now: datetime) -> bool:
        """Return whether it should have terminated at least a minute ago."""
        deleted = self.metadata.deletion_timestamp
        return deleted is not None and now - deleted > _STUCK_AFTER

    def is_drainable(self, now: datetime) -> bool:
        """Return whether a drain waits for it to terminate."""
        if self.tolerates_disruption or self.is_mirror:
            return False
        return not self.is_stuck_terminating(now)

    def eviction_cost(self) -> float:
        """Return the cost of evicting this pod, from -10 to 10; 1 for an ordinary one.

        What is not a number counts as nothing: it could not be compared with the cost of others.
        """
        cost = 1.0
        annotations = self.metadata.annotations
        if DISRUPTION_COST in annotations:
            own = _int32(annotations[DISRUPTION_COST])
            cost += 0.0 if own is None else own / 2.0**27
        elif POD_DELETION_COST in annotations:
            with suppress(ValueError):
                own_cost = float(annotations[POD_DELETION_COST]) / 2.0**27
                cost += 0.0 if math.isnan(own_cost) else own_cost
        if self.spec.priority is not None:
            cost += self.spec.priority / 2.0**25
        return min(max(cost, -10.0), 10.0)

    def host_ports(self) -> tuple[HostPort, ...]:
        """Return the host ports that it uses; of init containers, those of sidecars count."""
        sidecars = (c for c in self.spec.init_containers if c.restart_policy == "Always")
        return tuple(
            HostPort(port.host_ip or "0.0.0.0", port.host_port, port.protocol or "TCP")  # noqa: S104 - Kubernetes' own default
            for container in (*self.spec.containers, *sidecars)
            for port in container.ports
            if port.host_port
        )

    def requests(self) -> Resources:
        """Return its requests, including ``pods``.

        Containers are added up. Init containers run before them, one after another, beside the
        sidecars started so far. A pod-level request replaces cpu, memory and huge pages. The
        runtime's overhead is added (Kubernetes component-helpers ``PodRequests``).
        """
        spec = self.spec
        statuses = {s.name: s for s in self.status.container_statuses}
        infeasible = self.status.resize == "Infeasible"
        total = add_resources(
            *(
                _peak_container_requests(c, statuses.get(c.name), infeasible)
                for c in spec.containers
            )
        )
        if spec.init_containers:
            inits = [(_container_requests(c), c.restart_policy) for c in spec.init_containers]
            total = with_init_containers(total, inits)
        if spec.resources is not None:
            total |= _pod_level_requests(spec.resources)
        if spec.overhead:
            total = add_resources(total, parse_resources(spec.overhead))
        total[PODS] = total.get(PODS, 0) + pod_amount(1)
        return total


def _int32(text: str) -> int | None:
    """Return a decimal integer of 32 bits, None for any other text."""
    if re.fullmatch(r"[+-]?[0-9]{1,20}", text, re.ASCII) is None:
        return None
    value = int(text)
    return value if -(2**31) <= value < 2**31 else None


def _container_requests(container: Container) -> Resources:
    """Return its requests; a limit without a request counts as one, as in the API server."""
    declared = container.resources
    if not declared.limits:
        return parse_resources(declared.requests)
    return parse_resources({**declared.limits, **declared.requests})


def _peak_container_requests(
    container: Container, status: ContainerStatus | None, infeasible: bool
) -> Resources:
    """Return the most that a container may use while it is being resized."""
    requests = _container_requests(container)
    if status is None or status.resources is None:
        return requests
    lists = [
        parse_resources(status.resources.requests),
        parse_resources(status.allocated_resources),
    ]
    return maximum_resources(lists if infeasible else [requests, *lists])


def with_init_containers(
    containers: Resources, inits: Iterable[tuple[Resources, str | None]]
) -> Resources:
    """Return the peak requests of a pod whose containers request ``containers``.

    ``inits`` are the init containers in order, each with its restart policy: ``Always`` makes it a
    sidecar that keeps running.
    """
    sidecars: Resources = {}
    peaks: list[Resources] = []
    for amounts, restart_policy in inits:
        if restart_policy == "Always":
            sidecars = add_resources(sidecars, amounts)
            peaks.append(sidecars)
        else:
            peaks.append(add_resources(amounts, sidecars))
    return maximum_resources([add_resources(containers, sidecars), *peaks])


def _pod_level_requests(declared: ResourceRequirements) -> Resources:
    """Return the requests of a pod as a whole, which replace those of its containers."""
    requested = parse_resources({**declared.limits, **declared.requests})
    return {n: v for n, v in requested.items() if n in (CPU, MEMORY) or n.startswith(HUGEPAGES)}


def is_ready_false(pod: Pod) -> bool:
    """Return whether the pod reports that it is not ready (missing is not False)."""
    ready = condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "False"
