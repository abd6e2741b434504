"""Runs of one simulation with several seeds: the same fleet, another course of chance.

The seed decides what is undetermined in a cluster: which of several nodes with the same score a pod
gets, in which order pods are created, how long a node takes to join. Inputs are read once, and
plans are shared while a run is still in the same state as the first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

import msgspec

from reconciler.plan.plancache import SharedPlans
from reconciler.plan.value.ranges import (
    SEEDS_MAX,
    SEEDS_MIN,
    FleetAtRest,
    cost_difference,
    count_span,
    fleet_range,
)
from reconciler.simulate.building import SimulationInputs, build_simulation
from reconciler.simulate.change import run_simulation
from reconciler.simulate.driver import EndlessError
from reconciler.simulate.report import FleetClaim, Report
from reconciler.simulate.scheduled import ScheduledWorkloads
from reconciler.simulate.script import Script
from reconciler.simulate.timeline import StreamedTimeline

_WORK: Final = 10_000
"""The work of the runs of the head alone, in observed nodes.

With the base and the rollout, that is about seven CPU seconds, unless the fewest runs take longer.
"""
_WORK_MAX: Final = 16_000
"""The most work of one run of a simulation that is repeated with other seeds."""
_COUNTS: Final = (SEEDS_MAX, 14, 10, 7)


@dataclass(frozen=True)
class SeededRuns:
    """Runs a simulation with any seed.

    ``until`` ends each run, see ``run_simulation``. If the change ``has_effect`` is false, the base
    is simulated in place of the head as well. ``scheduled`` are the workloads of CronJobs at the
    start, None without any. ``work`` is that of each seed, in observed nodes.
    """

    inputs: SimulationInputs
    script: Script = field(default_factory=Script)
    until: datetime | timedelta | None = None
    passes_max: int | None = None
    has_effect: bool = True
    scheduled: ScheduledWorkloads | None = None
    _shared: SharedPlans = field(default_factory=SharedPlans)
    work: dict[int, int] = field(default_factory=dict)
    _alone: dict[int, Report] = field(default_factory=dict)

    def run(self, seed: int, timeline: StreamedTimeline | None = None) -> Report:
        """Return the report of one run.

        Raises:
            EndlessError: the maximum number of passes is reached.
        """
        present = None if self.scheduled is None else replace(self.scheduled)
        setup = build_simulation(self.inputs, self.script, seed, present)
        if present is not None:
            setup.stage.event_log.add_listener(present.record_event)
            setup.stage.next_workload_change = present.next_moment
        if not self.has_effect:
            setup = replace(setup, head=setup.base or setup.head)
        report = run_simulation(setup, self.until, timeline, self.passes_max, self._shared)
        self.work[seed] = setup.stage.work
        return msgspec.structs.replace(report, seed=seed)

    @cached_property
    def alone(self) -> SeededRuns:
        """The same runs of the head without the base."""
        if self.inputs.base is None:
            return self
        return replace(
            self, inputs=replace(self.inputs, base=None), has_effect=True, work={}, _alone={}
        )

    def run_alone(self, seed: int) -> Report:
        """Return the report of a run of the head without the base; each seed runs once.

        Raises:
            EndlessError: the maximum number of passes is reached.
        """
        if seed not in self._alone:
            self._alone[seed] = self.alone.run(seed)
        return self._alone[seed]

    def count_after(self, first: int) -> int:
        """Return with how many seeds a plan simulates a change, given its first run.

        The number follows from the head alone, so that the same files have the same figures with
        and without a base, and whatever the base is.
        """
        alone = self.alone
        if first not in alone.work:
            try:
                self.run_alone(first)
            except EndlessError:
                return SEEDS_MIN
        return affordable_count(alone.work[first])

    def count_unasked(self, first: int) -> int:
        """Return how many runs a simulation has if nobody chose a number.

        That is the number of a plan, but only one if even the fewest would take long.
        """
        return self.count_after(first) if self.work[first] <= _WORK_MAX else 1


def affordable_count(work: int) -> int:
    """Return with how many seeds a fleet is simulated of which one run takes this work.

    A few passes more seldom change it, because there are few counts, and never fewer than
    ``SEEDS_MIN``.
    """
    affordable = _WORK // max(work, 1)
    return next((count for count in _COUNTS if affordable >= count), SEEDS_MIN)


def typical_run(fleets: Sequence[Sequence[FleetClaim]]) -> int:
    """Return which of the fleets at the end of the runs differs least from all others.

    That is the best guess of what happens: the first run is one course of chance. Nodes are
    compared by NodePool, instance type, zone and capacity type, and the earliest run is taken of
    several.
    """
    ends = [Counter(map(_kind_of, fleet)) for fleet in fleets]
    found = [(Counter(dict(end)), times) for end, times in Counter(map(_content, ends)).items()]

    def distance(end: Counter[object]) -> int:
        return sum(times * ((end - other) + (other - end)).total() for other, times in found)

    return min(range(len(ends)), key=lambda number: distance(ends[number]))


def _content(end: Counter[object]) -> frozenset[tuple[object, int]]:
    return frozenset(end.items())


def _kind_of(claim: FleetClaim) -> object:
    return claim.node_pool, claim.instance_type, claim.zone, claim.capacity_type


def with_range(reports: Sequence[Report], shown: int) -> Report:
    """Return the report of one of the runs, with the range of all of them."""
    report = reports[shown]
    found = fleet_range([FleetAtRest(nodes=len(r.fleet), per_hour=r.cost.after) for r in reports])
    merge = report.merge
    if merge is not None:
        costs = [r.merge.change for r in reports if r.merge is not None]
        merge = msgspec.structs.replace(merge, difference=cost_difference(costs))
    duration = count_span([round(r.duration.total_seconds()) for r in reports])
    return msgspec.structs.replace(report, range=found, duration_seconds=duration, merge=merge)
