"""Pods are tried one after another, while nodes join: which nodes are there depends on the pace."""

from __future__ import annotations

from functools import partial

import pytest

from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.binding.queue import SchedulerPace
from reconciler.placement.binding.scheduler import JoiningNodes, NodeBinder, NodeInfo
from tests.placement.binding.builders import a_binder, a_node, a_pod


def pods_by_node(pods: list[Pod], *arrivals: tuple[float, str], seed: int = 0) -> dict[str, int]:
    """Bind pods while empty nodes join, each after a number of seconds; count those of each."""
    binder = a_binder(seed=seed)
    joining = [JoiningNodes(after, partial(join, binder, name)) for after, name in arrivals]
    counts: dict[str, int] = {}
    for node in binder.bind(pods, joining).values():
        counts[node.name] = counts.get(node.name, 0) + 1
    return counts


def join(binder: NodeBinder, name: str) -> None:
    binder.join(NodeInfo(a_node(name)))


FOUR = [a_pod(f"p{n}", "1") for n in range(4)]
"""As many as one node has room for."""


@pytest.mark.parametrize("seed", range(5))
def test_a_node_that_joins_an_hour_later_finds_no_pods(seed: int) -> None:
    assert pods_by_node(FOUR, (0, "first"), (3600, "second"), seed=seed) == {"first": 4}


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_join_together_share_the_pods(seed: int) -> None:
    assert pods_by_node(FOUR, (0, "first"), (0.001, "second"), seed=seed) == {
        "first": 2,
        "second": 2,
    }


def test_every_pod_that_failed_is_tried_again_when_a_node_joins() -> None:
    more = [*FOUR, a_pod("p4", "1"), a_pod("p5", "1")]

    assert pods_by_node(more, (0, "first"), (60, "second")) == {"first": 4, "second": 2}


def test_a_busy_control_plane_gives_each_of_two_nodes_some_pods() -> None:
    """Whether a node that joins a tenth of a second later gets any depends on the seed."""
    ends = {
        tuple(pods_by_node(FOUR, (0, "first"), (0.1, "second"), seed=seed).items())
        for seed in range(30)
    }

    assert (("first", 4),) in ends
    assert any(len(end) == 2 for end in ends)


@pytest.mark.parametrize("seed", range(5))
def test_after_a_hundred_requests_fifty_a_second_are_left(seed: int) -> None:
    pace = SchedulerPace(seed)
    for _ in range(1100):
        pace.take_turn()

    assert pace.now >= 1000 / 50 - 0.1

    after_a_pause = pace.now + 10
    pace.wait_until(after_a_pause)
    pace.take_turn()
    assert pace.now - after_a_pause <= 0.1
