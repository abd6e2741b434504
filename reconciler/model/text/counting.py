"""Numbers of things, as every text writes them: ``1 node``, ``1,200 EC2NodeClasses``."""

from __future__ import annotations

from collections.abc import Iterable


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun; ``plural`` is for one that is not regular."""
    return f"{number:,} {noun if number == 1 else plural or pluralize(noun)}"


def pluralize(noun: str) -> str:
    """Return the plural of a noun or of a kind of object: ``NodePools``, ``EC2NodeClasses``."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def format_list(names: Iterable[str], most: int = 5) -> str:
    """Return the first names, and the number of others."""
    every = list(names)
    if len(every) <= most + 1:
        return ", ".join(every)
    return f"{', '.join(every[:most])} and {len(every) - most:,} more"
