"""What a change brings about later, which its cost and its rollout do not show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from reconciler.catalog.catalog import Catalog
from reconciler.desired.objects import node_classes, node_pools
from reconciler.desired.rules.lifetimes import SHORT_GRACE, SHORT_LIFE
from reconciler.disruption.gates.budgets import budget_reasons
from reconciler.model.decision.changes import Change
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.decode import decode
from reconciler.model.karpenter.budget import DisruptionReason, allowance
from reconciler.model.karpenter.nodepool import WHEN_EMPTY, NodePool
from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.eviction import desired_healthy
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import repelling_taints
from reconciler.model.resources import Resources, add_resources, format_resources
from reconciler.model.settings import FeatureGate
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_monthly
from reconciler.observed.state import ClusterState
from reconciler.plan.make.inputs import Inputs, RevisionPair
from reconciler.plan.render.windows import closed_times, disruption_rules
from reconciler.plan.render.wording import format_words
from reconciler.plan.rest.requested import OBSERVED, unread_workloads
from reconciler.plan.value.costs import AtRest, ListCosts, PoolAtRest, PoolChange

_FULL: Final = 0.8
"""The share of a lower limit from which its use is named."""
_MANY: Final = 100
"""A budget that allows none of this many nodes allows none at all."""


def risks_of(
    pair: RevisionPair, changes: Iterable[Change], change: AtRest
) -> tuple[PlanFinding, ...]:
    """Return what the change brings about later."""
    changes = tuple(changes)
    pools, cluster = tuple(_pools_of_both(pair, changes)), pair.head.cluster
    return (
        *unread_workloads(pair, changes, change),
        *_closed_pools(pools, pair),
        *_other_times(pools, pair),
        *_awaited_windows(pools, pair, changes, change),
        *_earlier_expiries(pools),
        *_other_grace_periods(pools),
        *_later_consolidation(pools),
        *_untolerated_taints(pools, cluster),
        *_lower_limits(pools, change, pair.head),
        *_blocked_evictions(pair),
        *_moving_aliases(pair),
        *(_overlay_prices(changes, change) if _values_nodes(pair) else ()),
    )


class _ChangedPool(NamedTuple):
    """A NodePool of both fleets, and where its definition changes, None if it does not."""

    before: NodePool
    after: NodePool
    place: Change | None

    def finding(
        self,
        severity: Literal["warning", "info"],
        code: str,
        path: str,
        what: str,
        hint: str | None = None,
    ) -> PlanFinding:
        """Return a finding about the NodePool, at the place of its change."""
        return PlanFinding(
            severity=severity,
            code=code,
            message=f"NodePool {self.after.name}: {what}",
            path=path,
            file=self.place.file if self.place is not None else None,
            line=self.place.line if self.place is not None else None,
            hint=hint,
        )


def _pools_of_both(pair: RevisionPair, changes: Iterable[Change]) -> Iterator[_ChangedPool]:
    before = {pool.name: pool for pool in node_pools(pair.base.fleet)}
    places = {row.name: row for row in changes if row.kind == "NodePool"}
    for pool in node_pools(pair.head.fleet):
        if pool.name in before:
            yield _ChangedPool(before[pool.name], pool, places.get(pool.name))


def _closed_pools(pools: Iterable[_ChangedPool], pair: RevisionPair) -> Iterator[PlanFinding]:
    """Yield the NodePools whose budgets allow no disruption any more."""
    for pool in pools:
        if _is_closed(pool.before, pair.base) or not _is_closed(pool.after, pair.head):
            continue
        yield pool.finding(
            "warning",
            code="change-never-disrupts",
            path="spec.disruption.budgets",
            what="its budgets allow no disruption any more, so its nodes are neither consolidated "
            "nor replaced after drift",
        )


def _other_times(pools: Iterable[_ChangedPool], pair: RevisionPair) -> Iterator[PlanFinding]:
    """Yield the NodePools whose nodes may be disrupted at other times, or in other numbers."""
    for pool in pools:
        if _is_closed(pool.after, pair.head):
            continue
        before = disruption_rules(pool.before, pair.base.settings)
        after = disruption_rules(pool.after, pair.head.settings)
        lost = "; ".join(rule for rule in before if rule not in after)
        new = "; ".join(rule for rule in after if rule not in before)
        if not lost and not new:
            continue
        what = f"{lost} → {new}" if lost and new else f"new: {new}" if new else f"no longer: {lost}"
        yield pool.finding(
            "info",
            code="change-of-budgets",
            path="spec.disruption.budgets",
            what=f"its nodes may be disrupted under other rules ({what})",
        )


def _awaited_windows(
    pools: Iterable[_ChangedPool], pair: RevisionPair, changes: Iterable[Change], change: AtRest
) -> Iterator[PlanFinding]:
    """Yield the NodePools with drifted nodes that windows keep from replacing them at once."""
    if not change.before.nodes or not _takes_hours(change):
        return
    drifting = {(row.kind == "NodePool", row.name) for row in changes if row.drifts}
    for pool in pools:
        node_class = pool.after.spec.template.spec.node_class_ref.name
        if drifting.isdisjoint({(True, pool.after.name), (False, node_class)}):
            continue
        closed = closed_times(pool.after, pair.head.settings, DisruptionReason.DRIFTED)
        if closed and not _is_closed(pool.after, pair.head):
            yield pool.finding(
                "info",
                code="change-waits-for-windows",
                path="spec.disruption.budgets",
                what=f"its drifted nodes are not replaced at all times ({'; '.join(closed)})",
            )


def _takes_hours(change: AtRest) -> bool:
    """Return whether a rollout takes an hour or more, or does not end."""
    if change.rollout is None:
        return change.bounds is None
    days, _, rest = change.rollout.partition("T")
    return "D" in days or "H" in rest


def _earlier_expiries(pools: Iterable[_ChangedPool]) -> Iterator[PlanFinding]:
    """Yield the NodePools whose nodes expire earlier: how often each is replaced is no cost."""
    for pool in pools:
        old, new = pool.before.expires_after, pool.after.expires_after
        if new is None or (old is not None and new >= old) or new < SHORT_LIFE:
            continue  # a short life has a finding of its own
        earlier = "never" if old is None else pool.before.spec.template.spec.expire_after
        yield pool.finding(
            "info",
            code="change-expires-earlier",
            path="spec.template.spec.expireAfter",
            what=f"every node is replaced after {pool.after.spec.template.spec.expire_after} "
            f"({earlier} before), and its pods are evicted",
        )


def _other_grace_periods(pools: Iterable[_ChangedPool]) -> Iterator[PlanFinding]:
    """Yield the NodePools whose drains end earlier, or no longer end at all.

    The period ends what protects pods, and lets drift replace nodes with such pods.
    """
    for pool in pools:
        old, new = pool.before.termination_grace_period, pool.after.termination_grace_period
        if new == old or (
            new is not None and (new < SHORT_GRACE or (old is not None and new > old))
        ):
            continue  # a short period has a finding of its own
        text = pool.after.spec.template.spec.termination_grace_period
        earlier = pool.before.spec.template.spec.termination_grace_period
        what = (
            f"PodDisruptionBudgets and do-not-disrupt protect pods on a draining node for {text} "
            f"({earlier or 'without end'} before)"
        )
        if new is None:
            what = (
                "a drain waits without end for pods that PodDisruptionBudgets or do-not-disrupt "
                f"protect ({earlier} before), and drift no longer replaces their nodes"
            )
        elif old is None:
            what = f"{what}, and drift may replace nodes that have such pods"
        yield pool.finding(
            "info",
            code="change-of-grace-period",
            path="spec.template.spec.terminationGracePeriod",
            what=what,
        )


def _later_consolidation(pools: Iterable[_ChangedPool]) -> Iterator[PlanFinding]:
    """Yield the NodePools that consolidate later, which costs more the more often pods change.

    So do those that now consolidate only empty nodes.
    """
    for pool in pools:
        rules, known = pool.after.spec.disruption, pool.before.spec.disruption
        old, new = known.consolidates_after, rules.consolidates_after
        only_empty = rules.consolidation_policy == WHEN_EMPTY
        is_narrower = only_empty and known.consolidation_policy != WHEN_EMPTY
        if old is None or (new is not None and new <= old and not is_narrower):
            continue
        earlier = known.consolidate_after or "0s"
        later = rules.consolidate_after or "0s"
        if new is None:
            what = f"its nodes are not consolidated any more (consolidateAfter: Never, {earlier} "
            what += "before)"
        elif is_narrower:
            what = f"only its empty nodes are removed, {later} after their last pod (before, "
            what += f"underutilized ones too, after {earlier})"
        elif only_empty:
            what = f"an empty node is removed {later} after its last pod ({earlier} before)"
        else:
            what = "a node is consolidated once its pods have not changed for "
            what += f"{later} ({earlier} before)"
        field = "consolidationPolicy" if is_narrower else "consolidateAfter"
        path = f"spec.disruption.{field}"
        yield pool.finding("info", code="change-consolidates-later", path=path, what=what)


def _is_tolerated(pool: NodePool, pods: Iterable[Pod]) -> bool:
    """Return whether any of the pods tolerates all taints of a NodePool."""
    taints = pool.spec.template.spec.taints
    return any(not repelling_taints(taints, pod.spec.tolerations) for pod in pods)


def _untolerated_taints(
    pools: Iterable[_ChangedPool], cluster: ClusterState
) -> Iterator[PlanFinding]:
    """Yield the NodePools that get no new nodes, because no pod tolerates their new taints.

    Without any pod, new taints are named.
    """
    pods = [pod for pod in cluster.pods if pod.is_reschedulable]
    for pool in pools:
        taints, known = pool.after.spec.template.spec.taints, pool.before.spec.template.spec.taints
        new = [taint for taint in repelling_taints(taints, ()) if taint not in known]
        if not new or pool.after.is_static:
            continue
        if not pods:
            yield pool.finding(
                "info",
                code="change-adds-taint",
                path="spec.template.spec.taints",
                what=f"new nodes take only pods that tolerate {format_words([*map(str, new)])}; "
                "whether there are any is not known",
            )
            continue
        if _is_tolerated(pool.after, pods):
            continue
        yield pool.finding(
            "warning",
            code="change-untolerated-taint",
            path="spec.template.spec.taints",
            what=f"no pod tolerates {format_words([*map(str, new)])}, so this NodePool launches no "
            "nodes any more",
            hint="let the pods that are meant for it tolerate the taint",
        )


def _full_limits(pool: NodePool, names: Iterable[str], used: Resources) -> list[str]:
    """Return which limits of those names nodes nearly use up, with what they use."""
    limits, amounts = pool.spec.limits, pool.limits()
    shown = format_resources({name: used[name] for name in names if name in used})
    return [f"{shown[n]} of {limits[n]} {n}" for n in shown if used[n] >= _FULL * amounts[n]]


def _lower_limits(
    pools: Iterable[_ChangedPool], change: AtRest, inputs: Inputs
) -> Iterator[PlanFinding]:
    """Yield the NodePools whose limits are lower, where no pods show whether that matters.

    With pods, those whose nodes use nearly all of a limit: it keeps more pods from having a node.
    """
    for pool in pools:
        limits, known = pool.after.spec.limits, pool.before.spec.limits
        amounts, before = pool.after.limits(), pool.before.limits()
        lower = [n for n, amount in sorted(amounts.items()) if amount < before.get(n, amount + 1)]
        if lower and not inputs.cluster.pods:
            changed = [f"{n} {limits[n]} ({known.get(n, 'no limit')} before)" for n in lower]
            yield pool.finding(
                "info",
                code="change-lowers-limit",
                path="spec.limits",
                what=f"its limits are lower, {format_words(changed)}: no node is launched above "
                "them, and which pods have no node then is not known",
            )
        used = _capacity_of(change.by_node_pool.get(pool.after.name), inputs.catalog)
        full = _full_limits(pool.after, lower, used)
        if full:
            yield pool.finding(
                "info",
                code="change-leaves-little-room",
                path="spec.limits",
                what="its limits are lower, and its nodes use "
                f"{format_words(full)} in steady state: more pods may have no node",
            )


def _capacity_of(pool: PoolChange | None, catalog: Catalog) -> Resources:
    """Return the capacity of the nodes of a NodePool after a change, empty if it is not known."""
    types = pool.after.types if pool is not None else {}
    kinds = {name: catalog.get(name.partition(" ")[0]) for name in types}
    known = [(kind.capacity, types[name]) for name, kind in kinds.items() if kind is not None]
    if len(known) < len(kinds):
        return {}
    return add_resources(
        *({n: a * count for n, a in capacity.items()} for capacity, count in known)
    )


def _is_closed(pool: NodePool, inputs: Inputs) -> bool:
    """Return whether its budgets forbid every voluntary disruption of the pool at all times."""
    always = [b for b in pool.spec.disruption.budgets if b.never_ends]
    reasons = budget_reasons(inputs.settings)
    return all(not allowance(always, reason, _MANY, inputs.now).nodes for reason in reasons)


def _blocked_evictions(pair: RevisionPair) -> Iterator[PlanFinding]:
    """Yield the PodDisruptionBudgets that allow no eviction any more, even of healthy pods."""
    cluster, cluster_before = pair.head.cluster, pair.base.cluster
    before = {budget.key: budget for budget in _budgets_of(pair.base)}
    for budget in _budgets_of(pair.head):
        known = before.get(budget.key)
        if cluster is cluster_before and known == budget:
            continue
        pods, allowed = _allowed_evictions(budget, cluster)
        if not pods or allowed or (known and not _allowed_evictions(known, cluster_before)[1]):
            continue
        yield PlanFinding(
            severity="warning",
            code="change-blocks-evictions",
            message=f"PodDisruptionBudget {budget.key} allows no eviction any more: all of its "
            f"{format_count(pods, 'pod')} must stay, so {_kept_nodes(budget, pair.head)}",
            hint="allow one eviction, or add a replica",
        )


def _kept_nodes(budget: PodDisruptionBudget, inputs: Inputs) -> str:
    """Return what a budget without evictions does to the nodes of its pods.

    ``terminationGracePeriod`` lets drift replace such a node, and ends its drain.
    """
    pools = _pools_with(budget, inputs)
    periods = {pool.spec.template.spec.termination_grace_period for pool in pools}
    bounded = [pool.name for pool in pools if pool.termination_grace_period is not None]
    if not bounded:
        kept = "nodes with them are neither consolidated nor replaced after drift"
        expires = any(pool.expires_after is not None for pool in pools)
        return f"{kept}, and an expired node drains without end" if expires else kept
    kept = "nodes with them are not consolidated"
    if len(bounded) < len(pools):
        where = format_words([f"NodePool {name}" for name in bounded])
        return (
            f"{kept}; after drift or expiry they are replaced only in {where}, once a drain has "
            "waited for terminationGracePeriod"
        )
    wait = f"for {periods.pop()} " if len(periods) == 1 else ""
    return (
        f"{kept}; drift and expiry replace them, but each drain waits {wait}"
        "(terminationGracePeriod), and then deletes the pods"
    )


def _pools_with(budget: PodDisruptionBudget, inputs: Inputs) -> list[NodePool]:
    """Return the NodePools that have pods of a budget, or whose taints such pods tolerate."""
    cluster, pools = inputs.cluster, list(node_pools(inputs.fleet))
    pods = [pod for pod in cluster.pods if budget.selects(pod) and not pod.is_terminal]
    names = {pod.spec.node_name for pod in pods}
    used = {node.node_pool for node in cluster.nodes if node.name in names}
    own = [pool for pool in pools if pool.name in used]
    return own or [pool for pool in pools if _is_tolerated(pool, pods)]


def _budgets_of(inputs: Inputs) -> Sequence[PodDisruptionBudget]:
    """Return the PodDisruptionBudgets of the files, also where the pods are observed ones."""
    if inputs.observation not in OBSERVED:
        return inputs.cluster.pod_disruption_budgets
    kind = "PodDisruptionBudget"
    found = (r.data for r in inputs.fleet.workloads if r.data.get("kind") == kind)
    return [decode(item, PodDisruptionBudget) for item in found]


def _allowed_evictions(budget: PodDisruptionBudget, cluster: ClusterState) -> tuple[int, int]:
    """Return how many pods a budget covers, and how many may be evicted if all are healthy."""
    pods = sum(1 for pod in cluster.pods if budget.selects(pod) and not pod.is_terminal)
    return pods, max(0, pods - desired_healthy(budget, pods))


def _moving_aliases(pair: RevisionPair) -> Iterator[PlanFinding]:
    """Yield the EC2NodeClasses that follow the newest image from now on."""
    before = {
        found.name: _latest_aliases(found.spec.ami_selector_terms)
        for found in node_classes(pair.base.fleet)
    }
    for node_class in node_classes(pair.head.fleet):
        new = _latest_aliases(node_class.spec.ami_selector_terms)
        for alias in sorted(new - before.get(node_class.name, frozenset())):
            yield PlanFinding(
                severity="warning",
                code="change-follows-images",
                message=f"EC2NodeClass {node_class.name}: {alias} moves without a commit; each "
                "new release of the image replaces the nodes of this class",
                path="spec.amiSelectorTerms",
                hint="pin a version, such as al2023@v20250620",
            )


def _latest_aliases(terms: Iterable[object]) -> frozenset[str]:
    found = (getattr(term, "alias", None) for term in terms)
    return frozenset(a for a in found if a and str(a).endswith("@latest"))


def with_list_costs(change: AtRest, pair: RevisionPair, changes: Iterable[Change]) -> AtRest:
    """Return the change with what its nodes cost at list prices, if NodeOverlays change.

    Nothing is added if a list price is unknown.
    """
    if not any(row.kind == "NodeOverlay" for row in changes):
        return change
    pools = change.by_node_pool.values()
    before = _list_cost(pair.base.catalog, (pool.before for pool in pools))
    after = _list_cost(pair.head.catalog, (pool.after for pool in pools))
    if before is None or after is None:
        return change
    return replace(change, list_costs=ListCosts(before=before, after=after))


def _values_nodes(pair: RevisionPair) -> bool:
    """Return whether NodeOverlays have an effect, before the change or after it."""
    return any(side.settings.gate(FeatureGate.NODE_OVERLAY) for side in (pair.base, pair.head))


def _overlay_prices(changes: Iterable[Change], change: AtRest) -> Iterator[PlanFinding]:
    """Yield what a change of NodeOverlays costs at the prices of AWS."""
    names = [row.name for row in changes if row.kind == "NodeOverlay"]
    if not names:
        return
    at_list = ""
    if change.list_costs is not None:
        before, after = change.list_costs.before, change.list_costs.after
        more = format_monthly(after - before, signed=True)
        is_same = more == format_monthly(0)
        at_list = "; at list prices, " + (
            "the cost does not change" if is_same else f"the change is about {more}/month"
        )
    verb = "changes" if len(names) == 1 else "change"
    noun = "NodeOverlay" if len(names) == 1 else "NodeOverlays"
    yield PlanFinding(
        severity="info",
        code="change-of-overlay",
        message=f"{noun} {format_words(names)} {verb} how nodes are valued, not what AWS bills: "
        f"amounts here have the prices of NodeOverlays{at_list}",
    )


def _list_cost(catalog: Catalog, pools: Iterable[PoolAtRest]) -> float | None:
    """Return the list prices of nodes in USD an hour, None if one is unknown.

    A spot node counts at the price of its cheapest zone.
    """
    counts: dict[str, int] = {}
    for pool in pools:
        for name, number in pool.types.items():
            counts[name] = counts.get(name, 0) + number
    prices = _list_prices(catalog, counts)
    if len(prices) < len(counts):
        return None
    return fsum(prices[name] * number for name, number in counts.items())


def _list_prices(catalog: Catalog, names: Mapping[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in names:
        type_name, _, capacity_type = name.partition(" ")
        kind = catalog.get(type_name)
        offerings = kind.offerings if kind is not None else ()
        prices = [o.price for o in offerings if o.capacity_type == capacity_type and o.price > 0]
        if prices:
            found[name] = min(prices)
    return found
