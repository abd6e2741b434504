"""Names what makes the nodes of a folder without NodePools: Terraform, templates or programs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Final

from reconciler.model.errors import MissingFleetError
from reconciler.model.text.counting import format_count
from reconciler.source.endings import PROGRAMS, TAKEN_OVER
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from reconciler.adapters.git.source import Expand, Source, SourceContent
    from reconciler.desired.fleet import SourceFile
    from reconciler.model.diagnostics import Diagnostic

_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "vendor", "venv"})
_FILES_MAX: Final = 20_000
_BYTES_MAX: Final = 2**20
_NO_NODEPOOL: Final = "no NodePool in this folder"


def read_fleet_source(source: Source, expand: Expand | None) -> SourceContent:
    """Return the content of a source; one without a file names what makes its nodes."""
    from reconciler.adapters.git.source import WorkingTree, read

    try:
        return read(source, expand)
    except MissingFleetError as error:
        if not isinstance(source, WorkingTree) or not os.path.isdir(source.path):
            raise
        what, remedy = place_of_nodes(source.path)
        message = f"{error.message}{what}"
        raise MissingFleetError(message, where=source.path, remedy=remedy) from error


def migration_advice(
    files: Iterable[SourceFile], folder: str, findings: Iterable[Diagnostic]
) -> str:
    """Return the command that migrates the objects of a folder that is not a fleet yet, or ``""``.

    ``folder`` is empty if it is not on disk.
    """
    errors = {found.code for found in findings if found.severity == "error"}
    is_old = not errors.isdisjoint(("old-version", "old-spelling"))
    if not folder or not is_old or any(file.path in CONFIG_FILES for file in files):
        return ""
    return f"`reconciler init fleet --from {quote(folder)}` writes a migrated copy into fleet"


def with_place_of_nodes(findings: Iterable[Diagnostic], folder: str) -> tuple[Diagnostic, ...]:
    """Return the findings, where that on an empty fleet names the file that makes its nodes."""
    return tuple(_with_place(found, folder) if _is_bare(found) else found for found in findings)


def _is_bare(found: Diagnostic) -> bool:
    """Return whether a finding on an empty fleet names no chart that may make its nodes."""
    return found.code == "empty-fleet" and not found.message.startswith(f"{_NO_NODEPOOL}:")


def _with_place(found: Diagnostic, folder: str) -> Diagnostic:
    what, remedy = place_of_nodes(folder)
    return replace(found, message=f"{_NO_NODEPOOL}{what}", hint=remedy)


def place_of_nodes(folder: str) -> tuple[str, str]:
    """Return which files below a folder without NodePools make some, and what to do about it."""
    for endings in (TAKEN_OVER, PROGRAMS):
        paths = list(islice(_files_of_nodes(folder, endings), 100))
        if not paths:
            continue
        more = f" (and {format_count(len(paths) - 1, 'more file')})" if paths[1:] else ""
        what = f", but {paths[0]}{more} has objects of Karpenter"
        if endings is PROGRAMS:
            return f"{what}, and no program is run", "run it, and pass the objects with -f"
        return f"{what}, which only `init --from` reads", (
            f"take them over: `reconciler init fleet --from {quote(folder)}`, or pass the output "
            "of `terraform show -json` with -f"
        )
    what = ", and no Terraform, template or program in it has objects of Karpenter"
    return f"{what}; an empty fleet is not planned", (
        "pass the folder that has them as PATH, read a cluster with --from-cluster, or start a "
        "fleet with `reconciler init fleet`"
    )


def _files_of_nodes(folder: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Yield the files with such an ending that have an object of Karpenter, or make one."""
    from reconciler.desired.sources.unread import makes_nodes

    for path in islice(_paths(folder, endings), _FILES_MAX):
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            with open(path, "rb") as file:
                content = file.read(_BYTES_MAX)
        except OSError:
            continue
        if makes_nodes(content):
            yield os.path.relpath(path, folder).replace(os.sep, "/")


def _paths(folder: str, endings: tuple[str, ...]) -> Iterator[str]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        yield from (os.path.join(here, name) for name in sorted(names) if name.endswith(endings))
