"""USD as every text shows it: with a sign, an hour and a month, and without cents."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Final

from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.text.counting import format_count

_TEN_CENTS: Final = 0.1
_CENT: Final = 0.01


def format_dollars(amount: float, *, signed: bool = False) -> str:
    """Return USD with cents, and with four digits below a dollar: ``$12.24``, ``+$0.0931``."""
    digits = 4 if abs(amount) < 1 and round(amount, 4) else 2
    return f"{_sign(amount, digits, signed=signed)}${abs(amount):,.{digits}f}"


def format_rate(*amounts: float) -> str:
    """Return USD an hour as a sentence states it: ``$0.82/hour``, or a change ``$0 → $0.82/hour``.

    If one is below ten cents, or cents do not tell them apart, all have four digits.
    """
    shown = [amount for amount in amounts if round(amount, 4)]
    is_exact = any(amount < _TEN_CENTS for amount in shown)
    is_exact = is_exact or len({round(amount, 2) for amount in amounts}) < len(amounts)
    digits = 4 if is_exact else 2
    return " → ".join(f"${a:,.{digits}f}" if round(a, 4) else "$0" for a in amounts) + "/hour"


def format_cost(per_hour: float) -> str:
    """Return the cost of a fleet as sentences state it: ``$596/month ($0.82/hour)``."""
    return f"{format_monthly(per_hour)}/month ({format_rate(per_hour)})"


def format_cost_change(before: float, after: float) -> str:
    """Return a change of the cost of a fleet: ``+$596/month ($0 → $0.82/hour)``."""
    if format_hourly(before) == format_hourly(after):
        return format_cost(after)
    return f"{format_monthly(after - before, signed=True)}/month ({format_rate(before, after)})"


def format_spent(amount: float) -> str:
    """Return USD that were spent, in cents: ``$12.24``, ``less than $0.01``."""
    return "less than $0.01" if 0 < amount < _CENT / 2 else f"${amount:,.2f}"


def format_hourly(amount: float, *, signed: bool = False) -> str:
    """Return USD an hour for a column of a table: always four digits after the point."""
    return f"{_sign(amount, 4, signed=signed)}{abs(amount):,.4f}"


def format_monthly(amount: float, *, signed: bool = False) -> str:
    """Return an hourly price as a price of a month of 730 hours, in whole dollars."""
    return format_whole_dollars(amount * HOURS_A_MONTH, signed=signed)


def format_whole_dollars(amount: float, *, signed: bool = False) -> str:
    """Return USD without cents, as sums of a month are shown: ``$1,204``."""
    return f"{_sign(amount, 0, signed=signed)}${abs(amount):,.0f}"


def monthly_difference(before: float, after: float) -> float:
    """Return the difference of two hourly prices between their months as these are shown.

    It is USD an hour. A reader subtracts what is shown: $195 → $159 is −$36, even if the exact
    prices are $36.60 apart.
    """
    return (round(after * HOURS_A_MONTH) - round(before * HOURS_A_MONTH)) / HOURS_A_MONTH


def hourly_difference(before: float, after: float) -> float:
    """Return the difference of two hourly prices as they are shown, with four digits."""
    return round(round(after, 4) - round(before, 4), 4)


def format_monthly_parts(parts: Sequence[float], start: float, end: float) -> list[str]:
    """Return what lies between two hourly prices, a month in whole dollars, and then the total.

    The dollars shown add up to the total, and this is the distance of the prices as they are
    shown: what rounding leaves goes to the parts with the largest remainders.
    """
    total = round(start * HOURS_A_MONTH) - round(end * HOURS_A_MONTH)
    monthly = [part * HOURS_A_MONTH for part in parts]
    whole = [floor(amount) for amount in monthly]
    ranked = sorted(range(len(parts)), key=lambda at: (whole[at] - monthly[at], -monthly[at]))
    left = total - sum(whole)
    for at in ranked[: max(0, left)]:
        whole[at] += 1
    if parts:  # the rounded prices may be a dollar nearer or farther than the exact ones
        whole[monthly.index(max(monthly))] += total - sum(whole)
    return [format_whole_dollars(amount) for amount in (*whole, total)]


def _sign(amount: float, digits: int, *, signed: bool) -> str:
    if not round(abs(amount), digits):
        return ""
    return "−" if amount < 0 else "+" if signed else ""


def format_percent_change(percent: float, digits: int = 0) -> str:
    """Return a change in percent with its sign; one that rounds to zero has none."""
    return f"{_sign(percent, digits, signed=True)}{abs(percent):,.{digits}f}%"


def format_forgone_savings(forgone: float | None, unpriced: int) -> str:
    """Return the savings that a blocker prevents: ``$1,204/month``."""
    if forgone is None:
        return "no price"
    some = f" ({format_count(unpriced, 'node')} without a price)" if unpriced else ""
    return f"{format_monthly(forgone)}/month{some}"
