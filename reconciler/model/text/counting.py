"""Numbers of things, as every text writes them: ``1 node``, ``1,200 EC2NodeClasses``."""

from __future__ import annotations


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun; ``plural`` is for one that is not regular."""
    return f"{number:,} {noun if number == 1 else plural or pluralize(noun)}"


def pluralize(noun: str) -> str:
    """Return the plural of a noun or of a kind of object: ``NodePools``, ``EC2NodeClasses``."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"
