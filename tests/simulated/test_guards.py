"""The guards that count over time, carried through the engine on the simulated cloud."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.assembly.mandate import tags_of
from reconciler.engine.reconcile import Mandate, Pass
from reconciler.engine.steps.rollouts import resume
from reconciler.ports.state import CommandPhase, RunningCommand
from reconciler.simulate.building import SimulatedFleet, SimulationSetup
from reconciler.simulate.driver import SimulationOutcome, play
from reconciler.source.plainyaml import dump
from tests.engine.test_crash import LARGE
from tests.engine.world import a_deployment, a_pdb, a_pool
from tests.examples import examples
from tests.simulated.simulations import Parsed, in_a_folder

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def parsed() -> Iterator[Parsed]:
    yield from in_a_folder()


@dataclass
class Scenario:
    """A simulated world that is played on and on, and every command that it ever started."""

    parsed: Parsed
    config: Mapping[str, Any]
    script: Mapping[str, Any] = field(default_factory=dict)
    setting: SimulationSetup | None = None
    fleet: SimulatedFleet | None = None
    last: Pass | None = None
    started: dict[tuple[str, datetime], RunningCommand] = field(default_factory=dict)

    def commit(self, *objects: Mapping[str, Any]) -> None:
        """Let git have these objects from now on."""
        folder = self.parsed.folder / "fleet"
        folder.mkdir(exist_ok=True)
        head = {"apiVersion": "reconciler/v1", "kind": "Configuration"}
        (folder / "reconciler.yaml").write_text(dump({**head, **self.config}))
        if self.setting is None:
            self.setting = self.parsed.setting(objects, self.script)
            self.fleet = self.setting.start_fleet(self.setting.head)
        else:
            self.fleet = self.setting.start_fleet(self.parsed.fleet(objects))

    def play(self, span: timedelta | None = None) -> SimulationOutcome:
        """Run for a time, or until nothing more can change."""
        assert self.setting is not None
        assert self.fleet is not None
        stage = self.setting.stage
        end = None if span is None else stage.clock.now() + span
        return play(
            stage, self.fleet.priced_at, Mandate(tags_of(self.fleet.settings)), end, self._observe
        )

    def _observe(self, done: Pass) -> None:
        assert self.setting is not None
        self.last = done
        for command in self.setting.stage.world.store.commands_since(self.setting.start):
            self.started[command.id, command.started_at] = command

    @property
    def now(self) -> datetime:
        assert self.setting is not None
        return self.setting.stage.clock.now()

    def types(self) -> list[str]:
        """Return the instance types that run."""
        assert self.setting is not None
        machines = self.setting.stage.compute.machines.values()
        return sorted(m.facts.instance_type for m in machines if m.going_at is None)

    def voluntary(self) -> list[RunningCommand]:
        """Return the voluntary commands in the order in which they started."""
        found = (c for c in self.started.values() if c.voluntary)
        return sorted(found, key=lambda c: (c.started_at, c.id))

    def kinds(self, kind: str) -> list[str]:
        """Return what was told of that kind, events and notes alike."""
        assert self.setting is not None
        event_log = self.setting.stage.event_log
        return [e.message for e in (*event_log.events, *event_log.notes) if e.kind == kind]

    def waiting(self) -> list[str]:
        """Return what the last plan says of deferred nodes."""
        assert self.last is not None
        return [d.message for d in self.last.plan.deferred]


def drifting(version: str, replicas: int = 4, **pool: Any) -> list[dict[str, Any]]:
    """Return a fleet of one pod a node, whose nodes drift with the version."""
    shape = {"budgets": [{"nodes": "100%"}], "template": {"requirements": LARGE}, **pool}
    return [
        a_pool("web", labels={"version": version}, **shape),
        a_deployment("web", "web", replicas),
    ]


# memory


SWING = [
    {"at": f"{hour}h", "instanceType": "c7i.large", "factor": factor}
    for hour, factor in ((1, 0.3), (2, 1.0), (3, 0.3), (4, 1.0), (5, 0.3), (6, 1.0))
]


def swinging(parsed: Parsed, **config: Any) -> Scenario:
    """Return eight hours in which two offerings are in turn the cheaper one."""
    scenario = Scenario(parsed, config, {"prices": SWING})
    scenario.commit(
        a_pool("web", policy="WhenEmptyOrUnderutilized", after="1m"),
        a_deployment("web", "web", 1),
    )
    scenario.play(8 * HOUR)
    return scenario


def test_without_flap_damping_swinging_prices_move_a_node_back_and_forth(parsed: Parsed) -> None:
    assert len(swinging(parsed).voluntary()) == 6


def test_a_replaced_offering_is_not_used_again_within_the_period(parsed: Parsed) -> None:
    scenario = swinging(parsed, undoPeriod="24h")
    assert len(scenario.voluntary()) == 1
    assert scenario.types() == ["c7i.large"]
    assert any(
        "would undo a consolidation: " in m and "replaced m7i.large" in m
        for m in scenario.waiting()
    )
    scenario.play(18 * HOUR)
    assert scenario.types() == ["m7i.large"], "the period is over, and it is cheaper still"


def test_flap_damping_survives_a_killed_daemon(parsed: Parsed) -> None:
    script = {"prices": SWING, "kills": [{"step": step} for step in range(20, 60, 7)]}
    scenario = Scenario(parsed, {"undoPeriod": "24h"}, script)
    scenario.commit(
        a_pool("web", policy="WhenEmptyOrUnderutilized", after="1m"),
        a_deployment("web", "web", 1),
    )
    scenario.play(8 * HOUR)
    assert scenario.kinds("Killed")
    assert len({c.node_claims for c in scenario.voluntary()}) == 1


# share of a day


def test_nodes_beyond_the_daily_maximum_are_disrupted_the_next_day(parsed: Parsed) -> None:
    scenario = Scenario(parsed, {"disruption": {"maximumPerDay": "50%"}})
    scenario.commit(*drifting("1"))
    scenario.play(HOUR)
    scenario.commit(*drifting("2"))
    scenario.play(20 * HOUR)
    first = scenario.voluntary()
    assert sum(len(c.node_claims) for c in first) == 2
    [message] = set(scenario.waiting())
    assert message == (
        "2 of the 4 nodes of the fleet may be disrupted within 24 hours"
        " (disruption.maximumPerDay); 2 were disrupted"
    )
    assert scenario.last is not None
    [again] = {d.not_before for d in scenario.last.plan.deferred}
    assert again == first[0].started_at + 24 * HOUR
    assert scenario.play().converged
    assert sum(len(c.node_claims) for c in scenario.voluntary()) == 4
    assert min(c.started_at for c in scenario.voluntary()[2:]) >= again


def test_a_pool_has_a_separate_daily_maximum(parsed: Parsed) -> None:
    scenario = Scenario(parsed, {"nodePools": {"web": {"maximumPerDay": "1"}}})
    scenario.commit(*drifting("1", 2))
    scenario.play(HOUR)
    scenario.commit(*drifting("2", 2))
    scenario.play(2 * HOUR)
    assert len(scenario.voluntary()) == 1
    assert all("(nodePools.web.maximumPerDay)" in message for message in scenario.waiting())


# waves


def waving(
    parsed: Parsed,
    script: Mapping[str, Any] | None = None,
    before: timedelta = HOUR,
    **config: Any,
) -> Scenario:
    """Return four nodes that begin to drift once ``before`` is over, two to a wave."""
    scenario = Scenario(parsed, {"waveSize": "2", "waveSoak": "20m", **config}, script or {})
    scenario.commit(*drifting("1"))
    scenario.play(before)
    scenario.commit(*drifting("2"))
    return scenario


def test_a_wave_waits_for_the_health_gate_of_the_one_before(parsed: Parsed) -> None:
    scenario = waving(parsed)
    assert scenario.play().converged
    commands = scenario.voluntary()
    starts = sorted({c.started_at for c in commands})
    assert [sum(c.started_at == at for c in commands) for at in starts] == [2, 2]
    assert starts[1] - starts[0] >= 20 * MINUTE
    assert scenario.kinds("WaveSettled") == [
        "wave 1 of web passed its health gate",
        "wave 2 of web passed its health gate",
    ]


def test_unavailable_workloads_delay_the_next_wave_and_halt_the_rollout(
    parsed: Parsed,
) -> None:
    slow = {"latencies": {"starting": "2h"}}
    scenario = waving(parsed, slow, 3 * HOUR, stopAfterFailures=2, waveDeadline="10m")
    scenario.play(12 * HOUR)
    assert len(scenario.voluntary()) == 2, "the first wave only"
    [message] = scenario.kinds("RolloutStopped")
    assert message.startswith("disruption of web is halted after 2 failures: 2 of 4 pods of")
    assert all("`reconciler resume --node-pool web`" in message for message in scenario.waiting())


def test_failed_replacements_halt_the_rollout_until_it_is_resumed(
    parsed: Parsed,
) -> None:
    refused = [{"instanceType": "*", "from": "1h", "for": "12h"}]
    scenario = waving(parsed, {"refusals": refused}, stopAfterFailures=3)
    scenario.play(8 * HOUR)
    [message] = scenario.kinds("RolloutStopped")
    assert "is gone" in message
    failed = [c for c in scenario.voluntary() if c.failed]
    assert 3 <= len(failed) <= 4, "a wave of two may fail by one too many"
    scenario.play(10 * HOUR)
    assert [c for c in scenario.voluntary() if c.failed] == failed, "it stays stopped"
    assert scenario.setting is not None
    store = scenario.setting.stage.world.store
    [rollout] = store.rollouts()
    store.put_rollout(resume(rollout))
    assert scenario.play().converged
    done = [c for c in scenario.voluntary() if c.phase is CommandPhase.DONE]
    assert len({name for c in done for name in c.node_claims}) >= 4


def test_a_wave_without_a_failure_resets_the_failure_count(parsed: Parsed) -> None:
    refusals = [{"from": f"{at}m", "for": "1m"} for at in (60, 150, 240)]
    scenario = Scenario(parsed, {"waveSize": "1", "stopAfterFailures": 2}, {"refusals": refusals})
    for version in ("1", "2", "3", "4"):
        scenario.commit(*drifting(version, 1))
        scenario.play(HOUR + 30 * MINUTE if version != "1" else 59 * MINUTE)
    assert not scenario.kinds("RolloutStopped")


def test_removal_of_empty_nodes_does_not_wait_for_a_wave(parsed: Parsed) -> None:
    scenario = Scenario(parsed, {"waveSize": "1", "waveSoak": "3h"})
    scenario.commit(*drifting("1"))
    scenario.play(HOUR)
    scenario.commit(*drifting("1", 1))
    scenario.play(HOUR)
    assert scenario.types() == ["m7i.large"]


# progress


def test_drift_blocked_by_a_budget_is_reported_after_its_deadline(parsed: Parsed) -> None:
    scenario = Scenario(parsed, {"progressDeadline": "4h"})
    closed = a_pdb("web", "web", maxUnavailable=0)
    scenario.commit(*drifting("1", 1), closed)
    scenario.play(HOUR)
    scenario.commit(*drifting("2", 1), closed)
    scenario.play(3 * HOUR)
    assert not scenario.kinds("ProgressDeadlineExceeded")
    scenario.play(20 * HOUR)
    [message] = scenario.kinds("ProgressDeadlineExceeded")
    assert (
        "longer than 4h (progressDeadline), and is not replaced: pdb prevents pod evictions"
        in message
    )
    assert scenario.last is not None
    assert [d.message for d in scenario.last.plan.diagnostics if d.code == "progress-deadline"] == [
        message
    ]
    scenario.commit(*drifting("2", 1))
    assert scenario.play().converged
    assert scenario.last.plan.drift == ()


# churn


@pytest.mark.parametrize("grace", [None, "2h"])
def test_the_empty_replacement_of_a_draining_node_stays(parsed: Parsed, grace: str | None) -> None:
    """A terminating pod is not pending, and its new node is empty until it is replaced.

    Taken as empty, the node would be launched again as soon as the pod has left.
    """
    scenario = Scenario(parsed, {}, {"latencies": {"leaving": "10m"}})
    template = {"requirements": LARGE, **({"terminationGracePeriod": grace} if grace else {})}
    scenario.commit(*drifting("1", 3, template=template))
    scenario.play(HOUR)
    scenario.commit(*drifting("2", 3, template=template))
    assert scenario.play().converged
    assert scenario.setting is not None
    created = [e for e in scenario.setting.stage.event_log.events if e.kind == "NodeClaimCreated"]
    assert len(created) == 6, "three nodes, and one for each of them"
    assert {c.reason for c in scenario.voluntary()} == {"Drifted"}


def test_an_endless_drain_does_not_cause_repeated_moves(parsed: Parsed) -> None:
    """Its pods count as waiting for a place for ever, and the node that has it stays for them."""
    scenario = Scenario(parsed, {})
    template = {"requirements": LARGE, "expireAfter": "5h"}
    protected = {"karpenter.sh/do-not-disrupt": "true"}
    scenario.commit(
        a_pool("web", policy="WhenEmptyOrUnderutilized", template=template),
        a_deployment("web", "web", 1, cpu="400m", annotations=protected),
        a_deployment("api", "web", 1, cpu="400m"),
        a_pdb("api", "api", minAvailable=1),
    )
    scenario.play(9 * HOUR)
    assert scenario.setting is not None
    created = [e for e in scenario.setting.stage.event_log.events if e.kind == "NodeClaimCreated"]
    assert len(created) == 2, "the node, and one for the pods that it is to lose"


# laws


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "waveSize": st.sampled_from(["1", "2", "34%"]),
        "waveSoak": st.sampled_from(["0s", "5m"]),
        "stopAfterFailures": st.sampled_from([0, 6]),
        "maximumPerDay": st.sampled_from(["2", "60%"]),
        "undoPeriod": st.sampled_from(["0s", "24h"]),
    },
)


@settings(
    max_examples=examples(30),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    config=CONFIGS,
    replicas=st.integers(1, 5),
    versions=st.lists(st.sampled_from("123"), min_size=1, max_size=3),
    steps=st.lists(st.integers(1, 120), max_size=3, unique=True),
    never=st.sampled_from([0.0, 0.3]),
)
def test_rate_limits_hold_under_any_faults_and_the_fleet_converges(
    parsed: Parsed,
    config: dict[str, Any],
    replicas: int,
    versions: Sequence[str],
    steps: list[int],
    never: float,
) -> None:
    script = {"kills": [{"step": step} for step in steps], "neverRegister": never}
    scenario = Scenario(parsed, config, script)
    scenario.commit(*drifting("0", replicas, policy="WhenEmptyOrUnderutilized"))
    scenario.play(30 * MINUTE)
    for version in versions:
        scenario.commit(*drifting(version, replicas, policy="WhenEmptyOrUnderutilized"))
        scenario.play(2 * HOUR)
    played = scenario.play()
    stopped = bool(scenario.kinds("RolloutStopped"))
    assert played.converged or stopped
    _within_each_day(scenario, config, replicas)
    _wave_after_wave(scenario, config, replicas)
    before = len(scenario.started)
    scenario.play(48 * HOUR)
    assert len(scenario.started) == before, "quiet input, and yet it moves"


def _within_each_day(scenario: Scenario, config: Mapping[str, Any], replicas: int) -> None:
    if "maximumPerDay" not in config:
        return
    done = [c for c in scenario.voluntary() if c.phase is not CommandPhase.ROLLED_BACK]
    most = 2 if config["maximumPerDay"] == "2" else -(-(replicas + 1) * 60 // 100)
    for first in done:
        day = [c for c in done if timedelta(0) <= c.started_at - first.started_at < 24 * HOUR]
        assert sum(len(c.node_claims) for c in day) <= most


def _wave_after_wave(scenario: Scenario, config: Mapping[str, Any], replicas: int) -> None:
    """Hold that no more nodes than a wave has are under way, or done and not yet well, at once."""
    if "waveSize" not in config:
        return
    most = {"1": 1, "2": 2, "34%": -(-(replicas + 1) * 34 // 100)}[config["waveSize"]]
    moved = [c for c in scenario.voluntary() if c.reason != "Empty"]
    for first in moved:
        at_once = [c for c in moved if c.started_at == first.started_at]
        assert sum(len(c.node_claims) for c in at_once) <= most
