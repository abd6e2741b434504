"""Plays the revisions of a simulation: one, or the base first and then what shall be merged."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from reconciler.cli.commands.acting.apply import mandate_of
from reconciler.cli.simulation.building import Setting, SimulatedFleet
from reconciler.cli.simulation.driver import Played, play
from reconciler.cli.simulation.report import Report, merge_of, report_of
from reconciler.cli.simulation.rules import RulePeriod, periods_of
from reconciler.cli.simulation.timeline import StreamedTimeline


def played(
    setting: Setting,
    until: datetime | timedelta | None,
    timeline: StreamedTimeline | None = None,
    passes_max: int | None = None,
) -> Report:
    """Play it, and return what happened from the first moment of the head revision on.

    A span ``until`` counts from that moment. ``timeline`` receives what happens meanwhile.
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
    """Return when budgets and windows limited the nodes of each NodePool that had some."""
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
    """Return a revision as people name it: the short commit, or the working tree."""
    if fleet.head.head is None or fleet.head.dirty:
        return "the working tree"
    return fleet.head.head[:12]
