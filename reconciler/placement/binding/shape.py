"""Pods as kube-scheduler's rules see them: pods that no rule distinguishes have one shape.

A cluster has thousands of pods, but few shapes of them. Whatever is computed for a shape (what a
selector matches, which nodes it tolerates, how a node scores) is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.model.kubernetes.pod import (
    Container,
    HostPort,
    NodeSelector,
    Pod,
    PodAffinityTerm,
    PodSpec,
    PreferredNodeTerm,
    ResourceRequirements,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from reconciler.model.kubernetes.profile import DEFAULT_PROFILE, DEFAULT_SCHEDULER, Profile
from reconciler.model.kubernetes.taint import Toleration
from reconciler.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, MILLI, PODS, Resources
from reconciler.placement.binding.verdict import NodeVerdict
from reconciler.placement.topology.peers import Peers

_NON_ZERO: Final = {CPU: "100m", MEMORY: "200Mi"}
"""What a container without a request counts as in scores (``schedutil.DefaultMilliCPURequest``)."""

_PRIORITY_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Amounts:
    """Resources in the units in which kube-scheduler calculates.

    CPU is in millicores, memory and ephemeral storage in bytes; ``others`` are in whole units.
    """

    cpu: int = 0
    memory: int = 0
    ephemeral: int = 0
    others: Mapping[str, int] = field(default_factory=dict)
    pods: int = 0

    @classmethod
    def of(cls, resources: Resources) -> Amounts:
        """Return ``resources``, rounded up to the units."""
        others = {
            name: _whole(amount)
            for name, amount in resources.items()
            if name not in (CPU, MEMORY, EPHEMERAL_STORAGE, PODS)
        }
        return cls(
            resources.get(CPU, 0),
            _whole(resources.get(MEMORY, 0)),
            _whole(resources.get(EPHEMERAL_STORAGE, 0)),
            others,
            _whole(resources.get(PODS, 0)),
        )

    def get(self, name: str) -> int:
        """Return the amount of a resource, 0 if there is none."""
        match name:
            case "cpu":
                return self.cpu
            case "memory":
                return self.memory
            case "ephemeral-storage":
                return self.ephemeral
        return self.others.get(name, 0)


def _whole(milli: int) -> int:
    return -(-milli // MILLI)


@dataclass(eq=False, slots=True)
class PodRequests:
    """What pods request; compared by identity: ``SchedulingShapes`` makes one for equal requests.

    ``requests`` is for the filter. ``non_zero`` is what a bound pod counts as in scores, with a
    default for containers without requests. ``scored`` is the same for the pod that is scheduled:
    kube-scheduler's NodeResourcesFit does not read the requests of a pod as a whole there.
    ``known`` are results for nodes: version, whether the pod fits, score.
    """

    requests: Amounts
    non_zero: Amounts
    scored: Amounts
    known: dict[int, tuple[int, bool, int]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class NodeConstraints:
    """What pods require and prefer of a node whatever runs there; compared by identity.

    ``known`` are the verdicts on nodes. ``allowed`` are the positions of the allowed nodes in the
    search order of the number ``order``.
    """

    selector: Mapping[str, str]
    required: NodeSelector | None
    preferred: tuple[PreferredNodeTerm, ...]
    tolerations: tuple[Toleration, ...]
    known: dict[int, NodeVerdict] = field(default_factory=dict)
    allowed: list[int] = field(default_factory=list)
    order: int = -1


@dataclass(eq=False, slots=True)
class SchedulingShape:
    """Pods that no rule distinguishes, but for their volume claims; compared by identity.

    ``spreads`` are the spread constraints with their selectors; ``is_default_spread`` says that
    they are the defaults of the scheduler. ``is_counted`` is whether a spread counts these pods.
    ``topology_keys`` are those of its affinity and anti-affinity, required or preferred.
    """

    namespace: str
    labels: Mapping[str, str]
    profile: Profile
    demand: PodRequests
    rules: NodeConstraints
    ports: tuple[HostPort, ...]
    spreads: tuple[TopologySpreadConstraint, ...]
    is_default_spread: bool
    is_counted: bool
    priority: int
    affinity: tuple[PodAffinityTerm, ...]
    anti_affinity: tuple[PodAffinityTerm, ...]
    preferred_affinity: tuple[WeightedPodAffinityTerm, ...]
    preferred_anti_affinity: tuple[WeightedPodAffinityTerm, ...]
    topology_keys: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        preferred = (*self.preferred_affinity, *self.preferred_anti_affinity)
        terms = (*self.affinity, *self.anti_affinity, *(w.pod_affinity_term for w in preferred))
        self.topology_keys = frozenset(term.topology_key for term in terms)

    @property
    def has_preferred_terms(self) -> bool:
        """Whether it has preferred affinity or anti-affinity of its own."""
        return bool(self.preferred_affinity or self.preferred_anti_affinity)


_Parts = tuple[object, ...]


class SchedulingShapes:
    """Finds the shape of each pod.

    ``peers`` derives the selectors of default constraints, which the ``profiles`` of the schedulers
    define. ``least_priority`` is the lowest priority of all pods so far, bound or not.
    """

    def __init__(self, peers: Peers, profiles: Mapping[str, Profile]) -> None:
        self._peers = peers
        self._profiles = profiles
        self._by_parts: dict[tuple[object, ...], tuple[_Parts, SchedulingShape]] = {}
        self._by_content: dict[tuple[object, bytes], SchedulingShape] = {}
        self._demands: dict[tuple[int, bytes], PodRequests] = {}
        self._rules: dict[tuple[int, bytes], NodeConstraints] = {}
        self.least_priority = _PRIORITY_MAX

    def of(self, pod: Pod) -> SchedulingShape:
        """Return the shape of a pod."""
        parts = _parts(pod)
        key = (*map(id, parts), pod.namespace, pod.is_terminating)
        known = self._by_parts.get(key)
        if known is None:  # the parts are kept, so that no others get their ids
            known = self._by_parts[key] = (parts, self._by_content_of(pod))
        return known[1]

    def forget(self, number: int) -> None:
        """Forget the results for a node that is gone."""
        for demand in self._demands.values():
            demand.known.pop(number, None)
        for rules in self._rules.values():
            rules.known.pop(number, None)

    def _by_content_of(self, pod: Pod) -> SchedulingShape:
        profile = self._profiles.get(pod.spec.scheduler_name or DEFAULT_SCHEDULER, DEFAULT_PROFILE)
        spreads, is_default = self._spreads(pod, profile.spread)
        own = pod.spec.affinity
        near = own.pod_affinity if own is not None else None
        apart = own.pod_anti_affinity if own is not None else None
        demand, rules = self._demand(pod, profile), self._node_rules(pod.spec, profile)
        ports = pod.host_ports()
        priority, labels = pod.spec.priority or 0, pod.metadata.labels
        key = (pod.namespace, pod.is_terminating, priority, id(demand), id(rules), ports)
        content = msgspec.json.encode((labels, spreads, is_default, near, apart), order="sorted")
        known = self._by_content.get((key, content))
        if known is None:
            self.least_priority = min(self.least_priority, priority)
            known = self._by_content[key, content] = SchedulingShape(
                namespace=pod.namespace,
                labels=labels,
                profile=profile,
                demand=demand,
                rules=rules,
                ports=ports,
                spreads=spreads,
                is_default_spread=is_default,
                is_counted=not pod.is_terminating,
                priority=priority,
                affinity=near.required if near is not None else (),
                anti_affinity=apart.required if apart is not None else (),
                preferred_affinity=near.preferred if near is not None else (),
                preferred_anti_affinity=apart.preferred if apart is not None else (),
            )
        return known

    def _spreads(
        self, pod: Pod, defaults: tuple[TopologySpreadConstraint, ...]
    ) -> tuple[tuple[TopologySpreadConstraint, ...], bool]:
        own = pod.spec.topology_spread_constraints
        if own or not defaults:
            return own, False
        selector = self._peers.selector(pod)
        if selector is None:
            return (), True
        return tuple(replace(rule, label_selector=selector) for rule in defaults), True

    def _demand(self, pod: Pod, profile: Profile) -> PodRequests:
        padded = _with_defaults(pod)
        requests, non_zero = pod.requests(), padded.requests()
        scored = non_zero
        if pod.spec.resources is not None:
            scored = replace(padded, spec=replace(padded.spec, resources=None)).requests()
        key = id(profile), msgspec.json.encode((requests, non_zero, scored), order="sorted")
        known = self._demands.get(key)
        if known is None:
            known = self._demands[key] = PodRequests(
                Amounts.of(requests), Amounts.of(non_zero), Amounts.of(scored)
            )
        return known

    def _node_rules(self, spec: PodSpec, profile: Profile) -> NodeConstraints:
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        content = (spec.node_selector, affinity, spec.tolerations)
        key = id(profile), msgspec.json.encode(content, order="sorted")
        known = self._rules.get(key)
        if known is None:
            known = self._rules[key] = NodeConstraints(
                spec.node_selector,
                affinity.required if affinity is not None else None,
                affinity.preferred if affinity is not None else (),
                spec.tolerations,
            )
        return known


def _parts(pod: Pod) -> _Parts:
    """Return the parts of a pod that its shape depends on; pods of a workload share them."""
    spec, metadata, status = pod.spec, pod.metadata, pod.status
    return (
        metadata.labels,
        metadata.owner_references,
        spec.containers,
        spec.init_containers,
        spec.node_selector,
        spec.affinity,
        spec.tolerations,
        spec.topology_spread_constraints,
        spec.overhead,
        spec.resources,
        spec.priority,
        spec.scheduler_name,
        status.container_statuses,
        status.resize,
    )


def _with_defaults(pod: Pod) -> Pod:
    """Return the pod with a request of every container for CPU and memory."""
    spec = pod.spec
    return replace(
        pod,
        spec=replace(
            spec,
            containers=tuple(map(_with_default_requests, spec.containers)),
            init_containers=tuple(map(_with_default_requests, spec.init_containers)),
        ),
    )


def _with_default_requests(container: Container) -> Container:
    declared = container.resources
    requests = {**_NON_ZERO, **declared.limits, **declared.requests}
    return replace(container, resources=ResourceRequirements(requests, declared.limits))
