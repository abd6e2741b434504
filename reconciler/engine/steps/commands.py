"""Running disruption commands: mark, launch replacements, wait, validate, terminate.

::

    MARKED --> WAITING --(replacements ready, still allowed)--> TERMINATING --> DONE
                  '--(a replacement is gone, or too late)--> ROLLED_BACK

The old node keeps running until its replacements are initialized. If they never are, its taint is
removed (Karpenter ``pkg/controllers/disruption/queue.go``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.decide import command_timeout
from reconciler.disruption.gates.consolidatable import LEFT_OVER
from reconciler.disruption.gates.guards import REPLACEMENT_FAILED, failed_attempts
from reconciler.engine import tracking
from reconciler.engine.effects import Effect, Effects
from reconciler.engine.observation import Observation, marked_claims
from reconciler.engine.steps import lifecycle
from reconciler.model.duration import parse_duration
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DISRUPTED_TAINT, REBOOTING_TAINT
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.node import Node
from reconciler.model.resources import NODES, parse_resources, pod_amount
from reconciler.model.text.counting import format_list
from reconciler.plan.make.actions import provision_id
from reconciler.plan.make.gather import deleted_pools
from reconciler.plan.render.wording import cause_of
from reconciler.plan.run import ActionEvent, ActionState, PlanRun, RunEvent
from reconciler.plan.value.actions import Action, ActionKind, PlannedCommand
from reconciler.plan.value.plan import Plan
from reconciler.ports.journal import Verb
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase, RunningCommand, StateStore

SETTLES_WITHIN: Final = timedelta(minutes=5)
"""How long a command keeps consolidation waiting: a drain that is blocked may last for days."""


def unsettled_claims(commands: Iterable[RunningCommand], now: datetime) -> frozenset[str]:
    """Return the NodeClaims that running consolidation commands remove.

    Commands that started more than ``SETTLES_WITHIN`` ago do not count.
    """
    return frozenset(
        name
        for command in commands
        if command.reason == DisruptionReason.UNDERUTILIZED
        and command.is_under_way
        and abs(now - command.started_at) < SETTLES_WITHIN
        for name in command.node_claims
    )


# A command that is rolled back leaves nodes behind that were launched and have no pods. Karpenter
# keeps them as ordinary nodes, and so do we for a while: the next attempt can use them. But limits
# were checked as if the old nodes were gone. Since these stay, the replacements are terminated
# again where both together exceed a limit. Replacements that stay unused count as empty, whatever
# ``consolidateAfter`` is (``disruption/methods/emptiness.py``).


def _named_claims(store: StateStore, names: Collection[str]) -> list[NodeClaim]:
    return [claim for claim in store.node_claims() if claim.name in names]


def mark_left_over(
    effects: Effects, command: RunningCommand, now: datetime, *, failed: bool
) -> None:
    """Record that the replacements of a command which have no pods are no longer needed.

    If the command ``failed``, its candidates are retried after a growing delay
    (``disruption/gates/guards.py``).
    """
    store = effects.world.store
    unused = [
        lifecycle.with_condition(claim, LEFT_OVER, "True", now, LEFT_OVER, command.id)
        for claim in _named_claims(store, command.replacements)
        if not (claim.is_deleting or lifecycle.had_pods(claim))
    ]
    if unused and failed:
        named = _named_claims(store, command.node_claims)
        unused += [_with_failed_attempt(claim, effects.revision, now) for claim in named]
    if unused:
        store.put_node_claims(unused)


def _with_failed_attempt(claim: NodeClaim, revision: str, now: datetime) -> NodeClaim:
    times = failed_attempts(claim) + 1
    fresh = lifecycle.without_condition(claim, REPLACEMENT_FAILED)
    return lifecycle.with_condition(fresh, REPLACEMENT_FAILED, "True", now, revision, str(times))


def reset_failed_attempts(effects: Effects) -> None:
    """Allow an immediate retry of failed replacements if git has changed."""
    store = effects.world.store
    known = ((claim, claim.condition(REPLACEMENT_FAILED)) for claim in store.node_claims())
    fixed = [
        lifecycle.without_condition(claim, REPLACEMENT_FAILED)
        for claim, tried in known
        if tried is not None and tried.reason != effects.revision
    ]
    if fixed:
        store.put_node_claims(fixed)


def enforce_limits(effects: Effects, pools: Sequence[NodePool], now: datetime) -> None:
    """Delete unneeded replacements of each pool that exceeds its limits, until it does not.

    ``pools`` are those of git. A NodePool that was removed from git keeps its recorded limits.

    Claims that are not ready are deleted first, the youngest first. They have no pods, so no
    budget applies.
    """
    world = effects.world
    claims = [c for c in world.store.node_claims() if not c.is_deleting]
    unused = [c for c in claims if c.is_true(LEFT_OVER) and c.status.provider_id]
    if not unused:
        return
    removed = marked_claims(world.store.commands())
    remaining = [c for c in claims if c.name not in removed]
    recorded = [o.data for o in world.store.objects()]
    for pool in (*pools, *deleted_pools(recorded, pools)):
        if pool.spec.limits:
            excess = sorted((c for c in unused if c.node_pool == pool.name), key=_deletion_order)
            used = _used_resources(c for c in remaining if c.node_pool == pool.name)
            _delete_excess(effects, pool, excess, used, now)


def _delete_excess(
    effects: Effects, pool: NodePool, excess: Sequence[NodeClaim], used: Counter[str], now: datetime
) -> None:
    world, limits = effects.world, pool.limits()
    for claim in excess:
        exceeded = sorted(name for name, most in limits.items() if used[name] > most)
        if not exceeded:
            return
        used.subtract(_capacity(claim))
        why = f"it would exceed the limit of NodePool {pool.name} for {', '.join(exceeded)}"
        world.store.put_node_claims([lifecycle.delete_with_reason(claim, now, "RolledBack", why)])
        text = f"{claim.name} is terminated again: {why}"
        world.notify(EventKind.FAILED, text, node_claim=claim.name, node_pool=pool.name)


def _deletion_order(claim: NodeClaim) -> tuple[bool, float, str]:
    created = claim.metadata.creation_timestamp
    age = -created.timestamp() if created is not None else 0.0
    return claim.is_true(lifecycle.INITIALIZED), age, claim.name


def _used_resources(claims: Iterable[NodeClaim]) -> Counter[str]:
    used: Counter[str] = Counter()
    for claim in claims:
        used.update(_capacity(claim))
    return used


def _capacity(claim: NodeClaim) -> Mapping[str, int]:
    """Return the resources of a claim that count towards a limit, in thousandths."""
    return {**parse_resources(claim.status.capacity), NODES: pod_amount(1)}


Objection = Callable[[RunningCommand], str | None]
"""Returns why a command must not continue, or None."""


def start_commands(
    effects: Effects, plan: Plan, unmarked: Collection[str], seen: Observation
) -> Mapping[str, bool]:
    """Taint the nodes of the ``unmarked`` commands of a plan, all at the same time.

    Returns by id which commands have started; their replacements are launched by the same pass.
    Pods would still be scheduled to a node without the taint. So a command with replacements needs
    all its taints, and one that only deletes goes on with the nodes that have theirs (Karpenter
    ``disruption/queue.go``): to taint a thousand nodes takes longer than one pass may.
    """
    starting = [command for command in plan.commands if command.id in unmarked]
    untainted = _taint_nodes(effects, starting)
    terminations = _terminations(plan, starting)
    refused = {node for node, is_refused in untainted.items() if is_refused}
    ended = chain.from_iterable(terminations.values())
    _delay_retries(effects, [action for action in ended if action.node in refused], seen.at)
    pools = {claim.name: claim.node_pool for claim in seen.claims}
    return {
        command.id: _start_command(
            effects,
            command,
            _running_command(effects, command, pools, seen.at),
            terminations[command.id],
            untainted,
        )
        for command in starting
    }


def _taint_nodes(effects: Effects, starting: Iterable[PlannedCommand]) -> Mapping[str, bool]:
    """Taint nodes; return those that have no taint now, and whether each has refused it."""
    marks = [(command, node) for command in starting for node in command.nodes]
    answers = effects.execute_for_answers(
        [_taint(effects, command, node) for command, node in marks]
    )
    return {
        node: answer.is_refusal
        for (_, node), answer in zip(marks, answers, strict=True)
        if answer.error is not None
    }


def _terminations(plan: Plan, commands: Iterable[PlannedCommand]) -> Mapping[str, list[Action]]:
    """Return the actions that end the nodes of each command, by its id."""
    found: dict[str, list[Action]] = {command.id: [] for command in commands}
    for action in plan.actions:
        ends = action.kind in (ActionKind.TERMINATE, ActionKind.REBOOT)
        if ends and action.command in found:
            found[action.command].append(action)
    return found


def _start_command(
    effects: Effects,
    command: PlannedCommand,
    running: RunningCommand,
    terminations: Sequence[Action],
    untainted: Mapping[str, bool],
) -> bool:
    """Start a command if enough nodes have their taint, and withdraw it if one refused its own.

    ``untainted`` are the nodes without the taint, and whether each has refused it.
    """
    tainted = [action for action in terminations if action.node not in untainted]
    without = [node for node in command.nodes if node in untainted]
    if not without:
        _record_start(effects, running, tainted)
        return True
    if tainted and not command.replacements:
        _record_start(effects, _limit_to_tainted(running, tainted), tainted)
        return True
    refused = [node for node in without if untainted[node]]
    if refused:
        _withdraw(effects, running, tainted, refused)
    return False


def _record_start(effects: Effects, command: RunningCommand, tainted: Sequence[Action]) -> None:
    """Record and report a command that starts; ``tainted`` are the terminations of its nodes."""
    effects.world.store.put_command(command)
    nodes = format_list(action.node or action.node_claim or "" for action in tainted)
    why = f" ({command.message})" if command.message else ""
    effects.world.notify(
        EventKind.COMMAND_STARTED,
        f"{cause_of(command.reason).capitalize()}: {command.decision} {nodes}{why}",
        command=command.id,
        reason=command.reason,
    )


def _running_command(
    effects: Effects, command: PlannedCommand, pools: Mapping[str, str], now: datetime
) -> RunningCommand:
    return RunningCommand(
        id=command.id,
        reason=command.reason,
        decision=command.decision,
        node_claims=command.node_claims,
        replacements=command.replacements,
        phase=CommandPhase.MARKED,
        started_at=now,
        revision=effects.revision,
        plan=effects.plan,
        savings=command.savings,
        message=command.message,
        node_pools=tuple(pools.get(name, "") for name in command.node_claims),
        voluntary=not command.forceful,
        termination_grace_period=command.termination_grace_period,
        pods=command.pods_evicted,
    )


def _limit_to_tainted(command: RunningCommand, tainted: Sequence[Action]) -> RunningCommand:
    """Return a command that removes only the nodes with the taint; later passes plan the others."""
    kept_actions = [action for action in tainted if action.node_claim]
    prices = [action.cost_delta for action in kept_actions]
    return replace(
        command,
        node_claims=tuple(action.node_claim or "" for action in kept_actions),
        node_pools=tuple(action.node_pool or "" for action in kept_actions),
        savings=None if None in prices else -sum(filter(None, prices), 0.0),
    )


def _delay_retries(effects: Effects, refused: Sequence[Action], now: datetime) -> None:
    """Retry nodes that refused their taint after a growing delay, so that others go first."""
    names = {action.node_claim for action in refused}
    store = effects.world.store
    refused_claims = (
        [claim for claim in store.node_claims() if claim.name in names] if names else []
    )
    if refused_claims:
        store.put_node_claims(
            [_with_failed_attempt(claim, effects.revision, now) for claim in refused_claims]
        )


def _taint(effects: Effects, command: PlannedCommand, node: str) -> Effect:
    why = format_cause(command.reason, command.message)
    facts = {"command": command.id}
    taint = effects.intent(Verb.TAINT, node, facts, command=command.id, reason=why)
    cluster = effects.world.cluster
    return [taint], partial(cluster.taint if command.removes_nodes else cluster.fence, node)


def _untaint(
    effects: Effects, node: str, facts: Mapping[str, str] | None = None, reason: str = ""
) -> Effect:
    untaint = effects.intent(Verb.UNTAINT, node, facts, reason=reason)
    return [untaint], partial(effects.world.cluster.untaint, node)


def unfence(effects: Effects, node: str, *, reason: str) -> Effect:
    """Return the removal of the taint of a reboot."""
    untaint = effects.intent(Verb.UNTAINT, node, {"taint": REBOOTING_TAINT}, reason=reason)
    return [untaint], partial(effects.world.cluster.unfence, node)


def _withdraw(
    effects: Effects, command: RunningCommand, tainted: Sequence[Action], refused: Sequence[str]
) -> None:
    """Record that a command was rolled back before anything was launched for it.

    A taint that cannot be removed now belongs to no command, and the next pass removes it.
    """
    facts = {"command": command.id}
    if command.removes_nodes:
        effects.execute_all([_untaint(effects, a.node, facts) for a in tainted if a.node])
    why = f"the taint of {format_list(refused)} was refused"
    record_phase(effects, replace(command, failed=True), CommandPhase.ROLLED_BACK, why)
    text = f"{command.reason}: {why}"
    effects.world.notify(EventKind.COMMAND_ROLLED_BACK, text, command=command.id)


def _nodes_that_stay(
    seen: Observation, disrupted: Collection[str]
) -> Iterator[tuple[NodeClaim, Node]]:
    nodes = seen.nodes()
    for claim in seen.claims:
        node = nodes.get(claim.status.provider_id)
        if node is not None and not claim.is_deleting and claim.name not in disrupted:
            yield claim, node


def untaint_stray_nodes(effects: Effects, seen: Observation) -> None:
    """Untaint the nodes that have our taint although no command or deletion concerns them.

    A lost state or a failed call leaves such nodes (Karpenter does this in each pass).
    """
    disrupted = marked_claims(seen.commands)
    rebooting = (c.node_claims for c in seen.commands if not c.removes_nodes)
    rebooted = set(chain.from_iterable(rebooting))
    strays, why = [], "it is no longer possible"
    # Nodes that EC2 reclaims are tainted ahead of the pass, which will decide about them.
    events = effects.world.interruptions.pending_events()
    reclaimed = set(chain.from_iterable(event.instances for event in events))
    for claim, node in _nodes_that_stay(seen, disrupted):
        if lifecycle.instance_id(claim) in reclaimed:
            continue
        if node.has_taint(DISRUPTED_TAINT):
            strays.append(_untaint(effects, node.name, reason=why))
        is_rebooted = claim.is_rebooting or claim.name in rebooted
        if node.has_taint(REBOOTING_TAINT) and not is_rebooted:
            strays.append(unfence(effects, node.name, reason=why))
    effects.execute_all(strays)


def advance(
    effects: Effects, seen: Observation, objection: Objection, pools: Sequence[NodePool]
) -> None:
    """Advance every running command as much as possible now; ``pools`` are those of git."""
    claims = {c.name: c for c in seen.claims}
    queued = sum(len(c.node_claims) for c in seen.commands)
    for command in seen.commands:
        if not command.removes_nodes:
            continue  # ``engine/reboots`` advances it
        run = tracking.track_command(command, claims)
        tracking.report_illegal(effects.world, run)
        if command.phase in (CommandPhase.MARKED, CommandPhase.WAITING):
            _advance_waiting(effects, command, run, seen, objection, command_timeout(queued))
        elif run.is_finished:
            record_phase(effects, command, CommandPhase.DONE)
    enforce_limits(effects, pools, seen.at)
    reset_failed_attempts(effects)


def _wait(
    effects: Effects, command: RunningCommand, name: str, seen: Observation, patience: timedelta
) -> None:
    """Wait for the replacement of that name, and roll the command back if it takes too long."""
    if abs(seen.at - command.started_at) > patience:
        # A start in the future means that the clock was set back; that time is not waited for.
        late = f"{name} was not ready within {patience}"
        roll_back(effects, command, seen, late, failed=True)
    elif command.phase is CommandPhase.MARKED:
        record_phase(effects, command, CommandPhase.WAITING)


def _advance_waiting(
    effects: Effects,
    command: RunningCommand,
    run: PlanRun,
    seen: Observation,
    objection: Objection,
    patience: timedelta,
) -> None:
    states = {name: run.states[provision_id(name)] for name in command.replacements}
    failed = [name for name, state in states.items() if state is ActionState.FAILED]
    waiting = [name for name, state in states.items() if not state.is_final]
    if failed:
        roll_back(effects, command, seen, f"its replacement {failed[0]} is gone", failed=True)
    elif waiting:
        _wait(effects, command, waiting[0], seen, patience)
    elif (why := objection(command)) is not None:
        roll_back(effects, command, seen, why)
    else:
        delete_claims(effects, command, _claims_to_terminate(run, seen), seen)


def _claims_to_terminate(run: PlanRun, seen: Observation) -> list[NodeClaim]:
    """Return the claims whose termination can start, now that their command is validated."""
    for action in run.ready():
        if action.kind == ActionKind.REPLACE:
            run.feed(RunEvent(action.id, ActionEvent.VALIDATED))
    ready = {action.node_claim for action in run.ready() if action.kind == ActionKind.TERMINATE}
    return [claim for claim in seen.claims if claim.name in ready]


def delete_claims(
    effects: Effects, command: RunningCommand, claims: Iterable[NodeClaim], seen: Observation
) -> None:
    """Delete the claims of a command, which cannot be undone."""
    world = effects.world
    reason = command.reason
    gone = [
        lifecycle.delete_with_reason(c, seen.at, reason, command.message or reason) for c in claims
    ]
    if command.termination_grace_period:
        deadline = seen.at + parse_duration(command.termination_grace_period)
        gone = [lifecycle.with_drain_deadline(claim, deadline) for claim in gone]
    world.store.put_node_claims(gone)
    record_phase(effects, command, CommandPhase.TERMINATING)
    what = "replacements are ready" if command.replacements else "revalidated, draining can start"
    world.notify(EventKind.COMMAND_VALIDATED, f"{reason}: {what}", command=command.id)


def roll_back(
    effects: Effects, command: RunningCommand, seen: Observation, why: str, *, failed: bool = False
) -> None:
    """Untaint the nodes of a command; its replacements stay unless they exceed a limit.

    ``failed`` is True if its replacements did not become ready. If a node cannot be untainted now,
    the next pass retries.
    """
    world = effects.world
    by_claim = {
        c.name: seen.nodes().get(c.status.provider_id)
        for c in seen.claims
        if c.name in command.node_claims
    }
    facts = {"command": command.id}
    untaints = [_untaint(effects, node.name, facts) for node in by_claim.values() if node]
    if not all(effects.execute_all(untaints)):
        return
    mark_left_over(effects, command, seen.at, failed=failed)
    record_phase(effects, replace(command, failed=failed), CommandPhase.ROLLED_BACK, why)
    world.notify(EventKind.COMMAND_ROLLED_BACK, f"{command.reason}: {why}", command=command.id)


def record_phase(
    effects: Effects, command: RunningCommand, phase: CommandPhase, message: str = ""
) -> None:
    """Record the phase of a command, with the reason."""
    text = message or command.message
    effects.world.store.put_command(replace(command, phase=phase, message=text))


def format_cause(reason: str, message: str) -> str:
    """Return the reason of an operation for the journal, with its details."""
    return f"{reason}: {message}" if message and message != reason else reason
