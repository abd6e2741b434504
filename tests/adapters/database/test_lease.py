"""One process at a time acts for a fleet, despite faults of connections, servers and clocks."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, text

from reconciler.adapters.database.leases import fence
from reconciler.adapters.database.leases.lease import LIFETIME, ServerLease, is_held
from reconciler.adapters.database.leases.renewal import LeaseRenewals
from reconciler.adapters.database.location import FILE
from reconciler.adapters.database.maintenance import export_lines
from reconciler.adapters.database.state import DatabaseState, open_state
from reconciler.model.errors import (
    FleetConflictError,
    FleetMovedError,
    LeaseHeldError,
    LeaseLostError,
    StateError,
)
from reconciler.model.history import Rollout
from reconciler.model.ownership import ClusterId
from tests.adapters.database.test_interruption import WRITES
from tests.contracts.records import NOW, a_claim, a_plan, an_intent
from tests.postgres import a_database, crash

SHOP = ClusterId("111122223333", "eu-central-1", "shop")

EVERY_WRITE: dict[str, Callable[[DatabaseState], object]] = {
    **WRITES,
    "put_rollout": lambda s: s.store.put_rollout(Rollout(node_pool="p")),
    "put_obstacles": lambda s: s.store.put_obstacles([]),
    "prune": lambda s: s.history.prune(NOW + timedelta(days=400), timedelta(days=1)),
}


class Elapsing:
    """The clock of one process: it shows how long the process was frozen."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server() -> str:
    return a_database()


@contextmanager
def leader(url: str, fleet: str, lifetime: timedelta = LIFETIME) -> Iterator[DatabaseState]:
    """Open a state on a server whose lease has a separate clock, and acquire the lease."""
    with open_state(url, fleet) as state:
        object.__setattr__(state, "lease", ServerLease(state.database, lifetime, Elapsing()))
        state.lease.acquire()
        yield state


def freeze(state: DatabaseState, seconds: float = 3600) -> None:
    """Let time pass for a process that does nothing."""
    assert isinstance(state.lease, ServerLease)
    assert isinstance(state.lease.clock, Elapsing)
    state.lease.clock.now += seconds


def expire(state: DatabaseState) -> None:
    """Let the lifetime of the lease pass by the clock of the server."""
    with state.database.engine.begin() as connection:
        connection.execute(
            text("UPDATE lease SET renewed_ms = renewed_ms - lifetime_ms WHERE fleet = :fleet"),
            {"fleet": state.database.fleet},
        )


def eventually(condition: Callable[[], bool], at_most_s: float = 20) -> None:
    deadline = time.monotonic() + at_most_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def acquires(state: DatabaseState) -> bool:
    """Return whether a standby acquires the lease now."""
    try:
        state.lease.acquire()
    except LeaseHeldError:
        return False
    return True


@pytest.mark.parametrize(
    ("age_ms", "held"),
    [
        (0, True),
        (9_999, True),
        (10_000, False),
        (-9_999, True),
        (-10_000, False),
        (-(9**12), False),
    ],
    ids=[
        "fresh",
        "old",
        "expired",
        "clock set back a little",
        "set back more",
        "set back by years",
    ],
)
def test_a_lease_is_valid_for_its_lifetime_by_the_clock_of_the_server(
    age_ms: int, held: bool
) -> None:
    now = 10**12
    assert is_held(now - age_ms, 10_000, now) is held


@pytest.fixture(params=["sqlite", "postgresql"])
def rivals(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[DatabaseState, DatabaseState]]:
    """Yield the state of a process that lost its lease without noticing, and of the next holder."""
    fleet = request.node.name[-60:]
    if request.param == "sqlite":
        with open_state(str(tmp_path), fleet) as old, open_state(str(tmp_path), fleet) as new:
            old.lease.acquire()
            fill(old)
            (tmp_path / "lock").unlink()  # the lock of the first is on a file that is gone
            new.lease.acquire()
            yield old, new
        return
    url = request.getfixturevalue("server")
    with leader(url, fleet) as old, open_state(url, fleet) as new:
        fill(old)
        expire(new)
        new.lease.acquire()
        yield old, new


def fill(state: DatabaseState) -> None:
    state.store.put_node_claims([a_claim("a")])
    state.store.put_plan(a_plan("d"))
    state.journal.begin([an_intent("i0")])
    state.shelf.write("cluster", b"old")


