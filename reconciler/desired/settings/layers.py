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
    unknown,
)
from reconciler.desired.settings.policy import written
from reconciler.model.duration import Duration
from reconciler.model.errors import UsageError
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.policy import Policy
from reconciler.model.settings import (
    DEFAULT_FEATURE_GATES,
    FeatureGate,
    NodeLimit,
    PlacementGroup,
    PoolOptions,
    Settings,
)
from reconciler.model.text.quoting import quoted
from reconciler.model.text.urls import without_secrets

OPERATOR_ONLY: Final = frozenset(
    {
        "aws.endpointUrl",
        "aws.externalId",
        "aws.roleArn",
        "kubernetes.context",
        "kubernetes.kubeconfig",
        "notifications.webhooks",
    }
)
"""Settings that a repository may not set at all; ``state`` may only be a folder of its own."""


def misplaced(key: str, value: object) -> str:
    """Return why a repository may not set ``key`` to ``value``, empty if it may."""
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


_GATES: Final = "featureGates."
_GROUP: Final = "placementGroup."
_ATTRIBUTES: Final = {field.name for field in fields(Settings)}
_PLAIN: Final = {
    key: definition
    for key, definition in KEYS.items()
    if definition.attribute in _ATTRIBUTES and not key.startswith(_GROUP)
}
_LISTS: Final = {
    "podTopologySpread.defaultConstraints",
    "disruption.budgets",
    "disruption.windows",
    "disruption.suspend",
    "priceBook.rules",
    "commitments.savingsPlans",
    "commitments.reservedInstances",
    "notifications.webhooks",
}


def settings_from(chosen: JsonObject) -> Settings:
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
    return Settings(
        **{KEYS[key].attribute: value for key, value in chosen.items() if key in _PLAIN},
        feature_gates=gates,
        subnet_free_addresses=subnets,
        placement_group=PlacementGroup(**group) if group else None,
        node_pools={name: PoolOptions(**options) for name, options in pools.items()},
    )


def values_of(settings: Settings, chosen: Mapping[str, object]) -> dict[str, object]:
    """Return every setting by its dotted key as a user writes it, defaults included."""
    values: JsonDict = {}
    for key, definition in KEYS.items():
        if key.startswith(_GATES):
            values[key] = settings.gate(FeatureGate(definition.attribute))
        elif key in _LISTS:
            values[key] = written(getattr(settings, definition.attribute))
        elif key in _PLAIN:
            values[key] = _written(getattr(settings, definition.attribute), definition.unset)
        elif key in chosen:
            values[key] = _written(chosen[key])
    own = {key: _written(value) for key, value in sorted(chosen.items()) if key not in values}
    return values | own


def _written(value: object, unset: str = "") -> object:
    """Return a value as in the file."""
    if value is None:
        return unset
    return str(value) if isinstance(value, (Duration, NodeLimit, StrEnum)) else value


CONFIG_FILE: Final = "reconciler.yaml"
CONFIG_VARIABLE: Final = "RECONCILER_CONFIG"
"""The variable that names the operator's configuration file."""
_NO_SETTINGS: Final = frozenset(
    {
        CONFIG_VARIABLE,
        "RECONCILER_DASHBOARD_TOKEN",
        "RECONCILER_HEARTBEAT",
        "RECONCILER_LISTEN",
    }
)
"""Variables that represent flags of a command."""
_NOT_SETTINGS: Final = ("apiVersion", "kind", "policies")
"""Keys of a configuration file that no other layer can set."""
_PATHS: Final = frozenset({"kubernetes.kubeconfig", "state"})
_AWS_VARIABLES: Final = (
    ("AWS_DEFAULT_REGION", "aws.region"),
    ("AWS_REGION", "aws.region"),
    ("AWS_ENDPOINT_URL", "aws.endpointUrl"),
)
_SERVICE_VARIABLE: Final = r"RECONCILER(?:_\w+)?_(?:SERVICE_(?:HOST|PORT\w*)|PORT(?:_\w+)?)"
"""What Kubernetes sets in every pod for a Service named ``reconciler``: not for us."""


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


class _Given(NamedTuple):
    """One value of one layer; ``spelled`` is what to name in an error."""

    key: str
    value: object
    origin: Origin
    spelled: str


def resolve(
    config: Mapping[str, object],
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
    chosen: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    for entry in given:
        key = definition_of(entry.key, entry.spelled)
        try:
            chosen[entry.key] = key.read(entry.value)
        except ValueError as error:
            said = without_secrets(str(error))
            raise UsageError(f"{entry.key}: {said}", where=entry.spelled) from error
        origins[entry.key] = entry.origin
    if fleet and "fleet" not in chosen:
        chosen["fleet"] = fleet
    settings = settings_from(chosen)
    values = values_of(settings, chosen)
    return Resolved(settings, values, {key: origins.get(key, DEFAULT) for key in values})


def flattened(config: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration file by their dotted keys."""
    entries = {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
    return _flattened(entries, "")


def _from_config(config: Mapping[str, object]) -> Iterator[_Given]:
    origin = Origin(Layer.FILE, CONFIG_FILE)
    for key, value in flattened(config):
        why = misplaced(key, value)
        if why:
            raise UsageError(f"{key} {why}", where=CONFIG_FILE, remedy=remedy_of_misplaced(key))
        yield _Given(key, value, origin, CONFIG_FILE)


def _from_operator(file: OperatorFile | None) -> Iterator[_Given]:
    """Yield the settings of the operator's file; a relative path in it starts at its folder."""
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


def _flattened(entries: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def environment_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are meant to set something; an empty one counts as unset."""
    tools = {name for name, _ in _AWS_VARIABLES}
    return {
        name: value
        for name, value in sorted(environ.items())
        if value and (name in tools or (name.startswith("RECONCILER_") and not _is_other(name)))
    }


def _is_other(name: str) -> bool:
    """Return whether a variable of ours is something else than a setting."""
    return name in _NO_SETTINGS or re.fullmatch(_SERVICE_VARIABLE, name) is not None


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    """Yield what the environment sets, the tools' common variables first: ours take precedence."""
    given = environment_of(environ)
    for name, key in _AWS_VARIABLES:
        if name in given:
            yield _Given(key, given.pop(name), Origin(Layer.ENVIRONMENT, name), name)
    if not given:
        return
    known = {environment_name(key): key for key in (*KEYS, *GROUPS)}
    for name, value in given.items():
        if name not in known:
            raise unknown(name, "environment", "unknown variable", known)
        yield from _expanded(known[name], value, Origin(Layer.ENVIRONMENT, name), name)


def _from_flags(sets: Sequence[str]) -> Iterator[_Given]:
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            shown = without_secrets(text, is_value=True)
            raise UsageError(f"--set {quoted(shown)} is not key=value (example: packing=cheapest)")
        spelled = f"--set {without_secrets(text, is_value=True)}"
        yield from _expanded(key.strip(), value, Origin(Layer.FLAG, "--set"), spelled)


def _expanded(key: str, value: str, origin: Origin, spelled: str) -> Iterator[_Given]:
    """Yield one value, or those of a whole level written ``a=1,b=2``."""
    if key not in GROUPS:
        yield _Given(key, value, origin, spelled)
        return
    for part in filter(None, map(str.strip, value.split(","))):
        name, equals, text = part.partition("=")
        if not equals:
            raise UsageError(f"{key}: {quoted(part)} is not name=value", where=spelled)
        yield _Given(f"{key}.{name}", text, origin, spelled)
