"""``reconciler delete``: drain a node, then terminate its instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse

    from reconciler.cli.parser.inputs import NodeRequest

SUBCOMMANDS: Final = {
    "nodeclaim": "drain the node of a NodeClaim, then terminate its instance",
    "node": "drain a node, then terminate its instance",
}
"""Name of a subcommand → its line of help."""


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    inputs.add_arguments(parser, "NodeClaim" if name == "nodeclaim" else name)


def request_of(args: argparse.Namespace) -> NodeRequest:
    """Return the request in the arguments."""
    return inputs.request_of(args, "delete-nodeclaim")


def run(request: NodeRequest) -> int:
    """Record the request, and execute it if no daemon does."""
    from reconciler.cli.maintenance import noderequests

    return noderequests.run(request)
