"""Identifiers that git and forges give, checked where they come from an answer or an event."""

from __future__ import annotations

import re
from typing import Final

COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""The complete id of a commit, SHA-1 or SHA-256."""

_FILES: Final = "tree-"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def commit_or_empty(value: object) -> str:
    """Return the complete id of a commit, empty for anything else."""
    return value if isinstance(value, str) and COMMIT.fullmatch(value) else ""


def short_commit(commit: str) -> str:
    """Return a commit abbreviated as every text shows it; return any other text unchanged.

    A recorded revision may name files beside the commit, or alone: ``COMMIT+DIGEST`` of a working
    tree with changes, ``tree-DIGEST`` of a folder outside git.
    """
    head, dirty, _ = commit.partition("+")
    if COMMIT.fullmatch(head):
        return f"{head[:8]} (dirty)" if dirty else head[:8]
    files = commit.removeprefix(_FILES)
    return f"files {files[:8]}" if _DIGEST.fullmatch(files) else commit


def name_revision(revision: str) -> str:
    """Return a recorded revision in a sentence: ``commit 4f2c9e1a``, or ``files 1b5c77ab``."""
    return (
        short_commit(revision)
        if revision.startswith(_FILES)
        else f"commit {short_commit(revision)}"
    )


def number_or_empty(value: object) -> str:
    """Return a number above zero as text, empty for anything else."""
    return str(value) if type(value) is int and value > 0 else ""
