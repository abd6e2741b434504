"""Repair policies: which conditions make a node unhealthy, and what repairs it.

The conditions and times are those of the AWS provider (``pkg/cloudprovider/cloudprovider.go``).
How they are matched and merged is Karpenter's (``pkg/controllers/node/health/policy.go``). Release
1.15 also reads the reason of a condition, which has the XID code of a GPU error, and limits how
long the drain may take. 1.14, and 1.15 with ``legacyNodeRepair``, only read type and status.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.command import Reason
from reconciler.model.decision.waiting import DeferredClaim, WaitRule, WaitsFor
from reconciler.model.duration import format_duration
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import Node
from reconciler.model.settings import FeatureGate, Settings
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.times import format_time
from reconciler.observed.state import ClusterState, StateNode

AGING: Final = timedelta(minutes=30)
"""How long a node waits, after its toleration, until it is as urgent as the next higher rank."""
PRIORITY_MAX: Final = 100
_STATUSES: Final = frozenset({"True", "False", "Unknown"})

_TRANSIENT: Final = "XID(46|48|54|62|63|95|109|110|136|140|143|155|156|158)"
"""GPU errors that a reboot clears. Without the gate ``RebootForRepair``, the node is replaced."""
_FATAL: Final = "XID(64|74|79|119|120)"

UNHEALTHY_SHARE_PERCENT: Final = 20
"""The maximum share of unhealthy nodes; above it, repair assumes another cause and stops."""


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """A condition that makes a node unhealthy once it has lasted for ``after``.

    ``reasons`` is a regular expression that is searched in the reason of the condition. Without
    one, the policy is the fallback for reasons that no other policy of a known type and status
    matches. ``drain_limit`` is how long the drain may take, None for the NodeClaim's own
    termination grace period. Nodes with a higher ``priority`` (0 to 100) are repaired first.
    ``reboots`` is whether the node is rebooted and not replaced.

    Raises:
        ValueError: a value is not allowed, or ``reasons`` is not a regular expression.
    """

    condition: str
    status: str
    after: timedelta
    reasons: str = ""
    drain_limit: timedelta | None = None
    priority: int = 0
    reboots: bool = False

    def __post_init__(self) -> None:
        if not self.condition or self.status not in _STATUSES:
            raise ValueError(f"a repair policy needs a type and a status of a condition: {self}")
        if min(self.after, self.drain_limit or timedelta(0)) < timedelta(0):
            raise ValueError(f"the durations of a repair policy cannot be negative: {self}")
        if not 0 <= self.priority <= PRIORITY_MAX:
            raise ValueError(f"the priority of a repair policy is 0 to {PRIORITY_MAX}: {self}")
        try:
            re.compile(self.reasons)
        except re.error as error:
            text = f"not a regular expression: {quote_value(self.reasons)}"
            raise ValueError(text) from error

    def matches_reason(self, reason: str) -> bool:
        """Return whether the reason of a condition is one of the policy's."""
        return bool(self.reasons) and re.search(self.reasons, reason) is not None


