"""Metrics of a daemon: names that a tenant causes are not kept for as long as the process runs."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as with_fields

from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from tests.engine.faults import commit_drift, three_nodes
from tests.engine.world import TAGS
from tests.hostile.threats import Threat, attack
from tests.web.test_metrics import Counted, Daemon

PASSES = 400
CLAIMS = 50


class Recording(Counted):
    """Keeps the last pass that plans a NodeClaim."""

    planned: Any = None

    def pass_ended(self, world: Any, desired: Any, result: Any) -> None:
        super().pass_ended(world, desired, result)
        if result.plan.node_claims:
            self.planned = (world, desired, result)


@attack(Threat.EXHAUSTION, "nodes that are planned again and again and never launched, for memory")
def test_planned_nodes_that_are_never_launched_are_forgotten() -> None:
    """Guard: ``_Counters`` keeps the reasons of the last two plans."""
    world = three_nodes()
    daemon, ticks = Daemon(world), iter(range(400))
    observer = Recording(daemon.metrics, daemon.health)
    commit_drift(world)
    run(
        daemon.ports,
        daemon.engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0),
        stop=lambda: observer.planned is not None or next(ticks, None) is None,
        next_change=lambda _: None,
        observer=observer,
    )
    of_world, desired, result = observer.planned
    claim = result.plan.node_claims[0]

    def record(passes: range) -> None:
        for number in passes:
            claims = tuple(with_fields(claim, name=f"web-{number}-{n}") for n in range(CLAIMS))
            seen = replace(result, plan=with_fields(result.plan, node_claims=claims))
            daemon.metrics.record_pass(of_world, desired, seen, 1.0)

    record(range(2))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        record(range(2, PASSES))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < PASSES * CLAIMS * 40
