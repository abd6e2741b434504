"""Creates ``Settings`` from the chosen values, and the values to show from ``Settings``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Final

from reconciler.desired.settings.keys import KEYS, POOL_OPTIONS, split_pool_option
from reconciler.desired.settings.policy import written
from reconciler.model.duration import Duration
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.settings import (
    DEFAULT_FEATURE_GATES,
    FeatureGate,
    NodeLimit,
    PlacementGroup,
    PoolOptions,
    Settings,
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
