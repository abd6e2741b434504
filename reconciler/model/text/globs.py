"""Patterns of shells for paths, as repositories write them: they may be of any size.

A pattern is compiled before it matches anything, in time that grows with its length, and with the
square of it where brackets are not closed.
"""

from __future__ import annotations

import re
from typing import Final

PATTERN_MAX: Final = 1_000
"""The length of the longest pattern that is matched."""
_CHOICE: Final = re.compile(r"\{([^{}]*+)\}")
_CHARACTERS_OF_A_STEP: Final = 50


def alternatives(pattern: str, most: int) -> list[str]:
    """Return a pattern without braces for each choice in them, at most ``most``.

    A pattern that is too long has none.
    """
    if len(pattern) > PATTERN_MAX:
        return []
    found, done = [pattern], 0
    while done < len(found) < most:
        one = found[done]
        match = _CHOICE.search(one)
        if match is None:
            done += 1
            continue
        before, after = one[: match.start()], one[match.end() :]
        found[done : done + 1] = [f"{before}{choice}{after}" for choice in match[1].split(",")]
    return found[:most]


def matching_steps(pattern: str) -> int:
    """Return a measure of the work of matching a pattern without braces."""
    return 1 + len(pattern) * (1 + pattern.count("[")) // _CHARACTERS_OF_A_STEP
