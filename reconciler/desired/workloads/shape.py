"""Checks of workloads without which a plan might read them incorrectly.

The cluster validates workloads. Here an error is something that the API server would reject as well
and that would change the pods of a plan: a mistyped field, an invalid quantity, an operator that
does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from reconciler.desired.rules.devices import device_findings
from reconciler.desired.rules.idle import check_device, check_node_selection, check_pod_metadata
from reconciler.desired.workloads.kinds import (
    GroupEntry,
    KindTable,
    PodGroup,
    WorkloadKind,
    entries_of,
    pointer_of,
    value_of,
)
from reconciler.desired.workloads.podsets import COUNT_MAX, PRESENT, pod_sets
from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.resources import HUGEPAGES, MILLI, parse_quantity
from reconciler.model.text.nearest import did_you_mean
from reconciler.model.text.quoting import quote_value
from reconciler.source import schema
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.resource import Resource

SCHEMA: Final = "workload.v1"
_TEMPLATED: Final = (
    "Deployment",
    "StatefulSet",
    "ReplicaSet",
    "ReplicationController",
    "DaemonSet",
    "Job",
)

PODS_MAX: Final = 200_000
"""The maximum number of pods of a folder; beyond it a typing error is more likely."""

_VALUELESS: Final = ("Exists", "DoesNotExist")
_BOUNDS: Final = ("Gt", "Lt")

_STANDARD: Final = ("cpu", "memory", "ephemeral-storage")


def check_workload(kind: str, data: JsonDict, row: WorkloadKind | None = None) -> list[Finding]:
    """Return the errors in a workload; ``row`` describes its kind in the table of kinds.

    Of kinds without a definition in the schema, only the pod templates and the counts are read.
    """
    if kind in schema.load_schema(SCHEMA)["$defs"] and (row is None or row.is_kubernetes):
        shape = schema.check_schema(SCHEMA, data, kind)
        return shape or list(_workload_findings(kind, data))
    return list(_custom_findings(data, row)) if row is not None else []


def _partial_template_findings(template: JsonDict, at: Pointer) -> Iterator[Finding]:
    """Yield the errors in a pod template that an operator completes; it is at ``at``."""
    found: Iterable[Finding] = schema.check_schema(SCHEMA, template, "partialTemplate")
    if not found:
        metadata = template.get("metadata") or {}
        found = chain(
            check_pod_metadata(metadata, ("metadata",)), _pod(template.get("spec", {}), ("spec",))
        )
    for finding in found:
        yield finding._replace(pointer=(*at, *finding.pointer))


def _custom_findings(data: JsonDict, row: WorkloadKind) -> Iterator[Finding]:
    """Yield the errors in the pod templates and counts of a kind that an operator defines."""
    yield from schema.check_schema(SCHEMA, {"metadata": data.get("metadata")}, "named")
    templates = 0
    for group in row.groups:
        for entry in entries_of(group, data):
            templates += bool(group.containers or group.pod)
            for path in filter(None, dict.fromkeys((group.template, group.fallback))):
                template = value_of(entry.data, path)
                if template is not None:
                    templates += 1
                    yield from _partial_template_findings(
                        template, (*entry.pointer, *pointer_of(path))
                    )
            yield from _count_findings(group, entry)
    if not templates and not (row.follows and value_of(data, row.follows)):
        first = row.groups[0]
        path = first.each or first.template
        message = f"no pod template at {path}; its pods are not planned"
        yield Finding("no-pod-template", (), message, "", Severity.WARNING)


def _count_findings(group: PodGroup, entry: GroupEntry) -> Iterator[Finding]:
    """Yield the counts that are not numbers of pods."""
    paths = (group.replicas, group.minimum, group.maximum, *(f.path for f in group.factors))
    for path in filter(None, dict.fromkeys(paths)):
        value = value_of(entry.data, path)
        if value is None or (isinstance(value, str) and value.isascii() and value.isdigit()):
            continue
        at = (*entry.pointer, *pointer_of(path))
        if not isinstance(value, int) or isinstance(value, bool):
            message = f"must be an integer, not {quote_value(value)}"
            yield Finding("wrong-type", at, message)
        elif not 0 <= value <= COUNT_MAX:
            message = f"is {value}; must be between 0 and {COUNT_MAX}"
            yield Finding("out-of-range", at, message)


def count_pods(resource: Resource, kinds: KindTable) -> int:
    """Return how many pods a workload requests by itself, as ``workloads.expand`` creates them."""
    if resource.kind == "Pod":
        return 1
    return sum(pods.count(PRESENT) for pods in pod_sets(resource, kinds))


def _workload_findings(kind: str, data: JsonDict) -> Iterator[Finding]:
    """Yield findings that the schema cannot express; the shape is valid."""
    spec = data.get("spec", {})
    if kind == "Pod":
        yield from check_pod_metadata(data.get("metadata") or {}, ("metadata",))
        yield from _pod(spec, ("spec",))
    elif kind in _TEMPLATED and spec:
        yield from _selector(spec)
        template, at = spec["template"], ("spec", "template")
        yield from check_pod_metadata(template.get("metadata") or {}, (*at, "metadata"))
        yield from _pod(template["spec"], (*at, "spec"))
    elif kind == "PodDisruptionBudget":
        yield from _expressions(spec, ("spec",))
        if {"minAvailable", "maxUnavailable"} <= spec.keys():
            at = ("spec", "maxUnavailable")
            message = "cannot be set together with minAvailable"
            yield Finding("budget-both", at, message, "keep one of them", of_key=True)
    else:
        yield from device_findings(kind, spec)


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
    yield from check_node_selection(spec, at)
    for index, toleration in enumerate(spec.get("tolerations", ())):
        yield from _toleration(toleration, (*at, "tolerations", index))
    for index, spread in enumerate(spec.get("topologySpreadConstraints", ())):
        if "minDomains" in spread and spread["whenUnsatisfiable"] != "DoNotSchedule":
            here = (*at, "topologySpreadConstraints", index, "minDomains")
            message = "only applies with whenUnsatisfiable: DoNotSchedule"
            yield Finding("spread-min-domains", here, message, "remove it", of_key=True)
        if spread.get("labelSelector") is None:
            here = (*at, "topologySpreadConstraints", index)
            message = "without a labelSelector it counts no pods, so it spreads none"
            hint = "select the pods that it spreads, by their labels"
            yield Finding("idle-spread", here, message, hint, Severity.WARNING)
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field, ())):
            yield from _resources(container.get("resources", {}), (*at, field, index, "resources"))


def _toleration(toleration: dict[str, object], at: Pointer) -> Iterator[Finding]:
    operator = toleration.get("operator", "Equal")
    if operator in _BOUNDS:
        value = str(toleration.get("value", ""))
        if re.fullmatch(r"-?[0-9]{1,19}", value, re.ASCII) is None:
            message = f"{operator} needs an integer, not {quote_value(value)}"
            yield Finding("toleration-value", (*at, "value"), message, "write it in quotes")
        message = (
            f"{operator} needs Kubernetes 1.35 or later with the feature gate "
            "TaintTolerationComparisonOperators"
        )
        hint = "earlier API servers reject it"
        yield Finding("toleration-gate", (*at, "operator"), message, hint, Severity.INFO)
    if operator == "Exists" and toleration.get("value"):
        message = "Exists takes no value"
        yield Finding("toleration-value", (*at, "value"), message, "remove it, or write Equal")
    elif operator == "Equal" and not toleration.get("key"):
        message = "required field `key` is missing; without a key the operator must be Exists"
        yield Finding("toleration-key", (*at, "key"), message)


def _requested_amounts(requests: JsonDict, limits: JsonDict, at: Pointer) -> Iterator[Finding]:
    """Yield an error for each request that is negative, or above its limit."""
    for name, text in requests.items():
        if parse_quantity(str(text)) < 0:
            message = f"{quote_value(text)} cannot be negative"
            yield Finding("negative-quantity", (*at, name), message)
        elif name in limits and parse_quantity(str(text)) > parse_quantity(str(limits[name])):
            message = f"request {quote_value(text)} is above its limit {quote_value(limits[name])}"
            hint = "raise the limit, or lower the request"
            yield Finding("requests-above-limits", (*at, name), message, hint)


def _resources(resources: JsonDict, at: Pointer) -> Iterator[Finding]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    yield from _requested_amounts(requests, limits, (*at, "requests"))
    for field, amounts in (("requests", requests), ("limits", limits)):
        for name in amounts:
            yield from _resource_name(name, (*at, field, name))
    for name in sorted({*requests, *limits}):
        if _is_extended(name):
            field = "limits" if name in limits else "requests"
            yield from check_device(name, (*at, field, name))
            yield from _extended_resource(name, requests, limits, at)
        elif name.startswith(HUGEPAGES):
            yield from _huge_pages(name, requests, limits, at)


def _resource_name(name: str, here: Pointer) -> Iterator[Finding]:
    """Yield an error if the API server does not know a resource without a domain."""
    if "/" in name or name in _STANDARD or name.startswith(HUGEPAGES):
        return
    message = f"{quote_value(name)} is not a resource of containers"
    hint = did_you_mean(name, _STANDARD, "other resources have a domain, as nvidia.com/gpu has")
    yield Finding("unknown-resource", here, message, hint, of_key=True)


def _is_extended(name: str) -> bool:
    """Return whether a resource is one of devices, of which a container gets complete ones."""
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")


def _extended_resource(
    name: str, requests: JsonDict, limits: JsonDict, at: Pointer
) -> Iterator[Finding]:
    """Yield an error if an amount is not an integer, or request and limit are not equal.

    A limit alone is enough: it becomes the request.
    """
    for field, amounts in (("requests", requests), ("limits", limits)):
        if name in amounts and parse_quantity(str(amounts[name])) % MILLI:
            message = f"{quote_value(amounts[name])} of {name} is not an integer"
            hint = "devices cannot be divided; request 1 or more"
            yield Finding("fractional-device", (*at, field, name), message, hint)
            return
    yield from _not_overcommitted(name, requests, limits, at)


def _huge_pages(name: str, requests: JsonDict, limits: JsonDict, at: Pointer) -> Iterator[Finding]:
    """Yield an error if pages are divided, overcommitted or requested without CPU and memory."""
    size = name.removeprefix(HUGEPAGES)
    for field, amounts in (("requests", requests), ("limits", limits)):
        if name in amounts and not _is_multiple(str(amounts[name]), size):
            message = f"{quote_value(amounts[name])} of {name} is not a multiple of the page size"
            hint = f"pages have a size such as 2Mi or 1Gi; request a multiple of {size}"
            yield Finding("divided-page", (*at, field, name), message, hint)
            return
    if not any(other in amounts for other in ("cpu", "memory") for amounts in (requests, limits)):
        here = (*at, "requests" if name in requests else "limits", name)
        message = f"{name} needs a request or limit for cpu or memory in the same container"
        yield Finding("pages-alone", here, message, "add one, for example of memory", of_key=True)
    else:
        yield from _not_overcommitted(name, requests, limits, at)


def _is_multiple(amount: str, size: str) -> bool:
    try:
        page = parse_quantity(size)
    except ValueError:
        return False
    return page > 0 and parse_quantity(amount) % page == 0


def _not_overcommitted(
    name: str, requests: JsonDict, limits: JsonDict, at: Pointer
) -> Iterator[Finding]:
    """Yield an error if a resource that cannot be shared has a request other than its limit.

    Source: ``ValidateResourceRequirements`` of Kubernetes 1.34, ``IsOvercommitAllowed``.
    """
    here = (*at, "requests", name)
    if name in requests and name not in limits:
        message = f"{name} has a request without a limit, which the API server rejects"
        hint = "write it as a limit; the request follows from it"
        yield Finding("device-without-limit", here, message, hint, of_key=True)
    elif name in requests and parse_quantity(str(requests[name])) < parse_quantity(
        str(limits[name])
    ):
        message = f"the request for {name} must be equal to its limit"
        hint = "remove the request; it follows from the limit"
        yield Finding("device-request-differs", here, message, hint)


def _expressions(node: object, at: Pointer) -> Iterator[Finding]:
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


def _expression(expression: JsonDict, at: Pointer) -> Iterator[Finding]:
    operator, values = expression.get("operator"), expression.get("values", [])
    here = (*at, "values")
    if operator in _VALUELESS and values:
        yield Finding("expression-values", here, f"{operator} takes no values", "remove them")
    elif operator in ("In", "NotIn") and not values:
        yield Finding("expression-values", here, f"is empty: {operator} needs values")
    elif operator in _BOUNDS and (len(values) != 1 or not values[0].lstrip("-").isdigit()):
        message = f"{operator} needs exactly one integer, in quotes"
        yield Finding("expression-values", here, message)
