"""The report on a period, as text and as sections of a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.duration import format_duration
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_forgone_savings, format_spent, format_whole_dollars
from reconciler.model.text.times import format_time
from reconciler.notifications.weekly import (
    FleetReport,
    ReportedBlocker,
    RuleOutcome,
    blocker_advice,
)
from reconciler.plan.render.refusals import refusal_in_words
from reconciler.plan.render.wording import blocker_title
from reconciler.render.cells import Section
from reconciler.render.reply import render_sections, table_section, text_section

_RULES: Final = ("rule", "commands", "nodes", "$/month")
_POOLS: Final = ("NodePool", "nodes")
_INTERRUPTED: Final = "Interrupted nodes"
_PERIODS_SHOWN: Final = 3
_BLOCKERS: Final = ("blocker", "nodes", "since", "potential savings", "reason")


def sections_of(report: FleetReport) -> tuple[Section, ...]:
    """Return the sections that have content."""
    pools = [(pool or "(none)", str(count)) for pool, count in report.interrupted.items()]
    rules, blockers = map(_rule_row, report.rules), map(_blocker_row, report.blockers)
    listed = frozenset(blocker_advice(report))
    sentences = (text for text in report.advice if text not in listed)
    advice = (f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences)
    found = (
        table_section("cost", ("", ""), list(_costs(report)), title="Cost"),
        table_section("rules", _RULES, list(rules), title="Disruption by rule"),
        table_section("interrupted", _POOLS, pools, title=_INTERRUPTED)
        if pools
        else text_section("interrupted", _INTERRUPTED, ["none"]),
        table_section("blockers", _BLOCKERS, list(blockers), title="Blocked now"),
        text_section("advice", "Advice", advice),
    )
    return tuple(section for section in found if section.rows)


def _rule_row(rule: RuleOutcome) -> tuple[str, ...]:
    saved = rule.saved_per_month
    change = _signed(None if saved is None else -saved)
    return rule.reason, str(rule.commands), str(rule.nodes), change


def _blocker_row(one: ReportedBlocker) -> tuple[str, ...]:
    return (
        blocker_title(one.kind, one.name),
        str(one.nodes),
        "" if one.since is None else format_time(one.since),
        ""
        if one.forgone_per_month is None
        else format_forgone_savings(one.forgone_per_month / HOURS_A_MONTH, 0),
        refusal_in_words(one.message),
    )


def _costs(report: FleetReport) -> Iterator[tuple[str, str]]:
    """Yield what was spent and what is expected, each with its name."""
    if report.spent is None or report.known_since is None:
        yield "Spent", "unknown: no pass ran in this period"
    else:
        late = report.known_since > report.since
        known = f", since {format_time(report.known_since)}" if late else ""
        daily = format_spent(report.per_day)
        yield "Spent", f"{format_spent(report.spent)} ({daily}/day{known})"
        if report.unobserved:
            yield "Unknown", _unknown_times(report)
    if report.forecast is not None:
        now, then = report.forecast.per_month, report.forecast.planned_per_month
        last = report.last_pass
        at = "the present cost"
        if last is not None:
            at = f"the cost of {format_time(last)}, the last pass"
        yield "Forecast", f"{format_whole_dollars(now)}/month at {at}"
        if round(now) != round(then):
            yield "Planned", f"{format_whole_dollars(then)}/month once the newest plan is applied"
    if report.unpriced:
        nodes = format_count(report.unpriced, "node")
        yield "Not included", f"{nodes} without a known price"
    if report.rolled_back:
        yield "Rolled back", format_count(report.rolled_back, "command")


def _unknown_times(report: FleetReport) -> str:
    """Return for how long and when no pass ran, whose cost is unknown."""
    times = [f"{format_time(p.since)} to {format_time(p.until)}" for p in report.unobserved]
    listed = format_list(times, _PERIODS_SHOWN)
    return f"{format_duration(report.unknown)} without a pass, not included ({listed})"


def _signed(amount: float | None) -> str:
    return "" if amount is None else format_whole_dollars(amount, signed=True)


def title_of(report: FleetReport) -> str:
    """Return the fleet and the period."""
    return f"{report.fleet}: {format_time(report.since)} to {format_time(report.until)}"


def render_text(report: FleetReport) -> str:
    """Return the report for a terminal."""
    return f"{title_of(report)}\n\n{render_sections(sections_of(report))}"
