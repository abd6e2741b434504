"""The contracts of the ports for every StateStore, Journal, Shelf and Lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from reconciler.adapters.simulated.memory import (
    MemoryJournal,
    MemoryShelf,
    MemoryStateStore,
)
from reconciler.model.errors import LockedError
from reconciler.model.history import Move, Obstacle, Rollout
from reconciler.ports.journal import IntentOutcome, Journal, Outcome, Verb
from reconciler.ports.state import CommandPhase, Lease, Shelf, StateStore
from tests.contracts.records import (
    NOW,
    a_claim,
    a_command,
    a_plan,
    after,
    an_intent,
    an_object,
    an_unavailable,
)
from tests.postgres import a_database
from tests.states import open_state


@dataclass
class Parts:
    store: StateStore
    journal: Journal
    shelf: Shelf


@pytest.fixture(scope="module")
def server() -> str:
    return a_database()


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Parts]:
    if request.param == "memory":
        yield Parts(MemoryStateStore(), MemoryJournal(), MemoryShelf())
        return
    location = str(tmp_path / "state")
    if request.param == "postgresql":
        location = request.getfixturevalue("server")
    with open_state(location, request.node.name[:60]) as opened:
        yield Parts(opened.store, opened.journal, opened.shelf)


def test_a_new_state_is_empty(state: Parts) -> None:
    assert state.store.serial() == 0
    assert list(state.store.node_claims()) == []
    assert list(state.store.commands()) == []
    assert list(state.store.objects()) == []
    assert list(state.store.plans()) == []
    assert list(state.store.unavailable(NOW)) == []
    assert list(state.store.rollouts()) == []
    assert list(state.store.obstacles()) == []
    assert state.store.command("no") is None
    assert state.store.plan("no") is None
    assert list(state.journal.entries()) == []
    assert state.shelf.read("no") is None


def test_claims_are_read_back_unchanged_by_name(state: Parts) -> None:
    claims = [a_claim("b", node="node-b"), a_claim("a", zone="ü‘\N{SNOWMAN}")]
    state.store.put_node_claims(claims)
    assert list(state.store.node_claims()) == [claims[1], claims[0]]


def test_a_claim_written_again_replaces_the_old_one(state: Parts) -> None:
    state.store.put_node_claims([a_claim("a"), a_claim("b")])
    state.store.put_node_claims([a_claim("a", node="node-a")])
    assert [c.status.node_name for c in state.store.node_claims()] == ["node-a", ""]


def test_a_deleted_claim_is_not_listed(state: Parts) -> None:
    state.store.put_node_claims([a_claim("a"), a_claim("b")])
    state.store.forget_node_claims({"a": "the instance is gone"}, NOW)
    state.store.forget_node_claims({"never-there": ""}, NOW)
    assert [c.name for c in state.store.node_claims()] == ["b"]


def test_the_serial_increases_with_each_write_that_changes_decisions(state: Parts) -> None:
    store = state.store
    seen = [store.serial()]
    for write in (
        lambda: store.put_node_claims([a_claim("a")]),
        lambda: store.put_node_claims([a_claim("a", node="node-a")]),
        lambda: store.forget_node_claims({"a": ""}, NOW),
        lambda: store.put_command(a_command("c")),
        lambda: store.put_command(a_command("c", CommandPhase.DONE)),
        lambda: store.put_objects([an_object("general")], "4f2c9e1", NOW),
        lambda: store.put_unavailable([an_unavailable()]),
    ):
        write()
        seen.append(store.serial())
    assert seen == sorted(set(seen))


def test_other_writes_do_not_change_the_serial(state: Parts) -> None:
    state.store.put_node_claims([a_claim("a")])
    before = state.store.serial()
    state.store.put_plan(a_plan("d"))
    state.journal.begin([an_intent("i")])
    state.journal.finish([IntentOutcome("i", Outcome.SUCCEEDED)], NOW)
    state.shelf.write("cluster", b"{}")
    state.store.node_claims()
    assert state.store.serial() == before


def test_commands_are_listed_oldest_first_until_they_end(state: Parts) -> None:
    state.store.put_command(a_command("late", started_at=after(10)))
    state.store.put_command(a_command("early"))
    state.store.put_command(a_command("done"))
    state.store.put_command(a_command("back"))
    state.store.put_command(a_command("done", CommandPhase.DONE))
    state.store.put_command(a_command("back", CommandPhase.ROLLED_BACK, message="no capacity"))
    state.store.put_command(a_command("early", CommandPhase.WAITING))
    assert list(state.store.commands()) == [
        a_command("early", CommandPhase.WAITING),
        a_command("late", started_at=after(10)),
    ]


def test_completed_commands_are_found_by_name_and_start_time(state: Parts) -> None:
    back = a_command("back", CommandPhase.ROLLED_BACK, started_at=after(5), failed=True)
    done = a_command("done", CommandPhase.DONE, started_at=after(9), node_pools=("general",))
    for command in (done, back, a_command("early")):
        state.store.put_command(command)
    assert state.store.command("back") == back
    assert list(state.store.commands_since(after(5))) == [back, done]
    assert list(state.store.commands_since(after(9.000001))) == []


def test_a_rollout_changes_the_serial_and_is_read_back_unchanged(state: Parts) -> None:
    move = Move("drifted-1", NOW, 2, ("general-2",), {"shop/ReplicaSet/web": 3}, after(60))
    first = Rollout("general", wave=1, size=2, moves=(move,), failures=1)
    state.store.put_rollout(first)
    serial = state.store.serial()
    state.store.put_rollout(first)
    assert state.store.serial() == serial
    stopped = Rollout("general", wave=1, failures=3, stopped_at=after(9), stopped_why="no capacity")
    state.store.put_rollout(stopped)
    state.store.put_rollout(Rollout("batch"))
    assert state.store.serial() > serial
    assert list(state.store.rollouts()) == [Rollout("batch"), stopped]


def test_blockers_replace_the_earlier_ones_without_changing_the_serial(state: Parts) -> None:
    serial = state.store.serial()
    rows = [Obstacle("Pod", "shop/b", NOW, 0.25), Obstacle("Node", "a", after(5))]
    state.store.put_obstacles(rows)
    assert list(state.store.obstacles()) == [rows[1], rows[0]]
    state.store.put_obstacles(rows[:1])
    assert list(state.store.obstacles()) == rows[:1]
    assert state.store.serial() == serial


def test_objects_replace_all_earlier_ones(state: Parts) -> None:
    first = [an_object("b"), an_object("a"), an_object("c", "EC2NodeClass")]
    state.store.put_objects(first, "one", NOW)
    assert list(state.store.objects()) == [first[2], first[1], first[0]]
    state.store.put_objects([an_object("a", hash="456")], "two", after(1))
    assert list(state.store.objects()) == [an_object("a", hash="456")]
    state.store.put_objects([], "three", after(2))
    assert list(state.store.objects()) == []


def test_plans_are_read_back_byte_for_byte_newest_first(state: Parts) -> None:
    plans = [a_plan(f"d{n}", at=after(n), body=bytes([0, 255, n])) for n in range(3)]
    for plan in (plans[1], plans[0], plans[2]):
        state.store.put_plan(plan)
    assert list(state.store.plans(limit=2)) == [plans[2], plans[1]]
    assert state.store.plan("d0") == plans[0]


def test_plans_of_a_period_begin_with_the_one_that_was_in_effect(state: Parts) -> None:
    plans = [a_plan(f"d{n}", at=after(10 * n)) for n in range(4)]
    for plan in reversed(plans):
        state.store.put_plan(plan)
    assert list(state.store.plans_since(after(15))) == plans[1:]
    assert list(state.store.plans_since(after(20))) == plans[2:]
    assert list(state.store.plans_since(after(-5))) == plans
    assert list(state.store.plans_since(after(99))) == plans[3:]


def test_of_plans_made_at_the_same_time_the_one_recorded_last_is_the_newest(state: Parts) -> None:
    for digest in "bac":
        state.store.put_plan(a_plan(digest, at=NOW))
    assert [plan.digest for plan in state.store.plans()] == ["c", "a", "b"]


def test_an_applied_plan_stays_applied(state: Parts) -> None:
    state.store.put_plan(a_plan("d"))
    state.store.put_plan(a_plan("d", carried_out_at=after(5)))
    state.store.put_plan(a_plan("d"))
    found = state.store.plan("d")
    assert found is not None
    assert found.carried_out_at == after(5)


def test_an_offering_is_unavailable_until_its_expiry(state: Parts) -> None:
    state.store.put_unavailable([an_unavailable("b"), an_unavailable("a", until=after(60))])
    assert [u.zone for u in state.store.unavailable(after(59.999999))] == ["a", "b"]
    assert [u.zone for u in state.store.unavailable(after(60))] == ["b"]
    assert list(state.store.unavailable(after(180))) == []


def test_the_later_expiry_applies(state: Parts) -> None:
    longer = an_unavailable(until=after(600), refusals=2)
    state.store.put_unavailable([longer, an_unavailable()])
    state.store.put_unavailable([an_unavailable()])
    assert list(state.store.unavailable(NOW)) == [longer]


def test_a_reservation_is_unavailable_by_itself(state: Parts) -> None:
    one, other = (an_unavailable(capacity_type="reserved", reservation_id=i) for i in ("a", "b"))
    state.store.put_unavailable([one])
    state.store.put_unavailable([other])
    assert list(state.store.unavailable(NOW)) == [one, other]


def test_an_intent_is_in_doubt_until_it_ends(state: Parts) -> None:
    state.journal.begin([an_intent("one"), an_intent("two", "general-2")])
    state.journal.begin([an_intent("three")])
    state.journal.finish([IntentOutcome("two", Outcome.FAILED, "no capacity")], after(2))
    assert [e.intent.id for e in state.journal.in_doubt()] == ["one", "three"]
    (entry,) = state.journal.entries(target="general-2")
    assert entry.outcome is Outcome.FAILED
    assert (entry.finished_at, entry.message) == (after(2), "no capacity")


def test_an_existing_intent_is_not_changed(state: Parts) -> None:
    intent = an_intent("one", parameters={"launch": '{"name": "a"}'}, verb=Verb.TERMINATE)
    state.journal.begin([intent, an_intent("one", reason="twice at once")])
    state.journal.finish([IntentOutcome("one", Outcome.SUCCEEDED, "i-0abc")], after(1))
    state.journal.begin([an_intent("one", reason="another time")])
    entry = state.journal.find_entries(["one"]).get("one")
    assert entry is not None
    assert entry.intent == intent
    assert entry.outcome is Outcome.SUCCEEDED


def test_the_last_outcome_applies(state: Parts) -> None:
    state.journal.begin([an_intent("one")])
    state.journal.finish([IntentOutcome("one", Outcome.FAILED, "throttled")], after(1))
    state.journal.finish([IntentOutcome("one", Outcome.SUCCEEDED)], after(2))
    entry = state.journal.find_entries(["one"]).get("one")
    assert entry is not None
    assert (entry.outcome, entry.finished_at, entry.message) == (
        Outcome.SUCCEEDED,
        after(2),
        "",
    )


def test_entries_are_listed_newest_first(state: Parts) -> None:
    state.journal.begin([an_intent(str(n), f"t{n % 2}") for n in range(6)])
    assert [e.intent.id for e in state.journal.entries(limit=2)] == ["5", "4"]
    assert [e.intent.id for e in state.journal.entries(target="t0")] == ["4", "2", "0"]
    sequences = [e.sequence for e in state.journal.entries()]
    assert sequences == sorted(sequences, reverse=True)


def test_an_unwritten_intent_is_unknown(state: Parts) -> None:
    assert state.journal.find_entries(["", "never"]) == {}


def test_stored_values_are_read_back(state: Parts) -> None:
    state.shelf.write("cluster", b"first")
    state.shelf.write("cluster", bytes(range(256)))
    state.shelf.write("empty", b"")
    assert state.shelf.read("cluster") == bytes(range(256))
    assert state.shelf.read("empty") == b""


def test_times_are_read_back_unchanged(state: Parts) -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    state.store.put_plan(a_plan("d", at=after(0.000001).astimezone(east)))
    found = state.store.plan("d")
    assert found is not None
    assert found.at == after(0.000001)
    assert found.at.utcoffset() == timedelta(0)


def test_fleets_of_one_database_do_not_see_each_other(server: str) -> None:
    with open_state(server, "one") as one, open_state(server, "two") as two:
        one.store.put_node_claims([a_claim("a")])
        one.journal.begin([an_intent("i")])
        one.shelf.write("n", b"1")
        assert two.store.serial() == 0
        assert list(two.store.node_claims()) == []
        assert list(two.journal.in_doubt()) == []
        assert two.shelf.read("n") is None
        two.journal.begin([an_intent("i")])
        assert [e.sequence for e in two.journal.entries()] == [1]


@pytest.fixture(params=["sqlite", "postgresql"])
def leases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Lease, Lease]]:
    location = str(tmp_path / "state")
    if request.param == "postgresql":
        location = request.getfixturevalue("server")
    with open_state(location, "leased") as one, open_state(location, "leased") as other:
        yield one.lease, other.lease


def test_a_lease_is_held_by_one_at_a_time(leases: tuple[Lease, Lease]) -> None:
    one, other = leases
    one.acquire()
    one.acquire()
    with pytest.raises(LockedError, match=r"process \d+|`reconciler leased \d+@"):
        other.acquire()
    one.release()
    other.acquire()
    with pytest.raises(LockedError):
        one.acquire()
