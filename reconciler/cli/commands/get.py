"""``reconciler get``: list what is recorded, or show one thing of it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reconciler.cli.parser import inputs
from reconciler.cli.shared import exitcode, records

if TYPE_CHECKING:
    from reconciler.cli.shared.records import Recorded
    from reconciler.cli.shared.request import StateRequest

KINDS: Final = ("nodeclaims", "nodes", "nodepools", "plans", "actions", "commands")


@dataclass(frozen=True, slots=True)
class GetRequest:
    """The kind of resource, the name of one of them or None for all, and the output format."""

    fleet: StateRequest
    kind: str
    name: str | None
    output: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is listed, and in which output format."""
    parser.add_argument(
        "kind", type=kind, metavar="KIND",
        help=f"one of {', '.join(KINDS)} (singular also accepted)",
    )  # fmt: skip
    parser.add_argument(
        "words", nargs="*", metavar="[NAME] [PATH]", help="name of one resource; fleet folder"
    )
    inputs.add_output(parser, "wide")
    inputs.add_flags(parser, inputs.RECORDED)


def request_of(args: argparse.Namespace) -> GetRequest:
    """Return what the arguments ask for."""
    name, path = records.name_and_path(args.words)
    return GetRequest(inputs.state_request(args, path), args.kind, name, args.output)


def kind(word: str) -> str:
    """Return the plural of a kind, as argparse asks for it."""
    from reconciler.cli.output.views import kind_of

    try:
        return kind_of(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(request: GetRequest) -> int:
    """Print the list; 1 where a name is not recorded."""
    with records.recorded(request.fleet) as recorded:
        text = render(request, recorded)
    if text:
        sys.stdout.write(text)
    else:
        print(f"No {request.kind} are recorded for fleet {recorded.fleet}.", file=sys.stderr)
    return exitcode.DONE


def render(request: GetRequest, recorded: Recorded) -> str:
    """Return the list in the output format, empty where a table has no rows.

    Raises:
        UnreadableError: the name is not recorded.
    """
    from reconciler.cli.output.listing import Listing, as_list, as_table, format_document
    from reconciler.cli.output.views import VIEWS, found

    listing, kind, name = VIEWS[request.kind](recorded), request.kind, request.name
    is_document = request.output in ("json", "yaml")
    if name is not None:
        item = found(listing, kind, name, recorded)
        if is_document:
            return format_document(document_of(recorded, kind, name), request.output)
        listing = Listing(listing.header, [item], listing.wide_header)
    if is_document:
        return format_document(as_list([i.document for i in listing.items]), request.output)
    return as_table(listing, wide=request.output == "wide") if listing.items else ""


def document_of(recorded: Recorded, kind: str, name: str) -> dict[str, Any]:
    """Return one resource as an object; a plan with its body, which is too large for a list.

    Raises:
        UnreadableError: the name is not recorded.
    """
    import json

    from reconciler.cli.output.views import VIEWS, found

    item = found(VIEWS[kind](recorded), kind, name, recorded)
    plan = recorded.state.store.plan(name) if kind == "plans" else None
    return {**item.document, **({} if plan is None else {"plan": json.loads(plan.body)})}
