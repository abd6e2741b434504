"""NodePools: which nodes can be launched, how many, and how they can be disrupted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import msgspec

from reconciler.model.duration import parse_duration, parse_nillable
from reconciler.model.karpenter.budget import Budget
from reconciler.model.karpenter.labels import INITIALIZED, NODEPOOL, REGISTERED
from reconciler.model.karpenter.requirements import (
    Operator,
    Requirements,
    RequirementSpec,
    equals,
    from_spec,
)
from reconciler.model.kubernetes.metadata import Condition, Metadata, condition
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.resources import Resources, parse_resources

WHEN_EMPTY: Final = "WhenEmpty"
WHEN_EMPTY_OR_UNDERUTILIZED: Final = "WhenEmptyOrUnderutilized"
BALANCED: Final = "Balanced"


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of an object in the API's spelling."""


class NodeSelectorRequirement(_Struct, frozen=True):
    """A requirement entry of a NodePool or NodeClaim."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()
    min_values: int | None = None

    def spec(self) -> RequirementSpec:
        return RequirementSpec(self.key, self.operator, self.values, self.min_values)


def requirements_of(entries: Iterable[NodeSelectorRequirement]) -> Requirements:
    """Return the combined requirements of the entries."""
    return Requirements(from_spec(entry.spec()) for entry in entries)


class NodeClassRef(_Struct, frozen=True):
    """The node class that launches the nodes."""

    group: str = ""
    kind: str = ""
    name: str = ""

    @property
    def label(self) -> tuple[str, str]:
        """The label of the class's nodes, and its value."""
        return f"{self.group}/{self.kind.lower()}", self.name


class TemplateMetadata(_Struct, frozen=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class TemplateSpec(_Struct, frozen=True):
    node_class_ref: NodeClassRef = NodeClassRef()
    requirements: tuple[NodeSelectorRequirement, ...] = ()
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    expire_after: str = "720h"
    termination_grace_period: str | None = None


class NodeClaimTemplate(_Struct, frozen=True):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: TemplateSpec = TemplateSpec()


class Disruption(_Struct, frozen=True):
    """How nodes can be disrupted: this is behaviour, so changing it never drifts a node."""

    consolidate_after: str | None = None
    consolidation_policy: str = WHEN_EMPTY_OR_UNDERUTILIZED
    budgets: tuple[Budget, ...] = (Budget(),)

    @property
    def consolidates_after(self) -> timedelta | None:
        """How long a node must be quiet before it is consolidated; None means never."""
        return parse_nillable(self.consolidate_after or "0s")


class NodePoolSpec(_Struct, frozen=True):
    template: NodeClaimTemplate = NodeClaimTemplate()
    disruption: Disruption = Disruption()
    limits: dict[str, str | int | float] = {}
    weight: int | None = None
    replicas: int | None = None


class NodePoolStatus(_Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class NodePool(_Struct, frozen=True):
    """A NodePool as desired in git, or as live in a cluster."""

    metadata: Metadata
    spec: NodePoolSpec = NodePoolSpec()
    status: NodePoolStatus = NodePoolStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def weight(self) -> int:
        """Its weight: the scheduler tries NodePools with a higher one first."""
        return self.spec.weight or 0

    @property
    def is_static(self) -> bool:
        """Whether it keeps a fixed number of nodes, whatever the pods."""
        return self.spec.replicas is not None

    @property
    def is_ready(self) -> bool:
        """Whether it can launch nodes: its status does not contain a condition against it."""
        ready = condition(self.status.conditions, "Ready")
        return ready is None or ready.status == "True"

    @property
    def is_deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def order(self) -> tuple[int, tuple[int, ...]]:
        """The sort key of pools: higher weight first, ties in reverse alphabetical order."""
        return (-self.weight, (*(-ord(c) for c in self.name), 1))

    def limits(self) -> Resources:
        """Return ``spec.limits`` in thousandths."""
        return parse_resources(self.spec.limits)

    def labels(self) -> dict[str, str]:
        """Return the labels of its nodes from the template, pool and class."""
        key, value = self.spec.template.spec.node_class_ref.label
        return {**self.spec.template.metadata.labels, NODEPOOL: self.name, key: value}

    def requirements(self) -> Requirements:
        """Return the requirements of its template alone."""
        return requirements_of(self.spec.template.spec.requirements)

    def template_requirements(self) -> Requirements:
        """Return what every node of the pool satisfies: requirements, labels, life-cycle labels.

        ``registered`` and ``initialized`` are included so that daemons that select them count; they
        never appear on a NodeClaim.
        """
        labels = [equals(key, value) for key, value in self.labels().items()]
        lifecycle = [equals(REGISTERED, "true"), equals(INITIALIZED, "true")]
        return self.requirements().with_requirements([*labels, *lifecycle])

    @property
    def expires_after(self) -> timedelta | None:
        """The maximum age of its nodes; None means unlimited."""
        return parse_nillable(self.spec.template.spec.expire_after)

    @property
    def termination_grace_period(self) -> timedelta | None:
        """The maximum duration of a drain before pods are deleted; None means unlimited."""
        text = self.spec.template.spec.termination_grace_period
        return None if text is None else parse_duration(text)
