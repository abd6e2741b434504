"""What a change costs: the fleet at rest under the base, and carried on from there under the head.

``before`` and ``after`` differ by nothing but the desired state: the same clock goes on, and a
node costs what it cost when it was launched or first seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as with_fields
from datetime import timedelta
from typing import Any, Final

from reconciler.desired.fleet import Fleet
from reconciler.desired.objects import node_pools
from reconciler.model.budget import DisruptionReason, allowance
from reconciler.model.history import History
from reconciler.plan.costs import money
from reconciler.plan.inputs import Inputs
from reconciler.plan.plan import HOURS_A_MONTH, AtRest, Cost, FleetAtRest
from reconciler.plan.rest.carry import Rest, Work, carried
from reconciler.plan.rest.interval import interval, side_of
from reconciler.plan.rest.stuck import stuck_nodes
from reconciler.plan.rest.workloads import with_workloads
from reconciler.plan.rest.world import World

_WORK: Final = 5_500_000
_WORK_FOR_A_NODE: Final = 350
"""How many nodes the questions of both sides may look at: so many, and so many for each node.

That is enough for three hundred nodes that are far from rest, and twice what one plan of ten
thousand may take (``deliberation.WORK_MAX``).
"""
_MANY: Final = 100
"""A budget that allows none of so many nodes allows none at all."""


def compared(inputs: Inputs, base: Inputs, most: int | None = None) -> tuple[AtRest, Cost]:
    """Return what the change from ``base`` to ``inputs`` costs, and what the base's plan comes to.

    ``most`` is the limit of work, by default the stated one.
    """
    most = most or _WORK + _WORK_FOR_A_NODE * len(base.cluster.nodes)
    work = Work(most // 2)
    world = World(base.cluster, instances=base.instances)
    before = carried(base, world, base.now, base.history or History(), work)
    assert before.first is not None, "one answer is always asked for"
    first = before.first
    if _decides_alike(base, inputs):
        return _difference(before, _continued(before)), first
    if not before.ended:
        return _difference(before, _head(before, inputs, base, work.more(most // 2))), first
    if _decides_alike(base, inputs, but_for_budgets=True) and _opens(base) and _opens(inputs):
        return _difference(before, _continued(before)), first
    work = Work(most // 4)
    further = carried(base, before.world, before.at, before.history, work)
    if not further.ended:
        return _difference(further, _head(further, inputs, base, work.more(most // 4))), first
    # both go on from the same fleet with the same work: what is left to do anyway counts on both
    return _difference(further, _head(before, inputs, base, Work(most // 4))), first


def _head(before: Rest, inputs: Inputs, base: Inputs, work: Work) -> Rest:
    """Return where the head takes the fleet on to."""
    world = before.world
    if inputs.cluster is not base.cluster:
        cluster = with_workloads(world.cluster, inputs.cluster, before.at)
        world = with_fields(world, cluster=cluster)
    return carried(inputs, world, before.at, before.history, work)


def _continued(rest: Rest) -> Rest:
    """Return the fleet under a head that changes nothing."""
    return with_fields(rest, began=rest.at, last=None, ended=False, rested=True)


def _difference(before: Rest, after: Rest) -> AtRest:
    old, new = side_of(before), side_of(after)
    limited = after.ended or (before.ended and after.world is not before.world)
    change = new.estimate - old.estimate
    return AtRest(
        before=FleetAtRest(nodes=len(old.names), per_hour=old.estimate),
        after=FleetAtRest(nodes=len(new.names), per_hour=new.estimate),
        per_hour=money([change]),
        per_month=money([change * HOURS_A_MONTH]),
        bounds=interval(before, old, after, new, change) if limited else None,
        unschedulable=_unschedulable(after),
        replaced=min(len(old.names - new.names), len(new.names - old.names)),
        rollout=_rollout(after),
        stuck=stuck_nodes(after),
    )


def _unschedulable(rest: Rest) -> tuple[str, ...]:
    placement = rest.decisions.placement
    if placement is None:
        return ()
    waiting = {pod.key for pod in rest.world.cluster.pending}
    return tuple(sorted(waiting & (placement.unschedulable.keys() | placement.deferred.keys())))


def _rollout(rest: Rest) -> str | None:
    """Return the time from the first moment to the end of the last action, in ISO 8601."""
    if not rest.rested:
        return None
    return iso_duration(rest.last - rest.began if rest.last is not None else timedelta())


def iso_duration(span: timedelta) -> str:
    """Return a span as ISO 8601 has it: ``PT0S``, ``PT12M``, ``P1DT2H``; whole seconds."""
    seconds = span.days * 86_400 + span.seconds
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    time = "".join(
        f"{amount}{unit}"
        for amount, unit in ((hours, "H"), (minutes, "M"), (seconds, "S"))
        if amount
    )
    day = f"{days}D" if days else ""
    return f"P{day}T{time}" if time else f"P{day}" if day else "PT0S"


def _decides_alike(one: Inputs, other: Inputs, *, but_for_budgets: bool = False) -> bool:
    """Return whether two questions have the same answers, now and at every later moment.

    Comments, the order of files, and workloads beside a cluster that is observed decide nothing.
    """
    if one.catalog is not other.catalog and one.catalog.digest != other.catalog.digest:
        return False
    if one.cluster is not other.cluster and one.cluster != other.cluster:
        return False
    if one.settings != other.settings:
        return False
    rows = (list(_deciding(i.fleet, but_for_budgets=but_for_budgets)) for i in (one, other))
    return next(rows) == next(rows)


def _deciding(fleet: Fleet, *, but_for_budgets: bool) -> Iterator[tuple[str, Any]]:
    """Yield what of a fleet's files decisions depend on."""
    for resource in fleet.node_pools:
        data = resource.data
        if but_for_budgets:
            spec = data.get("spec", {})
            disruption = {k: v for k, v in spec.get("disruption", {}).items() if k != "budgets"}
            data = {**data, "spec": {**spec, "disruption": disruption}}
        yield resource.name, data
    for group in (
        fleet.node_claims, fleet.node_overlays, fleet.node_classes, fleet.capacity_buffers,
    ):  # fmt: skip
        yield from ((f"{r.kind}/{r.namespace}/{r.name}", r.data) for r in group)
    yield "lock", fleet.lock.digest if fleet.lock is not None else ""


def _opens(inputs: Inputs) -> bool:
    """Return whether the budgets of every NodePool let nodes go at some time for every reason."""
    return all(
        allowance(
            [b for b in pool.spec.disruption.budgets if b.schedule is None],
            reason,
            _MANY,
            inputs.now,
        ).nodes
        for pool in node_pools(inputs.fleet)
        for reason in DisruptionReason
    )