@pytest.mark.parametrize("writes", [1, 2])
def test_no_write_goes_into_a_copy_that_lacks_the_last_one(writes: int, tmp_path: Path) -> None:
    """The copy has the same epoch, and was put over the file that is open."""
    with open_state(str(tmp_path), "web") as state:
        state.lease.acquire()
        backup = _flushed(tmp_path).read_bytes()
        for number in range(writes):
            state.store.put_node_claims([a_claim(f"a{number}")])
        _flushed(tmp_path).write_bytes(backup)
        with pytest.raises(LeaseLostError, match="a copy of it was restored while it was in use"):
            state.store.put_node_claims([a_claim("b")])
        state.lease.release()
        state.lease.acquire()
        state.store.put_node_claims([a_claim("b")])


def _flushed(folder: Path) -> Path:
    with closing(sqlite3.connect(folder / FILE)) as raw:
        raw.execute("PRAGMA wal_checkpoint(RESTART)")
    return folder / FILE


def test_a_write_that_was_rolled_back_does_not_count(tmp_path: Path) -> None:
    def fail_after_writing(state: DatabaseState) -> None:
        with state.database.write_transaction() as connection:
            state.database.increment_serial(connection)
            raise RuntimeError

    with open_state(str(tmp_path), "web") as state:
        state.lease.acquire()
        with pytest.raises(RuntimeError):
            fail_after_writing(state)
        state.store.put_plan(a_plan("d"))  # does not change the serial
        state.store.put_node_claims([a_claim("a")])


@pytest.mark.parametrize("name", EVERY_WRITE)
def test_no_write_of_an_earlier_epoch_changes_anything(
    name: str, rivals: tuple[DatabaseState, DatabaseState]
) -> None:
    old, new = rivals
    before = list(export_lines(new.database))
    with pytest.raises(LeaseLostError, match="another process acquired it"):
        EVERY_WRITE[name](old)
    assert list(export_lines(new.database)) == before
    with pytest.raises(LeaseLostError):
        old.lease.confirm()
    EVERY_WRITE[name](new)
    new.lease.confirm()


