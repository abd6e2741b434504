"""The utilization of several nodes is that of their sums."""

from __future__ import annotations

from reconciler.ports.cluster import NodeUsage


def usage(requested: int, allocatable: int, price: float | None = 1.0, pods: int = 2) -> NodeUsage:
    return NodeUsage(price, pods, {"cpu": requested}, {"cpu": allocatable, "memory": 0})


def test_a_full_small_node_and_an_empty_large_one_are_nearly_empty() -> None:
    total = NodeUsage.total([usage(2000, 2000), usage(0, 32_000)])
    assert round(total.share("cpu") or 0.0, 2) == 0.06
    assert (total.price, total.pods, total.share("memory")) == (2.0, 4, None)


def test_one_unknown_price_makes_the_sum_unknown() -> None:
    assert NodeUsage.total([usage(1, 2, None), usage(1, 2)]).price is None


def test_no_nodes_use_nothing() -> None:
    total = NodeUsage.total([])
    assert (total.price, total.pods, total.share("cpu")) == (0, 0, None)
