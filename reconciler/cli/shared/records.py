"""Opens the recorded state for the commands that read it: its location and its fleet.

Of the fleet folder only its config is read: a command that looks back must work while the
folder's desired state is broken, or is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reconciler.cli.shared import operatorfile

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.adapters.database.state import DatabaseState
    from reconciler.cli.shared.request import StateRequest
    from reconciler.desired.settings.layers import Resolved

FOLDER: Final = ".reconciler"
"""The state directory within the fleet folder, where nothing names another place."""


def name_and_path(words: Sequence[str]) -> tuple[str | None, str | None]:
    """Return which of the words ``[NAME] [PATH]`` is which; one alone is a path if it looks so.

    Raises:
        UsageError: there are more than two.
    """
    if len(words) > 2:
        from reconciler.model.errors import UsageError

        raise UsageError(f"unexpected argument {words[2]!r}", remedy="pass only NAME and PATH")
    if len(words) == 1 and _is_path(words[0]):
        return None, words[0]
    name, path = (*words, None, None)[:2]
    return name, path


def _is_path(word: str) -> bool:
    """Return whether a word means a folder: by its form, or as a folder that is a fleet's.

    A folder that only happens to be called like a node pool is not meant.
    """
    from reconciler.source.resource import CONFIG_FILES

    if word.startswith((".", os.sep)):
        return True
    folder = Path(word)
    if not folder.is_dir():
        return False
    return os.sep in word or any((folder / name).exists() for name in (FOLDER, *CONFIG_FILES))


@dataclass(frozen=True, slots=True)
class Recorded:
    """The state of one fleet, open for reading; ``where`` is how a message names it."""

    state: DatabaseState
    fleet: str
    where: str
    now: datetime


@contextmanager
def recorded(
    request: StateRequest, *, create: bool = False, needs_lease: bool = True
) -> Iterator[Recorded]:
    """Open the state that the request names.

    Where nothing names the fleet and the state knows only one, that one is meant. Writing needs
    the lease, unless ``needs_lease`` is False.

    Raises:
        StateError: it cannot be used, or does not know the fleet.
    """
    from reconciler.adapters.database.state import open_state
    from reconciler.cli.shared.moment import present

    now = present(request.now)
    resolved = settings_of(request)
    location, fleet = state_location(request.path, resolved), resolved.settings.fleet
    with open_state(location, fleet, create=create, needs_lease=needs_lease) as state:
        known = state.history.fleets()
        meant = fleet if create else _meant(fleet, known, resolved, state.database.place)
        if meant == fleet:
            yield Recorded(state, fleet, state.database.place, now)
            return
    with open_state(location, meant, create=create, needs_lease=needs_lease) as state:
        yield Recorded(state, meant, state.database.place, now)


def is_recorded(request: StateRequest) -> bool:
    """Return whether the state that the request names knows their fleet; nothing is created.

    Raises:
        StateError: there is a state, and it cannot be used.
    """
    from reconciler.adapters.database.location import may_exist
    from reconciler.adapters.database.state import open_state

    resolved = settings_of(request)
    location, fleet = state_location(request.path, resolved), resolved.settings.fleet
    if not may_exist(location):
        return False
    with open_state(location, fleet, create=False) as state:
        return fleet in state.history.fleets()


def _meant(fleet: str, known: Sequence[str], resolved: Resolved, place: str) -> str:
    """Return the fleet to read."""
    from reconciler.desired.settings.layers import DEFAULT
    from reconciler.model.errors import StateError

    if fleet in known:
        return fleet
    if not known:
        raise StateError(
            "no recorded state in this folder yet",
            where=place,
            remedy="it is created by the first `reconciler apply` or `run`",
        )
    if len(known) == 1 and resolved.origins["fleet"] == DEFAULT:
        return known[0]
    raise StateError(
        f"fleet {fleet} has no recorded state here; recorded fleets: {', '.join(known)}",
        where=place,
        remedy="select one with --set fleet=NAME",
    )


def state_location(path: str | None, resolved: Resolved) -> str:
    """Return the folder or URL of the state.

    A relative folder in ``reconciler.yaml`` is meant from the fleet folder, one on the command
    line or in the environment from where the command runs.

    Raises:
        StateError: git tracks something of the folder, or a link leads to it: a state that comes
            with a repository is never used.
    """
    location = _location(path, resolved)
    if "://" not in location:
        _refuse_strangers(location, path or ".")
    return location


def _location(path: str | None, resolved: Resolved) -> str:
    from reconciler.desired.settings.layers import Layer

    folder, state = Path(path or "."), resolved.settings.state
    if not state:
        return str(folder / FOLDER)
    if "://" in state or resolved.origins["state"].layer is not Layer.FILE:
        return state
    return str(folder / state)


def _refuse_strangers(location: str, folder: str) -> None:
    from reconciler.adapters.git.repository import tracked_in
    from reconciler.adapters.nofollow import refuse_link
    from reconciler.model.errors import StateError

    top, place = Path(os.path.abspath(folder)), Path(os.path.abspath(location))
    for step in (place, *place.parents):
        if top in step.parents:
            refuse_link(step)
    tracked = tracked_in(location)
    if tracked is not None:
        raise StateError(
            f"git tracks {tracked}; for safety, state that comes with a repository is never used",
            where=location,
            remedy="run `git rm -r --cached` on it, or pass another location with --state",
        )


def cache_place(path: str | None, resolved: Resolved) -> str:
    """Return the folder for cached responses of AWS: the state's, else the user's cache."""
    from reconciler.model.errors import ReconcilerError

    with suppress(ReconcilerError):  # a state that is not trusted keeps no answers either
        location = state_location(path, resolved)
        if "://" not in location:
            return location
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(home, "reconciler")


def settings_of(request: StateRequest) -> Resolved:
    """Return the effective settings of the fleet in a folder.

    Raises:
        UnreadableError: the folder does not exist, or its config cannot be read.
        InvalidFleetError: its config has errors.
        UsageError: a setting is wrong.
    """
    from reconciler.desired.settings.layers import resolve

    folder = Path(os.path.realpath(request.path or "."))
    flags = [*([f"state={request.state}"] if request.state else []), *request.settings]
    operator = operatorfile.read_operator_file(request.config, str(folder))
    return resolve(_config(folder), os.environ, flags, fleet=folder.name, operator=operator)


def _config(folder: Path) -> dict[str, Any]:
    """Return the data of the folder's config, empty where there is none."""
    from reconciler.desired.fleet import SourceFile, read_fleet
    from reconciler.model.diagnostics import Severity
    from reconciler.model.errors import InvalidFleetError, UnreadableError
    from reconciler.source.resource import CONFIG_FILES

    if not folder.is_dir():
        raise UnreadableError(
            f'folder "{folder}" does not exist', remedy="pass the fleet folder as PATH"
        )
    name = next((n for n in CONFIG_FILES if (folder / n).is_file()), None)
    if name is None:
        return {}
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), where=str(folder / name)) from error
    fleet, findings = read_fleet([SourceFile(name, content)], allow_empty=True)
    if any(f.severity is Severity.ERROR for f in findings):
        raise InvalidFleetError(findings)
    return fleet.config
