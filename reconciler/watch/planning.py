"""A plan by Karpenter's rules from observed objects, as often as asked."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reconciler.watch.session import PlannedCluster

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.model.json import JsonDict


def planner_of(request: FleetRequest) -> Callable[[Sequence[JsonDict], datetime], PlannedCluster]:
    """Return what plans observed objects by the rules of ``request``.

    The NodePools are those of the files that it names, or of the cluster itself.
    """
    from reconciler.assembly.inputs.timings import Timings
    from reconciler.plan.plancache import steady_until
    from reconciler.plan.planning import plan_of
    from reconciler.simulate.planinputs import read_inputs

    trim = _memory_trim()

    def predict(objects: Sequence[JsonDict], now: datetime) -> PlannedCluster:
        gc.collect()
        trim(0)
        inputs = read_inputs(replace(request, now=now), Timings(), observed=objects)
        return PlannedCluster(plan_of(inputs), inputs.catalog, steady_until(inputs), inputs)

    return predict


def _memory_trim() -> Callable[[int], object]:
    """Return ``malloc_trim`` of glibc, where there is one.

    What a list or the last plan has left is otherwise kept beside what the next plan needs.
    """
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: None
    return found
