"""Capacity reservations of a class: which are found, their remaining capacity, and their use."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.catalog.classfacts import class_facts
from reconciler.model.karpenter.nodeclass import CapacityReservation, EC2NodeClass, SelectorTerm
from reconciler.model.kubernetes.metadata import condition
from reconciler.model.settings import FeatureGate
from reconciler.ports.cloud import Launch, LaunchAnswer, LaunchOption
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.purchases import SimulatedReservation
from tests.adapters.aws.test_lost_pages import assert_addressed, outcome
from tests.contracts.cloud import SETTINGS, a_class, a_cloud, a_compute, a_launch
from tests.examples import rotate

CALL = "DescribeCapacityReservations"
OWNER = "123456789012"


@pytest.fixture
def cloud(clock: SimulatedClock) -> EmbeddedEC2:
    cloud = a_cloud(clock)
    now = clock.now()
    one = SimulatedReservation("cr-1", "m7i.large", "us-east-1a", 2, tags={"team": "web"})
    for reserved in (
        one,
        replace(one, id="cr-2", zone="us-east-1b", criteria="open", interruptible=True),
        replace(one, id="cr-3", kind="capacity-block", end=now + timedelta(hours=2)),
        replace(one, id="cr-4", owner="999999999999"),
        replace(one, id="cr-5", tags={"team": "data"}),
        replace(one, id="cr-6", state="expired"),
        replace(one, id="cr-7", end=now),
    ):
        cloud.reservations.put(reserved)
    return cloud


def reserving(**term: object) -> EC2NodeClass:
    return a_class(capacity_reservation_selector_terms=(SelectorTerm(**term),))


def found(cloud: EmbeddedEC2, clock: SimulatedClock, **term: object) -> list[str]:
    status = a_compute(cloud, clock).resolve(reserving(**term)).status
    return [reservation.id for reservation in status.capacity_reservations]


def test_the_status_contains_all_facts_of_a_reservation(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    node_class = a_compute(cloud, clock).resolve(reserving(tags={"team": "web"}, owner_id=OWNER))
    plain = CapacityReservation(
        "cr-1", "us-east-1a", "m7i.large", OWNER, "targeted", available_instance_count=2
    )
    assert node_class.status.capacity_reservations == (
        plain,
        CapacityReservation(
            "cr-2",
            "us-east-1b",
            "m7i.large",
            OWNER,
            "open",
            interruptible=True,
            available_instance_count=2,
        ),
        CapacityReservation(
            "cr-3",
            "us-east-1a",
            "m7i.large",
            OWNER,
            "targeted",
            "capacity-block",
            end_time=clock.now() + timedelta(hours=2),
            available_instance_count=2,
        ),
    )
    assert node_class.is_ready
    assert [r.remaining for r in class_facts(node_class, SETTINGS).reservations] == [2, 2, 2]


@pytest.mark.parametrize(
    ("term", "ids"),
    [
        ({"id": "cr-4"}, ["cr-4"]),
        ({"id": "cr-6"}, []),
        ({"id": "cr-7"}, []),
        ({"id": "cr-0000"}, []),
        ({"tags": {"team": "*"}}, ["cr-1", "cr-2", "cr-3", "cr-4", "cr-5"]),
        ({"tags": {"team": "data"}}, ["cr-5"]),
        ({"owner_id": "999999999999", "tags": {"team": "web"}}, ["cr-4"]),
        ({"instance_match_criteria": "open"}, ["cr-2"]),
    ],
)
def test_a_selector_term_selects_reservations(
    cloud: EmbeddedEC2, clock: SimulatedClock, term: dict[str, object], ids: list[str]
) -> None:
    assert found(cloud, clock, **term) == ids
    cloud.rows_a_page = 1
    assert found(cloud, clock, **term) == ids


def test_finding_no_reservation_is_not_an_error_and_no_selector_makes_no_call(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    node_class = a_compute(cloud, clock).resolve(reserving(tags={"team": "nobody"}))
    assert node_class.is_ready
    ready = condition(node_class.status.conditions, "CapacityReservationsReady")
    assert ready is not None
    assert ready.status == "True"
    cloud.calls.clear()
    assert a_compute(cloud, clock).resolve(a_class()).is_ready
    gated = replace(SETTINGS, feature_gates={FeatureGate.RESERVED_CAPACITY: False})
    closed = a_compute(cloud, clock, gated).resolve(reserving(id="cr-1"))
    assert closed.status.capacity_reservations == ()
    assert condition(closed.status.conditions, "CapacityReservationsReady") is None
    assert CALL not in {call.operation for call in cloud.calls}


def test_a_block_expires_forty_minutes_before_its_end(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    compute = a_compute(cloud, clock)

    def state() -> list[str]:
        status = compute.resolve(reserving(id="cr-3")).status
        return [reservation.state for reservation in status.capacity_reservations]

    assert state() == ["active"]
    clock.advance(79 * 60)
    assert state() == ["active"]
    clock.advance(60)
    assert state() == ["expiring"]
    clock.advance(40 * 60)
    assert state() == ["expiring"], "what is gone has to be missing twice"
    clock.advance(60)
    assert state() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "times"),
    [
        pytest.param(
            fault,
            times,
            id=f"{fault.value}-{times or 'for-ever'}",
            marks=pytest.mark.exhaustive if number else (),
        )
        for turn, fault in enumerate(f for f in Fault if not f.takes_effect)
        for number, times in enumerate(rotate(turn, (1, 3, None)))
    ],
)
@pytest.mark.parametrize("term", [{"id": "cr-1"}, {"tags": {"team": "web"}}], ids=["id", "tags"])
def test_an_unreadable_reservation_does_not_count_as_gone(
    cloud: EmbeddedEC2,
    clock: SimulatedClock,
    fault: Fault,
    times: int | None,
    term: dict[str, object],
) -> None:
    cloud.rows_a_page = 1
    whole = found(cloud, clock, **term)
    cloud.faults.add(CALL, fault, times=times, skip=0 if "id" in term else 1)
    got, error = outcome(lambda: found(cloud, clock, **term))
    cloud.faults.clear()
    if error is None:
        assert (got, times is None) == (whole, False)
    else:
        assert_addressed(error, f"ec2:{CALL}", fault)
    assert found(cloud, clock, **term) == whole


def launch_request(node_class: EC2NodeClass, intent: str) -> Launch:
    option = LaunchOption("m7i.large", "us-east-1a", "reserved", 0.0, "cr-1", "default")
    return replace(a_launch(intent, node_class), options=(option,))


def launch(compute: AwsCompute, node_class: EC2NodeClass, intent: str) -> LaunchAnswer:
    (answer,) = compute.launch([launch_request(node_class, intent)])
    assert isinstance(answer, LaunchAnswer)
    return answer


def test_launches_use_up_a_reservation_at_once(cloud: EmbeddedEC2, clock: SimulatedClock) -> None:
    compute = a_compute(cloud, clock)

    def left() -> int | None:
        node_class = compute.resolve(reserving(id="cr-1"))
        return node_class.status.capacity_reservations[0].available_instance_count

    node_class = compute.resolve(reserving(id="cr-1"))
    assert left() == 2
    for number, rest in ((1, 1), (2, 0)):
        assert launch(compute, node_class, f"i{number}").instance is not None
        assert left() == rest, "without waiting for a minute"
    full = launch(compute, node_class, "i3")
    assert full.instance is None
    assert [(r.capacity_type, r.code) for r in full.refused] == [
        ("reserved", "ReservationCapacityExceeded")
    ]
    assert {(i.capacity_type, i.reservation_id) for i in compute.instances()} == {
        ("reserved", "cr-1")
    }
    compute.terminate([next(iter(cloud.running_instances()))])
    clock.advance(60)
    assert left() == 1


def test_two_observations_close_together_count_as_one(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    """A resource must be missing for at least a minute before nodes drift."""
    compute = a_compute(cloud, clock)
    whole = compute.resolve(reserving(id="cr-1"))
    kept = replace(cloud.reservations._known["cr-1"])
    cloud.reservations.cancel("cr-1")
    clock.advance(60)
    for number in range(3):
        node_class = compute.resolve(reserving(id="cr-1"))
        assert node_class.status.capacity_reservations == whole.status.capacity_reservations
        compute.launch([launch_request(node_class, f"i{number}")])
    cloud.reservations.put(kept)
    assert compute.resolve(reserving(id="cr-1")).status.capacity_reservations
    cloud.reservations.cancel("cr-1")
    clock.advance(60)
    assert compute.resolve(reserving(id="cr-1")).status.capacity_reservations
    clock.advance(60)
    assert compute.resolve(reserving(id="cr-1")).status.capacity_reservations == ()
