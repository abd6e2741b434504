"""The report on a period, as text, Markdown or one page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from reconciler.model.duration import format_duration
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_dollars, format_whole_dollars
from reconciler.model.text.quoting import code_spans
from reconciler.model.text.times import format_time
from reconciler.model.text.visible import markdown_text, one_line
from reconciler.notifications.weekly import FleetReport, ReportedBlocker, RuleOutcome
from reconciler.plan.render.wording import blocker_title
from reconciler.render.layout import table
from reconciler.render.markdown import sentence_markdown
from reconciler.render.page import Markup, el, page

_RULES: Final = ("rule", "commands", "nodes", "$/month")
_POOLS: Final = ("NodePool", "nodes")
_PERIODS_SHOWN: Final = 3
_BLOCKERS: Final = ("blocker", "nodes", "since", "$/month not saved", "reason")


class ReportSection(NamedTuple):
    """A part of the report: a table with its header, or sentences (a table without a header)."""

    title: str
    header: tuple[str, ...]
    align: str
    rows: tuple[tuple[str, ...], ...]


def sections_of(report: FleetReport) -> tuple[ReportSection, ...]:
    """Return the sections that have content."""
    pools = tuple((pool or "(none)", str(count)) for pool, count in report.interrupted.items())
    interrupted = ReportSection("Interrupted nodes", (), "<", (("none",),))
    if pools:
        interrupted = ReportSection("Interrupted nodes", _POOLS, "<>", pools)
    rules, blockers = map(_rule_row, report.rules), map(_blocker_row, report.blockers)
    advice = tuple((f"{sentence[:1].upper()}{sentence[1:]}.",) for sentence in report.advice)
    found = (
        ReportSection("Cost", (), "<<", tuple(_costs(report))),
        ReportSection("Disruption by rule", _RULES, "<>>>", tuple(rules)),
        interrupted,
        ReportSection("Blocked now", _BLOCKERS, "<><><", tuple(blockers)),
        ReportSection("Advice", (), "<", advice),
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
        "" if one.forgone_per_month is None else format_whole_dollars(one.forgone_per_month),
        one.message,
    )


def _costs(report: FleetReport) -> Iterator[tuple[str, str]]:
    """Yield what was spent and what is expected, each with its name."""
    if report.spent is None or report.known_since is None:
        yield "Spent", "unknown: no pass ran in this period"
    else:
        late = report.known_since > report.since
        known = f", since {format_time(report.known_since)}" if late else ""
        daily = format_dollars(report.per_day)
        yield "Spent", f"{format_dollars(report.spent)} ({daily} a day{known})"
        if report.unobserved:
            yield "", _unknown_times(report)
    if report.forecast is not None:
        now, then = report.forecast.per_month, report.forecast.planned_per_month
        last = report.last_pass
        at = "the present cost"
        if last is not None:
            at = f"the cost of {format_time(last)}, the last pass"
        yield "Forecast", f"{format_whole_dollars(now)} a month at {at}"
        if round(now) != round(then):
            yield "", f"{format_whole_dollars(then)} a month once the newest plan is applied"
    if report.unpriced:
        nodes = format_count(report.unpriced, "node")
        yield "Not included", f"{nodes} without a known price"
    if report.rolled_back:
        yield "Rolled back", format_count(report.rolled_back, "command")


def _unknown_times(report: FleetReport) -> str:
    """Return for how long and when no pass ran, whose cost is unknown."""
    times = [f"{format_time(p.since)} to {format_time(p.until)}" for p in report.unobserved]
    listed = format_list(times, _PERIODS_SHOWN)
    return f"unknown and not included: {format_duration(report.unknown)} without a pass ({listed})"


def _signed(amount: float | None) -> str:
    return "" if amount is None else format_whole_dollars(amount, signed=True)


def _title(report: FleetReport) -> str:
    return f"{report.fleet}: {format_time(report.since)} to {format_time(report.until)}"


def render_text(report: FleetReport) -> str:
    """Return the report for a terminal."""
    lines = [_title(report)]
    for section in sections_of(report):
        lines += ["", section.title]
        rows = [tuple(map(one_line, row)) for row in section.rows]
        rows = [section.header, *rows] if section.header else rows
        lines += [f"  {line}" for line in table(rows, section.align)]
    return "\n".join(lines) + "\n"


def render_markdown(report: FleetReport) -> str:
    """Return the report for a chat, an issue or a mail."""
    lines = [f"### {markdown_text(_title(report))}"]
    for section in sections_of(report):
        lines += ["", f"**{section.title}**", ""]
        if len(section.align) == 1:
            lines += [f"- {sentence_markdown(row[0])}" for row in section.rows]
            continue
        header = section.header or ("",) * len(section.align)
        marks = ("---:" if side == ">" else "---" for side in section.align)
        lines += [f"| {' | '.join(header)} |", f"| {' | '.join(marks)} |"]
        lines += [f"| {' | '.join(map(sentence_markdown, row))} |" for row in section.rows]
    return "\n".join(lines) + "\n"


def render_html(report: FleetReport) -> str:
    """Return the report as one page."""
    body: list[Markup] = [el("h1", _title(report))]
    for section in sections_of(report):
        body.append(el("h2", section.title))
        if len(section.align) == 1:
            body.append(el("ul", *(el("li", *_spans(row[0])) for row in section.rows)))
        else:
            body.append(el("div", _table(section), cls="wide"))
    return page(f"{report.fleet}: report", *body)


def _table(section: ReportSection) -> Markup:
    sides = ["n" if side == ">" else None for side in section.align]

    def row(kind: str, cells: tuple[str, ...]) -> Markup:
        pairs = zip(cells, sides, strict=True)
        return el("tr", *(el(kind, *_spans(cell), cls=side) for cell, side in pairs))

    head = [el("thead", row("th", section.header))] if section.header else []
    return el("table", *head, el("tbody", *(row("td", cells) for cells in section.rows)))


def _spans(cell: str) -> list[str]:
    return [el("code", text) if is_code else text for text, is_code in code_spans(cell)]
