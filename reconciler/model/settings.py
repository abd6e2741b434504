"""The settings of an engine, with Karpenter's names and defaults where Karpenter has them.

Durations are ``Duration`` values, shares are floats, and choices are enums: a text is converted
once, when the layers of settings are read (``desired/settings``), which also keep the origin of
each value. ``Settings.pool`` returns the options as they apply to one NodePool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from reconciler.model.duration import Duration
from reconciler.model.json import JsonDict

if TYPE_CHECKING:
    from reconciler.model.billing import (
        Commitments,
        PriceBook,
        PriceRule,
        ReservedInstancesTerms,
        SavingsPlanTerms,
    )
    from reconciler.model.grouping import Grouping
    from reconciler.model.karpenter.budget import Budget
    from reconciler.model.kubernetes.pod import TopologySpreadConstraint
    from reconciler.model.kubernetes.profile import Profile
    from reconciler.model.notification import Webhook
    from reconciler.model.windows import Suspension, Window


DEFAULT_REGION: Final = "us-east-1"


class FeatureGate(StrEnum):
    """A feature that can be switched on or off, by Karpenter's name."""

    DRIFT = "Drift"
    NODE_REPAIR = "NodeRepair"
    RESERVED_CAPACITY = "ReservedCapacity"
    SPOT_TO_SPOT_CONSOLIDATION = "SpotToSpotConsolidation"
    NODE_OVERLAY = "NodeOverlay"
    STATIC_CAPACITY = "StaticCapacity"
    CAPACITY_BUFFER = "CapacityBuffer"
    NODE_CLASS_CEL = "NodeClassCEL"
    TERMINATE_FIRST_DRIFT = "TerminateFirstDrift"
    TERMINATE_FIRST_REPAIR = "TerminateFirstRepair"
    DRA_NVIDIA_GPU = "DRANVIDIAGPU"
    DRA_EFA = "DRAEFA"
    REBOOT_FOR_REPAIR = "RebootForRepair"
    POD_DELETION_COST_MANAGEMENT = "PodDeletionCostManagement"


DEFAULT_FEATURE_GATES: Final = {
    gate: gate in (FeatureGate.DRIFT, FeatureGate.RESERVED_CAPACITY) for gate in FeatureGate
}

NEW_IN_1_15: Final = (
    FeatureGate.TERMINATE_FIRST_DRIFT,
    FeatureGate.TERMINATE_FIRST_REPAIR,
    FeatureGate.DRA_NVIDIA_GPU,
    FeatureGate.DRA_EFA,
    FeatureGate.REBOOT_FOR_REPAIR,
    FeatureGate.POD_DELETION_COST_MANAGEMENT,
)
"""Gates that are off in a fleet of 1.14."""


class KarpenterVersion(StrEnum):
    """The release of Karpenter whose API and rules a fleet follows."""

    V1_14 = "1.14"
    V1_15 = "1.15"

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor version, which can be compared."""
        major, minor = self.split(".")
        return int(major), int(minor)


OLDEST: Final = KarpenterVersion.V1_14
"""The release that a fleet follows whose settings state none."""
NEWEST: Final = KarpenterVersion.V1_15
"""The release that a new fleet follows."""


class ClusterKind(StrEnum):
    """Which cluster the nodes belong to."""

    KUBECONFIG = "kubeconfig"
    EMBEDDED = "embedded"
    NONE = "none"


class DataSource(StrEnum):
    """Where instance types or prices are read from."""

    AUTO = "auto"
    LIVE = "live"
    BUNDLED = "bundled"


class IPFamily(StrEnum):
    """The address family of the cluster's Services."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


class RebalanceRecommendation(StrEnum):
    """What EC2's rebalance recommendation for a spot instance leads to."""

    IGNORE = "Ignore"
    REPLACE = "Replace"


class PreferencePolicy(StrEnum):
    """Whether the soft preferences of pods count for scheduling."""

    RESPECT = "Respect"
    IGNORE = "Ignore"


class MinValuesPolicy(StrEnum):
    """Whether ``minValues`` of a requirement may be relaxed."""

    STRICT = "Strict"
    BEST_EFFORT = "BestEffort"


class RemovalPolicy(StrEnum):
    """Whether a NodePool that vanished from git is removed without further questions."""

    GUARDED = "Guarded"
    ALLOW = "Allow"


class PlacementStrategy(StrEnum):
    """The strategies of an EC2 placement group."""

    CLUSTER = "cluster"
    PARTITION = "partition"
    SPREAD = "spread"


class DecisionRules(StrEnum):
    """Whose decisions are made: our own, or exactly those of Karpenter."""

    OWN = "own"
    KARPENTER = "karpenter"


class Packing(StrEnum):
    """How pods are packed on new nodes: as Karpenter does it, or for the lowest price."""

    DEFAULT = "default"
    CHEAPEST = "cheapest"


class ConsolidationSearch(StrEnum):
    """Which sets of nodes consolidation considers: exactly those of Karpenter, a few more, or many.

    The default considers more sets only if those of Karpenter save nothing.
    """

    KARPENTER = "karpenter"
    DEFAULT = "default"
    THOROUGH = "thorough"


