"""``reconciler get``: list recorded resources, or show one of them."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import Final

from reconciler import exitcode
from reconciler.assembly.inputs import records, watching
from reconciler.assembly.inputs.request import StateRequest
from reconciler.cli.parser import inputs
from reconciler.notifications.stream import has_colour
from reconciler.options import add_options, argument, part
from reconciler.render.listing import (
    KubernetesList,
    Listing,
    format_table,
    kind_words,
)

KINDS: Final = ("nodeclaims", "nodes", "nodepools", "plans", "actions", "commands")


def parse_kind(word: str) -> str:
    """Return the plural of a kind, for argparse."""
    from reconciler.inspection.views import kind_of

    try:
        return kind_of(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="[NAME] [PATH]", help="name of one resource; fleet folder"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequest:
    """The kind of resource, the name of one of them or None for all, and the output format."""

    kind: str = argument(
        "KIND", f"one of {', '.join(KINDS)} (singular also accepted)", type=parse_kind
    )
    fleet: StateRequest = part(_add_words, partial(inputs.add_flags, names=inputs.RECORDED))
    name: str | None
    output: str = part(partial(inputs.add_output, formats=("wide",)))
    watches: bool = part(inputs.add_watch)


add_arguments = partial(add_options, GetRequest)


def request_of(args: argparse.Namespace) -> GetRequest:
    """Return the request in the arguments."""
    name, path = records.name_and_path(args.words)
    fleet = inputs.state_request(args, path)
    return inputs.request_from(GetRequest, args, fleet=fleet, name=name)


def run(request: GetRequest) -> int:
    """Print the list, once or whenever it changes; 1 if a name is not recorded."""
    if request.watches:
        watching.watch_until_stopped(lambda: _view(request), sys.stdout)
        return exitcode.DONE
    _view(request).show(sys.stdout)
    return exitcode.DONE


def _view(request: GetRequest) -> watching.View:
    """Return the list in the output format; a table without rows is a note on stderr.

    Raises:
        StateError: the name is not recorded.
    """
    from reconciler.inspection.views import VIEWS, find_item, resource_of
    from reconciler.render.reply import render_reply, table_section

    kind, name = request.kind, request.name
    with records.open_recorded(request.fleet) as recorded:
        listing = VIEWS[kind](recorded)
        if name is not None:
            listing = Listing(
                listing.header, [find_item(listing, kind, name, recorded)], listing.wide_header
            )
            if request.output in ("json", "yaml"):
                resource = resource_of(recorded, kind, name)
                return watching.View(render_reply(resource, (), request.output, title=""), resource)
    resources = [item.document for item in listing.items]
    if not listing.items and request.output not in ("json", "yaml"):
        note = f"No {kind} are recorded for fleet {recorded.fleet}."
        return watching.View("", resources, note)
    verb = "KIND" if kind == "actions" else ""
    is_wide, colour = request.output == "wide", has_colour(sys.stdout)
    header = (*listing.header, *listing.wide_header)
    rows = [(*item.cells, *item.wide) for item in listing.items]
    page = render_reply(
        KubernetesList(resources),
        [table_section(kind, header, rows)],
        request.output,
        title=f"{kind_words(kind)} of {recorded.fleet}",
        text=format_table(listing, wide=is_wide, verb=verb, colour=colour),
    )
    return watching.View(page, resources)