def test_a_process_without_the_lease_reads_and_does_not_write(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        assert list(state.store.node_claims()) == []
        with pytest.raises(LeaseLostError, match="does not hold the lease of fleet web"):
            state.store.put_node_claims([a_claim("a")])
        assert list(state.store.node_claims()) == []


def test_a_lease_lost_during_the_check_fences_the_write(server: str) -> None:
    """A leader that wakes writes and renews at once, in two threads."""
    fleet = "woken"
    with leader(server, fleet) as woken:
        with woken.database.engine.begin() as connection:
            connection.execute(text("UPDATE fleet SET epoch = epoch + 1 WHERE name = 'woken'"))
        before = list(export_lines(woken.database))

        def lose(*facts: object) -> None:
            if "SELECT epoch" in str(facts[2]):
                woken.database.fence.leave("the other thread could not renew it")

        event.listen(woken.database.engine, "before_cursor_execute", lose)
        with pytest.raises(LeaseLostError):
            woken.store.put_node_claims([a_claim("late")])
        event.remove(woken.database.engine, "before_cursor_execute", lose)
        assert list(export_lines(woken.database)) == before


def test_a_released_lease_is_free_at_once_and_fences_its_holder(server: str) -> None:
    with open_state(server, "back") as one, open_state(server, "back") as other:
        one.lease.acquire()
        assert other.lease.holder() == one.lease.holder() is not None
        one.lease.release()
        assert other.lease.holder() is None
        other.lease.acquire()
        with pytest.raises(LeaseLostError):
            one.journal.begin([an_intent("i")])


def cut(state: DatabaseState) -> None:
    """Have the server end every session of a process, that of its lease too."""
    with state.database.engine.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


@pytest.mark.parametrize("trouble", [cut, lambda _: crash()], ids=["sessions cut", "server crash"])
def test_a_lease_outlives_its_connection(
    trouble: Callable[[DatabaseState], None], server: str, request: pytest.FixtureRequest
) -> None:
    fleet = request.node.name[-40:]
    with leader(server, fleet) as one, open_state(server, fleet) as other:
        one.store.put_node_claims([a_claim("a")])
        freeze(one, 3)
        one.lease.confirm()  # by the connection that is cut now
        trouble(other)
        eventually(lambda: not acquires_or_fails(other))
        freeze(one, 8)  # the last moment for a renewal, which has to connect again
        one.lease.confirm()
        one.store.put_node_claims([a_claim("b")])
        assert not acquires(other)
        assert [c.name for c in other.store.node_claims()] == ["a", "b"]


def acquires_or_fails(state: DatabaseState) -> bool:
    """Return False once the server answers that the lease is held."""
    try:
        return acquires(state)
    except StateError:
        return True


def test_a_frozen_holder_stops_once_another_has_taken_over(server: str) -> None:
    with leader(server, "frozen") as one, open_state(server, "frozen") as other:
        assert not acquires(other)
        expire(other)
        freeze(one)
        other.lease.acquire()
        with pytest.raises(LeaseLostError, match="another process acquired it"):
            one.lease.confirm()
        with pytest.raises(LeaseHeldError):
            one.lease.acquire()


def test_a_resumed_holder_that_was_not_replaced_continues_in_its_epoch(server: str) -> None:
    with leader(server, "thawed") as one, open_state(server, "thawed") as other:
        expire(other)
        freeze(one)
        one.lease.confirm()
        assert not acquires(other), "the holder renewed the lease"
        one.journal.begin([an_intent("i")])


def test_a_holder_without_its_server_stops_before_its_lease_ends(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> int:
        raise StateError("the server does not answer", where="postgresql")

    with leader(server, "alone") as one:
        monkeypatch.setattr(LeaseRenewals, "execute", unreachable)
        freeze(one, LIFETIME.total_seconds() * 0.5)
        one.lease.confirm()
        freeze(one, LIFETIME.total_seconds() * 0.25)
        with pytest.raises(LeaseLostError, match="could not be renewed for 8 s"):
            one.lease.confirm()


def test_a_holder_that_freezes_within_a_write_is_replaced(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fence.IDLE_MAX, "idle", "1s")
    with leader(server, "within") as one, open_state(server, "within") as other:

        def freeze_within_a_write() -> None:
            with one.database.write_transaction() as connection:
                one.database.increment_serial(connection)
                expire(other)
                eventually(lambda: acquires(other))
                one.database.increment_serial(connection)

        with pytest.raises(StateError):
            freeze_within_a_write()
        assert other.store.serial() == 0


@contextmanager
def frozen_within_a_batch(url: str, fleet: str) -> Iterator[psycopg.Connection]:
    """Lock the row of a fleet, and send one of several statements without the end of the batch."""
    with psycopg.connect(url.replace("+psycopg", "")) as frozen:
        frozen.execute("SELECT epoch FROM fleet WHERE name = %s FOR UPDATE", [fleet])
        frozen.pgconn.enter_pipeline_mode()
        frozen.pgconn.send_query_params(b"UPDATE fleet SET serial = serial + 1", None)
        frozen.pgconn.send_flush_request()
        assert frozen.pgconn.flush() == 0
        try:
            yield frozen
        finally:
            frozen.close()


def test_a_holder_that_freezes_within_a_batch_of_writes_is_replaced(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fence.IDLE_MAX, "idle", "1s")
    with (
        leader(server, "batch"),
        open_state(server, "batch") as other,
        frozen_within_a_batch(server, "batch"),
    ):
        expire(other)
        eventually(lambda: acquires(other))
        assert other.store.serial() == 0
        other.store.put_node_claims([a_claim("a")])


def test_a_record_of_a_person_does_not_wait_for_a_frozen_process(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fence.IDLE_MAX, "idle", "1s")
    with (
        leader(server, "person"),
        open_state(server, "person", needs_lease=False) as person,
        frozen_within_a_batch(server, "person"),
    ):
        person.store.put_rollout(Rollout(node_pool="p"))
        assert [rollout.node_pool for rollout in person.store.rollouts()] == ["p"]


def test_a_session_that_only_writes_slowly_is_not_ended(server: str) -> None:
    """It is ended after the time after which an idle session is, and not before."""
    with (
        leader(server, "slow"),
        open_state(server, "slow") as other,
        frozen_within_a_batch(server, "slow") as slow,
    ):
        expire(other)
        assert not acquires(other)
        with other.database.engine.connect() as connection:
            still_there = text("SELECT pid FROM pg_stat_activity WHERE pid = :pid")
            assert connection.execute(still_there, {"pid": slow.info.backend_pid}).scalar()


def test_the_lease_is_renewed_in_the_background(server: str) -> None:
    lifetime = timedelta(seconds=0.6)
    with open_state(server, "renewed") as one, open_state(server, "renewed") as other:
        object.__setattr__(one, "lease", ServerLease(one.database, lifetime))
        one.lease.acquire()
        until = time.monotonic() + 3 * lifetime.total_seconds()
        while time.monotonic() < until:
            assert not acquires(other)
            time.sleep(0.05)


def test_a_long_write_does_not_block_renewal_of_the_lease(server: str) -> None:
    with leader(server, "long") as one, one.database.write_transaction() as connection:
        freeze(one)
        one.lease.confirm()
        one.database.increment_serial(connection)


def test_a_session_of_an_older_release_keeps_the_lease(server: str) -> None:
    from reconciler.adapters.database.leases.lease import _session_lock_key

    with open_state(server, "older") as state, state.database.engine.connect() as older:
        older.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _session_lock_key("older")})
        with pytest.raises(LeaseHeldError, match=r"`reconciler older \d+@.* for fleet older"):
            state.lease.acquire()
        older.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _session_lock_key("older")})
        state.lease.acquire()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_cluster_with_nodes_of_another_fleet_is_refused(tmp_path: Path, kind: str) -> None:
    location = str(tmp_path) if kind == "sqlite" else a_database()
    unknown = ClusterId("", SHOP.region, SHOP.name)
    with open_state(location, "web") as state:
        state.lease.acquire(SHOP)
        state.store.put_node_claims([a_claim("a")])
    with open_state(location, "checkout-2") as second:
        for cluster in (SHOP, unknown):
            with pytest.raises(FleetConflictError, match=r"fleet web has 1 NodeClaim in cluster"):
                second.lease.acquire(cluster)
        second.lease.acquire(ClusterId("111122223333", "eu-west-1", "shop"))
    with open_state(location, "web") as state:
        state.lease.acquire(SHOP)
        state.store.forget_node_claims({"a": "gone"}, NOW)
    with open_state(location, "checkout-2") as second:
        second.lease.acquire(SHOP)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize(
    ("elsewhere", "message"),
    [
        (
            ClusterId(SHOP.account, "eu-west-1", "shop"),
            (
                r"fleet web has 1 NodeClaim in eu-central-1, and would act in eu-west-1, where it "
                r"cannot see their instances; set aws.region to eu-central-1"
            ),
        ),
        (
            ClusterId("444455556666", SHOP.region, "shop"),
            (
                r"fleet web has 1 NodeClaim in account 111122223333, and would act in account "
                r"444455556666, where it cannot see their instances; use credentials of account "
                r"111122223333"
            ),
        ),
    ],
    ids=["region", "account"],
)
def test_a_fleet_with_nodes_elsewhere_is_refused(
    tmp_path: Path, kind: str, elsewhere: ClusterId, message: str
) -> None:
    """Its instances would count as gone, and would run on without anybody who knows them."""
    location = str(tmp_path) if kind == "sqlite" else a_database()
    with open_state(location, "web") as state:
        state.lease.acquire(SHOP)
        state.store.put_node_claims([a_claim("a")])
    with open_state(location, "web") as state:
        with pytest.raises(FleetMovedError, match=message):
            state.lease.acquire(elsewhere)
        assert state.lease.holder() is None
        state.lease.acquire(ClusterId("", SHOP.region, "shop"))
        state.store.forget_node_claims({"a": "gone"}, NOW)
    with open_state(location, "web") as state:
        state.lease.acquire(elsewhere)
        assert state.cluster() == elsewhere


def test_a_cluster_that_another_fleet_acts_for_is_refused(server: str) -> None:
    cluster = ClusterId("1", "r", "acted-for")
    with open_state(server, "first") as first, open_state(server, "second") as second:
        first.lease.acquire(cluster)
        with pytest.raises(LeaseHeldError, match=r"process \d+.* is running for fleet first"):
            second.lease.acquire(cluster)
        second.lease.acquire()


def test_a_cluster_is_locked_for_all_state_directories_of_a_machine(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    with (
        open_state(str(tmp_path / "a"), "web", locks=locks) as first,
        open_state(str(tmp_path / "b"), "web-2", locks=locks) as second,
    ):
        first.lease.acquire(SHOP)
        with pytest.raises(
            LeaseHeldError, match=r"process \d+ .* for fleet web is using cluster shop in eu-cen"
        ):
            second.lease.acquire(SHOP)
        second.lease.acquire(ClusterId("1", "r", "other"))
        second.lease.release()
        first.lease.release()
        second.lease.acquire(SHOP)
