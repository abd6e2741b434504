"""Kubelet settings: expressions evaluated for an instance type, and command-line flags.

Expressions are CEL over the facts of an instance type. Image families without nodeadm need flags.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from reconciler.adapters.aws.bootstrap.setup import Setup
from reconciler.model.errors import UsageError
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.resources import MILLI, PODS, is_quantity
from reconciler.model.text.quoting import quote_value

Value = int | float | str | bool

LENGTH_MAX: Final = 1000
"""The maximum length of an expression in characters."""

_STRING: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_UNREADABLE: Final = ("\\", "//", "'''", '"""')
"""Tokens that could hide the end of a string from the check for lists."""

_RESERVED: Final = ("kubeReserved", "systemReserved")
_LABEL: Final = "karpenter.k8s.aws/"


def evaluate(text: str, facts: Mapping[str, Value]) -> int:
    """Return the integer value of an expression; the fraction of a double is cut off.

    Raises:
        ValueError: the expression is invalid, uses an unknown name, or has no finite number.
        UsageError: the package that evaluates expressions is not installed.
    """
    cel = _cel_package()
    _check_expression(text)
    functions = {"min": _min_or_max(min), "max": _min_or_max(max)}
    try:
        program = cel.compile(text)
        unknown = [name for name in program.variables() if name not in facts]
        value: Any = None if unknown else program.execute(cel.Context(dict(facts), functions))
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{quote_value(text)} has no value: {_error_message(error)}") from error
    if unknown:
        raise ValueError(f"unknown name {unknown[0]} in {quote_value(text)}")
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{quote_value(text)} must be a number, not {quote_value(value)}")
    return int(value)


def _cel_package() -> Any:
    """Return the package ``cel``, the Rust implementation of CEL.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import cel
    except ImportError as error:
        from reconciler.installation import install_remedy

        raise UsageError(
            "an expression in kubelet settings needs the package common-expression-language",
            where="featureGates.NodeClassCEL",
            remedy=install_remedy("cel"),
        ) from error
    return cel


def _check_expression(text: str) -> None:
    """Reject expressions that could run for a long time.

    Raises:
        ValueError: it is too long, or contains a list, mapping, comment or escape.
    """
    if len(text) > LENGTH_MAX:
        raise ValueError(f"an expression has at most {LENGTH_MAX} characters, not {len(text)}")
    for sign in _UNREADABLE:
        if sign in text:
            raise ValueError(f"{sign} is not supported in the expression {quote_value(text)}")
    for sign in "[{":
        if sign in _STRING.sub("", text):
            raise ValueError(
                f"lists and mappings are not supported in the expression {quote_value(text)}"
            )


def _min_or_max(function: Any) -> Any:
    """Return ``min`` or ``max`` of two integers or two doubles, as Karpenter declares them."""

    def call(*numbers: Any) -> Any:
        kinds = {type(n) for n in numbers}
        is_declared = len(numbers) == 2 and kinds in ({int}, {float})
        return function(numbers) if is_declared else None

    return call


def _error_message(error: Exception) -> str:
    """Return the library's error message without its list of valid alternatives."""
    return str(error).partition("\n")[0].partition(" expecting {")[0].rpartition("ERROR: ")[2]


Reserved = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""The reservations of a kubelet: for each field, its resources with their quantities."""


def resolve_reserved(kubelet: JsonObject, kind: InstanceType, *, expressions: bool) -> Reserved:
    """Return the reservations of a machine of that type.

    A value that is not a quantity is an expression (``expressions.py``) over the facts of the type.
    If expressions are disabled, it is left out.

    Raises:
        ValueError: an expression has no value.
    """
    rows = []
    for field in _RESERVED:
        values = kubelet.get(field) or {}
        known = {
            str(name): str(value)
            if is_quantity(str(value))
            else _evaluate_quantity(name, str(value), kind)
            for name, value in sorted(values.items())
            if expressions or is_quantity(str(value))
        }
        if known:
            rows.append((field, tuple(known.items())))
    return tuple(rows)


def with_reserved(kubelet: JsonObject, reserved: Reserved) -> JsonDict:
    """Return the settings with the evaluated reservations."""
    others = {key: value for key, value in kubelet.items() if key not in _RESERVED}
    return {**others, **{field: dict(values) for field, values in reserved}}


def _evaluate_quantity(resource: str, expression: str, kind: InstanceType) -> str:
    """Return the quantity of an expression, rounded up as in Karpenter."""
    labels = kind.requirements.fixed_labels()
    facts: dict[str, int | float | str | bool] = {
        name: int(labels[_LABEL + label])
        for name, label in (("vcpus", "instance-cpu"), ("memory_mib", "instance-memory"))
        if _LABEL + label in labels
    }
    facts["max_pods"] = kind.capacity.get(PODS, 0) // MILLI
    facts["instance_type"] = kind.name
    number = evaluate(expression, facts)
    match resource:
        case "cpu":
            return f"{-(-number // 10) * 10}m"
        case "memory":
            return f"{-(-number // 16) * 16}Mi"
        case "ephemeral-storage":
            return f"{number}Gi"
    return str(number)


def flags(setup: Setup) -> str:
    """Return the kubelet's flags in Karpenter's order; settings without a value are left out."""
    kubelet = setup.kubelet
    labels = ",".join(f"{key}={value}" for key, value in setup.labels.items())
    rows = [
        f'--node-labels="{labels}"',
        f'--register-with-taints="{",".join(map(str, setup.taints))}"',
        f"--max-pods={setup.max_pods}",
        _flag("pods-per-core", kubelet.get("podsPerCore")),
        _map_flag("system-reserved", kubelet.get("systemReserved"), "="),
        _map_flag("kube-reserved", kubelet.get("kubeReserved"), "="),
        _map_flag("eviction-hard", kubelet.get("evictionHard"), "<"),
        _map_flag("eviction-soft", kubelet.get("evictionSoft"), "<"),
        _map_flag("eviction-soft-grace-period", kubelet.get("evictionSoftGracePeriod"), "="),
        _flag("eviction-max-pod-grace-period", kubelet.get("evictionMaxPodGracePeriod")),
        _flag("image-gc-high-threshold", kubelet.get("imageGCHighThresholdPercent")),
        _flag("image-gc-low-threshold", kubelet.get("imageGCLowThresholdPercent")),
        _flag("cpu-cfs-quota", kubelet.get("cpuCFSQuota")),
    ]
    return " ".join(row for row in rows if row)


def _flag(name: str, value: object) -> str:
    if value is None:
        return ""
    return f"--{name}={str(value).lower() if isinstance(value, bool) else value}"


def _map_flag(name: str, values: JsonObject | None, sign: str) -> str:
    if not values:
        return ""
    text = ",".join(f"{key}{sign}{values[key]}" for key in sorted(values))
    return f'--{name}="{text}"'
