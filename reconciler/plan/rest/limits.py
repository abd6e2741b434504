"""The history for the rate limits of a fleet that is continued in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import replace

from reconciler.disruption.command import Command
from reconciler.disruption.gates.guards import WAVE_REASONS, count_remaining_nodes, wave_size
from reconciler.model.history import DAY, DisruptionRecord, History, Move, Rollout
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState


def record_disruptions(
    history: History,
    commands: Iterable[Command],
    cluster: ClusterState,
    settings: Settings,
    now: datetime,
    done: datetime,
) -> History:
    """Return the history after the commands of ``now`` have ended at ``done``.

    ``cluster`` is the one before. Everything that a wave has moved is healthy.
    """
    pools = {n.claim.name: n.node_pool for n in cluster.nodes if n.claim is not None}
    rollouts = {rollout.node_pool: rollout for rollout in history.rollouts}
    recent = [row for row in history.taken if now - row.at < DAY]
    for command in commands:
        if command.is_forceful:
            continue
        counts = Counter(pools.get(name, "") for name in command.node_claims)
        for pool, nodes in sorted(counts.items()):
            recent.append(DisruptionRecord(now, pool, nodes))
            if command.reason in WAVE_REASONS and settings.pool(pool).wave_size:
                known = rollouts.get(pool) or Rollout(pool)
                rollouts[pool] = _add_to_wave(known, command, nodes, cluster, settings, now, done)
    ordered = tuple(rollouts[pool] for pool in sorted(rollouts))
    return replace(history, taken=tuple(recent), rollouts=ordered)


def _add_to_wave(
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
        size = wave_size(pool, count_remaining_nodes(cluster.nodes)[pool], settings)
        rollout = replace(rollout, wave=rollout.wave + 1, size=size)
    move = Move(command.id, started_at=now, nodes=nodes, ended_at=done, healthy_at=done)
    return replace(rollout, moves=(*rollout.moves, move))


def close_healthy_waves(history: History, settings: Settings, now: datetime) -> History:
    """Return the history with every wave closed that has been healthy for long enough."""
    if not history.rollouts:
        return history
    return replace(
        history, rollouts=tuple(_close_if_healthy(r, settings, now) for r in history.rollouts)
    )


def _close_if_healthy(rollout: Rollout, settings: Settings, now: datetime) -> Rollout:
    soak = settings.pool(rollout.node_pool).wave_soak
    over = all(move.is_settled(soak, now) for move in rollout.moves)
    return replace(rollout, moves=()) if over else rollout
