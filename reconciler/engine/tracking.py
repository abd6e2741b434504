"""The states of a plan's actions, from the journal and the records.

Intents, commands and NodeClaims are durable. This module translates them into the events of
``plan/run.py``, so that a pass, the pass after a crash and every command that only reads see each
action in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from reconciler.engine.reboots import episode
from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.plan.make.actions import OwnedNode, UnlaunchedClaim, actions_of
from reconciler.plan.run import ActionEvent, ActionState, PlanRun, RunEvent
from reconciler.plan.value.actions import Action, ActionKind, Decision, PlannedCommand
from reconciler.plan.value.plan import Plan
from reconciler.ports.journal import JournalEntry, Outcome
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase, RunningCommand

_VALIDATED: Final = (CommandPhase.TERMINATING, CommandPhase.DONE)

EventWithMessage = tuple[ActionEvent, str]
"""An event of an action, and its message."""


def _find_nothing(_: str) -> None:
    """Find nothing: these records have no history."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records about the subjects of actions.

    ``claims`` are those that exist, by name. ``command`` finds a command by id, ``gone`` a removed
    NodeClaim by name, and ``launch`` the journal entry of a NodeClaim's launch. ``is_recovered`` is
    True after a pass has recovered: a launch that is not recorded by then will never happen.
    """

    claims: Mapping[str, NodeClaim]
    command: Callable[[str], RunningCommand | None]
    gone: Callable[[str], NodeClaim | None] = _find_nothing
    launch: Callable[[str], JournalEntry | None] = _find_nothing
    is_recovered: bool = False


def track_plan(plan: Plan, records: Records, *, superseded: bool = False) -> PlanRun:
    """Return the progress of a plan.

    ``superseded`` means that a later plan exists: actions that have not started never will.
    """
    run = _rebuild_run(plan.actions, records)
    if superseded:
        for name, state in dict(run.states).items():
            if state is ActionState.PENDING:
                run.feed(RunEvent(name, ActionEvent.SUPERSEDED))
    return run


def track_command(command: RunningCommand, claims: Mapping[str, NodeClaim]) -> PlanRun:
    """Return the progress of a command, as seen by a pass that has recovered its records.

    Actions of different commands are independent, so those of one command can be tracked without
    the rest of the plan. ``claims`` are those that exist, by name.
    """
    pools = dict(zip(command.node_claims, command.node_pools, strict=False))
    planned = PlannedCommand(
        id=command.id,
        reason=command.reason,
        decision=cast("Decision", command.decision),
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
    return _rebuild_run(actions, Records(claims, {command.id: command}.get, is_recovered=True))


def _rebuild_run(actions: Iterable[Action], records: Records) -> PlanRun:
    run = PlanRun(actions)
    for name in run.graph.order:
        for event, message in _events(run.graph.actions[name], records):
            run.feed(RunEvent(name, event, message))
    return run


def report_illegal(world: World, run: PlanRun) -> None:
    """Report events that the transition table does not allow: the records contradict it."""
    for problem in run.illegal:
        world.notify(
            EventKind.ILLEGAL_TRANSITION,
            f"internal error: {problem}; the action keeps its state; please report it",
        )


def _events(action: Action, records: Records) -> Iterator[EventWithMessage]:
    """Yield the events of an action, in their order."""
    command = records.command(action.command) if action.command else None
    match action.kind:
        case ActionKind.PROVISION:
            yield from _provision_events(action, command, records)
        case ActionKind.REPLACE:
            yield from _replace_events(command)
        case ActionKind.TERMINATE:
            yield from _terminate_events(action, command, records)
        case ActionKind.REBOOT:
            yield from _reboot_events(action, command, records)


def _provision_events(
    action: Action, command: RunningCommand | None, records: Records
) -> Iterator[EventWithMessage]:
    name = action.node_claim or ""
    claim = records.claims.get(name)
    if command is not None and command.phase in _VALIDATED:
        yield ActionEvent.REQUESTED, ""
        yield ActionEvent.LAUNCHED, ""
        yield ActionEvent.INITIALIZED, ""  # otherwise the command would not have been validated
    elif claim is not None:
        yield from _claim_events(claim)
    else:
        yield from _missing_claim_events(name, command, records)


def _claim_events(claim: NodeClaim) -> Iterator[EventWithMessage]:
    """Yield the events of the launch of an existing NodeClaim."""
    yield ActionEvent.REQUESTED, ""
    is_ready = claim.is_true(lifecycle.INITIALIZED)
    if not is_ready and not claim.status.provider_id:
        return
    yield ActionEvent.LAUNCHED, _waiting_reason(claim)
    if is_ready:
        yield ActionEvent.INITIALIZED, ""


def _waiting_reason(claim: NodeClaim) -> str:
    """Return why the node of a claim is not ready yet."""
    conditions = map(claim.condition, (lifecycle.REGISTERED, lifecycle.INITIALIZED))
    known = (c.message for c in conditions if c is not None and c.status != "True")
    return next(known, "") or "its node is not ready yet"


def _missing_claim_events(
    name: str, command: RunningCommand | None, records: Records
) -> Iterator[EventWithMessage]:
    """Yield the events of a launch whose NodeClaim is not recorded, or no longer recorded.

    In the records of a running process, a launch that is about to be requested cannot be
    distinguished from one that never will be.
    """
    entry, gone = records.launch(name), records.gone(name)
    if entry is not None:
        yield ActionEvent.REQUESTED, ""
        if entry.outcome is Outcome.FAILED:
            yield ActionEvent.REFUSED, entry.message
        elif entry.outcome is not None:
            yield from _ended_claim_events(command, gone)
    elif gone is not None:
        yield ActionEvent.REQUESTED, ""
        if gone.status.provider_id:
            yield from _ended_claim_events(command, gone)
        else:
            yield ActionEvent.LOST, ""
    elif command is not None and (
        command.phase is CommandPhase.ROLLED_BACK or records.is_recovered
    ):
        yield ActionEvent.LOST, ""


def _ended_claim_events(
    command: RunningCommand | None, gone: NodeClaim | None
) -> Iterator[EventWithMessage]:
    """Yield the events of a claim that was launched and is no longer there."""
    yield ActionEvent.LAUNCHED, ""
    was_ready = gone is None or gone.is_true(lifecycle.INITIALIZED)
    yield (ActionEvent.INITIALIZED if command is None and was_ready else ActionEvent.LOST), ""


def _replace_events(command: RunningCommand | None) -> Iterator[EventWithMessage]:
    if command is None:
        return
    yield ActionEvent.MARKED, ""
    if command.phase is CommandPhase.ROLLED_BACK:
        yield ActionEvent.ROLLED_BACK, command.message
    elif command.phase in _VALIDATED:
        yield ActionEvent.VALIDATED, ""


def _terminate_events(
    action: Action, command: RunningCommand | None, records: Records
) -> Iterator[EventWithMessage]:
    """Yield the events of a node's termination by its command.

    Other reasons that remove the node do not count. The action waits while its command may be
    rolled back, and never starts if its command does not, or goes on without this node.
    """
    if command is None or action.node_claim not in (*command.node_claims, None):
        return
    claim = records.claims.get(action.node_claim or "")
    yield ActionEvent.MARKED, ""
    if command.phase is CommandPhase.ROLLED_BACK:
        yield ActionEvent.ROLLED_BACK, command.message
    elif command.phase in _VALIDATED:
        yield ActionEvent.DELETED, _drain_message(claim)
        if claim is None:
            yield ActionEvent.GONE, ""


def _reboot_events(
    action: Action, command: RunningCommand | None, records: Records
) -> Iterator[EventWithMessage]:
    """Yield the events of a node's reboot by its command."""
    if command is None:
        return
    claim = records.claims.get(action.node_claim or "")
    yield ActionEvent.MARKED, ""
    if command.phase is CommandPhase.ROLLED_BACK:
        yield ActionEvent.ROLLED_BACK, command.message
    elif command.phase is CommandPhase.DONE:
        yield ActionEvent.REQUESTED, ""
        yield ActionEvent.INITIALIZED, ""
    elif claim is not None and episode.is_requested(claim):
        yield ActionEvent.REQUESTED, "the node must boot and become ready"


def _drain_message(claim: NodeClaim | None) -> str:
    """Return what the drain of a node waits for, empty if unknown."""
    known = claim.condition("Drained") if claim is not None else None
    return known.message if known is not None else ""
