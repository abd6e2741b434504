"""Predicts the fleet once Karpenter has nothing left to do, and compares when that is so.

The cluster is quiet while a plan by Karpenter's rules launches and disrupts nothing, no pod waits
for a node that it could get, and every NodeClaim is initialized and stays. Once it has been quiet
for ``QUIET``, that is the end. The end that was predicted counts if the workload is still the same
then: what others create or delete meanwhile leads to another end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.model.errors import ReconcilerError
from reconciler.model.karpenter.nodeclaim import DISRUPTION_REASON
from reconciler.model.karpenter.prediction import (
    EndRange,
    FleetEnd,
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    Prediction,
    Score,
)
from reconciler.watch.observing import facts_of_claim
from reconciler.watch.scoring import cost_of, score_action

if TYPE_CHECKING:
    from reconciler.model.json import JsonDict
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.predictions import PredictionLog
    from reconciler.watch.observing import Prices

QUIET: Final = timedelta(seconds=60)
"""How long nothing must happen: Karpenter looks for consolidation every ten seconds, and checks a
command again after 15."""
SETTLED: Final = timedelta(seconds=3)
"""How long the workload must be the same before its end is simulated."""
PAUSE_MIN: Final = timedelta(seconds=60)
PAUSE_FACTOR: Final = 20
"""A simulation that took a second is followed by at least 20 without one: 5% of a core."""
NODES_MAX: Final = 300
"""The end of a cluster with more nodes is not predicted.

