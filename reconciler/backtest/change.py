"""The cost that a change since a base would have had with a recorded workload, for a plan.

A plan without a trace must not load the simulation, so that is imported only with a trace.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from reconciler.assembly.inputs.request import FleetRequest, ReplayRequest
from reconciler.model.errors import UsageError
from reconciler.plan.make.decide import Phase
from reconciler.plan.value.plan import Plan


def expect_base(trace: str | None, base: str | None) -> None:
    """Refuse a trace if there is no base to compare with.

    Raises:
        UsageError: there is a trace and no base.
    """
    if trace is not None and base is None:
        raise UsageError("needs a base to compare with", where="--trace", remedy="add --base REF")


def with_backtest(plan: Plan, request: FleetRequest, trace: str, phase: Phase) -> Plan:
    """Return the plan with the results of the trace for its base and for its head.

    The snapshot of the request is omitted: the trace is the workload, and the pods of the cluster
    would run in addition to it.

    Raises:
        ReconcilerError: the trace cannot be read, or a side takes too many passes.
    """
    from reconciler.backtest.run import BacktestRequest, run_backtest

    fleet = replace(request, now=plan.at, snapshot=None)
    backtest_request = BacktestRequest(fleet, ReplayRequest(trace))
    return msgspec.structs.replace(plan, backtest=run_backtest(backtest_request, phase).backtest)
