"""The effective settings: five layers, the later ones winning, and where each value came from.

1. built-in defaults (``model/settings.py``);
2. ``reconciler.yaml`` at the root of the fleet folder;
3. the operator's configuration file, which lies outside the repository (``--config``);
4. the environment: ``RECONCILER_`` and the key in capitals, words parted by ``_`` and levels by
   ``__`` (``RECONCILER_PREFERENCE_POLICY``, ``RECONCILER_FEATURE_GATES__NODE_OVERLAY``), a whole
   level at once as ``RECONCILER_SUBNET_FREE_ADDRESSES=subnet-1=10,subnet-2=20``; for the region
   and the endpoint also the variables that every AWS tool reads. An empty variable counts as
   unset;
5. ``--set key=value`` on the command line, the last one winning.

The second layer comes with a pull request. What says where credentials go, or which programs run,
is therefore not taken from it (``misplaced``).

Nothing is read here: the file's data, the environment and the flags are parameters.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from reconciler.desired.settings.policy import budgets, nodes, suspensions, windows, written
from reconciler.model.duration import NEVER, parse_nanoseconds, parse_span
from reconciler.model.errors import UsageError
from reconciler.model.settings import (
    DEFAULT_FEATURE_GATES,
    DefaultConstraint,
    PlacementGroup,
    PoolOptions,
    Settings,
)
from reconciler.model.text.urls import is_unencrypted, without_secrets

CONFIG_FILE: Final = "reconciler.yaml"
CONFIG_VARIABLE: Final = "RECONCILER_CONFIG"
"""The variable that names the operator's configuration file."""
_NO_SETTINGS: Final = frozenset({CONFIG_VARIABLE, "RECONCILER_HEARTBEAT"})
"""Variables that stand for flags of a command."""
OPERATOR_ONLY: Final = frozenset(
    {
        "aws.endpointUrl",
        "aws.externalId",
        "aws.roleArn",
        "kubernetes.context",
        "kubernetes.kubeconfig",
    }
)
"""What a repository may not set at all; of ``state`` it may only set a folder of its own."""
_PATHS: Final = frozenset({"kubernetes.kubeconfig", "state"})


class Layer(StrEnum):
    """Where a value may come from, from the least to the most specific."""

    DEFAULT = "default"
    FILE = "file"
    OPERATOR = "operator"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: its layer, and the file, variable or flag by name."""

    layer: Layer
    where: str

    def __str__(self) -> str:
        return self.where


DEFAULT: Final = Origin(Layer.DEFAULT, "default")


class OperatorFile(NamedTuple):
    """The operator's configuration file: its absolute path, and its data."""

    path: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The effective settings.

    ``values`` are the same by dotted key (``featureGates.NodeOverlay``), in the order in which
    they are documented; ``origins`` has an entry for each of them.
    """

    settings: Settings
    values: Mapping[str, Any]
    origins: Mapping[str, Origin]


class _Key(NamedTuple):
    """A setting: its key, the attribute that holds it, and how a text or YAML value is read."""

    key: str
    attribute: str
    read: Callable[[Any], Any]


class _Given(NamedTuple):
    """One value of one layer; ``spelled`` is what to name in an error."""

    key: str
    value: Any
    origin: Origin
    spelled: str


def resolve(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    sets: Sequence[str] = (),
    *,
    fleet: str = "",
    operator: OperatorFile | None = None,
) -> Resolved:
    """Return the effective settings of a fleet.

    ``config`` is the data of ``reconciler.yaml`` (empty without one), ``operator`` the operator's
    own file, ``sets`` the ``key=value`` texts of the command line, ``fleet`` the name that the
    fleet has where nothing names it.

    Raises:
        UsageError: a key is unknown, a value is not allowed, or the repository sets what only
            the operator may set; it names the origin, what is allowed, and the nearest key.
    """
    given = [
        *_from_config(config),
        *_from_operator(operator),
        *_from_environment(environ),
        *_from_flags(sets),
    ]
    chosen: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for entry in given:
        key = _known(entry)
        try:
            chosen[entry.key] = key.read(entry.value)
        except ValueError as error:
            said = without_secrets(str(error))
            raise UsageError(f"{entry.key}: {said}", where=entry.spelled) from error
        origins[entry.key] = entry.origin
    if fleet and "fleet" not in chosen:
        chosen["fleet"] = fleet
    settings = _settings(chosen)
    values = _values(settings, chosen)
    return Resolved(settings, values, {key: origins.get(key, DEFAULT) for key in values})


def environment_name(key: str) -> str:
    """Return the variable that sets ``key``: ``RECONCILER_CLUSTER_CA_BUNDLE``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key)
    return "RECONCILER_" + words.replace(".", "__").upper()


