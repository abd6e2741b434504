"""The decisions of placement and disruption, made in the same way for all plans.

Without nodes nothing can be disrupted. Then only placement decides, and the methods of disruption
are not even loaded, so that a plan of a repository alone starts fast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from reconciler.disruption.command import Decisions
from reconciler.disruption.consolidation.rejections import RejectionCache
from reconciler.model.history import History
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import ClusterState
from reconciler.placement.inputs import PlacementInputs
from reconciler.placement.nodes.existing import SchedulerMemory
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Placement, Question
from reconciler.placement.scheduler import Scheduler
from reconciler.placement.work import SimulatedWork
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.factscache import FactsCache

if TYPE_CHECKING:
    from reconciler.disruption.inputs import DisruptionInputs
    from reconciler.disruption.simulation import Placer

Phase = Callable[[str], AbstractContextManager[None]]
"""Receives the current phase of the work; the planner itself reads no clock."""


def ignore_phase(_: str) -> AbstractContextManager[None]:
    """Ignore the phase."""
    return nullcontext()


def lazy_scheduler(
    facts: Facts, salt: str, memory: SchedulerMemory | None = None
) -> Callable[[], Scheduler]:
    """Return a function for the scheduler of a plan, which is created on first use."""
    renew = _scheduler_factory(facts, salt, memory)
    return functools.cache(lambda: renew(facts.cluster, 0))


def make_decisions(
    facts: Facts,
    salt: str,
    phase: Phase,
    scheduler: Callable[[], Scheduler] | None = None,
    cache: FactsCache | None = None,
) -> Decisions:
    """Return what disruption and placement decide together; ``salt`` goes into new names.

    ``scheduler`` returns that of the present cluster, if the caller uses it as well. ``cache`` has
    the rejections of earlier passes of the same loop.
    """
    current = scheduler or lazy_scheduler(facts, salt)
    if facts.cluster.unlaunched or any(node.is_managed for node in facts.cluster.nodes):
        from reconciler.disruption.decide import decide

        with phase("placement"):
            inputs = disruption_inputs(facts, salt, phase, current, cache)
        with phase("disruption"):
            decisions = decide(inputs)
        if cache is not None:
            cache.disruption_work += decisions.work
        return decisions
    pending = pods_to_place(facts.cluster, facts.now)
    if not pending:
        return Decisions()
    with phase("placement"):
        return Decisions(placement=current().place(Question(pods=pending)))


def disruption_inputs(
    facts: Facts,
    salt: str = "",
    phase: Phase = ignore_phase,
    scheduler: Callable[[], Scheduler] | None = None,
    cache: FactsCache | None = None,
) -> DisruptionInputs:
    """Return the question for disruption, which validation of a command asks as well."""
    from reconciler.disruption.inputs import DisruptionInputs

    memory = cache.schedulers if cache is not None else None
    first = scheduler() if scheduler is not None else lazy_scheduler(facts, salt, memory)()
    renew = _scheduler_factory(facts, salt, memory, first.simulated)
    return DisruptionInputs(
        cluster=facts.cluster,
        pools=facts.pools,
        launch_pools=facts.types.every,
        scheduler=_TimedScheduler(first, phase),
        renew=renew,
        simulated=first.simulated,
        settings=facts.settings,
        drifted=facts.drift,
        now=facts.now,
        pending=pods_to_place(facts.cluster, facts.now),
        interrupted=facts.interrupted,
        allow_removal=facts.removable,
        last_known=facts.vanished,
        nominated=facts.nominated,
        checked=facts.checked,
        unsettled=facts.unsettled,
        history=facts.history or History(),
        lists_blockers=facts.lists_blockers,
        states_reasons=facts.states_reasons,
        refusals=cache.refusals if cache is not None else RejectionCache(is_kept=False),
    )


def _scheduler_factory(
    facts: Facts,
    salt: str,
    memory: SchedulerMemory | None = None,
    simulated: SimulatedWork | None = None,
) -> Callable[[ClusterState, int], Scheduler]:
    """Return a function that creates schedulers of a cluster, each with other names.

    They share the work of simulated removals.
    """
    shared = memory if memory is not None else SchedulerMemory()
    work = simulated if simulated is not None else SimulatedWork()

    def renew(cluster: ClusterState, number: int) -> Scheduler:
        name = f"{salt}\n{number}" if number else salt
        return Scheduler(
            facts.types.ready,
            cluster,
            facts.settings,
            facts.now,
            salt=name,
            memory=shared,
            simulated=work,
        )

    return renew


class _TimedScheduler:
    """A scheduler whose results for pending pods count as placement."""

    def __init__(self, scheduler: Placer, phase: Phase) -> None:
        self._scheduler = scheduler
        self._phase = phase

    def place(self, question: Question) -> Placement:
        """Ask the scheduler."""
        with self._phase("placement" if question.strict_reservations else "disruption"):
            return self._scheduler.place(question)

    def pod_values(self, pods: Iterable[Pod]) -> Mapping[str, float]:
        """Ask the scheduler."""
        return self._scheduler.pod_values(pods)

    def placement_inputs(
        self, pods: Sequence[Pod], without: frozenset[str]
    ) -> PlacementInputs | None:
        """Ask the scheduler."""
        return self._scheduler.placement_inputs(pods, without)

    def cannot_share(self, pods: Sequence[Pod], without: frozenset[str], price: float) -> bool:
        """Ask the scheduler."""
        return self._scheduler.cannot_share(pods, without, price)

    def exceeds_price(
        self, pods: Sequence[Pod], without: frozenset[str], price: float, *, spot: bool
    ) -> bool:
        """Ask the scheduler."""
        return self._scheduler.exceeds_price(pods, without, price, spot=spot)

    def strands(self, pods: Iterable[Pod]) -> bool:
        """Ask the scheduler."""
        return self._scheduler.strands(pods)
