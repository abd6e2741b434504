"""A scheduling profile: which plugins of kube-scheduler are enabled, and how they are set.

The default is that of kube-scheduler 1.34 (``pkg/scheduler/apis/config/v1/default_plugins.go``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from reconciler.model.karpenter.labels import HOSTNAME, ZONE
from reconciler.model.kubernetes.pod import NodeAffinity, TopologySpreadConstraint
from reconciler.model.resources import CPU, MEMORY

SYSTEM_SPREAD: Final = (
    TopologySpreadConstraint(HOSTNAME, 3, "ScheduleAnyway"),
    TopologySpreadConstraint(ZONE, 5, "ScheduleAnyway"),
)
"""The system's default spread of pods with an owner or Service and no constraint of their own."""

DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The scheduler of pods that name none."""


class Plugin(StrEnum):
    """A plugin of kube-scheduler that a profile can disable or weight."""

    TAINT_TOLERATION = "TaintToleration"
    NODE_AFFINITY = "NodeAffinity"
    NODE_RESOURCES_FIT = "NodeResourcesFit"
    NODE_RESOURCES_BALANCED_ALLOCATION = "NodeResourcesBalancedAllocation"
    POD_TOPOLOGY_SPREAD = "PodTopologySpread"
    INTER_POD_AFFINITY = "InterPodAffinity"
    IMAGE_LOCALITY = "ImageLocality"
    VOLUME_BINDING = "VolumeBinding"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_NAME = "NodeName"
    NODE_PORTS = "NodePorts"
    VOLUME_RESTRICTIONS = "VolumeRestrictions"
    NODE_VOLUME_LIMITS = "NodeVolumeLimits"
    VOLUME_ZONE = "VolumeZone"
    DYNAMIC_RESOURCES = "DynamicResources"
    DEFAULT_PREEMPTION = "DefaultPreemption"


DEFAULT_WEIGHTS: Final[Mapping[Plugin, int]] = MappingProxyType(
    {
        Plugin.TAINT_TOLERATION: 3,
        Plugin.NODE_AFFINITY: 2,
        Plugin.NODE_RESOURCES_FIT: 1,
        Plugin.POD_TOPOLOGY_SPREAD: 2,
        Plugin.INTER_POD_AFFINITY: 2,
        Plugin.NODE_RESOURCES_BALANCED_ALLOCATION: 1,
        Plugin.IMAGE_LOCALITY: 1,
        Plugin.VOLUME_BINDING: 1,
    }
)
"""The score plugins and their weights."""


class Strategy(StrEnum):
    """How NodeResourcesFit scores the use of a node's resources."""

    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"
    REQUESTED_TO_CAPACITY_RATIO = "RequestedToCapacityRatio"


ResourceWeights = tuple[tuple[str, int], ...]
"""The resources that a plugin scores, each with its weight."""

_CPU_AND_MEMORY: Final[ResourceWeights] = ((CPU, 1), (MEMORY, 1))


@dataclass(frozen=True, slots=True)
class ScoringStrategy:
    """How NodeResourcesFit scores; ``shape`` has points (utilization in percent, score 0 to 10)."""

    type: Strategy = Strategy.LEAST_ALLOCATED
    resources: ResourceWeights = _CPU_AND_MEMORY
    shape: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """The plugins of a scheduler and their arguments.

    ``weights`` are those of the enabled score plugins; ``disabled`` are the plugins whose filter
    (for DefaultPreemption, whose preemption) is off. ``default_constraints`` is None for the
    system's default spread. ``percentage_of_nodes_to_score`` is 0 for the adaptive default.
    """

    weights: Mapping[Plugin, int] = field(default_factory=lambda: DEFAULT_WEIGHTS)
    disabled: frozenset[Plugin] = frozenset()
    scoring: ScoringStrategy = ScoringStrategy()
    balanced_resources: ResourceWeights = _CPU_AND_MEMORY
    default_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    hard_pod_affinity_weight: int = 1
    ignores_preferred_terms_of_existing_pods: bool = False
    added_affinity: NodeAffinity | None = None
    ignored_resources: frozenset[str] = frozenset()
    ignored_resource_groups: frozenset[str] = frozenset()
    percentage_of_nodes_to_score: int = 0

    @property
    def uses_system_spread(self) -> bool:
        return self.default_constraints is None

    @property
    def spread(self) -> tuple[TopologySpreadConstraint, ...]:
        """The constraints of pods that have none of their own."""
        return SYSTEM_SPREAD if self.default_constraints is None else self.default_constraints

    def weight(self, plugin: Plugin) -> int:
        """Return the weight of a score plugin, 0 if it is not enabled."""
        return self.weights.get(plugin, 0)

    def filters(self, plugin: Plugin) -> bool:
        """Return whether the plugin's filter is enabled."""
        return plugin not in self.disabled


DEFAULT_PROFILE: Final = Profile()
