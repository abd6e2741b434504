"""Karpenter's run-time validation: what the API server admits and the controller then rejects.

Such an object exists in a cluster and never becomes ready; here it is rejected at once. What the
controller only logs is a warning. Sources: ``nodepool_validation.go``, ``nodeclaim_validation.go``,
``nodeoverlay_validation.go``, ``kubeletconfiguration_validation.go``. Schedules and time zones are
checked as the budget reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from reconciler.desired.rules.devices import check_sharing
from reconciler.desired.rules.idle import check_image_version, check_limits, check_requirements
from reconciler.desired.rules.lifetimes import check_lifetimes
from reconciler.model.diagnostics import Severity
from reconciler.model.duration import parse_nanoseconds
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.imagefamily import image_family
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    ON_DEMAND,
    RESERVED,
    SPOT,
    normalize_label,
)
from reconciler.model.karpenter.requirements import Requirement, requirement
from reconciler.model.kubernetes.labelsyntax import key_fault, value_fault
from reconciler.model.resources import MILLI, is_quantity, parse_quantity
from reconciler.model.schedule import is_always_open, parse_schedule, time_zone
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.resource import AUTO_MODE
from reconciler.source.schema import quantity_hint

_USER_DATA: Final[Pointer] = ("spec", "userData")
USER_DATA_MAX: Final = 16_384
"""The most bytes of user data that EC2 accepts, before base64."""
_KUBELET: Final[Pointer] = ("spec", "kubelet")
_SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
)
_RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")
_COMMON_SETTINGS: Final = frozenset(
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

_TOKEN: Final = re.compile(
    r"""(?:(?P<operand>0[xX][0-9a-fA-F]+[uU]?|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?[uU]?|\.[0-9]+
    |[A-Za-z_][A-Za-z0-9_]*|'[^']*'|"[^"]*")|(?P<closed>[)\]}])|(?P<other>[^\s]))""",
    re.ASCII | re.VERBOSE,
)

_WITHOUT_VALUES: Final = ("Exists", "DoesNotExist")
_CAPACITY_TYPES: Final = (ON_DEMAND, RESERVED, SPOT)

_TEMPLATE: Final[Pointer] = ("spec", "template", "spec")


def check_kubelet(data: JsonDict) -> Iterator[Finding]:
    """Yield findings on settings in ``spec.kubelet`` that Karpenter's controller would reject."""
    kubelet = data["spec"].get("kubelet")
    if not kubelet:
        return
    if "registerWithTaints" in kubelet:
        message = "can't be set: the engine sets it from the taints of the NodeClaim"
        hint = "use startupTaints of the NodePool"
        yield Finding(
            "kubelet-owned", (*_KUBELET, "registerWithTaints"), message, hint, of_key=True
        )
    for field in ("evictionHard", "evictionSoft", "evictionMinimumReclaim"):
        yield from _signals(kubelet, field, _threshold_fault)
    yield from _signals(kubelet, "evictionSoftGracePeriod", _grace_fault)
    yield from _pairs(kubelet)
    for field in ("kubeReserved", "systemReserved"):
        yield from _reserved_amounts(kubelet, field)
    yield from _numbers(kubelet)
    yield from _unsupported_settings(data["spec"], kubelet)


def _signals(kubelet: JsonDict, field: str, fault_of: Callable[[str], str]) -> Iterator[Finding]:
    for signal, value in kubelet.get(field, {}).items():
        at = (*_KUBELET, field, signal)
        if signal not in _SIGNALS:
            message = f"{quote_value(signal)} is not an eviction signal"
            yield Finding(
                "kubelet-signal", at, message, f"one of {', '.join(_SIGNALS)}", of_key=True
            )
        elif fault := fault_of(value):
            yield Finding("kubelet-value", at, f"invalid value {quote_value(value)}; {fault}")


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
                yield Finding(
                    "kubelet-pair", (*_KUBELET, field, signal), message, hint, of_key=True
                )


def _reserved_amounts(kubelet: JsonDict, field: str) -> Iterator[Finding]:
    for name, value in kubelet.get(field, {}).items():
        at = (*_KUBELET, field, name)
        if name not in _RESERVABLE:
            message = f"{quote_value(name)} cannot be reserved"
            hint = f"one of {', '.join(_RESERVABLE)}"
            yield Finding("kubelet-reserved", at, message, hint, of_key=True)
        elif value.startswith("-"):
            yield Finding(
                "kubelet-value",
                at,
                f"invalid value {quote_value(value)}; a quantity cannot be negative",
            )
        else:
            yield from _expression_finding(at, value, is_quantity(value))


