"""The status of a recorded fleet: the reply of ``status``, in the form of its schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from reconciler.assembly.inputs.records import RecordedFleet, newest_plan, newest_run
from reconciler.inspection.resources import API, phase_of
from reconciler.model.decision.waiting import Blocker
from reconciler.model.decode import decode_json
from reconciler.plan.render.wording import removal_texts
from reconciler.plan.value.plan import Plan
from reconciler.ports.journal import REQUESTED
from reconciler.ports.state import (
    REVISION_PROBLEM_RECORD,
    RecordedPlan,
    RevisionProblem,
    RunningCommand,
    Unavailable,
)

PHASES: Final = ("Pending", "Launched", "Registered", "Ready", "Terminating")


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the status; money is USD an hour."""


class AppliedRevision(_Part, frozen=True, kw_only=True):
    """The commit that was applied last, and when it was first applied."""

    head: str
    since: datetime


class OperationInDoubt(_Part, frozen=True, kw_only=True):
    """An operation whose outcome is unknown."""

    id: str
    verb: str
    target: str


class OpenRequest(_Part, frozen=True, kw_only=True):
    """A request of a user that is still open."""

    verb: str
    target: str
    at: datetime
    reason: str


class RolloutStatus(_Part, frozen=True, kw_only=True):
    """A rollout that is in progress or has failures."""

    node_pool: str
    wave: int
    nodes: int
    size: int
    failures: int
    waits_for: str
    stopped_at: datetime | None
    stopped_why: str


class OwnershipFinding(_Part, frozen=True, kw_only=True):
    """A finding about nodes without exactly one known owner."""

    code: str
    message: str


class PlanCost(_Part, frozen=True, kw_only=True):
    """The cost of the fleet before and after a plan."""

    before: float
    after: float


class PlanTotals(_Part, frozen=True, kw_only=True):
    """The totals of the newest plan."""

    digest: str
    at: datetime
    carried_out_at: datetime | None
    actions: int
    unschedulable: int
    blocked: int
    deferred: int
    cost: PlanCost


class UnfinishedAction(_Part, frozen=True, kw_only=True):
    """An action that is not finished, and what it waits for."""

    action: str
    state: str
    why: str


class PlanProgress(_Part, frozen=True, kw_only=True):
    """The progress of the last applied plan; ``states`` counts its actions."""

    plan: str
    finished: bool
    states: dict[str, int]
    unfinished: tuple[UnfinishedAction, ...]


class Status(_Part, frozen=True, kw_only=True):
    """The reply of ``status`` (``schemas/status.v1.json``).

    ``node_pools`` counts the NodeClaims of each NodePool by phase. ``known`` is when facts of AWS
    were read. ``removals`` names the nodes that stay although git no longer has their NodePool.
    """

    api_version: str = API
    kind: str = "Status"
    fleet: str
    state: str
    serial: int
    revision: AppliedRevision | None
    revision_problem: RevisionProblem | None
    held_by: str | None
    node_pools: dict[str, dict[str, int]]
    commands: tuple[RunningCommand, ...]
    in_doubt: tuple[OperationInDoubt, ...]
    requests: tuple[OpenRequest, ...]
    unavailable: tuple[Unavailable, ...]
    rollouts: tuple[RolloutStatus, ...]
    blockers: tuple[Blocker, ...]
    ownership: tuple[OwnershipFinding, ...]
    removals: tuple[str, ...]
    plan: PlanTotals | None
    progress: PlanProgress | None
    known: dict[str, datetime]


def status_of(recorded: RecordedFleet, known: Mapping[str, datetime]) -> Status:
    """Return the status of a fleet; ``known`` is when facts of AWS were read."""
    found = newest_plan(recorded.state)
    plan = found[1] if found is not None else None
    revision = recorded.state.history.revision()
    in_doubt, requests = _open_operations(recorded)
    return Status(
        fleet=recorded.fleet,
        state=recorded.where,
        serial=recorded.state.store.serial(),
        revision=AppliedRevision(head=revision[0], since=revision[1]) if revision else None,
        revision_problem=_revision_problem(recorded),
        held_by=recorded.state.lease.holder(),
        node_pools=_pool_counts(recorded),
        commands=tuple(recorded.state.store.commands()),
        in_doubt=in_doubt,
        requests=requests,
        unavailable=tuple(recorded.state.store.unavailable(recorded.now)),
        rollouts=_rollouts(recorded),
        blockers=plan.blockers if plan is not None else (),
        ownership=_ownership(plan),
        removals=tuple(removal_texts(plan.deferred)) if plan is not None else (),
        plan=None if found is None else _totals(*found),
        progress=_progress(recorded),
        known=dict(known),
    )


