"""Drift that does not get anywhere: named after a deadline, with what holds it.

A drifted node behind a PodDisruptionBudget, a protected pod or a budget of nought is blocked, which
is as it should be, and stays so without a word for as long as nobody looks. Kubernetes knows the
same of Deployments, and its name for it is kept: a progress deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.drift import drifted_since
from reconciler.model.duration import parse_duration
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.settings import Settings
from reconciler.plan.plan import (
    BlockedNode,
    DeferredClaim,
    DriftedClaim,
    Finding,
    PlannedCommand,
)

PROGRESS_DEADLINE: Final = "progress-deadline"


@dataclass(frozen=True, slots=True)
class Overdue:
    """A drifted NodeClaim that should have been replaced by now, and what blocks it."""

    node_claim: str
    node: str | None
    node_pool: str
    since: datetime
    deadline: str
    key: str
    why: str

    def __str__(self) -> str:
        node = f" (node {self.node})" if self.node else ""
        return (
            f"NodeClaim {self.node_claim}{node} of NodePool {self.node_pool} has been drifted since"
            f" {self.since:%Y-%m-%d %H:%M %Z}, longer than {self.deadline} ({self.key}), and is not"
            f" replaced: {self.why}"
        )

    def finding(self) -> Finding:
        """Return it as a finding of a plan."""
        return Finding(severity="warning", code=PROGRESS_DEADLINE, message=str(self))


def overdue(
    drift: Iterable[DriftedClaim],
    commands: Iterable[PlannedCommand],
    blocked: Iterable[BlockedNode],
    deferred: Iterable[DeferredClaim],
    claims: Mapping[str, NodeClaim],
    settings: Settings,
    now: datetime,
) -> tuple[Overdue, ...]:
    """Return the drifted claims that no command takes now and whose deadline has passed."""
    going = {name for command in commands for name in command.node_claims}
    why = {item.node_claim: item.message for item in reversed([*deferred])}
    by_node = {item.node: item.message for item in reversed([*blocked])}
    found = []
    for item in drift:
        claim = claims.get(item.node_claim)
        due = due_at(claim, settings) if claim is not None else None
        if claim is None or due is None or now < due or item.node_claim in going:
            continue
        since = drifted_since(claim)
        assert since is not None, "what has a deadline has a beginning"
        pool = item.node_pool
        held = by_node.get(item.node or "") or why.get(item.node_claim)
        found.append(
            Overdue(
                node_claim=item.node_claim,
                node=item.node,
                node_pool=pool,
                since=since,
                deadline=settings.option(pool, "progress_deadline"),
                key=settings.option_key(pool, "progress_deadline", "progressDeadline"),
                why=held or "other nodes come first",
            )
        )
    return tuple(found)


def due_at(claim: NodeClaim, settings: Settings) -> datetime | None:
    """Return when a drifted claim should have been replaced; None where nobody asks that."""
    deadline = parse_duration(settings.option(claim.node_pool, "progress_deadline"))
    since = drifted_since(claim)
    return since + deadline if since is not None and deadline > timedelta(0) else None
