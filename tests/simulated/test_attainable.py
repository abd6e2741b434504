"""The bound for pods that never move is at most what the best nodes for them cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from random import Random

import pytest

pytest.importorskip("highspy", reason="highspy has no wheel for this Python")

from benchmarks.attainable import START_S, Kind, Run, fits, minimum_without_moves

_SMALL: Kind = (1.0, (4, 8, 1))
_LARGE: Kind = (1.5, (8, 16, 2))
_HUGE: Kind = (2.4, (16, 32, 4))
_HOUR = 3600.0


def _groups(runs: Sequence[Run]) -> Iterator[list[list[Run]]]:
    """Yield all ways to divide pods among nodes."""
    if not runs:
        yield []
        return
    for rest in _groups(runs[1:]):
        yield [[runs[0]], *rest]
        for number, group in enumerate(rest):
            yield [*rest[:number], [runs[0], *group], *rest[number + 1 :]]


def _node_cost(runs: Sequence[Run], kinds: Sequence[Kind]) -> float:
    """Return the cost of the cheapest node for pods, from the first to the last, in USD."""
    peak = tuple(
        max(sum(run[2][index] for run in runs if run[0] <= at < run[1]) for at, _, _ in runs)
        for index in range(3)
    )
    price = min((price for price, room in kinds if fits(peak, room)), default=inf)
    return price * (max(run[1] for run in runs) - min(run[0] for run in runs) + START_S) / _HOUR


def test_a_pod_pays_for_its_life_and_the_start_of_its_node() -> None:
    bound = minimum_without_moves([(60.0, 3660.0, (3, 4, 1))], [_LARGE, _SMALL])
    assert bound == pytest.approx(1.0 * (3600 + START_S) / _HOUR)


def test_a_pod_does_not_leave_a_large_node_when_the_other_pod_ends() -> None:
    """With a move, a large node for an hour and a small one for nine would be enough."""
    pods = [(0.0, 3600.0, (4, 8, 1)), (0.0, 36_000.0, (4, 8, 1))]
    bound = minimum_without_moves(pods, [_SMALL, _LARGE])
    assert bound == pytest.approx(1.0 * (3600 + 36_000 + 2 * START_S) / _HOUR)


def test_a_part_of_a_node_holds_no_pod() -> None:
    bound = minimum_without_moves([(0.0, 3600.0, (1, 1, 0))], [_HUGE])
    assert bound == pytest.approx(2.4 * (3600 + START_S) / _HOUR)


def test_pods_larger_than_half_a_node_do_not_share_it() -> None:
    pods = [(0.0, 3600.0, (5, 1, 0))] * 3
    bound = minimum_without_moves(pods, [_LARGE])
    assert bound == pytest.approx(1.5 * 3 * (3600 + START_S) / _HOUR)


def test_pods_share_the_room_of_the_nodes() -> None:
    pods = [(0.0, 3600.0, (4, 8, 1))] * 4
    bound = minimum_without_moves(pods, [_LARGE])
    assert bound == pytest.approx(1.5 * 2 * (3600 + START_S) / _HOUR)


@pytest.mark.parametrize("seed", range(20))
def test_no_nodes_for_pods_that_never_move_cost_less_than_the_bound(seed: int) -> None:
    random, kinds = Random(seed), [_SMALL, _LARGE, _HUGE]
    runs: list[Run] = []
    for _ in range(5):
        begin, lasts = random.randrange(0, 3600, 60), random.choice([60, 600, 3600, 20_000])
        amounts = (random.randint(1, 8), random.randint(1, 16), random.randint(0, 2))
        runs.append((float(begin), float(begin + lasts), amounts))
    cheapest = min(sum(_node_cost(node, kinds) for node in nodes) for nodes in _groups(runs))
    assert 0 < minimum_without_moves(runs, kinds) <= cheapest * (1 + 1e-6)
