"""The kubelet settings that families without nodeadm understand: command-line flags of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reconciler.adapters.aws.bootstrap.setup import Setup
from reconciler.model.quantity import parse_quantity

_RESERVED: Final = ("kubeReserved", "systemReserved")


def without_expressions(kubelet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings less the reservations that are not quantities.

    Such a value is an expression, and the gate ``NodeClassCEL`` decides whether it counts.
    """
    kept = dict(kubelet)
    for name in _RESERVED:
        if isinstance(kept.get(name), dict):
            kept[name] = {k: v for k, v in kept[name].items() if _is_quantity(str(v))}
    return {key: value for key, value in kept.items() if value != {}}


def flags(setup: Setup) -> str:
    """Return the kubelet's flags in Karpenter's order; what is not set is left out."""
    kubelet = setup.kubelet
    labels = ",".join(f"{key}={value}" for key, value in setup.labels.items())
    rows = [
        f'--node-labels="{labels}"',
        f'--register-with-taints="{",".join(map(str, setup.taints))}"',
        f"--max-pods={setup.max_pods}",
        _number("pods-per-core", kubelet.get("podsPerCore")),
        _pairs("system-reserved", kubelet.get("systemReserved"), "="),
        _pairs("kube-reserved", kubelet.get("kubeReserved"), "="),
        _pairs("eviction-hard", kubelet.get("evictionHard"), "<"),
        _pairs("eviction-soft", kubelet.get("evictionSoft"), "<"),
        _pairs("eviction-soft-grace-period", kubelet.get("evictionSoftGracePeriod"), "="),
        _number("eviction-max-pod-grace-period", kubelet.get("evictionMaxPodGracePeriod")),
        _number("image-gc-high-threshold", kubelet.get("imageGCHighThresholdPercent")),
        _number("image-gc-low-threshold", kubelet.get("imageGCLowThresholdPercent")),
        _number("cpu-cfs-quota", kubelet.get("cpuCFSQuota")),
    ]
    return " ".join(row for row in rows if row)


def _number(name: str, value: Any) -> str:
    if value is None:
        return ""
    return f"--{name}={str(value).lower() if isinstance(value, bool) else value}"


def _pairs(name: str, values: Mapping[str, Any] | None, sign: str) -> str:
    if not values:
        return ""
    text = ",".join(f"{key}{sign}{values[key]}" for key in sorted(values))
    return f'--{name}="{text}"'


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except ValueError:
        return False
    return True
