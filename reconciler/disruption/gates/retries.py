"""How long a node is left alone after its replacements were launched for nothing.

A command whose replacements do not all come is rolled back, and Karpenter begins it again in its
next pass: for as long as a zone has no capacity, or nodes do not come up, something is launched
again and again that nobody will use. The first try is repeated at once, because another choice of
types often does it; after that a node waits longer each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.model.karpenter.nodeclaim import NodeClaim

IN_VAIN: Final = "ReplacedInVain"
"""Condition of a claim in our records; its message says how often, its reason at which revision."""

_FIRST_PAUSE: Final = timedelta(minutes=15)
_LONGEST_PAUSE: Final = timedelta(hours=4)


def failed_attempts(claim: NodeClaim) -> int:
    """Return how often the node was to go and stayed: nothing could replace or taint it."""
    known = claim.condition(IN_VAIN)
    return int(known.message) if known is not None else 0


def rests_until(claim: NodeClaim) -> datetime | None:
    """Return from when on the node may be replaced again; None where it never had to wait."""
    known = claim.condition(IN_VAIN)
    times = failed_attempts(claim)
    if known is None or known.last_transition_time is None or times < 2:
        return None
    doublings = min(times - 2, 10)  # beyond that the longest pause holds anyhow
    pause: timedelta = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
    return known.last_transition_time + pause


def resting(candidates: Sequence[Candidate], now: datetime) -> tuple[datetime, str] | None:
    """Return until when one of the nodes is left alone, and what there is to say of it."""
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
