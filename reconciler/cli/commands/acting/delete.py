"""``reconciler delete``: drain a node, then terminate its instance."""

from __future__ import annotations

import argparse
from typing import Final

from reconciler.cli.commands.acting import nodes

SUBCOMMANDS: Final = {
    "nodeclaim": "drain the node of a NodeClaim, then terminate its instance",
    "node": "drain a node, then terminate its instance",
}
"""Name of a subcommand → its line of help."""

request_of = nodes.request_of
run = nodes.run


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    nodes.add_arguments(parser, "NodeClaim" if name == "nodeclaim" else name)
