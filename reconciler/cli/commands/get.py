"""``reconciler get``: list what is recorded, or show one thing of it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from reconciler.cli.shared import exitcode, records

if TYPE_CHECKING:
    from reconciler.cli.shared.records import Recorded

KINDS: Final = ("nodeclaims", "nodes", "nodepools", "plans", "actions", "commands")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is listed, and in which form."""
    parser.add_argument(
        "kind",
        type=kind,
        metavar="KIND",
        help=(f"one of {', '.join(KINDS)} (singular also accepted)"),
    )
    parser.add_argument(
        "words", nargs="*", metavar="[NAME] [PATH]", help="name of one resource; fleet folder"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "wide", "json"), default="text", help="output format"
    )
    records.add_arguments(parser)


def kind(word: str) -> str:
    """Return the plural of a kind, as argparse asks for it."""
    from reconciler.cli.output.views import kind_of

    try:
        return kind_of(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Print the list; 1 where a name is not recorded."""
    from reconciler.cli.output.listing import Listing, as_json, as_list, as_table
    from reconciler.cli.output.views import VIEWS, found

    name, args.path = records.name_and_path(args.words)
    with records.recorded(args) as recorded:
        listing = VIEWS[args.kind](recorded)
        if name is not None:
            item = found(listing, args.kind, name, recorded)
            if args.output == "json":
                sys.stdout.write(as_json({**item.document, **_whole(recorded, args.kind, name)}))
                return exitcode.DONE
            listing = Listing(listing.header, [item], listing.wide_header)
        if args.output == "json":
            sys.stdout.write(as_json(as_list([i.document for i in listing.items])))
        elif listing.items:
            sys.stdout.write(as_table(listing, wide=args.output == "wide"))
        else:
            print(f"No {args.kind} are recorded for fleet {recorded.fleet}.", file=sys.stderr)
    return exitcode.DONE


def _whole(recorded: Recorded, kind: str, name: str) -> dict[str, Any]:
    """Return what one plan alone is shown with: its body, too large for a list of them."""
    import json

    plan = recorded.state.store.plan(name) if kind == "plans" else None
    return {} if plan is None else {"plan": json.loads(plan.body)}
