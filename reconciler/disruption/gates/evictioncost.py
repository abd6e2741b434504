"""The price of an eviction: a consolidation has to save more than its moves cost.

Karpenter moves pods for any savings. Here, what a command saves over the time that its nodes would
have lived on has to be at least ``evictionCost`` for each pod that it moves.

A node lives on as long as a pod needs it. Half of the pods that run to their end run at least as
long again as they have run, as is typical of batch work, whose few long pods make up most of the
time (Harchol-Balter and Downey, "Exploiting Process Lifetime Distributions for Dynamic Load
Balancing", 1997). Savings count by the mean of that distribution, which is more than its median.
Any other pod is expected to need a node for a day. A node that expires lives until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil, inf, log1p, log2
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.model.decision.waiting import WaitRule
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.pod import Pod, is_ready_false
from reconciler.model.settings import PoolOption, Settings
from reconciler.model.text.counting import format_count
from reconciler.observed.state import eviction_costs

LIFE_MAX: Final = timedelta(days=1)
"""How long savings count at most: by then, deployments and autoscalers have replaced most pods."""
_ENDING: Final = frozenset({"Workflow", "TaskRun", "SparkApplication"})
"""The kinds of owners, besides those of some kind of Job, whose pods run to their end."""
_AGE_MAX: Final = 30 * LIFE_MAX
"""The age of the oldest pods whose end is waited for."""
_HOUR: Final = timedelta(hours=1)
_SECOND: Final = timedelta(seconds=1)
_NONE: Final = timedelta(0)


def hourly_eviction_cost(
    candidates: Sequence[Candidate], settings: Settings, now: datetime
) -> float:
    """Return what the moves cost for each hour that the nodes would have lived on, in USD.

    It is what a consolidation of these nodes has to save, 0 if moves have no price, and infinite if
    the nodes are not needed any longer.
    """
    cost = sum(_moves_cost(candidate, settings) for candidate in candidates)
    if not cost:
        return 0.0
    life = _life_of_all(candidates, now)
    return cost / (life / _HOUR) if life else inf


def least_savings(candidate: Candidate, settings: Settings, now: datetime) -> float:
    """Return the USD an hour that a set has to save on a node, or it is better without the node.

    The time for which the node is expected to be needed is rounded up to a power of two, so that
    the result seldom changes and the rejection of a set can be reused.
    """
    cost = _moves_cost(candidate, settings)
    life = _life_of(candidate, now)
    if not cost or not life:
        return inf if cost else 0.0
    return cost / min(2.0 ** ceil(log2(life / _HOUR)), LIFE_MAX / _HOUR)


def eviction_cost_refusal(
    candidates: Sequence[Candidate], savings: float, settings: Settings, now: datetime
) -> CandidateRefusal | None:
    """Reject a consolidation whose moves cost more than it saves, in USD an hour.

    It ends, if that is possible, when a pod has run until its node is expected to be needed for
    long enough.
    """
    prices = {c.pool.name: settings.pool(c.pool.name).eviction_cost for c in candidates}
    if not any(prices.values()):
        return None
    moves = [(candidate.pool.name, _moves(candidate)) for candidate in candidates]
    cost = sum(prices[name] * number for name, number in moves)
    life = _life_of_all(candidates, now)
    if savings * (life / _HOUR) >= cost:
        return None
    name, price = max(prices.items(), key=lambda row: (row[1], row[0]))
    text = (
        f"saves ${savings:.4f}/hour, ${savings * (life / _HOUR):.2f} in the "
        f"{_format_hours(life)} that its nodes are expected to be needed, and moves "
        f"{format_count(round(sum(number for _, number in moves)), 'pod')} at ${price:g} each "
        f"({settings.key_of(name, PoolOption.EVICTION_COST)})"
    )
    return CandidateRefusal(
        BlockCode.EVICTION_COST,
        text,
        _worthwhile_at(candidates, savings, cost, now),
        WaitRule.EVICTION_COST,
    )


def _life_of_all(candidates: Sequence[Candidate], now: datetime) -> timedelta:
    """Return how long the last of the nodes is expected to be needed, at most a day."""
    return max((_life_of(candidate, now) for candidate in candidates), default=_NONE)


def _life_of(candidate: Candidate, now: datetime) -> timedelta:
    """Return how long a node is expected to be needed, at most a day."""
    needed = max((_life_of_pod(pod, now) for pod in candidate.reschedulable), default=_NONE)
    return min(needed, _until_expiry(candidate.claim, now))


def _until_expiry(claim: NodeClaim, now: datetime) -> timedelta:
    expires = claim.expires_at
    return LIFE_MAX if expires is None else min(LIFE_MAX, max(_NONE, expires - now))


def _life_of_pod(pod: Pod, now: datetime) -> timedelta:
    created = pod.metadata.creation_timestamp
    if created is None or not _runs_to_its_end(pod):
        return LIFE_MAX
    return _expected_life(now - created)


def _expected_life(age: timedelta) -> timedelta:
    """Return how much longer a pod of that age that runs to its end is expected to run.

    With the probability ``age / (age + t)`` it runs for ``t`` longer. The mean of the time that
    counts, at most ``LIFE_MAX``, is the integral of that.
    """
    return age * log1p(LIFE_MAX / age) if age > _NONE else _NONE


def _age_to_run(life: timedelta) -> timedelta | None:
    """Return the age from which a pod is expected to run for ``life``, None if that is too long."""
    low, high = _NONE, _AGE_MAX
    if _expected_life(high) < life:
        return None
    while high - low > _SECOND:
        middle = (low + high) / 2
        low, high = (low, middle) if _expected_life(middle) >= life else (middle, high)
    return high


def _runs_to_its_end(pod: Pod) -> bool:
    """Return whether the pod belongs to a Job, or to something else that ends by itself."""
    return any(
        owner.kind.endswith("Job") or owner.kind in _ENDING
        for owner in pod.metadata.owner_references
    )


def _moves_cost(candidate: Candidate, settings: Settings) -> float:
    """Return what the moves of a node cost in USD; nothing is counted where they are free."""
    price = settings.pool(candidate.pool.name).eviction_cost
    return price * _moves(candidate) if price else 0.0


def _moves(candidate: Candidate) -> float:
    """Return the pods that a command moves, weighted by their eviction cost.

    A pod that is not ready serves nobody, so moving it costs nothing.
    """
    return eviction_costs(pod for pod in candidate.reschedulable if not is_ready_false(pod))


def _worthwhile_at(
    candidates: Sequence[Candidate], savings: float, cost: float, now: datetime
) -> datetime | None:
    """Return when the oldest pod that runs to its end has run for long enough, None if never."""
    if savings <= 0 or cost / savings > LIFE_MAX / _HOUR:
        return None
    needed = timedelta(hours=cost / savings)
    age = _age_to_run(needed)
    if age is None:
        return None
    moments = [
        pod.metadata.creation_timestamp + age
        for candidate in candidates
        for pod in candidate.reschedulable
        if pod.metadata.creation_timestamp is not None and _runs_to_its_end(pod)
    ]
    at = min((moment for moment in moments if moment > now), default=None)
    lasts = at is not None and any(
        candidate.claim.expires_at is None or candidate.claim.expires_at - at >= needed
        for candidate in candidates
    )
    return at if lasts else None


def _format_hours(life: timedelta) -> str:
    minutes = round(life / timedelta(minutes=1))
    return format_count(minutes, "minute") if minutes < 120 else f"{minutes / 60:.0f} hours"