Its simulation takes minutes, in which the workload has changed, and as much memory as the watch.
"""
_AWAITED_WITHIN: Final = timedelta(hours=1)
"""A node that may be consolidated within this time keeps the cluster from being quiet."""

Simulate = Callable[["Sequence[JsonDict]", "Inputs"], EndRange | None]
Submit = Callable[[Callable[[], EndRange | None]], "Future[EndRange | None]"]


class _Demand(NamedTuple):
    """What the fleet at the end depends on: pods by owner, and desired state."""

    pods: frozenset[tuple[object, int]]
    desired: str


@dataclass(slots=True)
class _Running:
    """A simulation that was started at a time, for a workload."""

    demand: _Demand
    at: datetime
    future: Future[EndRange | None]
    objects: Sequence[JsonDict]


@dataclass(slots=True)
class _Predicted:
    demand: _Demand
    prediction: Prediction
    objects: Sequence[JsonDict]


class ScoredEnd(NamedTuple):
    """The score of an end, with what it was predicted from and the nodes that there are."""

    score: Score
    prediction: Prediction
    objects: Sequence[JsonDict]
    fleet: Sequence[NodeFacts]


@dataclass
class EndWatch:
    """Predicts the end of each disturbance of a cluster, and scores it.

    ``simulate`` returns the range of the end; ``submit`` runs it elsewhere. A simulation is started
    when the cluster is no longer quiet or its workload has changed, and the workload has been the
    same for ``SETTLED``; at most every ``PAUSE_MIN``, and for at most a twentieth of the time.
    ``on_note`` receives once that the cluster is too large.
    """

    log: PredictionLog
    simulate: Simulate
    submit: Submit
    on_problem: Callable[[ReconcilerError], None]
    on_note: Callable[[str], None] = lambda _: None
    _demand: _Demand | None = None
    _demand_since: datetime | None = None
    _quiet_since: datetime | None = None
    _fleet: Sequence[NodeFacts] | None = None
    _objects: Sequence[JsonDict] = ()
    _work: Callable[[], EndRange | None] | None = None
    _is_too_large: bool = False
    _running: _Running | None = None
    _predicted: _Predicted | None = None
    _next_at: datetime | None = None

    def planned(
        self,
        objects: Sequence[JsonDict],
        inputs: Inputs,
        plan: Plan,
        claims: Sequence[NodeClaim],
        prices: Prices,
    ) -> None:
        """Receive the plan of a changed cluster."""
        now, demand = inputs.now, _demand_of(inputs)
        if demand != self._demand:
            self._demand, self._demand_since = demand, now
        if not is_quiet(inputs, plan, claims):
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        self._fleet = [facts_of_claim(claim, prices) for claim in claims]
        self._objects = objects
        is_small = len(claims) <= NODES_MAX
        self._work = (lambda: self.simulate(objects, inputs)) if is_small else None
        if not is_small and not self._is_too_large:
            self.on_note(
                f"the fleet that Karpenter ends with is not predicted for more than {NODES_MAX} "
                "nodes: simulations would take minutes, and as much memory as the watch itself"
            )
        self._is_too_large = not is_small

    @property
    def expected(self) -> EndRange | None:
        """The range of the end that is awaited, None if none is predicted."""
        found = self._predicted
        return found.prediction.end if found is not None and found.demand == self._demand else None

    def step(self, now: datetime) -> list[ScoredEnd]:
        """Start or finish a simulation, and return the score of an end that has come."""
        self._finish(now)
        if self._quiet_since is None:
            self._start(now)
            return []
        if now - self._quiet_since < QUIET or self._predicted is None:
            return []
        predicted, self._predicted = self._predicted, None
        if predicted.demand != self._demand or self._fleet is None:
            return []
        end = FleetEnd(len(self._fleet), cost_of(self._fleet))
        action = KarpenterAction(self._quiet_since, KarpenterActionKind.END, end=end)
        score = score_action(action, predicted.prediction)
        return [ScoredEnd(score, predicted.prediction, predicted.objects, self._fleet)]

    def _start(self, now: datetime) -> None:
        """Simulate the newest plan if its workload has no prediction, and it is time to."""
        if self._work is None or self._running is not None or self._demand is None:
            return
        if self._predicted is not None and self._predicted.demand == self._demand:
            return
        assert self._demand_since is not None, "a workload has been seen"
        due = self._demand_since + SETTLED
        if now < (due if self._next_at is None else max(due, self._next_at)):
            return
        self._predicted = None
        self._running = _Running(self._demand, now, self.submit(self._work), self._objects)
        self._work = None

    def _finish(self, now: datetime) -> None:
        """Record a simulation that has ended, unless its end has come already."""
        running = self._running
        if running is None or not running.future.done():
            return
        self._running = None
        self._next_at = now + max(PAUSE_MIN, (now - running.at) * PAUSE_FACTOR)
        try:
            found = running.future.result()
        except ReconcilerError as error:
            self.on_problem(error)
            return
        if found is None or self._quiet_since is not None or running.demand != self._demand:
            return
        made = self.log.record(Prediction(running.at, end=found))
        self._predicted = _Predicted(running.demand, made, running.objects)


def is_quiet(inputs: Inputs, plan: Plan, claims: Sequence[NodeClaim]) -> bool:
    """Return whether Karpenter has nothing to do, and waits for nothing that comes soon."""
    if plan.commands or plan.node_claims:
        return False
    unscheduled = {pod.key for pod in inputs.cluster.pods if pod.is_unscheduled}
    if not unscheduled <= {found.pod for found in plan.unschedulable}:
        return False
    until = inputs.now + _AWAITED_WITHIN
    if any(d.not_before is not None and d.not_before <= until for d in plan.deferred):
        return False
    return all(map(_is_settled, claims))


def _is_settled(claim: NodeClaim) -> bool:
    """Return whether a node is initialized, and neither disrupted nor deleted."""
    if claim.is_true(DISRUPTION_REASON) or claim.metadata.deletion_timestamp is not None:
        return False
    return claim.is_true("Initialized")


def _demand_of(inputs: Inputs) -> _Demand:
    """Return the pods by what created them, without those of DaemonSets and those that end."""
    counted: Counter[object] = Counter()
    for pod in inputs.cluster.pods:
        owner = pod.metadata.controller
        if not pod.is_active or (owner is not None and owner.kind == "DaemonSet"):
            continue
        name = (pod.metadata.name,) if owner is None else (owner.kind, owner.name)
        counted[pod.namespace, name] += 1
    return _Demand(frozenset(counted.items()), inputs.digests.git)
