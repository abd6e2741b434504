"""The difference that a backtest found, in one sentence."""

from __future__ import annotations

from reconciler.model.duration import iso_duration
from reconciler.plan.render.wording import counted, dollars, readable_duration
from reconciler.plan.value.backtest import BASE, HEAD, Backtest


def sentence(backtest: Backtest) -> str:
    """Return the difference of two sides in one sentence, for a comment on a pull request."""
    change = backtest.difference
    assert change is not None, "a backtest of one side has no difference"
    head, other = backtest.sides[HEAD], backtest.sides[change.against]
    if not change.dollars:
        cost = "the same"
    else:
        share = "" if change.percent is None else f" ({change.percent:+.0f}%)".replace("-", "−")
        cost = f"{dollars(abs(change.dollars))} {'less' if change.dollars < 0 else 'more'}{share}"
    what = "this change" if change.against == BASE else "this fleet"
    against = "" if change.against == BASE else f" compared with {change.against}"
    waits = f"{seconds(other.waiting_seconds.p99)} → {seconds(head.waiting_seconds.p99)}"
    less = "fewer" if change.evictions < 0 else "more"
    evictions = counted(abs(change.evictions), f"{less} eviction")
    period = f"Over {span_of(backtest)}"
    return f"{period}, {what} would have cost {cost}{against}; p99 waiting {waits}, {evictions}."


def span_of(backtest: Backtest) -> str:
    """Return how long a backtest is."""
    return readable_duration(iso_duration(backtest.until - backtest.begin))


def seconds(value: float) -> str:
    """Return whole seconds for people."""
    return f"{value:,.0f} s"
