"""Checks of workloads without which a plan might read them incorrectly.

The cluster validates workloads. Here an error is something that the API server would reject as well
and that would change the pods of a plan: a mistyped field, an invalid quantity, an operator that
does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.text.quoting import quote_value
from reconciler.source import schema
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding

SCHEMA: Final = "workload.v1"
_TEMPLATED: Final = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job")

PODS_MAX: Final = 200_000
"""The maximum number of pods of a folder; beyond it a typing error is more likely."""

_VALUELESS: Final = ("Exists", "DoesNotExist")
_BOUNDS: Final = ("Gt", "Lt")


def check_workload(kind: str, data: JsonDict) -> list[Finding]:
    """Return the errors in a workload."""
    shape = schema.check_schema(SCHEMA, data, kind)
    return shape or list(_workload_findings(kind, data))


def count_pods(kind: str, data: JsonDict) -> int:
    """Return how many pods a workload requests, as ``workloads.expand`` creates them."""
    spec = data.get("spec") or {}
    match kind:
        case "Pod":
            return 1
        case "Deployment" | "ReplicaSet" | "StatefulSet":
            return max(_get_number(spec, "replicas"), 0)
        case "Job" if not spec.get("suspend"):
            count = _get_number(spec, "parallelism")
            return max(min(count, _get_number(spec, "completions", count)), 0)
    return 0


def _get_number(spec: JsonDict, field: str, otherwise: int = 1) -> int:
    number = spec.get(field)
    return otherwise if number is None else int(number)


def _workload_findings(kind: str, data: JsonDict) -> Iterator[Finding]:
    """Yield findings that the schema cannot express; the shape is valid."""
    spec = data.get("spec", {})
    if kind == "Pod":
        yield from _pod(spec, ("spec",))
    elif kind in _TEMPLATED and spec:
        yield from _selector(spec)
        yield from _pod(spec["template"]["spec"], ("spec", "template", "spec"))
    elif kind == "PodDisruptionBudget":
        yield from _expressions(spec, ("spec",))
        if {"minAvailable", "maxUnavailable"} <= spec.keys():
            at = ("spec", "maxUnavailable")
            message = "cannot be set together with minAvailable"
            yield Finding("budget-both", at, message, "keep one of them", of_key=True)


def _selector(spec: JsonDict) -> Iterator[Finding]:
    """Yield a warning if a controller would not find its own pods; the plan is still correct."""
    yield from _expressions(spec.get("selector", {}), ("spec", "selector"))
    labels = spec["template"].get("metadata", {}).get("labels", {})
    for key, value in spec.get("selector", {}).get("matchLabels", {}).items():
        if labels.get(key) != value:
            at = ("spec", "selector", "matchLabels", key)
            message = f"the template has no label {key}: {value}, so the API server rejects it"
            yield Finding("selector-mismatch", at, message, "", Severity.WARNING)


def _pod(spec: JsonDict, at: Pointer) -> Iterator[Finding]:
    for field in ("affinity", "topologySpreadConstraints"):
        yield from _expressions(spec.get(field), (*at, field))
    for index, toleration in enumerate(spec.get("tolerations", ())):
        yield from _toleration(toleration, (*at, "tolerations", index))
    for index, spread in enumerate(spec.get("topologySpreadConstraints", ())):
        if "minDomains" in spread and spread["whenUnsatisfiable"] != "DoNotSchedule":
            here = (*at, "topologySpreadConstraints", index, "minDomains")
            message = "only applies with whenUnsatisfiable: DoNotSchedule"
            yield Finding("spread-min-domains", here, message, "remove it", of_key=True)
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field, ())):
            yield from _resources(container.get("resources", {}), (*at, field, index, "resources"))


def _toleration(toleration: dict[str, object], at: Pointer) -> Iterator[Finding]:
    operator = toleration.get("operator", "Equal")
    if operator == "Exists" and toleration.get("value"):
        message = "Exists takes no value"
        yield Finding("toleration-value", (*at, "value"), message, "remove it, or write Equal")
    elif operator == "Equal" and not toleration.get("key"):
        message = "required field `key` is missing; without a key the operator must be Exists"
        yield Finding("toleration-key", (*at, "key"), message)


def _resources(resources: JsonDict, at: Pointer) -> Iterator[Finding]:
    from reconciler.model.resources import parse_quantity

    limits = resources.get("limits", {})
    for name, text in resources.get("requests", {}).items():
        here = (*at, "requests", name)
        if parse_quantity(str(text)) < 0:
            yield Finding("negative-quantity", here, f"{quote_value(text)} cannot be negative")
        elif name in limits and parse_quantity(str(text)) > parse_quantity(str(limits[name])):
            message = f"request {quote_value(text)} is above its limit {quote_value(limits[name])}"
            hint = "raise the limit, or lower the request"
            yield Finding("requests-above-limits", here, message, hint)


def _expressions(node: Any, at: Pointer) -> Iterator[Finding]:
    """Yield the conditions on labels, anywhere below, whose values do not match their operator."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _expressions(item, (*at, index))
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("matchExpressions", "matchFields") and isinstance(value, list):
                for index, expression in enumerate(value):
                    yield from _expression(expression, (*at, key, index))
            else:
                yield from _expressions(value, (*at, key))


def _expression(expression: Any, at: Pointer) -> Iterator[Finding]:
    operator, values = expression.get("operator"), expression.get("values", [])
    here = (*at, "values")
    if operator in _VALUELESS and values:
        yield Finding("expression-values", here, f"{operator} takes no values", "remove them")
    elif operator in ("In", "NotIn") and not values:
        yield Finding("expression-values", here, f"is empty: {operator} needs values")
    elif operator in _BOUNDS and (len(values) != 1 or not values[0].lstrip("-").isdigit()):
        message = f"{operator} needs exactly one integer, in quotes"
        yield Finding("expression-values", here, message)
