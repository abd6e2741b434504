"""The utilization of the nodes of a side over time: requests of pods by allocatable resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum
from typing import Final

from reconciler.engine.reconcile import Pass
from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.model.resources import CPU, MEMORY, Resources, parse_resources
from reconciler.plan.value.backtest import Utilization

_HOUR: Final = timedelta(hours=1)
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """CPU and memory, in thousandths of a core and of a byte."""

    cpu: int = 0
    memory: int = 0

    @classmethod
    def of(cls, resources: Resources) -> CpuMemory:
        """Return those of a list of resources; what is missing is 0."""
        return cls(resources.get(CPU, 0), resources.get(MEMORY, 0))

    @classmethod
    def total(cls, amounts: Iterable[CpuMemory]) -> CpuMemory:
        """Return the sum."""
        cpu = memory = 0
        for one in amounts:
            cpu += one.cpu
            memory += one.memory
        return cls(cpu, memory)


@dataclass(frozen=True, slots=True)
class Fullness:
    """From ``at`` on: what the pods on the fleet's nodes request, and what is allocatable."""

    at: datetime
    requested: CpuMemory
    allocatable: CpuMemory

    @property
    def cpu_share(self) -> float:
        """The share of the CPU that is requested, 0 without nodes."""
        return _share(self.requested.cpu, self.allocatable.cpu)


class FullnessRecorder:
    """Records the utilization of NodePools when a pass observes a change.

    Passes that observe the same pods and nodes cost a comparison of identities.
    """

    def __init__(self) -> None:
        self.steps: list[Fullness] = []
        self._pods: tuple[Pod, ...] = ()
        self._nodes: tuple[Node, ...] = ()
        self._requests: dict[int, tuple[PodSpec, CpuMemory]] = {}

    def saw(self, done: Pass) -> None:
        """Record what a pass observed."""
        snapshot = done.seen.snapshot
        if snapshot.pods == self._pods and snapshot.nodes == self._nodes:
            return
        self._pods, self._nodes = snapshot.pods, snapshot.nodes
        nodes = {n.name: n for n in snapshot.nodes if NODEPOOL in n.metadata.labels}
        known, self._requests = self._requests, {}
        requested = CpuMemory.total(
            self._of(pod, known) for pod in snapshot.pods if pod.spec.node_name in nodes
        )
        allocatable = CpuMemory.total(
            CpuMemory.of(parse_resources(node.status.allocatable)) for node in nodes.values()
        )
        last = self.steps[-1] if self.steps else None
        if last is None or (last.requested, last.allocatable) != (requested, allocatable):
            self.steps.append(Fullness(done.seen.at, requested, allocatable))

    def _of(self, pod: Pod, known: dict[int, tuple[PodSpec, CpuMemory]]) -> CpuMemory:
        """Return what a pod requests; its spec is kept, so that no other one gets its id."""
        spec = pod.spec
        found = known.get(id(spec)) or (spec, CpuMemory.of(pod.requests()))
        self._requests[id(spec)] = found
        return found[1]


def utilization(steps: Sequence[Fullness], end: datetime) -> Utilization:
    """Return the requested share of all that was allocatable from the first step to ``end``."""
    spans = [
        (step, (until - step.at) / _HOUR)
        for step, until in zip(steps, [*(s.at for s in steps[1:]), end], strict=bool(steps))
    ]

    def share(of: Callable[[CpuMemory], int]) -> float:
        requested = fsum(of(step.requested) * hours for step, hours in spans)
        return _share(requested, fsum(of(step.allocatable) * hours for step, hours in spans))

    return Utilization(share(lambda amounts: amounts.cpu), share(lambda amounts: amounts.memory))


def _share(requested: float, allocatable: float) -> float:
    return round(requested / allocatable, _DIGITS) if allocatable else 0.0
