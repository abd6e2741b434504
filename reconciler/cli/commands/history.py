"""``reconciler history``: what was done, when, under which commit, why, and what came of it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from reconciler.cli.shared import exitcode, records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.ports.journal import JournalEntry

_MESSAGE_WIDTH: Final = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how far to look back, and the form."""
    records.add_path(parser)
    parser.add_argument(
        "--limit",
        type=limit,
        default=50,
        metavar="N",
        help=("maximum number of entries (default: 50)"),
    )
    parser.add_argument(
        "--target", metavar="NAME", help=("only operations on this NodeClaim or node")
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "wide", "json"), default="text", help="output format"
    )
    records.add_arguments(parser)


def limit(text: str) -> int:
    """Return a count from 1 on, as argparse asks for it."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a count from 1 to 1000000")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print the newest entries of the journal, newest first."""
    from reconciler.cli.output.listing import as_json, as_list, columns

    with records.recorded(args) as recorded:
        entries = recorded.state.journal.entries(limit=args.limit, target=args.target)
    if args.output == "json":
        sys.stdout.write(as_json(as_list([document(entry) for entry in entries])))
    elif entries:
        header = ("AT", "VERB", "TARGET", "OUTCOME", "REVISION", "REASON", "MESSAGE")
        rows = rows_of(entries, None if args.output == "wide" else _MESSAGE_WIDTH)
        sys.stdout.write(columns([header, *rows]))
    else:
        print(f"No operations are recorded for fleet {recorded.fleet}.", file=sys.stderr)
    return exitcode.DONE


def rows_of(entries: Sequence[JournalEntry], width: int | None) -> list[tuple[str, ...]]:
    """Return a row of cells for each entry; messages are cut to ``width``."""
    from reconciler.cli.output.listing import clock_time, cut
    from reconciler.plan.render.wording import short

    return [
        (
            clock_time(e.intent.at),
            verb_of(e),
            e.intent.target,
            e.outcome.value if e.outcome else "unknown",
            short(e.intent.revision),
            e.intent.reason,
            cut(e.message, width) if width else e.message,
        )
        for e in entries
    ]


def verb_of(entry: JournalEntry) -> str:
    """Return the verb of an entry in text: unused resources are deleted, not discarded."""
    verb = entry.intent.verb.value
    return "delete" if verb == "discard" else verb


def document(entry: JournalEntry) -> dict[str, Any]:
    """Return an entry as an object of a List."""
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
        },
    }
