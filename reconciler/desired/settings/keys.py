"""The keys of all settings: for each, the attribute that holds it, and how its value is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from reconciler.desired.settings.policy import (
    read_budgets,
    read_node_limit,
    read_suspensions,
    read_windows,
)
from reconciler.desired.settings.readers import (
    choice_reader,
    read_amount,
    read_constraints,
    read_count,
    read_discount,
    read_duration,
    read_endpoint,
    read_flag,
    read_groupings,
    read_name,
    read_optional_duration,
    read_percent,
    read_price_rules,
    read_recording_period,
    read_region,
    read_reserved_instances,
    read_retention,
    read_role,
    read_savings_plans,
    read_scheduler,
    read_session,
    read_share,
    read_text,
    read_url,
    read_webhooks,
)
from reconciler.model.duration import NEVER
from reconciler.model.errors import UsageError
from reconciler.model.settings import (
    DEFAULT_FEATURE_GATES,
    ClusterKind,
    ConsolidationSearch,
    DataSource,
    DecisionRules,
    ExpirationPolicy,
    IPFamily,
    KarpenterVersion,
    MinValuesPolicy,
    Packing,
    PlacementStrategy,
    PoolOption,
    PreferencePolicy,
    RebalanceRecommendation,
    RemovalPolicy,
)
from reconciler.model.text.nearest import did_you_mean

_SOURCE: Final = choice_reader(DataSource)

GROUPS: Final = (
    "aws",
    "kubernetes",
    "featureGates",
    "subnetFreeAddresses",
    "placementGroup",
    "nodePools",
)
"""Levels that can be set as a whole, written ``a=1,b=2``."""


class Key(NamedTuple):
    """A setting: its key, the attribute that holds it, and how a text or YAML value is read.

    ``unset`` is how a user writes the value None.
    """

    key: str
    attribute: str
    read: Callable[[object], Any]
    unset: str = ""


def environment_name(key: str) -> str:
    """Return the variable that sets ``key``: ``RECONCILER_CLUSTER_CA_BUNDLE``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key)
    return "RECONCILER_" + words.replace(".", "__").upper()


def definition_of(key: str, where: str) -> Key:
    """Return the definition of a key: a fixed one, or one below a user-defined name.

    Raises: UsageError: the setting does not exist; it names the closest one, and ``where`` it was
    read.
    """
    known = KEYS.get(key)
    if known is not None:
        return known
    group, _, rest = key.partition(".")
    name, option = split_pool_option(rest)
    if group == "subnetFreeAddresses" and rest:
        return Key(key, "subnet_free_addresses", read_count)
    if group == "nodePools" and name and option in POOL_OPTIONS:
        return POOL_OPTIONS[option]
    if group == "nodePools" and name:
        candidates: Sequence[str] = [f"nodePools.{name}.{option}" for option in POOL_OPTIONS]
    else:
        candidates = [*KEYS, *GROUPS]
    raise unknown_name_error(key, where, "unknown setting", candidates)


def split_pool_option(text: str) -> tuple[str, str]:
    """Return the name of a NodePool and the option behind it; both may have dots."""
    for option in POOL_OPTIONS:
        name = text.removesuffix(f".{option}")
        if name != text:
            return name, option
    name, _, option = text.rpartition(".")
    return name, option


def unknown_name_error(name: str, where: str, what: str, candidates: Iterable[str]) -> UsageError:
    """Return the error about a name that is not among the candidates."""
    remedy = did_you_mean(name, candidates, "`reconciler config` lists all settings", cutoff=0.7)
    return UsageError(f"{name[:80]}: {what}", where=where, remedy=remedy)


def _option(option: PoolOption, read: Callable[[object], object]) -> Key:
    return Key(option.value, option.attribute, read)


