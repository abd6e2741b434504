"""Savings plans and reserved instances, and the NodeOverlays that steer launches to them.

While a commitment has unused capacity, on-demand capacity that it covers is free, so a NodeOverlay
with price 0 attracts launches. The rules, names and labels are Veneer's, so that overlays it
created in a cluster can be adopted. There is one difference: what an overlay selects is derived
from the commitment itself, not from parsing the overlay's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.catalog.adjusted.preference import DISABLED, MANAGED_BY
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ON_DEMAND, ZONE
from reconciler.model.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Metadata

FREE: Final = "0.00"
_FAMILY: Final = "karpenter.k8s.aws/instance-family"
_LABEL_LENGTH_MAX: Final = 63


class CommitmentKind(StrEnum):
    COMPUTE = "compute_savings_plan"
    EC2_INSTANCE = "ec2_instance_savings_plan"
    RESERVED = "reserved_instance"

    @property
    def label(self) -> str:
        """The kind as a label value."""
        return self.replace("_", "-")


class OverlayReason(StrEnum):
    """The machine-readable reason for an overlay decision."""

    CAPACITY_AVAILABLE = "capacity_available"
    ABOVE_THRESHOLD = "utilization_above_threshold"
    NO_CAPACITY = "no_capacity"
    RI_AVAILABLE = "ri_available"
    RI_NOT_FOUND = "ri_not_found"


class CommitmentSettings(msgspec.Struct, frozen=True):
    """Veneer's settings: weights and name prefixes by kind, and the threshold in percent."""

    threshold_percent: float = 95.0
    compute_weight: int = 10
    ec2_instance_weight: int = 20
    reserved_weight: int = 30
    compute_prefix: str = "cost-aware-compute-sp"
    ec2_instance_prefix: str = "cost-aware-ec2-sp"
    reserved_prefix: str = "cost-aware-ri"


DEFAULTS: Final = CommitmentSettings()


class SavingsPlan(msgspec.Struct, frozen=True):
    """A savings plan, in USD an hour. If it is overused, the remaining amount is negative.

    A compute plan has no family and no region: it covers all.
    """

    commitment: float
    remaining: float
    family: str = ""
    region: str = ""
    arn: str = ""


class ReservedInstances(msgspec.Struct, frozen=True):
    """Reserved instances of one type in a region, or in one of its zones."""

    instance_type: str
    region: str
    count: int
    zone: str = ""


class OverlayDecision(msgspec.Struct, frozen=True):
    """Whether an overlay for a group of commitments is needed, and why.

    ``family``, ``region`` and ``instance_type`` are empty if the kind has none, and ``zone`` if a
    reservation applies to the whole region.
    """

    name: str
    kind: CommitmentKind
    weight: int
    wanted: bool
    outcome: OverlayReason
    reason: str
    count: int
    remaining: float = 0.0
    utilization_percent: float = 0.0
    family: str = ""
    region: str = ""
    instance_type: str = ""
    zone: str = ""

    @property
    def requirements(self) -> tuple[NodeSelectorRequirement, ...]:
        """What the overlay selects: on-demand capacity that the commitment covers."""
        if self.kind is CommitmentKind.RESERVED:
            covered = NodeSelectorRequirement(INSTANCE_TYPE, Operator.IN, (self.instance_type,))
        elif self.kind is CommitmentKind.EC2_INSTANCE:
            covered = NodeSelectorRequirement(_FAMILY, Operator.IN, (self.family,))
        else:
            covered = NodeSelectorRequirement(_FAMILY, Operator.EXISTS)
        on_demand = NodeSelectorRequirement(CAPACITY_TYPE, Operator.IN, (ON_DEMAND,))
        if self.zone:
            return covered, on_demand, NodeSelectorRequirement(ZONE, Operator.IN, (self.zone,))
        return covered, on_demand


def decide_compute(
    plans: Sequence[SavingsPlan], settings: CommitmentSettings = DEFAULTS
) -> OverlayDecision:
    """Return the decision for all compute savings plans together."""
    name = f"{settings.compute_prefix}-global"
    return _decide(plans, name, CommitmentKind.COMPUTE, settings.compute_weight, settings)


