"""Rollout waves: the progress of each NodePool's replacement, its health gate, and when to halt.

A command belongs to the wave in which it starts. After it has ended, its replacements have to be
ready and the workloads whose pods it moved have to be available, for a while. Only then does the
wave pass its health gate. What a wave waits for, and every failure, is recorded, so the next pass
continues from there, in this process or another one. The planner decides which nodes a wave may
still disrupt (``disruption/gates/guards.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.gates.guards import count_remaining_nodes, wave_size
from reconciler.engine.observation import Advanced, Observation
from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.history import Move, Rollout
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import is_true
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import Settings
from reconciler.plan.value.actions import PlannedCommand
from reconciler.plan.value.plan import Plan
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase

_WITHOUT_WAVES: Final = (DisruptionReason.EMPTY, DisruptionReason.UNHEALTHY)
"""Empty nodes have no pods to move, and repair does not wait for a wave."""


def record_moves(world: World, plan: Plan, seen: Observation, settings: Settings) -> None:
    """Record the commands of a plan as moves of their waves, before any of them starts.

    A command that never starts, because the process dies, is dropped later.
    """
    observation = _WaveObservation(seen)
    known = {rollout.node_pool: rollout for rollout in world.store.rollouts()}
    fresh: dict[str, Rollout] = {}
    for command in plan.commands:
        if command.forceful or command.reason in _WITHOUT_WAVES:
            continue
        for pool, nodes in sorted(observation.count_by_pool(command.node_claims).items()):
            if not is_tracked(pool, settings):
                continue
            rollout = fresh.get(pool) or known.get(pool) or Rollout(pool)
            if not rollout.moves:
                size = observation.wave_size_of_pool(pool, settings)
                rollout = replace(rollout, wave=rollout.wave + 1, size=size)
                text = f"wave {rollout.wave} of {pool} started"
                world.notify(EventKind.WAVE_STARTED, text, node_pool=pool, command=command.id)
            move = _move(command, nodes, observation, seen.at)
            fresh[pool] = replace(rollout, moves=(*rollout.moves, move))
    for rollout in fresh.values():
        world.store.put_rollout(rollout)


def is_tracked(pool: str, settings: Settings) -> bool:
    """Return whether a guard of the pool needs the outcome of its replacements."""
    options = settings.pool(pool)
    return bool(options.wave_size) or options.stop_after_failures > 0


def _move(
    command: PlannedCommand, nodes: int, observation: _WaveObservation, now: datetime
) -> Move:
    return Move(
        command=command.id,
        started_at=now,
        nodes=nodes,
        replacements=command.replacements,
        workloads=observation.available_pods_by_owner(command.node_claims),
    )


def advance(world: World, seen: Advanced, settings: Settings) -> None:
    """Check the health of each wave and record its progress."""
    observation = _WaveObservation(seen)
    for rollout in world.store.rollouts():
        if not rollout.moves:
            continue
        fresh = _update_moves(world, rollout, observation, settings, seen.at)
        fresh = _close_wave(world, fresh, settings, seen.at)
        world.store.put_rollout(_halt_if_failing(world, fresh, settings, seen.at))


def resume(rollout: Rollout) -> Rollout:
    """Return a rollout that continues, with its failures reset."""
    kept = tuple(move for move in rollout.moves if not move.failure)
    return replace(rollout, moves=kept, failures=0, stopped_at=None, stopped_why="")


def count_unsettled(rollouts: Iterable[Rollout], settings: Settings, now: datetime) -> int:
    """Return the number of moves that have not ended."""
    return sum(
        not move.is_settled(settings.pool(rollout.node_pool).wave_soak, now)
        for rollout in rollouts
        for move in rollout.moves
    )


def _update_moves(
    world: World, rollout: Rollout, observation: _WaveObservation, settings: Settings, now: datetime
) -> Rollout:
    options = settings.pool(rollout.node_pool)
    soak, patience = options.wave_soak, options.wave_deadline
    moves = []
    for move in rollout.moves:
        if move.is_settled(soak, now):
            moves.append(move)
            continue
        ended = _update_from_command(world, move, now)
        if ended is None:
            continue
        moves.append(_update_health(ended, observation, patience, now))
        if moves[-1].failure:
            text = f"{rollout.node_pool}: {moves[-1].failure}"
            world.notify(
                EventKind.WAVE_FAILED, text, node_pool=rollout.node_pool, command=move.command
            )
    return replace(rollout, moves=tuple(moves))


def _update_from_command(world: World, move: Move, now: datetime) -> Move | None:
    """Return the move updated from its command; None if that never started or was rolled back."""
    if move.ended_at is not None:
        return move
    command = world.store.command(move.command)
    if command is None or command.started_at < move.started_at:
        return None
    if command.phase is CommandPhase.ROLLED_BACK:
        return replace(move, ended_at=now, failure=command.message) if command.failed else None
    if command.phase is CommandPhase.DONE:
        return replace(move, ended_at=now)
    return replace(move, waits_for="its commands must finish")


def _update_health(
    move: Move, observation: _WaveObservation, patience: timedelta, now: datetime
) -> Move:
    """Return a move whose command may have ended, updated from the pods that it moved."""
    if move.ended_at is None or move.failure:
        return move
    waits_for = observation.unhealthy_reason(move)
    if not waits_for:
        return replace(move, healthy_at=move.healthy_at or now, waits_for="")
    failure = f"{waits_for}, but not within {patience}" if now - move.ended_at >= patience else ""
    return replace(move, healthy_at=None, waits_for=waits_for, failure=failure)


def _close_wave(world: World, rollout: Rollout, settings: Settings, now: datetime) -> Rollout:
    """Return the rollout without a current wave if all moves of this wave have ended."""
    soak = settings.pool(rollout.node_pool).wave_soak
    if not all(move.is_settled(soak, now) for move in rollout.moves):
        return rollout
    failed = [move for move in rollout.moves if move.failure]
    if failed:
        why = failed[-1].failure
        return replace(rollout, moves=(), failures=rollout.failure_count, stopped_why=why)
    if not rollout.moves or rollout.stopped_at is not None:
        return replace(rollout, moves=())
    text = f"wave {rollout.wave} of {rollout.node_pool} passed its health gate"
    world.notify(EventKind.WAVE_SETTLED, text, node_pool=rollout.node_pool)
    return replace(rollout, moves=(), failures=0, stopped_why="")


def _halt_if_failing(world: World, rollout: Rollout, settings: Settings, now: datetime) -> Rollout:
    """Return the rollout, halted if it has failed too often."""
    most = settings.pool(rollout.node_pool).stop_after_failures
    if not most or rollout.stopped_at is not None or rollout.failure_count < most:
        return rollout
    failed = [move.failure for move in rollout.moves if move.failure]
    why = failed[-1] if failed else rollout.stopped_why
    pool = rollout.node_pool
    world.notify(
        EventKind.ROLLOUT_STOPPED,
        f"disruption of {pool} is halted after {rollout.failure_count} failures: {why}",
        node_pool=pool,
    )
    kept = tuple(move for move in rollout.moves if not move.failure)
    return replace(
        rollout, moves=kept, failures=rollout.failure_count, stopped_at=now, stopped_why=why
    )


@dataclass(frozen=True)
class _WaveObservation:
    """The observation, indexed for waves."""

    seen: Observation

    @cached_property
    def claims(self) -> Mapping[str, NodeClaim]:
        return {claim.name: claim for claim in self.seen.claims}

    def wave_size_of_pool(self, pool: str, settings: Settings) -> int:
        """Return the number of nodes in a wave, 0 where waves are disabled."""
        if not settings.pool(pool).wave_size:
            return 0
        return wave_size(pool, count_remaining_nodes(self.seen.state().nodes)[pool], settings)

    def count_by_pool(self, claims: Iterable[str]) -> Counter[str]:
        """Return the number of claims by NodePool."""
        return Counter(self.claims[name].node_pool for name in claims if name in self.claims)

    def available_pods_by_owner(self, claims: Iterable[str]) -> dict[str, int]:
        """Return the owners of the pods on the claims' nodes, with their available pods."""
        nodes = {self.claims[n].status.node_name for n in claims if n in self.claims}
        owners = {
            owner
            for pod in self.seen.snapshot.pods
            if pod.spec.node_name in nodes and pod.is_reschedulable and (owner := _owner(pod))
        }
        return {owner: sum(map(_is_available, self._pods[owner])) for owner in sorted(owners)}

    @cached_property
    def _pods(self) -> Mapping[str, list[Pod]]:
        """The pods of each owner that are not terminating."""
        found: dict[str, list[Pod]] = {}
        for pod in self.seen.snapshot.pods:
            owner = _owner(pod)
            if owner:
                living = found.setdefault(owner, [])
                if pod.is_active:
                    living.append(pod)
        return found

    def unhealthy_reason(self, move: Move) -> str:
        """Return why the replacements and workloads of a move are not healthy, empty if they are.

        Replacements and workloads that are gone do not count, and no more pods are required than
        were available before.
        """
        return next(self._unhealthy_reasons(move), "")

    def _unhealthy_reasons(self, move: Move) -> Iterator[str]:
        nodes = self.seen.nodes()
        for name in move.replacements:
            claim = self.claims.get(name)
            if claim is None or claim.is_deleting:
                continue
            node = nodes.get(claim.status.provider_id)
            if not claim.is_true(lifecycle.INITIALIZED) or node is None or not node.is_ready:
                yield f"node {claim.status.node_name or name} must be ready"
        for owner, before in move.workloads.items():
            pods = self._pods.get(owner, [])
            well = sum(map(_is_available, pods))
            if well < min(before, len(pods)):
                yield f"{well} of {len(pods)} pods of {owner} are available"


def _owner(pod: Pod) -> str:
    owners = pod.metadata.owner_references
    return f"{pod.namespace}/{owners[0].kind}/{owners[0].name}" if owners else ""


def _is_available(pod: Pod) -> bool:
    return pod.is_active and is_true(pod.status.conditions, "Ready")
