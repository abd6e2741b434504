"""Group pods that are alike into shapes.

Replicas share everything that a decision reads from a pod, so it is computed once for each shape.
Two pods have the same shape if the relevant parts of their specs are equal, and so are the labels
that any rule reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.kubernetes.cluster import EBS_DRIVER
from reconciler.model.kubernetes.labelsyntax import key_fault, value_fault
from reconciler.model.kubernetes.pod import Container, HostPort, Pod, PodSpec
from reconciler.model.kubernetes.taint import Toleration
from reconciler.model.resources import CPU, MEMORY, Resources
from reconciler.model.text.quoting import quote_value
from reconciler.observed.fingerprint import Pods
from reconciler.observed.state import ClusterState
from reconciler.placement.devices.needs import ClaimReader, DeviceNeeds
from reconciler.placement.nodes.space import Demand, Demands
from reconciler.placement.pods.relaxation import RelaxedPod, relaxation_steps
from reconciler.placement.pods.volumes import (
    NO_VOLUMES,
    VolumeNeeds,
    combine_locations,
    volume_needs,
)
from reconciler.placement.topology.rules import Rule, RuleKind, affinity_rule

CONDITIONS_MAX: Final = 4_000
"""The conditions of a term of node affinity and their values: some four for each instance type."""

RULE_CONDITIONS_MAX: Final = 20_000
"""The topology rules of a pod, times its tolerations and terms of required node affinity."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder(order="deterministic").encode

_SPECS_MAX: Final = 100_000
"""How many specs are remembered."""


class RelaxedShape:
    """A shape's constraints at one relaxation step, with its demands merged into one."""

    __slots__ = ("demand", "dropped", "rules", "strict", "tolerations", "was_preferred")

    def __init__(self, relaxed: RelaxedPod, demands: Demands) -> None:
        self.demand: Demand = demands.demand_for(relaxed.demands)
        self.strict: Requirements = relaxed.strict
        self.tolerations: tuple[Toleration, ...] = relaxed.tolerations
        self.rules: tuple[Rule, ...] = relaxed.rules
        self.dropped = relaxed.dropped
        self.was_preferred = relaxed.was_preferred


class Shape:
    """The requests of pods that are alike; virtual pods never share a shape with real ones.

    ``labels`` are those that some rule reads. ``model`` is one of the pods, for everything they
    share. ``disks`` are their claims for EBS volumes, ``exclusive`` those that only one pod may use
    at a time. ``devices`` are what each pod claims by ResourceClaims. ``repels`` are its required
    anti-affinity terms, as rules for other pods. ``unreadable`` is the parse error of an invalid
    spec; such a shape has no steps.
    """

    __slots__ = (
        "cpu",
        "devices",
        "disks",
        "exclusive",
        "labels",
        "memory",
        "model",
        "namespace",
        "ports",
        "repels",
        "requests",
        "steps",
        "unreadable",
        "volume_demands",
        "volumes",
    )

    def __init__(
        self, pod: Pod, labels: dict[str, str], volumes: VolumeNeeds, requests: Resources
    ) -> None:
        self.model = pod
        self.namespace = pod.namespace
        self.labels: Mapping[str, str] = labels
        self.requests = requests
        self.cpu = requests.get(CPU, 0)
        self.memory = requests.get(MEMORY, 0)
        self.ports: tuple[HostPort, ...] = pod.host_ports()
        self.volumes = volumes
        self.disks = dict(volumes.attached).get(EBS_DRIVER, frozenset())
        self.exclusive: frozenset[str] = frozenset()
        self.devices: DeviceNeeds | None = None
        self.volume_demands: tuple[Demand, ...] = ()
        self.steps: tuple[RelaxedShape, ...] = ()
        self.repels: tuple[Rule, ...] = ()
        self.unreadable: str | None = None

    @property
    def preferences(self) -> tuple[str, ...]:
        """The preferences of its pods for other pods and for nodes."""
        return tuple(step.dropped for step in self.steps if step.was_preferred)


class SpecKeys:
    """The ``spec_key`` of each pod, computed once for the pods that share the parts of a spec.

    It may be kept while pods move and clusters change.
    """

    def __init__(self) -> None:
        self._by_parts: dict[tuple[int, ...], tuple[tuple[object, ...], bytes]] = {}

    def of(self, pod: Pod) -> bytes:
        """Return the pod's ``spec_key``."""
        spec, statuses = pod.spec, pod.status.container_statuses
        if statuses or any(volume.ephemeral is not None for volume in spec.volumes):
            return spec_key(pod)
        parts = (
            spec.containers,
            spec.init_containers,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            spec.volumes,
            spec.overhead,
            spec.resources,
            spec.resource_claims,
        )
        key = tuple(map(id, parts))
        known = self._by_parts.get(key)
        if known is None:  # the parts are kept, so that no others get their ids
            if len(self._by_parts) >= _SPECS_MAX:
                self._by_parts.clear()
            known = self._by_parts[key] = (parts, spec_key(pod))
        return known[1]


