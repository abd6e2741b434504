"""The plan of a fleet with the verdicts of its policies: ``plan`` shows it, ``ci`` reviews it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from reconciler.assembly.inputs import policies
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.assembly.inputs.sources import stated_durations
from reconciler.assembly.inputs.timings import Timings, current_time
from reconciler.backtest.change import with_backtest
from reconciler.cli.pullrequest.elsewhere import with_workloads_elsewhere
from reconciler.model.decision.policy import Policy
from reconciler.placement.pods.whatif import WhatIf
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.value.plan import Plan
from reconciler.simulate.planinputs import read_inputs


class JudgedPlan(NamedTuple):
    """A plan with verdicts, the policies that it was checked against, and what both come from."""

    plan: Plan
    policies: tuple[str, ...]
    inputs: Inputs


def judged_plan(
    request: FleetRequest,
    operator: Sequence[Policy],
    timings: Timings,
    *,
    trace: str | None,
    fail_on: Collection[str] = (),
    what_if: WhatIf | None = None,
) -> JudgedPlan:
    """Return the plan of a fleet; ``trace`` is replayed with and without a change.

    Raises:
        UsageError: ``fail_on`` names a policy that there is not.
    """
    inputs = read_inputs(request, timings, what_if)
    rules = policies.policies_of(operator, inputs)
    names = tuple(policy.name for policy in rules)
    unknown = policies.unknown_policy(fail_on, names)
    if unknown is not None:
        raise unknown
    from reconciler.plan.planning import plan_of  # an error of the inputs is reported before
    from reconciler.plan.render.unknown import is_new_fleet

    durations = stated_durations(request, inputs.fleet)
    plan = plan_of(replace(inputs, finds_steady_state=True, durations=durations), timings)
    if trace is not None and request.base is not None and not is_new_fleet(plan):
        plan = with_backtest(plan, request, trace, timings)
    with timings("render"):
        plan = with_workloads_elsewhere(plan, request)
        plan = policies.judge(plan, rules, current_time(request.now))
    return JudgedPlan(plan, names, inputs)
