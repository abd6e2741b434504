"""From the journal and the records to the states of a plan's actions.

What the engine did is durable: intents, commands and NodeClaims. Here it is read as the events that
``plan/run.py`` knows, so that a pass, the pass after a crash and every command that only reads see
each action in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.plan.make.actions import OwnedNode, UnlaunchedClaim, actions_of
from reconciler.plan.run import ActionEvent, ActionState, PlanRun, RunEvent
from reconciler.plan.value.actions import Action, ActionKind
from reconciler.plan.value.disruption import PlannedCommand
from reconciler.plan.value.plan import Plan
from reconciler.ports.journal import JournalEntry, Outcome
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase, RunningCommand

_VALIDATED: Final = (CommandPhase.TERMINATING, CommandPhase.DONE)

Happened = tuple[ActionEvent, str]
"""What happened to an action, and what else is known of it."""


def _nothing(_: str) -> None:
    """Find nothing: these records have no past."""


@dataclass(frozen=True, slots=True)
class Records:
    """What is recorded of what actions are about.

    ``claims`` are those that are not gone, by name. ``command`` finds a command by id, ``gone`` a
    NodeClaim that is gone by name, and ``launch`` the journal's entry of a NodeClaim's launch.
    ``is_recovered`` says that a pass has settled what a crash left behind: a launch that is not
    recorded by then will not come.
    """

    claims: Mapping[str, NodeClaim]
    command: Callable[[str], RunningCommand | None]
    gone: Callable[[str], NodeClaim | None] = _nothing
    launch: Callable[[str], JournalEntry | None] = _nothing
    is_recovered: bool = False


def run_of(plan: Plan, records: Records, *, superseded: bool = False) -> PlanRun:
    """Return how far a plan has come.

    ``superseded`` says that a later plan was made: what has not begun by then never will.
    """
    run = _rebuilt(plan.actions, records)
    if superseded:
        for name, state in dict(run.states).items():
            if state is ActionState.PENDING:
                run.feed(RunEvent(name, ActionEvent.SUPERSEDED))
    return run


def run_of_command(command: RunningCommand, claims: Mapping[str, NodeClaim]) -> PlanRun:
    """Return how far a command has come, as a pass sees it that has recovered its records.

    The actions of a command depend on none of another one, so they are tracked without the rest
    of their plan. ``claims`` are those that are not gone, by name.
    """
    pools = dict(zip(command.node_claims, command.node_pools, strict=False))
    planned = PlannedCommand(
        id=command.id,
        reason=command.reason,
        decision="replace" if command.replacements else "delete",
        nodes=(),
        node_claims=command.node_claims,
        replacements=command.replacements,
    )
    actions = actions_of(
        (),
        [UnlaunchedClaim(name=name, node_pool="", launch=None) for name in command.replacements],
        [planned],
        {
            name: OwnedNode(name=name, node_claim=name, node_pool=pools.get(name, ""))
            for name in command.node_claims
        },
    )
    return _rebuilt(actions, Records(claims, {command.id: command}.get, is_recovered=True))


def _rebuilt(actions: Iterable[Action], records: Records) -> PlanRun:
    run = PlanRun(actions)
    for name in run.graph.order:
        for event, message in _events(run.graph.actions[name], records):
            run.feed(RunEvent(name, event, message))
    return run


def tell_mistakes(world: World, run: PlanRun) -> None:
    """Tell of events that an action cannot have: the records contradict the transition table."""
    for problem in run.illegal:
        world.notify(
            EventKind.ILLEGAL_TRANSITION,
            f"internal error: {problem}; the action keeps its state; please report it",
        )


def _events(action: Action, records: Records) -> Iterator[Happened]:
    """Yield what happened to an action, in the order in which it did."""
    command = records.command(action.command) if action.command else None
    match action.kind:
        case ActionKind.PROVISION:
            yield from _of_provision(action, command, records)
        case ActionKind.REPLACE:
            yield from _of_replace(command)
        case ActionKind.TERMINATE:
            yield from _of_terminate(action, command, records)


def _of_provision(
    action: Action, command: RunningCommand | None, records: Records
) -> Iterator[Happened]:
    name = action.node_claim or ""
    claim = records.claims.get(name)
    if command is not None and command.phase in _VALIDATED:
        yield ActionEvent.REQUESTED, ""
        yield ActionEvent.LAUNCHED, ""
        yield ActionEvent.INITIALIZED, ""  # else the command would not have been validated
    elif claim is not None:
        yield from _of_claim(claim)
    else:
        yield from _of_missing_claim(name, command, records)


def _of_claim(claim: NodeClaim) -> Iterator[Happened]:
    """Yield how far a NodeClaim has come that is not gone."""
    yield ActionEvent.REQUESTED, ""
    is_ready = claim.is_true(lifecycle.INITIALIZED)
    if not is_ready and not claim.status.provider_id:
        return
    yield ActionEvent.LAUNCHED, _obstacle(claim)
    if is_ready:
        yield ActionEvent.INITIALIZED, ""


def _obstacle(claim: NodeClaim) -> str:
    """Return why the node of a claim is not ready yet."""
    conditions = map(claim.condition, (lifecycle.REGISTERED, lifecycle.INITIALIZED))
    known = (c.message for c in conditions if c is not None and c.status != "True")
    return next(known, "") or "its node is not ready yet"


def _of_missing_claim(
    name: str, command: RunningCommand | None, records: Records
) -> Iterator[Happened]:
    """Yield what became of a launch whose NodeClaim is not recorded, or not any more.

    Whoever sees the records of a process that still runs cannot tell a launch that is about to be
    requested from one that will never be.
    """
    entry, gone = records.launch(name), records.gone(name)
    if entry is None and gone is None:
        is_over = command is not None and command.phase is CommandPhase.ROLLED_BACK
        if is_over or (command is not None and records.is_recovered):
            yield ActionEvent.LOST, ""
        return
    yield ActionEvent.REQUESTED, ""
    if entry is not None and entry.outcome is None:
        return
    if entry is not None and entry.outcome is Outcome.FAILED:
        yield ActionEvent.REFUSED, entry.message
    elif entry is None and gone is not None and not gone.status.provider_id:
        yield ActionEvent.LOST, ""
    else:
        yield ActionEvent.LAUNCHED, ""
        was_ready = gone is None or gone.is_true(lifecycle.INITIALIZED)
        yield (ActionEvent.INITIALIZED if command is None and was_ready else ActionEvent.LOST), ""


def _of_replace(command: RunningCommand | None) -> Iterator[Happened]:
    if command is None:
        return
    yield ActionEvent.MARKED, ""
    if command.phase is CommandPhase.ROLLED_BACK:
        yield ActionEvent.ROLLED_BACK, command.message
    elif command.phase in _VALIDATED:
        yield ActionEvent.VALIDATED, ""


def _of_terminate(
    action: Action, command: RunningCommand | None, records: Records
) -> Iterator[Happened]:
    """Yield what became of a node that is to be terminated.

    What else removes a node is not this action: it waits while its command may be rolled back, and
    never starts where its command did not.
    """
    if command is None:
        return
    claim = records.claims.get(action.node_claim or "")
    yield ActionEvent.MARKED, ""
    if command.phase is CommandPhase.ROLLED_BACK:
        yield ActionEvent.ROLLED_BACK, command.message
    elif command.phase in _VALIDATED:
        yield ActionEvent.DELETED, _drain(claim)
        if claim is None:
            yield ActionEvent.GONE, ""


def _drain(claim: NodeClaim | None) -> str:
    """Return what the drain of a node waits for, empty where that is not known."""
    known = claim.condition("Drained") if claim is not None else None
    return known.message if known is not None else ""
