"""Decides which nodes a pod may use: selectors, affinity, taints, and the zones of its volumes.

It is written from Kubernetes' scheduler and does not share code with the placement engine, so it
checks plans independently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reconciler.desired.workloads.pods import Workloads
from reconciler.model.karpenter.labels import REGION, ZONE, normalize_label
from reconciler.model.kubernetes.cluster import (
    CSISource,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeNodeAffinity,
    VolumeSpec,
)
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.node import CSINode, Node
from reconciler.model.kubernetes.pod import (
    NodeSelector,
    NodeSelectorExpression,
    NodeSelectorTerm,
    Pod,
)
from reconciler.model.kubernetes.storage import (
    ONE_POD,
    SHARED_DRIVERS,
    bound_claim,
    claim_keys,
    class_driver,
    csi_driver,
)

if TYPE_CHECKING:
    from reconciler.placement.binding.devices import DeviceClaims

_WAIT_FOR_CONSUMER: Final = "WaitForFirstConsumer"
_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""The annotation of a claim whose volume is being provisioned for a node."""
_TOPOLOGY_LABELS: Final = (
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    ZONE,
    REGION,
)


def allows(selector: NodeSelector, node: Node) -> bool:
    """Return whether any term of a node selector matches; a selector without terms never does."""
    return any(term_matches(term, node) for term in selector.node_selector_terms)


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    labels = node.metadata.labels
    fields = {"metadata.name": node.name}
    return all(_expression_matches(e, labels.get(e.key)) for e in term.match_expressions) and all(
        _expression_matches(e, fields.get(e.key)) for e in term.match_fields
    )


def _expression_matches(expression: NodeSelectorExpression, value: str | None) -> bool:
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _matches_integer(value, expression.values, lambda left, right: left > right)
        case "Lt":
            return _matches_integer(value, expression.values, lambda left, right: left < right)
    return False


