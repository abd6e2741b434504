"""A backtest as one self-contained page: what its sides come to, and how they went over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from reconciler.cli.backtest.report import notes_of, outcome_of, rows_of
from reconciler.cli.backtest.sides import SideCurves
from reconciler.model.duration import format_duration
from reconciler.plan.render.curves import (
    Curve,
    SpanScale,
    TimeScale,
    chart,
    price_label,
    round_above,
)
from reconciler.plan.render.page import Markup, el, joined, page
from reconciler.plan.render.wording import moment
from reconciler.plan.value.backtest import Backtest


def render_html(backtest: Backtest, curves: Mapping[str, SideCurves]) -> str:
    """Return the page; ``curves`` are those of each side with the first seed."""
    begin, until = backtest.begin, backtest.until
    period = f"{moment(begin)} to {moment(until)} ({format_duration(until - begin)})"
    change = backtest.difference
    places_fewer = change is not None and change.unplaced > 0
    return page(
        "Backtest",
        el("h1", "Backtest"),
        el("p", f"{period}, simulated by the engine", cls="soft"),
        el("div", el("p", outcome_of(backtest)), cls="sum alarm" if places_fewer else "sum"),
        el("h2", "Results", _of_seeds(backtest)),
        _table(rows_of(backtest)),
        *(el("p", note, cls="soft") for note in notes_of(backtest)),
        _cost(curves, begin, until),
        _utilization(curves, begin, until),
        _waiting(curves),
        el("p", "The curves are those of the first seed.", cls="soft")
        if backtest.seeds > 1
        else "",
    )


def _of_seeds(backtest: Backtest) -> Markup:
    return el("small", f"means over {backtest.seeds} seeds") if backtest.seeds > 1 else Markup("")


def _table(rows: Sequence[Sequence[str]]) -> Markup:
    """Return figures by side; the first row names the sides, and the first cells the figures."""
    (blank, *names), *figures = rows
    heads = (el("th", name, cls="n", scope="col") for name in names)
    body = (
        el("tr", el("th", label, scope="row"), *(el("td", value, cls="n") for value in values))
        for label, *values in figures
    )
    return el(
        "table",
        el("thead", el("tr", el("td", blank), *heads)),
        el("tbody", *body),
        cls="sides",
    )


def _cost(curves: Mapping[str, SideCurves], begin: datetime, until: datetime) -> Markup:
    clock = TimeScale(begin, until)
    drawn = [
        Curve(name, [(clock.share(sample.at), sample.per_hour) for sample in side.cost])
        for name, side in curves.items()
    ]
    most = {name: max((s.per_hour for s in side.cost), default=0) for name, side in curves.items()}
    about = "; ".join(f"{name} at most {price_label(price)}" for name, price in most.items())
    top = round_above(max(most.values()) or 1.0)
    return joined(
        el("h2", "Cost", el("small", "$/hour")),
        chart(drawn, top, price_label, clock.grid(), f"cost per hour over time: {about}"),
    )


def _utilization(curves: Mapping[str, SideCurves], begin: datetime, until: datetime) -> Markup:
    clock = TimeScale(begin, until)
    drawn = [
        Curve(name, [(clock.share(step.at), step.cpu_share) for step in side.fullness])
        for name, side in curves.items()
    ]
    most = {
        name: max((step.cpu_share for step in side.fullness), default=0.0)
        for name, side in curves.items()
    }
    about = "; ".join(f"{name} at most {share:.0%}" for name, share in most.items())
    top = 1.0 if max(most.values()) <= 1 else round_above(max(most.values()))
    return joined(
        el("h2", "CPU utilization", el("small", "requested by pods, as a share of allocatable")),
        chart(drawn, top, _percent, clock.grid(), f"CPU utilization over time: {about}"),
    )


def _waiting(curves: Mapping[str, SideCurves]) -> Markup:
    spans = SpanScale(max((side.waits[-1] for side in curves.values() if side.waits), default=60.0))
    drawn = [
        Curve(
            name,
            [
                (0.0, 0.0),
                *(
                    (spans.share(wait), number / side.pods)
                    for number, wait in enumerate(side.waits, 1)
                ),
            ],
        )
        for name, side in curves.items()
    ]
    about = "; ".join(
        f"{name} {len(side.waits):,} of {side.pods:,}" for name, side in curves.items()
    )
    return joined(
        el("h2", "Waiting", el("small", "share of pods that had a node after this time")),
        chart(drawn, 1.0, _percent, spans.grid(), f"pods that got a node: {about}"),
    )


def _percent(share: float) -> str:
    return f"{share:.0%}"
