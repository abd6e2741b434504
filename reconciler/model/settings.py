"""What our config adds to disruption for a whole fleet: suspensions and windows.

Neither is Karpenter's. A suspension says no until it ends, a window says no outside itself; both
hold for every voluntary reason that they name, or for all where they name none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from reconciler.model.duration import parse_duration
from reconciler.model.schedule import next_change, parse_schedule, steady_until, time_zone

if TYPE_CHECKING:
    from reconciler.model.billing import (
        Commitments,
        PriceBook,
        PriceRule,
        ReservedInstancesTerms,
        SavingsPlanTerms,
    )
    from reconciler.model.karpenter.budget import Budget


# The settings of an engine, with Karpenter's names and defaults where Karpenter has them.
#
# Where each value came from is kept beside it by whoever reads them
# (``desired/settings/layers.py``).


DEFAULT_FEATURE_GATES = {
    "Drift": True,
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
class DefaultConstraint:
    """A spread for pods that name none, as kube-scheduler is configured; it bears no selector."""

    topology_key: str
    max_skew: int = 1
    when_unsatisfiable: str = "DoNotSchedule"
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """What our config adds to one NodePool; None where the fleet's value holds."""

    packing: str | None = None
    per_node_cost: float | None = None
    consolidation_search: str | None = None
    minimum_savings: float | None = None
    minimum_savings_percent: float | None = None
    minimum_age: str | None = None
    undo_period: str | None = None
    maximum_per_day: str | None = None
    wave_size: str | None = None
    wave_soak: str | None = None
    wave_deadline: str | None = None
    stop_after_failures: int | None = None
    progress_deadline: str | None = None
    expiration_policy: str | None = None
    expiration_ceiling: str | None = None


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
    kubeconfig: str = ""
    kube_context: str = ""
    kube_timeout: str = "30s"
    region: str = "us-east-1"
    endpoint_url: str = ""
    role_arn: str = ""
    external_id: str = ""
    session_name: str = ""
    batch_launches_from: int = 100
    instance_types_from: str = "auto"
    prices_from: str = "auto"
    refresh_interval: str = "12h"
    history_keep: str = "90d"
    isolated_vpc: bool = False
    price_discount_percent: float = 0.0
    price_rules: tuple[PriceRule, ...] = ()
    savings_plans: tuple[SavingsPlanTerms, ...] = ()
    reserved_instances: tuple[ReservedInstancesTerms, ...] = ()
    commitment_threshold_percent: float = 95.0
    interruption_queue: str = ""
    rebalance_recommendation: str = "Ignore"
    preference_policy: str = "Respect"
    min_values_policy: str = "Strict"
    vm_memory_overhead_percent: float = 0.075
    reserved_enis: int = 0
    batch_max_duration: str = "10s"
    batch_idle_duration: str = "1s"
    packing: str = "default"
    per_node_cost: float = 0.0
    maximum_preference_cost_percent: float = 10.0
    removal_policy: str = "Guarded"
    consolidation_search: str = "default"
    minimum_savings: float = 0.0
    minimum_savings_percent: float = 0.0
    minimum_age: str = "0s"
    undo_period: str = "0s"
    maximum_per_day: str = ""
    wave_size: str = ""
    wave_soak: str = "0s"
    wave_deadline: str = "15m"
    stop_after_failures: int = 0
    progress_deadline: str = "0s"
    expiration_policy: str = "Forceful"
    expiration_ceiling: str = "24h"
    fleet_budgets: tuple[Budget, ...] = ()
    fleet_maximum_per_day: str = ""
    default_constraints: tuple[DefaultConstraint, ...] = ()
    windows: tuple[Window, ...] = ()
    suspensions: tuple[Suspension, ...] = ()
    feature_gates: dict[str, bool] = field(default_factory=lambda: dict(DEFAULT_FEATURE_GATES))
    subnet_free_addresses: dict[str, int] = field(default_factory=dict)
    placement_group: PlacementGroup | None = None
    node_pools: dict[str, PoolOptions] = field(default_factory=dict)

    def gate(self, name: str) -> bool:
        """Return whether the feature gate is on; an unknown one is off."""
        return self.feature_gates.get(name, DEFAULT_FEATURE_GATES.get(name, False))

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

    def option(self, node_pool: str, name: str) -> Any:
        """Return an option as it holds for a NodePool: its own value, else the fleet's."""
        own = self.node_pools.get(node_pool)
        value = getattr(own, name) if own is not None else None
        return getattr(self, name) if value is None else value

    def option_key(self, node_pool: str, name: str, key: str) -> str:
        """Return under which key of the config the value stands that holds for a NodePool."""
        own = self.node_pools.get(node_pool)
        is_own = own is not None and getattr(own, name) is not None
        return f"nodePools.{node_pool}.{key}" if is_own else key


@dataclass(frozen=True, slots=True)
class Suspension:
    """A «no» that someone has said: until a moment, or until it is taken out again."""

    owner: str
    until: datetime | None = None
    node_pools: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    note: str = ""

    def covers(self, node_pool: str, reason: str) -> bool:
        """Return whether it is about the pool and the reason; none named means all."""
        return _covers(self.node_pools, node_pool) and _covers(self.reasons, reason)

    def is_active(self, now: datetime) -> bool:
        """Return whether it still holds; the moment of its end counts as past."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which disruption is allowed; ``time_zone`` is an IANA name, UTC without one."""

    schedule: str
    duration: str
    time_zone: str | None = None
    node_pools: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    owner: str = ""

    def covers(self, node_pool: str, reason: str) -> bool:
        """Return whether it is about the pool and the reason; none named means all."""
        return _covers(self.node_pools, node_pool) and _covers(self.reasons, reason)

    def is_open(self, now: datetime) -> bool:
        """Return whether it is open; one whose schedule never hits never is.

        Raises:
            ValueError: schedule, duration or time zone cannot be read.
        """
        length = self._length
        began = parse_schedule(self.schedule).next_after(
            (now - length).replace(microsecond=0), time_zone(self.time_zone)
        )
        return began is not None and began <= now

    def next_change(self, now: datetime) -> datetime | None:
        """Return when it opens or closes next, None if never.

        Raises:
            ValueError: schedule, duration or time zone cannot be read.
        """
        schedule, zone = parse_schedule(self.schedule), time_zone(self.time_zone)
        if schedule.next_after(now - self._length, zone) is None:
            return None
        return next_change(schedule, self._length, now, zone)

    def steady_until(self, now: datetime) -> datetime:
        """Return when it may first answer otherwise than at ``now``.

        Raises:
            ValueError: schedule, duration or time zone cannot be read.
        """
        schedule, zone = parse_schedule(self.schedule), time_zone(self.time_zone)
        return steady_until(schedule, self._length, now, zone)

    @property
    def _length(self) -> timedelta:
        return parse_duration(self.duration)


def _covers(named: tuple[str, ...], one: str) -> bool:
    return not named or one in named
