"""How ranges over several runs are stated: nodes, dollars, and the difference of a change."""

from __future__ import annotations

from reconciler.model.text.counting import format_count
from reconciler.model.text.money import (
    format_dollars,
    format_hourly,
    format_monthly,
    format_rate,
    monthly_difference,
)
from reconciler.plan.value.ranges import CostDifference, CostSpan, CountSpan, FleetRange


def range_phrase(found: FleetRange) -> str:
    """Return ``5 to 7 nodes, $0.43 to $0.53/hour (mean $0.48, 20 runs)``."""
    return f"{fleet_phrase(found)} ({_count_phrase(found)})"


def fleet_phrase(found: FleetRange) -> str:
    """Return ``5 to 7 nodes, $0.43 to $0.53/hour``."""
    return f"{nodes_phrase(found.nodes)}, {dollars_phrase(found.per_hour)}/hour"


def _count_phrase(found: FleetRange) -> str:
    runs = format_count(found.seeds, "run")
    if is_one_price(found.per_hour):
        return runs
    digits = len(_format_ends(found.per_hour)[0].partition(".")[2])
    return f"mean ${found.per_hour.mean:,.{digits}f}, {runs}"


def nodes_phrase(span: CountSpan) -> str:
    """Return ``5 to 7 nodes``, or ``6 nodes`` where all runs agree."""
    if span.low == span.high:
        return format_count(span.low, "node")
    return f"{span.low:,} to {span.high:,} nodes"


def dollars_phrase(span: CostSpan) -> str:
    """Return ``$0.43 to $0.53``, or ``$0.48`` where all runs agree to the last digit shown."""
    if is_one_price(span):
        return format_rate(span.mean).removesuffix("/hour")
    low, high = _format_ends(span)
    return f"{low} to {high}"


def _format_ends(span: CostSpan) -> tuple[str, str]:
    """Return both ends in cents, with more digits if they would look the same."""
    low, high = (f"${amount:,.2f}" for amount in (span.low, span.high))
    return (low, high) if low != high else (format_dollars(span.low), format_dollars(span.high))


def is_one_price(span: CostSpan) -> bool:
    """Return whether the lowest and the highest price look the same."""
    return format_hourly(span.low) == format_hourly(span.high)


def difference_phrase(found: CostDifference, after: float) -> str:
    """Return the change of the cost for a month, and whether it is more than chance.

    ``after`` is the mean cost of the changed fleet in USD an hour: a plan subtracts both means as
    they are shown, and so does this.
    """
    mean = format_monthly(monthly_difference(after - found.mean, after), signed=True)
    if format_hourly(found.low) == format_hourly(found.high):
        if format_hourly(found.mean) == format_hourly(0):
            return "no difference in cost"
        return f"{mean}/month"
    span = (
        f"{format_monthly(found.low, signed=True)} to {format_monthly(found.high, signed=True)}"
        f"/month, mean {mean}"
    )
    return span if found.beyond_chance else f"{span}: no difference beyond chance"
