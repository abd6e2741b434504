"""Suggestions for a misspelled word, for the end of a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SIMILARITY_MIN: Final = 0.6
"""The minimum similarity, from 0 to 1, of a word that is suggested."""

_LENGTH_MAX: Final = 200


def nearest(word: object, known: Iterable[object], cutoff: float = SIMILARITY_MIN) -> str | None:
    """Return the known word that is most similar to ``word``, or None; case does not count.

    ``cutoff`` is the minimum similarity, from 0 to 1.
    """
    if not isinstance(word, str) or len(word) > _LENGTH_MAX:
        return None
    lowered = {str(k).lower(): str(k) for k in known}
    possible = [k for k in lowered if _similarity_bound(word.lower(), k) >= cutoff]
    if not possible:
        return None
    from difflib import get_close_matches  # slow to load, so only if a word is near

    near = get_close_matches(word.lower(), possible, n=1, cutoff=cutoff)
    return lowered[near[0]] if near else None


def _similarity_bound(word: str, other: str) -> float:
    """Return an upper bound of the similarity: that of the words' letters without their order."""
    shared = sum(min(word.count(letter), other.count(letter)) for letter in set(word))
    return 2 * shared / ((len(word) + len(other)) or 1)


def did_you_mean(
    word: object, known: Iterable[object], otherwise: str = "", cutoff: float = SIMILARITY_MIN
) -> str:
    """Return ``did you mean …?`` with a similar known word, or ``otherwise`` if there is none."""
    near = nearest(word, known, cutoff)
    return f"did you mean {near}?" if near else otherwise
