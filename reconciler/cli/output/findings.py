"""Findings as text for a terminal, as JSON, and as annotations for GitHub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.text.visible import (
    Annotations,
    Painted,
    annotation_property,
    annotation_text,
    escape_invisible,
    one_line,
)
from reconciler.source.document import split_lines

if TYPE_CHECKING:
    from reconciler.assembly.inputs.fixing import FixResult

_COLOURS: Final = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}
_EXCERPT_WIDTH: Final = 120

_COMMANDS: Final = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "notice",
}


def is_valid(diagnostics: Sequence[Diagnostic]) -> bool:
    """Return whether no finding is an error."""
    return not any(d.severity is Severity.ERROR for d in diagnostics)


def render_text(
    diagnostics: Sequence[Diagnostic],
    sources: Mapping[str, bytes] | None = None,
    *,
    colour: bool = False,
    what: str = "",
) -> str:
    """Return one line for each finding, with the line it is about, and a summary at the end.

    ``sources`` are the contents of the files by path; a finding in none of them has no excerpt.
    ``what`` are the objects that were read; the summary names them if they are valid.
    """
    lines: list[str] = []
    texts: dict[str, list[str]] = {}
    for diagnostic in diagnostics:
        lines.append(_headline(diagnostic, colour=colour))
        place = diagnostic.place
        if place is not None and sources is not None and place.file in sources:
            if place.file not in texts:
                text = sources[place.file].decode(errors="replace").removeprefix("\ufeff")
                texts[place.file] = split_lines(text)
            lines += _excerpt(texts[place.file], place.line, place.column, colour=colour)
    lines.append(_summary_line(diagnostics, what, colour=colour))
    return Painted("\n".join(lines) + "\n")


def _paint(text: str, code: str, *, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _headline(diagnostic: Diagnostic, *, colour: bool) -> str:
    place = one_line(str(diagnostic.place)) if diagnostic.place else ""
    where = _paint(f"{place}: ", "1", colour=colour) if place else ""
    severity = _paint(f"{diagnostic.severity}:", _COLOURS[diagnostic.severity], colour=colour)
    what = f" {one_line(diagnostic.path)}:" if diagnostic.path else ""
    hint = f" ({one_line(diagnostic.hint)})" if diagnostic.hint else ""
    code = _paint(f"[{diagnostic.code}]", "2", colour=colour)
    return f"{where}{severity}{what} {one_line(diagnostic.message)}{hint} {code}"


def _excerpt(lines: Sequence[str], line: int, column: int, *, colour: bool) -> list[str]:
    if not 0 < line <= len(lines):
        return []
    start = max(0, column - _EXCERPT_WIDTH + 20)
    excerpt = lines[line - 1][start : start + _EXCERPT_WIDTH].replace("\t", " ")
    shown, before = (
        escape_invisible(excerpt),
        escape_invisible(excerpt[: max(column - 1 - start, 0)]),
    )
    if not shown.strip():
        return []
    margin = f"{line:>5} | "
    caret = _paint("^", "1;31", colour=colour)
    return [f"{margin}{shown}", f"{'':>5} | {' ' * len(before)}{caret}"]


def _summary_line(diagnostics: Sequence[Diagnostic], what: str, *, colour: bool) -> str:
    counts = Counter(d.severity for d in diagnostics)
    parts = [
        f"{counts[severity]} {word}{'' if counts[severity] == 1 else 's'}"
        for severity, word in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"))
        if counts[severity]
    ]
    numbers = ", ".join(parts)
    if counts[Severity.ERROR]:
        return f"{_paint('invalid', '31', colour=colour)}: {numbers}"
    found = "; ".join(filter(None, (what, numbers)))
    head = _paint("valid", "32", colour=colour)
    return f"{head}: {found}" if found else head


def render_json(diagnostics: Sequence[Diagnostic], fixes: FixResult | None = None) -> str:
    """Return the reply as JSON, keys sorted; with ``fixes`` also what was rewritten."""
    from msgspec import to_builtins

    from reconciler.cli.output.validationreply import validation_reply
    from reconciler.render.listing import format_document

    reply = validation_reply(diagnostics, is_valid(diagnostics), fixes)
    return format_document(to_builtins(reply), "json")


def render_findings_page(diagnostics: Sequence[Diagnostic], output: str, what: str) -> str:
    """Return the findings as a table of a page, and ``what`` was read if it is valid."""
    from reconciler.render.reply import render_page, table_section, text_section

    header = ("severity", "place", "field", "finding", "hint", "code")
    rows = [
        (
            str(finding.severity),
            str(finding.place or ""),
            finding.path,
            finding.message,
            finding.hint,
            finding.code,
        )
        for finding in diagnostics
    ]
    sections = [text_section("verdict", "", [_summary_line(diagnostics, what, colour=False)])]
    sections += [table_section("findings", header, rows)] if rows else []
    return render_page("Findings", sections, output)


def render_github(diagnostics: Sequence[Diagnostic], folder: str = "") -> str:
    """Return GitHub workflow commands, which annotate the lines of a pull request.

    ``folder`` is the path of the fleet in the repository: GitHub needs paths from its root.
    """
    lines = []
    for diagnostic in diagnostics:
        fields = {}
        if diagnostic.place is not None:
            place = diagnostic.place
            path = f"{folder}/{place.file}" if folder else place.file
            fields = {"file": path, "line": str(place.line), "col": str(place.column)}
        fields["title"] = diagnostic.code
        properties = ",".join(
            f"{key}={annotation_property(value)}" for key, value in fields.items()
        )
        what = f"{diagnostic.path}: " if diagnostic.path else ""
        hint = f" ({diagnostic.hint})" if diagnostic.hint else ""
        message = annotation_text(f"{what}{diagnostic.message}{hint}")
        lines.append(f"::{_COMMANDS[diagnostic.severity]} {properties}::{message}\n")
    return Annotations("".join(lines))
