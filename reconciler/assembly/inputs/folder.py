"""Finds the fleet folder: the named one, or the nearest parent with a ``reconciler.yaml``.

If a folder has no NodePool, its Terraform, templates and programs may make some.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Final

from reconciler.model.errors import MissingFleetError, UsageError
from reconciler.model.text.counting import format_count
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from reconciler.adapters.git.source import Expand, Source, SourceContent
    from reconciler.desired.fleet import SourceFile
    from reconciler.model.diagnostics import Diagnostic

_REPOSITORY: Final = ".git"
_TAKEN_OVER: Final = (".tf", ".tftpl", ".tpl", ".tmpl", ".j2", ".gotmpl", ".template", ".sh")
"""Endings of files that `init --from` reads."""
_PROGRAMS: Final = (".ts", ".js", ".py", ".go", ".cs", ".java", ".cue", ".jsonnet", ".libsonnet")
_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "vendor", "venv"})
_FILES_MAX: Final = 20_000
_BYTES_MAX: Final = 2**20
_NO_NODEPOOL: Final = "no NodePool in this folder"


def fleet_folder(path: str | None, below: str | None = None) -> str | None:
    """Return the folder of the fleet; None is the current folder.

    Without a ``path`` the nearest folder that holds a ``reconciler.yaml`` is the fleet. ``below``
    is a folder within ``path``.

    Raises:
        UsageError: the named folder is inside a fleet, and is not itself a fleet.
    """
    if path is None and below is None:
        found = _nearest_fleet_folder(".")
        return None if found in (None, ".") else found
    named = os.path.join(path or ".", below) if below else path or "."
    found = _nearest_fleet_folder(named)
    if found is not None and found != named:
        raise UsageError(
            f'folder "{named}" is inside the fleet "{found}"',
            where="--path" if below else "PATH",
            remedy=f"pass the complete fleet: {found}",
        )
    return path


def is_in_fleet() -> bool:
    """Return whether the current folder is a fleet, or is inside one."""
    return _nearest_fleet_folder(".") is not None


def _nearest_fleet_folder(folder: str) -> str | None:
    """Return ``folder`` or the nearest one above it with a ``reconciler.yaml``; None if none has.

    The search ends at the root of the repository. A file of another user is not trusted: anyone who
    can write to a shared folder such as ``/tmp`` must not configure the fleets below it.
    """
    try:
        owner = os.stat(folder).st_uid
    except (OSError, ValueError):
        return None
    absolute, shown = os.path.realpath(folder), folder
    while True:
        if _has_config(absolute, owner):
            return shown
        above = os.path.dirname(absolute)
        if os.path.lexists(os.path.join(absolute, _REPOSITORY)) or above == absolute:
            return None
        absolute = above
        shown = _relative_path(absolute)


def _has_config(folder: str, owner: int) -> bool:
    for name in CONFIG_FILES:
        try:
            if os.lstat(os.path.join(folder, name)).st_uid == owner:
                return True
        except OSError:
            continue
    return False


def _relative_path(folder: str) -> str:
    """Return a path below the current folder in its relative form, any other unchanged."""
    below = os.path.relpath(folder)
    return folder if below.split(os.sep, 1)[0] == os.pardir else below


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
    for endings in (_TAKEN_OVER, _PROGRAMS):
        paths = list(islice(_files_of_nodes(folder, endings), 100))
        if not paths:
            continue
        more = f" (and {format_count(len(paths) - 1, 'more file')})" if paths[1:] else ""
        what = f", but {paths[0]}{more} has objects of Karpenter"
        if endings is _PROGRAMS:
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
