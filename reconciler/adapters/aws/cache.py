"""Files that keep what AWS said, beside the state: losing them costs a few calls, nothing else."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from reconciler.adapters.nofollow import open_file, refuse_link
from reconciler.model.errors import StateError
from reconciler.model.settings import Settings

FOLDER: Final = "cache"
_LEVELS: Final = 2
"""How many folders above its own a ``Folder`` has made: that of the fleet, and ``cache``."""


class Folder:
    """A folder of small files, each written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes | None:
        """Return what was last written under a name, None where nothing can be read."""
        try:
            self._refuse_links()
            with os.fdopen(open_file(self.path / name, os.O_RDONLY), "rb") as file:
                return file.read()
        except (OSError, StateError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Keep content under a name; a disk that is full or read-only keeps nothing."""
        draft = self.path / f"{name}.{os.getpid()}.tmp"
        try:
            self._refuse_links()
            self.path.mkdir(parents=True, exist_ok=True)
            _write(self.path / ".gitignore", b"*\n")
            _write(draft, content)
            draft.replace(self.path / name)
        except (OSError, StateError):
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def _refuse_links(self) -> None:
        """Refuse folders that are links: what they lead to was not written by us."""
        for folder in (self.path, *list(self.path.parents)[:_LEVELS]):
            refuse_link(folder)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)


def folder_of(settings: Settings, place: str) -> Folder:
    """Return where the facts of a fleet are kept, below ``place``.

    Another region or endpoint is another market, and two fleets may be in two accounts.
    """
    market = sha256(f"{settings.region} {settings.endpoint_url}".encode()).hexdigest()[:8]
    return Folder(Path(place) / FOLDER / settings.fleet / f"{settings.region}-{market}")
