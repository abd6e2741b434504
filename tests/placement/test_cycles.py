"""What a placement used is freed at once, not by a search of all objects for cycles."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Question
from tests.placement.builders import (
    HOST,
    NOW,
    ZONE,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    apart,
    pods,
    rule,
    spread,
)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_placement_leaves_no_cycles() -> None:
    """Disruption places pods thousands of times in a pass."""
    running = [o for n in range(8) for o in a_node(f"node-{n}", cpu="4")]
    databases = pods(4, "db", affinity=apart(rule(HOST, "db")))
    waiting = [*pods(6, topologySpreadConstraints=[spread(ZONE)]), *databases]
    lone = a_pod("lone", cpu="3")
    scheduler, cluster = a_scheduler([a_pool(), *running, *waiting, lone])
    question = Question(pods=pods_to_place(cluster, NOW))
    assert len(scheduler.place(question).on_nodes) > 5
    gc.collect()

    for _ in range(50):
        scheduler.place(question)

    assert gc.collect() < 50


@pytest.mark.usefixtures("without_collector")
def test_a_scheduler_is_freed_with_its_last_reference() -> None:
    """It holds a whole cluster, and a pass builds another one for each command that matters."""
    running = [o for n in range(3) for o in a_node(f"node-{n}", cpu="4")]
    scheduler, cluster = a_scheduler([a_pool(), *running, *pods(3)])
    scheduler.place(Question(pods=pods_to_place(cluster, NOW)))
    alive = weakref.ref(scheduler)

    del scheduler

    assert alive() is None
