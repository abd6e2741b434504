"""Properties of every pass on any fleet: budgets, one command a node, deterministic results."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from reconciler.desired.settings.layers import resolve
from reconciler.disruption.command import Decisions
from reconciler.disruption.decide import decide
from reconciler.disruption.gates.budgets import (
    budget_reasons,
    budget_states,
    fleet_states,
    node_counts,
)
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.observed.state import ClusterState
from tests.disruption.builders import (
    NOW,
    SIZES,
    a_cluster,
    a_node,
    a_pod,
    a_pool,
    a_situation,
    drifted,
    repairing,
    stamp,
    unhealthy,
)
from tests.examples import examples

POOLS = ("alpha", "beta")
REPAIRING = repairing()
FINDING = settings(
    max_examples=500, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)

budgets = st.lists(
    st.fixed_dictionaries(
        {"nodes": st.sampled_from(["0", "1", "2", "3", "10%", "34%", "100%"])},
        optional={
            "reasons": st.lists(
                st.sampled_from(sorted(DisruptionReason)),
                min_size=1,
                unique=True,
            )
        },
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Any], list[dict[str, Any]], tuple[str, ...]]:
    """Up to eight nodes of two pools with up to four pods each, some drifted or not ready."""
    objects: list[Any] = []
    names: list[str] = []
    for index in range(draw(st.integers(1, 8))):
        name = f"n{index}"
        names.append(name)
        objects.append(
            a_node(
                name,
                draw(st.sampled_from(sorted(SIZES))),
                pool=draw(st.sampled_from(POOLS)),
                ready=draw(st.integers(0, 9)) > 0,
            )
        )
        if draw(st.integers(0, 4)) == 0:
            objects[-1][0]["status"]["conditions"] += unhealthy(NOW - timedelta(hours=1))
        objects += [
            a_pod(f"p{index}-{n}", name, draw(st.sampled_from(["0.1", "0.5", "1"])))
            for n in range(draw(st.integers(0, 4)))
        ]
    pools = [
        {"name": name, "budgets": draw(budgets), "consolidationPolicy": draw(policies)}
        for name in POOLS
    ]
    return objects, pools, tuple(draw(st.lists(st.sampled_from(names), unique=True)))


policies = st.sampled_from(["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"])


def _decide(objects: list[Any], pools: list[dict[str, Any]], gone: tuple[str, ...]) -> Decisions:
    return decide(_situation(a_cluster(*objects), pools, gone))


def _situation(cluster: ClusterState, pools: list[dict[str, Any]], gone: tuple[str, ...]) -> Any:
    return a_situation(
        cluster,
        [a_pool(**pool) for pool in pools],
        drifted=drifted(*gone),
        settings=REPAIRING,
    )


@pytest.mark.parametrize("reason", DisruptionReason)
def test_the_generated_fleets_cover_every_reason(reason: DisruptionReason) -> None:
    def has_one(fleet: tuple[list[Any], list[dict[str, Any]], tuple[str, ...]]) -> bool:
        return any(command.reason is reason for command in _decide(*fleet).commands)

    assert find(fleets(), has_one, settings=FINDING)


@settings(max_examples=examples(200), deadline=None)
@given(fleets())
def test_no_pass_exceeds_a_budget(
    fleet: tuple[list[Any], list[dict[str, Any]], tuple[str, ...]],
) -> None:
    objects, pools, gone = fleet
    cluster = a_cluster(*objects)
    reasons = budget_reasons(REPAIRING)
    counts = node_counts(cluster.nodes)
    states = budget_states([a_pool(**pool) for pool in pools], counts, NOW, reasons)
    allowed = {(s.node_pool, s.reason): s.allowed for s in states}
    owner = {node.name: node.node_pool for node in cluster.nodes}

    decisions = decide(_situation(cluster, pools, gone))

    taken = [(owner[n], c.reason) for c in decisions.commands for n in c.nodes]
    for pool in POOLS:
        for reason in DisruptionReason:
            of_reason = sum(1 for row in taken if row == (pool, reason))
            assert of_reason <= allowed[pool, reason]
    # every voluntary command counts for every reason, so the largest budget is an upper bound
    for pool in POOLS:
        together = sum(1 for row in taken if row[0] == pool)
        assert together <= max(allowed[pool, reason] for reason in DisruptionReason)


@settings(max_examples=examples(150), deadline=None)
@given(fleets(), budgets)
def test_no_pass_exceeds_the_budget_of_the_fleet(
    fleet: tuple[list[Any], list[dict[str, Any]], tuple[str, ...]],
    of_fleet: list[dict[str, Any]],
) -> None:
    objects, pools, gone = fleet
    cluster = a_cluster(*objects)
    made = resolve({"disruption": {"budgets": of_fleet}}, {}).settings
    states = fleet_states(made.fleet_budgets, node_counts(cluster.nodes), NOW)
    allowed = {state.reason: state.allowed for state in states}

    made_pools = [a_pool(**pool) for pool in pools]
    decisions = decide(a_situation(cluster, made_pools, drifted=drifted(*gone), settings=made))

    taken = Counter(c.reason for c in decisions.commands for _ in c.nodes)
    for reason, most in allowed.items():
        assert taken[reason] <= most
    assert sum(taken.values()) <= max(allowed.values())


ages = st.lists(
    st.tuples(st.integers(-2, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=6
)
"""Nodes by the hours past their expiry, their number of pods, and whether they are ready."""


def test_the_generated_fleets_cover_graceful_expiry() -> None:
    def takes_one(drawn: list[tuple[int, int, bool]]) -> bool:
        decisions, _ = _expire_gracefully(drawn, [{"nodes": "100%"}])
        return any(command.placement for command in decisions.commands)

    assert find(ages, takes_one, settings=FINDING)


@settings(max_examples=examples(150), deadline=None)
@given(ages, budgets)
def test_graceful_expiry_respects_budgets_and_places_every_pod(
    drawn: list[tuple[int, int, bool]], of_pool: list[dict[str, Any]]
) -> None:
    decisions, allowed = _expire_gracefully(drawn, of_pool)

    assert {str(c.reason) for c in decisions.commands} <= {"Expired"}
    assert not any(c.is_forceful for c in decisions.commands)
    assert sum(len(c.nodes) for c in decisions.commands) <= allowed
    for command in decisions.commands:
        assert command.placement is not None
        assert not command.placement.unschedulable


def _expire_gracefully(
    drawn: list[tuple[int, int, bool]], of_pool: list[dict[str, Any]]
) -> tuple[Decisions, int]:
    """Return the decisions, and how many nodes the budgets allow."""
    objects: list[Any] = []
    for index, (hours, pods, ready) in enumerate(drawn):
        born = stamp(NOW - timedelta(hours=24 + hours))
        objects += a_node(
            f"n{index}",
            ready=ready,
            claim={"expireAfter": "24h"},
            claim_metadata={"creationTimestamp": born},
        )
        objects += [a_pod(f"p{index}-{n}", f"n{index}") for n in range(pods)]
    pool = a_pool(budgets=of_pool, consolidateAfter="Never")
    cluster = a_cluster(*objects)
    made = resolve({"expirationPolicy": "Graceful", "expirationCeiling": "48h"}, {}).settings
    states = budget_states([pool], node_counts(cluster.nodes), NOW)
    allowed = next(s.allowed for s in states if s.reason is DisruptionReason.DRIFTED)

    return decide(a_situation(cluster, [pool], settings=made)), allowed


@settings(max_examples=examples(150), deadline=None)
@given(fleets())
def test_a_node_is_removed_once_and_receives_no_pods(
    fleet: tuple[list[Any], list[dict[str, Any]], tuple[str, ...]],
) -> None:
    decisions = _decide(*fleet)

    going = [node for command in decisions.commands for node in command.nodes]
    targets = {
        node
        for command in decisions.commands
        if command.placement is not None
        for node in command.placement.on_nodes.values()
    }
    assert len(going) == len(set(going))
    assert targets.isdisjoint(going)
    names = [claim.name for command in decisions.commands for claim in command.replacements]
    assert len(names) == len(set(names))


@settings(max_examples=examples(100), deadline=None)
@given(fleets(), st.integers(0, 2**32))
def test_the_result_does_not_depend_on_the_input_order(
    fleet: tuple[list[Any], list[dict[str, Any]], tuple[str, ...]], seed: int
) -> None:
    objects, pools, gone = fleet
    shuffled, other_pools, other_gone = list(objects), list(pools), list(gone)
    chance = random.Random(seed)
    for rows in (shuffled, other_pools, other_gone):
        chance.shuffle(rows)

    assert _decide(objects, pools, gone) == _decide(shuffled, other_pools, tuple(other_gone))


@settings(max_examples=examples(150), deadline=None)
@given(fleets())
def test_consolidation_never_costs_more(
    fleet: tuple[list[Any], list[dict[str, Any]], tuple[str, ...]],
) -> None:
    for command in _decide(*fleet).commands:
        if command.reason is DisruptionReason.UNDERUTILIZED:
            assert command.savings is not None
            assert command.savings > 0
