"""Repeats the best findings with other seeds: a saving of one run may be chance.

The search carries every change to rest once, with the same seed as the current fleet. The best
findings are then computed as ``plan --base`` computes a change, so that both state the same cost: a
small fleet is simulated with several seeds, a larger one is carried to rest with several seeds by
the planner. They are ranked by the mean. All others remain estimates, and are marked as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from functools import cached_property
from typing import Final

from reconciler.advise.changes import Files
from reconciler.advise.evaluating import ChangeVerdict, Judge, merge_changed_settings
from reconciler.advise.search import Findings, JudgedChanges, is_advice
from reconciler.assembly.inputs.sources import digests_of
from reconciler.desired.objects import node_pools
from reconciler.model.text.counting import format_count
from reconciler.plan.make.decide import ignore_phase
from reconciler.plan.make.inputs import ChangeSimulation
from reconciler.plan.rest.compare import is_small
from reconciler.plan.value.costs import AtRest, combine_seeds
from reconciler.plan.value.ranges import FleetRange
from reconciler.simulate.building import (
    KnownInputs,
    SimulatedFleet,
    SimulationInputs,
    read_simulation,
)
from reconciler.simulate.change import PASSES_MAX, SimulatedChange, simulate_change
from reconciler.simulate.seeds import SeededRuns
from reconciler.sweep.sweep import Progress

CONFIRMED_MAX: Final = 20
_WORK: Final = 7_000_000
"""The work of the repetitions alone, in evaluated nodes: about 25 CPU seconds."""
_SIMULATED_MAX: Final = 2
"""How many changes of a small fleet are simulated, besides the best combination."""


@dataclass(frozen=True)
class Confirmation:
    """Computes the best findings of a search as ``plan --base`` does.

    ``simulation`` is what such a plan simulates changes with, None if it does not.
    """

    judge: Judge
    simulation: ChangeSimulation | None
    progress: Progress

    @property
    def range(self) -> FleetRange:
        """The range of the current fleet at rest over all seeds."""
        base = self._base
        return self.judge.range if base is None or base.range is None else base.range

    @property
    def is_simulated(self) -> bool:
        """Whether the cost of the best findings is that of a simulation."""
        return self._base is not None

    def confirm_findings(self, found: Findings) -> Findings:
        """Return the findings, the best of them with the range of their savings."""
        ranked = sorted((one for one in found.alone if is_advice(one)), key=lambda one: one.order)
        best = set(map(id, self._affordable(ranked)))
        alone = tuple(
            self._confirm(one)
            if id(one) in best
            else with_fields(one, verdict=with_fields(one.verdict, is_estimated=True))
            for one in found.alone
        )
        together = self._confirm(found.together) if found.together is not None else None
        is_kept = together is not None and is_advice(together)
        return with_fields(found, alone=alone, together=together if is_kept else None)

    def _affordable(self, ranked: Sequence[JudgedChanges]) -> Iterator[JudgedChanges]:
        """Yield the findings that are repeated: at least the best, and no more than is affordable.

        A change of a small fleet is simulated, which takes longer than the planner alone.
        """
        left, simulated = _WORK, 0
        for number, one in enumerate(ranked[:CONFIRMED_MAX]):
            if self.is_simulated and not one.concerns_workload:
                simulated += 1
                if simulated <= _SIMULATED_MAX:
                    yield one
                continue
            seeds = self.judge.seeds_for(one.verdict.work)
            left -= (seeds - 1) * (one.verdict.work + self.judge.rested.used)
            if number and left < 0:
                return
            yield one

    def _confirm(self, found: JudgedChanges) -> JudgedChanges:
        verdict, workload = found.verdict, found.members[0].workload
        if workload is not None:
            verdict = self.judge.repeat_without_constraint(workload.constraint, verdict)
        else:
            changes = [change for member in found.members for change in member.changes]
            is_estimated = self.is_simulated or not self.judge.rested.is_near_rest
            verdict = self._simulated_verdict(found) or with_fields(
                self.judge.repeat_changes(changes, verdict), is_estimated=is_estimated
            )
        return with_fields(found, verdict=verdict)

    def _simulated_verdict(self, found: JudgedChanges) -> ChangeVerdict | None:
        """Return the verdict with the simulated cost, None if the fleet cannot be simulated."""
        verdict, base = found.verdict, self._base
        if base is None:
            return None
        self.progress(f"Simulating {' + '.join(member.id for member in found.members)}")
        change = self._compare(verdict.files)
        if change is None:
            return None
        lost = len(change.unschedulable) - len(base.unschedulable)
        refusal = f"{format_count(lost, 'pod')} could not be scheduled" if lost > 0 else ""
        return with_fields(verdict, at_rest=change, refusal=refusal or verdict.refusal)

    @cached_property
    def _inputs(self) -> SimulationInputs | None:
        """The current fleet as it is simulated; None if ``plan --base`` would not simulate it."""
        judge, simulation = self.judge, self.simulation
        if judge.request.has_new_nodes or not is_small(judge.inputs):
            return None
        if not isinstance(simulation, SimulatedChange):
            return None
        request = with_fields(judge.request.fleet, now=judge.inputs.now)
        catalog = simulation.catalog
        known = KnownInputs(simulation.snapshot, catalog, catalog)
        return read_simulation(request, ignore_phase, known)

    @cached_property
    def _base(self) -> AtRest | None:
        """The current fleet compared with itself in a simulation, None if it is not simulated."""
        if self._inputs is None:
            return None
        self.progress("Simulating the current fleet")
        return self._compare(None)

    def _compare(self, files: Files | None) -> AtRest | None:
        """Return the simulated cost of the change to ``files``, None if a run does not end."""
        inputs = self._inputs
        assert inputs is not None, "the fleet is simulated"
        base = inputs.head
        head = base if files is None else fleet_with_files(self.judge, base, files)
        pair = with_fields(inputs, base=base, head=head)
        runs = SeededRuns(pair, passes_max=PASSES_MAX, has_effect=files is not None)
        changes = simulate_change(runs)
        return combine_seeds(changes) if changes else None


def fleet_with_files(judge: Judge, head: SimulatedFleet, files: Files) -> SimulatedFleet:
    """Return the simulated current fleet with other files, which are valid."""
    fleet = judge.read(files)
    assert not isinstance(fleet, str), "a proposal is valid"
    inputs = judge.inputs_of(fleet)
    digests = digests_of(fleet, b"", inputs.catalog, judge.layers.resolve(fleet))
    settings = merge_changed_settings(head.settings, judge.inputs.settings, inputs.settings)
    return with_fields(
        head,
        fleet=fleet,
        node_pools=node_pools(fleet),
        settings=settings,
        catalog=inputs.catalog,
        tree=digests.git,
        digests=digests,
    )
