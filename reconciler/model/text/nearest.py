"""The word that was probably meant, for the end of a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LIKE: Final = 0.6
"""The least likeness, from 0 to 1, at which a word is worth proposing."""

_LONGEST: Final = 200


def nearest(word: object, known: Iterable[object], cutoff: float = LIKE) -> str | None:
    """Return the known word that is most like ``word``, None where none is; case does not count.

    ``cutoff`` is the least likeness, from 0 to 1.
    """
    if not isinstance(word, str) or len(word) > _LONGEST:
        return None
    lowered = {str(k).lower(): str(k) for k in known}
    possible = [k for k in lowered if _likeness_at_most(word.lower(), k) >= cutoff]
    if not possible:
        return None
    from difflib import get_close_matches  # slow to load, so only if a word is near

    near = get_close_matches(word.lower(), possible, n=1, cutoff=cutoff)
    return lowered[near[0]] if near else None


def _likeness_at_most(one: str, other: str) -> float:
    """Return what likeness two words have if their letters stand in the same order."""
    shared = sum(min(one.count(letter), other.count(letter)) for letter in set(one))
    return 2 * shared / ((len(one) + len(other)) or 1)


def did_you_mean(
    word: object, known: Iterable[object], otherwise: str = "", cutoff: float = LIKE
) -> str:
    """Return ``did you mean …?`` where a known word is near, else ``otherwise``."""
    near = nearest(word, known, cutoff)
    return f"did you mean {near}?" if near else otherwise
