"""The laws of the design over random small fleets and random bad weather, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from reconciler.adapters.simulated.compute import SimulatedInstance
from reconciler.assembly.mandate import tags_of
from reconciler.engine.reconcile import Mandate, Pass
from reconciler.simulate.building import SimulatedFleet, SimulationSetup
from reconciler.simulate.driver import SimulationOutcome, play
from tests.engine.world import a_deployment, a_pdb, a_pool
from tests.examples import examples
from tests.simulated.simulations import Parsed, in_a_folder

VOLUNTARY = {"Drifted", "Empty", "Underutilized"}


@pytest.fixture(scope="module")
def parsed() -> Iterator[Parsed]:
    yield from in_a_folder()


@st.composite
def histories(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Return the objects of two revisions: pools may drift, Deployments may grow or shrink."""
    revisions: list[list[dict[str, Any]]] = [[], []]
    for name in draw(st.sampled_from([["web"], ["web", "job"]])):
        pool: dict[str, Any] = {
            "budgets": [{"nodes": str(draw(st.integers(1, 3)))}],
            "policy": draw(st.sampled_from(["WhenEmpty", "WhenEmptyOrUnderutilized"])),
            "capacity_types": draw(st.sampled_from([["on-demand"], ["spot"]])),
            "after": draw(st.sampled_from(["0s", "1m"])),
        }
        cpu = draw(st.sampled_from(["400m", "900m", "1500m"]))
        budget = draw(st.one_of(st.none(), st.integers(1, 2)))
        versions = draw(st.sampled_from([("1", "1"), ("1", "2")]))
        for objects, version in zip(revisions, versions, strict=True):
            objects.append(a_pool(name, labels={"version": version}, **pool))
            objects.append(a_deployment(name, name, draw(st.integers(1, 6)), cpu=cpu))
            if budget is not None:
                objects.append(a_pdb(name, name, maxUnavailable=budget))
    return revisions


@st.composite
def weathers(draw: st.DrawFn) -> dict[str, Any]:
    """Return a script that ends: what goes wrong goes wrong a few times, or for a few minutes."""
    script: dict[str, Any] = {}
    if draw(st.booleans()):
        kind = draw(st.sampled_from(["m7i.large", "c7i.large", "*"]))
        script["refusals"] = [{"instanceType": kind, "for": "10m"}]
    calls = st.fixed_dictionaries(
        {
            "call": st.sampled_from(["CreateFleet", "DescribeInstances", "TerminateInstances"]),
            "fault": st.sampled_from(["throttle", "timeout-before", "timeout-after"]),
            "times": st.integers(1, 2),
            "skip": st.integers(0, 4),
        }
    )
    script["calls"] = draw(st.lists(calls, max_size=3))
    steps = draw(st.lists(st.integers(1, 80), max_size=3, unique=True))
    script["kills"] = [{"step": step} for step in steps]
    if draw(st.booleans()):
        script["staleReads"] = [{"by": "10s", "for": "5m"}]
    script["neverRegister"] = draw(st.sampled_from([0.0, 0.0, 0.3]))
    script["duplicates"] = draw(st.booleans())
    return script


@dataclass
class Witness:
    """Checks the world after every pass, and counts violations."""

    setting: SimulationSetup
    budgets: dict[str, int]
    breaches: list[str] = field(default_factory=list)

    def count_breaches(self, done: Pass) -> None:
        """Count the nodes of each pool that voluntary commands have taken and that still run."""
        stage = self.setting.stage
        machines = stage.compute.machines.values()
        pools = {
            m.facts.tags["karpenter.sh/nodeclaim"]: m.facts.tags["karpenter.sh/nodepool"]
            for m in machines
        }
        going = {m.facts.tags["karpenter.sh/nodeclaim"] for m in machines if m.going_at is not None}
        taken: Counter[str] = Counter()
        for command in stage.world.store.commands():
            if command.reason in VOLUNTARY:
                for name in set(command.node_claims) - going:
                    taken[pools[name]] += 1
        for pool, count in taken.items():
            if count > self.budgets[pool]:
                self.breaches.append(f"{count} nodes of {pool} at {done.seen.at}")


def budgets_of(objects: list[dict[str, Any]]) -> dict[str, int]:
    return {
        o["metadata"]["name"]: int(o["spec"]["disruption"]["budgets"][0]["nodes"])
        for o in objects
        if o["kind"] == "NodePool"
    }


def run(
    setting: SimulationSetup,
    fleet: SimulatedFleet,
    witness: Witness,
    until: timedelta | None = None,
) -> SimulationOutcome:
    stage, entered = setting.stage, setting.start_fleet(fleet)
    end = stage.clock.now() + until if until is not None else None
    return play(
        stage, entered.priced_at, Mandate(tags_of(fleet.settings)), end, witness.count_breaches
    )


def living(setting: SimulationSetup) -> list[SimulatedInstance]:
    return [m for m in setting.stage.compute.machines.values() if m.going_at is None]


@settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(revisions=histories(), script=weathers(), seed=st.integers(0, 3))
def test_under_any_faults_the_fleet_converges_within_its_budgets(
    parsed: Parsed, revisions: list[list[dict[str, Any]]], script: dict[str, Any], seed: int
) -> None:
    setting = parsed.setting(revisions[0], script, seed)
    second = parsed.fleet(revisions[1])
    witness = Witness(setting, budgets_of(revisions[0]))
    run(setting, setting.head, witness, timedelta(minutes=20))
    played = run(setting, second, witness)
    kinds = Counter(e.kind for e in setting.stage.event_log.events)
    event(f"commands: {min(kinds['CommandStarted'], 3)}")

    assert played.converged, [n.message for n in setting.stage.event_log.notes][-5:]
    assert not [n for n in setting.stage.event_log.notes if n.kind == "IllegalTransition"]
    assert not witness.breaches
    known = setting.stage.world.store.node_claims()
    claims = {claim.status.provider_id.rpartition("/")[2] for claim in known}
    assert {m.facts.id for m in living(setting)} == claims, "leaked, or lost"
    assert max(Counter(m.intent for m in living(setting)).values(), default=1) == 1
    if not script["duplicates"]:
        every = Counter(m.intent for m in setting.stage.compute.machines.values())
        assert max(every.values(), default=1) == 1, "launched twice"

    before = len(setting.stage.event_log.events)
    run(setting, second, witness, timedelta(hours=6))
    assert setting.stage.event_log.events[before:] == [], "quiet input, and yet it moves"
