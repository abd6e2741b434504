"""The effective settings: five layers, the later ones winning, and where each value came from.

1. built-in defaults (``model/settings.py``);
2. ``reconciler.yaml`` at the root of the fleet folder;
3. the operator's configuration file outside the repository (``--config``);
4. the environment: ``RECONCILER_`` and the key in capitals, words separated by ``_`` and levels by
   ``__`` (``RECONCILER_PREFERENCE_POLICY``, ``RECONCILER_FEATURE_GATES__NODE_OVERLAY``), a complete
   level at once as ``RECONCILER_SUBNET_FREE_ADDRESSES=subnet-1=10,subnet-2=20``; for the region
   and the endpoint also the variables that every AWS tool reads. An empty variable counts as
   unset;
5. ``--set key=value`` on the command line, the last one winning.

The second layer comes with a pull request. Settings that decide where credentials go, or which
programs run, are therefore not taken from it.

Nothing is read here: the file's data, the environment and the flags are parameters.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

from reconciler.desired.settings.keys import (
    GROUPS,
    KEYS,
    POOL_OPTIONS,
    definition_of,
    environment_name,
    split_pool_option,
    unknown_name_error,
)
from reconciler.desired.settings.policy import format_entries
from reconciler.model.decision.policy import Policy
from reconciler.model.duration import Duration
from reconciler.model.errors import UsageError
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.settings import (
    DEFAULT_FEATURE_GATES,
    ConsolidationSearch,
    DecisionRules,
    FeatureGate,
    NodeLimit,
    PlacementGroup,
    PoolOption,
    SchedulerConfiguration,
    Settings,
)
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import without_secrets

_GATES: Final = "featureGates."
_GROUP: Final = "placementGroup."

_KARPENTER_CHOICES: Final[Mapping[str, object]] = {
    PoolOption.CONSOLIDATION_SEARCH.value: ConsolidationSearch.KARPENTER,
    PoolOption.EVICTION_COST.value: 0.0,
}
"""What Karpenter does where the default of an option of NodePools is another."""

_OBJECTS: Final = frozenset({"kubeScheduler"})
"""Settings whose value is an object."""

CONFIG_FILE: Final = "reconciler.yaml"
CONFIG_VARIABLE: Final = "RECONCILER_CONFIG"
"""The variable that names the operator's configuration file."""
_NO_SETTINGS: Final = frozenset(
    {
        CONFIG_VARIABLE,
        "RECONCILER_ANONYMIZE_KEY",
        "RECONCILER_DASHBOARD_TOKEN",
        "RECONCILER_GIT_ALTERNATES",
        "RECONCILER_HEARTBEAT",
        "RECONCILER_HELM",
        "RECONCILER_KUSTOMIZE",
        "RECONCILER_LISTEN",
    }
)
"""Variables that represent flags of a command, or name a program or folders of the user."""
_NOT_SETTINGS: Final = ("apiVersion", "kind", "policies", "sources", "workloadKinds")
"""Keys of a configuration file that no other layer can set."""
_AWS_VARIABLES: Final = (
    ("AWS_DEFAULT_REGION", "aws.region"),
    ("AWS_REGION", "aws.region"),
    ("AWS_ENDPOINT_URL", "aws.endpointUrl"),
)
_SERVICE_VARIABLE: Final = r"RECONCILER(?:_\w{1,63})?_(?:SERVICE_(?:HOST|PORT\w*)|PORT(?:_\w+)?)"
"""What Kubernetes sets in every pod for a Service named ``reconciler``: not for us."""


def misplacement_reason(key: str, value: object) -> str:
    """Return why a repository may not set ``key`` to ``value``, empty if it may."""
    definition = KEYS.get(key)
    if definition is not None and definition.operator_only:
        if key == "kubernetes.allowKarpenter":
            return "can be set only by the operator: it removes a protection of the whole cluster"
        return "can be set only by the operator: it controls where credentials go or what runs"
    if key == "state" and isinstance(value, str):
        if "://" in value:
            return "can be a server only if the operator sets it: it controls where credentials go"
        if value.startswith(("/", "~", "\\")) or ".." in re.split(r"[/\\]", value):
            return "is outside the fleet folder; only the operator can set that"
    return ""


def misplacement_remedy(key: str) -> str:
    """Return where the operator can set what a repository may not."""
    return (
        f"remove it here; use --set {key}=VALUE, {environment_name(key)}, or the operator's "
        "configuration file (--config FILE or RECONCILER_CONFIG)"
    )


