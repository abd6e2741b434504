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
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.pods import Pods
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.state import CommandPhase, RunningCommand

SETTLES_WITHIN: Final = timedelta(minutes=5)
"""How long a command keeps consolidation waiting: a drain that is blocked may last for days."""


def unsettled(
    snapshot: Snapshot, commands: Iterable[RunningCommand], now: datetime
) -> frozenset[str]:
    """Return the NodeClaims that consolidation removes and whose pods have not all moved yet.

    Commands that started more than ``SETTLES_WITHIN`` ago do not count.
    """
    recent = [
        command
        for command in commands
        if command.reason == DisruptionReason.UNDERUTILIZED
        and command.phase in _PHASES
        and abs(now - command.started_at) < SETTLES_WITHIN
    ]
    named = {name: command.phase for command in recent for name in command.node_claims}
    if not named:
        return frozenset()
    by_node = Pods.of(snapshot.pods).by_node
    return frozenset(
        claim.name
        for claim in snapshot.node_claims
        if claim.name in named
        and (
            named[claim.name] is not CommandPhase.TERMINATING
            or any(map(_moves, by_node.get(claim.status.node_name, ())))
        )
    )


def _moves(pod: Pod) -> bool:
    """Return whether a pod has still to leave its node; one that is terminating has not left."""
    return not (pod.is_daemon or pod.is_mirror or pod.is_terminal)


_PHASES: Final = (CommandPhase.MARKED, CommandPhase.WAITING, CommandPhase.TERMINATING)