def _pool_counts(recorded: RecordedFleet) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {
        o.name: Counter() for o in recorded.state.store.objects() if o.kind == "NodePool"
    }
    for claim in recorded.state.store.node_claims():
        counts.setdefault(claim.node_pool, Counter())[phase_of(claim)] += 1
    return {
        pool: {phase.lower(): counts[pool][phase] for phase in PHASES} for pool in sorted(counts)
    }


def _open_operations(
    recorded: RecordedFleet,
) -> tuple[tuple[OperationInDoubt, ...], tuple[OpenRequest, ...]]:
    """Return the operations with unknown outcome, and the users' requests."""
    intents = [entry.intent for entry in recorded.state.journal.in_doubt()]
    in_doubt = tuple(
        OperationInDoubt(id=i.id, verb=i.verb.value, target=i.target)
        for i in intents
        if i.verb not in REQUESTED
    )
    requests = tuple(
        OpenRequest(verb=i.verb.value, target=i.target, at=i.at, reason=i.reason)
        for i in intents
        if i.verb in REQUESTED
    )
    return in_doubt, requests


def _rollouts(recorded: RecordedFleet) -> tuple[RolloutStatus, ...]:
    return tuple(
        RolloutStatus(
            node_pool=r.node_pool,
            wave=r.wave,
            nodes=r.disrupted_nodes,
            size=r.size,
            failures=r.failure_count,
            waits_for=next((m.waits_for for m in r.moves if m.waits_for), ""),
            stopped_at=r.stopped_at,
            stopped_why=r.stopped_why if r.stopped_at else "",
        )
        for r in recorded.state.store.rollouts()
        if r.moves or r.failure_count or r.stopped_at
    )


def _ownership(plan: Plan | None) -> tuple[OwnershipFinding, ...]:
    """Return the findings of the newest plan on nodes without exactly one known owner."""
    from reconciler.engine.ownership import OWNERSHIP_CODES

    found = plan.diagnostics if plan is not None else ()
    return tuple(
        OwnershipFinding(code=f.code, message=f.message) for f in found if f.code in OWNERSHIP_CODES
    )


def _totals(newest: RecordedPlan, plan: Plan) -> PlanTotals:
    return PlanTotals(
        digest=newest.digest,
        at=newest.at,
        carried_out_at=newest.carried_out_at,
        actions=len(plan.actions),
        unschedulable=len(plan.unschedulable),
        blocked=len(plan.blocked),
        deferred=len(plan.deferred),
        cost=PlanCost(before=plan.cost.before, after=plan.cost.after),
    )


def _revision_problem(recorded: RecordedFleet) -> RevisionProblem | None:
    """Return why the newest revision is not in effect, None if it is."""
    content = recorded.state.shelf.read(REVISION_PROBLEM_RECORD)
    if content is None:
        return None
    try:
        return None if content.strip() == b"null" else decode_json(content, RevisionProblem)
    except msgspec.MsgspecError:
        return None  # of another release; the daemon writes it again


def _progress(recorded: RecordedFleet) -> PlanProgress | None:
    """Return the progress of the last applied plan."""
    found = newest_run(recorded.state)
    if found is None:
        return None
    plan, run = found
    return PlanProgress(
        plan=plan.digest,
        finished=run.is_finished,
        states={state.value: number for state, number in run.counts().items()},
        unfinished=tuple(
            UnfinishedAction(
                action=a.id, state=run.states[a.id].value, why=run.status_message(a.id)
            )
            for a in run.unfinished()
        ),
    )
