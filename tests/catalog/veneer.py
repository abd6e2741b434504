"""Veneer's own behaviour around its overlays: its configuration, validation and updates.

The catalog makes the same decisions as Veneer. The rest of Veneer's behaviour is not needed in the
product; it is implemented here so that the tables can document it. Facts of ``pkg/config``,
``pkg/overlay`` and ``pkg/reconciler`` of Veneer 0.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from reconciler.catalog.adjusted.preference import MANAGED_BY, NUMBER, SOURCE, TYPE
from reconciler.catalog.commitments.accounting import CommitmentSettings, SavingsPlan
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from reconciler.model.karpenter.requirements import Operator

INTERVAL_S: Final = 300.0
"""Veneer's default interval for reading commitments, in seconds."""

AGE_MAX_S: Final = 3900
"""Older readings are ignored: existing overlays stay as they are."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NAME_LENGTH_MAX: Final = 253
_LABEL_LENGTH_MAX: Final = 63
_WEIGHT_MAX: Final = 10_000
_PRICE: Final = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_OPERATORS: Final = frozenset(
    {
        Operator.IN,
        Operator.NOT_IN,
        Operator.EXISTS,
        Operator.DOES_NOT_EXIST,
        Operator.GT,
        Operator.LT,
    }
)


class _Key(NamedTuple):
    """A key of the file: the environment variable that overrides it, and the default."""

    variable: str
    default: Any


_KEYS: Final[Mapping[str, _Key]] = {
    "prometheusUrl": _Key("VENEER_PROMETHEUS_URL", "http://prometheus:9090"),
    "logLevel": _Key("VENEER_LOG_LEVEL", "info"),
    "metricsBindAddress": _Key("VENEER_METRICS_BIND_ADDRESS", ":8080"),
    "healthProbeBindAddress": _Key("VENEER_HEALTH_PROBE_BIND_ADDRESS", ":8081"),
    "aws.accountId": _Key("VENEER_AWS_ACCOUNT_ID", ""),
    "aws.region": _Key("VENEER_AWS_REGION", ""),
    "overlays.disabled": _Key("VENEER_OVERLAY_DISABLED", default=False),
    "overlays.utilizationThreshold": _Key("", 95.0),
    "overlays.weights.reservedInstance": _Key("", 30),
    "overlays.weights.ec2InstanceSavingsPlan": _Key("", 20),
    "overlays.weights.computeSavingsPlan": _Key("", 10),
    "overlays.naming.reservedInstancePrefix": _Key("", "cost-aware-ri"),
    "overlays.naming.ec2InstanceSavingsPlanPrefix": _Key("", "cost-aware-ec2-sp"),
    "overlays.naming.computeSavingsPlanPrefix": _Key("", "cost-aware-compute-sp"),
    "preferences.enabled": _Key("", default=True),
}
_FOLDED: Final = {key.casefold(): key for key in _KEYS}
_LOG_LEVELS: Final = ("", "debug", "info", "warn", "error")
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")


class ConfigError(ValueError):
    """Veneer would not start with this; ``field`` is the dotted key at fault."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(f"{field}: {message}")


