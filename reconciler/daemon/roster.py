"""Which fleets a process serves: those named on the command line, and those below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from reconciler.model.errors import UsageError
from reconciler.model.text.paths import is_below
from reconciler.source.resource import CONFIG_FILES

if TYPE_CHECKING:
    from reconciler.adapters.git.source import Source
    from reconciler.assembly.inputs.request import FleetRequest

FLEETS_MAX: Final = 200
_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "vendor"})


def has_fleets_below(request: FleetRequest) -> bool:
    """Return whether a request names a folder that is not a fleet but contains fleets.

    Raises:
        UnreadableError: the repository cannot be read.
        UsageError: the ref or the folder is not one.
    """
    if request.repo is None:
        top = _folder(request)
        if any(os.path.lexists(os.path.join(top, name)) for name in CONFIG_FILES):
            return False
        if not os.path.isdir(top):
            return False
    folders = _fleet_folders(request, follows_files=True)
    return bool(folders) and folders != ["."]


@dataclass
class FleetRoster:
    """The fleets that the requests name, which may change with every commit.

    With ``follows_files`` the files of a working tree count, else its commits.
    """

    requests: tuple[FleetRequest, ...]
    follows_files: bool
    _directories: dict[int, str] = field(default_factory=dict, init=False)
    _known: dict[int, list[str]] = field(default_factory=dict, init=False)

    def read(self) -> dict[str, FleetRequest]:
        """Return the request of each fleet by its folder, in order.

        Raises:
            UnreadableError: a repository cannot be read: nothing is known of its fleets.
            UsageError: there are more than ``FLEETS_MAX`` fleets.
        """
        found = dict(self._fleets())
        if len(found) > FLEETS_MAX:
            message = f"{len(found)} fleets; one process serves at most {FLEETS_MAX}"
            raise UsageError(message, remedy="divide them among several processes")
        return found

    def _fleets(self) -> Iterator[tuple[str, FleetRequest]]:
        for number, request in enumerate(self.requests):
            if number not in self._directories and not has_fleets_below(request):
                yield _display_folder(request), request
                continue
            for below in self._folders_below(number, request):
                inside = _request_below(request, below)
                yield _display_folder(inside), inside

    def _folders_below(self, number: int, request: FleetRequest) -> list[str]:
        """Return the folders of the fleets below a directory, read again when its commit moved."""
        from reconciler.adapters.git.source import WorkingTree, head_of

        source = _source(request, follows_files=self.follows_files)
        head = "" if isinstance(source, WorkingTree) else head_of(source) or ""
        if not head or self._directories.get(number) != head:
            self._known[number] = _fleet_folders(request, follows_files=self.follows_files)
            self._directories[number] = head
        return self._known[number]


def _folder(request: FleetRequest) -> str:
    return os.path.join(request.path or ".", request.below or "")


def _display_folder(request: FleetRequest) -> str:
    """Return the folder of a fleet as messages name it."""
    if request.repo is not None:
        return request.below or "."
    return os.path.normpath(_folder(request))


def _request_below(request: FleetRequest, below: str) -> FleetRequest:
    """Return the request for a fleet in a folder of a directory."""
    if request.repo is not None:
        return replace(request, below=os.path.normpath(os.path.join(request.below or ".", below)))
    return replace(
        request, path=os.path.normpath(os.path.join(_folder(request), below)), below=None
    )


def _source(request: FleetRequest, *, follows_files: bool) -> Source:
    from reconciler.adapters.git.repository import find_repository
    from reconciler.adapters.git.source import WorkingTree
    from reconciler.assembly.inputs.sources import source_of

    source = source_of(request)
    is_tree = isinstance(source, WorkingTree)
    if not is_tree or follows_files or find_repository(source.path) is None:
        return source
    return source_of(request, "HEAD")


def _fleet_folders(request: FleetRequest, *, follows_files: bool) -> list[str]:
    """Return the folders with a configuration; a fleet contains no other."""
    from reconciler.adapters.git.source import find_folders

    chosen: list[str] = []
    for folder in find_folders(_source(request, follows_files=follows_files), CONFIG_FILES):
        parts = folder.split("/")
        if not _SKIPPED.isdisjoint(parts):
            continue
        if any(is_below(folder, other) for other in chosen):
            continue
        chosen.append(folder)
    return chosen
