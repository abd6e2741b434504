"""``reconciler simulate``: what happens when, played by the engine itself in virtual time."""

from __future__ import annotations

import gc
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from reconciler.cli.shared import exitcode
from reconciler.cli.shared.request import add_arguments as add_input_arguments

if TYPE_CHECKING:
    import argparse

    from reconciler.cli.simulation.report import Report
    from reconciler.cli.simulation.script import Script

_OUTPUTS: Final = ("text", "json", "html")

SPAN_MAX: Final = timedelta(days=366)
"""The longest time that ``--until`` may name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_input_arguments(parser)
    add = parser.add_argument
    add("-o", "--output", choices=("text", "json", "html"), default="text", help="output format")
    add(
        "--until", metavar="DURATION|TIME",
        help="when to stop (default: when nothing is left to do)",
    )  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    add("--faults", metavar="FILE", help="fault scenario (YAML)")
    add(
        "--timings",
        action="store_true",
        help=("print the seconds spent in each phase to stderr, as JSON"),
    )


def run(args: argparse.Namespace) -> int:
    """Play the simulation and tell what happened."""
    gc.set_threshold(200_000, 20, 20)
    from reconciler.cli.commands.plan import write
    from reconciler.cli.shared.timings import Timings
    from reconciler.cli.simulation.building import built
    from reconciler.cli.simulation.scenes import played

    timings = Timings()
    setting = built(args, timings, _script(args))
    report = played(setting, _until(args.until, setting.start))
    with timings("render"):
        text = render(report, args.output)
    write(text)
    if args.timings:
        print(timings.to_json(), file=sys.stderr)
    return exitcode.DONE


def render(report: Report, output: str) -> str:
    """Return the report in the form that was asked for."""
    if output == "json":
        import msgspec

        return msgspec.json.encode(report, order="sorted").decode() + "\n"
    if output == "html":
        from reconciler.cli.simulation.page import render_html

        return render_html(report)
    from reconciler.cli.simulation.timeline import render_text

    return render_text(report)


def _script(args: argparse.Namespace) -> Script:
    from reconciler.cli.shared.request import read_bytes
    from reconciler.cli.simulation.script import Script, read_script

    return read_script(read_bytes(args.faults), args.faults) if args.faults else Script()


def _until(text: str | None, start: datetime) -> datetime | timedelta | None:
    """Return what ``--until`` names: a span or a time.

    Raises:
        UsageError: it is neither, or not after the start.
    """
    if text is None:
        return None
    from reconciler.cli.shared.moment import present
    from reconciler.model.errors import UsageError

    wrong = UsageError(
        f"invalid end {text[:60]!r}",
        where="--until",
        remedy="write a duration such as 24h or 7d, or a time after the start",
    )
    is_time = "-" in text and "T" in text.upper()
    span = present(text, "--until") - start if is_time else _span(text, wrong)
    if span <= timedelta(0):
        raise wrong
    if span > SPAN_MAX:
        raise UsageError(
            f"{text[:60]!r} is longer than {SPAN_MAX.days} days",
            where="--until",
            remedy="simulate a shorter time",
        )
    return start + span if is_time else span


def _span(text: str, wrong: Exception) -> timedelta:
    from reconciler.model.duration import parse_span

    try:
        return parse_span(text)
    except ValueError as error:
        raise wrong from error
