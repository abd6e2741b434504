"""Paths in a tree of files: relative, with slashes, and ``.`` for the top."""

from __future__ import annotations


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or anything in it."""
    return folder in (".", path) or path.startswith(f"{folder}/")
