"""The reboots of a node: how many there were, and what repair waits for after one.

A node that was rebooted twice within a day is replaced (Karpenter 1.15
``pkg/controllers/disruption/repair_history.go``). Karpenter counts them in memory; here the
NodeClaim has their times, which a restart of the process does not lose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.methods.repairpolicy import RepairMatch
from reconciler.model.karpenter.nodeclaim import REBOOTING, NodeClaim

REBOOTS_BEFORE_REPLACEMENT: Final = 2
COUNTED_FOR: Final = timedelta(hours=24)
REBOOT_TIMES: Final = "RebootTimes"
"""The condition of a NodeClaim whose message has the times of its reboots, oldest first."""


def recent_reboots(claim: NodeClaim, now: datetime) -> tuple[datetime, ...]:
    """Return when the node was rebooted within ``COUNTED_FOR``, oldest first."""
    return tuple(end - COUNTED_FOR for end in reboots_forgotten_at(claim) if now < end)


def reboots_forgotten_at(claim: NodeClaim) -> tuple[datetime, ...]:
    """Return when each reboot of the node no longer counts, oldest first."""
    known = claim.condition(REBOOT_TIMES)
    times = map(datetime.fromisoformat, known.message.split()) if known is not None else ()
    return tuple(at + COUNTED_FOR for at in times)


def tolerated_since_reboot(
    matches: Iterable[RepairMatch], claim: NodeClaim
) -> tuple[RepairMatch, ...]:
    """Return the matches with a toleration that begins no earlier than the last reboot ended.

    What reports the conditions may not have noticed yet that the node was rebooted.
    """
    last = claim.condition(REBOOTING)
    ended = last.last_transition_time if last is not None and last.status == "False" else None
    if ended is None:
        return tuple(matches)
    return tuple(
        replace(match, tolerated_until=max(match.tolerated_until, ended + match.policy.after))
        for match in matches
    )
