"""What a plan has to say beside its decisions: about its inputs, and about its own limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.desired.resource import LOCK_FILE
from reconciler.model.diagnostics import Diagnostic
from reconciler.observed.state import ClusterState
from reconciler.placement.daemons import unreadable
from reconciler.placement.result import GivenUp
from reconciler.plan.plan import Finding, PlannedNodeClaim
from reconciler.plan.wording import counted, dollars, moment, pods_said, price_said

if TYPE_CHECKING:
    from reconciler.desired.lock import Lock
    from reconciler.disruption.command import Decisions
    from reconciler.plan.deciding import Places


def finding(diagnostic: Diagnostic) -> Finding:
    """Return a diagnostic in the flat form of the plan's schema."""
    place = diagnostic.place
    return Finding(
        severity=diagnostic.severity.value,
        code=diagnostic.code,
        message=diagnostic.message,
        path=diagnostic.path or None,
        file=place.file if place is not None else None,
        line=place.line if place is not None else None,
        column=place.column if place is not None else None,
        hint=diagnostic.hint or None,
    )


def of_lock(lock: Lock | None) -> Iterator[Finding]:
    """Report that images, zones and prices come from a lock."""
    if lock is not None:
        message = f"images, subnets and prices locked at {moment(lock.locked_at)}"
        yield Finding(severity="info", code="locked", message=message, file=LOCK_FILE)


def of_catalog(catalog: Catalog, claims: Sequence[PlannedNodeClaim]) -> Iterator[Finding]:
    """Report where prices come from, and how many launches use an estimate."""
    for warning in catalog.warnings:
        yield Finding(severity="warning", code="catalog-fallback", message=warning)
    source = catalog.source.rpartition("/")[2]  # wherever the file lies, it is the same input
    yield Finding(severity="info", code="catalog", message=f"instance types: {source}")
    estimated = sum(claim.launch.estimated for claim in claims)
    for note in catalog.notes:
        is_estimate = catalog.spot_is_estimated and note.startswith("spot")
        code = "spot-estimated" if is_estimate else "catalog-note"
        if is_estimate and estimated:
            uses = "launch uses" if estimated == 1 else "launches use"
            note = f"{estimated:,} {uses} estimated spot prices"
        yield Finding(severity="info", code=code, message=note)
    yield from _sources(claims)


def _sources(claims: Sequence[PlannedNodeClaim]) -> Iterator[Finding]:
    """Report the sources of launch prices, where any is not bundled with the release."""
    counts: dict[str, int] = {}
    told = False
    for claim in claims:
        source = claim.launch.price_source
        if isinstance(source, msgspec.UnsetType):
            continue
        told = told or source.source not in ("bundled", "estimate", "reservation")
        said = price_said(source)
        counts[said] = counts.get(said, 0) + 1
    if told:
        parts = (f"{said} ({counted(n, 'launch', 'launches')})" for said, n in counts.items())
        yield Finding(severity="info", code="prices", message=f"price sources: {', '.join(parts)}")


def of_daemon_sets(cluster: ClusterState) -> Iterator[Finding]:
    """Report the DaemonSets that cannot be read, and how they are counted."""
    for name, why in unreadable(cluster):
        message = (
            f"invalid DaemonSet {name}: {why}; it is assumed to run on every node that it tolerates"
        )
        yield Finding(severity="warning", code="daemonset-unreadable", message=message)


def of_decisions(decisions: Decisions | Places) -> Iterator[Finding]:
    """Report limits of work, dropped preferences and invalid budgets."""
    for limit in decisions.limits_hit:
        yield Finding(severity="warning", code="work-limit", message=limit)
    broken = {(s.node_pool, s.error): s.binding for s in decisions.budgets if s.error is not None}
    for (pool, error), index in broken.items():
        message = f"invalid budget of NodePool {pool}, so its nodes cannot be disrupted: {error}"
        path = None if index is None else f"spec.disruption.budgets[{index}]"
        yield Finding(severity="warning", code="budget-unreadable", message=message, path=path)
    if decisions.placement is not None and decisions.placement.given_up is not None:
        yield _too_dear(decisions.placement.given_up)


def _too_dear(given_up: GivenUp) -> Finding:
    """Report the pods whose preferences cost too much, and the savings of dropping them."""
    pods = given_up.preferences
    whose = f"{counted(len(pods), 'pod')} ({pods_said(pods)})"
    saved = f", which saves {dollars(given_up.saving)} an hour" if given_up.saving > 0 else ""
    return Finding(
        severity="warning",
        code="preferences-given-up",
        message=f"soft preferences of {whose} are dropped{saved}",
        hint="to honour them at any cost, set maximumPreferenceCostPercent to 100",
    )
