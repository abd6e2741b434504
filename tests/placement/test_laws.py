"""Properties of every placement, tested on random clusters.

Feasible: a check that shares no code with the scheduler accepts the result. Deterministic: the
result does not depend on the order of the input or the hash seed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.placement.builders import TYPES, Object, a_pool, placed, plan_of, pods, spread
from tests.placement.worlds import worlds

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance")
thorough = settings(
    max_examples=examples(200),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _independent_check() -> ModuleType | None:
    path = FOLDER / "feasibility.py"
    spec = importlib.util.spec_from_file_location("feasibility", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules["feasibility"] = module
    spec.loader.exec_module(module)
    return module


CHECK = _independent_check()


@pytest.mark.skipif(CHECK is None, reason="the independent check is not beside this checkout")
@given(worlds(), st.sampled_from(["Respect", "Ignore"]))
@thorough
def test_an_independent_check_accepts_every_placement(world: list[Object], policy: str) -> None:
    placement = placed(world, preference_policy=policy)
    assert CHECK is not None
    assert CHECK.check(world, list(TYPES), plan_of(placement)) == []


@given(worlds())
@thorough
def test_every_pod_to_place_has_exactly_one_result(world: list[Object]) -> None:
    placement = placed(world)
    answered = [key for claim in placement.claims for key in claim.pods]
    answered += [*placement.on_nodes, *placement.unschedulable, *placement.deferred]
    going = {
        o["metadata"]["name"].removeprefix("claim-")
        for o in world
        if o["kind"] == "NodeClaim" and "deletionTimestamp" in o["metadata"]
    }
    waiting = [
        f"default/{o['metadata']['name']}"
        for o in world
        if o["kind"] == "Pod" and o["spec"].get("nodeName", "") in ("", *going)
    ]
    assert sorted(answered) == sorted(waiting)
    assert all(reasons for reasons in placement.unschedulable.values())
    assert set(placement.on_nodes.values()).isdisjoint(going)


@given(worlds(), st.randoms(use_true_random=False))
@thorough
def test_the_result_does_not_depend_on_the_input_order(world: list[Object], random: Any) -> None:
    shuffled = list(world)
    random.shuffle(shuffled)
    once, again = placed(world), placed(shuffled)
    assert plan_of(once) == plan_of(again)
    assert once.relaxed == again.relaxed
    assert once.unschedulable == again.unschedulable


def digest_of_a_placement() -> str:
    """Return a digest of a placement with many ties."""
    world = [a_pool("a"), a_pool("b")]
    for app in ("x", "y", "z"):
        rules = [spread("topology.kubernetes.io/zone", app)]
        world += pods(7, app, topologySpreadConstraints=rules, cpu="3")
    return sha256(json.dumps(plan_of(placed(world))).encode()).hexdigest()


@pytest.mark.exhaustive
def test_the_result_does_not_depend_on_the_hash_seed() -> None:
    program = "from tests.placement.test_laws import digest_of_a_placement as d; print(d())"
    found = {
        subprocess.check_output(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            text=True,
        )
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1
