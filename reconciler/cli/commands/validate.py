"""``reconciler validate``: every finding on the desired state, each with its place."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.cli.parser import inputs
from reconciler.cli.shared import exitcode
from reconciler.cli.shared.folder import fleet_folder

if TYPE_CHECKING:
    import argparse

    from reconciler.desired.fleet import SourceFile


@dataclass(frozen=True, slots=True)
class ValidateRequest:
    """The fleet folder to check, the settings of the command line, and the output format."""

    path: str
    settings: tuple[str, ...]
    output: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    inputs.add_path(parser)
    inputs.add_output(parser, more=("github", "sarif"))
    inputs.add_flags(parser, ("settings",))


def request_of(args: argparse.Namespace) -> ValidateRequest:
    """Return what the arguments ask for."""
    return ValidateRequest(fleet_folder(args.path) or ".", tuple(args.settings), args.output)


def run(request: ValidateRequest) -> int:
    """Print the findings; 0 when none is an error, 3 otherwise."""
    from reconciler.adapters.git.folder import read_folder
    from reconciler.cli.output import findings
    from reconciler.desired.fleet import read_fleet

    if request.settings:
        from reconciler.desired.settings.layers import resolve

        resolve({}, {}, request.settings)  # a setting that is wrong is wrong usage

    files, refused = read_folder(request.path)
    _, diagnostics = read_fleet(files, refused=refused)
    match request.output:
        case "json":
            text = findings.render_json(diagnostics)
        case "yaml":
            from reconciler.cli.output.listing import yaml_of_json

            text = yaml_of_json(findings.render_json(diagnostics))
        case "github":
            text = findings.render_github(diagnostics, folder_in_repository(request.path))
        case "sarif":
            from reconciler.cli.output.sarif import render_sarif

            text = render_sarif(diagnostics, folder_in_repository(request.path))
        case _:
            sources = {file.path: _shown(file) for file in files}
            text = findings.render_text(diagnostics, sources, colour=sys.stdout.isatty())
    sys.stdout.write(text)
    return exitcode.DONE if findings.is_valid(diagnostics) else exitcode.REFUSED


def _shown(file: SourceFile) -> bytes:
    """Return the lines that a finding may quote: a password in a setting is not among them."""
    from reconciler.model.text.urls import without_secrets
    from reconciler.source.resource import CONFIG_FILES

    if file.path not in CONFIG_FILES:
        return file.content
    text = file.content.decode("utf-8", "surrogateescape")
    return without_secrets(text).encode("utf-8", "surrogateescape")


def folder_in_repository(path: str) -> str:
    """Return where ``path`` lies below the top of its git repository; "" at the top or outside."""
    from pathlib import Path

    folder = Path(path).resolve()
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            below = folder.relative_to(parent).as_posix()
            return "" if below == "." else below
    return ""
