"""Nodes after their launch, without simulating the launch.

A launch returns the expected result: the first choice of ``plan.launch``, in its cheapest
zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import datetime
from string import ascii_lowercase
from typing import Final

from msgspec.structs import replace

from reconciler.catalog.aws.machine import image_for
from reconciler.desired.fleet import Fleet
from reconciler.desired.hash import object_hash
from reconciler.diff.nodeclass import LiveInstance
from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.labels import (
    HOSTNAME,
    INITIALIZED,
    INSTANCE_TYPE,
    NODECLASS_HASH,
    NODECLASS_HASH_VERSION,
    NODEPOOL,
    NODEPOOL_HASH,
    NODEPOOL_HASH_VERSION,
    REGION,
    REGISTERED,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import (
    REBOOTING,
    NodeClaim,
    NodeClaimSpec,
    NodeClaimStatus,
)
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool, requirements_of
from reconciler.model.karpenter.requirements import Requirements, requirement
from reconciler.model.kubernetes.cluster import EBS_DRIVER
from reconciler.model.kubernetes.devices import DeviceTemplate, ResourceSlice, published_slices
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.kubernetes.node import CSINode, Node, NodeSpec, NodeStatus, csi_node
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.resources import Resources, format_resources, parse_resources
from reconciler.model.settings import Settings
from reconciler.observed.state import StateNode
from reconciler.placement.question import LaunchPool, PlannedClaim
from reconciler.plan.make.actions import TYPES_MAX
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.launch import launch_choices
from reconciler.plan.make.pools import node_class_of

_STEPS: Final = ("Launched", "Registered", "Initialized")
_READY: Final = Condition("Ready", "True", "KubeletReady")


@dataclass(frozen=True, slots=True)
class LaunchedNode:
    """A node that was launched, its price in USD an hour, and its instance as EC2 shows it.

    ``volume_limit`` is how many EBS volumes of pods it attaches, None if that is unknown.
    ``devices`` can be claimed.
    """

    node: StateNode
    price: float
    instance: LiveInstance
    volume_limit: int | None = None
    devices: tuple[DeviceTemplate, ...] = ()

    @property
    def resource_slices(self) -> list[ResourceSlice]:
        """What the drivers of its devices publish."""
        return published_slices(self.node.node_name, self.devices)

    @property
    def csi_node(self) -> CSINode | None:
        """What the EBS driver reports on the node, None if its limit is unknown."""
        if self.volume_limit is None:
            return None
        return csi_node(self.node.name, {EBS_DRIVER: self.volume_limit})


@dataclass(frozen=True)
class InstantLauncher:
    """Launches the nodes of a revision.

    ``hashes`` are the drift hashes of its NodePools and EC2NodeClasses with their versions, by
    kind and name.
    """

    pools: Mapping[str, LaunchPool]
    classes: Mapping[str, EC2NodeClass]
    hashes: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def for_revision(cls, facts: Facts, fleet: Fleet, settings: Settings) -> InstantLauncher:
        """Return the launcher of a revision."""
        bundle = settings.cluster_ca_bundle
        hashes = {
            (r.kind, r.name): found
            for r in (*fleet.node_pools, *fleet.node_classes)
            if (found := object_hash(r.data, bundle)) is not None
        }
        return cls(facts.types.by_name, facts.classes, hashes)

    def launch(self, planned: PlannedClaim, now: datetime) -> LaunchedNode:
        """Return the node that a planned NodeClaim becomes."""
        kinds = planned.types[:TYPES_MAX]
        named = requirement(INSTANCE_TYPE, "In", [kind.name for kind in kinds])
        kind, offering = (
            _first_choice(planned.requirements.with_requirements([named]), planned.requests, kinds)
            or planned.launch
        )
        template = planned.node_pool.spec.template
        claim = NodeClaim(
            metadata=Metadata(
                name=planned.name,
                labels={**planned.labels, NODEPOOL: planned.node_pool.name},
                annotations={
                    **template.metadata.annotations,
                    **self._hash_annotations(planned.node_pool),
                },
            ),
            spec=NodeClaimSpec(
                node_class_ref=template.spec.node_class_ref,
                taints=planned.taints,
                startup_taints=planned.startup_taints,
                expire_after=template.spec.expire_after,
                termination_grace_period=template.spec.termination_grace_period,
            ),
        )
        return self._launched_node(claim, planned.node_pool, kind, offering, now)

    def launch_claim(self, claim: NodeClaim, now: datetime) -> LaunchedNode | None:
        """Return the node of a NodeClaim that waits for its instance, None if it gets none."""
        pool = self.pools.get(claim.node_pool)
        if pool is None:
            return None
        found = _first_choice(
            requirements_of(claim.spec.requirements),
            parse_resources(claim.spec.resources.requests),
            pool.types.types,
        )
        return (
            self._launched_node(claim, pool.node_pool, *found, now) if found is not None else None
        )

    def _hash_annotations(self, pool: NodePool) -> dict[str, str]:
        """Return the annotations that show drift what a claim was launched from."""
        annotations: dict[str, str] = {}
        own = self.hashes.get(("NodePool", pool.name))
        if own is not None:
            annotations |= {NODEPOOL_HASH: own[0], NODEPOOL_HASH_VERSION: own[1]}
        node_class = node_class_of(pool, self.classes)
        known = self.hashes.get(("EC2NodeClass", node_class.name)) if node_class else None
        if known is not None:
            annotations |= {NODECLASS_HASH: known[0], NODECLASS_HASH_VERSION: known[1]}
        return annotations

    def _launched_node(
        self,
        claim: NodeClaim,
        pool: NodePool,
        kind: InstanceType,
        offering: Offering,
        now: datetime,
    ) -> LaunchedNode:
        """Return the node of a claim that got an instance."""
        node_class = node_class_of(pool, self.classes)
        instance = _live_instance(node_class, kind, offering)
        labels = {
            **kind.requirements.fixed_labels(),
            **offering.requirements.fixed_labels(),
            INSTANCE_TYPE: kind.name,
            **claim.metadata.labels,
        }
        status = NodeClaimStatus(
            provider_id=f"rest:///{claim.name}",
            node_name=claim.name,
            image_id=instance.image_id,
            capacity=dict(format_resources(kind.capacity)),
            allocatable=dict(format_resources(kind.allocatable)),
        )
        metadata = replace(claim.metadata, labels=labels, creation_timestamp=now)
        launched = replace(claim, metadata=metadata, status=status)
        node = start_node(StateNode(None, launched), now)
        return LaunchedNode(node, offering.price, instance, kind.volume_limit, kind.devices)


def _lasting_taints(taints: Iterable[Taint], startup: Sequence[Taint]) -> tuple[Taint, ...]:
    """Return the taints that a node keeps once it is ready."""
    lasting = (taint for taint in dict.fromkeys(taints) if not taint.is_ephemeral)
    return tuple(t for t in lasting if not any(t.matches(s) for s in startup))


def _conditions_of_ready(claim: NodeClaim, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions of a claim whose node has taken every step."""
    settled = (*_STEPS, REBOOTING)
    others = (c for c in claim.status.conditions if c.type not in settled)
    completed = (
        Condition(step, "True", step, last_transition_time=_condition_time(claim, step) or now)
        for step in _STEPS
    )
    return (*others, *completed)


