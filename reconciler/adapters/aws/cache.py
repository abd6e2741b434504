"""Files that keep what AWS said, beside the state: losing them costs a few calls, nothing else."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from reconciler.model.settings import Settings

FOLDER: Final = "cache"


class Folder:
    """A folder of small files, each written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes | None:
        """Return what was last written under a name, None where nothing can be read."""
        try:
            return (self.path / name).read_bytes()
        except OSError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Keep content under a name; a disk that is full or read-only keeps nothing."""
        draft = self.path / f"{name}.{os.getpid()}.tmp"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / ".gitignore").write_text("*\n", encoding="ascii")
            draft.write_bytes(content)
            draft.replace(self.path / name)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def folder_of(settings: Settings, place: str) -> Folder:
    """Return where the facts of a fleet are kept, below ``place``.

    Another region or endpoint is another market, and two fleets may be in two accounts.
    """
    market = sha256(f"{settings.region} {settings.endpoint_url}".encode()).hexdigest()[:8]
    return Folder(Path(place) / FOLDER / settings.fleet / f"{settings.region}-{market}")
