"""Snapshots of a cluster among the files of a fleet, which are not desired state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.text.counting import format_count
from reconciler.model.text.visible import one_line
from reconciler.source.objects import entries
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE

if TYPE_CHECKING:
    from reconciler.desired.fleet import SourceFile

_OBSERVED: Final = frozenset({"Node", "SnapshotCapture", "FleetRecords"})
"""Kinds that only a snapshot contains; a NodeClaim or a pod alone may be desired."""
_KIND: Final = re.compile(
    rb"kind[\"']?[ \t]{0,8}:[ \t]{0,8}[\"']?(?:Node|SnapshotCapture|FleetRecords)(?![A-Za-z])"
)


def without_snapshots(files: Iterable[SourceFile]) -> tuple[list[SourceFile], list[Diagnostic]]:
    """Return the files without snapshots of a cluster, and a warning for each of these.

    What runs is not what should run: Deployments of a snapshot have the replicas of a moment, and
    its pods belong to them.
    """
    kept: list[SourceFile] = []
    found: list[Diagnostic] = []
    for file in files:
        warning = _snapshot_warning(file)
        if warning is None:
            kept.append(file)
        else:
            found.append(warning)
    return kept, found


def _snapshot_warning(file: SourceFile) -> Diagnostic | None:
    """Return that a file is a snapshot, None if it is desired state."""
    if file.path in (*CONFIG_FILES, LOCK_FILE) or _KIND.search(file.content) is None:
        return None
    documents, _ = file.documents()
    kinds = Counter(
        entry.kind for document in documents for entry, fault in entries(document) if fault is None
    )
    if not _OBSERVED & kinds.keys():
        return None
    every, name = sum(kinds.values()), one_line(file.path)
    verb = "is" if every == 1 else "are"
    return Diagnostic(
        Severity.WARNING,
        "snapshot-in-fleet",
        f"this is a snapshot of a cluster, not desired state; its {format_count(every, 'object')} "
        f"{verb} not read",
        Place(file.path, 1, 1),
        hint=f"move it out of the fleet folder, and pass it as `--snapshot {name}`",
    )
