"""``reconciler history``: past operations with time, commit, reason and outcome."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reconciler import exitcode
from reconciler.assembly.inputs import records
from reconciler.cli.parser import inputs
from reconciler.model.text.quoting import quote_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.assembly.inputs.records import RecordedFleet, ServedAction
    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.ports.journal import JournalEntry

_MESSAGE_WIDTH: Final = 60
_COMMANDS_HEADER: Final = (
    *("AT", "TOOK", "REASON", "OPERATIONS", "TARGETS", "SAVES/MONTH", "PODS", "OUTCOME"),
    "REVISION",
)
_HEADER: Final = ("AT", "VERB", "TARGET", "OUTCOME", "REVISION", "REASON", "MESSAGE")


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """Whose operations are listed, how many at most, and in which output format.

    ``target`` is a NodeClaim or node; None lists the operations on all of them. With
    ``by_command``, the operations of each command are one row.
    """

    fleet: StateRequest
    limit: int
    target: str | None
    output: str
    by_command: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the number of entries, and the output format."""
    inputs.add_path(parser)
    parser.add_argument(
        "--limit", type=parse_limit, default=50, metavar="N",
        help="maximum number of entries (default: 50)",
    )  # fmt: skip
    parser.add_argument(
        "--target", metavar="NAME", help="only operations on this NodeClaim or node"
    )
    parser.add_argument(
        "--by-command", action="store_true",
        help="one row for each command, with what it saves a month and the pods that it moves",
    )  # fmt: skip
    inputs.add_output(parser, "wide", more=("markdown", "html"))
    inputs.add_flags(parser, inputs.RECORDED)


def request_of(args: argparse.Namespace) -> HistoryRequest:
    """Return the request in the arguments.

    Raises:
        UsageError: commands are asked for as objects.
    """
    if args.by_command and args.output in ("json", "yaml"):
        from reconciler.model.errors import UsageError

        raise UsageError(
            "commands are printed as a table",
            where="--by-command",
            remedy=f"use `reconciler get commands -o {args.output}` for the objects",
        )
    fleet = inputs.state_request(args, args.path)
    return HistoryRequest(fleet, args.limit, args.target, args.output, args.by_command)


def parse_limit(text: str) -> int:
    """Return a count of at least 1, for argparse."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(
            f"{quote_value(text, 40)} is not a count from 1 to 1000000"
        )
    return int(text)


def run(request: HistoryRequest) -> int:
    """Print the newest entries of the journal, newest first."""
    from reconciler.assembly.inputs.records import served_actions
    from reconciler.notifications.stream import has_colour
    from reconciler.render.listing import columns, format_document, kubernetes_list, verb_tone
    from reconciler.render.reply import PAGES, render_page, table_section

    is_short = request.output == "text"
    with records.open_recorded(request.fleet) as recorded:
        entries = recorded.state.journal.entries(limit=request.limit, target=request.target)
        served = {} if is_short else served_actions(recorded.state, entries)
        commands = _command_rows(recorded, entries) if request.by_command else []
    if request.output in ("json", "yaml"):
        documents = [document(entry, served.get(entry.sequence)) for entry in entries]
        sys.stdout.write(format_document(kubernetes_list(documents), request.output))
    elif commands:
        sys.stdout.write(_commands_page(recorded.fleet, commands, request.output))
    elif entries:
        header: tuple[str, ...] = _HEADER
        rows = rows_of(entries, _MESSAGE_WIDTH if is_short else None)
        if not is_short:
            header += ("ACTION", "STATE", "PLAN")
            more = [_action_cells(served.get(entry.sequence)) for entry in entries]
            rows = [(*row, *cells) for row, cells in zip(rows, more, strict=True)]
        if request.output in PAGES:
            title = f"Operations of {recorded.fleet}"
            sections = [table_section("operations", header, rows)]
            sys.stdout.write(render_page(title, sections, request.output))
            return exitcode.DONE
        tones = ["", *(verb_tone(e.shown_verb) for e in entries)] if has_colour(sys.stdout) else ()
        sys.stdout.write(columns([header, *rows], tones=tones))
    else:
        print(f"No operations are recorded for fleet {recorded.fleet}.", file=sys.stderr)
    return exitcode.DONE


def _command_rows(
    recorded: RecordedFleet, entries: Sequence[JournalEntry]
) -> list[tuple[str, ...]]:
    """Return a row of cells for the operations of each command, the newest first."""
    from reconciler.model.text.money import format_monthly
    from reconciler.plan.render.wording import short_commit
    from reconciler.render.listing import clock_time, human_duration
    from reconciler.web.view import commit_views

    oldest = min((entry.intent.at for entry in entries), default=recorded.now)
    known = recorded.state.store.commands_since(oldest)
    return [
        (
            clock_time(command.began),
            "" if command.ended is None else human_duration(command.ended - command.began),
            command.reason,
            command.operations,
            ", ".join([*command.targets, *([f"{command.more} more"] if command.more else [])]),
            "" if command.saves is None else format_monthly(command.saves),
            "" if command.pods is None else str(command.pods),
            command.problem or command.outcome,
            short_commit(commit.revision),
        )
        for commit in commit_views(entries, recorded.now, known)
        for command in commit.commands
    ]


def _commands_page(fleet: str, rows: Sequence[tuple[str, ...]], output: str) -> str:
    from reconciler.render.listing import columns
    from reconciler.render.reply import PAGES, render_page, table_section

    if output not in PAGES:
        return columns([_COMMANDS_HEADER, *rows])
    sections = [table_section("commands", _COMMANDS_HEADER, rows)]
    return render_page(f"Commands of {fleet}", sections, output)


def _action_cells(served: ServedAction | None) -> tuple[str, str, str]:
    return ("", "", "") if served is None else (served.action, served.state.value, served.plan)


def rows_of(entries: Sequence[JournalEntry], width: int | None) -> list[tuple[str, ...]]:
    """Return a row of cells for each entry; messages are cut to ``width``."""
    from reconciler.plan.render.wording import short_commit
    from reconciler.render.listing import clock_time, truncate

    return [
        (
            clock_time(e.intent.at),
            e.shown_verb,
            e.intent.target,
            _outcome(e),
            short_commit(e.intent.revision),
            e.intent.reason,
            truncate(e.message, width) if width else e.message,
        )
        for e in entries
    ]


def _outcome(entry: JournalEntry) -> str:
    """Return the outcome of an entry; an open request is not executed yet."""
    from reconciler.ports.journal import REQUESTED

    if entry.outcome is not None:
        return entry.outcome.value
    return "requested" if entry.intent.verb in REQUESTED else "unknown"


def document(entry: JournalEntry, served: ServedAction | None) -> dict[str, Any]:
    """Return an entry as an object of a List, with the action that it ``served``."""
    import msgspec

    intent = msgspec.to_builtins(entry.intent)
    return {
        "apiVersion": "reconciler/v1",
        "kind": "JournalEntry",
        "metadata": {"name": intent.pop("id"), "creationTimestamp": intent.pop("at")},
        "spec": {**intent, "sequence": entry.sequence},
        "status": {
            "outcome": entry.outcome.value if entry.outcome else None,
            "finishedAt": msgspec.to_builtins(entry.finished_at),
            "message": entry.message,
            "action": None
            if served is None
            else {"plan": served.plan, "id": served.action, "state": served.state.value},
        },
    }
