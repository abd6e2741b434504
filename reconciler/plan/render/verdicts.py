"""What the policies of a plan have found, in words."""

from __future__ import annotations

import re
from typing import Final

from reconciler.model.decision.verdicts import ComparedValue
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_rate, format_whole_dollars
from reconciler.model.text.quoting import without_backticks
from reconciler.model.text.times import format_time
from reconciler.plan.value.plan import JudgedPolicy, Plan

_NAMED: Final = 5
_WIDTH: Final = 80
"""The maximum characters of a text of the plan that a policy has compared."""

_ALLOWED: Final = {
    "<=": "allows at most",
    "<": "requires less than",
    ">=": "requires at least",
    ">": "requires more than",
    "==": "requires",
    "!=": "forbids",
}
_A_MONTH: Final = re.compile(r"(atRest|summary)\.perMonth|backtest\..*\.dollarsPerMonth")
_AN_HOUR: Final = re.compile(r"cost\.(?!boundGap|.*nodes|unpriced).*|atRest\.(.*perHour|bounds.*)")
_SHARE: Final = re.compile(r"cost\.boundGap|backtest\..*\.utilization\..*")


def verdict_of(policy: JudgedPolicy) -> str:
    """Return the message of a policy, with the exemption that applies or has expired."""
    exemption = policy.exemption
    if exemption is None:
        return policy.message
    ends = format_time(exemption.expires)
    if exemption.expired:
        return f"{policy.message} (the exemption of {exemption.owner} expired at {ends})"
    reason = f": {exemption.reason}" if exemption.reason else ""
    return f"{policy.message} (exempted by {exemption.owner} until {ends}{reason})"


def full_verdict_of(policy: JudgedPolicy) -> str:
    """Return the message of a policy with the values that it has compared, in one line."""
    values = compared_values(policy)
    return f"{verdict_of(policy)} ({values})" if values else verdict_of(policy)


def compared_values(policy: JudgedPolicy) -> str:
    """Return the values that a violated policy has compared, empty if there are none."""
    return "; ".join(map(_format_compared_value, policy.values))


def _format_compared_value(found: ComparedValue) -> str:
    if found.violating is not None:
        return _format_violations(found, found.violating, found.count or 0)
    if found.count is not None:
        text = f"{found.path} has {format_count(found.count, 'entry', 'entries')}"
    else:
        text = f"{found.path} is {_format_plan_value(found.path, found.value)}"
    if not found.operator:
        return text
    limit = _format_plan_value(found.path, found.limit)
    return f"{text}, the rule {_ALLOWED[found.operator]} {limit}"


def _format_violations(found: ComparedValue, number: int, count: int) -> str:
    more = number - len(found.names)
    rest = f" and {more:,} more" if more > 0 else ""
    names = f": {', '.join(found.names)}{rest}" if found.names else ""
    entries = format_count(count, "entry", "entries")
    verb = "violates" if number == 1 else "violate"
    return f"{number:,} of {entries} in {found.path} {verb} the rule{names}"


def _format_plan_value(path: str, value: object) -> str:
    """Return a value of the plan as the rest of a plan shows it; ``path`` decides the unit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (int, float)):
        text = str(value)
        return f'"{text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"}"'
    if _A_MONTH.fullmatch(path):
        return f"{format_whole_dollars(value)}/month"
    if _AN_HOUR.fullmatch(path):
        return f"{format_rate(value)}"
    if _SHARE.fullmatch(path):
        return f"{value:.0%}"
    return f"{value:,.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"


def forbidding_phrase(plan: Plan) -> str:
    """Return that policies forbid the plan, empty if none does."""
    forbidding = [policy.name for policy in plan.policies if policy.forbids]
    if not forbidding:
        return ""
    if len(forbidding) == 1:
        return f"forbidden by policy {without_backticks(forbidding[0])}"
    return f"forbidden by {len(forbidding)} policies"


def policy_lines(plan: Plan) -> list[str]:
    """Return the headline on policies: those that forbid the plan, and how many only warn."""
    forbidding = [policy.name for policy in plan.policies if policy.forbids]
    warning = sum(p.result == "failed" and not p.forbids for p in plan.policies)
    lines = []
    if len(forbidding) > 1:  # one is named in the first line
        rest = len(forbidding) - _NAMED
        more = f" and {rest} more" if rest > 0 else ""
        names = without_backticks(", ".join(forbidding[:_NAMED]))
        lines.append(
            f"{format_count(len(forbidding), 'policy', 'policies')} violated: {names}{more}."
        )
    if warning:
        lines.append(f"{format_count(warning, 'policy warning')}.")
    return lines
