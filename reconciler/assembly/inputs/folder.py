"""Finds the fleet folder: the named one, or the nearest parent with a ``reconciler.yaml``."""

from __future__ import annotations

import os
from typing import Final

from reconciler.model.errors import UsageError
from reconciler.source.resource import CONFIG_FILES

_REPOSITORY: Final = ".git"


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
