"""What the process that fetches is asked, and what it reports (``fetching``), without GitPython."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FetchRequest(NamedTuple):
    """What to fetch into the bare clone at ``place``, which is created if it does not exist.

    ``ref`` is the name of the wanted commit, as the clone has it; empty leaves out the list of new
    commits.
    """

    place: str
    target: str
    refspecs: Sequence[str]
    ref: str = ""


class FetchReport(NamedTuple):
    """A line of the process: how far a fetch is, or which commits are new after it."""

    stage: str = ""
    done: int = 0
    total: int = 0
    commits: int = 0
    subjects: Sequence[str] = ()
