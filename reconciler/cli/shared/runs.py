"""The progress of recorded plans, read from the records of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.plan.value.actions import ActionKind
from reconciler.ports.journal import Verb

if TYPE_CHECKING:
    from reconciler.adapters.database.state import DatabaseState
    from reconciler.engine.tracking import Records
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.plan.run import ActionState, PlanRun
    from reconciler.ports.journal import JournalEntry
    from reconciler.ports.state import RecordedPlan, RunningCommand

_PLANS: Final = (1, 10, 100)
"""How many plans are searched for the last that was applied: mostly it is the newest."""

_LAUNCHES_MAX: Final = 100
"""How many operations on one NodeClaim are searched for its launch."""


def newest_run(state: DatabaseState) -> tuple[RecordedPlan, PlanRun] | None:
    """Return the last applied plan and its progress, None before the first."""
    for limit in _PLANS:
        for recorded in state.store.plans(limit=limit):
            if recorded.carried_out_at is not None:
                return recorded, run_of_recorded(state, recorded)
    return None


def run_of_recorded(state: DatabaseState, recorded: RecordedPlan) -> PlanRun:
    """Return the progress of a recorded plan.

    What had not begun when a later plan was made is superseded. Pruning removes a plan before the
    records of its actions, so nothing is superseded only because its past is gone.
    """
    from reconciler.engine.tracking import run_of
    from reconciler.plan.value.plan import from_json

    plan = from_json(recorded.body, f"plan {recorded.digest}")
    newest = next(iter(state.store.plans(limit=1)), recorded)
    is_superseded = newest.digest != recorded.digest
    return run_of(plan, records_of(state, recorded.digest), superseded=is_superseded)


def records_of(state: DatabaseState, plan: str) -> Records:
    """Return what is recorded of the actions of a plan.

    Two plans may decide on the same command; its record belongs to the one that started it last.
    """
    from reconciler.engine.tracking import Records

    @cache
    def command(name: str) -> RunningCommand | None:
        found = state.store.command(name)
        return found if found is not None and found.plan in ("", plan) else None

    @cache
    def gone(name: str) -> NodeClaim | None:
        found = state.history.gone_claim(name)
        return None if found is None else found.claim

    def launch(name: str) -> JournalEntry | None:
        entries = state.journal.entries(limit=_LAUNCHES_MAX, target=name)
        ours = (e for e in entries if e.intent.verb is Verb.LAUNCH and e.intent.plan == plan)
        return next(ours, None)

    claims = {claim.name: claim for claim in state.store.node_claims()}
    return Records(claims, command, gone, launch)


class Served(NamedTuple):
    """The action that an operation served: the digest of its plan, its id and its present state."""

    plan: str
    action: str
    state: ActionState


def served_by(state: DatabaseState, entries: Sequence[JournalEntry]) -> Mapping[int, Served]:
    """Return the action that each operation served, by its place in the journal.

    An operation of a later pass does not name its plan: it is looked for in the plans that the
    other operations name. What served no action is left out: a tag, a cleanup, a stray taint.
    """
    named = {e.intent.plan: None for e in entries if e.intent.plan}
    found = (state.store.plan(digest) for digest in named)
    runs = {plan.digest: run_of_recorded(state, plan) for plan in found if plan is not None}
    newest = newest_run(state) if entries else None
    if newest is not None:
        runs.setdefault(newest[0].digest, newest[1])
    targets = {digest: _targets(digest, run) for digest, run in runs.items()}
    served: dict[int, Served] = {}
    for entry in entries:
        own = targets.get(entry.intent.plan)
        key = (_SERVES.get(entry.intent.verb, ""), entry.intent.target)
        searched = [own] if own is not None else targets.values()
        action = next((found[key] for found in searched if key in found), None)
        if action is not None:
            served[entry.sequence] = action
    return served


def _targets(plan: str, run: PlanRun) -> dict[tuple[str, str], Served]:
    """Return the actions of a plan by their kind and the NodeClaim or Node that they are about."""
    return {
        (action.kind, name): Served(plan, action.id, run.states[action.id])
        for action in run.graph.actions.values()
        for name in (action.node_claim, action.node)
        if name
    }


_SERVES: Final = {
    Verb.LAUNCH: ActionKind.PROVISION,
    Verb.TAINT: ActionKind.TERMINATE,
    Verb.UNTAINT: ActionKind.TERMINATE,
    Verb.DRAIN: ActionKind.TERMINATE,
    Verb.TERMINATE: ActionKind.TERMINATE,
    Verb.DELETE_NODE: ActionKind.TERMINATE,
}
"""The kind of action that an operation serves."""
