"""The settings of an engine, with Karpenter's names and defaults where Karpenter has them.

Where each value came from is kept beside it by whoever reads them (``desired/settings.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_FEATURE_GATES = {
    "NodeRepair": False,
    "ReservedCapacity": True,
    "SpotToSpotConsolidation": False,
    "NodeOverlay": False,
    "StaticCapacity": False,
    "CapacityBuffer": False,
    "NodeClassCEL": False,
}


@dataclass(frozen=True, slots=True)
class PlacementGroup:
    """The placement group that a node class selects, as a scenario or look-up states it."""

    id: str = ""
    name: str = ""
    strategy: str = ""
    partition_count: int = 0


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What our config adds to one NodePool."""

    packing: str | None = None
    per_node_cost: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that tunes a decision; times are seconds, money USD an hour."""

    fleet: str = "fleet"
    state: str = ""
    cluster: str = "kubeconfig"
    cluster_name: str = "default"
    cluster_endpoint: str = ""
    cluster_ca_bundle: str = ""
    cluster_dns: str = ""
    cluster_cidr: str = ""
    ip_family: str = ""
    region: str = "us-east-1"
    endpoint_url: str = ""
    preference_policy: str = "Respect"
    min_values_policy: str = "Strict"
    vm_memory_overhead_percent: float = 0.075
    reserved_enis: int = 0
    batch_max_duration: str = "10s"
    batch_idle_duration: str = "1s"
    packing: str = "default"
    per_node_cost: float = 0.0
    removal_policy: str = "Guarded"
    feature_gates: dict[str, bool] = field(default_factory=lambda: dict(DEFAULT_FEATURE_GATES))
    subnet_free_addresses: dict[str, int] = field(default_factory=dict)
    placement_group: PlacementGroup | None = None
    node_pools: dict[str, PoolOptions] = field(default_factory=dict)

    def gate(self, name: str) -> bool:
        """Return whether the feature gate is on; an unknown one is off."""
        return self.feature_gates.get(name, DEFAULT_FEATURE_GATES.get(name, False))
