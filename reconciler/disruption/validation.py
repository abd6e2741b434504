"""Whether a command still holds, asked again before anything is taken away.

Karpenter waits fifteen seconds between deciding and acting, because pods may have come meanwhile
(``validation.go``). The command that was decided is carried out, or it is not: a better one that
appeared meanwhile is for the next pass. Of empty nodes, those that stayed empty go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.command import Command
from reconciler.disruption.consolidation import consolidatable
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.emptiness import quiet_and_empty
from reconciler.disruption.policy import holds_of
from reconciler.disruption.situation import Situation, open_pass
from reconciler.model.budget import DisruptionReason
from reconciler.placement.result import PlannedClaim

VALIDATION_WAIT: Final = timedelta(seconds=15)
"""How long after its decision a graceful command is validated."""


class Failure(StrEnum):
    """Why a command does not hold any more, in Karpenter's words for its events."""

    CHURN = "churn"
    BUDGET = "budget"
    SCHEDULING = "scheduling"


@dataclass(frozen=True, slots=True)
class Invalid:
    """A command that must not start, and what changed."""

    failure: Failure
    message: str


def validate(command: Command, situation: Situation) -> Command | Invalid:
    """Return the command as it may start in the fresh ``situation``, or why it may not.

    The situation is asked as if the command had not begun: its nodes are not marked yet. Drift,
    removal and the forceful reasons only need their nodes to be there still: what they rest on
    does not pass.
    """
    gone = _gone(command, situation)
    if gone:
        return Invalid(Failure.CHURN, f"gone already: {', '.join(gone)}")
    held = _held(command, situation)
    if held is not None:
        return Invalid(Failure.BUDGET, held)
    if command.reason not in (DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED):
        return command
    work = open_pass(situation).work
    if command.reason is DisruptionReason.EMPTY:
        return _still_empty(command, work)
    return _still_underutilized(command, work)


def _held(command: Command, situation: Situation) -> str | None:
    """Return what holds a pool of the command since: a suspension, or a window that closed."""
    if command.is_forceful:
        return None
    gate = (
        command.reason if isinstance(command.reason, DisruptionReason) else DisruptionReason.DRIFTED
    )
    named = set(command.node_claims)
    nodes = situation.cluster.nodes
    pools = {n.node_pool for n in nodes if n.claim is not None and n.claim.name in named}
    holds = holds_of(sorted(pools), situation.settings, situation.now)
    return next((hold.message for (_, reason), hold in holds.items() if reason is gate), None)


def _gone(command: Command, situation: Situation) -> list[str]:
    """Return the claims of the command that are deleted or on their way out."""
    claims = [node.claim for node in situation.cluster.nodes if node.claim is not None]
    claims += situation.cluster.unlaunched
    here = {claim.name for claim in claims if not claim.is_deleting}
    if command.reason is DisruptionReason.EMPTY:
        return [] if here.intersection(command.node_claims) else list(command.node_claims)
    return [name for name in command.node_claims if name not in here]


def _still_empty(command: Command, work: Deliberation) -> Command | Invalid:
    """Keep the nodes that are still empty and for which there is a budget."""
    named = set(command.nodes)
    empty = [c for c in work.candidates(quiet_and_empty) if c.name in named]
    if not empty:
        return Invalid(Failure.CHURN, "none of the nodes is empty any more")
    kept: list[Candidate] = []
    for candidate in empty:
        if work.left(candidate, DisruptionReason.EMPTY) > 0:
            work.ledger.take(candidate.pool.name, DisruptionReason.EMPTY)
            kept.append(candidate)
    if not kept:
        return Invalid(Failure.BUDGET, "the budgets do not allow it any more")
    return replace(
        command,
        nodes=tuple(c.name for c in kept),
        node_claims=tuple(c.claim.name for c in kept),
        savings=sum(c.price for c in kept),
    )


def _still_underutilized(command: Command, work: Deliberation) -> Command | Invalid:
    named = set(command.nodes)
    candidates = [c for c in consolidatable(work) if c.name in named]
    if len(candidates) < len(named):
        missing = ", ".join(sorted(named - {c.name for c in candidates}))
        return Invalid(Failure.CHURN, f"no candidate any more: {missing}")
    for candidate in candidates:
        if work.left(candidate, DisruptionReason.UNDERUTILIZED) == 0:
            text = f"the budget of NodePool {candidate.pool.name} does not allow it any more"
            return Invalid(Failure.BUDGET, text)
        work.ledger.take(candidate.pool.name, DisruptionReason.UNDERUTILIZED)
    outcome = work.simulation.without(candidates, consolidating=True)
    if outcome.failure is not None:
        return Invalid(Failure.SCHEDULING, outcome.failure)
    problem = _differs(command.replacements, outcome.placement.claims)
    return Invalid(Failure.SCHEDULING, problem) if problem is not None else command


def _differs(decided: Sequence[PlannedClaim], needed: Sequence[PlannedClaim]) -> str | None:
    """Return why what is needed now is not what was decided: its types must still be an option."""
    if len(needed) != len(decided):
        return f"{len(needed)} new nodes are needed now, not {len(decided)}"
    for claim, fresh in zip(decided, needed, strict=True):
        options = {kind.name for kind in fresh.types}
        lost = sorted(kind.name for kind in claim.types if kind.name not in options)
        if lost:
            return f"instance types are no option any more: {', '.join(lost[:5])}"
    return None
