"""Rendered manifests from files and from standard input, as ``-f`` and ``--from -`` name them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from reconciler.cli.shared.files import read_bytes
from reconciler.desired.fleet import SourceFile
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.errors import UnreadableError
from reconciler.source.document import LIMITS
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE

STDIN: Final = "stdin"


def with_manifests(
    files: Sequence[SourceFile], refused: Sequence[Diagnostic], manifests: Sequence[str],
    *, is_instead: bool,
) -> tuple[list[SourceFile], list[Diagnostic]]:  # fmt: skip
    """Return the files of a folder with manifests beside them, or instead of them.

    Raises:
        UnreadableError: one cannot be read.
    """
    if not manifests:
        return list(files), list(refused)
    kept = [f for f in files if not is_instead or f.path in (*CONFIG_FILES, LOCK_FILE)]
    return [*kept, *read_manifests(tuple(manifests))], [] if is_instead else list(refused)


@cache
def read_manifests(places: tuple[str, ...]) -> tuple[SourceFile, ...]:
    """Return rendered manifests; they are read once, because standard input can be.

    Raises:
        UnreadableError: one cannot be read, is empty or too large.
    """
    found = []
    for place in places:
        content = read_bytes(place)
        name = STDIN if place == "-" else place
        if not content.strip():
            raise UnreadableError("there is nothing to read", where=name,
                                  remedy="check the command that renders it")  # fmt: skip
        if len(content) > LIMITS.bytes_max and not content.lstrip().startswith(b"{"):
            raise UnreadableError(f"more than {LIMITS.bytes_max >> 20} MiB", where=name)
        found.append(SourceFile(name, content))
    return tuple(found)