class ExpirationPolicy(StrEnum):
    """Whether an expired node is disrupted by force, or within the budgets."""

    FORCEFUL = "Forceful"
    GRACEFUL = "Graceful"


@dataclass(frozen=True, slots=True)
class NodeLimit:
    """A number of nodes, or a percentage of a number of nodes; false where nothing limits."""

    count: int | None = None
    is_percentage: bool = False

    def __bool__(self) -> bool:
        return self.count is not None

    def __str__(self) -> str:
        """Return it as a user writes it: ``5``, ``10%``, empty without a limit."""
        return "" if self.count is None else f"{self.count}{'%' if self.is_percentage else ''}"

    def resolve(self, total: int) -> int:
        """Return how many of ``total`` nodes it allows; a percentage rounds up, as in budgets."""
        assert self.count is not None, "nothing limits"
        return -(-self.count * total // 100) if self.is_percentage else self.count


UNLIMITED: Final = NodeLimit()


@dataclass(frozen=True, slots=True)
class PlacementGroup:
    """The placement group that a node class selects, as a scenario or look-up states it."""

    id: str = ""
    name: str = ""
    strategy: str = ""
    partition_count: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerConfiguration:
    """The KubeSchedulerConfiguration of the cluster: as written, and its profiles by name.

    Without one, pods are scheduled with kube-scheduler's defaults.
    """

    data: JsonDict = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)


