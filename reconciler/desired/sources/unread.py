"""Sources that cannot be rendered: which stop a plan, and which are left out of it.

A repository often has more than the fleet, such as charts that other repositories deploy, and
applications whose secrets are generated elsewhere. If no node depends on them, a warning says that
they are missing. An error in a source of nodes stays one: its NodePools must not look removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.desired.sources.chart import EMPTY_CHART
from reconciler.desired.sources.requested import Purpose
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.text.counting import format_count, format_list

if TYPE_CHECKING:
    from reconciler.desired.fleet import SourceFile

UNREAD: Final = "unread-source"
AMBIGUOUS_WORKLOADS: Final = "ambiguous-workloads"
LEFT_OUT: Final = frozenset({UNREAD, AMBIGUOUS_WORKLOADS})
"""Findings on sources that a plan is without: it can be made, but not acted on."""
_HAS_TO_BE_RENDERED: Final = re.compile(r"(.*), and (.*) has to be rendered")
_NAMED: Final = 3
_NOT_OF_SOURCE: Final = frozenset({"missing-tool", "outside-source", "too-large"})
"""Errors about this machine, or about what a source may refer to and its size."""
_ELSEWHERE: Final = frozenset({"missing-source", "remote-source"})
"""Errors about files that are not in the source."""
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
    elsewhere may have them. The nodes may have been added since a base.
    """
    has_nodes = any(makes_nodes(file.content) for file in files)
    lacks_values = any(one.code == EMPTY_CHART for one in findings)
    is_known = has_nodes or lacks_values or any(one.has_nodes for one in failed)
    elsewhere = _ELSEWHERE - {"remote-source"} if purpose is Purpose.BASE else _ELSEWHERE
    optional: list[FailedSource] = []
    needed: set[Diagnostic] = set()
    for one in failed:
        is_needed = one.has_nodes and not (one.is_spare and has_nodes)
        codes = {error.code for error in one.errors}
        may_have_nodes = not is_known and not codes.isdisjoint(elsewhere)
        if is_needed or may_have_nodes or not codes.isdisjoint(_NOT_OF_SOURCE):
            needed.update(one.errors)
        else:
            optional.append(one)
    replaced = {error for one in optional for error in one.errors} - needed
    every = _with_each_tool_once([finding for finding in findings if finding not in replaced])
    return (*every, *dict.fromkeys(_warnings(optional, replaced)))


def _with_each_tool_once(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the findings, with one for all sources that lack the same tool."""
    kept: list[Diagnostic] = []
    lacking: dict[tuple[str, str], list[tuple[str, Diagnostic]]] = {}
    for finding in findings:
        what = _HAS_TO_BE_RENDERED.fullmatch(finding.message)
        if finding.code == "missing-tool" and what is not None:
            lacking.setdefault((what[1], finding.hint), []).append((what[2], finding))
        else:
            kept.append(finding)
    for (tool, _), found in lacking.items():
        folders = list(dict.fromkeys(folder for folder, _ in found))
        first = min((finding for _, finding in found), key=lambda d: d.order)
        if folders[1:]:
            named = f"{len(folders)} sources have to be rendered: {format_list(folders, _NAMED)}"
            first = replace(first, message=f"{tool}, and {named}")
        kept.append(first)
    return kept


def _warnings(
    optional: Iterable[FailedSource], replaced: Iterable[Diagnostic]
) -> Iterator[Diagnostic]:
    for one in optional:
        errors = [error for error in one.errors if error in replaced]
        if not errors:
            continue
        first = errors[0]
        if first.code == AMBIGUOUS_WORKLOADS:
            message = f"{first.message}; none is planned"
            yield replace(first, severity=Severity.WARNING, message=message)
            continue
        more = f" (and {format_count(len(errors) - 1, 'more error')})" if errors[1:] else ""
        what = "is read only in part" if one.is_read else "is not read, so its pods are not planned"
        message = f"{one.folder} {what}: {first.message}{more}"
        yield replace(
            first, severity=Severity.WARNING, code=UNREAD, message=message, folders=(one.folder,)
        )


def rendered_folders(paths: Iterable[str], findings: Iterable[Diagnostic]) -> frozenset[str]:
    """Return the folders of sources among the rendered ones that no finding leaves out."""
    return frozenset(paths).difference(*(one.folders for one in findings if one.code in LEFT_OUT))


def new_failures(head: Iterable[Diagnostic], rendered: frozenset[str]) -> tuple[Diagnostic, ...]:
    """Return the sources that the head leaves out and the base has ``rendered``, as errors.

    Their objects would look removed.
    """
    return tuple(
        replace(one, severity=Severity.ERROR)
        for one in head
        if one.code in LEFT_OUT and not rendered.isdisjoint(one.folders)
    )
