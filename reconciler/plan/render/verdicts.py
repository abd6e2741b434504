"""The verdicts of policies in words."""

from __future__ import annotations

from typing import Final

from reconciler.plan.render.wording import counted, moment
from reconciler.plan.value.plan import Plan
from reconciler.plan.value.policies import JudgedPolicy

_NAMED: Final = 5
_WIDTH: Final = 300


def verdict_of(policy: JudgedPolicy) -> str:
    """Return the message of a policy, with the exemption that applies or has expired."""
    exemption = policy.exemption
    if exemption is None:
        return policy.message
    ends = moment(exemption.expires)
    if exemption.expired:
        return f"{policy.message} (the exemption of {exemption.owner} expired at {ends})"
    reason = f": {exemption.reason}" if exemption.reason else ""
    return f"{policy.message} (exempted by {exemption.owner} until {ends}{reason})"


def policy_lines(plan: Plan) -> list[str]:
    """Return the headline on policies: those that forbid the plan, and how many only warn."""
    forbidding = [policy.name for policy in plan.policies if policy.forbids]
    warning = sum(p.result == "failed" and not p.forbids for p in plan.policies)
    lines = []
    if forbidding:
        rest = len(forbidding) - _NAMED
        more = f" and {rest} more" if rest > 0 else ""
        names = ", ".join(forbidding[:_NAMED])
        lines.append(f"{counted(len(forbidding), 'policy', 'policies')} violated: {names}{more}.")
    if warning:
        lines.append(f"{counted(warning, 'policy warning')}.")
    return lines
