"""Fleets are divided evenly among replicas, by the fewest moves, and the moves end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.adapters.database.leases.replicas import Replica
from reconciler.daemon.sharing import Division, divide_fleets

TWENTY = frozenset(f"fleet-{n:02}" for n in range(20))


def replicas(**holds: int) -> dict[str, Replica]:
    """Return replicas that serve all fleets, and hold the given numbers of them."""
    fleets = iter(sorted(TWENTY))
    return {
        name: Replica(TWENTY, frozenset(next(fleets) for _ in range(count)))
        for name, count in holds.items()
    }


def held_fleets(found: dict[str, Replica]) -> frozenset[str]:
    return frozenset(fleet for replica in found.values() for fleet in replica.holds)


def after(found: dict[str, Replica], division: Division) -> dict[str, Replica]:
    """Return the replicas after they have applied the division."""
    return {
        name: Replica(
            r.serves, (r.holds | division.to_acquire[name]) - division.to_release[name], r.keeps
        )
        for name, r in found.items()
    }


def counts(found: dict[str, Replica]) -> list[int]:
    return sorted(len(replica.holds) for replica in found.values())


@pytest.mark.parametrize(
    ("before", "gives"),
    [
        ({"a": 20, "b": 0}, {"a": 10, "b": 0}),
        ({"a": 10, "b": 10, "c": 0}, {"a": 3, "b": 3, "c": 0}),
        ({"a": 7, "b": 7, "c": 6}, {"a": 0, "b": 0, "c": 0}),
        ({"a": 20}, {"a": 0}),
        ({"a": 1, "b": 0}, {"a": 0, "b": 0}),
    ],
    ids=["a-second-joins", "a-third-joins", "even", "alone", "odd"],
)
def test_a_replica_with_more_than_its_share_releases_the_surplus(
    before: dict[str, int], gives: dict[str, int]
) -> None:
    found = replicas(**before)
    division = divide_fleets(found, held_fleets(found))
    assert {name: len(fleets) for name, fleets in division.to_release.items()} == gives


def test_fleets_of_a_dead_replica_go_to_replicas_with_fewer() -> None:
    found = replicas(a=6, b=4)
    division = divide_fleets(found, held_fleets(found))
    assert counts(after(found, division)) == [10, 10]
    assert division.to_release == {"a": frozenset(), "b": frozenset()}


def test_a_replica_takes_only_fleets_that_it_serves() -> None:
    found = replicas(a=20) | {"b": Replica(frozenset({"fleet-00", "another"}))}
    division = divide_fleets(found, held_fleets(found))
    assert division.to_release["a"] == {"fleet-00"} or division.to_acquire["b"] == {"another"}
    assert division.to_acquire == {"a": frozenset(), "b": frozenset({"another"})}
    assert division.to_release["a"] <= {"fleet-00"}


def test_a_released_fleet_that_no_replica_took_is_kept() -> None:
    found = replicas(a=4, b=0)
    first = min(found["a"].holds)
    found["a"] = Replica(TWENTY, found["a"].holds, frozenset({first}))
    assert first not in divide_fleets(found, TWENTY).to_release["a"]


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.sets(st.sampled_from(sorted(TWENTY)[:8])),
        min_size=1,
    ),
    st.data(),
)
def test_the_distribution_is_stable_after_one_step(
    serves: dict[str, set[str]], data: st.DataObject
) -> None:
    found: dict[str, Replica] = {}
    taken: set[str] = set()
    for name, fleets in serves.items():
        holds = data.draw(st.sets(st.sampled_from(sorted(fleets)))) - taken if fleets else set()
        taken |= holds
        found[name] = Replica(frozenset(fleets), frozenset(holds))
    for _ in range(len(TWENTY)):
        division = divide_fleets(found, held_fleets(found))
        if not any((*division.to_acquire.values(), *division.to_release.values())):
            break
        found = after(found, division)
    else:
        pytest.fail("leases wander")
    assert held_fleets(found) == {fleet for r in found.values() for fleet in r.serves}