def misplaced(key: str, value: Any) -> str:
    """Return why a repository may not set ``key`` to ``value``, empty where it may."""
    if key in OPERATOR_ONLY:
        return "can be set only by the operator: it controls where credentials go or what runs"
    if key == "state" and isinstance(value, str):
        if "://" in value:
            return "can be a server only if the operator sets it: it controls where credentials go"
        if value.startswith(("/", "~", "\\")) or ".." in re.split(r"[/\\]", value):
            return "is outside the fleet folder; only the operator can set that"
    return ""


def remedy_of_misplaced(key: str) -> str:
    """Return where the operator can set what a repository may not."""
    return (
        f"remove it here; use --set {key}=VALUE, {environment_name(key)}, or the operator's "
        "configuration file (--config FILE or RECONCILER_CONFIG)"
    )


def flattened(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration file by their dotted keys."""
    entries = {k: v for k, v in config.items() if k not in ("apiVersion", "kind")}
    return _flattened(entries, "")


def _from_config(config: Mapping[str, Any]) -> Iterator[_Given]:
    origin = Origin(Layer.FILE, CONFIG_FILE)
    for key, value in flattened(config):
        why = misplaced(key, value)
        if why:
            raise UsageError(f"{key} {why}", where=CONFIG_FILE, remedy=remedy_of_misplaced(key))
        yield _Given(key, value, origin, CONFIG_FILE)


def _from_operator(file: OperatorFile | None) -> Iterator[_Given]:
    """Yield what the operator's file sets; a relative path in it is meant from its folder."""
    if file is None:
        return
    origin = Origin(Layer.OPERATOR, file.path)
    for key, value in flattened(file.data):
        is_path = key in _PATHS and isinstance(value, str) and not value.startswith("~")
        if is_path and value and "://" not in value:
            place = posixpath.join(posixpath.dirname(file.path), value)
            yield _Given(key, place, origin, file.path)
        else:
            yield _Given(key, value, origin, file.path)


def _flattened(entries: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    """Yield what the environment sets, the tools' common variables first: ours win over them."""
    for name, key in _AWS_VARIABLES:
        if environ.get(name):
            yield _Given(key, environ[name], Origin(Layer.ENVIRONMENT, name), name)
    ours = {n: v for n, v in sorted(environ.items()) if n.startswith("RECONCILER_") and v}
    if not ours:
        return
    known = {environment_name(key): key for key in (*_KEYS, *_GROUPS)}
    for name, value in ours.items():
        if name in _NO_SETTINGS or re.fullmatch(_SERVICE_VARIABLE, name):
            continue
        if name not in known:
            raise _unknown(name, "environment", "unknown variable", known)
        yield from _expanded(known[name], value, Origin(Layer.ENVIRONMENT, name), name)


def _from_flags(sets: Sequence[str]) -> Iterator[_Given]:
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            shown = without_secrets(text, is_value=True)
            raise UsageError(f"--set {shown!r} is not key=value (example: packing=cheapest)")
        spelled = f"--set {without_secrets(text, is_value=True)}"
        yield from _expanded(key.strip(), value, Origin(Layer.FLAG, "--set"), spelled)


def _expanded(key: str, value: str, origin: Origin, spelled: str) -> Iterator[_Given]:
    """Yield one value, or those of a whole level written ``a=1,b=2``."""
    if key not in _GROUPS:
        yield _Given(key, value, origin, spelled)
        return
    for part in filter(None, map(str.strip, value.split(","))):
        name, equals, text = part.partition("=")
        if not equals:
            raise UsageError(f"{key}: {part!r} is not name=value", where=spelled)
        yield _Given(f"{key}.{name}", text, origin, spelled)


def _known(entry: _Given) -> _Key:
    """Return the definition of a key: a fixed one, or one below a name of the author's."""
    key = _KEYS.get(entry.key)
    if key is not None:
        return key
    group, _, rest = entry.key.partition(".")
    name, option = _pool_option(rest)
    if group == "subnetFreeAddresses" and rest:
        return _Key(entry.key, "subnet_free_addresses", _count)
    if group == "nodePools" and name and option in _POOL_OPTIONS:
        return _POOL_OPTIONS[option]
    if group == "nodePools" and name:
        candidates: Sequence[str] = [f"nodePools.{name}.{option}" for option in _POOL_OPTIONS]
    else:
        candidates = [*_KEYS, *_GROUPS]
    raise _unknown(entry.key, entry.spelled, "unknown setting", candidates)


def _pool_option(text: str) -> tuple[str, str]:
    """Return the name of a NodePool and the option behind it; both may have dots."""
    for option in _POOL_OPTIONS:
        name = text.removesuffix(f".{option}")
        if name != text:
            return name, option
    name, _, option = text.rpartition(".")
    return name, option


def _unknown(name: str, where: str, what: str, candidates: Iterable[str]) -> UsageError:
    from reconciler.model.text.nearest import did_you_mean

    remedy = did_you_mean(name, candidates, "`reconciler config` lists all settings", cutoff=0.7)
    return UsageError(f"{name[:80]}: {what}", where=where, remedy=remedy)


def _settings(chosen: Mapping[str, Any]) -> Settings:
    plain = {_KEYS[key].attribute: value for key, value in chosen.items() if key in _PLAIN}
    gates = {
        gate: chosen.get(f"featureGates.{gate}", default)
        for gate, default in DEFAULT_FEATURE_GATES.items()
    }
    group = {
        _KEYS[key].attribute: value
        for key, value in chosen.items()
        if key.startswith("placementGroup.")
    }
    pools: dict[str, dict[str, Any]] = {}
    subnets: dict[str, int] = {}
    for key, value in sorted(chosen.items()):
        level, _, rest = key.partition(".")
        if level == "nodePools":
            name, option = _pool_option(rest)
            pools.setdefault(name, {})[_POOL_OPTIONS[option].attribute] = value
        elif level == "subnetFreeAddresses":
            subnets[rest] = value
    return Settings(
        **plain,
        feature_gates=gates,
        subnet_free_addresses=subnets,
        placement_group=PlacementGroup(**group) if group else None,
        node_pools={name: PoolOptions(**options) for name, options in pools.items()},
    )


def _values(settings: Settings, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting by its dotted key, defaults included."""
    values: dict[str, Any] = {}
    for key, definition in _KEYS.items():
        if key.startswith("featureGates."):
            values[key] = settings.gate(definition.attribute)
        elif key in _LISTS:
            values[key] = written(getattr(settings, definition.attribute))
        elif key in _PLAIN:
            values[key] = getattr(settings, definition.attribute)
        elif key in chosen:
            values[key] = chosen[key]
    values |= {key: value for key, value in sorted(chosen.items()) if key not in values}
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {value!r}")  # noqa: TRY004 - of the author's making
    return value


def _name(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", text, re.ASCII):
        raise ValueError(
            f"{text[:80]!r} is not a valid name: use letters, digits and '-', at most 63 characters"
        )
    return text


def _choice(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r} is not allowed (one of {', '.join(allowed)})")
        return str(value)

    return read


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(f"{value!r} must be true or false")


def _count(value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
        raise ValueError(f"{value!r} must be an integer of at least 0")
    return int(text)


def _share(value: Any) -> float:
    number = _amount(value)
    if number > 1:
        raise ValueError(f"{value!r} must be a number from 0 to 1 (7.5% is 0.075)")
    return number


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", str(value), re.ASCII):
        raise ValueError(f"{value!r} must be a number of at least 0")
    return float(value)


def _duration(value: Any) -> str:
    text = _text(value)
    if parse_nanoseconds(text) <= 0:
        raise ValueError(f"{text!r} must be longer than 0s")
    return text


def _wait(value: Any) -> str:
    text = _text(value)
    if parse_nanoseconds(text) < 0:
        raise ValueError(f"{text!r} must not be negative")
    return text


def _kept(value: Any) -> str:
    text = _text(value)
    if text != NEVER and parse_span(text) < timedelta(days=1):
        raise ValueError(f"{text!r} must be at least 24h, the period of the daily maximum")
    return text


def _percent(value: Any) -> float:
    number = _amount(value)
    if number > 100:
        raise ValueError(f"{value!r} must be a percentage from 0 to 100")
    return number


def _constraints(value: Any) -> tuple[DefaultConstraint, ...]:
    from reconciler.desired.settings.spreading import constraints  # only where there are any

    return constraints(value)


def _region(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"[a-z]{2,}(-[a-z0-9]+)+", text, re.ASCII):
        raise ValueError(f"{text[:80]!r} is not a region (example: eu-central-1)")
    return text


def _price_rules(value: Any) -> Any:
    from reconciler.desired.settings.billing import price_rules

    return price_rules(value)


def _savings_plans(value: Any) -> Any:
    from reconciler.desired.settings.billing import savings_plans

    return savings_plans(value)


def _reserved_instances(value: Any) -> Any:
    from reconciler.desired.settings.billing import reserved_instances

    return reserved_instances(value)


def _discount(value: Any) -> float:
    from reconciler.desired.settings.billing import discount

    return discount(value)


def _endpoint(value: Any) -> str:
    """Return the URL of an endpoint: https, or plain http on this machine."""
    text = _text(value)
    if text and "://" in text and not re.match(r"https?://[^/?#\s]", text, re.IGNORECASE):
        raise ValueError("is not an http or https URL")
    if is_unencrypted(text):
        raise ValueError("plain http is allowed only for 127.0.0.1; use https")
    return text


def _url(value: Any) -> str:
    text = _endpoint(value)
    if text and not re.fullmatch(_URL, text, re.IGNORECASE):
        raise ValueError("is not an http or https URL (example: https://ec2.example.com:8443)")
    return text


def _role(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"arn:[a-z-]+:iam::[0-9]{12}:role/\S+", text, re.ASCII):
        raise ValueError(f"{text[:80]!r} is not a role ARN (arn:aws:iam::ACCOUNT:role/NAME)")
    return text


def _session(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9_+=,.@-]{2,64}", text, re.ASCII):
        raise ValueError(
            f"{text[:80]!r} is not a valid session name: use 2 to 64 of A-Z a-z 0-9 _+=,.@-"
        )
    return text


_URL: Final = r"https?://(?:[^/?#\s@:\[\]]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[^\s?#]*)?"
_PACKING: Final = _choice("default", "cheapest")
_SOURCE: Final = _choice("auto", "live", "bundled")
_DISRUPTION_OPTIONS: Final = (
    _Key("consolidation.search", "consolidation_search", _choice("default", "thorough")),
    _Key("minimumSavings", "minimum_savings", _amount),
    _Key("minimumSavingsPercent", "minimum_savings_percent", _percent),
    _Key("minimumAge", "minimum_age", _wait),
    _Key("undoPeriod", "undo_period", _wait),
    _Key("maximumPerDay", "maximum_per_day", nodes),
    _Key("waveSize", "wave_size", nodes),
    _Key("waveSoak", "wave_soak", _wait),
    _Key("waveDeadline", "wave_deadline", _duration),
    _Key("stopAfterFailures", "stop_after_failures", _count),
    _Key("progressDeadline", "progress_deadline", _wait),
    _Key("expirationPolicy", "expiration_policy", _choice("Forceful", "Graceful")),
    _Key("expirationCeiling", "expiration_ceiling", _wait),
)
"""How a fleet, or one NodePool, may be stricter in disruption than Karpenter."""
_KEYS: Final = {
    key.key: key
    for key in (
        _Key("fleet", "fleet", _name),
        _Key("state", "state", _text),
        _Key("cluster", "cluster", _choice("kubeconfig", "embedded", "none")),
        _Key("clusterName", "cluster_name", _text),
        _Key("clusterEndpoint", "cluster_endpoint", _endpoint),
        _Key("clusterCABundle", "cluster_ca_bundle", _text),
        _Key("clusterDNS", "cluster_dns", _text),
        _Key("clusterCIDR", "cluster_cidr", _text),
        _Key("ipFamily", "ip_family", _choice("IPv4", "IPv6")),
        _Key("kubernetes.kubeconfig", "kubeconfig", _text),
        _Key("kubernetes.context", "kube_context", _text),
        _Key("kubernetes.timeout", "kube_timeout", _duration),
        _Key("aws.region", "region", _region),
        _Key("aws.endpointUrl", "endpoint_url", _url),
        _Key("aws.roleArn", "role_arn", _role),
        _Key("aws.externalId", "external_id", _text),
        _Key("aws.sessionName", "session_name", _session),
        _Key("aws.batchLaunchesFrom", "batch_launches_from", _count),
        _Key("aws.instanceTypes", "instance_types_from", _SOURCE),
        _Key("aws.prices", "prices_from", _SOURCE),
        _Key("aws.refreshInterval", "refresh_interval", _duration),
        _Key("isolatedVPC", "isolated_vpc", _flag),
        _Key("history.keep", "history_keep", _kept),
        _Key("priceBook.discountPercent", "price_discount_percent", _discount),
        _Key("priceBook.rules", "price_rules", _price_rules),
        _Key("commitments.savingsPlans", "savings_plans", _savings_plans),
        _Key("commitments.reservedInstances", "reserved_instances", _reserved_instances),
        _Key("commitments.utilizationThreshold", "commitment_threshold_percent", _percent),
        _Key("interruptionQueue", "interruption_queue", _text),
        _Key("rebalanceRecommendation", "rebalance_recommendation", _choice("Ignore", "Replace")),
        _Key("preferencePolicy", "preference_policy", _choice("Respect", "Ignore")),
        _Key("minValuesPolicy", "min_values_policy", _choice("Strict", "BestEffort")),
        _Key("packing", "packing", _PACKING),
        _Key("perNodeCost", "per_node_cost", _amount),
        _Key("maximumPreferenceCostPercent", "maximum_preference_cost_percent", _percent),
        _Key("removalPolicy", "removal_policy", _choice("Guarded", "Allow")),
        *_DISRUPTION_OPTIONS,
        _Key("podTopologySpread.defaultConstraints", "default_constraints", _constraints),
        _Key("disruption.budgets", "fleet_budgets", budgets),
        _Key("disruption.maximumPerDay", "fleet_maximum_per_day", nodes),
        _Key("disruption.windows", "windows", windows),
        _Key("disruption.suspend", "suspensions", suspensions),
        _Key("vmMemoryOverheadPercent", "vm_memory_overhead_percent", _share),
        _Key("reservedEnis", "reserved_enis", _count),
        _Key("batchMaxDuration", "batch_max_duration", _duration),
        _Key("batchIdleDuration", "batch_idle_duration", _duration),
        *(_Key(f"featureGates.{gate}", gate, _flag) for gate in DEFAULT_FEATURE_GATES),
        _Key("placementGroup.id", "id", _text),
        _Key("placementGroup.name", "name", _text),
        _Key("placementGroup.strategy", "strategy", _choice("cluster", "partition", "spread")),
        _Key("placementGroup.partitionCount", "partition_count", _count),
    )
}
_ATTRIBUTES: Final = {field.name for field in fields(Settings)}
_PLAIN: Final = {
    key: definition
    for key, definition in _KEYS.items()
    if definition.attribute in _ATTRIBUTES and not key.startswith("placementGroup.")
}
_LISTS: Final = {
    "podTopologySpread.defaultConstraints",
    "disruption.budgets",
    "disruption.windows",
    "disruption.suspend",
    "priceBook.rules",
    "commitments.savingsPlans",
    "commitments.reservedInstances",
}
_POOL_OPTIONS: Final = {
    "packing": _Key("packing", "packing", _PACKING),
    "perNodeCost": _Key("perNodeCost", "per_node_cost", _amount),
    **{key.key: key for key in _DISRUPTION_OPTIONS},
}
_GROUPS: Final = (
    "aws",
    "kubernetes",
    "featureGates",
    "subnetFreeAddresses",
    "placementGroup",
    "nodePools",
)
_AWS_VARIABLES: Final = (
    ("AWS_DEFAULT_REGION", "aws.region"),
    ("AWS_REGION", "aws.region"),
    ("AWS_ENDPOINT_URL", "aws.endpointUrl"),
)
_SERVICE_VARIABLE: Final = r"RECONCILER(?:_\w+)?_(?:SERVICE_(?:HOST|PORT\w*)|PORT(?:_\w+)?)"
"""What Kubernetes sets in every pod beside a Service of the name ``reconciler``: not for us."""
