"""What may be disrupted has one answer in the planner, ``explain``, dashboard and ``simulate``."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.desired.settings.layers import resolve
from reconciler.disruption.gates.limits import FleetLimits
from reconciler.disruption.gates.policy import holds_of
from reconciler.disruption.inputs import open_pass
from reconciler.model.history import DisruptionRecord, History, Rollout
from reconciler.model.karpenter.budget import UNBOUNDED, DisruptionReason
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState
from reconciler.plan.explain.calendar import explain_node_pool
from reconciler.simulate.eventlog import rule_periods
from reconciler.web.view import calendar_of
from tests.disruption.builders import NOW, a_cluster, a_node, a_pool, a_situation
from tests.examples import examples

WEEK = timedelta(days=7)
POOLS = ("alpha", "beta")

amounts = st.sampled_from(["0", "1", "2", "3", "10%", "34%", "50%", "100%"])
reasons = st.lists(st.sampled_from([r.value for r in DisruptionReason]), min_size=1, unique=True)
schedules = st.sampled_from(["0 18 * * *", "30 2 * * sat", "0 6 * * mon"])
spans = st.sampled_from(["1h", "4h", "12h"])


@st.composite
def budgets(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        budget: dict[str, Any] = {"nodes": draw(amounts)}
        if draw(st.booleans()):
            budget["reasons"] = draw(reasons)
        if draw(st.booleans()):
            budget |= {"schedule": draw(schedules), "duration": draw(spans)}
        found.append(budget)
    return found


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Return settings with what limits disruption in addition to the budgets of a NodePool."""
    disruption: dict[str, Any] = {}
    config: dict[str, Any] = {}
    if draw(st.booleans()):
        config |= {"karpenter": "1.15", "featureGates": {"NodeRepair": True}}
    if draw(st.booleans()):
        disruption["budgets"] = draw(budgets())
    if draw(st.integers(0, 2)) == 0:
        disruption["windows"] = [{"schedule": draw(schedules), "duration": draw(spans)}]
    if draw(st.integers(0, 3)) == 0:
        until = NOW + timedelta(hours=draw(st.integers(1, 200)))
        one = {"owner": "me", "until": until.isoformat().replace("+00:00", "Z")}
        disruption["suspend"] = [{**one, "nodePools": [draw(st.sampled_from(POOLS))]}]
    if draw(st.integers(0, 2)) == 0:
        disruption["maximumPerDay"] = draw(st.sampled_from(["1", "2", "50%"]))
    if disruption:
        config["disruption"] = disruption
    if draw(st.integers(0, 2)) == 0:
        config["maximumPerDay"] = draw(st.sampled_from(["1", "34%"]))
    if draw(st.integers(0, 2)) == 0:
        config |= {"waveSize": draw(st.sampled_from(["1", "50%"])), "stopAfterFailures": 1}
    return config


@st.composite
def histories(draw: st.DrawFn) -> History:
    taken = [
        DisruptionRecord(NOW - timedelta(hours=draw(st.integers(0, 30))), draw(pool_names))
        for _ in range(draw(st.integers(0, 3)))
    ]
    halted = [
        Rollout(name, failures=1, stopped_at=NOW, stopped_why="no capacity")
        for name in POOLS
        if draw(st.integers(0, 4)) == 0
    ]
    return History(tuple(sorted(taken, key=lambda t: t.at)), tuple(halted))


pool_names = st.sampled_from(POOLS)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[ClusterState, list[NodePool], Settings, History]:
    objects: list[Any] = []
    for index in range(draw(st.integers(1, 9))):
        objects += a_node(f"n{index}", pool=draw(pool_names))
    made = resolve(draw(configurations()), {}).settings
    pools = [a_pool(name, budgets=draw(budgets())) for name in POOLS]
    return a_cluster(*objects), pools, made, draw(histories())


def strictest(
    pool: NodePool, cluster: ClusterState, made: Settings, limits: FleetLimits, at: datetime
) -> dict[DisruptionReason, int]:
    """Return the minimum of every rule, each computed alone."""
    totals = {name: sum(n.node_pool == name for n in cluster.nodes) for name in POOLS}
    caps = limits.later(at).caps
    held = holds_of([pool.name], made, at)
    return {
        reason: 0
        if (pool.name, reason) in held
        else min(
            totals[pool.name],
            *(
                b.allowed_disruptions(totals[pool.name], at)
                for b in pool.spec.disruption.budgets
                if b.applies_to(reason)
            ),
            *(
                b.allowed_disruptions(sum(totals.values()), at)
                for b in made.fleet_budgets
                if b.applies_to(reason)
            ),
            *(cap.left for cap in caps if cap.covers(pool.name, reason)),
            UNBOUNDED,
        )
        for reason in limits.reasons
    }


