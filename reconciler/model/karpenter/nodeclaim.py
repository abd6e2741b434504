"""NodeClaims: the request for one node, and the instance that fulfils it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

import msgspec

from reconciler.model.duration import parse_duration, parse_nillable
from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.model.karpenter.nodepool import NodeClassRef, NodeSelectorRequirement
from reconciler.model.kubernetes.metadata import Condition, Metadata, true_types
from reconciler.model.kubernetes.pod import Amounts, ResourceRequirements
from reconciler.model.kubernetes.taint import Taint

DISRUPTION_REASON: Final = "DisruptionReason"
"""The condition that marks a NodeClaim which a command disrupts; its reason is the command's."""

REBOOTING: Final = "Rebooting"
"""The condition of a NodeClaim whose node is being rebooted, or was (Karpenter 1.15)."""


class NodeClaimSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    node_class_ref: NodeClassRef = NodeClassRef()
    requirements: tuple[NodeSelectorRequirement, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    expire_after: str | None = None
    termination_grace_period: str | None = None


class NodeClaimStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, dict=True):
    provider_id: str = msgspec.field(default="", name="providerID")
    node_name: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    capacity: Amounts = {}
    allocatable: Amounts = {}
    conditions: tuple[Condition, ...] = ()
    last_pod_event_time: datetime | None = None

    @cached_property
    def true_conditions(self) -> frozenset[str]:
        """The types of its conditions that are True; a pass asks for them a dozen times."""
        return true_types(self.conditions)

    @cached_property
    def condition_by_type(self) -> Mapping[str, Condition]:
        """Its conditions by type; of equal types the first counts."""
        return {condition.type: condition for condition in reversed(self.conditions)}


class NodeClaim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A NodeClaim as recorded or observed; its spec never changes once it exists."""

    metadata: Metadata
    spec: NodeClaimSpec = NodeClaimSpec()
    status: NodeClaimStatus = NodeClaimStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def node_or_claim_name(self) -> str:
        """The name of its Node, or its own while no Node has joined."""
        return self.status.node_name or self.metadata.name

    @property
    def node_pool(self) -> str:
        """The name of its NodePool, empty for a standalone claim."""
        return self.metadata.labels.get(NODEPOOL, "")

    def is_true(self, kind: str) -> bool:
        """Return whether the condition of that type is True."""
        return kind in self.status.true_conditions

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type, or None."""
        return self.status.condition_by_type.get(kind)

    @property
    def is_deleting(self) -> bool:
        """Whether it is deleted, or its instance is being terminated."""
        return self.metadata.deletion_timestamp is not None or self.is_true("InstanceTerminating")

    @property
    def is_rebooting(self) -> bool:
        """Whether a reboot of its node is requested and not complete."""
        return self.is_true(REBOOTING)

    @property
    def expires_after(self) -> timedelta | None:
        """Its maximum age, as fixed at its launch; None means unlimited."""
        return parse_nillable(self.spec.expire_after)

    @property
    def expires_at(self) -> datetime | None:
        """When it expires, or None."""
        age, created = self.expires_after, self.metadata.creation_timestamp
        return None if age is None or created is None else created + age

    @property
    def termination_grace_period(self) -> timedelta | None:
        text = self.spec.termination_grace_period
        return None if text is None else parse_duration(text)
