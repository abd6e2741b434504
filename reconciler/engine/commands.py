"""Disruption commands under way: mark, launch what replaces, wait, check again, let go.

::

    MARKED --> WAITING --(replacements ready, still allowed)--> TERMINATING --> DONE
                  '--(a replacement is gone, or too late)--> ROLLED_BACK

The old node keeps running until what replaces it is initialized, and the taint is taken back when
that does not happen (Karpenter ``pkg/controllers/disruption/queue.go``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from reconciler.disruption.progress import command_timeout
from reconciler.engine import leftovers, lifecycle
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Observation, marked_claims
from reconciler.model.labels import DISRUPTED_TAINT
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.nodepool import NodePool
from reconciler.plan.plan import PlannedCommand
from reconciler.ports import CommandPhase, RunningCommand, Verb

Objection = Callable[[RunningCommand], str | None]
"""Says why a command may no longer go on, None if it may."""


def start(effects: Effects, command: PlannedCommand, seen: Observation) -> None:
    """Record a command and taint its nodes; its replacements are launched by the same pass."""
    world = effects.world
    pools = {claim.name: claim.node_pool for claim in seen.claims}
    running = RunningCommand(
        id=command.id,
        reason=command.reason,
        decision=command.decision,
        node_claims=command.node_claims,
        replacements=command.replacements,
        phase=CommandPhase.MARKED,
        started_at=seen.at,
        revision=effects.revision,
        plan=effects.plan,
        savings=command.savings,
        message=command.event,
        node_pools=tuple(pools.get(name, "") for name in command.node_claims),
        voluntary=not command.forceful,
    )
    world.store.put_command(running)
    nodes = ", ".join(command.nodes or command.node_claims)
    why = f" ({command.event})" if command.event else ""
    world.tell(
        "CommandStarted",
        f"{command.reason}: {command.decision} {nodes}{why}",
        command=command.id,
        reason=command.reason,
    )
    for node in command.nodes:
        taint = effects.intent(
            Verb.TAINT,
            node,
            {"command": command.id},
            command=command.id,
            reason=because(command.reason, command.event),
        )
        effects.carry_out([taint], partial(world.cluster.taint, node))


def untaint_strays(effects: Effects, seen: Observation) -> None:
    """Give back the nodes that bear our taint though no command takes them and no claim is going.

    They are what a lost state or a failed call leaves behind (Karpenter does this in each pass).
    """
    taken = marked_claims(seen.commands)
    nodes = seen.nodes()
    for claim in seen.claims:
        node = nodes.get(claim.status.provider_id)
        if node is None or claim.is_deleting or claim.name in taken:
            continue
        if any(taint.key == DISRUPTED_TAINT for taint in node.spec.taints):
            stray = effects.intent(Verb.UNTAINT, node.name, reason="it is no longer possible")
            effects.carry_out([stray], partial(effects.world.cluster.untaint, node.name))


def advance(
    effects: Effects, seen: Observation, objection: Objection, pools: Sequence[NodePool]
) -> None:
    """Advance every running command as much as is possible now; ``pools`` are those of git."""
    claims = {c.name: c for c in seen.claims}
    queued = sum(len(c.node_claims) for c in seen.commands)
    for command in seen.commands:
        if command.phase in (CommandPhase.MARKED, CommandPhase.WAITING):
            _advance_waiting(effects, command, claims, seen, objection, command_timeout(queued))
        elif not any(name in claims for name in command.node_claims):
            _record(effects, command, CommandPhase.DONE)
    leftovers.keep_limits(effects, pools, seen.at)
    leftovers.forgive(effects)


def _advance_waiting(
    effects: Effects,
    command: RunningCommand,
    claims: dict[str, NodeClaim],
    seen: Observation,
    objection: Objection,
    patience: timedelta,
) -> None:
    missing = [name for name in command.replacements if name not in claims]
    waiting = [n for n in command.replacements if n in claims and not _is_ready(claims[n])]
    if missing:
        roll_back(effects, command, seen, f"its replacement {missing[0]} is gone", failed=True)
    elif waiting and seen.at - command.started_at > patience:
        late = f"{waiting[0]} was not ready within {patience}"
        roll_back(effects, command, seen, late, failed=True)
    elif waiting:
        if command.phase is CommandPhase.MARKED:
            _record(effects, command, CommandPhase.WAITING)
    elif (why := objection(command)) is not None:
        roll_back(effects, command, seen, why)
    else:
        let_go(effects, command, (claims[n] for n in command.node_claims if n in claims), seen)


def _is_ready(claim: NodeClaim) -> bool:
    return claim.is_true(lifecycle.INITIALIZED)


def let_go(
    effects: Effects, command: RunningCommand, claims: Iterable[NodeClaim], seen: Observation
) -> None:
    """Delete the claims of a command: from here on there is no way back."""
    world = effects.world
    reason = command.reason
    gone = [
        lifecycle.with_condition(
            lifecycle.deleted(c, seen.at),
            "DisruptionReason",
            "True",
            seen.at,
            reason,
            command.message or reason,
        )
        for c in claims
    ]
    world.store.put_node_claims(gone)
    _record(effects, command, CommandPhase.TERMINATING)
    world.tell("CommandValidated", f"{reason}: replacements are ready", command=command.id)


def roll_back(
    effects: Effects, command: RunningCommand, seen: Observation, why: str, *, failed: bool = False
) -> None:
    """Give the nodes of a command back; its replacements stay where there is room for them.

    ``failed`` says that its replacements did not come, which nobody wanted. Where a node cannot
    be given back now, the next pass tries it again.
    """
    world = effects.world
    by_claim = {
        c.name: seen.nodes().get(c.status.provider_id)
        for c in seen.claims
        if c.name in command.node_claims
    }
    for node in filter(None, by_claim.values()):
        untaint = effects.intent(Verb.UNTAINT, node.name, {"command": command.id})
        if not effects.carry_out([untaint], partial(world.cluster.untaint, node.name)):
            return
    leftovers.mark(effects, command, seen.at, failed=failed)
    _record(effects, replace(command, failed=failed), CommandPhase.ROLLED_BACK, why)
    world.tell("CommandRolledBack", f"{command.reason}: {why}", command=command.id)


def _record(
    effects: Effects, command: RunningCommand, phase: CommandPhase, message: str = ""
) -> None:
    said = message or command.message
    effects.world.store.put_command(replace(command, phase=phase, message=said))


def because(reason: str, message: str) -> str:
    """Return why something is done, as the journal has it: the reason, and what there is to it."""
    return f"{reason}: {message}" if message and message != reason else reason