def _has_adjacent_operands(text: str) -> bool:
    """Return whether two operands follow each other, which no expression allows: ``100 MiB``."""
    is_complete = False
    for match in _TOKEN.finditer(text):
        if match["operand"] not in (None, "in") and is_complete:
            return True
        is_complete = match["other"] is None and match["operand"] != "in"
    return False


def _expression_finding(at: Pointer, text: str, is_plain: bool) -> Iterator[Finding]:
    if not is_plain and _has_adjacent_operands(text):
        message = f"{quote_value(text)} is neither a quantity nor an expression"
        yield Finding("bad-quantity", at, message, quantity_hint(text) or "examples: 100Mi, 1Gi")
    elif not is_plain:
        message = (
            f"{quote_value(text)} is an expression, which requires the feature gate NodeClassCEL"
        )
        hint = "set featureGates.NodeClassCEL: true in reconciler.yaml"
        yield Finding("kubelet-expression", at, message, hint, Severity.INFO)


def _numbers(kubelet: JsonDict) -> Iterator[Finding]:
    high, low = "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"
    for field in (high, low):
        if not 0 <= kubelet.get(field, 0) <= 100:
            message = f"{kubelet[field]} is out of range; must be from 0 to 100"
            yield Finding("out-of-range", (*_KUBELET, field), message)
    for field in ("podsPerCore", "evictionMaxPodGracePeriod", "maxPods"):
        value = kubelet.get(field, 0)
        if isinstance(value, str):
            yield from _expression_finding((*_KUBELET, field), value, is_plain=False)
        elif value < 0:
            yield Finding(
                "out-of-range", (*_KUBELET, field), f"{value} is out of range; cannot be negative"
            )
    if high in kubelet and low in kubelet and kubelet[high] <= kubelet[low]:
        message = f"is {kubelet[high]}; must be greater than {low}, which is {kubelet[low]}"
        yield Finding("kubelet-threshold-order", (*_KUBELET, high), message)


def _unsupported_settings(spec: dict[str, object], kubelet: JsonDict) -> Iterator[Finding]:
    """Yield warnings on settings that the image family ignores.

    Only AL2023 and Custom pass on every setting; the other families ignore unknown ones.

    This is a warning: Karpenter marks such a class as not ready, but launches from one that is
    marked ready.
    """
    family = image_family(spec)
    if family in _OPEN_FAMILIES:
        return
    for field in kubelet:
        if field not in _COMMON_SETTINGS and field != "registerWithTaints":
            hint = f"only {' and '.join(_OPEN_FAMILIES)} support every kubelet setting"
            yield _unsupported_finding(field, f"is not supported with the family {family}", hint)
    if family == "Bottlerocket" and "podsPerCore" in kubelet:
        yield _unsupported_finding("podsPerCore", "is not supported with the family Bottlerocket")
    if len(kubelet.get("clusterDNS", ())) > 1:
        count = len(kubelet["clusterDNS"])
        yield _unsupported_finding(
            "clusterDNS", f"has {count} addresses; the family {family} supports one"
        )


def _unsupported_finding(field: str, message: str, hint: str = "") -> Finding:
    at = (*_KUBELET, field)
    return Finding("kubelet-unsupported", at, message, hint, Severity.WARNING, of_key=True)


Rule = Callable[[dict[str, object]], Iterator[Finding]]


def _labels(data: dict[str, object]) -> Iterator[Finding]:
    at: Pointer = ("spec", "template", "metadata", "labels")
    for key in _get(data, at, {}):
        fault = key_fault(key)
        if fault:
            yield Finding(
                "bad-label-key",
                (*at, key),
                f"invalid label {quote_value(key)}: {fault}",
                of_key=True,
            )


