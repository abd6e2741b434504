"""Disruption settings in addition to Karpenter's rules, all of them off by default.

A suspension or a closed window defers a NodePool for a reason, regardless of its budgets, and
applies to every voluntary reason. Minimum savings and minimum age only affect consolidation. The
messages name the setting, and its owner if it has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.model.decision.waiting import WaitRule, WaitsFor
from reconciler.model.karpenter.budget import DisruptionReason, next_budget_change
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import ExpirationPolicy, PoolOption, Settings
from reconciler.model.text.times import format_time
from reconciler.model.windows import Suspension, Window


@dataclass(frozen=True, slots=True)
class Hold:
    """Why no node of a NodePool can be disrupted for a reason now, and until when if known.

    ``rule`` is the rule of a policy.
    """

    waits_for: WaitsFor
    until: datetime | None
    message: str
    rule: WaitRule | None = None


Holds = dict[tuple[str, DisruptionReason], Hold]


def holds_of(pools: Iterable[str], settings: Settings, now: datetime) -> Holds:
    """Return the current holds, by NodePool and reason."""
    if not settings.suspensions and not settings.windows:
        return {}
    found: Holds = {}
    for pool in pools:
        for reason in DisruptionReason:
            hold = _suspension_hold(pool, reason, settings.suspensions, now)
            hold = hold or _window_hold(pool, reason, settings.windows, now)
            if hold is not None:
                found[pool, reason] = hold
    return found


def _suspension_hold(
    pool: str, reason: DisruptionReason, suspensions: Sequence[Suspension], now: datetime
) -> Hold | None:
    """Return the suspension that ends last; one without an end takes precedence."""
    active = [
        (index, suspension)
        for index, suspension in enumerate(suspensions)
        if suspension.covers(pool, reason) and suspension.is_active(now)
    ]
    if not active:
        return None
    endless = [row for row in active if row[1].until is None]
    index, suspension = (endless or sorted(active, key=_suspension_end, reverse=True))[0]
    until = (
        f"until {_format_time(suspension.until)}"
        if suspension.until is not None
        else "indefinitely"
    )
    note = f": {suspension.note}" if suspension.note else ""
    text = (
        f"{suspension.owner} suspended disruption of NodePool {pool} for {reason.cause} {until} "
        f"(disruption.suspend[{index}]){note}"
    )
    return Hold(WaitsFor.POLICY, suspension.until, text, WaitRule.SUSPENSION)


def _suspension_end(row: tuple[int, Suspension]) -> datetime:
    assert row[1].until is not None
    return row[1].until


def _window_hold(
    pool: str, reason: DisruptionReason, windows: Sequence[Window], now: datetime
) -> Hold | None:
    """Return a hold if windows apply to the pool and the reason and none of them is open."""
    applicable = [(index, w) for index, w in enumerate(windows) if w.covers(pool, reason)]
    if not applicable or any(window.is_open(now) for _, window in applicable):
        return None
    openings = [(at, index) for index, w in applicable if (at := w.next_change(now)) is not None]
    at, index = min(openings, default=(None, applicable[0][0]))
    owner = windows[index].owner
    whose = f", owner {owner}" if owner else ""
    when = (
        f"the next window opens at {_format_time(at)}" if at is not None else "no window ever opens"
    )
    text = (
        f"disruption windows of NodePool {pool} for {reason.cause} are closed; {when} "
        f"(disruption.windows[{index}]{whose})"
    )
    return Hold(WaitsFor.SCHEDULE, at, text)


def _format_time(moment: datetime | None) -> str:
    return format_time(moment) if moment is not None else ""


def minimum_age_end(claim: NodeClaim, pool: str, settings: Settings) -> datetime | None:
    """Return when a node is old enough for consolidation; None without a minimum age."""
    age = settings.pool(pool).minimum_age
    created = claim.metadata.creation_timestamp
    return created + age if age and created is not None else None


def minimum_age_hold(candidate: Candidate, settings: Settings, now: datetime) -> Hold | None:
    """Return why a node is too young for consolidation, or None."""
    pool = candidate.pool.name
    at = minimum_age_end(candidate.claim, pool, settings)
    if at is None or now >= at:
        return None
    age = settings.pool(pool).minimum_age
    key = settings.key_of(pool, PoolOption.MINIMUM_AGE)
    text = f"younger than {age}, the minimum age for consolidation ({key})"
    return Hold(WaitsFor.POLICY, at, text, WaitRule.MINIMUM_AGE)


def minimum_savings_refusal(
    candidates: Sequence[Candidate], savings: float, settings: Settings
) -> CandidateRefusal | None:
    """Reject a consolidation that saves less than the minimum of a NodePool of its nodes."""
    price = sum(candidate.price for candidate in candidates)
    percent = 100 * savings / price if price > 0 else 0.0
    for pool in sorted({candidate.pool.name for candidate in candidates}):
        minimum = settings.pool(pool).minimum_savings
        share = settings.pool(pool).minimum_savings_percent
        found = f"saves ${savings:.4f}/hour ({percent:.1f}%), NodePool {pool} requires"
        if savings < minimum:
            key = settings.key_of(pool, PoolOption.MINIMUM_SAVINGS)
            return CandidateRefusal(
                BlockCode.MINIMUM_SAVINGS, f"{found} ${minimum:.4f}/hour ({key})"
            )
        if percent < share:
            key = settings.key_of(pool, PoolOption.MINIMUM_SAVINGS_PERCENT)
            return CandidateRefusal(BlockCode.MINIMUM_SAVINGS, f"{found} {share:g}% ({key})")
    return None


def expires_gracefully(pool: str, settings: Settings) -> bool:
    """Return whether expired nodes of the pool are disrupted within the budgets."""
    return settings.pool(pool).expiration_policy == ExpirationPolicy.GRACEFUL


def is_due_for_expiry(claim: NodeClaim, pool: str, settings: Settings, now: datetime) -> bool:
    """Return whether the node is due for graceful expiry; the boundary is included."""
    expires = claim.expires_at
    return expires is not None and now >= expires and expires_gracefully(pool, settings)


def forceful_expiry_at(claim: NodeClaim, pool: str, settings: Settings) -> datetime | None:
    """Return when the node expires forcefully; None if it never does."""
    expires = claim.expires_at
    if expires is None or not expires_gracefully(pool, settings):
        return expires
    return expires + settings.pool(pool).expiration_ceiling


def policy_changes(settings: Settings, now: datetime) -> Iterator[datetime | None]:
    """Yield when a suspension ends, and when a window or a budget of the fleet changes."""
    yield from (suspension.until for suspension in settings.suspensions)
    yield from (window.next_change(now) for window in settings.windows)
    yield next_budget_change(settings.fleet_budgets, now)
