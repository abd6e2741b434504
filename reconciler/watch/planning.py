"""A plan by Karpenter's rules from observed objects, as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reconciler.watch.session import PlannedCluster

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.model.json import JsonDict


def planner_of(
    request: FleetRequest,
) -> Callable[[Sequence[JsonDict], datetime], PlannedCluster]:
    """Return what plans observed objects by the rules of ``request``.

    The NodePools are those of the files that it names, or of the cluster itself.
    """
    from reconciler.assembly.inputs.timings import Timings
    from reconciler.plan.plancache import steady_until
    from reconciler.plan.planning import plan_of
    from reconciler.simulate.planinputs import read_inputs

    def predict(objects: Sequence[JsonDict], now: datetime) -> PlannedCluster:
        inputs = read_inputs(replace(request, now=now), Timings(), observed=objects)
        return PlannedCluster(plan_of(inputs), inputs.catalog, steady_until(inputs), inputs)

    return predict
