"""Asks placement and disruption together, in the one way that all plans are made.

Where nothing runs nothing can be disrupted: then only placement is asked, and disruption is not
even loaded, so that a plan of a repository alone starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import RemovalPolicy
from reconciler.observed.state import ClusterState
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Placement, Question
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.inputs import Inputs, Object
from reconciler.plan.make.pools import PoolTypes

if TYPE_CHECKING:
    from reconciler.catalog.commitments.coverage import Cover
    from reconciler.diff.drift import Drift
    from reconciler.disruption.command import (
        Block,
        Blocker,
        BudgetState,
        Command,
        Decisions,
        Deferral,
    )
    from reconciler.disruption.simulation import Placer
    from reconciler.disruption.situation import Situation
    from reconciler.placement.pods.headroom import Headroom
    from reconciler.placement.question import LaunchPool

Phase = Callable[[str], AbstractContextManager[None]]
"""Is told which phase the work within belongs to; the planner itself reads no clock."""


def untimed(_: str) -> AbstractContextManager[None]:
    """Take no note of any phase."""
    return nullcontext()


class Facts(msgspec.Struct, frozen=True):
    """The inputs in the values of the model: pools with their types, classes as looked up.

    The pods of ``cluster`` are also those that ``headroom`` asks for. ``covers`` are the
    commitments that have room; ``uncovered`` gives the types at prices without them.
    """

    pools: tuple[NodePool, ...]
    classes: Mapping[str, EC2NodeClass]
    types: PoolTypes
    cluster: ClusterState
    headroom: tuple[Headroom, ...] = ()
    covers: tuple[Cover, ...] = ()
    uncovered: Callable[[], Mapping[str, LaunchPool]] = dict


class Places(msgspec.Struct, frozen=True):
    """What is decided where nothing runs: places alone, in the form of ``Decisions``."""

    placement: Placement | None
    commands: tuple[Command, ...] = ()
    blocked: tuple[Block, ...] = ()
    deferred: tuple[Deferral, ...] = ()
    budgets: tuple[BudgetState, ...] = ()
    limits_hit: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()


def scheduler_of(inputs: Inputs, facts: Facts, salt: str) -> Callable[[], Scheduler]:
    """Return what gives the scheduler of a plan: made when first asked for, then kept."""
    renew = _scheduler(inputs, facts, salt)
    return cache(lambda: renew(facts.cluster, 0))


def decided_by(
    inputs: Inputs,
    facts: Facts,
    drift: Sequence[Drift],
    salt: str,
    phase: Phase,
    scheduler: Callable[[], Scheduler] | None = None,
) -> Decisions | Places:
    """Return what disruption and placement decide together; ``salt`` goes into new names.

    ``scheduler`` gives that of the cluster as it is, where the caller wants to ask it as well.
    """
    first = scheduler or scheduler_of(inputs, facts, salt)
    if facts.cluster.unlaunched or any(node.is_managed for node in facts.cluster.nodes):
        from reconciler.disruption.decide import decide

        with phase("placement"):
            situation = situation_of(inputs, facts, drift, salt, phase, first)
        with phase("disruption"):
            return decide(situation)
    pending = pods_to_place(facts.cluster, inputs.now)
    if not pending:
        return Places(None)
    with phase("placement"):
        return Places(first().place(Question(pods=pending)))


def situation_of(
    inputs: Inputs,
    facts: Facts,
    drift: Sequence[Drift],
    salt: str = "",
    phase: Phase = untimed,
    scheduler: Callable[[], Scheduler] | None = None,
) -> Situation:
    """Return what disruption is asked: also by who validates a command before it goes on."""
    from reconciler.disruption.situation import Situation
    from reconciler.model.history import History

    renew = _scheduler(inputs, facts, salt)
    first = scheduler() if scheduler is not None else renew(facts.cluster, 0)
    return Situation(
        cluster=facts.cluster,
        pools=facts.pools,
        launch_pools=facts.types.every,
        scheduler=_Timed(first, phase),
        renew=renew,
        settings=inputs.settings,
        drifted=drift,
        now=inputs.now,
        pending=pods_to_place(facts.cluster, inputs.now),
        interrupted=inputs.interrupted,
        allow_removal=_removable(inputs, facts),
        last_known=vanished_pools(inputs.known_before, facts.pools),
        nominated=inputs.nominated,
        history=inputs.history or History(),
        lists_blockers=inputs.lists_blockers,
    )


def _scheduler(inputs: Inputs, facts: Facts, salt: str) -> Callable[[ClusterState, int], Scheduler]:
    """Return what makes the scheduler of a cluster; each further one gives other names."""

    def renew(cluster: ClusterState, number: int) -> Scheduler:
        name = f"{salt}\n{number}" if number else salt
        return Scheduler(facts.types.ready, cluster, inputs.settings, inputs.now, salt=name)

    return renew


class _Timed:
    """A scheduler whose answers for the pods that wait count as placement."""

    def __init__(self, scheduler: Placer, phase: Phase) -> None:
        self._scheduler = scheduler
        self._phase = phase

    def place(self, question: Question) -> Placement:
        """Ask the scheduler."""
        with self._phase("placement" if question.strict_reservations else "disruption"):
            return self._scheduler.place(question)

    def worth(self, pods: Iterable[Pod]) -> Mapping[str, float]:
        """Ask the scheduler."""
        return self._scheduler.worth(pods)


def vanished_pools(recorded: Iterable[Object], pools: Iterable[NodePool]) -> tuple[NodePool, ...]:
    """Return the NodePools among ``recorded`` objects that ``pools``, those of git, lack.

    Of two objects with one name the last counts.
    """
    desired = {pool.name for pool in pools}
    known: dict[str, NodePool] = {}
    for item in recorded:
        name = item.get("metadata", {}).get("name", "")
        if item.get("kind") == "NodePool" and name not in desired:
            known[name] = decode(item, NodePool)
    return tuple(known[name] for name in sorted(known))


def _removable(inputs: Inputs, facts: Facts) -> frozenset[str]:
    """Return the NodePools whose removal is allowed: by name, or all that vanished."""
    if inputs.settings.removal_policy != RemovalPolicy.ALLOW:
        return inputs.allow_removal
    desired = {pool.name for pool in facts.pools}
    owned = {n.node_pool for n in facts.cluster.nodes if n.is_managed and n.node_pool}
    return inputs.allow_removal | (owned - desired)
