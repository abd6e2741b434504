"""A real cluster in trouble: a leader dies, the API server restarts, many nodes come at once."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from tests.live.conftest import Live, a_daemon
from tests.postgres import a_database

pytestmark = pytest.mark.live

MANY = 300


def launched_twice(live: Live) -> list[str]:
    """Return the intents that have more than one instance that lives."""
    intents = Counter(tags["reconciler/intent"] for tags in live.cloud.running_instances().values())
    return [intent for intent, count in intents.items() if count > 1]


def test_a_standby_continues_the_work_of_a_dead_leader(live: Live) -> None:
    words = live.process_words(a_database())
    with a_daemon(words) as (leader, _), ExitStack() as stack:
        live.await_("two nodes", lambda: live.settled(2))
        _, standby = stack.enter_context(a_daemon(words))
        live.await_("another one waits", lambda: standby.has("Standby"))
        live.scale(6)
        live.await_("the first launch", lambda: len(live.cloud.running_instances()) > 2)
        leader.kill()
        live.await_("six nodes", lambda: live.settled(6), 120)
        live.scale(2)
        live.await_("two nodes", lambda: live.settled(2), 120)
        assert launched_twice(live) == []
        assert standby.has("LeaseAcquired")


def test_a_restart_of_the_api_server_terminates_no_node(live: Live) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        before = set(live.cloud.running_instances())
        live.plane.server.kill()
        live.await_("it is reported", lambda: live.recorder.messages("Failed"))
        assert set(live.cloud.running_instances()) == before
        live.plane.resume()
        live.await_("two nodes", lambda: live.settled(2))
        assert set(live.cloud.running_instances()) == before
        live.scale(3)
        live.await_("three nodes", lambda: live.settled(3), 120)
        for _ in range(2):
            live.plane.server.kill()
            live.plane.resume()
        live.scale(1)
        live.await_("one node", lambda: live.settled(1), 120)
    assert launched_twice(live) == []


def test_many_nodes_come_and_go(live: Live) -> None:
    with a_daemon(live.process_words(a_database())) as (_, log):
        live.await_("two nodes", lambda: live.settled(2))
        live.scale(MANY)
        live.await_(f"{MANY} nodes", lambda: live.settled(MANY), 300)
        live.scale(2)
        live.await_("two nodes", lambda: live.settled(2), 300)
    assert " Failed " not in log.text