def _taints(at: Pointer) -> Rule:
    def check(data: dict[str, object]) -> Iterator[Finding]:
        spec = _get(data, at, {})
        seen: set[tuple[str, str]] = set()
        for field in ("taints", "startupTaints"):
            for index, taint in enumerate(spec.get(field, ())):
                here = (*at, field, index)
                for part in ("key", "value"):
                    fault = key_fault(taint[part]) if taint.get(part) else ""
                    if fault:
                        message = f"invalid taint {part} {quote_value(taint[part])}: {fault}"
                        yield Finding("bad-taint", (*here, part), message)
                pair = (taint["key"], taint.get("effect", ""))
                if pair in seen:
                    message = f"duplicate taint {pair[0]} with effect {pair[1]}"
                    hint = "key and effect must be unique across taints and startupTaints"
                    yield Finding("duplicate-taint", here, message, hint)
                seen.add(pair)

    return check


def _requirements(at: Pointer) -> Rule:
    def check(data: dict[str, object]) -> Iterator[Finding]:
        for index, entry in enumerate(_get(data, at, ())):
            here = (*at, index)
            fault = key_fault(entry["key"])
            if fault:
                message = f"invalid label {quote_value(entry['key'])}: {fault}"
                yield Finding("bad-label-key", (*here, "key"), message)
            for number, value in enumerate(entry.get("values", ())):
                fault = value_fault(value)
                if fault:
                    message = f"invalid label value {quote_value(value)}: {fault}"
                    yield Finding("bad-label-value", (*here, "values", number), message)
            if entry.get("operator") in _WITHOUT_VALUES and entry.get("values"):
                message = f"has no effect with operator {entry['operator']}"
                hint = "remove the values, or write operator In"
                where = (*here, "values")
                yield Finding("idle-values", where, message, hint, Severity.WARNING, of_key=True)
            yield from _capacity_types(entry, here)

    return check


def _contradictions(at: Pointer) -> Rule:
    """Warn of a requirement that allows no value which the earlier ones on its label allow.

    Karpenter accepts it, and then launches nothing.
    """

    def check(data: dict[str, object]) -> Iterator[Finding]:
        allowed: dict[str, Requirement] = {}
        for index, entry in enumerate(_get(data, at, ())):
            try:
                wanted = requirement(entry["key"], entry["operator"], entry.get("values") or ())
            except ValueError:
                continue  # another rule reports its bound
            before = allowed.get(wanted.key, wanted)
            both = allowed[wanted.key] = wanted.intersection(before)
            if both.complement or both.values or (wanted.is_negative and before.is_negative):
                continue
            message = f"no value of {wanted.key} satisfies both this and {before}"
            hint = "no node can be launched; remove one of them"
            yield Finding("contradiction", (*at, index), message, hint, Severity.WARNING)
            allowed[wanted.key] = before

    return check


def _capacity_types(entry: JsonDict, here: Pointer) -> Iterator[Finding]:
    """Check that In has some existing capacity type; other values are only warnings."""
    if normalize_label(entry["key"]) != CAPACITY_TYPE or entry.get("operator") != "In":
        return
    values = entry.get("values") or []
    known = [v for v in values if v in _CAPACITY_TYPES]
    words = ", ".join(_CAPACITY_TYPES)
    if values and not known:
        message = f"none of {', '.join(map(quote_value, values[:5]))} is a capacity type"
        yield Finding("unknown-capacity-type", (*here, "values"), message, f"one of {words}")
        return
    least = entry.get("minValues") or 0
    if len(known) < least <= len(values):
        message = f"minValues is {least}, but only {len(known)} of the values are capacity types"
        yield Finding("requirement-min-values", (*here, "minValues"), message, f"they are {words}")
    for number, value in enumerate(values):
        if value not in known:
            at, hint = (*here, "values", number), f"one of {words}"
            message = f"{quote_value(value)} is not a capacity type and is ignored"
            yield Finding("unknown-capacity-type", at, message, hint, Severity.WARNING)


def _budgets(data: dict[str, object]) -> Iterator[Finding]:
    for index, budget in enumerate(_get(data, ("spec", "disruption", "budgets"), ())):
        here = ("spec", "disruption", "budgets", index)
        if "schedule" in budget or "timeZone" in budget:
            yield from _check_schedule(budget, here)
        if budget.get("nodes") in ("0", "0%") and "reasons" not in budget and _never_ends(budget):
            message = "never allows voluntary disruption"
            yield Finding("never-disrupts", (*here, "nodes"), message, "", Severity.INFO)


