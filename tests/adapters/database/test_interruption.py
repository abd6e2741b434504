"""Interrupted after any statement, each method of the ports leaves the new state or the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event, text

from reconciler.adapters.database.maintenance import export_lines
from reconciler.adapters.database.state import DatabaseState
from reconciler.model.errors import StateError
from reconciler.plan.explain.answer import Decision
from reconciler.ports.journal import IntentOutcome, Outcome
from reconciler.ports.state import CommandPhase
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

WRITES: dict[str, Callable[[DatabaseState], None]] = {
    "put_node_claims": lambda s: s.store.put_node_claims([a_claim("a", node="n"), a_claim("new")]),
    "forget_node_claims": lambda s: s.store.forget_node_claims({"a": "gone"}, NOW),
    "put_command": lambda s: s.store.put_command(a_command("c", CommandPhase.DONE)),
    "put_objects": lambda s: s.store.put_objects([an_object("new")], "two", NOW),
    "put_plan": lambda s: s.store.put_plan(a_plan("d", carried_out_at=NOW)),
    "put_unavailable": lambda s: s.store.put_unavailable(
        [an_unavailable(until=after(999)), an_unavailable("b")]
    ),
    "begin": lambda s: s.journal.begin([an_intent("i1"), an_intent("i2")]),
    "finish": lambda s: s.journal.finish([IntentOutcome("i0", Outcome.SUCCEEDED)], NOW),
    "shelf.write": lambda s: s.shelf.write("cluster", b"new"),
    "put_decisions": lambda s: s.history.put_decisions(
        "p", NOW, [Decision(kind="Pod", name="a/b", code="c", message="new")]
    ),
}


class Cut(Exception):  # noqa: N818 - no error, but the end of a process
    """The process ends here."""


@contextmanager
def cut_after(state: DatabaseState, statements: int) -> Iterator[None]:
    """Execute that number of statements, and end at the next one, or at the commit."""
    left = [statements]

    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Cut

    engine = state.database.engine
    event.listen(engine, "before_cursor_execute", count)
    event.listen(engine, "commit", count)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", count)
        event.remove(engine, "commit", count)


@pytest.fixture(scope="module")
def server() -> str:
    return a_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseState]:
    location = str(tmp_path)
    if request.param == "postgresql":
        location = request.getfixturevalue("server")
    with open_state(location, request.node.name[-60:]) as opened:
        opened.store.put_node_claims([a_claim("a")])
        opened.store.put_command(a_command("c"))
        opened.store.put_objects([an_object("o")], "one", NOW)
        opened.store.put_plan(a_plan("d"))
        opened.store.put_unavailable([an_unavailable()])
        opened.journal.begin([an_intent("i0")])
        opened.shelf.write("cluster", b"old")
        yield opened


def contents(state: DatabaseState) -> list[str]:
    return list(export_lines(state.database))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WRITES)
def test_an_interrupted_write_keeps_the_old_state(name: str, state: DatabaseState) -> None:
    before, write = contents(state), WRITES[name]
    for statements in range(100):
        try:
            with cut_after(state, statements):
                write(state)
        except Cut:
            assert contents(state) == before
        else:
            break
    assert statements > 2
    assert contents(state) != before


def lose_the_connection(state: DatabaseState) -> None:
    """Have the server end the session in the middle of a transaction."""
    with state.database.write_transaction() as connection:
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        with state.database.read_transaction() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backend})
        connection.execute(text("SELECT 1"))


def test_a_dropped_connection_is_reported_and_reopened(server: str) -> None:
    with open_state(server, "dropped") as state:
        state.store.put_node_claims([a_claim("a")])
        with pytest.raises(StateError, match=r"terminating connection|closed"):
            lose_the_connection(state)
        state.store.put_node_claims([a_claim("b")])
        assert [c.name for c in state.store.node_claims()] == ["a", "b"]
