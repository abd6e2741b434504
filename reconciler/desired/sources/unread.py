"""Sources, files and objects that cannot be read: which stop a plan, and which are left out of it.

A repository often has more than the fleet, such as charts that other repositories deploy, and
applications whose secrets are generated elsewhere. If no node depends on them, a warning says that
they are missing. An error in a source of nodes stays one: its NodePools must not look removed.
So does every error in a folder with a ``reconciler.yaml``, which declares what belongs to a fleet.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.desired.findings import DUPLICATE_WORKLOAD, object_in_file
from reconciler.desired.sources.chart import EMPTY_CHART
from reconciler.desired.sources.requested import Purpose
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.grouping import group_by
from reconciler.model.text.counting import format_count, format_list

if TYPE_CHECKING:
    from reconciler.desired.fleet import SourceFile
    from reconciler.source.document import Document
    from reconciler.source.finding import Finding
    from reconciler.source.objects import Entry
    from reconciler.source.resource import Resource

UNREAD: Final = "unread-source"
UNREAD_OBJECT: Final = "unread-object"
AMBIGUOUS_WORKLOADS: Final = "ambiguous-workloads"
UNRENDERED: Final = "unrendered-source"
_MISSING_TOOL: Final = "missing-tool"
LEFT_OUT: Final = frozenset(
    {UNREAD, UNREAD_OBJECT, UNRENDERED, AMBIGUOUS_WORKLOADS, DUPLICATE_WORKLOAD}
)
"""Findings on what a plan is without: it can be made, but not acted on."""
_NAMED: Final = 3
_REFUSED: Final = frozenset({"outside-source", "too-large"})
"""Errors about what a source may refer to, and about its size."""
_ELSEWHERE: Final = frozenset({_MISSING_TOOL, "missing-source", "remote-source"})
"""Errors that hide what the files of the source do not show."""
_HIDING: Final = frozenset({"alias-bomb", "lfs-pointer", "not-utf8", "too-deep", "too-large"})
"""Errors of files whose content is not known: it may be NodePools, which would look removed."""
_NODES: Final = re.compile(
    rb"""\bkind["']?\s*:\s*["']?(?:NodePool|EC2NodeClass|NodeClass|Provisioner|AWSNodeTemplate"""
    rb"""|NodeOverlay)\b|\bkarpenter\.(?:sh|k8s\.aws)/v[0-9]"""
)


class FailedSource(NamedTuple):
    """A source with errors: its ``folder`` for people, and whether its files make nodes.

    ``is_spare`` is whether it is a chart that nothing deploys and that did not render, which often
    lacks the values of another repository. ``is_read`` is whether the rest of it was rendered.
    """

    folder: str
    errors: tuple[Diagnostic, ...]
    has_nodes: bool
    is_spare: bool = False
    is_read: bool = False


def makes_nodes(content: bytes) -> bool:
    """Return whether a file may make nodes: it has an object of Karpenter, or a template of one."""
    return _NODES.search(content) is not None


def left_out(
    findings: Sequence[Diagnostic],
    failed: Sequence[FailedSource],
    files: Iterable[SourceFile],
    purpose: Purpose,
) -> tuple[Diagnostic, ...]:
    """Return the findings, with one warning in place of the errors in each source to leave out.

    As long as it is not known where the nodes are, a source with files that are missing or
    elsewhere may have them, and so may one that this machine cannot render. The nodes may have been
    added since a base.
    """
    has_nodes = any(makes_nodes(file.content) for file in files)
    lacks_values = any(one.code == EMPTY_CHART for one in findings)
    is_known = has_nodes or lacks_values or any(one.has_nodes for one in failed)
    refused, elsewhere = _REFUSED, _ELSEWHERE
    if purpose is Purpose.BASE:
        refused, elsewhere = refused | {_MISSING_TOOL}, elsewhere - {"remote-source"}
    fatal = refused if is_known else refused | elsewhere
    by_need = group_by(failed, lambda one: _is_needed(one, fatal, has_nodes=has_nodes))
    optional = by_need.get(False, [])
    replaced = _errors_of(optional) - _errors_of(by_need.get(True, ()))
    kept = [finding for finding in findings if finding not in replaced]
    return (*kept, *dict.fromkeys(_warnings(optional, replaced)))


