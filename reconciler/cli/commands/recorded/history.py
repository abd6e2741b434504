"""``reconciler history``: past operations with time, commit, reason and outcome."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler import exitcode
from reconciler.assembly.inputs import records
from reconciler.assembly.inputs.records import ServedAction, served_actions
from reconciler.cli.parser import inputs
from reconciler.engine.shown.past import LaunchPrices, commit_views
from reconciler.model.text.quoting import quote_value
from reconciler.notifications.stream import has_colour
from reconciler.options import add_options, option, part
from reconciler.render.listing import KubernetesList, columns, verb_tone

if TYPE_CHECKING:
    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.engine.shown.past import CommandView, CommitView
    from reconciler.inspection.resources import RecordedResource
    from reconciler.render.cells import Section

_MESSAGE_WIDTH: Final = 60
_COMMANDS_HEADER: Final = (
    *("AT", "TOOK", "REASON", "OPERATIONS", "TARGETS", "$/MONTH", "PODS", "OUTCOME"),
    "REVISION",
)
_BY_COMMAND: Final = ("text", "markdown", "html")
_OPERATIONS_A_COMMAND: Final = 8
"""How many operations are read at first for each command that is listed."""


def parse_limit(text: str) -> int:
    """Return a count of at least 1, for argparse."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(
            f"{quote_value(text, 40)} is not a count from 1 to 1000000"
        )
    return int(text)


def _add_form(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--by-command",
        dest="by_command",
        action="store_true",
        default=None,
        help="one entry for each command (default for text, markdown and html without --target)",
    )
    form.add_argument(
        "--by-operation",
        dest="by_command",
        action="store_false",
        default=None,
        help="one entry for each operation (default with --target, and for wide, json and yaml)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    """Whose operations are listed, how many rows at most, and in which output format.

    With ``by_command``, the operations of each command are one row.
    """

    fleet: StateRequest = inputs.of_fleet(inputs.RECORDED)
    limit: int = option(
        "--limit", "N", "maximum number of entries (default: 50)", type=parse_limit, default=50
    )
    target: str | None = option("--target", "NAME", "only operations on this NodeClaim or node")
    by_command: bool = part(_add_form)
    output: str = part(partial(inputs.add_output, formats=("wide",)))


add_arguments = partial(add_options, HistoryRequest)


def request_of(args: argparse.Namespace) -> HistoryRequest:
    """Return the request in the arguments."""
    if args.by_command is None:
        args.by_command = args.target is None and args.output in _BY_COMMAND
    return inputs.request_from(HistoryRequest, args)


def run(request: HistoryRequest) -> int:
    """Print the newest entries of the journal, newest first."""
    from reconciler.render.reply import render_reply

    with records.open_recorded(request.fleet) as recorded:
        listing = (_commands if request.by_command else _operations)(recorded, request)
    if not listing.resources and request.output not in ("json", "yaml"):
        print(f"No operations are recorded for fleet {recorded.fleet}.", file=sys.stderr)
        return exitcode.DONE
    sys.stdout.write(
        render_reply(
            KubernetesList(listing.resources),
            [listing.section],
            request.output,
            title=f"{listing.section.key.capitalize()} of {recorded.fleet}",
            text=listing.text,
        )
    )
    return exitcode.DONE


class _Past(NamedTuple):
    """Operations or commands: as objects, as a section, and as text."""

    resources: list[RecordedResource]
    section: Section
    text: str


def _action_cells(served: ServedAction | None) -> tuple[str, str, str]:
    if served is None:
        return "", "", ""
    return served.action, served.state.value, served.plan


def _operations(recorded: RecordedFleet, request: HistoryRequest) -> _Past:
    from reconciler.inspection.operations import HEADER, operation_resource, operation_rows
    from reconciler.render.reply import table_section

    is_short = request.output == "text"
    entries = recorded.state.journal.entries(limit=request.limit, target=request.target)
    served = {} if is_short else served_actions(recorded.state, entries)
    resources = [operation_resource(entry, served.get(entry.sequence)) for entry in entries]
    header: tuple[str, ...] = HEADER
    rows = operation_rows(entries, _MESSAGE_WIDTH if is_short else None)
    if not is_short:
        header += ("ACTION", "STATE", "PLAN")
        cells = (_action_cells(served.get(entry.sequence)) for entry in entries)
        rows = [(*row, *one) for row, one in zip(rows, cells, strict=True)]
    tones = ["", *(verb_tone(e.shown_verb) for e in entries)] if has_colour(sys.stdout) else ()
    text = columns([header, *rows], tones=tones)
    return _Past(resources, table_section("operations", header, rows), text)


def _commands(recorded: RecordedFleet, request: HistoryRequest) -> _Past:
    from reconciler.inspection.operations import command_resource, command_row
    from reconciler.render.reply import table_section

    found = _newest_commands(recorded, request)
    rows = [command_row(commit, command) for commit, command in found]
    section = table_section("commands", _COMMANDS_HEADER, rows)
    resources = [command_resource(commit, command) for commit, command in found]
    return _Past(resources, section, columns([_COMMANDS_HEADER, *rows]))


def _newest_commands(
    recorded: RecordedFleet, request: HistoryRequest
) -> list[tuple[CommitView, CommandView]]:
    """Return the newest commands with their commits, all their operations included."""
    prices = LaunchPrices(recorded.state.store.plan)
    limit = (request.limit + 1) * _OPERATIONS_A_COMMAND
    while True:
        entries = recorded.state.journal.entries(limit=limit, target=request.target)
        oldest = min((entry.intent.at for entry in entries), default=recorded.now)
        known = recorded.state.store.commands_since(oldest)
        views = commit_views(entries, recorded.now, known, prices)
        found = [(commit, command) for commit in views for command in commit.commands]
        if len(entries) < limit or len(found) > request.limit:
            return found[: request.limit]
        limit *= 2
