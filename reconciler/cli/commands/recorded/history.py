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
    from reconciler.engine.shown.past import CommandView, CommitView
    from reconciler.ports.journal import JournalEntry

_MESSAGE_WIDTH: Final = 60
_COMMANDS_HEADER: Final = (
    *("AT", "TOOK", "REASON", "OPERATIONS", "TARGETS", "$/MONTH", "PODS", "OUTCOME"),
    "REVISION",
)
_BY_COMMAND: Final = ("text", "markdown", "html")
_OPERATIONS_A_COMMAND: Final = 8
"""How many operations are read at first for each command that is listed."""
_HEADER: Final = ("AT", "VERB", "TARGET", "OUTCOME", "REVISION", "REASON", "MESSAGE")


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """Whose operations are listed, how many rows at most, and in which output format.

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
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--by-command", dest="by_command", action="store_true", default=None,
        help="one entry for each command, with its $/month and the pods that it moves "
        "(default for text, markdown and html without --target)",
    )  # fmt: skip
    form.add_argument(
        "--by-operation", dest="by_command", action="store_false", default=None,
        help="one entry for each operation (default with --target, and for wide, json and yaml)",
    )  # fmt: skip
    inputs.add_output(parser, "wide", more=("markdown", "html"))
    inputs.add_flags(parser, inputs.RECORDED)


def request_of(args: argparse.Namespace) -> HistoryRequest:
    """Return the request in the arguments."""
    fleet = inputs.state_request(args, args.path)
    by_command = args.by_command
    if by_command is None:
        by_command = args.target is None and args.output in _BY_COMMAND
    return HistoryRequest(fleet, args.limit, args.target, args.output, by_command)


def parse_limit(text: str) -> int:
    """Return a count of at least 1, for argparse."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(
            f"{quote_value(text, 40)} is not a count from 1 to 1000000"
        )
    return int(text)


def run(request: HistoryRequest) -> int:
    """Print the newest entries of the journal, newest first."""
    from reconciler.render.listing import format_document, kubernetes_list

    with records.open_recorded(request.fleet) as recorded:
        if request.by_command:
            documents, page = _commands(recorded, request)
        else:
            documents, page = _operations(recorded, request)
    if not documents and request.output not in ("json", "yaml"):
        print(f"No operations are recorded for fleet {recorded.fleet}.", file=sys.stderr)
    else:
        sys.stdout.write(page or format_document(kubernetes_list(documents), request.output))
    return exitcode.DONE


def _operations(
    recorded: RecordedFleet, request: HistoryRequest
) -> tuple[list[dict[str, Any]], str]:
    """Return the operations as objects, and as a table unless the objects are asked for."""
    from reconciler.assembly.inputs.records import served_actions
    from reconciler.notifications.stream import has_colour
    from reconciler.render.listing import columns, verb_tone
    from reconciler.render.reply import PAGES, render_page, table_section

    is_short = request.output == "text"
    entries = recorded.state.journal.entries(limit=request.limit, target=request.target)
    served = {} if is_short else served_actions(recorded.state, entries)
    documents = [document(entry, served.get(entry.sequence)) for entry in entries]
    if request.output in ("json", "yaml"):
        return documents, ""
    header: tuple[str, ...] = _HEADER
    rows = rows_of(entries, _MESSAGE_WIDTH if is_short else None)
    if not is_short:
        header += ("ACTION", "STATE", "PLAN")
        more = [_action_cells(served.get(entry.sequence)) for entry in entries]
        rows = [(*row, *cells) for row, cells in zip(rows, more, strict=True)]
    if request.output in PAGES:
        sections = [table_section("operations", header, rows)]
        return documents, render_page(f"Operations of {recorded.fleet}", sections, request.output)
    tones = ["", *(verb_tone(e.shown_verb) for e in entries)] if has_colour(sys.stdout) else ()
    return documents, columns([header, *rows], tones=tones)


def _commands(recorded: RecordedFleet, request: HistoryRequest) -> tuple[list[dict[str, Any]], str]:
    """Return the commands as objects, and as a table unless the objects are asked for."""
    from reconciler.render.listing import columns
    from reconciler.render.reply import PAGES, render_page, table_section

    found = _newest_commands(recorded, request)
    documents = [_command_document(commit, command) for commit, command in found]
    if request.output in ("json", "yaml"):
        return documents, ""
    rows = [_command_row(commit, command) for commit, command in found]
    if request.output in PAGES:
        sections = [table_section("commands", _COMMANDS_HEADER, rows)]
        return documents, render_page(f"Commands of {recorded.fleet}", sections, request.output)
    return documents, columns([_COMMANDS_HEADER, *rows])


def _newest_commands(
    recorded: RecordedFleet, request: HistoryRequest
) -> list[tuple[CommitView, CommandView]]:
    """Return the newest commands with their commits, all their operations included."""
    from reconciler.engine.shown.past import LaunchPrices, commit_views

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


def _command_row(commit: CommitView, command: CommandView) -> tuple[str, ...]:
    from reconciler.model.text.money import format_monthly
    from reconciler.plan.render.wording import short_commit
    from reconciler.render.listing import clock_time, human_duration

    return (
        clock_time(command.began),
        "" if command.took is None else human_duration(command.took),
        command.reason,
        command.operations,
        ", ".join([*command.shown, *([f"{command.more} more"] if command.more else [])]),
        "" if command.saves is None else format_monthly(-command.saves, signed=True),
        "" if command.pods is None else str(command.pods),
        ": ".join(filter(None, (command.outcome, command.problem))),
        short_commit(commit.revision),
    )


def _command_document(commit: CommitView, command: CommandView) -> dict[str, Any]:
    """Return a command of the history as an object of a List; money is USD an hour."""
    from reconciler.model.text.times import timestamp

    began = timestamp(command.began)
    return {
        "apiVersion": "reconciler/v1",
        "kind": "CommandHistory",
        "metadata": {"name": command.name, "creationTimestamp": began},
        "spec": {
            "revision": commit.revision,
            "reason": command.reason,
            "operations": dict(command.counts),
            "targets": list(command.targets),
        },
        "status": {
            "outcome": command.outcome,
            "message": command.problem,
            "finishedAt": None if command.ended is None else timestamp(command.ended),
            "savingsPerHour": command.saves,
            "pods": command.pods,
        },
    }


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
