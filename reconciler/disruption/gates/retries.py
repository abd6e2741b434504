"""Back off after failed attempts to replace a node.

A command whose replacements do not all become ready is rolled back. Karpenter starts it again in
its next pass: while a zone has no capacity, or nodes fail to start, it repeatedly launches nodes
that nobody uses. The first retry is immediate, because another choice of types often works. After
that the delay increases with each attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.model.karpenter.nodeclaim import NodeClaim

REPLACEMENT_FAILED: Final = "ReplacementFailed"
"""Condition of a claim in our records: message and reason are the attempts and the revision."""

_FIRST_PAUSE: Final = timedelta(minutes=15)
_LONGEST_PAUSE: Final = timedelta(hours=4)


def failed_attempts(claim: NodeClaim) -> int:
    """Return how often replacing or tainting the node has failed."""
    known = claim.condition(REPLACEMENT_FAILED)
    return int(known.message) if known is not None else 0


def rests_until(claim: NodeClaim) -> datetime | None:
    """Return the time from which the node may be replaced again; None if there is no delay."""
    known = claim.condition(REPLACEMENT_FAILED)
    times = failed_attempts(claim)
    if known is None or known.last_transition_time is None or times < 2:
        return None
    doublings = min(times - 2, 10)  # the maximum delay applies beyond that
    pause: timedelta = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
    return known.last_transition_time + pause


def resting(candidates: Sequence[Candidate], now: datetime) -> tuple[datetime, str] | None:
    """Return until when one of the nodes is delayed, and a message."""
    until = [(at, c) for c in candidates if (at := rests_until(c.claim)) is not None and now < at]
    if not until:
        return None
    at, candidate = max(until, key=lambda row: (row[0], row[1].name))
    times = failed_attempts(candidate.claim)
    text = (
        f"replacing {candidate.name} failed {times} times; the next attempt waits until "
        f"{at:%Y-%m-%d %H:%M %Z} or until the next commit is synced"
    )
    return at, text
