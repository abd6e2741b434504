"""EC2 in memory keeps the promises of the port, and moves only with its clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from reconciler.adapters.simulated.compute import SimulatedCompute
from reconciler.adapters.simulated.conditions import (
    START,
    Conditions,
    Fault,
    Offer,
    Period,
    PriceChange,
    Refused,
    SimulatedClock,
    Stale,
)
from reconciler.model.chance import Chance
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer
from tests.contracts.cloud import a_class, a_launch, a_type, options


class Site:
    """An EC2 under conditions, and its clock."""

    def __init__(self, seed: int = 0, **conditions: object) -> None:
        self.clock = SimulatedClock()
        self.ec2 = SimulatedCompute(
            self.clock,
            a_type,
            Conditions(**conditions),
            Chance(seed),  # type: ignore[arg-type]
        )

    def launch_request(self, intent: str = "one", *names: str, **fields: object) -> Launch:
        return a_launch(intent, a_class(), *names, **fields)

    def launch(self, intent: str = "one", *names: str, **fields: object) -> LaunchAnswer:
        (answer,) = self.ec2.launch([self.launch_request(intent, *names, **fields)])
        assert isinstance(answer, LaunchAnswer), answer
        return answer

    def launched(self, intent: str = "one", *names: str, **fields: object) -> Instance:
        answer = self.launch(intent, *names, **fields)
        assert answer.instance is not None
        return answer.instance

    def states(self) -> list[str]:
        return [i.state for i in self.ec2.instances()]


def test_an_instance_passes_through_its_states_until_it_is_no_longer_listed() -> None:
    site = Site()
    instance = site.launched()
    states = [site.states()]
    site.clock.advance(60)
    states.append(site.states())
    site.ec2.terminate([instance.id])
    states.append(site.states())
    site.clock.advance(120)
    assert [*states, site.states()] == [["pending"], ["running"], ["shutting-down"], []]
    assert [i.state for i in site.ec2.look_up([instance.id])] == ["terminated"]


def test_a_repeated_intent_launches_no_second_instance() -> None:
    site = Site()
    assert site.launched("same").id == site.launched("same").id
    assert len(site.ec2.machines) == 1


def test_a_client_token_with_other_parameters_is_rejected() -> None:
    site = Site()
    site.launched("same", "m7g.large")
    (answer,) = site.ec2.launch([site.launch_request("same", "m7i.large")])
    assert isinstance(answer, CloudError)
    assert "IdempotentParameterMismatch" in str(answer)


def test_without_idempotency_a_repeated_call_launches_again() -> None:
    site = Site(honours_tokens=False)
    assert site.launched("same").id != site.launched("same").id
    assert len(site.ec2.find(["same"])) == 2


def test_an_answer_contains_both_refusals_and_the_launched_instance() -> None:
    window = Period(START, START + timedelta(minutes=5))
    site = Site(refused=(Refused(Offer("m7g.large"), window),))
    answer = site.launch()
    assert answer.instance is not None
    assert answer.instance.instance_type == "m7i.large"
    assert {r.instance_type for r in answer.refused} == {"m7g.large"}


def test_a_refusal_ends_with_its_window() -> None:
    window = Period(START, START + timedelta(minutes=5))
    site = Site(refused=(Refused(Offer(), window),))
    assert site.launch("early").instance is None
    site.clock.advance(300)
    assert site.launch("late").instance is not None


@pytest.mark.parametrize(("fault", "made"), [(Fault.TIMEOUT_BEFORE, 0), (Fault.TIMEOUT_AFTER, 1)])
def test_a_call_with_a_lost_answer_may_have_had_its_effect(fault: Fault, made: int) -> None:
    site = Site()
    site.ec2.faults.add("CreateFleet", fault)
    (answer,) = site.ec2.launch([site.launch_request()])
    assert isinstance(answer, TransientCloudError)
    assert len(site.ec2.find(["one"])) == made


def test_a_stale_list_shows_an_earlier_state() -> None:
    site = Site(stale=(Stale(Period(START), timedelta(seconds=20)),))
    site.launched()
    assert site.states() == []
    site.clock.advance(20)
    assert site.states() == ["pending"]


def test_a_spot_instance_is_reclaimed_two_minutes_after_its_notice() -> None:
    site = Site(interruptions=1000.0)
    instance = site.launched("one", *("m7g.large",), options=options(capacity_type="spot"))
    machine = site.ec2.machines[instance.id]
    assert machine.notice_at is not None
    site.clock.advance((machine.notice_at - site.clock.now()).total_seconds())
    assert [n.instance.id for n in site.ec2.advance()] == [instance.id]
    assert list(site.ec2.interrupted_claims()) == [instance.tags["karpenter.sh/nodeclaim"]]
    site.clock.advance(120)
    assert site.ec2.advance() == []
    assert site.states() == ["shutting-down"]


def test_an_on_demand_instance_is_never_reclaimed() -> None:
    site = Site(interruptions=1000.0)
    instance = site.launched()
    assert site.ec2.machines[instance.id].notice_at is None


def test_an_instance_costs_from_its_launch_until_it_shuts_down() -> None:
    site = Site()
    instance = site.launched("one", "m7g.large")
    site.clock.advance(3600)
    site.ec2.terminate([instance.id])
    site.clock.advance(3600)
    cost = site.ec2.machines[instance.id].cost(START, site.clock.now())
    assert cost == pytest.approx(0.08)


def test_a_price_change_applies_from_its_time_on() -> None:
    change = PriceChange(Offer(), START + timedelta(hours=1), 3.0)
    site = Site(prices=(change,))
    instance = site.launched("one", "m7g.large")
    site.clock.advance(7200)
    site.ec2.advance()
    machine = site.ec2.machines[instance.id]
    assert machine.cost(START, site.clock.now()) == pytest.approx(0.08 + 0.24)


def test_random_events_depend_only_on_the_seed() -> None:
    def fate(seed: int) -> object:
        site = Site(seed, interruptions=0.1)
        instance = site.launched("one", "m7g.large", options=options(capacity_type="spot"))
        return site.ec2.machines[instance.id].notice_at

    assert fate(1) == fate(1)
    assert fate(1) != fate(2)