class Shapes:
    """Sorts pods into shapes; equal pods always get the same shape object.

    ``respect`` is whether preferences count; ``tolerate_soft_taints`` is whether some NodePool has
    a ``PreferNoSchedule`` taint; ``one_pod_claims`` whether claims for one pod are used by one.
    ``claims`` reads what pods request by ResourceClaims, None if that is ignored.
    ``spec_keys`` are shared with other clusters that have the same pods.
    """

    def __init__(
        self,
        cluster: ClusterState,
        demands: Demands,
        *,
        respect: bool,
        tolerate_soft_taints: bool,
        one_pod_claims: bool = True,
        claims: ClaimReader | None = None,
        spec_keys: SpecKeys | None = None,
    ) -> None:
        self._cluster = cluster
        self._demands = demands
        self._respect = respect
        self._tolerate_soft_taints = tolerate_soft_taints
        self._one_pod_claims = one_pod_claims
        self._claims = claims
        self._keys: tuple[str, ...] = ()
        self._spec_keys = spec_keys if spec_keys is not None else SpecKeys()
        self._known: dict[int, tuple[Pod, Shape]] = {}  # by identity; the entry keeps the id in use
        self._read: set[bytes] = set()
        self._shapes: dict[object, Shape] = {}

    def group(self, pods: Iterable[Pod]) -> dict[Shape, list[Pod]]:
        """Return the pods by shape, in the order in which each first occurs."""
        listed = list(pods)
        known = self._known
        unknown = [pod for pod in listed if id(pod) not in known]
        if unknown:
            self._learn(unknown)
            unknown = [pod for pod in listed if id(pod) not in known]
        if unknown:  # new label keys matter
            self._learn(unknown)
        found: dict[Shape, list[Pod]] = {}
        for pod in listed:
            shape = known[id(pod)][1]
            members = found.get(shape)
            if members is None:
                found[shape] = [pod]
            else:
                members.append(pod)
        return found

    def count(self, pods: Iterable[Pod]) -> dict[Shape, int]:
        """Return the number of pods of each shape."""
        return {shape: len(members) for shape, members in self.group(pods).items()}

    def _learn(self, pods: list[Pod]) -> None:
        """Cache the shape of each pod; clear the cache if new label keys matter."""
        rows = [(pod, self._spec_keys.of(pod)) for pod in pods]
        self._learn_keys(rows)
        keys, shapes, known = self._keys, self._shapes, self._known
        for pod, spec in rows:
            metadata = pod.metadata
            labels = tuple(map(metadata.labels.get, keys))
            key: object = (spec, metadata.namespace or "default", labels, len(keys), pod.is_virtual)
            devices = None
            if pod.spec.resource_claims and self._claims is not None:
                devices = self._claims.needs(pod)
                key = (key, devices)
            shape = shapes.get(key)
            if shape is None:
                shape = shapes[key] = self._make_shape(pod, devices)
            known[id(pod)] = (pod, shape)

    def _learn_keys(self, rows: list[tuple[Pod, bytes]]) -> None:
        """Collect the label keys that the rules of these pods, and of bound pods, read."""
        keys: set[str] = set()
        if not self._read:
            keys.update(anti_affinity_keys(self._cluster))
            self._read.add(b"")
        for pod, spec in rows:
            if spec not in self._read:
                self._read.add(spec)
                keys.update(_selector_keys(pod.spec))
        if not keys.issubset(self._keys):
            self._keys = tuple(sorted(keys.union(self._keys)))
            self._known.clear()

    def _make_shape(self, pod: Pod, devices: DeviceNeeds | None) -> Shape:
        labels = {k: v for k, v in pod.metadata.labels.items() if k in self._keys}
        try:
            _check_labels(pod.spec)
            _check_rules(pod.spec)
            volumes = volume_needs(pod, self._cluster)
            _check_requirements(volumes.alternatives)
            relaxed = relaxation_steps(
                pod.spec,
                pod.namespace,
                pod.metadata.labels,
                self._cluster.namespaces,
                respect=self._respect,
                tolerate_soft_taints=self._tolerate_soft_taints,
            )
            shape = Shape(pod, labels, volumes, pod.requests())
            shape.steps = tuple(RelaxedShape(w, self._demands) for w in relaxed)
        except ValueError as error:
            shape = Shape(pod, labels, NO_VOLUMES, {})
            shape.unreadable = str(error)
            return shape
        places = volumes.alternatives
        if devices is not None:
            shape.devices = devices
            if devices.places:
                own = [[*places]] if places else []
                places = combine_locations([*own, *map(list, devices.places)])
        shape.volume_demands = tuple(self._demands.demand_for(place) for place in places)
        shape.repels = repelling_rules(pod, self._cluster.namespaces)
        if self._one_pod_claims:
            shape.exclusive = volumes.exclusive
        return shape


