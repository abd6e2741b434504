"""``reconciler report``: what a fleet spent and saved in a period, and what blocks it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from reconciler import exitcode
from reconciler.assembly.inputs import records
from reconciler.assembly.inputs.timings import read_time_or_span
from reconciler.cli.parser import inputs
from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.options import add_options, option, part
from reconciler.render.listing import format_document

if TYPE_CHECKING:
    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.notifications.weekly import FleetReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """The fleet that the report is about, from when on, and the output format."""

    fleet: StateRequest = inputs.of_fleet(inputs.RECORDED)
    since: str = option(
        "--since",
        "DURATION|TIME",
        "start of the period: a time, or a duration before now (default: 7d)",
        default="7d",
    )
    output: str = part(inputs.add_output)


add_arguments = partial(add_options, ReportRequest)
request_of = partial(inputs.request_from, ReportRequest)


def run(request: ReportRequest) -> int:
    """Print the report."""
    sys.stdout.write(_render(_report(request), request.output))
    return exitcode.DONE


def _report(request: ReportRequest) -> FleetReport:
    """Return the report on the period.

    Raises:
        StateError: the state cannot be read.
        UsageError: the period does not begin before now.
    """
    from reconciler.notifications.weekly import report_of
    from reconciler.ports.passes import read_passes

    begin = read_time_or_span(request.since, "--since")
    with records.open_recorded(request.fleet) as recorded:
        now, store = recorded.now, recorded.state.store
        since = now - begin if isinstance(begin, timedelta) else begin
        if since >= now:
            what = f"{quote_value(request.since)} is not before now"
            raise UsageError(what, where="--since", remedy="pass an earlier time")
        found = records.newest_plan(recorded.state)
        plan, passes = found[1] if found else None, read_passes(recorded.state.shelf)
        return report_of(recorded.fleet, store, passes, plan, since, now)


def _render(report: FleetReport, output: str) -> str:
    from reconciler.inspection import weekly
    from reconciler.render.reply import PAGES, render_page

    if output == "text":
        return weekly.render_text(report)
    if output in PAGES:
        return render_page(weekly.title_of(report), weekly.sections_of(report), output)
    import msgspec

    return format_document(msgspec.to_builtins(report), output)