def _matches_integer(
    value: str | None, values: tuple[str, ...], compare: Callable[[int, int], bool]
) -> bool:
    if value is None or len(values) != 1:
        return False
    try:
        return compare(int(value), int(values[0]))
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Volumes:
    """The claims of the workloads; ``zones`` is where each unbound one was provisioned.

    ``csi_nodes`` have the attachment limits of the nodes, by name. ``devices`` are the claims on
    devices, None if there are none.
    """

    claims: Mapping[str, PersistentVolumeClaim]
    volumes: Mapping[str, PersistentVolume]
    classes: Mapping[str, StorageClass]
    zones: dict[str, str]
    csi_nodes: Mapping[str, CSINode] = field(default_factory=dict)
    devices: DeviceClaims | None = None

    def can_reach(self, pod: Pod, node: Node) -> bool:
        """Return whether every volume of a pod is reachable from a node."""
        return all(self._is_reachable(key, node) for key in claim_keys(pod))

    def can_attach(self, pod: Pod, node: Node, attached: Iterable[str]) -> bool:
        """Return whether the drivers can attach the volumes of a pod to a node.

        ``attached`` are the claims of the pods on the node. A claim that is not bound yet counts
        for the driver of its class.
        """
        known = self.csi_nodes.get(node.name)
        limits = known.limits() if known is not None else {}
        if not limits:
            return True
        present = set(attached)
        wanted = Counter(self._driver(key) for key in set(claim_keys(pod)) - present)
        used = Counter(map(self._driver, present))
        return all(
            driver not in limits or used[driver] + count <= limits[driver]
            for driver, count in wanted.items()
        )

    def is_free(self, pod: Pod, in_use: Container[str]) -> bool:
        """Return whether no claim of a pod is reserved for one pod and already used by another."""
        return not any(self._is_exclusive(key) and key in in_use for key in claim_keys(pod))

    def _is_exclusive(self, key: str) -> bool:
        """Return whether only one pod may use a claim."""
        claim = self.claims.get(key)
        return claim is not None and ONE_POD in claim.spec.access_modes

    def _driver(self, key: str) -> str:
        """Return the CSI driver of a claim, empty if it is unknown."""
        claim = self.claims.get(key)
        return csi_driver(claim, self.volumes, self.classes) if claim is not None else ""

    def provision(self, pod: Pod, node: Node) -> None:
        """Provision the volumes of a bound pod in the zone of its node."""
        for key in claim_keys(pod):
            claim = self.claims.get(key)
            if claim is not None and not claim.spec.volume_name and self._waits_for_consumer(claim):
                self.zones.setdefault(key, node.metadata.labels.get(ZONE, ""))

    def objects(self) -> tuple[tuple[PersistentVolumeClaim, ...], tuple[PersistentVolume, ...]]:
        """Return claims and volumes as the cluster shows them, including those provisioned here."""
        claims, provisioned = [], []
        for key, claim in sorted(self.claims.items()):
            zone = self.zones.get(key)
            if zone is None:
                claims.append(claim)
                continue
            volume = self._provisioned_volume(claim, zone)
            provisioned.append(volume)
            claims.append(bound_claim(claim, volume.metadata.name))
        volumes = {**self.volumes, **{v.metadata.name: v for v in provisioned}}
        return tuple(claims), tuple(volumes[name] for name in sorted(volumes))

    def _is_reachable(self, key: str, node: Node) -> bool:
        claim = self.claims.get(key)
        if claim is None:
            return False
        if claim.spec.volume_name:
            volume = self.volumes.get(claim.spec.volume_name)
            if volume is None or not _is_in_zone(volume, node):
                return False
            affinity = volume.spec.node_affinity
            return affinity is None or affinity.required is None or allows(affinity.required, node)
        zone = self.zones.get(key)
        if zone is not None:
            return node.metadata.labels.get(ZONE) == zone
        selected = claim.metadata.annotations.get(_SELECTED_NODE)
        if selected is not None and selected != node.name:
            return False
        kind = self.classes.get(claim.spec.storage_class_name or "")
        return kind is None or _topology_allows(kind, node)

    def _waits_for_consumer(self, claim: PersistentVolumeClaim) -> bool:
        kind = self.classes.get(claim.spec.storage_class_name or "")
        return kind is not None and kind.volume_binding_mode == _WAIT_FOR_CONSUMER

    def _provisioned_volume(self, claim: PersistentVolumeClaim, zone: str) -> PersistentVolume:
        kind = self.classes.get(claim.spec.storage_class_name or "")
        here = NodeSelectorTerm((NodeSelectorExpression(ZONE, "In", (zone,)),))
        driver = class_driver(kind) if kind is not None else ""
        return PersistentVolume(
            Metadata(name=f"pvc-{claim.key.replace('/', '-')}"),
            VolumeSpec(
                node_affinity=None
                if driver in SHARED_DRIVERS
                else VolumeNodeAffinity(NodeSelector((here,))),
                csi=CSISource(driver) if driver else None,
                storage_class_name=claim.spec.storage_class_name,
            ),
        )


def volumes_of(
    workloads: Workloads,
    zones: dict[str, str],
    csi_nodes: Iterable[CSINode],
    devices: DeviceClaims | None = None,
) -> Volumes:
    """Return the volumes of the workloads; zones of deleted claims are dropped."""
    claims = {claim.key: claim for claim in workloads.volume_claims}
    for key in [key for key in zones if key not in claims]:
        del zones[key]
    return Volumes(
        claims=claims,
        volumes={volume.metadata.name: volume for volume in workloads.volumes},
        classes={kind.metadata.name: kind for kind in workloads.storage_classes},
        zones=zones,
        csi_nodes={node.metadata.name: node for node in csi_nodes},
        devices=devices,
    )


def _is_in_zone(volume: PersistentVolume, node: Node) -> bool:
    """Return whether the zone and region labels of a volume match those of a node, if it has any.

    A volume may be in several zones, with ``__`` between them (plugin VolumeZone).
    """
    labels = node.metadata.labels
    if not any(key in labels for key in _TOPOLOGY_LABELS):
        return True
    return all(
        labels.get(key, labels.get(normalize_label(key))) in value.split("__")
        for key, value in volume.metadata.labels.items()
        if key in _TOPOLOGY_LABELS
    )


def _topology_allows(kind: StorageClass, node: Node) -> bool:
    """Return whether a storage class allows a node's topology; no terms allow any."""
    if not kind.allowed_topologies:
        return True
    return any(
        all(
            node.metadata.labels.get(normalize_label(e.key)) in e.values
            for e in term.match_label_expressions
        )
        for term in kind.allowed_topologies
    )
