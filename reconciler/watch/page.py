"""The report of ``watch`` as one self-contained page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from reconciler.model.karpenter.prediction import KarpenterActionKind, PredictionVerdict, Score
from reconciler.model.text.counting import format_count
from reconciler.model.text.times import format_time
from reconciler.render.cells import (
    Cell,
    Column,
    Dollars,
    Moment,
    Name,
    Number,
    Section,
    SectionRow,
    Text,
)
from reconciler.render.html import render_section
from reconciler.render.page import filter_field, report_page
from reconciler.render.reply import render_page, text_section
from reconciler.watch.report import WatchReport, describe_action, summary_lines

_TITLE: Final = "Predictions of what Karpenter does"
_MONEY: Final = {
    KarpenterActionKind.LAUNCH: "Cost of the launched nodes",
    KarpenterActionKind.COMMAND: "Saved by the commands",
    KarpenterActionKind.END: "Cost of the settled fleets",
}


def render_html(report: WatchReport) -> str:
    """Return the page."""
    since = "" if report.since is None else f"Since {format_time(report.since)}"
    return report_page(
        _TITLE,
        since,
        summary_lines(report),
        filter_field() if report.wrong else "",
        *(render_section(section) for section in _sections(report) if section.rows),
    )


def render_markdown(report: WatchReport) -> str:
    """Return the report for a comment or a document."""
    since = () if report.since is None else (f"Since {format_time(report.since)}",)
    summary = text_section("summary", "", (*since, *summary_lines(report)))
    sections = [summary, *(section for section in _sections(report) if section.rows)]
    return render_page(_TITLE, sections, "markdown")


def _sections(report: WatchReport) -> tuple[Section, ...]:
    return (
        verdict_section(report),
        cost_section(report),
        cause_section(report.wrong),
        wrong_section(report.wrong),
    )


def verdict_section(report: WatchReport) -> Section:
    """Return how many actions of each kind have which verdict."""
    rows = (
        SectionRow(
            cells=(
                Text(kind.kind.capitalize()),
                Number(kind.total),
                *(
                    Number(kind.verdicts[verdict]) if verdict in kind.verdicts else Text("")
                    for verdict in PredictionVerdict
                ),
                Text(f"{kind.right:.1%}"),
            )
        )
        for kind in report.kinds
    )
    counted = tuple(Column(verdict.capitalize(), numeric=True) for verdict in PredictionVerdict)
    columns = (Column("Kind"), Column("Actions", numeric=True), *counted)
    return Section(
        key="verdicts",
        title="Verdicts",
        columns=(*columns, Column("Right", numeric=True)),
        rows=tuple(rows),
    )


def cost_section(report: WatchReport) -> Section:
    """Return what the actions of each kind cost or saved, and what was predicted."""
    rows = (
        SectionRow(
            cells=(
                Text(_MONEY[kind.kind]),
                Dollars(kind.expected),
                Dollars(kind.actual),
                Number(kind.unpriced, "action") if kind.unpriced else Text(""),
            )
        )
        for kind in report.kinds
    )
    columns = (
        Column("Amount"),
        *(Column(title, numeric=True) for title in ("Predicted", "Actual", "Without a price")),
    )
    return Section(key="costs", title="Cost", note="$/hour", columns=columns, rows=tuple(rows))


def cause_section(wrong: Iterable[Score]) -> Section:
    """Return the causes of wrong predictions, the most frequent first."""
    counted = Counter(score.cause for score in wrong)
    ordered = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = tuple(SectionRow(cells=(Text(cause), Number(count))) for cause, count in ordered)
    return Section(
        key="causes",
        title="Causes of wrong predictions",
        columns=(Column("Cause"), Column("Actions", numeric=True)),
        rows=rows,
    )


def wrong_section(wrong: Iterable[Score]) -> Section:
    """Return every wrong prediction, oldest first, with the command that repeats it."""
    rows = tuple(_wrong_row(score) for score in wrong)
    columns = (
        Column("Time"),
        Column("Karpenter"),
        Column("Cause"),
        Column("Predicted, $/hour", numeric=True),
        Column("Actual, $/hour", numeric=True),
        Column("Replay"),
    )
    return Section(
        key="wrong",
        title="Wrong predictions",
        note=format_count(len(rows), "action"),
        columns=columns,
        rows=rows,
    )


def _wrong_row(score: Score) -> SectionRow:
    replay: Cell = Text("")
    if score.episode:
        replay = Name(f"reconciler watch replay {score.episode}")
    return SectionRow(
        cells=(
            Moment(score.action.at),
            Text(describe_action(score.action)),
            Text(score.cause),
            _money(score.expected),
            _money(score.actual),
            replay,
        )
    )


def _money(amount: float | None) -> Cell:
    return Text("") if amount is None else Dollars(amount)
