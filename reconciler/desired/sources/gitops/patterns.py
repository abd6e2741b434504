"""Patterns for the files of a folder in an Application (``directory.include`` and ``exclude``).

Argo CD matches them against the path below the folder, with github.com/gobwas/glob and without a
separator: ``*`` also stands for slashes.
"""

from __future__ import annotations

import fnmatch
from functools import lru_cache
from typing import Final

from reconciler.model.text.globs import alternatives, matching_steps

_ALTERNATIVES_MAX: Final = 100


def is_kept(path: str, include: str, exclude: str) -> bool:
    """Return whether a file is read: one that ``include`` names, if given, and ``exclude`` not."""
    if exclude and matches(path, exclude):
        return False
    return not include or matches(path, include)


def matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern, in which ``{a,b}`` are alternatives."""
    return any(fnmatch.fnmatchcase(path, one) for one in _alternatives(pattern))


def steps_of(pattern: str) -> int:
    """Return a measure of the work of matching a path."""
    return sum(map(matching_steps, _alternatives(pattern)))


@lru_cache(maxsize=16)
def _alternatives(pattern: str) -> tuple[str, ...]:
    """Return a pattern without braces for each choice in them, at most a hundred."""
    return tuple(alternatives(pattern, _ALTERNATIVES_MAX))