class PoolOption(StrEnum):
    """The key of an option that a NodePool may set for itself, as the configuration spells it."""

    PACKING = "packing"
    PER_NODE_COST = "perNodeCost"
    CONSOLIDATION_SEARCH = "consolidation.search"
    MINIMUM_SAVINGS = "minimumSavings"
    MINIMUM_SAVINGS_PERCENT = "minimumSavingsPercent"
    EVICTION_COST = "evictionCost"
    MINIMUM_AGE = "minimumAge"
    UNDO_PERIOD = "undoPeriod"
    MAXIMUM_PER_DAY = "maximumPerDay"
    WAVE_SIZE = "waveSize"
    WAVE_SOAK = "waveSoak"
    WAVE_DEADLINE = "waveDeadline"
    STOP_AFTER_FAILURES = "stopAfterFailures"
    PROGRESS_DEADLINE = "progressDeadline"
    EXPIRATION_POLICY = "expirationPolicy"
    EXPIRATION_CEILING = "expirationCeiling"

    @property
    def attribute(self) -> str:
        """The attribute of ``PoolSettings`` that holds its value."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The options that apply to one NodePool; money is USD an hour.

    A duration of zero and a count of zero switch their option off.
    """

    packing: Packing = Packing.DEFAULT
    per_node_cost: float = 0.0
    consolidation_search: ConsolidationSearch = ConsolidationSearch.DEFAULT
    minimum_savings: float = 0.0
    minimum_savings_percent: float = 0.0
    eviction_cost: float = 0.0
    minimum_age: Duration = Duration("0s")
    undo_period: Duration = Duration("0s")
    maximum_per_day: NodeLimit = UNLIMITED
    wave_size: NodeLimit = UNLIMITED
    wave_soak: Duration = Duration("0s")
    wave_deadline: Duration = Duration("15m")
    stop_after_failures: int = 0
    progress_deadline: Duration = Duration("0s")
    expiration_policy: ExpirationPolicy = ExpirationPolicy.FORCEFUL
    expiration_ceiling: Duration = Duration("24h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(PoolSettings):
    """Everything that tunes a decision; money is USD an hour.

    The options inherited from ``PoolSettings`` are the fleet's. They apply to each NodePool
    that does not set its own in ``node_pools``; ``pool`` returns the result.
    These are values by the name of their attribute in ``PoolSettings``.
    ``history_keep`` is None where nothing is ever removed, and ``history_trace`` where the workload
    is not recorded. ``metrics_costs_by`` are ``workload`` and ``label=KEY``.
    """

    fleet: str = "fleet"
    state: str = ""
    cluster: ClusterKind = ClusterKind.KUBECONFIG
    cluster_name: str = "default"
    cluster_endpoint: str = ""
    cluster_ca_bundle: str = ""
    cluster_dns: str = ""
    cluster_cidr: str = ""
    ip_family: IPFamily | None = None
    kubeconfig: str = ""
    kube_context: str = ""
    kube_timeout: Duration = Duration("30s")
    kube_watch: bool = True
    kube_allow_karpenter: bool = False
    kube_resync_interval: Duration = Duration("10m")
    kube_stale_after: Duration = Duration("90s")
    region: str = DEFAULT_REGION
    endpoint_url: str = ""
    role_arn: str = ""
    external_id: str = ""
    session_name: str = ""
    batch_launches_from: int = 100
    instance_types_from: DataSource = DataSource.AUTO
    prices_from: DataSource = DataSource.AUTO
    refresh_interval: Duration = Duration("12h")
    history_keep: Duration | None = Duration("90d")
    history_trace: Duration | None = Duration("30d")
    metrics_costs_by: tuple[Grouping, ...] = ()
    isolated_vpc: bool = False
    price_discount_percent: float = 0.0
    price_rules: tuple[PriceRule, ...] = ()
    savings_plans: tuple[SavingsPlanTerms, ...] = ()
    reserved_instances: tuple[ReservedInstancesTerms, ...] = ()
    commitment_threshold_percent: float = 95.0
    interruption_queue: str = ""
    rebalance_recommendation: RebalanceRecommendation = RebalanceRecommendation.IGNORE
    preference_policy: PreferencePolicy = PreferencePolicy.RESPECT
    min_values_policy: MinValuesPolicy = MinValuesPolicy.STRICT
    karpenter: KarpenterVersion = OLDEST
    legacy_node_repair: bool = False
    ignore_dra_requests: bool | None = None
    decide: DecisionRules = DecisionRules.OWN
    vm_memory_overhead_percent: float = 0.075
    reserved_enis: int = 0
    batch_max_duration: Duration = Duration("10s")
    batch_idle_duration: Duration = Duration("1s")
    maximum_preference_cost_percent: float = 10.0
    removal_policy: RemovalPolicy = RemovalPolicy.GUARDED
    fleet_budgets: tuple[Budget, ...] = ()
    fleet_maximum_per_day: NodeLimit = UNLIMITED
    default_constraints: tuple[TopologySpreadConstraint, ...] = ()
    kube_scheduler: SchedulerConfiguration = SchedulerConfiguration()
    webhooks: tuple[Webhook, ...] = ()
    windows: tuple[Window, ...] = ()
    suspensions: tuple[Suspension, ...] = ()
    feature_gates: dict[FeatureGate, bool] = field(
        default_factory=lambda: dict(DEFAULT_FEATURE_GATES)
    )
    subnet_free_addresses: dict[str, int] = field(default_factory=dict)
    placement_group: PlacementGroup | None = None
    node_pools: dict[str, JsonDict] = field(default_factory=dict)
    _pools: dict[str, PoolSettings] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fleet = {option.name: getattr(self, option.name) for option in fields(PoolSettings)}
        pools = {name: PoolSettings(**fleet | own) for name, own in self.node_pools.items()}
        object.__setattr__(self, "_pools", pools)

    def pool(self, name: str) -> PoolSettings:
        """Return the options that apply to a NodePool: its own, otherwise the fleet's."""
        return self._pools.get(name, self)

    def key_of(self, node_pool: str, option: PoolOption) -> str:
        """Return the key of the configuration that an option of a NodePool comes from."""
        is_own = option.attribute in self.node_pools.get(node_pool, {})
        return f"nodePools.{node_pool}.{option}" if is_own else option.value

    def gate(self, gate: FeatureGate) -> bool:
        """Return whether the feature gate is on; one that the release does not have is off."""
        if gate in NEW_IN_1_15 and self.karpenter == KarpenterVersion.V1_14:
            return False
        return self.feature_gates.get(gate, DEFAULT_FEATURE_GATES[gate])

    @property
    def ignores_resource_claims(self) -> bool:
        """Whether pods that claim devices get no node, as by default in Karpenter and with 1.14."""
        if self.ignore_dra_requests is not None:
            return self.ignore_dra_requests
        return self.karpenter == KarpenterVersion.V1_14 or self.decide == DecisionRules.KARPENTER

    @property
    def repairs_forcefully(self) -> bool:
        """Whether unhealthy nodes are removed regardless of budgets, as in Karpenter 1.14."""
        is_legacy = self.legacy_node_repair or self.karpenter == KarpenterVersion.V1_14
        return is_legacy and self.gate(FeatureGate.NODE_REPAIR)

    @property
    def repairs_within_budgets(self) -> bool:
        """Whether unhealthy nodes are replaced within the budgets for ``Unhealthy``."""
        return self.gate(FeatureGate.NODE_REPAIR) and not self.repairs_forcefully

    @property
    def scheduler_profiles(self) -> Mapping[str, Profile]:
        """The profiles of the cluster's schedulers by name.

        Without a list of its own, the default scheduler spreads by ``default_constraints``.
        """
        profiles = self.kube_scheduler.profiles
        if not self.default_constraints:
            return profiles
        from reconciler.model.kubernetes.profile import DEFAULT_PROFILE, DEFAULT_SCHEDULER

        profile = profiles.get(DEFAULT_SCHEDULER, DEFAULT_PROFILE)
        if profile.default_constraints is not None:
            return profiles
        spreading = replace(profile, default_constraints=self.default_constraints)
        return {**profiles, DEFAULT_SCHEDULER: spreading}

    @property
    def price_book(self) -> PriceBook | None:
        """The user's own prices, None where there are none."""
        if not self.price_rules and not self.price_discount_percent:
            return None
        from reconciler.model.billing import PriceBook

        return PriceBook(self.price_rules, self.price_discount_percent)

    @property
    def commitments(self) -> Commitments | None:
        """The user's savings plans and reserved instances, None where there are none."""
        if not self.savings_plans and not self.reserved_instances:
            return None
        from reconciler.model.billing import Commitments

        return Commitments(
            self.savings_plans, self.reserved_instances, self.commitment_threshold_percent
        )