def _is_needed(one: FailedSource, fatal: AbstractSet[str], *, has_nodes: bool) -> bool:
    """Return whether a source has or may have the nodes, or is refused."""
    codes = {error.code for error in one.errors}
    is_spare = one.is_spare and has_nodes and _MISSING_TOOL not in codes
    return (one.has_nodes and not is_spare) or not codes.isdisjoint(fatal)


def _errors_of(sources: Iterable[FailedSource]) -> set[Diagnostic]:
    return {error for source in sources for error in source.errors}


def with_each_tool_once(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the findings, with one for all sources that lack the same tool.

    Until then, a finding on a missing tool says only that it is missing.
    """
    by_tool = group_by(findings, _lacking_key)
    return (*by_tool.pop(None, ()), *map(_lacking_tool, by_tool.values()))


def _lacking_key(one: Diagnostic) -> tuple[str, str, str] | None:
    """Return what is equal for findings on the same missing tool, None for other findings."""
    return (one.code, one.message, one.hint) if one.code in (_MISSING_TOOL, UNRENDERED) else None


def _lacking_tool(found: Sequence[Diagnostic]) -> Diagnostic:
    """Return the finding on all sources that lack a tool, at the first of them."""
    first = min(found, key=lambda one: one.order)
    folders = tuple(dict.fromkeys(folder for one in found for folder in one.folders))
    if first.code == UNRENDERED:
        many = f"{len(folders)} sources are not planned: {format_list(folders, _NAMED)}"
        what = f"so the pods of {many if folders[1:] else f'{folders[0]} are not planned'}"
    elif folders[1:]:
        shown = format_list(folders, _NAMED)
        what = f"and {len(folders)} sources have to be rendered: {shown}"
    else:
        what = f"and {folders[0]} has to be rendered"
    return replace(first, message=f"{first.message}, {what}", folders=folders)


def _warnings(
    optional: Iterable[FailedSource], replaced: Iterable[Diagnostic]
) -> Iterator[Diagnostic]:
    for one in optional:
        errors = [error for error in one.errors if error in replaced]
        lacking = [error for error in errors if error.code == _MISSING_TOOL]
        for error in lacking:
            yield replace(error, severity=Severity.WARNING, code=UNRENDERED)
        if not errors or lacking:
            continue
        first = errors[0]
        if first.code == AMBIGUOUS_WORKLOADS:
            message = f"{first.message}; none is planned"
            yield replace(first, severity=Severity.WARNING, message=message)
            continue
        what = "is read only in part" if one.is_read else "is not read, so its pods are not planned"
        message = f"{one.folder} {what}: {first.message}{_with_more(errors)}"
        yield replace(
            first, severity=Severity.WARNING, code=UNREAD, message=message, folders=(one.folder,)
        )


def _with_more(errors: Sequence[Diagnostic]) -> str:
    """Return how many errors there are beside the first, empty if there is none."""
    return f" (and {format_count(len(errors) - 1, 'more error')})" if errors[1:] else ""


class ReadBefore(NamedTuple):
    """What the base of a comparison was read from.

    ``rendered`` are the folders of sources, ``workloads`` the objects in files, and ``unread`` the
    content that the base leaves out as well.
    """

    rendered: frozenset[str] = frozenset()
    workloads: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()


def read_before(
    rendered: Iterable[str], workloads: Iterable[Resource], findings: Sequence[Diagnostic]
) -> ReadBefore:
    """Return what a base was read from, where ``rendered`` are the folders of its sources."""
    left = [one for one in findings if one.code in LEFT_OUT]
    return ReadBefore(
        frozenset(rendered).difference(*(one.folders for one in left)),
        frozenset(
            object_in_file(one.file, (one.kind, one.namespace or "default", one.name))
            for one in workloads
        ),
        frozenset(one.subject for one in left if one.code == UNREAD_OBJECT),
    )


def new_failures(head: Iterable[Diagnostic], before: ReadBefore | None) -> tuple[Diagnostic, ...]:
    """Return what the head leaves out and its base does not, as errors.

    Objects that the base has would look removed, and others would seem to cost nothing. ``before``
    is None if there is no base, or if it has errors. A tool that is missing is an error in every
    comparison: until somebody installed it, policies would pass for want of the objects.
    """
    return tuple(
        replace(one, severity=Severity.ERROR)
        for one in head
        if one.code == UNRENDERED or (before is not None and _is_new(one, before))
    )


def _is_new(one: Diagnostic, before: ReadBefore) -> bool:
    if one.code == UNREAD_OBJECT:
        return one.subject not in before.unread
    if one.code == DUPLICATE_WORKLOAD:
        return one.subject in before.workloads
    return one.code in LEFT_OUT and not before.rendered.isdisjoint(one.folders)


@dataclass(slots=True)
class LeftOutObjects:
    """Collects the files and objects with errors that are left out of a fleet.

    ``named`` are the files that the user passed by name, in which every error stays one.
    """

    named: frozenset[str] = frozenset()
    _found: list[Diagnostic] = field(default_factory=list)

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return one warning for each file and object that was left out."""
        return tuple(dict.fromkeys(self._found))

    def without_broken(
        self, file: SourceFile, documents: list[Document], findings: list[Diagnostic]
    ) -> tuple[list[Document], list[Diagnostic]]:
        """Return the documents without those that have an error, and the findings to report.

        A file of nodes is returned as it is.
        """
        errors = [one for one in findings if one.severity is Severity.ERROR and one.place]
        if not errors or file.path in self.named or makes_nodes(file.content) or _hides(errors):
            return documents, findings
        kept = _documents_without(documents, errors, file.content)
        what = "is read only in part" if kept else "is not read"
        self._found.append(
            _unread(errors, f"the file {what}{_missing_in(file.content)}", file.content)
        )
        return kept, [one for one in findings if one not in errors]

    def takes(self, entry: Entry, errors: Iterable[Finding] = ()) -> bool:
        """Return whether an object with these errors may be left out: it makes no nodes."""
        if entry.document.file in self.named or _hides(errors):
            return False
        return not makes_nodes(_encoded(entry))

    def add_object(self, entry: Entry, errors: Sequence[Diagnostic]) -> None:
        """Note an object with errors."""
        from reconciler.desired.contents import POD_KINDS

        content = _encoded(entry)
        what = f"{entry.kind} {entry.name}" if entry.kind else "a document"
        missing = ", so its pods are not planned" if entry.kind in POD_KINDS else ""
        self._found.append(_unread(errors, f"{what} is not read{missing}", content))


def _hides(errors: Iterable[Diagnostic | Finding]) -> bool:
    return any(error.code in _HIDING for error in errors)


def _encoded(entry: Entry) -> bytes:
    import msgspec

    return msgspec.json.encode(entry.data, order="sorted", enc_hook=str)


def _documents_without(
    documents: Iterable[Document], errors: Sequence[Diagnostic], content: bytes
) -> list[Document]:
    """Return the documents of a file that none of the errors is in."""
    starts = [0]
    for number, line in enumerate(content.splitlines(), 1):
        if line.startswith(b"---"):
            starts.append(number)
    broken = {bisect_right(starts, e.place.line) for e in errors if e.place is not None}
    return [d for d in documents if bisect_right(starts, d.place(()).line) not in broken]


def _missing_in(content: bytes) -> str:
    """Return what a plan lacks without a file, by the kinds that are written in it."""
    from reconciler.desired.contents import kinds_of_pods

    kinds = kinds_of_pods(content)
    return f", so the pods of its {format_list(kinds, _NAMED)} are not planned" if kinds else ""


def _unread(errors: Sequence[Diagnostic], what: str, content: bytes) -> Diagnostic:
    """Return the warning in place of the errors in a file or an object."""
    first = errors[0]
    at = f"{first.path}: " if first.path else ""
    return replace(
        first,
        severity=Severity.WARNING,
        code=UNREAD_OBJECT,
        message=f"{what}: {at}{first.message}{_with_more(errors)}",
        path="",
        subject=hashlib.sha256(content).hexdigest(),
    )
