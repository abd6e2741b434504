"""Generated plans for property tests."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from reconciler.model.decision.changes import Change, DriftedClaim, FieldChange, Side
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.decision.waiting import Blocker, DeferredClaim, PoolBudget, WaitRule, WaitsFor
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.taint import Taint
from reconciler.plan.graph import sort_into_waves
from reconciler.plan.value.actions import Action, BlockedNode, PlannedCommand
from reconciler.plan.value.costs import Cost, PoolCost
from reconciler.plan.value.nodes import (
    LaunchOffering,
    PlacedPod,
    PlannedNodeClaim,
    Reason,
    UnschedulablePod,
)
from reconciler.plan.value.plan import InputDigests, Plan, Revision

words = st.text(max_size=12)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.|`<>&\"'\\é", min_size=1, max_size=20)
money = st.floats(min_value=0, max_value=1e6, allow_nan=False)
maybe_money = st.none() | st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)
moments = st.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
texts = st.none() | words
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


def tuples(of: st.SearchStrategy, most: int = 3) -> st.SearchStrategy:
    return st.lists(of, max_size=most).map(tuple)


fields = st.builds(FieldChange, path=names, old=json_values, new=json_values, drifts=st.booleans())
changes = st.builds(
    Change,
    op=st.sampled_from(["create", "update", "delete"]),
    kind=names,
    name=names,
    file=texts,
    line=st.none() | st.integers(1, 9999),
    fields=tuples(fields),
    drifted=tuples(names),
)
launches = st.builds(
    LaunchOffering,
    instance_type=names,
    zone=names,
    capacity_type=st.sampled_from(["spot", "on-demand", "reserved"]),
    price=money,
    base_price=st.none() | money,
    estimated=st.booleans(),
)
taints = st.builds(Taint, key=names, effect=words, value=words)
entries = st.builds(
    NodeSelectorRequirement,
    key=names,
    operator=st.sampled_from(Operator),
    values=tuples(words),
    min_values=st.none() | st.integers(1, 50),
)
claims = st.builds(
    PlannedNodeClaim,
    name=names,
    node_pool=names,
    node_class=texts,
    reason=names,
    pods=tuples(names),
    requests=st.dictionaries(names, words, max_size=3),
    requirements=tuples(entries),
    instance_types=tuples(names),
    instance_types_total=st.integers(0, 900),
    labels=st.dictionaries(names, words, max_size=3),
    taints=tuples(taints, 2),
    startup_taints=tuples(taints, 2),
    launch=launches,
)
commands = st.builds(
    PlannedCommand,
    id=names,
    reason=st.sampled_from(["Drifted", "Empty", "Underutilized", "Expired", "Orphaned"]),
    decision=st.sampled_from(["delete", "replace"]),
    nodes=tuples(names),
    node_claims=tuples(names),
    replacements=tuples(names),
    savings=maybe_money,
    score=maybe_money,
    pods_evicted=st.integers(0, 500),
    forceful=st.booleans(),
)


@st.composite
def actions(draw: st.DrawFn, most: int = 8) -> tuple[Action, ...]:
    """Any acyclic set of actions: each may wait only for earlier ones."""
    ids = draw(st.lists(names, max_size=most, unique=True))
    made = [
        Action(
            id=name,
            kind=draw(st.sampled_from(["provision", "replace", "terminate"])),
            node_claim=draw(texts),
            command=draw(texts),
            cost_delta=draw(maybe_money),
            reason=draw(words),
            depends_on=tuple(sorted(draw(st.sets(st.sampled_from(ids[:i]))))) if i else (),
        )
        for i, name in enumerate(ids)
    ]
    return sort_into_waves(made)


costs = st.builds(
    Cost,
    before=money,
    after=money,
    lower_bound=st.none() | money,
    by_node_pool=st.dictionaries(
        names,
        st.builds(
            PoolCost,
            nodes_before=st.integers(0, 10_000),
            nodes_after=st.integers(0, 10_000),
            before=money,
            after=money,
        ),
        max_size=3,
    ),
    unpriced=st.integers(0, 10),
)
plans = st.builds(
    Plan,
    fleet=names,
    at=moments,
    serial=st.integers(0, 2**40),
    revision=st.builds(
        Revision, head=texts, base=texts, repo=texts, path=texts, dirty=st.booleans()
    ),
    inputs_digest=names,
    inputs=st.builds(InputDigests, git=words, snapshot=words, catalog=words),
    changes=tuples(changes),
    compared_with=st.sampled_from(["", "base", "records", "cluster"]),
    node_claims=tuples(claims),
    placements=tuples(
        st.builds(PlacedPod, pod=names, node=texts, node_claim=texts, relaxed=tuples(words))
    ),
    unschedulable=tuples(
        st.builds(
            UnschedulablePod,
            pod=names,
            reasons=tuples(st.builds(Reason, node_pool=texts, code=words, message=words)),
        )
    ),
    drift=tuples(
        st.builds(
            DriftedClaim,
            node_claim=names,
            node=texts,
            node_pool=names,
            reason=names,
            recorded_hash=texts,
            desired_hash=texts,
            fields=tuples(fields),
            side=st.sampled_from(Side),
        )
    ),
    commands=tuples(commands),
    blocked=tuples(
        st.builds(BlockedNode, node=names, node_pool=words, reason=words, message=words)
    ),
    budgets=tuples(
        st.builds(
            PoolBudget,
            node_pool=names,
            reason=st.sampled_from(["Drifted", "Empty", "Underutilized"]),
            total=st.integers(0, 100),
            disrupting=st.integers(0, 100),
            allowed=st.integers(0, 2**31 - 1),
            next_change=st.none() | moments,
            binding=st.none() | st.integers(0, 5),
        )
    ),
    actions=actions(),
    deferred=tuples(
        st.builds(
            DeferredClaim,
            node_claim=names,
            node=texts,
            node_pool=words,
            reason=words,
            waits_for=st.sampled_from(WaitsFor),
            rule=st.none() | st.sampled_from(WaitRule),
            not_before=st.none() | moments,
            message=words,
        )
    ),
    cost=costs,
    blockers=tuples(
        st.builds(
            Blocker,
            kind=words,
            name=names,
            message=words,
            owner=words,
            nodes=tuples(names),
            node_pools=tuples(names),
            reasons=tuples(words),
            since=st.none() | moments,
            until=st.none() | moments,
            forgone=st.none() | money,
            unpriced=st.integers(0, 9),
        )
    ),
    diagnostics=tuples(
        st.builds(
            PlanFinding,
            severity=st.sampled_from(["error", "warning", "info"]),
            code=words,
            message=words,
            path=texts,
            file=texts,
            line=st.none() | st.integers(1, 999),
            column=st.none() | st.integers(1, 999),
            hint=texts,
        )
    ),
)
