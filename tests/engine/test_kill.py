"""``kill -9`` at any time, and the recovery of the next process, checked instance by instance.

A seed determines the times. All of these tests are exhaustive; there are four seeds, or the number
in ``RECONCILER_KILL_SEEDS``.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.simulated.conditions import Fault
from tests.engine.processes import Site, a_site

pytestmark = pytest.mark.exhaustive

SEEDS = range(int(os.environ.get("RECONCILER_KILL_SEEDS", "4")))
QUICK = ("--interval", "100ms", "-q", "--auto-approve")


def spoil(site: Site, chance: random.Random) -> None:
    """Make EC2 lose answers, throttle, fail, refuse a type and ignore client tokens."""
    site.cloud.honours_tokens = chance.random() < 0.5
    for fault in (Fault.THROTTLE, Fault.SERVER_ERROR, Fault.RESET_AFTER, Fault.RESET_BEFORE):
        for call in ("CreateFleet", "DescribeInstances", "TerminateInstances"):
            if chance.random() < 0.4:
                site.cloud.faults.add(call, fault, skip=chance.randrange(6))
    if chance.random() < 0.5:
        site.cloud.market.refuse(zone=chance.choice(["us-east-1a", "us-east-1b", "us-east-1c"]))


def standing(site: Site) -> dict[str, Any]:
    """Return the status without what changes by itself.

    A digest covers the records as the look found them, and what the last look wrote into them is
    found by the next. Offerings are unavailable for three minutes.
    """
    status: dict[str, Any] = json.loads(site.finish("status", "-o", "json"))
    del status["plan"]["at"], status["plan"]["digest"], status["unavailable"]
    return status


def waiting_for_a_retry(site: Site) -> int:
    """Return the number of nodes whose replacements failed, and that are tried again later."""
    blockers = json.loads(site.finish("status", "-o", "json"))["blockers"]
    return sum(len(b["nodes"]) for b in blockers if b["kind"] == "Retry")


@pytest.mark.parametrize(("seed", "kills"), [(seed, 2) for seed in SEEDS])
def test_a_killed_apply_resumes_where_it_stopped(seed: int, kills: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with a_site(tmp_path) as site:
        spoil(site, chance)
        for _ in range(kills):
            site.killed_at(chance, 14, "apply", *QUICK)
        site.finish("apply", *QUICK)
        first = site.fleet()
        assert site.twice() == []
        assert sum(first.values()) >= 3
        site.change("nodes/pool.yaml", "expireAfter: 336h", "expireAfter: 300h")
        before = set(site.cloud.running_instances())
        for _ in range(kills):
            site.killed_at(chance, 30, "apply", *QUICK)
        site.finish("apply", *QUICK)
        # How many nodes it takes follows from where the pods were when theirs was replaced, and a
        # launch that came late has let pods go elsewhere. What it all costs once it was quiet is
        # held in tests/simulated/test_bug_classes.py, where time is virtual.
        assert site.fleet().keys() == first.keys()
        assert site.twice() == []
        # In a zone without capacity, a replacement fails twice and then waits.
        assert len(before & site.cloud.running_instances().keys()) <= waiting_for_a_retry(site)
        quiet = standing(site)
        site.finish("apply", *QUICK)
        assert standing(site) == quiet


JOINED = ("--set", "aws.batchLaunchesFrom=2")


@pytest.mark.parametrize(("seed", "kills"), [(seed, 3) for seed in SEEDS])
def test_a_killed_apply_assigns_the_instances_of_batched_launches(
    seed: int, kills: int, tmp_path: Path
) -> None:
    chance = random.Random(f"joined {seed}")
    with a_site(tmp_path) as site:
        spoil(site, chance)
        for _ in range(kills):
            site.killed_at(chance, 10, "apply", *QUICK, *JOINED)
        site.finish("apply", *QUICK, *JOINED)
        names = [
            tags.get("karpenter.sh/nodeclaim") for tags in site.cloud.running_instances().values()
        ]
        assert len(names) >= 3
        assert None not in names, "each is somebody's"
        assert len(set(names)) == len(names), "and nobody has two"
