"""One object of a fleet folder as it was written, and the files that hold no objects."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

CONFIG_FILES: Final = ("reconciler.yaml", "reconciler.yml")
LOCK_FILE: Final = "reconciler.lock"
"""At the top of the fleet folder: what a look at AWS found (see ``lock``)."""


class Resource(NamedTuple):
    """One object as it was written, without nulls; ``line`` is where it starts in ``file``."""

    kind: str
    api_version: str
    name: str
    namespace: str
    data: dict[str, Any]
    file: str
    line: int

    @property
    def order(self) -> tuple[str, str, str]:
        return (self.kind, self.namespace, self.name)