_PACKING: Final = _option(PoolOption.PACKING, choice_reader(Packing))
_PER_NODE_COST: Final = _option(PoolOption.PER_NODE_COST, read_amount)
_DISRUPTION_OPTIONS: Final = (
    _option(PoolOption.CONSOLIDATION_SEARCH, choice_reader(ConsolidationSearch)),
    _option(PoolOption.MINIMUM_SAVINGS, read_amount),
    _option(PoolOption.MINIMUM_SAVINGS_PERCENT, read_percent),
    _option(PoolOption.EVICTION_COST, read_amount),
    _option(PoolOption.MINIMUM_AGE, read_optional_duration),
    _option(PoolOption.UNDO_PERIOD, read_optional_duration),
    _option(PoolOption.MAXIMUM_PER_DAY, read_node_limit),
    _option(PoolOption.WAVE_SIZE, read_node_limit),
    _option(PoolOption.WAVE_SOAK, read_optional_duration),
    _option(PoolOption.WAVE_DEADLINE, read_duration),
    _option(PoolOption.STOP_AFTER_FAILURES, read_count),
    _option(PoolOption.PROGRESS_DEADLINE, read_optional_duration),
    _option(PoolOption.EXPIRATION_POLICY, choice_reader(ExpirationPolicy)),
    _option(PoolOption.EXPIRATION_CEILING, read_optional_duration),
)
"""Disruption settings of a fleet or a NodePool that are stricter than Karpenter's."""
KEYS: Final = {
    key.key: key
    for key in (
        Key("fleet", "fleet", read_name),
        Key("state", "state", read_text),
        Key("cluster", "cluster", choice_reader(ClusterKind)),
        Key("clusterName", "cluster_name", read_text),
        Key("clusterEndpoint", "cluster_endpoint", read_endpoint),
        Key("clusterCABundle", "cluster_ca_bundle", read_text),
        Key("clusterDNS", "cluster_dns", read_text),
        Key("clusterCIDR", "cluster_cidr", read_text),
        Key("ipFamily", "ip_family", choice_reader(IPFamily)),
        Key("kubernetes.kubeconfig", "kubeconfig", read_text),
        Key("kubernetes.context", "kube_context", read_text),
        Key("kubernetes.timeout", "kube_timeout", read_duration),
        Key("kubernetes.watch", "kube_watch", read_flag),
        Key("kubernetes.allowKarpenter", "kube_allow_karpenter", read_flag),
        Key("kubernetes.resyncInterval", "kube_resync_interval", read_duration),
        Key("kubernetes.staleAfter", "kube_stale_after", read_duration),
        Key("aws.region", "region", read_region),
        Key("aws.endpointUrl", "endpoint_url", read_url),
        Key("aws.roleArn", "role_arn", read_role),
        Key("aws.externalId", "external_id", read_text),
        Key("aws.sessionName", "session_name", read_session),
        Key("aws.batchLaunchesFrom", "batch_launches_from", read_count),
        Key("aws.instanceTypes", "instance_types_from", _SOURCE),
        Key("aws.prices", "prices_from", _SOURCE),
        Key("aws.refreshInterval", "refresh_interval", read_duration),
        Key("isolatedVPC", "isolated_vpc", read_flag),
        Key("history.keep", "history_keep", read_retention, unset=NEVER),
        Key("history.trace", "history_trace", read_recording_period, unset=NEVER),
        Key("metrics.costsBy", "metrics_costs_by", read_groupings),
        Key("notifications.webhooks", "webhooks", read_webhooks),
        Key("priceBook.discountPercent", "price_discount_percent", read_discount),
        Key("priceBook.rules", "price_rules", read_price_rules),
        Key("commitments.savingsPlans", "savings_plans", read_savings_plans),
        Key("commitments.reservedInstances", "reserved_instances", read_reserved_instances),
        Key("commitments.utilizationThreshold", "commitment_threshold_percent", read_percent),
        Key("interruptionQueue", "interruption_queue", read_text),
        Key(
            "rebalanceRecommendation",
            "rebalance_recommendation",
            choice_reader(RebalanceRecommendation),
        ),
        Key("preferencePolicy", "preference_policy", choice_reader(PreferencePolicy)),
        Key("decide", "decide", choice_reader(DecisionRules)),
        Key("karpenter", "karpenter", choice_reader(KarpenterVersion)),
        Key("legacyNodeRepair", "legacy_node_repair", read_flag),
        Key("ignoreDRARequests", "ignore_dra_requests", read_flag),
        Key("minValuesPolicy", "min_values_policy", choice_reader(MinValuesPolicy)),
        _PACKING,
        _PER_NODE_COST,
        Key("maximumPreferenceCostPercent", "maximum_preference_cost_percent", read_percent),
        Key("removalPolicy", "removal_policy", choice_reader(RemovalPolicy)),
        *_DISRUPTION_OPTIONS,
        Key("podTopologySpread.defaultConstraints", "default_constraints", read_constraints),
        Key("kubeScheduler", "kube_scheduler", read_scheduler),
        Key("disruption.budgets", "fleet_budgets", read_budgets),
        Key("disruption.maximumPerDay", "fleet_maximum_per_day", read_node_limit),
        Key("disruption.windows", "windows", read_windows),
        Key("disruption.suspend", "suspensions", read_suspensions),
        Key("vmMemoryOverheadPercent", "vm_memory_overhead_percent", read_share),
        Key("reservedEnis", "reserved_enis", read_count),
        Key("batchMaxDuration", "batch_max_duration", read_duration),
        Key("batchIdleDuration", "batch_idle_duration", read_duration),
        *(Key(f"featureGates.{gate}", gate, read_flag) for gate in DEFAULT_FEATURE_GATES),
        Key("placementGroup.id", "id", read_text),
        Key("placementGroup.name", "name", read_text),
        Key("placementGroup.strategy", "strategy", choice_reader(PlacementStrategy)),
        Key("placementGroup.partitionCount", "partition_count", read_count),
    )
}
POOL_OPTIONS: Final = {key.key: key for key in (_PACKING, _PER_NODE_COST, *_DISRUPTION_OPTIONS)}
