"""A replica releases fleets to one with fewer, and keeps those that no other replica takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from reconciler.adapters.database.leases.replicas import Heartbeat, Replica
from reconciler.adapters.database.state import SharedStates
from reconciler.daemon.sharing import FleetSharing
from tests.postgres import a_database

pytestmark = pytest.mark.slow


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.1)


@pytest.mark.exhaustive
def test_a_released_lease_that_no_replica_took_is_acquired_again() -> None:
    url, ahead = a_database(), [0.0]
    states = SharedStates("test")
    with FleetSharing(states, lambda: time.monotonic() + ahead[0]) as sharing:
        first, second = states.open(url, "first"), states.open(url, "second")
        with first, second:
            eventually(lambda: sharing.may_acquire(first, has_requested=False))
            first.lease.acquire()
            second.lease.acquire()
            idle = Heartbeat(states.server(url), "one that takes nothing")

            def gives(has_fewer: bool) -> bool:
                if has_fewer:
                    idle.beat(Replica(frozenset({"first", "second"})))
                return sharing.should_release(first)

            assert not gives(has_fewer=False)
            eventually(lambda: gives(has_fewer=True))
            assert not sharing.should_release(second), "that would be one too many"
            first.lease.release()
            eventually(lambda: not gives(has_fewer=True))
            assert not sharing.may_acquire(first, has_requested=True), "it is for the other one"
            ahead[0] += 5
            eventually(lambda: sharing.may_acquire(first, has_requested=True))
            first.lease.acquire()
            until = time.monotonic() + 6
            while time.monotonic() < until:
                assert not gives(has_fewer=True), "the lease wanders"
                time.sleep(0.2)