def decide_ec2_instance(
    plans: Iterable[SavingsPlan], settings: CommitmentSettings = DEFAULTS
) -> list[OverlayDecision]:
    """Return a decision for each family and region that has EC2 instance savings plans."""
    groups = group_by(plans, lambda plan: (plan.family, plan.region))
    return [
        msgspec.structs.replace(
            _decide(
                groups[family, region],
                f"{settings.ec2_instance_prefix}-{family}-{region}",
                CommitmentKind.EC2_INSTANCE,
                settings.ec2_instance_weight,
                settings,
            ),
            family=family,
            region=region,
        )
        for family, region in sorted(groups)
    ]


def _decide(
    plans: Sequence[SavingsPlan],
    name: str,
    kind: CommitmentKind,
    weight: int,
    settings: CommitmentSettings,
) -> OverlayDecision:
    """Decide for the sum of a group of plans: overused plans reduce what the others have left."""
    remaining = sum(plan.remaining for plan in plans)
    commitment = sum(plan.commitment for plan in plans)
    used = (1 - remaining / commitment) * 100 if commitment > 0 else 0.0
    threshold = settings.threshold_percent
    if used >= threshold:
        outcome = OverlayReason.ABOVE_THRESHOLD
        reason = f"utilization {used:.1f}% at/above threshold {threshold:.1f}%"
    elif remaining <= 0:
        outcome = OverlayReason.NO_CAPACITY
        reason = f"no remaining capacity ({remaining:.2f} $/hour)"
    else:
        outcome = OverlayReason.CAPACITY_AVAILABLE
        reason = (
            f"utilization {used:.1f}% below threshold {threshold:.1f}%,"
            f" capacity available ({remaining:.2f} $/hour)"
        )
    wanted = outcome is OverlayReason.CAPACITY_AVAILABLE
    return OverlayDecision(name, kind, weight, wanted, outcome, reason, len(plans), remaining, used)


def decide_reserved(
    reserved: Iterable[ReservedInstances], settings: CommitmentSettings = DEFAULTS
) -> list[OverlayDecision]:
    """Return a decision for each instance type and region, or zone if an entry has one."""
    counts: dict[tuple[str, str, str], int] = {}
    for entry in reserved:
        key = (entry.instance_type, entry.region, entry.zone)
        counts[key] = counts.get(key, 0) + entry.count
    return [
        OverlayDecision(
            name=f"{settings.reserved_prefix}-{instance_type}-{zone or region}",
            kind=CommitmentKind.RESERVED,
            weight=settings.reserved_weight,
            wanted=count > 0,
            outcome=OverlayReason.RI_AVAILABLE if count > 0 else OverlayReason.RI_NOT_FOUND,
            reason=f"{count or 'no'} reserved instances available",
            count=count,
            family=instance_type.partition(".")[0],
            region=region,
            instance_type=instance_type,
            zone=zone,
        )
        for (instance_type, region, zone), count in sorted(counts.items())
    ]


def overlay_of(decision: OverlayDecision, *, disabled: bool = False) -> NodeOverlay | None:
    """Return the overlay of a decision, or None if none is needed.

    A ``disabled`` one requires a label that no node has, so it can be inspected without taking
    effect.
    """
    if not decision.wanted:
        return None
    labels = {
        MANAGED_BY[0]: MANAGED_BY[1],
        "veneer.io/capacity-type": decision.kind.label,
        "veneer.io/optimization-reason": label_value(decision.reason),
    }
    requirements = decision.requirements
    if disabled:
        labels[DISABLED] = "true"
        requirements = (NodeSelectorRequirement(DISABLED, Operator.IN, ("true",)), *requirements)
    for name, value in (
        ("instance-type", decision.instance_type),
        ("instance-family", decision.family),
        ("region", decision.region),
    ):
        if value:
            labels[f"veneer.io/{name}"] = value
    spec = NodeOverlaySpec(requirements=requirements, price=FREE, weight=decision.weight)
    return NodeOverlay(Metadata(name=decision.name, labels=labels), spec)


def label_value(text: str) -> str:
    """Return a reason as a label value, with invalid characters replaced by hyphens."""
    safe = re.sub(r"-+", "-", re.sub(r"[^A-Za-z0-9_.-]", "-", text)).strip("-_.")
    return safe[:_LABEL_LENGTH_MAX].rstrip("-_.") or "capacity-available"
