"""Findings of a plan, among them drift that makes no progress.

A drifted node behind a PodDisruptionBudget, a protected pod or a budget of zero stays blocked, and
nobody notices. After a deadline it is reported with what blocks it, under Kubernetes' name for the
same situation of Deployments: a progress deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from reconciler.disruption.methods.drift import drifted_since
from reconciler.model.decision.changes import Change, DriftedClaim
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.decision.waiting import DeferredClaim
from reconciler.model.grouping import group_pairs
from reconciler.model.karpenter.budget import allowance
from reconciler.model.karpenter.labels import CAPACITY_TYPE, SPOT
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import DecisionRules, PoolOption, Settings
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_monthly, format_rate
from reconciler.model.text.times import format_time
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.nodes.daemons import unreadable_daemon_sets
from reconciler.placement.question import DroppedPreferences
from reconciler.placement.work import WorkLimit
from reconciler.plan.render.unknown import NO_WORKLOADS
from reconciler.plan.render.wording import format_pods, format_price_source
from reconciler.plan.value.actions import BlockedNode, PlannedCommand
from reconciler.plan.value.nodes import PlannedNodeClaim
from reconciler.plan.value.plan import PlannedLock
from reconciler.source.resource import LOCK_FILE

if TYPE_CHECKING:
    from reconciler.disruption.command import Decisions
    from reconciler.plan.make.actions import OwnedNode
    from reconciler.plan.make.facts import Facts

_LIMITS: Final = {
    "disruption.budgets": "fleet_budgets",
    "disruption.maximumPerDay": "fleet_maximum_per_day",
    "disruption.windows": "windows",
    "disruption.suspend": "suspensions",
}
"""The limits of a fleet, which Karpenter does not have."""

_REGION: Final = "aws.region"

_STARTS_WITHIN: Final = timedelta(minutes=15)
"""How long the start of a node may take: Karpenter removes one that has not joined by then."""

PROGRESS_DEADLINE: Final = "progress-deadline"


def lock_findings(lock: PlannedLock | None) -> Iterator[PlanFinding]:
    """Report that images, zones and prices come from a lock."""
    if lock is not None:
        message = f"images, subnets and prices locked at {format_time(lock.at)}"
        yield PlanFinding(severity="info", code="locked", message=message, file=LOCK_FILE)


def workload_findings(facts: Facts) -> Iterator[PlanFinding]:
    """Warn that nobody said what runs: zero nodes then are no forecast."""
    cluster, pools = facts.cluster, facts.pools
    if facts.observation != "workloads" or facts.states_pods or not pools:
        return
    if cluster.pods or cluster.nodes or any(pool.is_static for pool in pools):
        return
    yield PlanFinding(
        severity="warning",
        code="workloads-unknown",
        message=f"{NO_WORKLOADS}: how many nodes these NodePools have, and what they cost, "
        "is not known",
        hint="pass --snapshot, pass rendered workloads with -f, or put workloads into the folder",
    )


def foreign_limits_findings(settings: Settings) -> Iterator[PlanFinding]:
    """Warn that limits hold in a forecast of what Karpenter does, which does not know them.

    They hold nevertheless, since they also protect a fleet that this engine runs by Karpenter's
    rules.
    """
    limits = [key for key, attribute in _LIMITS.items() if getattr(settings, attribute)]
    if settings.decide is DecisionRules.KARPENTER and limits:
        one = len(limits) == 1
        yield PlanFinding(
            severity="warning",
            code="unlike-karpenter",
            message=f"{format_list(limits)} {'holds' if one else 'hold'} in this plan, but "
            f"Karpenter does not know {'it' if one else 'them'}",
            path=limits[0],
            hint=f"to see what Karpenter does, remove {'it' if one else 'them'}",
        )


def region_findings(before: str, after: str, changes: Iterable[Change]) -> Iterator[PlanFinding]:
    """Warn that the nodes of the region ``before`` are abandoned; it is empty if none is left.

    Pods and nodes cannot be moved to another region by disruption, and a plan must not read as if
    they were.
    """
    if not before:
        return
    where = next((c for c in changes if any(f.path == _REGION for f in c.fields)), None)
    yield PlanFinding(
        severity="warning",
        code="region-changed",
        message=f"the region changes from {before} to {after}: nodes in {before} are then neither "
        "observed nor managed, so `apply` and `run` refuse to act until the fleet has no nodes; "
        "the cost is that of new nodes in each region, and does not include the move",
        path=_REGION,
        file=where.file if where is not None else None,
        line=where.line if where is not None else None,
        hint=f"keep {before} here, and create another fleet in {after}",
    )


def catalog_findings(facts: Facts, claims: Sequence[PlannedNodeClaim]) -> Iterator[PlanFinding]:
    """Report where prices come from, and how many launches use an estimate of a spot price.

    Estimates are not mentioned if no node is on spot, and none may be.
    """
    catalog = facts.catalog
    for warning in catalog.warnings:
        yield PlanFinding(severity="warning", code="catalog-fallback", message=warning)
    source = catalog.source.rpartition("/")[2]  # the location of the file does not matter
    yield PlanFinding(severity="info", code="catalog", message=f"instance types: {source}")
    launches = [claim.launch for claim in claims]
    estimated = sum(one.estimated and one.capacity_type == SPOT for one in launches)
    for note in catalog.notes:
        if not (catalog.spot_is_estimated and note.startswith("spot")):
            yield PlanFinding(severity="info", code="catalog-note", message=note)
        elif estimated:
            uses = format_count(estimated, "launch uses", "launches use")
            message = f"{uses} estimated spot prices"
            yield PlanFinding(severity="info", code="spot-estimated", message=message)
        elif _has_spot(facts):
            yield PlanFinding(severity="info", code="spot-estimated", message=note)
    yield from _price_source_findings(claims)


def _has_spot(facts: Facts) -> bool:
    """Return whether any node is on spot capacity, or may be."""
    allowed = (pool.requirements().requirement_on(CAPACITY_TYPE) for pool in facts.pools)
    running = (node.labels.get(CAPACITY_TYPE) for node in facts.cluster.nodes)
    return any(one.has(SPOT) for one in allowed) or SPOT in running


def _price_source_findings(claims: Sequence[PlannedNodeClaim]) -> Iterator[PlanFinding]:
    """Report the sources of launch prices, where any is not bundled with the release."""
    counts: dict[str, int] = {}
    is_notable = False
    for claim in claims:
        source = claim.launch.price_source
        if source is None:
            continue
        is_notable = is_notable or source.source not in ("bundled", "estimate", "reservation")
        name = format_price_source(source)
        counts[name] = counts.get(name, 0) + 1
    if is_notable:
        parts = (f"{name} ({format_count(n, 'launch', 'launches')})" for name, n in counts.items())
        yield PlanFinding(
            severity="info", code="prices", message=f"price sources: {', '.join(parts)}"
        )


def _uninitialized_nodes(facts: Facts) -> Iterator[tuple[str, StateNode]]:
    """Yield the nodes that have not been initialized in time, each after the reason."""
    for node in facts.cluster.nodes:
        deadline = initialization_deadline(node)
        if node.claim is None or deadline is None or deadline > facts.now:
            continue
        condition = node.claim.condition("Initialized")
        cause = condition.message if condition is not None else ""
        yield cause or "its NodeClaim gives no reason", node


def uninitialized_findings(facts: Facts, nodes: Iterable[OwnedNode]) -> Iterator[PlanFinding]:
    """Report the nodes that joined long ago and never became ready for pods, with their cost.

    Nothing else removes them: they are neither consolidated nor, before Karpenter 1.15, repaired.
    """
    prices = {node.node_claim: node.price for node in nodes}
    by_cause = group_pairs(_uninitialized_nodes(facts))
    for cause, found in sorted(by_cause.items()):
        cost = sum(prices.get(n.claim.name) or 0.0 for n in found if n.claim is not None)
        one = len(found) == 1
        yield PlanFinding(
            severity="warning",
            code="never-initialized",
            message=f"{format_count(len(found), 'node has', 'nodes have')} not been initialized "
            f"for more than 15 minutes: {format_list(sorted(n.name for n in found))} ({cause}); "
            f"{'it costs' if one else 'they cost'} {format_monthly(cost)}/month",
            hint="correct what prevents it, or delete the nodes: they are not consolidated",
        )


def initialization_deadline(node: StateNode) -> datetime | None:
    """Return when a node that is not initialized is reported, None for any other."""
    if node.claim is None or node.is_initialized or not node.is_registered or node.is_deleting:
        return None
    created = node.claim.metadata.creation_timestamp
    return created + _STARTS_WITHIN if created is not None else None


def daemon_set_findings(cluster: ClusterState) -> Iterator[PlanFinding]:
    """Report the DaemonSets that cannot be read, and how they are counted."""
    for name, why in unreadable_daemon_sets(cluster):
        message = (
            f"invalid DaemonSet {name}: {why}; it is assumed to run on every node that it tolerates"
        )
        yield PlanFinding(severity="warning", code="daemonset-unreadable", message=message)


def decision_findings(facts: Facts, decisions: Decisions) -> Iterator[PlanFinding]:
    """Report reached work limits, dropped preferences and invalid budgets."""
    placement = decisions.placement
    if placement is not None and placement.work_limit is not None:
        yield _work_limit_finding(placement.work_limit)
    if decisions.limited_namespaces:
        yield _limited_namespaces_finding(decisions.limited_namespaces)
    for limit in decisions.limits_hit:
        yield PlanFinding(severity="warning", code="work-limit", message=limit)
    if decisions.consolidation_waits:
        message = "consolidation continues when the pods of the nodes that it disrupts have moved"
        yield PlanFinding(severity="info", code="consolidation-waits", message=message)
    yield from _budget_findings(facts, decisions)
    if decisions.placement is not None and decisions.placement.given_up is not None:
        yield _dropped_preferences_finding(decisions.placement.given_up)


def _budget_findings(facts: Facts, decisions: Decisions) -> Iterator[PlanFinding]:
    """Report the first invalid budget of each NodePool: it stops all disruption of its nodes."""
    budgets = {p.name: p.spec.disruption.budgets for p in (*facts.vanished, *facts.pools)}
    for pool, state in {state.node_pool: state for state in decisions.budgets}.items():
        found = allowance(budgets.get(pool, ()), state.reason, state.total, facts.now)
        if found.error is not None:
            what = f"invalid budget of NodePool {pool}, so its nodes cannot be disrupted"
            yield PlanFinding(
                severity="warning",
                code="budget-unreadable",
                message=f"{what}: {found.error}",
                path=f"spec.disruption.budgets[{found.binding}]",
            )


def _work_limit_finding(limit: WorkLimit) -> PlanFinding:
    """Report the namespaces whose pods used the work of a placement, and how many were left."""
    return PlanFinding(
        severity="warning",
        code="placement-limit",
        message=f"{format_count(limit.pods, 'pod')} not placed: the placement reached its limit of "
        f"work, most of it for pods of {limit}",
        hint="reduce the number of different topology spread and (anti-)affinity rules there",
    )


def _limited_namespaces_finding(namespaces: Sequence[str]) -> PlanFinding:
    """Report the namespaces whose pods are not moved, because evaluating that takes too long."""
    noun = "namespace" if len(namespaces) == 1 else "namespaces"
    return PlanFinding(
        severity="warning",
        code="placement-limit",
        message=f"nodes with pods of {noun} {', '.join(namespaces)} are not disrupted: simulated "
        "removals reached the limit of work for these pods",
        hint="reduce the number of different topology spread and (anti-)affinity rules there",
    )


def _dropped_preferences_finding(given_up: DroppedPreferences) -> PlanFinding:
    """Report the pods whose preferences cost too much, and the savings of dropping them."""
    pods = given_up.preferences
    whose = f"{format_count(len(pods), 'pod')} ({format_pods(pods)})"
    saved = f", which saves {format_rate(given_up.saving)}" if given_up.saving > 0 else ""
    return PlanFinding(
        severity="warning",
        code="preferences-given-up",
        message=f"soft preferences of {whose} are dropped{saved}",
        hint="to honour them at any cost, set maximumPreferenceCostPercent to 100",
    )


@dataclass(frozen=True, slots=True)
class OverdueClaim:
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
            f" {format_time(self.since)}, longer than {self.deadline} ({self.key}), and is not"
            f" replaced: {self.why}"
        )

    def finding(self) -> PlanFinding:
        """Return the finding that reports it."""
        return PlanFinding(severity="warning", code=PROGRESS_DEADLINE, message=str(self))


def _overdue_since(claim: NodeClaim | None, settings: Settings, now: datetime) -> datetime | None:
    """Return since when a claim has drifted whose deadline has passed, None for other claims."""
    due = drift_deadline(claim, settings) if claim is not None else None
    return None if claim is None or due is None or now < due else drifted_since(claim)


def overdue_claims(
    drift: Iterable[DriftedClaim],
    commands: Iterable[PlannedCommand],
    blocked: Iterable[BlockedNode],
    deferred: Iterable[DeferredClaim],
    claims: Mapping[str, NodeClaim],
    settings: Settings,
    now: datetime,
) -> tuple[OverdueClaim, ...]:
    """Return the drifted claims whose deadline has passed and that no command replaces now."""
    replaced = {name for command in commands for name in command.node_claims}
    why = {item.node_claim: item.message for item in reversed([*deferred])}
    by_node = {item.node: item.message for item in reversed([*blocked])}
    found = []
    for item in drift:
        since = _overdue_since(claims.get(item.node_claim), settings, now)
        if since is None or item.node_claim in replaced:
            continue
        pool = item.node_pool
        reason = why.get(item.node_claim, "other nodes come first")
        found.append(
            OverdueClaim(
                node_claim=item.node_claim,
                node=item.node,
                node_pool=pool,
                since=since,
                deadline=str(settings.pool(pool).progress_deadline),
                key=settings.key_of(pool, PoolOption.PROGRESS_DEADLINE),
                why=by_node.get(item.node or "", reason),
            )
        )
    return tuple(found)


def drift_deadline(claim: NodeClaim, settings: Settings) -> datetime | None:
    """Return when a drifted claim should have been replaced; None without a deadline."""
    deadline = settings.pool(claim.node_pool).progress_deadline
    since = drifted_since(claim)
    return since + deadline if since is not None and deadline > timedelta(0) else None
