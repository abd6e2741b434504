"""Findings on all objects of a fleet: which are reported, and how they read."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.json import JsonDict
from reconciler.model.text.counting import format_list
from reconciler.model.text.nearest import did_you_mean
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding, field_path
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
    An object that is read from several places has each finding once.
    """
    diagnostics = _with_others_as_one(list(dict.fromkeys(diagnostics)))
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


def missing_pools(config: JsonDict, existing: Sequence[str]) -> Iterator[Finding]:
    """Yield the settings of NodePools that do not exist: they have no effect."""
    for name in config.get("nodePools") or ():
        if name not in existing:
            message = f"NodePool {quote_value(name)} not found in this folder"
            hint = did_you_mean(name, existing, "remove it, or add the NodePool")
            at: Pointer = ("nodePools", name)
            yield Finding("missing-nodepool", at, message, hint, Severity.WARNING, of_key=True)


def duplicate_finding(entry: Entry, first: Entry, *, is_left_out: bool = False) -> Finding:
    """Return the finding on an object whose name is taken; of a Namespace, the first counts.

    Many folders have the Namespace beside each application. Workloads of one name in several
    folders are often for several clusters, which is no fault of the repository. Those of one folder
    are an error, unless such objects are left out.
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
    is_optional = is_left_out or (len(folders) > 1 and entry.kind not in VALIDATED_KINDS)
    if severity is Severity.ERROR and is_optional:
        message = f"{message}; only that one is planned"
        return Finding(DUPLICATE_WORKLOAD, at, message, hint, Severity.WARNING)
    return Finding("duplicate-name", at, message, hint, severity)


def unknown_workload(entry: Entry, shown: str) -> Finding:
    """Return the finding on an object of an unknown kind that contains pods (``shown``)."""
    message = (
        f"{entry.kind} {entry.name} contains {shown}, but {entry.kind} of "
        f"{entry.api_version} is not a known kind; its pods are not planned"
    )
    hint = "describe the kind in workloadKinds of reconciler.yaml"
    return Finding("unknown-workload", ("kind",), message, hint, Severity.WARNING)


def object_in_file(file: str, order: Iterable[str]) -> str:
    """Return what identifies an object in one of several files that have it."""
    return "\n".join((file, *order))


def diagnostic_of(entry: Entry, finding: Finding) -> Diagnostic:
    """Return a finding on an object with its place."""
    finding = _with_written_word(entry, finding)
    place = entry.place(finding.pointer, of_key=finding.of_key)
    path = field_path((*entry.base, *finding.pointer) if not entry.kind else finding.pointer)
    found = Diagnostic(finding.severity, finding.code, finding.message, place, path, finding.hint)
    if finding.code != DUPLICATE_WORKLOAD:
        return found
    file = entry.document.file
    return replace(found, subject=object_in_file(file, (entry.kind, entry.namespace, entry.name)))


def _with_written_word(entry: Entry, finding: Finding) -> Finding:
    """Return a finding on a boolean that should be a string, with the word as written in YAML."""
    value = value_at(entry.data, finding.pointer)
    if finding.code != "wrong-type" or not isinstance(value, bool):
        return finding
    word = entry.document.word((*entry.base, *finding.pointer))
    if not word or not finding.hint.startswith("quote"):
        return finding
    message = f"YAML reads the unquoted `{word}` as the boolean {quote_value(value)}"
    return finding._replace(message=message, hint=f'write "{word}"')
