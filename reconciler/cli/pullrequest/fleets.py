"""The fleets of a repository, and those among them that a pull request changes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from reconciler.model.errors import UsageError
from reconciler.source.resource import CONFIG_FILES

FLEETS_MAX: Final = 50
_FOLDERS_MAX: Final = 20_000
_DEPTH_MAX: Final = 12
_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "vendor"})


class FleetChange(NamedTuple):
    """A fleet to plan. ``base`` is None where the fleet is new, or nothing is compared with."""

    folder: str
    base: str | None


def fleets_below(folder: str) -> list[str]:
    """Return the folders with a ``reconciler.yaml``, in order; a fleet contains no other.

    Raises:
        UsageError: there are more than ``FLEETS_MAX``.
    """
    found = sorted(_search(folder))
    if len(found) > FLEETS_MAX:
        message = f"{len(found)} fleets; at most {FLEETS_MAX} are planned at once"
        raise UsageError(message, where=folder, remedy="name the fleets to plan")
    return found


def _search(folder: str) -> Iterator[str]:
    seen = 0
    top = folder.rstrip(os.sep).count(os.sep)
    for path, folders, files in os.walk(folder):
        seen += 1
        if seen > _FOLDERS_MAX:
            remedy = "name the fleets to plan"
            raise UsageError(f"more than {_FOLDERS_MAX:,} folders", where=folder, remedy=remedy)
        if any(name in files for name in CONFIG_FILES):
            folders.clear()
            yield os.path.normpath(path)
            continue
        kept = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
        folders[:] = kept if path.count(os.sep) - top < _DEPTH_MAX else []


def changed_fleets(fleets: Sequence[str], base: str | None) -> list[FleetChange]:
    """Return the fleets whose files differ from those of ``base``; all of them without one.

    A fleet whose folder is gone has nothing to plan and is left out.

    Raises:
        UsageError: ``base`` is not a commit of the repository, or a folder never existed.
    """
    missing = next((fleet for fleet in fleets if not os.path.isdir(fleet)), None)
    if missing is not None and not (base and _was_there(missing, base)):
        remedy = "pass the folder of a fleet"
        raise UsageError(f'folder "{missing}" does not exist', where="FLEET", remedy=remedy)
    there = [fleet for fleet in fleets if os.path.isdir(fleet)]
    if base is None:
        return [FleetChange(fleet, None) for fleet in there]
    from reconciler.adapters.git.changed import changed_files
    from reconciler.adapters.git.repository import find

    if not there:
        return []
    repository = find(there[0])
    top = os.path.realpath(repository.top) if repository is not None else os.path.realpath(".")
    below = {fleet: os.path.relpath(os.path.realpath(fleet), top) for fleet in there}
    folders = tuple(path.replace(os.sep, "/") for path in below.values())
    changes = changed_files(there[0], base, folders)
    return [
        FleetChange(fleet, changes.base if folder in changes.known else None)
        for fleet, folder in zip(there, folders, strict=True)
        if any(folder == "." or path.startswith(f"{folder}/") for path in changes.paths)
    ]


def _was_there(fleet: str, base: str) -> bool:
    """Return whether the base has a folder that the head has removed."""
    from reconciler.adapters.git.changed import changed_files
    from reconciler.adapters.git.repository import find

    repository = find(".")
    if repository is None:
        return False
    folder = os.path.relpath(os.path.realpath(fleet), os.path.realpath(repository.top))
    folder = folder.replace(os.sep, "/")
    return folder in changed_files(".", base, (folder,)).known