def _never_ends(budget: JsonDict) -> bool:
    try:
        return is_always_open(budget.get("schedule"), budget.get("duration"))
    except ValueError:
        return False  # reported where the schedule is checked


def _check_schedule(budget: JsonDict, here: Pointer) -> Iterator[Finding]:
    for field, parse, code in (
        ("schedule", parse_schedule, "bad-schedule"),
        ("timeZone", time_zone, "bad-time-zone"),
    ):
        if field in budget:
            try:
                parse(budget[field])
            except ValueError as error:
                yield Finding(code, (*here, field), str(error)[:200])
    if "timeZone" in budget and "schedule" not in budget:
        message = "has no effect without a schedule"
        yield Finding(
            "idle-time-zone", (*here, "timeZone"), message, "", Severity.WARNING, of_key=True
        )


def _static_limit(data: dict[str, object]) -> Iterator[Finding]:
    """Warn of a static NodePool whose limit leaves no room for the replacement of a node."""
    replicas = _get(data, ("spec", "replicas"), None)
    at = ("spec", "limits", "nodes")
    limit = _get(data, at, None)
    if not replicas or limit is None:
        return
    try:
        nodes = parse_quantity(str(limit)) // MILLI
    except ValueError:
        return  # the schema reports it
    if nodes <= replicas:
        relation = "equal to" if nodes == replicas else "below"
        message = (
            f"limits.nodes is {nodes}, {relation} replicas ({replicas}): a drifted node cannot be "
            "replaced, because its replacement is launched first"
        )
        hint = f"set it to at least {replicas + 1}"
        yield Finding("static-limit", at, message, hint, Severity.WARNING)


def _idle_limits(data: JsonDict) -> Iterator[Finding]:
    at: Pointer = ("spec", "limits")
    yield from check_limits(_get(data, at, {}), at)


def _idle_requirements(at: Pointer) -> Rule:
    def check(data: JsonDict) -> Iterator[Finding]:
        # A NodePool of EKS Auto Mode is reported once, and its labels mean something there.
        if _get(data, (*_TEMPLATE, "nodeClassRef", "group"), "") != AUTO_MODE:
            yield from check_requirements(_get(data, at, ()), at)

    return check


def _kubelet(data: JsonDict) -> Iterator[Finding]:
    if data["spec"].get("kubelet"):
        yield from check_kubelet(data)


def _user_data(data: JsonDict) -> Iterator[Finding]:
    """Yield whether user data is longer than EC2 accepts; what is added to it comes on top.

    Bottlerocket's settings and multi-part texts are parsed and written again, maybe shorter.
    """
    text = str(_get(data, _USER_DATA, ""))
    size, kinds = len(text.encode()), f"{image_family(data['spec'])} {text.lstrip()[:12]}"
    if size <= USER_DATA_MAX * 9 // 10:
        return
    message = f"is {size:,} bytes long; EC2 accepts {USER_DATA_MAX:,} together with what is added"
    hint = "shorten it, or load the rest of it at boot"
    rewritten = any(word in kinds for word in ("Bottlerocket", "MIME-Version", "Content-Type"))
    certain = size > USER_DATA_MAX and not rewritten
    severity = Severity.ERROR if certain else Severity.WARNING
    yield Finding("user-data-size", _USER_DATA, message, hint, severity)


def _get(data: object, pointer: Pointer, default: object) -> Any:
    for step in pointer:
        if not isinstance(data, dict) or step not in data:
            return default
        data = data[step]
    return data


RUNTIME: Final[dict[str, tuple[Rule, ...]]] = {
    "nodepool.v1": (
        _labels,
        _taints(_TEMPLATE),
        _requirements((*_TEMPLATE, "requirements")),
        _contradictions((*_TEMPLATE, "requirements")),
        _idle_requirements((*_TEMPLATE, "requirements")),
        _idle_limits,
        _budgets,
        check_lifetimes,
        _static_limit,
    ),
    "nodeclaim.v1": (
        _taints(("spec",)),
        _requirements(("spec", "requirements")),
        _contradictions(("spec", "requirements")),
        _idle_requirements(("spec", "requirements")),
    ),
    "nodeoverlay.v1alpha1": (
        _requirements(("spec", "requirements")),
        _idle_requirements(("spec", "requirements")),
    ),
    "ec2nodeclass.v1": (_kubelet, check_sharing, check_image_version, _user_data),
}
