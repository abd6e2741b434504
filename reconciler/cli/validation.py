"""Every finding on the files of a fleet, as ``validate`` and ``ci`` print them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from reconciler.model.text.urls import without_secrets
from reconciler.model.text.visible import Painted, one_line
from reconciler.notifications.stream import has_colour
from reconciler.options import switch
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.assembly.inputs.fixing import FixResult
    from reconciler.desired.fleet import SourceFile
    from reconciler.model.diagnostics import Diagnostic

_SUMMED: Final = ("text", "markdown", "html")
"""The formats that count what was read."""


@dataclass(frozen=True, slots=True)
class ValidateRequest:
    """The fleet folder to check, the settings of the command line, and the output format.

    ``fix`` rewrites older spellings first. ``allow_empty`` makes a folder without any NodePool a
    warning, where a change deletes them. ``manifests`` are those of ``FleetRequest``. With
    ``leaves_out``, errors that do not stop a plan are warnings (see ``LeftOutObjects``).
    """

    path: str
    settings: tuple[str, ...]
    output: str
    fix: bool = switch(
        "--fix", "rewrite older spellings in the files, and keep comments and layout"
    )
    manifests: tuple[str, ...] = ()
    is_instead: bool = False
    allow_empty: bool = False
    leaves_out: bool = False


class ValidationResult(NamedTuple):
    """The findings in the output format, whether none of them is an error, and the findings."""

    text: str
    is_valid: bool
    findings: tuple[Diagnostic, ...]


def validate_fleet(request: ValidateRequest) -> ValidationResult:
    """Return every finding on the files of a fleet."""
    from reconciler.adapters.git.source import read_checked_folder
    from reconciler.assembly.emptyfolder import with_place_of_nodes
    from reconciler.assembly.inputs.checking import check_context, check_files
    from reconciler.assembly.inputs.manifests import leaving_objects, with_manifests
    from reconciler.assembly.inputs.rendering import expanded_folder
    from reconciler.cli.output import findings
    from reconciler.desired.contents import count_objects

    context = check_context(request.settings)  # a wrong setting is wrong usage
    files, refused = with_manifests(
        *read_checked_folder(request.path), request.manifests, is_instead=request.is_instead
    )
    fixes = None
    if request.fix:
        from reconciler.assembly.inputs.fixing import fix_folder

        fixes = fix_folder(request.path, files)
        files, refused = with_manifests(
            *read_checked_folder(request.path), request.manifests, is_instead=request.is_instead
        )
    files, refused = expanded_folder(request.path, files, refused)
    leaving = leaving_objects(files, request.manifests) if request.leaves_out else None
    fleet, diagnostics = check_files(
        context, files, refused, allow_empty=request.allow_empty, leaving=leaving
    )
    diagnostics = with_place_of_nodes(diagnostics, request.path)
    if fixes is not None:
        _print_fixes(fixes, sys.stdout if request.output == "text" else sys.stderr)
    is_valid = findings.is_valid(diagnostics)
    what = count_objects(fleet) if is_valid and request.output in _SUMMED else ""
    text = _render_findings(request, files, diagnostics, fixes, what)
    return ValidationResult(text, is_valid, tuple(diagnostics))


def _render_findings(
    request: ValidateRequest,
    files: Sequence[SourceFile],
    diagnostics: Sequence[Diagnostic],
    fixes: FixResult | None,
    what: str,
) -> str:
    from reconciler.cli.output import findings

    match request.output:
        case "json":
            return findings.render_json(diagnostics, fixes)
        case "yaml":
            from reconciler.render.listing import json_to_yaml

            return json_to_yaml(findings.render_json(diagnostics, fixes))
        case "github":
            return findings.render_github(diagnostics, folder_in_repository(request.path))
        case "sarif":
            from reconciler.cli.output.sarif import render_sarif

            return render_sarif(diagnostics, folder_in_repository(request.path))
        case "markdown" | "html":
            return findings.render_findings_page(diagnostics, request.output, what)
    sources = {file.path: _quotable_content(file) for file in files}
    return findings.render_text(diagnostics, sources, colour=has_colour(sys.stdout), what=what)


def _print_fixes(fixes: FixResult, out: TextIO) -> None:
    """Print what was rewritten, and what has to be edited by hand."""
    for fix in fixes.fixes:
        what = f"{fix.place}: fixed: {fix.path}: {fix.old} is now {fix.new}"
        out.write(Painted(f"{one_line(what)}\n"))
    out.writelines(Painted(f"not fixed: {one_line(failure)}\n") for failure in fixes.failures)


def _quotable_content(file: SourceFile) -> bytes:
    """Return the content that a finding may quote, without the passwords in settings."""
    if file.path not in CONFIG_FILES:
        return file.content
    text = file.content.decode("utf-8", "surrogateescape")
    return without_secrets(text).encode("utf-8", "surrogateescape")


def folder_in_repository(path: str) -> str:
    """Return the path relative to the top of its git repository, "" at the top or outside."""
    from pathlib import Path

    folder = Path(path).resolve()
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            below = folder.relative_to(parent).as_posix()
            return "" if below == "." else below
    return ""
