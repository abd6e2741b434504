"""Findings on all objects of a fleet: which are reported, and how they read."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Final

from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.text.counting import format_list
from reconciler.model.text.quoting import quote_value
from reconciler.source.finding import Finding
from reconciler.source.objects import Entry
from reconciler.source.resource import VALIDATED_KINDS
from reconciler.source.schema import value_at

DUPLICATE_WORKLOAD: Final = "duplicate-workload"
NO_OBJECT: Final = "no-object"
_OTHERS_MAX: Final = 3
"""The maximum number of files without an object that have a finding each, or are named in one."""
FINDINGS_MAX: Final = 1000
"""The maximum number of findings that are reported for a folder."""


def findings_to_report(diagnostics: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the findings to report, in order of their places.

    Errors come before warnings if there are too many: an omitted error would let an invalid fleet
    pass. Many files that are not objects, as in the repository of an application, are one finding.
    """
    diagnostics = _with_others_as_one(diagnostics)
    if len(diagnostics) <= FINDINGS_MAX:
        return tuple(sorted(diagnostics, key=lambda d: d.order))
    ranked = sorted(diagnostics, key=lambda d: (d.severity is not Severity.ERROR, d.order))
    shown, rest = ranked[:FINDINGS_MAX], ranked[FINDINGS_MAX:]
    more = Diagnostic(
        rest[0].severity,
        "too-many-findings",
        f"{len(rest):,} more findings are not shown",
        rest[0].place,
        hint="correct those that are shown, then validate again",
    )
    return (*sorted(shown, key=lambda d: d.order), more)


def _with_others_as_one(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the findings, with a single one for many files without an object."""
    others = sorted(
        (d for d in diagnostics if d.code == NO_OBJECT and d.place), key=lambda d: d.order
    )
    if len(others) <= _OTHERS_MAX:
        return list(diagnostics)
    files = list(dict.fromkeys(d.place.file for d in others if d.place is not None))
    message = (
        f"{len(files)} files are not Kubernetes objects, and are not read: "
        f"{format_list(files, _OTHERS_MAX)}"
    )
    one = Diagnostic(others[0].severity, NO_OBJECT, message, others[0].place)
    return [*(d for d in diagnostics if d.code != NO_OBJECT or not d.place), one]


def skipped_objects(skipped: Mapping[str, int]) -> Diagnostic:
    """Return the finding on objects of other kinds, by kind."""
    count = sum(skipped.values())
    kinds = ", ".join(f"{kind} ({n})" for kind, n in sorted(skipped.items())[:20])
    message = f"{count} object{'' if count == 1 else 's'} of other kinds skipped: {kinds}"
    return Diagnostic(Severity.INFO, "skipped-kinds", message)


def duplicate_finding(entry: Entry, first: Entry) -> Finding:
    """Return the finding on an object whose name is taken; of a Namespace, the first counts.

    Many folders have the Namespace beside each application. Workloads of one name in several
    folders are often for several clusters, which is no fault of the repository.
    """
    at = ("metadata", "name")
    message = (
        f"duplicate {entry.kind} {quote_value(entry.name)}, first defined at {first.place(at)}"
    )
    severity = Severity.WARNING if entry.kind == "Namespace" else Severity.ERROR
    folders = {posixpath.dirname(one.place(at).file) for one in (entry, first)}
    hint = "rename or remove one"
    if len(folders) > 1:
        hint += "; of two ways to deploy it, list only one folder under sources in reconciler.yaml"
        if severity is Severity.ERROR and entry.kind not in VALIDATED_KINDS:
            message = f"{message}; only that one is planned"
            return Finding(DUPLICATE_WORKLOAD, at, message, hint, Severity.WARNING)
    return Finding("duplicate-name", at, message, hint, severity)


def with_written_word(entry: Entry, finding: Finding) -> Finding:
    """Return a finding on a boolean that should be a string, with the word as written in YAML."""
    value = value_at(entry.data, finding.pointer)
    if finding.code != "wrong-type" or not isinstance(value, bool):
        return finding
    word = entry.document.word((*entry.base, *finding.pointer))
    if not word or not finding.hint.startswith("quote"):
        return finding
    message = f"YAML reads the unquoted `{word}` as the boolean {quote_value(value)}"
    return finding._replace(message=message, hint=f'write "{word}"')
