"""Patterns for the files of a folder in an Application (``directory.include`` and ``exclude``).

Argo CD matches them against the path below the folder, with github.com/gobwas/glob and without a
separator: ``*`` also stands for slashes.
"""

from __future__ import annotations

import fnmatch
from typing import Final

_ALTERNATIVES_MAX: Final = 100


def is_kept(path: str, include: str, exclude: str) -> bool:
    """Return whether a file is read: one that ``include`` names, if given, and ``exclude`` not."""
    if exclude and matches(path, exclude):
        return False
    return not include or matches(path, include)


def matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern, in which ``{a,b}`` are alternatives."""
    return any(fnmatch.fnmatchcase(path, one) for one in _alternatives(pattern))


def _alternatives(pattern: str) -> list[str]:
    """Return a pattern without braces for each choice in them, at most a hundred."""
    found, done = [pattern], 0
    while done < len(found) and len(found) < _ALTERNATIVES_MAX:
        end = found[done].find("}")
        start = found[done].rfind("{", 0, max(end, 0))
        if start < 0:
            done += 1
            continue
        one = found[done]
        found[done : done + 1] = [
            one[:start] + choice + one[end + 1 :] for choice in one[start + 1 : end].split(",")
        ]
    return found[:_ALTERNATIVES_MAX]
