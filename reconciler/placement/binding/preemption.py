"""Preemption: a pod that fits nowhere evicts pods of a lower priority from one node.

The plugin DefaultPreemption of kube-scheduler (``pkg/scheduler/framework/preemption``). Each node
is tried with all pods of a lower priority removed; as many of them as possible are kept, first
those that a PodDisruptionBudget protects. The node where the least is lost is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.profile import Plugin
from reconciler.placement.binding.host import HostNode, stable_hash

if TYPE_CHECKING:
    from reconciler.placement.binding.cycle import KubeScheduler

_CANDIDATES_PERCENT: Final = 10
_CANDIDATES_MIN: Final = 100
"""The nodes that are tried: a share of them, but at least this number."""

EVICTION_ROUNDS_MAX: Final = 20
"""How often pods that were evicted at a moment are bound again, and may evict others in turn."""

_NOT_STARTED: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Preemption:
    """A pod for which others are evicted from a node; it is nominated for that node."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A node with the pods that would have to go, the most important first."""

    host: HostNode
    victims: tuple[Pod, ...]
    violations: int

    def loss(self) -> tuple[int, int, int, int, float]:
        """Return what is lost, to compare: less is better (``pickOneNodeForPreemption``)."""
        priorities = [_priority(pod) for pod in self.victims]
        highest = priorities[0]
        started = min(_started(pod) for pod in self.victims if _priority(pod) == highest)
        return (
            self.violations,
            highest,
            sum(priority + 2**31 for priority in priorities),
            len(priorities),
            -started.timestamp(),
        )


def find_preemption(
    scheduler: KubeScheduler, pod: Pod, budgets: Sequence[PodDisruptionBudget], seed: int
) -> Preemption | None:
    """Return which pods are evicted for a pod that fits on no node, None if that does not help.

    The cache of the scheduler is changed while nodes are tried, and restored.
    """
    if not _may_preempt(scheduler, pod) or scheduler.shapes.least_priority >= _priority(pod):
        return None
    hosts = [host for host in scheduler.search_order if _has_less_important(host, pod)]
    wanted = max(len(hosts) * _CANDIDATES_PERCENT // 100, _CANDIDATES_MIN)
    draw = stable_hash(f"{seed}/preemption/{pod.key}")
    start = draw % len(hosts) if hosts else 0
    found: list[_Candidate] = []
    for host in (*hosts[start:], *hosts[:start]):
        candidate = _candidate(scheduler, pod, host, budgets)
        if candidate is not None:
            found.append(candidate)
        if len(found) >= wanted and any(not c.violations for c in found):
            break
    if not found:
        return None
    least = min(candidate.loss() for candidate in found)
    best = [candidate for candidate in found if candidate.loss() == least]
    chosen = min(best, key=lambda c: c.host.salt ^ draw)
    victims = tuple(victim for victim in chosen.victims if not victim.is_terminating)
    return Preemption(pod, chosen.host.node.name, victims)


def _may_preempt(scheduler: KubeScheduler, pod: Pod) -> bool:
    """Return whether its policy, and the profile of its scheduler, allow a pod to evict others."""
    profile = scheduler.shapes.of(pod).profile
    return pod.spec.preemption_policy != "Never" and profile.filters(Plugin.DEFAULT_PREEMPTION)


def is_waiting_for_victims(pod: Pod, host: HostNode) -> bool:
    """Return whether pods that make room on the nominated node are still terminating."""
    return any(
        other.is_terminating and _priority(other) < _priority(pod)
        for other, _ in host.pods.values()
    )


def victims_on(
    scheduler: KubeScheduler, pod: Pod, host: HostNode, budgets: Sequence[PodDisruptionBudget]
) -> tuple[Pod, ...]:
    """Return the pods that are evicted from one node for ``pod``, none while others leave it."""
    if not _may_preempt(scheduler, pod) or is_waiting_for_victims(pod, host):
        return ()
    found = _candidate(scheduler, pod, host, budgets) if _has_less_important(host, pod) else None
    return found.victims if found is not None else ()


def _has_less_important(host: HostNode, pod: Pod) -> bool:
    priority = _priority(pod)
    return any(shape.priority < priority for shape in host.shapes)


def _candidate(
    scheduler: KubeScheduler, pod: Pod, host: HostNode, budgets: Sequence[PodDisruptionBudget]
) -> _Candidate | None:
    """Return the pods that would have to leave a node for ``pod``, None if that does not help."""
    if not scheduler.may_help(pod, host):
        return None
    priority = _priority(pod)
    removed = sorted(
        (other for other, shape in host.pods.values() if shape.priority < priority),
        key=_importance,
    )
    for other in removed:
        scheduler.drop_pod(other.key, host)
    victims: list[Pod] = []
    violations = 0
    if scheduler.accepts(pod, host):
        protected, others = _split_by_budget(removed, budgets)
        for group in (protected, others):
            for other in group:
                scheduler.put_pod(other, host)
                if scheduler.accepts(pod, host):
                    continue
                scheduler.drop_pod(other.key, host)
                victims.append(other)
                violations += group is protected
    for other in removed:
        if other.key not in host.pods:
            scheduler.put_pod(other, host)
    if not victims:
        return None
    return _Candidate(host, tuple(sorted(victims, key=_importance)), violations)


def _split_by_budget(
    pods: Iterable[Pod], budgets: Sequence[PodDisruptionBudget]
) -> tuple[list[Pod], list[Pod]]:
    """Return the pods whose eviction would violate a budget if all went, and the others."""
    allowed = [budget.status.disruptions_allowed for budget in budgets]
    protected: list[Pod] = []
    others: list[Pod] = []
    for pod in pods:
        is_violated = False
        for number, budget in enumerate(budgets):
            if pod.metadata.labels and _is_selected(budget, pod):
                allowed[number] -= 1
                is_violated = is_violated or allowed[number] < 0
        (protected if is_violated else others).append(pod)
    return protected, others


def _is_selected(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Return whether a budget selects a pod; for the scheduler, an empty selector does not."""
    selector = budget.spec.selector
    if selector is None or not (selector.match_labels or selector.match_expressions):
        return False
    return budget.selects(pod)


def _importance(pod: Pod) -> tuple[int, datetime, str]:
    """Return a sort key, the most important first: by priority, then by the time it has run."""
    return (-_priority(pod), _started(pod), pod.key)


def _priority(pod: Pod) -> int:
    return pod.spec.priority or 0


def _started(pod: Pod) -> datetime:
    return pod.status.start_time or _NOT_STARTED
