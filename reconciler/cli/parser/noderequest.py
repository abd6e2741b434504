"""The arguments of the commands that act on one node by its name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse

    from reconciler.cli.shared.request import FleetRequest, StateRequest


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """The operation (a ``Verb``), its node, and how long it may take at once."""

    state: StateRequest
    fleet: FleetRequest
    verb: str
    name: str
    reason: str
    is_dry_run: bool
    timeout: timedelta


def add_arguments(parser: argparse.ArgumentParser, what: str = "node") -> None:
    """Declare the node and how the request is made."""
    parser.add_argument("name", metavar="NAME", help=f"name of the {what}")
    inputs.add_path(parser)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="show what would be done; change nothing")
    add("--reason", default="", metavar="TEXT", help="why, for the history")
    add(
        "--timeout", default="30m", metavar="DURATION",
        help=(
            "without a daemon: give up after this long; the next `apply` or `run` continues it "
            "(default: 30m)"
        ),
    )  # fmt: skip
    inputs.add_flags(parser, inputs.ACTING)


def request_of(args: argparse.Namespace, verb: str) -> NodeRequest:
    """Return the request in the arguments."""
    return NodeRequest(
        inputs.state_request(args, args.path),
        inputs.fleet_request(args, args.path),
        verb,
        args.name,
        args.reason,
        args.dry_run,
        inputs.read_duration(args.timeout, "--timeout"),
    )
