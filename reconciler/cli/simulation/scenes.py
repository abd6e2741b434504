"""Simulates the revisions: one, or the base first and then the head.

The cost of a change is the difference between the two, once nothing is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.cli.simulation.building import Setting, SimulatedFleet
from reconciler.cli.simulation.chronicle import RulePeriod, periods_of
from reconciler.cli.simulation.driver import Played, play
from reconciler.cli.simulation.report import DRAINING, Report, merge_of, report_of
from reconciler.cli.simulation.timeline import StreamedTimeline
from reconciler.cli.wiring.mandate import mandate_of
from reconciler.disruption.command import ForcefulReason
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.duration import iso_duration
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.plan.make.costs import money
from reconciler.plan.value.costs import AtRest, FleetAtRest, StuckNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reconciler.catalog.catalog import Catalog
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.observed.snapshot import Snapshot


def played(
    setting: Setting,
    until: datetime | timedelta | None,
    timeline: StreamedTimeline | None = None,
    passes_max: int | None = None,
) -> Report:
    """Run the simulation, and return the events from the start of the head revision on.

    A span ``until`` counts from that time. ``timeline`` receives the events as they happen.
    ``passes_max`` limits the passes, by default to those of any simulation.

    Raises:
        EndlessError: the maximum number of passes is reached.
    """
    stage, base, head = setting.stage, setting.base, setting.head
    if timeline is not None:
        stage.chronicle.listener = timeline.take
    before = _scene(setting, base, None, passes_max) if base is not None else None
    begin = stage.clock.now()
    had = list(stage.world.store.node_claims())
    end = begin + until if isinstance(until, timedelta) else until
    if before is not None:
        stage.samples.clear()
    if timeline is not None:
        timeline.begin(begin)
    outcome = _scene(setting, head, end, passes_max)
    report = report_of(stage, outcome, begin)
    report = msgspec.structs.replace(report, rules=_rules(head, report))
    if base is None or before is None:
        return report
    names = (_name(base), _name(head))
    merge = merge_of(report, stage, had, *names, before.converged)
    return msgspec.structs.replace(report, merge=merge)


def _rules(fleet: SimulatedFleet, report: Report) -> tuple[RulePeriod, ...]:
    """Return when budgets and windows limited the nodes of each NodePool with nodes."""
    totals = {
        name: max(pool.nodes_before, pool.nodes_after)
        for name, pool in report.cost.by_node_pool.items()
    }
    return tuple(
        period
        for pool in fleet.node_pools
        if totals.get(pool.name)
        for period in periods_of(
            pool, fleet.settings, totals[pool.name], report.started_at, report.at
        )
    )


def _scene(
    setting: Setting, fleet: SimulatedFleet, until: datetime | None, passes_max: int | None
) -> Played:
    entered = setting.enter(fleet)
    mandate = mandate_of(fleet.settings)
    return play(setting.stage, entered.at, mandate, until, passes_max=passes_max)


def _name(fleet: SimulatedFleet) -> str:
    """Return the display name of a revision: the short commit, or the working tree."""
    if fleet.head.head is None or fleet.head.dirty:
        return "the working tree"
    return fleet.head.head[:12]


_HELD: Final = frozenset({DRAINING, ForcefulReason.NODE_POOL_DELETED.value})
"""The reasons of stuck nodes that are stated as they are; all others are kinds of drift."""
PASSES_MAX: Final = 2_000
"""The maximum number of passes of both sides; most changes take less than a hundred."""


@dataclass(frozen=True)
class SimulatedChange:
    """The change that a request with ``--base`` asks about, ready to be simulated.

    It starts at ``now`` from the ``snapshot``, or without nodes if that is None.
    """

    request: FleetRequest
    now: datetime
    snapshot: Snapshot | None
    catalog: Catalog
    base_catalog: Catalog

    def __call__(self, *, has_effect: bool) -> AtRest | None:
        """Return the cost of the change (``plan.make.inputs.ChangeSimulation``)."""
        from reconciler.cli.simulation.building import KnownInputs, built, read_simulation
        from reconciler.cli.simulation.driver import EndlessError
        from reconciler.cli.simulation.script import Script
        from reconciler.plan.make.decide import untimed

        request = replace(self.request, now=self.now)
        known = KnownInputs(self.snapshot, self.catalog, self.base_catalog)
        setting = built(read_simulation(request, untimed, known), Script())
        if not has_effect:
            setting = replace(setting, head=setting.base or setting.head)
        try:
            report = played(setting, None, passes_max=PASSES_MAX)
        except EndlessError:
            return None
        return at_rest_of(report)


def at_rest_of(report: Report) -> AtRest | None:
    """Return the cost of the simulated change, None if a side did not converge."""
    merge = report.merge
    if merge is None or not merge.base_converged or not report.converged:
        return None
    had = {life.node_claim for life in report.nodes if life.launched_at is None}
    has = {claim.node_claim for claim in report.fleet}
    change = money([merge.after, -merge.before])
    return AtRest(
        before=FleetAtRest(nodes=len(had), per_hour=merge.before),
        after=FleetAtRest(nodes=len(has), per_hour=merge.after),
        per_hour=change,
        per_month=money([change * HOURS_A_MONTH]),
        unschedulable=tuple(sorted(s.name for s in report.stuck if s.kind == "Pod")),
        replaced=min(len(had - has), len(has - had)),
        rollout=iso_duration(_last_action(report) - report.started_at),
        stuck=tuple(_stuck(report)),
    )


def _last_action(report: Report) -> datetime:
    """Return when the last node was ready or removed."""
    moments = (at for life in report.nodes for at in (life.ready_at, life.gone_at))
    return max([report.started_at, *(at for at in moments if at is not None)])


def _stuck(report: Report) -> Iterator[StuckNode]:
    """Yield the nodes that are still to be disrupted, by NodeClaim, with the reason."""
    nodes = {claim.node_claim: claim.node for claim in report.fleet}
    found = {s.name: s for s in reversed(report.stuck) if s.kind == "NodeClaim"}
    for name in sorted(found):
        one = found[name]
        yield StuckNode(
            node_claim=name,
            node=nodes.get(name) or None,
            node_pool=one.node_pool,
            reason=one.reason if one.reason in _HELD else DisruptionReason.DRIFTED.value,
            message=one.message,
        )
