"""Karpenter's run-time validation: what the API server admits and the controller then rejects.

Such an object exists in a cluster and never becomes ready; here it is rejected at once. Problems
that the controller only logs are warnings. Sources: ``nodepool_validation.go``,
``nodeclaim_validation.go``, ``nodeoverlay_validation.go``; schedules and time zones are checked as
the budget reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import CAPACITY_TYPE, ON_DEMAND, RESERVED, SPOT, normalized
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding, shown

Rule = Callable[[dict[str, object]], Iterator[Finding]]

_WITHOUT_VALUES: Final = ("Exists", "DoesNotExist")
_CAPACITY_TYPES: Final = (ON_DEMAND, RESERVED, SPOT)
_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PREFIX: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)


def key_fault(key: str) -> str:
    """Return why ``key`` is not a qualified name, "" if it is."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (0 < len(prefix) <= 253 and _PREFIX.fullmatch(prefix)):
        return "the part before the slash must be a DNS subdomain of at most 253 characters"
    if not 0 < len(name) <= 63:
        return f"the name has {len(name)} characters; it must have 1 to 63"
    if _NAME.fullmatch(name) is None:
        return "use letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return ""


def value_fault(value: str) -> str:
    """Return why ``value`` is not a label value, "" if it is."""
    if len(value) > 63:
        return f"the value has {len(value)} characters; at most 63 are allowed"
    if _VALUE.fullmatch(value) is None:
        return "use letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return ""


def _labels(data: dict[str, object]) -> Iterator[Finding]:
    at: Pointer = ("spec", "template", "metadata", "labels")
    for key in _get(data, at, {}):
        fault = key_fault(key)
        if fault:
            yield Finding(
                "bad-label-key", (*at, key), f"invalid label {shown(key)}: {fault}", of_key=True
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
                        message = f"invalid taint {part} {shown(taint[part])}: {fault}"
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
        for index, requirement in enumerate(_get(data, at, ())):
            here = (*at, index)
            fault = key_fault(requirement["key"])
            if fault:
                message = f"invalid label {shown(requirement['key'])}: {fault}"
                yield Finding("bad-label-key", (*here, "key"), message)
            for number, value in enumerate(requirement.get("values", ())):
                fault = value_fault(value)
                if fault:
                    message = f"invalid label value {shown(value)}: {fault}"
                    yield Finding("bad-label-value", (*here, "values", number), message)
            if requirement.get("operator") in _WITHOUT_VALUES and requirement.get("values"):
                message = f"has no effect with operator {requirement['operator']}"
                hint = "remove the values, or write operator In"
                where = (*here, "values")
                yield Finding("idle-values", where, message, hint, Severity.WARNING, of_key=True)
            yield from _capacity_types(requirement, here)

    return check


def _capacity_types(requirement: JsonDict, here: Pointer) -> Iterator[Finding]:
    """With In, some value must be a capacity type that exists; others are only logged."""
    if normalized(requirement["key"]) != CAPACITY_TYPE or requirement.get("operator") != "In":
        return
    values = requirement.get("values") or []
    known = [v for v in values if v in _CAPACITY_TYPES]
    words = ", ".join(_CAPACITY_TYPES)
    if values and not known:
        message = f"none of {', '.join(map(shown, values[:5]))} is a capacity type"
        yield Finding("unknown-capacity-type", (*here, "values"), message, f"one of {words}")
        return
    least = requirement.get("minValues")
    if least is not None and len(known) < least <= len(values):
        message = f"minValues is {least}, but only {len(known)} of the values are capacity types"
        yield Finding("requirement-min-values", (*here, "minValues"), message, f"they are {words}")
    for number, value in enumerate(values):
        if value not in _CAPACITY_TYPES:
            at = (*here, "values", number)
            message = f"{shown(value)} is not a capacity type and is ignored"
            hint = f"one of {words}"
            yield Finding("unknown-capacity-type", at, message, hint, Severity.WARNING)


def _budgets(data: dict[str, object]) -> Iterator[Finding]:
    for index, budget in enumerate(_get(data, ("spec", "disruption", "budgets"), ())):
        here = ("spec", "disruption", "budgets", index)
        if "schedule" in budget or "timeZone" in budget:
            yield from _schedule(budget, here)
        if budget.get("nodes") in ("0", "0%") and not {"schedule", "reasons"} & set(budget):
            message = "never allows voluntary disruption"
            yield Finding("never-disrupts", (*here, "nodes"), message, "", Severity.INFO)


def _schedule(budget: JsonDict, here: Pointer) -> Iterator[Finding]:
    from reconciler.model.schedule import parse_schedule, time_zone

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


def _kubelet(data: JsonDict) -> Iterator[Finding]:
    if data["spec"].get("kubelet"):
        from reconciler.desired.rules.kubelet import check_kubelet

        yield from check_kubelet(data)


def _get(data: object, pointer: Pointer, default: object) -> Any:
    for step in pointer:
        if not isinstance(data, dict) or step not in data:
            return default
        data = data[step]
    return data


_TEMPLATE: Final[Pointer] = ("spec", "template", "spec")

RUNTIME: Final[dict[str, tuple[Rule, ...]]] = {
    "nodepool.v1": (
        _labels,
        _taints(_TEMPLATE),
        _requirements((*_TEMPLATE, "requirements")),
        _budgets,
    ),
    "nodeclaim.v1": (
        _taints(("spec",)),
        _requirements(("spec", "requirements")),
    ),
    "nodeoverlay.v1alpha1": (_requirements(("spec", "requirements")),),
    "ec2nodeclass.v1": (_kubelet,),
}