def read_config(data: Mapping[str, Any] | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return Veneer's configuration by dotted key: environment, else file, else default.

    As in Veneer, keys are case-insensitive, and unknown keys and empty variables are ignored.
    Without a file (None) it continues without any settings, and validates nothing.

    Raises:
        ConfigError: Veneer rejects it; of several errors, the first one it finds.
    """
    if data is None:
        return {key: type(default)() for key, (_, default) in _KEYS.items()}
    given = dict(_flattened(data, ""))
    values: dict[str, Any] = {}
    for key, (variable, default) in _KEYS.items():
        text = environ.get(variable, "") if variable else ""
        value = text or given.get(key)
        values[key] = default if value is None else _converted(key, value, default)
    _check(values)
    return values


def _flattened(data: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in data.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found += _flattened(value, f"{path}.")
        elif path.casefold() in _FOLDED:
            found.append((_FOLDED[path.casefold()], value))
    return found


def _converted(key: str, value: Any, default: Any) -> Any:
    """Return a value with the type of its key; texts are parsed, as in a file with quotes."""
    try:
        if isinstance(default, bool):
            return _truth(value)
        if isinstance(default, str):
            return str(value)
        return type(default)(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(key, f"{value!r} is not a {type(default).__name__}") from error


def _truth(value: Any) -> bool:
    if isinstance(value, (bool, int, float)):
        return bool(value)
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ValueError(value)


def _check(values: Mapping[str, Any]) -> None:
    """Reject what Veneer rejects, in its order."""
    for key in ("prometheusUrl", "aws.accountId", "aws.region"):
        if not values[key]:
            raise ConfigError(key, "is required")
    if not re.fullmatch(r"[0-9]{12}", values["aws.accountId"], re.ASCII):
        raise ConfigError("aws.accountId", f"{values['aws.accountId']!r} is not 12 digits")
    if values["logLevel"] not in _LOG_LEVELS:
        raise ConfigError("logLevel", f"{values['logLevel']!r} is none of debug, info, warn, error")
    threshold = values["overlays.utilizationThreshold"]
    if not 0 <= threshold <= 100:
        raise ConfigError("overlays.utilizationThreshold", f"{threshold} is not from 0 to 100")
    for kind in ("reservedInstance", "ec2InstanceSavingsPlan", "computeSavingsPlan"):
        key = f"overlays.weights.{kind}"
        if values[key] < 0:
            raise ConfigError(key, f"{values[key]} is below 0")


def settings_of(values: Mapping[str, Any]) -> CommitmentSettings:
    """Return the commitment settings of a configuration."""
    return CommitmentSettings(
        threshold_percent=values["overlays.utilizationThreshold"],
        compute_weight=values["overlays.weights.computeSavingsPlan"],
        ec2_instance_weight=values["overlays.weights.ec2InstanceSavingsPlan"],
        reserved_weight=values["overlays.weights.reservedInstance"],
        compute_prefix=values["overlays.naming.computeSavingsPlanPrefix"],
        ec2_instance_prefix=values["overlays.naming.ec2InstanceSavingsPlanPrefix"],
        reserved_prefix=values["overlays.naming.reservedInstancePrefix"],
    )


def cycle_s(configured: float | None) -> float:
    """Return the seconds between two of Veneer's reconciliations; 0 means the default."""
    return configured or INTERVAL_S


def applied(*, wanted: bool | None, existing: Mapping[str, str] | None) -> OverlayChange | None:
    """Return Veneer's operation on an overlay with a decision's name.

    ``wanted`` is None if no decision names the overlay any more, as when the commitment has ended:
    Veneer leaves such an overlay in place. ``existing`` are the labels of the one in the cluster,
    None without one. It overwrites overlays of other owners, and deletes only its own.
    """
    if wanted:
        return OverlayChange.CREATE if existing is None else OverlayChange.UPDATE
    if wanted is None or existing is None:
        return None
    key, owner = MANAGED_BY
    return OverlayChange.DELETE if existing.get(key) == owner else None


class Fault(msgspec.Struct, frozen=True):
    """A field of an overlay that Veneer's own validation rejects, and why."""

    field: str
    message: str


def faults(overlay: NodeOverlay) -> list[Fault]:
    """Return the errors of Veneer's validation before writing; Karpenter's is ``overlaycheck``."""
    found: list[Fault] = []
    if not overlay.name:
        found.append(Fault("metadata.name", "is required"))
    elif len(overlay.name) > _NAME_LENGTH_MAX:
        found.append(Fault("metadata.name", f"is longer than {_NAME_LENGTH_MAX}"))
    for key, value in overlay.metadata.labels.items():
        if len(key) > _NAME_LENGTH_MAX or len(value) > _LABEL_LENGTH_MAX:
            found.append(Fault(f"metadata.labels[{key}]", "is too long"))
    found += _requirement_faults(overlay)
    price, weight = overlay.spec.price, overlay.spec.weight
    if price is not None and not _PRICE.fullmatch(price):
        found.append(Fault("spec.price", f"{price!r} is not a decimal from 0 on"))
    if weight is not None and not 1 <= weight <= _WEIGHT_MAX:
        found.append(Fault("spec.weight", f"{weight} is not from 1 to {_WEIGHT_MAX}"))
    return found


def _requirement_faults(overlay: NodeOverlay) -> list[Fault]:
    if not overlay.spec.requirements:
        return [Fault("spec.requirements", "at least one is required")]
    found: list[Fault] = []
    for index, entry in enumerate(overlay.spec.requirements):
        path = f"spec.requirements[{index}]"
        if not entry.key:
            found.append(Fault(f"{path}.key", "is required"))
        if entry.operator not in _OPERATORS:
            found.append(Fault(f"{path}.operator", f"{entry.operator} is not supported"))
        if entry.operator in (Operator.IN, Operator.NOT_IN) and not entry.values:
            found.append(Fault(f"{path}.values", f"{entry.operator} needs at least one value"))
    return found


def is_preference_overlay(labels: Mapping[str, str]) -> bool:
    """Return whether these are the labels of a preference overlay created by Veneer."""
    return all(labels.get(key) == value for key, value in (MANAGED_BY, TYPE))


def preference_number(labels: Mapping[str, str]) -> int:
    """Return the preference number in an overlay's labels, or 0 if there is none."""
    text = labels.get(NUMBER, "")
    return int(text) if _INTEGER.fullmatch(text) else 0


class OverlayChange(StrEnum):
    """The operation that updates an overlay in the cluster."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    TAKEN = "create-fails-already-exists"


def overlay_changes(
    node_pool: str, desired: Iterable[NodeOverlay], existing: Iterable[NodeOverlay]
) -> dict[str, OverlayChange]:
    """Return the operations that update a NodePool's overlays, by name, as Veneer would.

    An overlay with one of these names but without the labels has another owner and is left alone.
    """
    desired_by_name = {overlay.name: overlay for overlay in desired}
    existing_by_name = {overlay.name: overlay for overlay in existing}
    ours = {
        name: o
        for name, o in existing_by_name.items()
        if _is_from_pool(node_pool, o.metadata.labels)
    }
    found: dict[str, OverlayChange] = {}
    for name in sorted({*desired_by_name, *ours}):
        if name not in desired_by_name:
            found[name] = OverlayChange.DELETE
        elif name in ours:
            if needs_update(ours[name], desired_by_name[name]):
                found[name] = OverlayChange.UPDATE
        else:
            found[name] = OverlayChange.TAKEN if name in existing_by_name else OverlayChange.CREATE
    return found


def _is_from_pool(node_pool: str, labels: Mapping[str, str]) -> bool:
    return is_preference_overlay(labels) and labels.get(SOURCE) == node_pool


def needs_update(existing: NodeOverlay, desired: NodeOverlay) -> bool:
    """Return whether an overlay differs from the desired one; labels of others are ignored."""
    labels = existing.metadata.labels
    same = all(labels.get(key) == value for key, value in desired.metadata.labels.items())
    return not same or existing.spec != desired.spec


def is_fresh(age_s: float | None) -> bool:
    """Return whether readings of that age are usable; None means unknown."""
    return age_s is not None and age_s <= AGE_MAX_S


def with_remaining(
    commitments: Iterable[SavingsPlan], remaining: Mapping[str, float]
) -> list[SavingsPlan]:
    """Return the plans with their remaining amounts, by ARN; empty if these are unknown."""
    return [
        msgspec.structs.replace(plan, remaining=remaining.get(plan.arn, 0.0))
        for plan in commitments
    ]


def parse_family_and_region(name: str) -> tuple[str, str]:
    """Return family and region from the name of an EC2 instance plan's overlay, as Veneer does.

    It uses the last three words as the region, so ``us-gov-west-1`` loses its first.
    """
    rest = name.removeprefix(CommitmentSettings().ec2_instance_prefix + "-")
    words = rest.split("-")
    if rest == name or len(words) < 2:
        return "", ""
    split = -3 if len(words) >= 4 else 1
    return "-".join(words[:split]), "-".join(words[split:])


def parse_type_and_region(name: str) -> tuple[str, str]:
    """Return instance type and region from the name of a reservation's overlay, as Veneer does.

    The type ends at the first hyphen after its dot, so ``c7i.metal-24xl`` is cut short.
    """
    rest = name.removeprefix(CommitmentSettings().reserved_prefix + "-")
    dot = rest.find(".")
    hyphen = rest.find("-", dot)
    if rest == name or dot < 0 or hyphen < 0:
        return "", ""
    return rest[:hyphen], rest[hyphen + 1 :]