@dataclass(frozen=True, slots=True)
class RepairMatch:
    """A policy that a condition of a node meets, and when its toleration ends.

    ``rank`` is the position of the policy's priority among those of all policies.
    """

    policy: RepairPolicy
    condition: Condition
    tolerated_until: datetime
    rank: int = 0

    @property
    def since(self) -> datetime:
        """Since when the condition counts."""
        return self.tolerated_until - self.policy.after

    @property
    def description(self) -> str:
        """The condition in words, with its reason if that matters."""
        found = f"{self.condition.type} is {self.condition.status}"
        reads_reason = self.policy.reasons not in ("", ".*") and self.condition.reason
        return f"{found} ({self.condition.reason})" if reads_reason else found


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of a node that is due: what all policies whose toleration has ended require.

    ``match`` has the condition that decides. ``drain_limit`` is the shortest limit of any of the
    policies. The node is as urgent as one of the lowest rank that is due since ``urgent_since``.
    It is rebooted if all policies that are due ask for that, and replaced otherwise.
    """

    match: RepairMatch
    drain_limit: timedelta | None
    urgent_since: datetime


class RepairPolicies:
    """A complete set of policies.

    Raises:
        ValueError: it has several fallbacks, or one that reboots.
    """

    def __init__(self, policies: Sequence[RepairPolicy]) -> None:
        fallbacks = [policy for policy in policies if not policy.reasons]
        if len(fallbacks) != 1:
            raise ValueError(f"{len(fallbacks)} repair policies match any reason; one is allowed")
        if fallbacks[0].reboots:
            raise ValueError("the repair policy for any reason replaces the node")
        self.policies = tuple(policies)
        self._fallback = fallbacks[0]
        self._by_status: dict[tuple[str, str], list[RepairPolicy]] = {}
        for policy in policies:
            group = self._by_status.setdefault((policy.condition, policy.status), [])
            if policy.reasons:
                group.append(policy)
        priorities = sorted({policy.priority for policy in policies})
        self._ranks = {priority: rank for rank, priority in enumerate(priorities)}

    def matches(self, node: Node) -> Iterator[RepairMatch]:
        """Yield each policy that a condition of the node meets, tolerated or not.

        A condition is not older than its node.
        """
        created = node.metadata.creation_timestamp
        for condition in node.status.conditions:
            group = self._by_status.get((condition.type, condition.status))
            times = [t for t in (condition.last_transition_time, created) if t is not None]
            if group is None or not times:
                continue
            found = [p for p in group if p.matches_reason(condition.reason)] or [self._fallback]
            for policy in found:
                until = max(times) + policy.after
                yield RepairMatch(policy, condition, until, self._ranks[policy.priority])


def resolve(matches: Iterable[RepairMatch], now: datetime) -> Repair | None:
    """Return the repair that is due now, None if every condition is still tolerated.

    A policy that replaces the node decides before one that reboots it, then the one with the
    highest priority, then the one whose toleration ended first, then the first type of condition by
    name.
    """
    due = [match for match in matches if match.tolerated_until <= now]
    if not due:
        return None
    limits = [m.policy.drain_limit for m in due if m.policy.drain_limit is not None]
    return Repair(
        min(due, key=_decision_order),
        min(limits, default=None),
        min(m.tolerated_until - m.rank * AGING for m in due),
    )


def _decision_order(match: RepairMatch) -> tuple[bool, int, datetime, str]:
    policy = match.policy
    return policy.reboots, -policy.priority, match.tolerated_until, match.condition.type


def _policies(*, legacy: bool, reboots: bool = False) -> tuple[RepairPolicy, ...]:
    """Return the policies of the AWS provider; ``legacy`` are those of 1.14.

    ``reboots`` is whether GPU errors that a reboot clears are repaired by one.
    """
    half_hour, ten_minutes, five_minutes = (timedelta(minutes=m) for m in (30, 10, 5))
    general = (
        ("Ready", "False"),
        ("Ready", "Unknown"),
        ("StorageReady", "False"),
        ("NetworkingReady", "False"),
        ("KernelReady", "False"),
        ("ContainerRuntimeReady", "False"),
    )
    gpu = ("AcceleratedHardwareReady", "False")
    if legacy:
        tolerated = (*((*pair, half_hour) for pair in general), (*gpu, ten_minutes))
        return tuple(RepairPolicy(*row) for row in tolerated)
    return (
        *(RepairPolicy(*pair, half_hour, ".*", ten_minutes) for pair in general),
        RepairPolicy(*gpu, ten_minutes, _TRANSIENT, five_minutes, reboots=reboots),
        RepairPolicy(*gpu, ten_minutes, _FATAL, five_minutes),
        RepairPolicy(*gpu, half_hour, "", ten_minutes),
    )


LEGACY_POLICIES: Final = _policies(legacy=True)
"""The policies of Karpenter 1.14; each matches any reason."""
AWS_POLICIES: Final = RepairPolicies(_policies(legacy=False))
"""The policies of Karpenter 1.15."""
REBOOTING_POLICIES: Final = RepairPolicies(_policies(legacy=False, reboots=True))
"""The policies of Karpenter 1.15 with the gate ``RebootForRepair``."""


def legacy_matches(node: Node) -> Iterator[RepairMatch]:
    """Yield each policy of 1.14 that a condition of the node meets, tolerated or not."""
    for condition in node.status.conditions:
        for policy in LEGACY_POLICIES:
            since = condition.last_transition_time
            if (condition.type, condition.status) == (policy.condition, policy.status) and since:
                yield RepairMatch(policy, condition, since + policy.after)


def repair_matches(node: Node, settings: Settings) -> tuple[RepairMatch, ...]:
    """Return what makes the node unhealthy in a fleet with these settings, tolerated or not."""
    if settings.repairs_within_budgets:
        reboots = settings.gate(FeatureGate.REBOOT_FOR_REPAIR)
        return tuple((REBOOTING_POLICIES if reboots else AWS_POLICIES).matches(node))
    return tuple(legacy_matches(node)) if settings.repairs_forcefully else ()


def pools_with_too_many_unhealthy_nodes(
    cluster: ClusterState, settings: Settings
) -> frozenset[str]:
    """Return the NodePools in which repair stops, because something else must be broken.

    A node counts as soon as its condition has a policy, tolerated or not. The share rounds up, so
    that one unhealthy node is always repaired.
    """
    total: Counter[str] = Counter()
    unhealthy: Counter[str] = Counter()
    for node in cluster.nodes:
        if node.node is not None:
            total[node.node_pool] += 1
            unhealthy[node.node_pool] += bool(repair_matches(node.node, settings))
    return frozenset(
        pool
        for pool, count in unhealthy.items()
        if count > -(-total[pool] * UNHEALTHY_SHARE_PERCENT // 100)
    )


def waiting_repair(
    node: StateNode, claim: NodeClaim, match: RepairMatch, reason: Reason
) -> DeferredClaim:
    """Return that a node is repaired if its condition lasts for as long as its policy tolerates."""
    return DeferredClaim(
        node_claim=claim.name,
        node=node.name,
        node_pool=node.node_pool,
        reason=reason,
        waits_for=WaitsFor.POLICY,
        rule=WaitRule.REPAIR,
        not_before=match.tolerated_until,
        message=f"{match.description} since {format_time(match.since)}; the node is repaired if "
        f"that lasts for {format_duration(match.policy.after)}",
    )
