"""The fleets of a process share connections, and stay isolated whatever their number and locks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, event, text

from reconciler.adapters.database.leases.lease import LIFETIME, ServerLease
from reconciler.adapters.database.leases.replicas import Heartbeat, Replica
from reconciler.adapters.database.state import SharedStates, open_state
from reconciler.model.errors import (
    FleetConflictError,
    LeaseHeldError,
    LeaseLostError,
    StateError,
)
from tests.contracts.records import a_claim
from tests.postgres import a_database


def connections(url: str) -> int:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_twenty_fleets_write_at_once_on_four_connections() -> None:
    url, shared = a_database(), SharedStates("test")
    states = [shared.open(url, f"fleet-{n}") for n in range(20)]

    def write(number: int) -> int:
        states[number].lease.acquire()
        for claim in range(5):
            states[number].store.put_node_claims([a_claim(f"claim-{claim}")])
            states[number].lease.confirm()
        return len(states[number].store.node_claims())

    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(write, range(20))) == [5] * 20
    assert connections(url) <= 4
    for state in states:
        state.close()
    shared.close()
    with open_state(url, "fleet-0") as alone:
        assert alone.lease.holder() is None
        alone.lease.acquire()


def test_a_new_server_is_migrated_once_by_fleets_that_open_at_the_same_time() -> None:
    url, shared = a_database(), SharedStates("test")
    with ThreadPoolExecutor(8) as threads:
        states = list(threads.map(lambda n: shared.open(url, f"fleet-{n}"), range(8)))
    for state in states:
        assert state.store.serial() == 0
        state.close()
    shared.close()


def test_a_fleet_is_open_once_in_a_process(tmp_path: Path) -> None:
    url, shared = a_database(), SharedStates("test")
    with shared.open(url, "web"):
        with pytest.raises(StateError, match="two folders of this process have a fleet of the n"):
            shared.open(url, "web")
        with shared.open(url, "shop"):
            pass
    shared.open(url, "web").close()
    with (
        shared.open(str(tmp_path / "state"), "web"),
        pytest.raises(StateError, match="fleet web of this process already uses this state"),
    ):
        shared.open(str(tmp_path / "state"), "shop")
    shared.close()


def test_the_lease_of_one_fleet_is_lost_alone() -> None:
    url, shared = a_database(), SharedStates("test")
    with shared.open(url, "web") as web, shared.open(url, "shop") as shop:
        web.lease.acquire()
        shop.lease.acquire()
        with web.database.engine.begin() as connection:
            connection.execute(text("UPDATE lease SET epoch = epoch + 1 WHERE fleet = 'web'"))
            connection.execute(text("UPDATE fleet SET epoch = epoch + 1 WHERE name = 'web'"))
        with pytest.raises(LeaseLostError):
            web.store.put_node_claims([a_claim("late")])
        shop.store.put_node_claims([a_claim("a")])
        shop.lease.confirm()
    shared.close()


def test_a_locked_row_does_not_block_renewal_of_other_leases() -> None:
    """A standby that freezes while it asks for a lease has the row of that lease locked."""
    url, shared = a_database(), SharedStates("test")
    now = [1000.0]
    with shared.open(url, "web") as web, shared.open(url, "shop") as shop:
        for state in (web, shop):
            assert isinstance(state.lease, ServerLease)
            state.lease.clock = lambda: now[0]
            state.lease.acquire()
        with psycopg.connect(url.replace("+psycopg", "")) as frozen:
            frozen.execute("SET idle_in_transaction_session_timeout = '5s'")
            frozen.execute("SELECT 1 FROM lease WHERE fleet = 'web' FOR UPDATE")
            now[0] += LIFETIME.total_seconds() / 2
            started = time.monotonic()
            web.lease.confirm()
            shop.lease.confirm()
            assert time.monotonic() - started < 2
            now[0] += LIFETIME.total_seconds() / 4
            shop.lease.confirm()
            with pytest.raises(LeaseLostError, match="another process has locked the row"):
                web.lease.confirm()
    shared.close()


def test_replicas_see_each_other_and_drop_dead_ones() -> None:
    url, shared = a_database(), SharedStates("test")
    with shared.open(url, "web") as web:
        one, two = (Heartbeat(shared.server(url), name) for name in ("one", "two"))
        alone = one.beat(Replica(frozenset({"web"})))
        assert set(alone.alive) == {"one"}
        assert alone.held == frozenset()
        web.lease.acquire()
        both = two.beat(Replica(frozenset({"web"}), frozenset({"web"})))
        assert both.alive["two"].holds == {"web"}
        assert set(both.alive) == {"one", "two"}
        assert both.held == {"web"}
        one.end()
        assert set(two.beat(Replica()).alive) == {"two"}
        with web.database.engine.begin() as connection:
            connection.execute(text("UPDATE replica SET seen_ms = seen_ms - 6000"))
        assert set(one.beat(Replica()).alive) == {"one"}
        with web.database.engine.begin() as connection:
            connection.execute(text("UPDATE replica SET seen_ms = seen_ms - 61000"))
        two.beat(Replica())
        with web.database.engine.begin() as connection:
            rows = connection.execute(text("SELECT id FROM replica")).scalars().all()
        assert rows == ["two"]
    shared.close()


def test_a_replica_frozen_during_its_heartbeat_does_not_block_others() -> None:
    """The server ends its transaction: others remove its row after a minute."""
    url, shared, limits = a_database(), SharedStates("test"), []
    with shared.open(url, "web") as web:

        def note(connection: Connection) -> None:
            query = text("SHOW idle_in_transaction_session_timeout")
            limits.append(connection.execute(query).scalar_one())

        event.listen(web.database.engine, "commit", note)
        Heartbeat(shared.server(url), "one").beat(Replica())
        event.remove(web.database.engine, "commit", note)
    assert limits == ["8s"]
    shared.close()


def test_a_lease_in_the_shared_connection_excludes_others() -> None:
    url, shared = a_database(), SharedStates("test")
    with shared.open(url, "web") as web, open_state(url, "web") as other:
        web.lease.acquire()
        with pytest.raises(LeaseHeldError):
            other.lease.acquire()
    shared.close()


def test_one_fleet_of_a_process_acts_for_a_cluster() -> None:
    shared = SharedStates("test")
    with shared.reserve_cluster("https://api", "web"):
        with (
            pytest.raises(FleetConflictError, match="fleet web of this process already acts"),
            shared.reserve_cluster("https://api", "shop"),
        ):
            pass
        with shared.reserve_cluster("https://other", "shop"):
            pass
    with shared.reserve_cluster("https://api", "shop"):
        pass
