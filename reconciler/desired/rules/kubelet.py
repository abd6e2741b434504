"""The kubelet settings of an EC2NodeClass that can be checked without an instance type.

The API server accepts any mapping there; Karpenter's controller rejects invalid ones
(``kubeletconfiguration_validation.go``). Names and types are in the schema; this is the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.duration import parse_nanoseconds
from reconciler.model.json import JsonDict
from reconciler.model.resources import parse_quantity
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding, shown

_AT: Final[Pointer] = ("spec", "kubelet")
_SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
)
_RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")
_READ: Final = frozenset(
    {
        "clusterDNS",
        "maxPods",
        "podsPerCore",
        "systemReserved",
        "kubeReserved",
        "evictionHard",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionMaxPodGracePeriod",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "cpuCFSQuota",
    }
)
_OPEN_FAMILIES: Final = ("AL2023", "Custom")
_FAMILIES: Final = {
    "al2": "AL2",
    "al2023": "AL2023",
    "bottlerocket": "Bottlerocket",
    "windows2019": "Windows2019",
    "windows2022": "Windows2022",
    "windows2025": "Windows2025",
}


def check_kubelet(data: JsonDict) -> Iterator[Finding]:
    """Yield what Karpenter's controller would reject in ``spec.kubelet``."""
    kubelet = data["spec"].get("kubelet")
    if not kubelet:
        return
    if "registerWithTaints" in kubelet:
        message = "can't be set: the engine sets it from the taints of the NodeClaim"
        hint = "use startupTaints of the NodePool"
        yield Finding("kubelet-owned", (*_AT, "registerWithTaints"), message, hint, of_key=True)
    for field in ("evictionHard", "evictionSoft", "evictionMinimumReclaim"):
        yield from _signals(kubelet, field, _threshold_fault)
    yield from _signals(kubelet, "evictionSoftGracePeriod", _grace_fault)
    yield from _pairs(kubelet)
    for field in ("kubeReserved", "systemReserved"):
        yield from _reserved(kubelet, field)
    yield from _numbers(kubelet)
    yield from _supported(data["spec"], kubelet)


def _signals(kubelet: JsonDict, field: str, fault_of: Callable[[str], str]) -> Iterator[Finding]:
    for signal, value in kubelet.get(field, {}).items():
        at = (*_AT, field, signal)
        if signal not in _SIGNALS:
            message = f"{shown(signal)} is not an eviction signal"
            yield Finding(
                "kubelet-signal", at, message, f"one of {', '.join(_SIGNALS)}", of_key=True
            )
        elif fault := fault_of(value):
            yield Finding("kubelet-value", at, f"invalid value {shown(value)}; {fault}")


def _threshold_fault(value: str) -> str:
    if value.endswith("%"):
        try:
            share = float(value[:-1])
        except ValueError:
            share = -1.0
        return "" if 0 <= share <= 100 else "must be a percentage from 0% to 100%, or a quantity"
    try:
        amount = parse_quantity(value)
    except ValueError:
        return "must be a percentage or a quantity (5%, 500Mi)"
    return "a quantity cannot be negative" if amount < 0 else ""


def _grace_fault(value: str) -> str:
    try:
        length = parse_nanoseconds(value)
    except ValueError:
        return "must be a duration (30s, 2m)"
    return "a duration cannot be negative" if length < 0 else ""


def _pairs(kubelet: JsonDict) -> Iterator[Finding]:
    soft = kubelet.get("evictionSoft", {})
    grace = kubelet.get("evictionSoftGracePeriod", {})
    for field, own, other, other_field in (
        ("evictionSoft", soft, grace, "evictionSoftGracePeriod"),
        ("evictionSoftGracePeriod", grace, soft, "evictionSoft"),
    ):
        for signal in own:
            if signal not in other:
                message = f"{signal} has no matching {other_field}"
                hint = "both must have the same signals"
                yield Finding("kubelet-pair", (*_AT, field, signal), message, hint, of_key=True)


def _reserved(kubelet: JsonDict, field: str) -> Iterator[Finding]:
    for name, value in kubelet.get(field, {}).items():
        at = (*_AT, field, name)
        if name not in _RESERVABLE:
            message = f"{shown(name)} cannot be reserved"
            hint = f"one of {', '.join(_RESERVABLE)}"
            yield Finding("kubelet-reserved", at, message, hint, of_key=True)
        elif value.startswith("-"):
            yield Finding(
                "kubelet-value", at, f"invalid value {shown(value)}; a quantity cannot be negative"
            )
        else:
            yield from _expression(at, value, is_quantity(value))


def is_quantity(text: str) -> bool:
    """Return whether ``text`` is a Kubernetes quantity."""
    try:
        parse_quantity(text)
    except ValueError:
        return False
    return True


def _expression(at: Pointer, text: str, is_plain: bool) -> Iterator[Finding]:
    if not is_plain:
        message = f"{shown(text)} is an expression, which requires the feature gate NodeClassCEL"
        hint = "set featureGates.NodeClassCEL: true in reconciler.yaml"
        yield Finding("kubelet-expression", at, message, hint, Severity.INFO)


def _numbers(kubelet: JsonDict) -> Iterator[Finding]:
    high, low = "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"
    for field in (high, low):
        if not 0 <= kubelet.get(field, 0) <= 100:
            message = f"{kubelet[field]} is out of range; must be from 0 to 100"
            yield Finding("out-of-range", (*_AT, field), message)
    for field in ("podsPerCore", "evictionMaxPodGracePeriod", "maxPods"):
        value = kubelet.get(field, 0)
        if isinstance(value, str):
            yield from _expression((*_AT, field), value, is_plain=False)
        elif value < 0:
            yield Finding(
                "out-of-range", (*_AT, field), f"{value} is out of range; cannot be negative"
            )
    if high in kubelet and low in kubelet and kubelet[high] <= kubelet[low]:
        message = f"is {kubelet[high]}; must be greater than {low}, which is {kubelet[low]}"
        yield Finding("kubelet-threshold-order", (*_AT, high), message)


def _supported(spec: dict[str, object], kubelet: JsonDict) -> Iterator[Finding]:
    """Only AL2023 and Custom pass every setting on; the other families ignore unknown ones.

    This is a warning: Karpenter marks such a class as not ready, but launches from one that is
    marked ready.
    """
    family = ami_family(spec)
    if family in _OPEN_FAMILIES:
        return
    for field in kubelet:
        if field not in _READ and field != "registerWithTaints":
            hint = f"only {' and '.join(_OPEN_FAMILIES)} support every kubelet setting"
            yield _unsupported(field, f"is not supported with the family {family}", hint)
    if family == "Bottlerocket" and "podsPerCore" in kubelet:
        yield _unsupported("podsPerCore", "is not supported with the family Bottlerocket")
    if len(kubelet.get("clusterDNS", ())) > 1:
        count = len(kubelet["clusterDNS"])
        yield _unsupported("clusterDNS", f"has {count} addresses; the family {family} supports one")


def _unsupported(field: str, message: str, hint: str = "") -> Finding:
    at = (*_AT, field)
    return Finding("kubelet-unsupported", at, message, hint, Severity.WARNING, of_key=True)


def ami_family(spec: JsonDict) -> str:
    """Return the image family: as set, otherwise of the alias, otherwise Custom."""
    if "amiFamily" in spec:
        return str(spec["amiFamily"])
    aliases = [t["alias"] for t in spec.get("amiSelectorTerms", ()) if "alias" in t]
    return _FAMILIES.get(aliases[0].split("@")[0], "Custom") if aliases else "Custom"
