"""NodeResourcesFit and NodeResourcesBalancedAllocation, with values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.kubernetes.pod import Container, ResourceRequirements
from reconciler.model.kubernetes.profile import (
    DEFAULT_PROFILE,
    Plugin,
    Profile,
    ScoringStrategy,
    Strategy,
)
from tests.placement.binding.builders import a_binder, a_node, a_pod, places

FIT = replace(DEFAULT_PROFILE, weights={Plugin.NODE_RESOURCES_FIT: 1})
BALANCED = replace(DEFAULT_PROFILE, weights={Plugin.NODE_RESOURCES_BALANCED_ALLOCATION: 1})
RISING = ((0, 0), (50, 10), (100, 4))


def with_strategy(kind: Strategy, *resources: tuple[str, int], **fields: object) -> Profile:
    strategy = ScoringStrategy(kind, resources or FIT.scoring.resources, **fields)  # type: ignore[arg-type]
    return replace(FIT, scoring=strategy)


@pytest.mark.parametrize(
    ("profile", "pod", "expected"),
    [
        # 4 cores and 8 GiB: 25% of both is requested.
        pytest.param(FIT, ("1", "2Gi"), 75, id="least allocated"),
        # (75 + 50) // 2: each resource is rounded down, and their mean.
        pytest.param(FIT, ("1", "4Gi"), 62, id="least allocated, rounded down"),
        # 100m of 4 cores and 200Mi of 8 GiB: 97 and 97.
        pytest.param(FIT, ("", ""), 97, id="without requests"),
        # 1 core, and 200Mi as no memory is requested: (75 + 97) // 2.
        pytest.param(FIT, ("1", ""), 86, id="one request"),
        pytest.param(FIT, ("0", "0"), 100, id="a request of zero is a request"),
        pytest.param(with_strategy(Strategy.MOST_ALLOCATED), ("1", "2Gi"), 25, id="most"),
        pytest.param(
            with_strategy(Strategy.MOST_ALLOCATED, ("cpu", 3), ("memory", 1)),
            ("1", "4Gi"),
            (3 * 25 + 50) // 4,
            id="most, weighted",
        ),
        # 25% is half of the way from (0, 0) to (50, 100), 75% half of that from 100 to 40.
        pytest.param(
            with_strategy(Strategy.REQUESTED_TO_CAPACITY_RATIO, shape=RISING),
            ("1", "2Gi"),
            50,
            id="ratio, rising",
        ),
        pytest.param(
            with_strategy(Strategy.REQUESTED_TO_CAPACITY_RATIO, shape=RISING),
            ("3", "6Gi"),
            70,
            id="ratio, falling",
        ),
        # (50 + 100) / 2 of 25% and 50%; a mean is rounded to the nearest there.
        pytest.param(
            with_strategy(Strategy.REQUESTED_TO_CAPACITY_RATIO, shape=RISING),
            ("1", "4Gi"),
            75,
            id="ratio, of two resources",
        ),
        pytest.param(BALANCED, ("1", "2Gi"), 100, id="balanced"),
        # The deviation of 25% and 50% is 12.5%: 87.5, rounded down.
        pytest.param(BALANCED, ("1", "4Gi"), 87, id="unbalanced"),
        pytest.param(BALANCED, ("", ""), 0, id="balanced, skipped without requests"),
        # The deviation of 25% and 0% is 12.5%: here a missing request is none.
        pytest.param(BALANCED, ("1", ""), 87, id="balanced, one request"),
        # Fractions 0.25, 0.25 and 1: mean 0.5, deviation 0.3535…
        pytest.param(
            replace(BALANCED, balanced_resources=(("cpu", 1), ("memory", 1), ("gpu.example/x", 1))),
            ("1", "2Gi", "2"),
            64,
            id="balanced, three resources",
        ),
    ],
)
def test_a_node_scores_by_its_use_with_the_pod(
    profile: Profile, pod: tuple[str, ...], expected: int
) -> None:
    cpu, memory, *gpus = pod
    requests = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v}
    requests |= {"gpu.example/x": gpus[0]} if gpus else {}
    container = Container(resources=ResourceRequirements(requests))
    node = a_node("n", **{"gpu.example/x": "2"})
    binder = a_binder(node, profile=profile)
    assert binder.scores(a_pod("p", containers=(container,))) == {"n": expected}


def test_pods_without_requests_are_counted_in_scores_but_not_in_the_filter() -> None:
    idle = [a_pod(f"i{n}", "", "") for n in range(10)]
    binder = a_binder((a_node("idle"), idle), a_node("free"), profile=FIT)
    scores = binder.scores(a_pod("p", "4", "8Gi"))
    assert scores == {"idle": 0, "free": 0}, "4 cores fit although 1 is counted, and score nothing"
    scores = binder.scores(a_pod("q", "1", "2Gi"))
    # 1 + 10 * 100m of 4 cores: 50; 2 GiB + 10 * 200Mi of 8 GiB: 50.58.
    assert scores == {"idle": 50, "free": 75}


def test_a_full_node_takes_no_pod_even_without_requests() -> None:
    full = [a_pod(f"f{n}", "", "") for n in range(20)]
    assert places(a_binder((a_node("n"), full)), a_pod("p", "", "")) == {}


def test_most_allocated_fills_one_node_before_the_next() -> None:
    profile = replace(DEFAULT_PROFILE, scoring=ScoringStrategy(Strategy.MOST_ALLOCATED))
    nodes = [a_node("a"), a_node("b"), a_node("c")]
    pods = [a_pod(f"p{n}", "1", "2Gi") for n in range(4)]
    assert len(set(places(a_binder(*nodes, profile=profile), *pods).values())) == 1
    assert len(set(places(a_binder(*nodes), *pods).values())) == 3


def test_ignored_extended_resources_do_not_filter() -> None:
    container = Container(resources=ResourceRequirements({"cpu": "1", "gpu.example/x": "1"}))
    pod = a_pod("p", containers=(container,))
    assert places(a_binder(a_node("n")), pod) == {}
    for fields in (
        {"ignored_resources": frozenset({"gpu.example/x"})},
        {"ignored_resource_groups": frozenset({"gpu.example"})},
    ):
        profile = replace(DEFAULT_PROFILE, **fields)
        assert places(a_binder(a_node("n"), profile=profile), pod) == {"p": "n"}
