"""The keys of all settings: for each, the attribute that holds it, and how its value is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from reconciler.desired.settings import billing, policy, readers
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

_SOURCE: Final = readers.choice_reader(DataSource)

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

    ``unset`` is how a user writes the value None. A repository may not set at all what is
    ``operator_only``; ``state`` may only be a folder of its own. A path in the operator's file is
    relative to it.
    """

    key: str
    attribute: str
    read: Callable[[object], Any]
    unset: str = ""
    operator_only: bool = False
    is_path: bool = False


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
        return Key(key, "subnet_free_addresses", readers.read_count)
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


KEYS: Final = {
    key.key: key
    for key in (
        Key("fleet", "fleet", readers.read_name),
        Key("state", "state", readers.read_text, is_path=True),
        Key("cluster", "cluster", readers.choice_reader(ClusterKind)),
        Key("clusterName", "cluster_name", readers.read_text),
        Key("clusterEndpoint", "cluster_endpoint", readers.read_endpoint),
        Key("clusterCABundle", "cluster_ca_bundle", readers.read_text),
        Key("clusterDNS", "cluster_dns", readers.read_text),
        Key("clusterCIDR", "cluster_cidr", readers.read_text),
        Key("ipFamily", "ip_family", readers.choice_reader(IPFamily)),
        Key(
            "kubernetes.kubeconfig",
            "kubeconfig",
            readers.read_text,
            operator_only=True,
            is_path=True,
        ),
        Key("kubernetes.context", "kube_context", readers.read_text, operator_only=True),
        Key("kubernetes.timeout", "kube_timeout", readers.read_duration),
        Key("kubernetes.watch", "kube_watch", readers.read_flag),
        Key(
            "kubernetes.allowKarpenter",
            "kube_allow_karpenter",
            readers.read_flag,
            operator_only=True,
        ),
        Key("kubernetes.resyncInterval", "kube_resync_interval", readers.read_duration),
        Key("kubernetes.staleAfter", "kube_stale_after", readers.read_duration),
        Key("aws.region", "region", readers.read_region),
        Key("aws.endpointUrl", "endpoint_url", readers.read_url, operator_only=True),
        Key("aws.roleArn", "role_arn", readers.read_role, operator_only=True),
        Key("aws.externalId", "external_id", readers.read_text, operator_only=True),
        Key("aws.sessionName", "session_name", readers.read_session),
        Key("aws.batchLaunchesFrom", "batch_launches_from", readers.read_count),
        Key("aws.instanceTypes", "instance_types_from", _SOURCE),
        Key("aws.prices", "prices_from", _SOURCE),
        Key("aws.refreshInterval", "refresh_interval", readers.read_duration),
        Key("isolatedVPC", "isolated_vpc", readers.read_flag),
        Key("history.keep", "history_keep", readers.read_retention, unset=NEVER),
        Key("history.trace", "history_trace", readers.read_recording_period, unset=NEVER),
        Key("metrics.costsBy", "metrics_costs_by", readers.read_groupings),
        Key("notifications.webhooks", "webhooks", readers.read_webhooks, operator_only=True),
        Key("priceBook.discountPercent", "price_discount_percent", billing.read_discount),
        Key("priceBook.rules", "price_rules", billing.read_price_rules),
        Key("commitments.savingsPlans", "savings_plans", billing.read_savings_plans),
        Key("commitments.reservedInstances", "reserved_instances", billing.read_reserved_instances),
        Key(
            "commitments.utilizationThreshold", "commitment_threshold_percent", readers.read_percent
        ),
        Key("interruptionQueue", "interruption_queue", readers.read_text),
        Key(
            "rebalanceRecommendation",
            "rebalance_recommendation",
            readers.choice_reader(RebalanceRecommendation),
        ),
        Key("preferencePolicy", "preference_policy", readers.choice_reader(PreferencePolicy)),
        Key("decide", "decide", readers.choice_reader(DecisionRules)),
        Key("karpenter", "karpenter", readers.choice_reader(KarpenterVersion)),
        Key("legacyNodeRepair", "legacy_node_repair", readers.read_flag),
        Key("ignoreDRARequests", "ignore_dra_requests", readers.read_flag),
        Key("minValuesPolicy", "min_values_policy", readers.choice_reader(MinValuesPolicy)),
        _option(PoolOption.PACKING, readers.choice_reader(Packing)),
        _option(PoolOption.PER_NODE_COST, readers.read_amount),
        Key(
            "maximumPreferenceCostPercent", "maximum_preference_cost_percent", readers.read_percent
        ),
        Key("removalPolicy", "removal_policy", readers.choice_reader(RemovalPolicy)),
        _option(PoolOption.CONSOLIDATION_SEARCH, readers.choice_reader(ConsolidationSearch)),
        _option(PoolOption.MINIMUM_SAVINGS, readers.read_amount),
        _option(PoolOption.MINIMUM_SAVINGS_PERCENT, readers.read_percent),
        _option(PoolOption.EVICTION_COST, readers.read_amount),
        _option(PoolOption.MINIMUM_AGE, readers.read_optional_duration),
        _option(PoolOption.UNDO_PERIOD, readers.read_optional_duration),
        _option(PoolOption.MAXIMUM_PER_DAY, policy.read_node_limit),
        _option(PoolOption.WAVE_SIZE, policy.read_node_limit),
        _option(PoolOption.WAVE_SOAK, readers.read_optional_duration),
        _option(PoolOption.WAVE_DEADLINE, readers.read_duration),
        _option(PoolOption.STOP_AFTER_FAILURES, readers.read_count),
        _option(PoolOption.PROGRESS_DEADLINE, readers.read_optional_duration),
        _option(PoolOption.EXPIRATION_POLICY, readers.choice_reader(ExpirationPolicy)),
        _option(PoolOption.EXPIRATION_CEILING, readers.read_optional_duration),
        Key(
            "podTopologySpread.defaultConstraints", "default_constraints", readers.read_constraints
        ),
        Key("kubeScheduler", "kube_scheduler", readers.read_scheduler),
        Key("disruption.budgets", "fleet_budgets", policy.read_budgets),
        Key("disruption.maximumPerDay", "fleet_maximum_per_day", policy.read_node_limit),
        Key("disruption.windows", "windows", policy.read_windows),
        Key("disruption.suspend", "suspensions", policy.read_suspensions),
        Key("vmMemoryOverheadPercent", "vm_memory_overhead_percent", readers.read_share),
        Key("reservedEnis", "reserved_enis", readers.read_count),
        Key("batchMaxDuration", "batch_max_duration", readers.read_duration),
        Key("batchIdleDuration", "batch_idle_duration", readers.read_duration),
        *(Key(f"featureGates.{gate}", gate, readers.read_flag) for gate in DEFAULT_FEATURE_GATES),
        Key("placementGroup.id", "id", readers.read_text),
        Key("placementGroup.name", "name", readers.read_text),
        Key("placementGroup.strategy", "strategy", readers.choice_reader(PlacementStrategy)),
        Key("placementGroup.partitionCount", "partition_count", readers.read_count),
    )
}
POOL_OPTIONS: Final = {option.value: KEYS[option.value] for option in PoolOption}
