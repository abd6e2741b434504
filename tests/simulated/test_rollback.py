"""What a command that is rolled back leaves behind: no limit is passed, and nothing idles."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from reconciler.adapters.simulated.conditions import Offer, Period, Refused
from reconciler.disruption.gates.consolidatable import LEFT_OVER_FOR
from tests.engine.world import a_deployment, a_pool
from tests.simulated.smallworld import SmallWorld
from tests.simulated.test_bug_classes import full, idle, versions

LIMIT = 8


def limited(version: str, **spec: Any) -> list[dict[str, Any]]:
    """Return a pool that is as large as it may be."""
    return full("web", LIMIT // 2, version, limits={"cpu": str(LIMIT)}, **spec)


def test_a_rollback_leaves_no_pool_above_its_limit() -> None:
    """No replacement ever joins: the node is given back, so what was to replace it has to go."""
    world = SmallWorld(0)
    world.commit(limited("1"))
    world.play()
    world.keep_from_joining()
    world.commit(limited("2"))
    most: Counter[str] = Counter()
    world.play(timedelta(minutes=45), lambda: most.update(world.cpus() - most))
    reported = Counter(event.kind for event in world.event_log.events)
    assert reported["CommandRolledBack"] > 1
    assert most["web"] == LIMIT
    assert versions(world)["web", "1"] == LIMIT // 2


@pytest.mark.parametrize("quiet", ["0s", "1h", "Never"])
def test_replacements_of_a_rolled_back_command_do_not_stay_idle(quiet: str) -> None:
    """Git moves on while the replacement starts, and drift is closed: then nobody wants it."""
    world = SmallWorld(0)
    world.commit(full("web", 2, after=quiet))
    world.play()
    world.commit(full("web", 2, "2", after=quiet))
    world.run_pass()
    assert len(world.running_instances()) == 3
    closed = [{"nodes": "1"}, {"nodes": "0", "reasons": ["Drifted"]}]
    world.commit(full("web", 2, "3", after=quiet, budgets=closed))
    world.play(LEFT_OVER_FOR + timedelta(minutes=2))
    assert versions(world) == {("web", "1"): 2}


def spread_with_company(version: str, **spec: Any) -> list[dict[str, Any]]:
    """Return nodes that each hold pods bound to a zone and pods that may go anywhere."""
    pool = a_pool("web", labels={"version": version}, budgets=[{"nodes": "50%"}], **spec)
    bound, free = a_deployment("web", "web", 8, cpu="700m"), a_deployment("free", "web", 8)
    rule = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1}
    selector = {"labelSelector": {"matchLabels": {"app": "web"}}}
    bound["spec"]["template"]["spec"]["topologySpreadConstraints"] = [
        {**rule, "whenUnsatisfiable": "DoNotSchedule", **selector}
    ]
    return [pool, bound, free]


def test_a_zone_without_capacity_causes_no_idle_nodes_in_another() -> None:
    world = SmallWorld(0)
    world.commit(spread_with_company("1", after="12h"))
    world.play()
    now = world.clock.now()
    world.refuse(Refused(Offer(zone="us-east-1b"), Period(now, now + timedelta(hours=4))))
    world.commit(spread_with_company("2", after="12h"))
    before = len(world.compute.machines)
    world.play(timedelta(hours=4))
    assert idle(world) == []
    all_failed = Counter(m.intent for m in list(world.compute.machines.values())[before:])
    assert len(all_failed) - versions(world)["web", "2"] <= 10, "launched over and over"
    world.play(timedelta(hours=5))
    assert {version for _, version in versions(world)} == {"2"}, "tried again once there is room"
    assert idle(world) == []