def start_node(node: StateNode, now: datetime) -> StateNode:
    """Return a node after it has joined and is ready; a node that is ready is unchanged."""
    claim = node.claim
    is_ready = node.node is not None and node.is_initialized and not node.is_rebooting
    if claim is None or is_ready:
        return node
    seen = node.node or _registered_node(claim)
    taints = seen.spec.taints if node.is_registered else (*seen.spec.taints, *claim.spec.taints)
    labels = {**claim.metadata.labels, **seen.metadata.labels, REGISTERED: "true"}
    fresh = replace(
        seen,
        metadata=replace(
            seen.metadata,
            labels={**labels, INITIALIZED: "true"},
            annotations={**seen.metadata.annotations, **claim.metadata.annotations},
        ),
        spec=replace(seen.spec, taints=_lasting_taints(taints, claim.spec.startup_taints)),
        status=replace(seen.status, conditions=(_READY,)),
    )
    return with_fields(
        node,
        node=fresh,
        claim=replace(
            claim, status=replace(claim.status, conditions=_conditions_of_ready(claim, now))
        ),
    )


def _condition_time(claim: NodeClaim, step: str) -> datetime | None:
    known = claim.condition(step)
    return known.last_transition_time if known is not None and known.status == "True" else None


def _registered_node(claim: NodeClaim) -> Node:
    """Return the Node that the kubelet of a claim's instance registers."""
    labels = dict(claim.metadata.labels)
    zone = labels.get(ZONE, "")
    return Node(
        metadata=Metadata(
            name=claim.status.node_name or claim.name,
            labels={
                **({REGION: zone.rstrip(ascii_lowercase)} if zone else {}),
                **labels,
                HOSTNAME: claim.status.node_name or claim.name,
            },
            creation_timestamp=claim.metadata.creation_timestamp,
        ),
        spec=NodeSpec(provider_id=claim.status.provider_id, taints=claim.spec.taints),
        status=NodeStatus(capacity=claim.status.capacity, allocatable=claim.status.allocatable),
    )


def _first_choice(
    requirements: Requirements, requests: Resources, kinds: Iterable[InstanceType]
) -> tuple[InstanceType, Offering] | None:
    """Return the first choice of the launch request, None if nothing is available."""
    _, choices = launch_choices(requirements, requests, kinds)
    if not choices:
        return None
    return choices[0].kind, min(choices[0].offerings, key=lambda o: (o.price, o.zone))


def _live_instance(
    node_class: EC2NodeClass | None, kind: InstanceType, offering: Offering
) -> LiveInstance:
    if node_class is None:
        return LiveInstance(capacity_type=offering.capacity_type)
    status = node_class.status
    image = image_for(status.amis, kind)
    subnets = sorted(s.id for s in status.subnets if s.zone == offering.zone)
    return LiveInstance(
        image_id=image.id if image is not None else "",
        subnet_id=subnets[0] if subnets else "",
        security_groups=frozenset(group.id for group in status.security_groups),
        capacity_type=offering.capacity_type,
        reservation_id=offering.reservation_id or "",
    )
