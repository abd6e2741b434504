"""``reconciler validate``: all findings on the desired state, each with its position."""

from __future__ import annotations

import argparse
import sys

from reconciler import exitcode
from reconciler.assembly.inputs.folder import fleet_folder
from reconciler.cli.parser import inputs
from reconciler.cli.validation import ValidateRequest, validate_fleet
from reconciler.options import add_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    inputs.add_path(parser)
    inputs.add_output(parser, more=("github", "sarif"))
    add_options(ValidateRequest, parser)
    inputs.add_flags(parser, ("manifests", "settings"))


def request_of(args: argparse.Namespace) -> ValidateRequest:
    """Return the request in the arguments."""
    return inputs.request_from(
        ValidateRequest,
        args,
        path=fleet_folder(args.path) or ".",
        is_instead=bool(args.manifests) and args.path is None,
    )


def run(request: ValidateRequest) -> int:
    """Print the findings; 0 when none is an error, 3 otherwise."""
    text, is_valid, _ = validate_fleet(request)
    sys.stdout.write(text)
    return exitcode.DONE if is_valid else exitcode.REFUSED
