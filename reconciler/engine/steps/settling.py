"""Settling: whether the last commands of consolidation have had their full effect.

A replacement that is still starting takes no pods, and a node that is being drained still holds
some. If consolidation continued meanwhile, it would miss the room that its own commands make, move
the same pods again, and end at a more expensive fleet. It would also evaluate every node again with
each step of a single one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.ports.state import CommandPhase, RunningCommand

SETTLES_WITHIN: Final = timedelta(minutes=5)
"""How long a command keeps consolidation waiting: a drain that is blocked may last for days."""


def unsettled(commands: Iterable[RunningCommand], now: datetime) -> frozenset[str]:
    """Return the NodeClaims that running consolidation commands remove.

    Commands that started more than ``SETTLES_WITHIN`` ago do not count.
    """
    return frozenset(
        name
        for command in commands
        if command.reason == DisruptionReason.UNDERUTILIZED
        and command.phase in _RUNNING
        and abs(now - command.started_at) < SETTLES_WITHIN
        for name in command.node_claims
    )


_RUNNING: Final = (CommandPhase.MARKED, CommandPhase.WAITING, CommandPhase.TERMINATING)