@settings(max_examples=examples(100), deadline=None)
@given(fleets(), st.integers(0, 7 * 24 * 60 - 1))
def test_everybody_who_says_what_may_be_disrupted_says_the_same(
    fleet: tuple[ClusterState, list[NodePool], Settings, History], minutes: int
) -> None:
    cluster, pools, made, history = fleet
    limits = FleetLimits.from_nodes(pools, made, cluster.nodes, history)
    work = open_pass(a_situation(cluster, pools, settings=made, history=history)).work
    calendar = calendar_of(limits, NOW)
    at = NOW + timedelta(minutes=minutes)
    for pool in pools:
        total = limits.total(pool.name)
        weeks = limits.spans(pool, NOW, NOW + WEEK)
        for reason in limits.reasons:
            now = work.ledger.allowed_disruptions(pool.name, reason)
            assert min(now, total) == weeks[0].allowed[reason]
            assert limits.now(NOW).limit(pool.name, reason).nodes == now
        (then,) = (span.allowed for span in weeks if span.start <= at < span.end)
        assert then == strictest(pool, cluster, made, limits, at)

        simulated = rule_periods(pool, limits, NOW, NOW + WEEK)
        limited = next((p.allowed for p in simulated if p.begin <= at < p.end), {})
        assert {r: limited.get(r.value, total) for r in then} == then

        for row in (row for row in calendar if row.node_pool == pool.name):
            (period,) = (p for p in row.periods if p.began <= at < p.ended)
            assert {then[DisruptionReason(reason)] for reason in row.reasons} == {period.allowed}

        first = ", ".join(f"{r.cause} {weeks[0].allowed[r]}" for r in sorted(limits.reasons))
        told = explain_node_pool(pool, made, cluster.nodes, NOW, history)
        row = next(fact for fact in told.facts if not fact.startswith("rules: "))
        assert row.endswith(f": {first}")


@settings(max_examples=examples(200), deadline=None)
@given(fleets())
def test_the_rule_that_allows_no_more_is_named(
    fleet: tuple[ClusterState, list[NodePool], Settings, History],
) -> None:
    cluster, pools, made, history = fleet
    limits = FleetLimits.from_nodes(pools, made, cluster.nodes, history).now(NOW)
    for pool in pools:
        for reason in {state.reason for state in limits.states}:
            limit = limits.limit(pool.name, reason)
            assert limit.budget is not None or limit.hold is not None
            if limit.budget is not None:
                assert limit.budget.allowed == limit.nodes
            if not limit.nodes:
                assert limits.hold(pool.name, reason, limits.ledger()).message


def three_nodes(*, ready: bool = True) -> ClusterState:
    nodes = [a_node(f"n{n}", pool=name, ready=ready) for n, name in enumerate(("a", "a", "b"))]
    return a_cluster(*(item for node in nodes for item in node))


def test_a_share_of_the_fleet_is_a_share_of_all_its_nodes() -> None:
    """Not of the nodes of the NodePool: half of three nodes are two."""
    made = resolve({"disruption": {"budgets": [{"nodes": "50%"}]}}, {}).settings
    pools = [a_pool(name, budgets=[{"nodes": "100%"}]) for name in ("a", "b")]
    limits = FleetLimits.from_nodes(pools, made, three_nodes().nodes)
    assert [limits.allowed(name, NOW)[DisruptionReason.EMPTY] for name in ("a", "b")] == [2, 1]


@pytest.mark.parametrize(("ready", "now"), [(True, 1), (False, 0)])
def test_nodes_that_are_not_ready_count_now_and_not_later(ready: bool, now: int) -> None:
    pool = a_pool("a", budgets=[{"nodes": "1"}])
    limits = FleetLimits.from_nodes([pool], Settings(), three_nodes(ready=ready).nodes)
    assert limits.now(NOW).limit("a", DisruptionReason.EMPTY).nodes == now
    assert limits.allowed("a", NOW)[DisruptionReason.EMPTY] == 1
