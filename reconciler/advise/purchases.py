"""Commitments worth buying for a fleet, by its usage at rest, or over the time of a trace.

Usage is the on-demand cost of nodes that no commitment of the settings covers. Spot nodes do not
count: no commitment covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from msgspec.structs import asdict

from reconciler.advise.evaluating import LEAST_SAVING, Judge
from reconciler.advise.result import CommitmentAdvice, Level
from reconciler.backtest.trace import Trace, TracedNode
from reconciler.catalog.commitments.coverage import RunningNode, coverage_of
from reconciler.catalog.commitments.purchases import Purchase, PurchaseKind, UsageStep, purchases
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ON_DEMAND, ZONE
from reconciler.model.text.counting import format_count

_HOUR: Final = 3600.0
_DAYS_HIGH: Final = 28
_DAYS_MEDIUM: Final = 7
_DAY: Final = 24.0


def commitments_worth_buying(
    judge: Judge, trace: Trace | None, played_nodes: Sequence[TracedNode]
) -> tuple[CommitmentAdvice, ...]:
    """Return the commitments worth buying, the largest saving first.

    With a trace, its recorded nodes count, or those that the current files got for its pods
    (``played_nodes``). Without one, the usage at rest counts as the usage at all times.
    """
    is_at_rest = trace is None
    if trace is None:
        steps = [UsageStep(1.0, _uncovered_usage(judge, _nodes_at_rest(judge)))]
    else:
        steps = list(_usage_steps(judge, trace.nodes or played_nodes, trace.seconds))
    request = judge.request
    found = purchases(
        steps,
        lambda kind: _on_demand_price(judge, kind),
        request.compute_plan_percent,
        request.instance_plan_percent,
    )
    hours = sum(step.hours for step in steps)
    return tuple(
        _commitment_advice(one, rank, 0.0 if is_at_rest else hours)
        for rank, one in enumerate((o for o in found if o.per_month <= -LEAST_SAVING), start=1)
    )


def _commitment_advice(purchase: Purchase, rank: int, hours: float) -> CommitmentAdvice:
    confidence: Level = "low"
    days = hours / _DAY
    if days >= _DAYS_MEDIUM:
        confidence = "high" if days >= _DAYS_HIGH else "medium"
    basis = f"usage over {days:.1f} days" if hours else "steady-state usage"
    return CommitmentAdvice(
        **asdict(purchase),
        rank=rank,
        title=_title(purchase),
        confidence=confidence,
        basis=basis,
    )


def _title(purchase: Purchase) -> str:
    amount = f"${purchase.commitment:.4f}/hour"
    match purchase.kind:
        case PurchaseKind.COMPUTE_PLAN:
            return f"Buy a compute savings plan of {amount}"
        case PurchaseKind.INSTANCE_PLAN:
            return f"Buy an EC2 instance savings plan for {purchase.name} of {amount}"
        case PurchaseKind.RESERVED_INSTANCES:
            return f"Buy {format_count(purchase.count, 'reserved instance')} of {purchase.name}"


def _nodes_at_rest(judge: Judge) -> list[RunningNode]:
    nodes = []
    for node in judge.base.world.cluster.nodes:
        labels = node.labels
        kind = labels.get(INSTANCE_TYPE, "")
        price = _on_demand_price(judge, kind)
        is_counted = node.is_managed and labels.get(CAPACITY_TYPE) == ON_DEMAND
        if is_counted and price is not None:
            nodes.append(RunningNode(node.name, kind, labels.get(ZONE, ""), price))
    return nodes


def _comings_and_goings(
    judge: Judge, nodes: Iterable[TracedNode], seconds: float
) -> Iterator[tuple[float, int, RunningNode]]:
    """Yield when each on-demand node comes (1) and goes (0)."""
    for node in nodes:
        price = node.price
        if price is None:
            price = _on_demand_price(judge, node.instance_type)
        until = seconds if node.deleted is None else min(node.deleted, seconds)
        if node.capacity_type == ON_DEMAND and price is not None and until > node.created:
            running = RunningNode(node.node, node.instance_type, node.zone, price)
            yield node.created, 1, running
            yield until, 0, running


def _usage_steps(judge: Judge, nodes: Iterable[TracedNode], seconds: float) -> Iterator[UsageStep]:
    """Yield the usage between two changes of the nodes, from the first change on."""
    moments = sorted(
        _comings_and_goings(judge, nodes, seconds),
        key=lambda moment: (moment[0], moment[1], moment[2].name),
    )
    present: dict[str, RunningNode] = {}
    before = 0.0
    for at, group in groupby(moments, key=lambda moment: moment[0]):
        if at > before:
            yield UsageStep((at - before) / _HOUR, _uncovered_usage(judge, present.values()))
            before = at
        for _, comes, running in group:
            if comes:
                present[running.name] = running
            else:
                present.pop(running.name, None)
    if seconds > before:
        yield UsageStep((seconds - before) / _HOUR, _uncovered_usage(judge, present.values()))


def _uncovered_usage(judge: Judge, nodes: Iterable[RunningNode]) -> dict[str, float]:
    """Return USD an hour by instance type that no commitment of the settings covers."""
    running = list(nodes)
    settings, now = judge.inputs.settings, judge.inputs.now
    paid: dict[str, float] = {}
    if settings.commitments is not None:
        paid = coverage_of(settings.commitments, running, settings.region, now).paid
    found: dict[str, float] = {}
    for node in running:
        amount = paid.get(node.name, node.price)
        found[node.instance_type] = found.get(node.instance_type, 0.0) + amount
    return found


def _on_demand_price(judge: Judge, kind: str) -> float | None:
    """Return the listed on-demand price of a type, None if there is none."""
    known = judge.inputs.catalog.listed.get(kind)
    offerings = () if known is None else known.offerings
    return min((o.price for o in offerings if o.capacity_type == ON_DEMAND), default=None)
