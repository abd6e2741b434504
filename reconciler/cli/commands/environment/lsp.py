"""``reconciler lsp``: findings, completion and hover for an editor (language server)."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial

from reconciler import exitcode
from reconciler.cli.parser import inputs
from reconciler.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class LspRequest:
    """The settings of the command line that the files are checked with."""

    settings: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the settings."""
    parser.add_argument(
        "--stdio", action="store_true", help="use standard input and output, as it always does"
    )
    inputs.add_flags(parser, ("settings",))


request_of = partial(inputs.request_from, LspRequest)


def run(request: LspRequest) -> int:
    """Answer the editor until it ends the connection.

    Raises:
        UsageError: a setting is wrong, or the package that speaks the protocol is missing.
    """
    from reconciler.assembly.inputs.checking import check_context

    context = check_context(request.settings)
    try:
        from reconciler.lsp.server import serve
    except ImportError as error:
        from reconciler.installation import install_remedy

        raise UsageError(
            "the language server needs the package pygls", remedy=install_remedy("lsp")
        ) from error
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a line that is printed must not end up between two messages
    serve(context, stdin, stdout)
    return exitcode.DONE
