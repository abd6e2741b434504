"""``reconciler cordon``: let no new pods be scheduled to a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse

    from reconciler.cli.parser.inputs import NodeRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the node."""
    inputs.add_arguments(parser)


def request_of(args: argparse.Namespace) -> NodeRequest:
    """Return the request in the arguments."""
    return inputs.request_of(args, "cordon")


def run(request: NodeRequest) -> int:
    """Record the request, and execute it if no daemon does."""
    from reconciler.cli.maintenance import noderequests

    return noderequests.run(request)
