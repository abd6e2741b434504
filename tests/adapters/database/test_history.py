"""The history that ``get``, ``describe`` and ``explain`` show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.adapters.database import store
from reconciler.adapters.database.state import DatabaseState
from reconciler.plan.explain.answer import Decision
from reconciler.ports.state import CommandPhase
from tests.contracts.records import NOW, a_claim, a_command, a_plan, after, an_object
from tests.postgres import a_database
from tests.states import open_state


@pytest.fixture(params=["sqlite", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseState]:
    location = str(tmp_path) if request.param == "sqlite" else a_database()
    with open_state(location, "web") as opened:
        yield opened


def a_reason(name: str, message: str, kind: str = "Node") -> Decision:
    return Decision(kind=kind, name=name, code="Blocked", message=message)


def test_a_removed_claim_keeps_its_record(state: DatabaseState) -> None:
    state.store.put_node_claims([a_claim("a"), a_claim("b"), a_claim("c")])
    state.store.forget_node_claims({"a": "the instance is gone"}, after(1))
    state.store.forget_node_claims({"b": "no capacity"}, after(2))
    state.store.forget_node_claims({"a": "twice"}, after(3))
    gone = [g for name in ("a", "b") if (g := state.history.gone_claim(name)) is not None]
    assert [(g.claim.name, g.at, g.reason) for g in gone] == [
        ("a", after(1), "the instance is gone"),
        ("b", after(2), "no capacity"),
    ]
    assert state.history.gone_claim("c") is None


def test_commands_that_ended_are_remembered(state: DatabaseState) -> None:
    ended = a_command("one", CommandPhase.ROLLED_BACK, message="no capacity")
    state.store.put_command(ended)
    state.store.put_command(a_command("two", started_at=after(1)))
    assert [c.id for c in state.history.commands()] == ["two", "one"]
    assert state.history.commands()[1] == ended


def test_the_revision_in_effect_is_recorded_with_its_time(state: DatabaseState) -> None:
    assert state.history.revision() is None
    state.store.put_objects([an_object("a")], "one", NOW)
    state.store.put_objects([an_object("a")], "two", after(1))
    state.store.put_objects([an_object("b")], "two", after(2))
    assert state.history.revision() == ("two", after(1))


def test_reasons_are_remembered_when_they_change(state: DatabaseState) -> None:
    history = state.history
    first = [a_reason("n1", "budget"), a_reason("n1", "pdb"), a_reason("n2", "young")]
    history.put_decisions("p1", NOW, first)
    history.put_decisions("p2", after(1), first)
    history.put_decisions("p3", after(2), [a_reason("n1", "budget"), first[2]])
    given = [(g.decision.message, g.at, g.plan) for g in history.decisions("Node", "n1")]
    assert given == [
        ("budget", after(2), "p3"),
        ("pdb", NOW, "p1"),
        ("budget", NOW, "p1"),
    ]
    assert [g.plan for g in history.decisions("Node", "n2")] == ["p1"]
    assert list(history.decisions("Pod", "n1")) == []


def test_plans_that_were_never_applied_are_pruned(
    state: DatabaseState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PLANS_KEPT", 3)
    state.store.put_plan(a_plan("done", carried_out_at=NOW))
    for n in range(6):
        state.store.put_plan(a_plan(f"d{n}", at=after(n)))
    assert [p.digest for p in state.store.plans()] == ["d5", "d4", "d3", "done"]


def test_every_fleet_is_listed(state: DatabaseState) -> None:
    state.store.put_node_claims([a_claim("a")])
    assert list(state.history.fleets()) == ["web"]