def _check_labels(spec: PodSpec) -> None:
    """Check the labels that the pod wants on its node, which a new node gets.

    Karpenter refuses such pods as well (``provisioner.go``, ``validateNodeSelectorTerm``), but for
    preferences, which the NodeClaim's schema refuses later. API servers accept them before 1.32.

    Raises:
        ValueError: a key or value is not that of a label.
    """
    for key, value in spec.node_selector.items():
        _check_label(key, (value,), "nodeSelector")
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None:
        return
    terms = [t.preference for t in affinity.preferred]
    if affinity.required is not None:
        terms += affinity.required.node_selector_terms
    for term in terms:
        count = sum(1 + len(item.values) for item in term.match_expressions)
        if count > CONDITIONS_MAX:
            raise ValueError(
                f"node affinity: a term has {count:,} conditions and values; at most "
                f"{CONDITIONS_MAX:,} are allowed"
            )
        for item in term.match_expressions:
            _check_label(item.key, item.values, "node affinity")


def _check_rules(spec: PodSpec) -> None:
    """Check the number of topology rules: each includes the nodes that the pod may use.

    Raises:
        ValueError: they are too many.
    """
    affinity = spec.affinity
    rules, terms = len(spec.topology_spread_constraints), 0
    if affinity is not None:
        for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
            rules += len(side.required) + len(side.preferred) if side is not None else 0
        node = affinity.node_affinity
        terms = len(node.required.node_selector_terms) if node and node.required else 0
    if rules * (len(spec.tolerations) + terms) > RULE_CONDITIONS_MAX:
        raise ValueError(
            f"{rules:,} topology rules with {len(spec.tolerations):,} tolerations and {terms:,} "
            f"terms of node affinity; the product of rules and those may be {RULE_CONDITIONS_MAX:,}"
        )


def _check_requirements(alternatives: Iterable[Requirements]) -> None:
    """Check the labels that the pod's volumes want on its node.

    Raises:
        ValueError: a key or value is not that of a label.
    """
    for requirements in alternatives:
        for item in requirements.values():
            _check_label(item.key, item.values, "node affinity of its volumes")


def _check_label(key: str, values: Iterable[str], where: str) -> None:
    fault = key_fault(key)
    if fault:
        raise ValueError(f"{where}: invalid label {quote_value(key)}: {fault}")
    for value in sorted(values):
        fault = value_fault(value)
        if fault:
            raise ValueError(f"{where}: invalid value {quote_value(value)} of {key}: {fault}")


def repelling_rules(pod: Pod, namespaces: Mapping[str, Mapping[str, str]]) -> tuple[Rule, ...]:
    """Return the pod's required anti-affinity as rules for the pods it selects."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return ()
    return tuple(
        affinity_rule(
            RuleKind.ANTI_AFFINITY, term, pod.spec, pod.namespace, namespaces, inverse=True
        )
        for term in affinity.pod_anti_affinity.required
    )


def spec_key(pod: Pod) -> bytes:
    """Return a key that is equal for pods with equivalent specs.

    Names of containers matter only where a status of a resized container refers to them. A pod with
    ephemeral volumes is unique: its claims contain its name.
    """
    spec = pod.spec
    own: object = None
    if any(v.ephemeral is not None for v in spec.volumes):
        own = pod.key
    resized = [s for s in pod.status.container_statuses if s.resources is not None]
    return _encode(
        (
            spec.containers if resized else _container_facts(spec.containers),
            spec.init_containers if resized else _container_facts(spec.init_containers),
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            [v for v in spec.volumes if v.persistent_volume_claim or v.ephemeral],
            spec.overhead,
            spec.resources,
            spec.resource_claims,
            own,
            resized,
        )
    )


def _container_facts(containers: Iterable[Container]) -> list[object]:
    """Return what decisions read of containers, without their names."""
    return [(c.resources, c.ports, c.restart_policy) for c in containers]


def queue_position(pod: Pod) -> tuple[datetime, str, str]:
    """Return a pod's position among pods of its size: older first, then by UID, then by name."""
    return (pod.metadata.creation_timestamp or _EPOCH, pod.metadata.uid, pod.key)


def anti_affinity_keys(cluster: ClusterState) -> Iterator[str]:
    """Yield the label keys that required anti-affinity of bound pods reads."""
    for on_node in Pods.from_tuple(cluster.pods).by_node.values():
        for pod in on_node.with_anti_affinity:
            yield from _selector_keys(pod.spec)


def _selector_keys(spec: PodSpec) -> Iterator[str]:
    """Yield the label keys that the selectors of a spec read."""
    selectors = []
    for constraint in spec.topology_spread_constraints:
        selectors.append(constraint.label_selector)
        yield from constraint.match_label_keys
    affinity = spec.affinity
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        if side is not None:
            selectors += [t.label_selector for t in side.required]
            selectors += [t.pod_affinity_term.label_selector for t in side.preferred]
    for selector in selectors:
        if selector is not None:
            yield from selector.match_labels
            yield from (e.key for e in selector.match_expressions)
