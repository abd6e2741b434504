"""What a change since a base would have cost with a recorded workload, for a plan.

A plan without a trace must not load the simulation, so that is imported when a trace is there.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from reconciler.cli.shared.request import FleetRequest
from reconciler.model.errors import UsageError
from reconciler.plan.make.decide import Phase
from reconciler.plan.value.plan import Plan


def expect_base(trace: str | None, base: str | None) -> None:
    """Refuse a trace where nothing is compared.

    Raises:
        UsageError: there is a trace and no base.
    """
    if trace is not None and base is None:
        raise UsageError("needs a base to compare with", where="--trace", remedy="add --base REF")


def with_backtest(plan: Plan, request: FleetRequest, trace: str, phase: Phase) -> Plan:
    """Return the plan with what the trace comes to under its base and under its head.

    The snapshot of the request is left out: the trace is the workload, and the pods of the cluster
    would run beside it once more.

    Raises:
        ReconcilerError: the trace cannot be read, or a side takes too many passes.
    """
    from reconciler.cli.backtest.run import BacktestRequest, run_backtest
    from reconciler.cli.simulation.script import Script

    fleet = replace(request, now=plan.at, snapshot=None)
    backtest_request = BacktestRequest(
        fleet, trace, against=None, seed=0, seeds=1, until=None, script=Script()
    )
    return msgspec.structs.replace(plan, backtest=run_backtest(backtest_request, phase).backtest)
