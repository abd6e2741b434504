"""What is left of commitments after the running nodes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.catalog.commitments.coverage import PAID_SHARE, Coverage, RunningNode, coverage_of
from reconciler.model.billing import (
    COMPUTE,
    EC2_INSTANCE,
    Commitments,
    ReservedInstancesTerms,
    SavingsPlanTerms,
)
from tests.examples import examples

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
REGION = "eu-central-1"


def node(name: str, instance_type: str, price: float = 0.1, zone: str = "a") -> RunningNode:
    return RunningNode(name, instance_type, zone, price)


def covered(
    *running: RunningNode,
    plans: tuple[SavingsPlanTerms, ...] = (),
    reserved: tuple[ReservedInstancesTerms, ...] = (),
) -> Coverage:
    return coverage_of(Commitments(plans, reserved), running, REGION, NOON)


def test_reservations_apply_before_plans_of_a_family_and_those_before_compute_plans() -> None:
    found = covered(
        node("n1", "m7i.large"),
        node("n2", "m7i.large"),
        node("n3", "m7i.large"),
        node("n4", "c7g.large"),
        plans=(
            SavingsPlanTerms(COMPUTE, 1.0, used_elsewhere=0.0),
            SavingsPlanTerms(EC2_INSTANCE, 0.1, "m7i", used_elsewhere=0.0),
        ),
        reserved=(ReservedInstancesTerms("m7i.large", 1, used_elsewhere=0),),
    )
    assert list(found.paid) == ["n1", "n2", "n3", "n4"]
    [compute] = found.covers
    assert compute.room == pytest.approx(0.8)  # n3 and n4: the others were covered before
    assert compute.note == "compute savings plan, 20% used"


def test_zonal_reservations_apply_before_regional_ones() -> None:
    found = covered(
        node("n1", "m7i.large", zone="a"),
        reserved=(
            ReservedInstancesTerms("m7i.large", 1, used_elsewhere=0),
            ReservedInstancesTerms("m7i.large", 1, zone="a", used_elsewhere=0),
        ),
    )
    assert [(c.decision.zone, c.decision.count) for c in found.covers] == [("", 1)]


def test_billed_use_includes_the_nodes_and_other_use_does_not() -> None:
    running = node("n1", "m7i.large", 0.4)
    billed = SavingsPlanTerms(EC2_INSTANCE, 1.0, "m7i", utilization_percent=30.0)
    others = SavingsPlanTerms(EC2_INSTANCE, 1.0, "m7i", used_elsewhere=0.3)
    assert covered(running, plans=(billed,)).covers[0].room == pytest.approx(0.6)
    assert covered(running, plans=(others,)).covers[0].room == pytest.approx(0.3)


def test_an_offering_costs_what_exceeds_the_remaining_commitment() -> None:
    [cover] = covered(plans=(SavingsPlanTerms(COMPUTE, 0.5, used_elsewhere=0.0),)).covers
    assert cover.price(2.0) == pytest.approx(1.5)
    assert cover.price(0.4) == pytest.approx(0.4 * PAID_SHARE)
    assert 0 < cover.price(0.1) < cover.price(0.2)  # the cheaper type is still preferred


def test_partial_use_of_a_reservation_is_rounded_up() -> None:
    reserved = ReservedInstancesTerms("m7i.large", 3, utilization_percent=50.0)
    [cover] = covered(reserved=(reserved,)).covers
    assert cover.decision.count == 1


nodes = st.lists(
    st.builds(
        RunningNode,
        name=st.uuids().map(str),
        instance_type=st.sampled_from(["m7i.large", "c7g.large", "r7i.xlarge"]),
        zone=st.sampled_from(["a", "b"]),
        price=st.floats(0.01, 5.0),
    ),
    max_size=12,
)
plans = st.lists(
    st.one_of(
        st.builds(
            SavingsPlanTerms,
            type=st.just(COMPUTE),
            commitment=st.floats(0.01, 5.0),
            discount_percent=st.floats(0.0, 60.0),
            used_elsewhere=st.floats(0.0, 5.0),
        ),
        st.builds(
            SavingsPlanTerms,
            type=st.just(EC2_INSTANCE),
            family=st.sampled_from(["m7i", "c7g"]),
            commitment=st.floats(0.01, 5.0),
            discount_percent=st.floats(0.0, 60.0),
            used_elsewhere=st.floats(0.0, 5.0),
        ),
    ),
    max_size=4,
)


@settings(max_examples=examples(750), deadline=None)
@given(nodes, plans)
def test_plans_pay_no_more_than_their_commitment(
    running: list[RunningNode], terms: list[SavingsPlanTerms]
) -> None:
    found = covered(*running, plans=tuple(terms))
    prices = {n.name: n.price for n in running}
    saved = sum(prices[name] - paid for name, paid in found.paid.items())
    held = sum(
        max(t.commitment - (t.used_elsewhere or 0.0), 0.0) / (1 - t.discount_percent / 100)
        for t in terms
    )
    assert saved <= held + 1e-6
    assert all(0 < paid <= prices[name] for name, paid in found.paid.items())
    assert found == covered(*reversed(running), plans=tuple(terms))
