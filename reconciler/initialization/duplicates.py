"""Objects that are defined several times in a repository: which of them counts is never guessed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from typing import Final

from reconciler.desired.migration.automode import is_auto_mode_class
from reconciler.desired.placeholders import placeholders_in
from reconciler.desired.workloads.kinds import BUILT_IN
from reconciler.initialization.objects import SourceObject
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.errors import UsageError
from reconciler.model.text.paths import is_below
from reconciler.source.resource import AUTO_MODE, group_of
from reconciler.source.schema import value_at

_SUCCESSORS: Final = {"Provisioner": "NodePool", "AWSNodeTemplate": "EC2NodeClass"}
_VERSIONS: Final = ("v1alpha1", "v1alpha5", "v1beta1", "v1")
_LISTED_MAX: Final = 5
_UNUSED: Final = frozenset(
    {
        "archive",
        "archived",
        "backup",
        "deprecated",
        "example",
        "examples",
        "legacy",
        "nouse",
        "old",
        "sample",
        "samples",
        "test",
        "tests",
        "unused",
    }
)
"""Words of paths that are rarely those in use."""

LeaveOut = Callable[[Place | None, str, str], None]


def without_duplicates(
    items: Sequence[SourceObject], prefer: Sequence[str], leave_out: LeaveOut
) -> tuple[list[SourceObject], list[Diagnostic]]:
    """Return one object for each kind, namespace and name, in their order.

    Equal ones count once. One below a path of ``prefer`` counts, the first such path before the
    others. Otherwise one of Karpenter does, not its variant for EKS Auto Mode, and of several
    versions of Karpenter's API the newest, with a warning if the other is in another folder. Of
    workloads that nothing decides between, none is returned, with an error for each.

    Raises:
        UsageError: nothing decides between two different objects that make nodes.
    """
    prefer = list(map(posixpath.normpath, prefer))
    chosen: list[SourceObject] = []
    conflicts: list[list[SourceObject]] = []
    remarks: list[Diagnostic] = []
    for group in _group_by_object(items):
        winner = _choose(group, prefer)
        if winner is None:
            conflicts.append(group)
            continue
        chosen.append(winner)
        for other in group:
            if other.data == winner.data:
                continue
            if _is_older_elsewhere(other, winner, prefer):
                remarks.append(_older(other, winner))
            else:
                what = f"{other.kind} {other.name}: the one at {winner.place} is taken over"
                leave_out(other.place, what, "")
    return _in_order(chosen, items), [*_errors(conflicts), *remarks]


def _in_order(chosen: Sequence[SourceObject], items: Sequence[SourceObject]) -> list[SourceObject]:
    kept = {id(item) for item in chosen}
    return [item for item in items if id(item) in kept]


def _errors(conflicts: Sequence[Sequence[SourceObject]]) -> list[Diagnostic]:
    """Return an error for each group of workloads; objects that make nodes have to be decided."""
    of_nodes = [group for group in conflicts if _makes_nodes(group[0])]
    if of_nodes:
        raise _conflict_error(of_nodes)
    return [_conflict(group) for group in conflicts]


def _group_by_object(items: Sequence[SourceObject]) -> Collection[list[SourceObject]]:
    """Return the definitions of each object; kinds that replace one another are one kind."""
    groups: dict[tuple[str, str, str], list[SourceObject]] = {}
    for item in items:
        version, kind = item.entry.api_version, _SUCCESSORS.get(item.kind, item.kind)
        if is_auto_mode_class(item.data):
            kind = "EC2NodeClass"
        space = item.entry.namespace if BUILT_IN.is_namespaced(version, kind) else ""
        kind = BUILT_IN.object_kind(version, kind)
        unique = item.name
        if not unique or (not _makes_nodes(item) and any(placeholders_in(unique))):
            unique = f" {len(groups)}"  # without a known name, each is one of its own
        groups.setdefault((kind, space, unique), []).append(item)
    return groups.values()


def _is_older_elsewhere(other: SourceObject, winner: SourceObject, prefer: Sequence[str]) -> bool:
    """Return whether an object lost by its version alone to one of another folder."""
    folders = {posixpath.dirname(item.place.file) for item in (other, winner)}
    is_named = any(is_below(winner.place.file, path) for path in prefer)
    return (
        _makes_nodes(other) and len(folders) > 1 and _rank(other) < _rank(winner) and not is_named
    )


def _older(other: SourceObject, winner: SourceObject) -> Diagnostic:
    versions = [item.entry.api_version.rpartition("/")[2] for item in (winner, other)]
    message = (
        f"{winner.kind} {winner.name}: {versions[0]} at {winner.place} is taken over, and "
        f"{versions[1]} at {other.place} is not"
    )
    hint = f"if that is the one in use, name it with --prefer {other.place.file}"
    return Diagnostic(Severity.WARNING, "duplicate-name", message, other.place, hint=hint)


def _makes_nodes(item: SourceObject) -> bool:
    return "karpenter" in item.entry.api_version or item.kind == "NodeClass"


def _conflict(group: Sequence[SourceObject]) -> Diagnostic:
    first = group[0]
    places = _places_of(group)
    message = f"{first.kind} {first.name} is defined {len(group)} times, differently: {places}"
    hint = f"none is taken over; name one with --prefer {first.place.file}"
    return Diagnostic(Severity.ERROR, "duplicate-name", message, first.place, hint=hint)


def _places_of(group: Sequence[SourceObject]) -> str:
    """Return the places of objects; one that is rendered twice has only one."""
    return " and ".join(list(dict.fromkeys(str(item.place) for item in group))[:_LISTED_MAX])


def _choose(group: Sequence[SourceObject], prefer: Sequence[str]) -> SourceObject | None:
    preferred = _preferred(group, prefer)
    candidates = [item for item in preferred if not _is_of_auto_mode(item)] or preferred
    newest = max(_rank(item) for item in candidates)
    candidates = [item for item in candidates if _rank(item) == newest]
    first = candidates[0]
    return first if all(item.data == first.data for item in candidates) else None


def _preferred(group: Sequence[SourceObject], prefer: Sequence[str]) -> Sequence[SourceObject]:
    """Return the objects below the first path that has any, all if none has."""
    for path in prefer:
        below = [item for item in group if is_below(item.place.file, path)]
        if below:
            return below
    return group


def _is_of_auto_mode(item: SourceObject) -> bool:
    """Return whether AWS launches the nodes of an object itself, so that no plan has them."""
    at = ("spec", "template", "spec", "nodeClassRef", "group")
    return AUTO_MODE in (group_of(item.entry.api_version), value_at(item.data, at))


def _rank(item: SourceObject) -> int:
    version = str(item.data.get("apiVersion", "")).rpartition("/")[2]
    return _VERSIONS.index(version) if version in _VERSIONS else len(_VERSIONS)


def _conflict_error(conflicts: Sequence[Sequence[SourceObject]]) -> UsageError:
    first = conflicts[0]
    places = _places_of(first)
    more = len(conflicts) - 1
    others = ", ".join(f"{group[0].kind} {group[0].name}" for group in conflicts[1:_LISTED_MAX])
    rest = f"; {more} more: {others}{' …' if more >= _LISTED_MAX else ''}" if more else ""
    paths = _deciding_paths([group for group in conflicts if len(_files_of(group)) > 1])
    words = " ".join(f"--prefer {path}" for path in paths)
    what = "one" if len(paths) == 1 else "them"
    remedy = (
        f"name {what} with {words}, or pass a folder with only one of them"
        if len(_files_of(first)) > 1
        else "rename or remove all of them except one, since a cluster has only one of that name"
    )
    message = f"{first[0].kind} {first[0].name} is defined {len(first)} times, differently: "
    return UsageError(
        f"{message}{places}{rest}", where="--from", remedy=f"{remedy}; nothing was written"
    )


def _files_of(group: Sequence[SourceObject]) -> set[str]:
    return {item.place.file for item in group}


def _deciding_paths(conflicts: Sequence[Sequence[SourceObject]]) -> list[str]:
    """Return paths that decide all conflicts together, those that decide the most first.

    Folders come before files, and paths that have words of those before them, such as ``prod``,
    before others.
    """
    files = [sorted(_files_of(group)) for group in conflicts]
    chosen: list[str] = []
    while left := [paths for paths in files if not any(_decided(p, paths) for p in chosen)]:
        options = dict.fromkeys(
            above for path in chain.from_iterable(left) for above in _above(path)
        )
        known = set(chain.from_iterable(map(_words, chosen)))
        chosen.append(max(options, key=partial(_usefulness, left=left, known=known)))
    return chosen


def _usefulness(
    option: str, left: Sequence[Sequence[str]], known: set[str]
) -> tuple[bool, int, bool, int]:
    """Return how well a path decides the conflicts between files that are left."""
    decided = [path for paths in left for path in _decided(option, paths)]
    is_used = not any(_UNUSED & _words(path) for path in decided)
    is_folder = all(option not in paths for paths in left)
    return is_used and bool(decided), len(decided), is_folder, len(known & _words(option))


def _above(path: str) -> list[str]:
    """Return a path and the folders above it, the deepest folder first and the file last."""
    folder = posixpath.dirname(path)
    found = []
    while folder:
        found.append(folder)
        folder = posixpath.dirname(folder)
    return [*found, path]


def _decided(option: str, paths: Sequence[str]) -> list[str]:
    """Return the one path that is below another, none if there are several."""
    below = [path for path in paths if is_below(path, option)]
    return below if len(below) == 1 else []


def _words(path: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", path.lower()))
