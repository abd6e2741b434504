"""What the API server makes of a pod template before the pod exists.

Admission works on templates, as plain data: all pods of a template are equal. The order is that of
the API server: limits become requests, then LimitRanges, the node selector of the Namespace,
tolerations of extended resources, the RuntimeClass, and the recommendation of a
VerticalPodAutoscaler, which a webhook applies. At the end a pod outside the limits of a LimitRange
is rejected. Sources: ``plugin/pkg/admission`` of Kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reconciler.desired.workloads.kinds import RECOMMENDERS, value_of
from reconciler.desired.workloads.podsets import ScaleTarget, target_of
from reconciler.model.json import JsonDict, as_list
from reconciler.model.karpenter.labels import OS, normalize_label
from reconciler.model.resources import CPU, MEMORY, parse_quantity
from reconciler.source.resource import Resource, group_of

NODE_SELECTOR: Final = "scheduler.alpha.kubernetes.io/node-selector"
"""The annotation of a Namespace with the node selector of its pods (``a=b,c=d``)."""


class AdmissionNote(NamedTuple):
    """What is not known of pods, or will go wrong with them although they are created."""

    code: str
    message: str
    hint: str = ""


class Admitted(NamedTuple):
    """A template after admission, why its pods are rejected, and what is noted about them.

    ``rejected`` is empty if pods are created.
    """

    template: JsonDict
    rejected: tuple[str, ...] = ()
    notes: tuple[AdmissionNote, ...] = ()


@dataclass(slots=True)
class Admission:
    """The objects that admission reads, by namespace or name."""

    limit_ranges: dict[str, list[Resource]] = field(default_factory=dict)
    node_selectors: dict[str, dict[str, str]] = field(default_factory=dict)
    runtime_classes: dict[str, JsonDict] = field(default_factory=dict)
    recommenders: dict[ScaleTarget, Resource] = field(default_factory=dict)

    def admit(self, template: JsonDict, owner: Resource) -> Admitted:
        """Return the template of a workload, or a Pod, as the API server would store it."""
        spec = dict(template.get("spec") or {})
        _default_containers(spec)
        _default_pod_requests(spec)
        rejected: list[str] = []
        notes: list[AdmissionNote] = []
        ranges = self.limit_ranges.get(owner.namespace, ())
        for limit_range in ranges:
            _apply_defaults(spec, limit_range)
        rejected += _requests_above_limits(spec)
        rejected += self._select_nodes(spec, owner.namespace)
        _tolerate_extended_resources(spec)
        name = str(spec.get("runtimeClassName") or "")
        if name in self.runtime_classes:
            rejected += _apply_runtime_class(spec, name, self.runtime_classes[name])
        elif name:
            text = f"RuntimeClass {name} not found in this folder; no overhead is added"
            notes.append(AdmissionNote(code="missing-runtimeclass", message=text))
        notes += _unselected_system(spec)
        recommender = self.recommenders.get(target_of(owner))
        if recommender is not None:
            _apply_recommendation(spec, recommender)
        for limit_range in ranges:
            rejected += _violations(spec, limit_range)
        return Admitted({**template, "spec": spec}, tuple(rejected), tuple(notes))

    def _select_nodes(self, spec: JsonDict, namespace: str) -> Iterator[str]:
        """Merge the node selector of the namespace; yield a conflict."""
        selector = self.node_selectors.get(namespace)
        if selector:
            yield from _merge_selector(spec, selector, f"the annotation of Namespace {namespace}")


def read_admission(resources: Iterable[Resource]) -> Admission:
    """Return the objects that admission reads, in the order of their names."""
    found = Admission()
    for resource in sorted(resources, key=lambda r: r.order):
        data = resource.data
        match resource.kind:
            case "LimitRange":
                found.limit_ranges.setdefault(resource.namespace, []).append(resource)
            case "RuntimeClass":
                found.runtime_classes[resource.name] = data
            case "Namespace":
                text = (value_of(data, "metadata.annotations") or {}).get(NODE_SELECTOR)
                if isinstance(text, str):
                    found.node_selectors[resource.name] = _parse_selector(text)
        if (group_of(resource.api_version), resource.kind) in RECOMMENDERS:
            target = _recommended(resource)
            if target is not None:
                found.recommenders.setdefault(target, resource)
    return found


def _parse_selector(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(",") if item.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _merge_selector(spec: JsonDict, selector: Mapping[str, str], source: str) -> Iterator[str]:
    """Add a node selector; yield the labels for which the pod already has another value."""
    own = dict(spec.get("nodeSelector") or {})
    for key, value in selector.items():
        if own.get(key, value) != value:
            yield f"its node selector {key}={own[key]} conflicts with {source}: {key}={value}"
    if selector:
        spec["nodeSelector"] = {**selector, **own}


def _apply_runtime_class(spec: JsonDict, name: str, runtime: JsonDict) -> Iterator[str]:
    """Add overhead, node selector and tolerations of a RuntimeClass; yield conflicts."""
    overhead = value_of(runtime, "overhead.podFixed")
    if overhead:
        spec["overhead"] = overhead
    scheduling = runtime.get("scheduling") or {}
    yield from _merge_selector(spec, scheduling.get("nodeSelector") or {}, f"RuntimeClass {name}")
    tolerations = scheduling.get("tolerations")
    if tolerations:
        own = spec.get("tolerations") or []
        spec["tolerations"] = [*own, *(t for t in tolerations if t not in own)]


def _unselected_system(spec: JsonDict) -> Iterator[AdmissionNote]:
    """Yield a note on pods for Windows that select no such nodes.

    kube-scheduler does not read ``spec.os``; the kubelet rejects a pod of another system
    (``PodOSNotSupported``), and its controller makes the next one.
    """
    if value_of(spec, "os.name") != "windows" or _selects_system(spec):
        return
    yield AdmissionNote(
        code="unselected-os",
        message="spec.os.name is windows, which kube-scheduler does not read: the pod may get a "
        "Linux node, whose kubelet rejects it",
        hint=f"add the node selector {OS}: windows",
    )


def _selects_system(spec: JsonDict) -> bool:
    """Return whether the node selector or every term of the affinity is about the system."""
    if any(normalize_label(key) == OS for key in spec.get("nodeSelector") or {}):
        return True
    path = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    terms = value_of(spec, path) or ()
    return bool(terms) and all(
        any(normalize_label(e["key"]) == OS for e in term.get("matchExpressions") or ())
        for term in terms
    )


def _with_requests_of_limits(container: JsonDict) -> JsonDict:
    """Return a container whose limits count as requests where it has none."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return container
    requests = {**limits, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def _with_host_ports(container: JsonDict) -> JsonDict:
    """Return a container of a pod in the host's network, whose ports are those of the host."""
    ports = container.get("ports")
    if not isinstance(ports, list):
        return container
    return {
        **container,
        "ports": [{**p, "hostPort": p.get("hostPort") or p.get("containerPort")} for p in ports],
    }


def _default_pod_requests(spec: JsonDict) -> None:
    """Set the requests of a pod as a whole that has limits: those of its containers, else these.

    Source: ``defaultPodRequests`` in ``pkg/apis/core/v1/defaults.go``.
    """
    resources = spec.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return
    containers = _pod_amounts(spec, "requests")
    summed = {name: f"{containers[name]}m" for name in (CPU, MEMORY) if name in containers}
    requests = {**limits, **summed, **(resources.get("requests") or {})}
    spec["resources"] = {**resources, "requests": requests}


def _requests_above_limits(spec: JsonDict) -> Iterator[str]:
    """Yield the requests that the API server rejects, because a default limit is lower."""
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        most = _amounts(container, "limits")
        for name, amount in _amounts(container, "requests").items():
            if amount > most.get(name, amount):
                limit = container["resources"]["limits"][name]
                yield (
                    f"container {container.get('name', '')}: the request of {name} is more than "
                    f"its limit {limit}"
                )


# LimitRanges (``plugin/pkg/admission/limitranger`` and the defaults of the type).


def _items(limit_range: Resource, kind: str) -> Iterator[JsonDict]:
    for item in value_of(limit_range.data, "spec.limits") or ():
        if item.get("type") == kind:
            yield item


def _apply_defaults(spec: JsonDict, limit_range: Resource) -> None:
    """Set the default requests and limits of containers.

    A default limit is that of the range, else its maximum; a default request is that of the range,
    else the default limit, else the minimum.
    """
    for item in _items(limit_range, "Container"):
        limits = {**(item.get("max") or {}), **(item.get("default") or {})}
        requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
        for name in ("containers", "initContainers"):
            if isinstance(spec.get(name), list):
                spec[name] = [_with_defaults(c, requests, limits) for c in spec[name]]


def _with_defaults(container: JsonDict, requests: JsonDict, limits: JsonDict) -> JsonDict:
    own = container.get("resources") or {}
    return {
        **container,
        "resources": {
            **own,
            "requests": {**requests, **(own.get("requests") or {})},
            "limits": {**limits, **(own.get("limits") or {})},
        },
    }


Amounts = dict[str, int]


def _amounts(container: JsonDict, kind: str) -> Amounts:
    """Return the requests or limits of a container, in thousandths."""
    declared = (container.get("resources") or {}).get(kind) or {}
    return {name: parse_quantity(str(text)) for name, text in declared.items()}


def _pod_amounts(spec: JsonDict, kind: str) -> Amounts:
    """Return the sum over containers, or the largest init container where that is more."""
    total: Amounts = {}
    for container in spec.get("containers") or ():
        for name, amount in _amounts(container, kind).items():
            total[name] = total.get(name, 0) + amount
    for container in spec.get("initContainers") or ():
        sidecar = container.get("restartPolicy") == "Always"
        for name, amount in _amounts(container, kind).items():
            known = total.get(name, 0)
            total[name] = known + amount if sidecar else max(known, amount)
    return total


def _violations(spec: JsonDict, limit_range: Resource) -> Iterator[str]:
    """Yield why a LimitRange rejects a pod."""
    where = f"LimitRange {limit_range.name}"
    for item in _items(limit_range, "Container"):
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            asked, most = _amounts(container, "requests"), _amounts(container, "limits")
            for text in _outside(item, asked, most):
                yield f"container {container.get('name', '')}: {text} ({where})"
    for item in _items(limit_range, "Pod"):
        for text in _outside(item, _pod_amounts(spec, "requests"), _pod_amounts(spec, "limits")):
            yield f"{text} of all containers ({where})"


def _outside(item: JsonDict, requests: Amounts, limits: Amounts) -> Iterator[str]:
    """Yield the bounds of a LimitRange that requests and limits violate."""
    yield from _below_minimum(item.get("min") or {}, requests, limits)
    yield from _above_maximum(item.get("max") or {}, requests, limits)
    for name, text in (item.get("maxLimitRequestRatio") or {}).items():
        asked, most = requests.get(name, 0), limits.get(name, 0)
        if not asked or not most or most * 1000 > asked * parse_quantity(str(text)):
            yield f"the maximum ratio of limit to request of {name} is {text}"


def _below_minimum(minimums: JsonDict, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, text in minimums.items():
        bound = parse_quantity(str(text))
        if name not in requests:
            yield f"the minimum of {name} is {text}, and there is no request"
        elif requests[name] < bound or limits.get(name, bound) < bound:
            yield f"the minimum of {name} is {text}"


def _above_maximum(maximums: JsonDict, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, text in maximums.items():
        bound = parse_quantity(str(text))
        if name not in limits:
            yield f"the maximum of {name} is {text}, and there is no limit"
        elif limits[name] > bound or requests.get(name, 0) > bound:
            yield f"the maximum of {name} is {text}"


def _default_containers(spec: JsonDict) -> None:
    """Set the requests of containers that have only limits, and the ports on the host."""
    for name in ("containers", "initContainers"):
        if isinstance(spec.get(name), list):
            spec[name] = list(map(_with_requests_of_limits, spec[name]))
            if spec.get("hostNetwork") is True:
                spec[name] = list(map(_with_host_ports, spec[name]))


def _tolerate_extended_resources(spec: JsonDict) -> None:
    """Tolerate taints that are named like an extended resource which a container requests.

    EKS enables the admission plugin ``ExtendedResourceToleration`` since Kubernetes 1.19.
    """
    names: set[str] = set()
    for container in (*as_list(spec.get("containers")), *as_list(spec.get("initContainers"))):
        names |= {n for n in _amounts(container, "requests") if _is_extended(n)}
    own = spec.get("tolerations") or []
    added = [{"key": name, "operator": "Exists"} for name in sorted(names)]
    missing = [toleration for toleration in added if toleration not in own]
    if missing:
        spec["tolerations"] = [*own, *missing]


def _is_extended(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


# VerticalPodAutoscalers.


def _recommended(resource: Resource) -> ScaleTarget | None:
    """Return what a VPA sets the requests of, None if it only recommends."""
    mode = value_of(resource.data, "spec.updatePolicy.updateMode") or "Auto"
    ref = value_of(resource.data, "spec.targetRef")
    if mode == "Off" or not isinstance(ref, dict):
        return None
    group = group_of(str(ref.get("apiVersion") or "apps/v1"))
    return ScaleTarget(group, str(ref.get("kind")), resource.namespace, str(ref.get("name")))


def _apply_recommendation(spec: JsonDict, recommender: Resource) -> None:
    """Replace requests by the recommended ones; limits keep their ratio to them."""
    policies = {
        item.get("containerName"): item
        for item in as_list(value_of(recommender.data, "spec.resourcePolicy.containerPolicies"))
    }
    rows = as_list(value_of(recommender.data, "status.recommendation.containerRecommendations"))
    targets = {row.get("containerName"): row.get("target") or {} for row in rows}
    if not targets:
        return
    changed = []
    for container in as_list(spec.get("containers")):
        name = container.get("name")
        policy = policies.get(name, policies.get("*")) or {}
        target = targets.get(name) if policy.get("mode") != "Off" else None
        changed.append(_with_target(container, target, policy) if target else container)
    spec["containers"] = changed


def _with_target(container: JsonDict, target: JsonDict, policy: JsonDict) -> JsonDict:
    resources = dict(container.get("resources") or {})
    before, limits = _amounts(container, "requests"), _amounts(container, "limits")
    controlled = policy.get("controlledResources") or ("cpu", "memory")
    requests = dict(resources.get("requests") or {})
    scaled = dict(resources.get("limits") or {})
    for name, text in target.items():
        if name not in controlled:
            continue
        amount = _clamped(name, str(text), policy)
        if (
            policy.get("controlledValues") != "RequestsOnly"
            and before.get(name)
            and limits.get(name)
        ):
            scaled[name] = f"{limits[name] * amount // before[name]}m"
        requests[name] = f"{amount}m"
    return {**container, "resources": {**resources, "requests": requests, "limits": scaled}}


def _clamped(name: str, text: str, policy: JsonDict) -> int:
    """Return a recommendation in thousandths, within what the policy allows."""
    amount = parse_quantity(text)
    low = (policy.get("minAllowed") or {}).get(name)
    high = (policy.get("maxAllowed") or {}).get(name)
    if high is not None:
        amount = min(amount, parse_quantity(str(high)))
    return max(amount, parse_quantity(str(low))) if low is not None else amount
