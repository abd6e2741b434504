"""The range of fleets that simulations with several seeds end with, made in another process.

A simulation takes seconds of CPU, and Karpenter launches within two seconds of a change: this
process has to plan and record meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, Final

from reconciler.assembly.inputs.timings import start_of_simulation
from reconciler.model.errors import ReconcilerError
from reconciler.model.karpenter.prediction import EndRange
from reconciler.observed.identity import identify_nodes
from reconciler.observed.snapshot import objects_snapshot
from reconciler.plan.value.ranges import SEEDS_MAX, SEEDS_MIN, FleetAtRest, fleet_range
from reconciler.simulate.building import SimulatedFleet, SimulationInputs
from reconciler.simulate.change import PASSES_MAX
from reconciler.sweep.processes import Processes

if TYPE_CHECKING:
    from reconciler.model.json import JsonDict
    from reconciler.plan.make.inputs import Inputs
    from reconciler.simulate.seeds import SeededRuns

_SECONDS_MAX: Final = 20.0
"""After this time no more than the fewest seeds are run."""


@dataclass
class _EndOfRun:
    """Evaluates the end of a run by its seed (``sweep.evaluation.Evaluations``)."""

    inputs: SimulationInputs
    result: ClassVar[type[FleetAtRest]] = FleetAtRest
    _runs: SeededRuns | None = field(default=None, init=False)

    def evaluate(self, key: int) -> FleetAtRest:
        """Return the fleet at the end.

        Raises:
            ReconcilerError: the simulation does not come to rest.
        """
        from reconciler.simulate.seeds import SeededRuns

        if self._runs is None:
            self._runs = SeededRuns(self.inputs, passes_max=PASSES_MAX)
        report = self._runs.run(key)
        if not report.converged:
            raise ReconcilerError("the fleet does not settle", where=f"seed {key}")
        return FleetAtRest(nodes=len(report.fleet), per_hour=report.cost.after)

    def address(self, key: int) -> None:
        """Return None: no result is used twice."""


class EndSimulations:
    """Simulates ends, one at a time, until it is closed, from any thread."""

    def __init__(self) -> None:
        self._processes = Processes(1)

    def close(self) -> None:
        """End the running simulation; no other one is started."""
        self._processes.end()

    def end_of(self, objects: Sequence[JsonDict], inputs: Inputs) -> EndRange | None:
        """Return the range of the end, None if a run does not come to rest or was closed.

        Raises:
            ReconcilerError: the objects cannot be simulated, or the process was killed.
        """
        work, begin = _EndOfRun(_simulation_of(objects, inputs)), time.monotonic()
        found: list[FleetAtRest] = []
        with closing(self._processes.outcomes(work, range(SEEDS_MAX))) as outcomes:
            for _, outcome in outcomes:
                if outcome.exception() is not None:
                    return None
                found.append(outcome.result())
                if len(found) >= SEEDS_MIN and time.monotonic() - begin > _SECONDS_MAX:
                    break
        span = fleet_range(found)
        return EndRange(
            span.nodes.low, span.nodes.high, span.per_hour.low, span.per_hour.high, span.seeds
        )


def _simulation_of(objects: Sequence[JsonDict], inputs: Inputs) -> SimulationInputs:
    """Return the simulation of a watched cluster, with what its plan was made from."""
    from reconciler.watch.observed import planned_fleet

    captured = objects_snapshot(objects)
    snapshot = identify_nodes(captured, trusts_initialized=True).snapshot
    planned = planned_fleet(inputs, snapshot)
    known = {f.name: getattr(planned, f.name) for f in fields(planned) if f.init}
    head = SimulatedFleet(
        **known, any_class=inputs.any_class, unready_classes=inputs.unready_classes
    )
    return SimulationInputs(start_of_simulation(inputs.now), snapshot, head)
