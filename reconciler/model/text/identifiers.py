"""Identifiers that git and forges give, checked where they come from an answer or an event."""

from __future__ import annotations

import re
from typing import Final

COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""The complete id of a commit, SHA-1 or SHA-256."""


def commit_or_empty(value: object) -> str:
    """Return the complete id of a commit, empty for anything else."""
    return value if isinstance(value, str) and COMMIT.fullmatch(value) else ""


def short_commit(commit: str) -> str:
    """Return a commit abbreviated as every text shows it; return any other text unchanged."""
    return commit[:8] if COMMIT.fullmatch(commit) else commit


def number_or_empty(value: object) -> str:
    """Return a number above zero as text, empty for anything else."""
    return str(value) if type(value) is int and value > 0 else ""
