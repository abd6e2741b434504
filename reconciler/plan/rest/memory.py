"""What the guards that count over time remember of a fleet that is carried on in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import replace

from reconciler.disruption.command import Command
from reconciler.disruption.guards import WAVE_REASONS, staying, wave_size
from reconciler.model.duration import parse_duration
from reconciler.model.history import DAY, History, Move, Rollout, Taken
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState


def remembered(
    history: History,
    commands: Iterable[Command],
    cluster: ClusterState,
    settings: Settings,
    now: datetime,
    done: datetime,
) -> History:
    """Return what is remembered once the commands of ``now`` have come to their end at ``done``.

    ``cluster`` is that of before. All is well with what a wave has moved.
    """
    pools = {n.claim.name: n.node_pool for n in cluster.nodes if n.claim is not None}
    rollouts = {rollout.node_pool: rollout for rollout in history.rollouts}
    taken = [row for row in history.taken if now - row.at < DAY]
    for command in commands:
        if command.is_forceful:
            continue
        counts = Counter(pools.get(name, "") for name in command.node_claims)
        for pool, nodes in sorted(counts.items()):
            taken.append(Taken(now, pool, nodes))
            if command.reason in WAVE_REASONS and settings.option(pool, "wave_size"):
                known = rollouts.get(pool) or Rollout(pool)
                rollouts[pool] = _moved(known, command, nodes, cluster, settings, now, done)
    ordered = tuple(rollouts[pool] for pool in sorted(rollouts))
    return replace(history, taken=tuple(taken), rollouts=ordered)


def _moved(
    rollout: Rollout,
    command: Command,
    nodes: int,
    cluster: ClusterState,
    settings: Settings,
    now: datetime,
    done: datetime,
) -> Rollout:
    pool = rollout.node_pool
    if not rollout.moves:
        size = wave_size(pool, staying(cluster.nodes)[pool], settings, now)
        rollout = replace(rollout, wave=rollout.wave + 1, size=size)
    move = Move(command.id, started_at=now, nodes=nodes, ended_at=done, healthy_at=done)
    return replace(rollout, moves=(*rollout.moves, move))


def settled(history: History, settings: Settings, now: datetime) -> History:
    """Return the history with every wave closed that has been well for long enough."""
    if not history.rollouts:
        return history
    return replace(history, rollouts=tuple(_closed(r, settings, now) for r in history.rollouts))


def _closed(rollout: Rollout, settings: Settings, now: datetime) -> Rollout:
    soak = parse_duration(settings.option(rollout.node_pool, "wave_soak"))
    over = all(move.is_settled(soak, now) for move in rollout.moves)
    return replace(rollout, moves=()) if over else rollout