_ATTRIBUTES: Final = {field.name for field in fields(Settings)}
_PLAIN: Final = {
    key: definition
    for key, definition in KEYS.items()
    if definition.attribute in _ATTRIBUTES and not key.startswith(_GROUP)
}


def _with_decision_rules(chosen: JsonDict) -> JsonDict:
    """Return the chosen values, without the options of NodePools if Karpenter decides.

    Karpenter has none of them, so none may change what it is expected to do.
    """
    if chosen.get("decide") != DecisionRules.KARPENTER:
        return chosen
    kept = {
        key: value
        for key, value in chosen.items()
        if key not in POOL_OPTIONS and not key.startswith("nodePools.")
    }
    return {**kept, **_KARPENTER_CHOICES}


def build_settings(chosen: JsonObject) -> Settings:
    """Return the settings with the chosen values, by dotted key, in place of the defaults."""
    gates = {
        gate: chosen.get(f"{_GATES}{gate}", default)
        for gate, default in DEFAULT_FEATURE_GATES.items()
    }
    group = {KEYS[key].attribute: v for key, v in chosen.items() if key.startswith(_GROUP)}
    pools: dict[str, JsonDict] = {}
    subnets: dict[str, int] = {}
    for key, value in sorted(chosen.items()):
        level, _, rest = key.partition(".")
        if level == "nodePools":
            name, option = split_pool_option(rest)
            pools.setdefault(name, {})[POOL_OPTIONS[option].attribute] = value
        elif level == "subnetFreeAddresses":
            subnets[rest] = value
    chosen = {**_spread_of_scheduler(chosen), **chosen}
    return Settings(
        **{KEYS[key].attribute: value for key, value in chosen.items() if key in _PLAIN},
        feature_gates=gates,
        subnet_free_addresses=subnets,
        placement_group=PlacementGroup(**group) if group else None,
        node_pools=pools,
    )


def _spread_of_scheduler(chosen: JsonObject) -> JsonDict:
    """Return the default constraints of the configured scheduler, for the planner as well."""
    configured: SchedulerConfiguration | None = chosen.get("kubeScheduler")
    profile = configured.profiles.get("default-scheduler") if configured is not None else None
    if profile is None or not profile.default_constraints:
        return {}
    return {"podTopologySpread.defaultConstraints": profile.default_constraints}


def setting_values(settings: Settings, chosen: Mapping[str, object]) -> dict[str, object]:
    """Return every setting by its dotted key as a user writes it, defaults included."""
    values: JsonDict = {}
    for key, definition in KEYS.items():
        if key.startswith(_GATES):
            values[key] = settings.gate(FeatureGate(definition.attribute))
        elif key in _PLAIN:
            values[key] = _format_value(getattr(settings, definition.attribute), definition.unset)
        elif key in chosen:
            values[key] = _format_value(chosen[key])
    own = {key: _format_value(value) for key, value in sorted(chosen.items()) if key not in values}
    return values | own


