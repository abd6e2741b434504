"""ResourceQuotas: pods beyond the quota of their namespace are never created.

Pods are counted in the order in which workloads are planned; in a cluster the order depends on
which controller is first. Source: ``pkg/quota/v1/evaluator/core/pods.go`` of Kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reconciler.desired.workloads.kinds import value_of
from reconciler.model.json import JsonDict
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.model.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    HUGEPAGES,
    MEMORY,
    MILLI,
    Resources,
    add_resources,
    maximum_resources,
    parse_resources,
)
from reconciler.source.resource import Resource

_COMPUTE: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)
_COUNTS: Final = ("pods", "count/pods")


class Excess(NamedTuple):
    """A quota that a pod exceeds: its name and the resource, with its limit."""

    quota: str
    resource: str
    limit: str

    def __str__(self) -> str:
        return f"ResourceQuota {self.quota} allows {self.resource} {self.limit}"


@dataclass(slots=True)
class NamespaceQuota:
    """One ResourceQuota: what it allows, what is used, and the pods that it counts."""

    name: str
    hard: Resources
    texts: dict[str, str]
    scopes: tuple[tuple[str, str, tuple[str, ...]], ...]
    used: Resources = field(default_factory=dict)

    def counts(self, pod: Pod) -> bool:
        """Return whether the pod matches every scope."""
        return all(_matches_scope(pod, *scope) for scope in self.scopes)

    def excess(self, usage: Resources) -> Excess | None:
        """Return the first resource of which too little is left, None if there is enough."""
        for name, limit in self.hard.items():
            if name in usage and self.used.get(name, 0) + usage[name] > limit:
                return Excess(self.name, name, self.texts[name])
        return None


def quotas_of(resources: Iterable[Resource]) -> dict[str, list[NamespaceQuota]]:
    """Return the quotas of each namespace, in the order of their names."""
    found: dict[str, list[NamespaceQuota]] = {}
    for resource in sorted(resources, key=lambda r: r.order):
        if resource.kind != "ResourceQuota":
            continue
        hard = {
            name: str(text) for name, text in (value_of(resource.data, "spec.hard") or {}).items()
        }
        quota = NamespaceQuota(
            resource.name, parse_resources(hard), hard, tuple(_scopes(resource.data))
        )
        found.setdefault(resource.namespace, []).append(quota)
    return found


def _scopes(data: JsonDict) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for name in value_of(data, "spec.scopes") or ():
        yield name, "Exists", ()
    for item in value_of(data, "spec.scopeSelector.matchExpressions") or ():
        values = tuple(item.get("values") or ())
        yield item.get("scopeName", ""), item.get("operator", "Exists"), values


def _matches_scope(pod: Pod, name: str, operator: str, values: tuple[str, ...]) -> bool:
    """Return whether a pod is in a scope; an unknown scope matches no pod."""
    match name:
        case "BestEffort":
            return _is_best_effort(pod.spec)
        case "NotBestEffort":
            return not _is_best_effort(pod.spec)
        case "Terminating":
            return pod.spec.active_deadline_seconds is not None
        case "NotTerminating":
            return pod.spec.active_deadline_seconds is None
        case "PriorityClass":
            return _matches_class(pod.spec.priority_class_name, operator, values)
        case "CrossNamespacePodAffinity":
            return _crosses_namespaces(pod.spec)
    return False


def _matches_class(name: str, operator: str, values: tuple[str, ...]) -> bool:
    match operator:
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case "DoesNotExist":
            return not name
    return bool(name)


def _is_best_effort(spec: PodSpec) -> bool:
    return not any(
        c.resources.requests or c.resources.limits
        for c in (*spec.containers, *spec.init_containers)
    )


def _crosses_namespaces(spec: PodSpec) -> bool:
    affinity = spec.affinity
    if affinity is None:
        return False
    for part in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if part is not None:
            terms = (*part.required, *(weighted.pod_affinity_term for weighted in part.preferred))
            if any(term.namespaces or term.namespace_selector is not None for term in terms):
                return True
    return False


def pod_usage(pod: Pod) -> Resources:
    """Return what a pod uses of quotas, under every name that a quota may have for it."""
    requests = pod.requests()
    limits = _limits(pod.spec)
    usage: Resources = dict.fromkeys(_COUNTS, MILLI)
    for name, amount in requests.items():
        if name in _COMPUTE or name.startswith(HUGEPAGES):
            usage[name] = amount
        if name != "pods":
            usage[f"requests.{name}"] = amount
    for name, amount in limits.items():
        usage[f"limits.{name}"] = amount
    return usage


def _limits(spec: PodSpec) -> Resources:
    total = add_resources(*(parse_resources(c.resources.limits) for c in spec.containers))
    inits = [parse_resources(c.resources.limits) for c in spec.init_containers]
    total = maximum_resources([total, *inits])
    return add_resources(total, parse_resources(spec.overhead)) if spec.overhead else total


def missing_resources(pod: Pod, quotas: Iterable[NamespaceQuota]) -> Iterator[str]:
    """Yield why a quota on cpu or memory rejects a pod: each container must state the amount."""
    for quota in quotas:
        if not quota.counts(pod):
            continue
        for name in quota.hard:
            kind, _, resource = name.partition(".")
            if not resource:
                kind, resource = "requests", name
            if kind not in ("requests", "limits") or resource not in (CPU, MEMORY):
                continue
            for container in (*pod.spec.containers, *pod.spec.init_containers):
                declared = container.resources
                amounts = declared.limits if kind == "limits" else declared.requests
                if resource not in amounts:
                    yield (
                        f"container {container.name} has no {kind} of {resource}, which "
                        f"ResourceQuota {quota.name} requires"
                    )
                    break


def take(pod: Pod, usage: Resources, quotas: Iterable[NamespaceQuota]) -> Excess | None:
    """Count a pod in every quota that matches it; return an excess if one has too little left."""
    matching = [quota for quota in quotas if quota.counts(pod)]
    for quota in matching:
        excess = quota.excess(usage)
        if excess is not None:
            return excess
    for quota in matching:
        quota.used = add_resources(quota.used, {n: usage[n] for n in quota.hard if n in usage})
    return None