def _format_value(value: object, unset: str = "") -> object:
    """Return a value as in the file."""
    if value is None:
        return unset
    if isinstance(value, tuple):
        return format_entries(value)
    if isinstance(value, SchedulerConfiguration):
        return value.data
    return str(value) if isinstance(value, (Duration, NodeLimit, StrEnum)) else value


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
    """The operator's configuration file: its absolute path, its data, and its policies."""

    path: str
    data: JsonObject
    policies: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The effective settings.

    ``values`` are the same as a user writes them, by dotted key (``featureGates.NodeOverlay``), in
    the order in which they are documented; ``origins`` has an entry for each of them.
    """

    settings: Settings
    values: JsonObject
    origins: Mapping[str, Origin]


class _LayerValue(NamedTuple):
    """One value of one layer; ``spelled`` is what to name in an error."""

    key: str
    value: object
    origin: Origin
    spelled: str


OF_ZONES: Final = Origin(Layer.FILE, "zones of the NodePools")
"""The origin of a region that nothing names."""


def resolve(
    config: Mapping[str, object],
    environ: Mapping[str, str],
    sets: Sequence[str] = (),
    *,
    fleet: str = "",
    region: str = "",
    operator: OperatorFile | None = None,
) -> Resolved:
    """Return the effective settings of a fleet.

    ``config`` is the data of ``reconciler.yaml`` (empty without one), ``operator`` the operator's
    own file, ``sets`` the ``key=value`` texts of the command line, ``fleet`` the name that the
    fleet has where nothing names it, ``region`` that of the zones which its NodePools require.

    Raises:
        UsageError: a key is unknown, a value is not allowed, or the repository sets what only
            the operator may set; it names the origin, what is allowed, and the nearest key.
    """
    layer_values = [
        *_config_values(config),
        *_operator_values(operator),
        *_environment_values(environ),
        *_flag_values(sets),
    ]
    chosen: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    for entry in layer_values:
        key = definition_of(entry.key, entry.spelled)
        try:
            chosen[entry.key] = key.read(entry.value)
        except ValueError as error:
            message = without_secrets(str(error))
            raise UsageError(f"{entry.key}: {message}", where=entry.spelled) from error
        origins[entry.key] = entry.origin
    if fleet and "fleet" not in chosen:
        chosen["fleet"] = fleet
    if region and "aws.region" not in chosen:
        chosen["aws.region"] = region
        origins["aws.region"] = OF_ZONES
    chosen = _with_decision_rules(chosen)
    settings = build_settings(chosen)
    values = setting_values(settings, chosen)
    return Resolved(settings, values, {key: origins.get(key, DEFAULT) for key in values})


def flatten_config(config: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration file by their dotted keys."""
    entries = {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
    return _flatten(entries, "")


def _config_values(config: Mapping[str, object]) -> Iterator[_LayerValue]:
    origin = Origin(Layer.FILE, CONFIG_FILE)
    for key, value in flatten_config(config):
        reason = misplacement_reason(key, value)
        if reason:
            raise UsageError(f"{key} {reason}", where=CONFIG_FILE, remedy=misplacement_remedy(key))
        yield _LayerValue(key, value, origin, CONFIG_FILE)


def _operator_values(file: OperatorFile | None) -> Iterator[_LayerValue]:
    """Yield the settings of the operator's file; a relative path in it starts at its folder."""
    if file is None:
        return
    origin = Origin(Layer.OPERATOR, file.path)
    for key, value in flatten_config(file.data):
        is_path = key in KEYS and KEYS[key].is_path and isinstance(value, str)
        if is_path and value and not value.startswith("~") and "://" not in value:
            value = posixpath.join(posixpath.dirname(file.path), value)
        yield _LayerValue(key, value, origin, file.path)


def _flatten(entries: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in entries.items():
        if isinstance(value, Mapping) and f"{prefix}{key}" not in _OBJECTS:
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def setting_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are settings; an empty one counts as unset."""
    tools = {name for name, _ in _AWS_VARIABLES}
    return {
        name: value
        for name, value in sorted(environ.items())
        if value
        and (name in tools or (name.startswith("RECONCILER_") and not _is_not_a_setting(name)))
    }


def _is_not_a_setting(name: str) -> bool:
    """Return whether a variable with our prefix is not a setting."""
    return name in _NO_SETTINGS or re.fullmatch(_SERVICE_VARIABLE, name) is not None


def _environment_values(environ: Mapping[str, str]) -> Iterator[_LayerValue]:
    """Yield the settings in the environment; AWS variables come first, so ours take precedence."""
    variables = setting_variables(environ)
    for name, key in _AWS_VARIABLES:
        if name in variables:
            yield _LayerValue(key, variables.pop(name), Origin(Layer.ENVIRONMENT, name), name)
    if not variables:
        return
    known = {environment_name(key): key for key in (*KEYS, *GROUPS)}
    for name, value in variables.items():
        if name not in known:
            raise unknown_name_error(name, "environment", "unknown variable", known)
        yield from _expand_group(known[name], value, Origin(Layer.ENVIRONMENT, name), name)


def _flag_values(sets: Sequence[str]) -> Iterator[_LayerValue]:
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            shown = without_secrets(text, is_value=True)
            raise UsageError(
                f"--set {quote_value(shown)} is not key=value (example: packing=cheapest)"
            )
        spelled = f"--set {without_secrets(text, is_value=True)}"
        yield from _expand_group(key.strip(), value, Origin(Layer.FLAG, "--set"), spelled)


def _expand_group(key: str, value: str, origin: Origin, spelled: str) -> Iterator[_LayerValue]:
    """Yield one value, or those of a whole level written ``a=1,b=2``."""
    if key not in GROUPS:
        yield _LayerValue(key, value, origin, spelled)
        return
    for part in filter(None, map(str.strip, value.split(","))):
        name, equals, text = part.partition("=")
        if not equals:
            raise UsageError(f"{key}: {quote_value(part)} is not name=value", where=spelled)
        yield _LayerValue(f"{key}.{name}", text, origin, spelled)
