"""Which records may be pruned, and which never: on both databases."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.adapters.database.maintenance import check
from reconciler.adapters.database.pruning import Tally
from reconciler.adapters.database.state import DatabaseState
from reconciler.model.history import Move, Rollout
from reconciler.plan.explain.answer import Decision
from reconciler.ports.journal import IntentOutcome, Outcome, Verb
from reconciler.ports.state import CommandPhase
from tests.adapters.database.test_crash import running
from tests.contracts.records import (
    NOW,
    a_claim,
    a_command,
    a_plan,
    an_intent,
    an_object,
    an_unavailable,
)
from tests.postgres import a_database
from tests.states import open_state

DAY = timedelta(days=1)
KEEP = 30 * DAY
LATER = NOW + 100 * DAY
OLD = LATER - 31 * DAY
RECENT = LATER - 29 * DAY


@pytest.fixture(params=["sqlite", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseState]:
    location = str(tmp_path / "state") if request.param == "sqlite" else a_database()
    with open_state(location, "web") as opened:
        yield opened


def pruned(state: DatabaseState, *needed: str) -> dict[str, int]:
    tallies = state.history.prune(LATER, KEEP, needed)
    assert not {f.code for f in check(state.database)} - {"body", "in-doubt"}
    return {tally.kind: tally.gone for tally in tallies if tally.gone}


def effect(state: DatabaseState, name: str, at: object, **fields: object) -> None:
    """Record an effect that succeeded at once."""
    state.journal.begin([an_intent(name, at=at, **fields)])
    state.journal.finish([IntentOutcome(name, Outcome.SUCCEEDED)], at)  # type: ignore[arg-type]


def active(state: DatabaseState) -> None:
    """Record an effect now, from which ages count."""
    effect(state, "newest", LATER, verb=Verb.TAINT)


def names(state: DatabaseState) -> set[str]:
    return {e.intent.id for e in state.journal.entries(limit=1000)} - {"newest"}


def test_old_settled_intents_are_pruned_with_their_outcomes(
    state: DatabaseState,
) -> None:
    for name, at in (("old", OLD), ("young", RECENT)):
        effect(state, name, at, verb=Verb.DRAIN, target="node")
    effect(state, "again", OLD, verb=Verb.TAINT)
    state.journal.finish([IntentOutcome("again", Outcome.FAILED)], RECENT)
    active(state)
    assert pruned(state) == {"effects": 1}
    assert names(state) == {"young", "again"}
    assert pruned(state) == {}


def test_intents_in_doubt_are_never_pruned(state: DatabaseState) -> None:
    state.journal.begin([an_intent(v.value, verb=v, at=NOW, target="gone") for v in Verb])
    before = state.journal.in_doubt()
    active(state)
    assert pruned(state) == {}
    assert state.journal.in_doubt() == before


def test_a_launch_is_kept_while_its_claim_exists_and_for_the_retention_after(
    state: DatabaseState,
) -> None:
    for name in ("there", "left", "gone", "shown"):
        effect(state, f"i-{name}", NOW, target=name)
        state.store.put_node_claims([a_claim(name, node=name)])
    state.store.forget_node_claims({"left": "it went"}, RECENT)
    state.store.forget_node_claims({"gone": "it went"}, OLD)
    state.store.forget_node_claims({"shown": "EC2 did not show it"}, OLD)
    active(state)
    assert pruned(state, "i-shown") == {"effects": 1, "nodeClaims": 2}
    assert names(state) == {"i-there", "i-left", "i-shown"}
    assert state.history.gone_claim("left") is not None


def test_the_retention_of_a_launch_counts_from_its_last_operation(state: DatabaseState) -> None:
    """The daemon was stopped for two months: its last launch may still be without a claim."""
    effect(state, "launch", OLD, target="gone")
    effect(state, "drain", OLD, target="node", verb=Verb.DRAIN)
    effect(state, "last", OLD + DAY, target="node", verb=Verb.TAINT)
    assert pruned(state) == {"effects": 1}
    assert names(state) == {"launch", "last"}


def test_a_batch_is_kept_while_one_of_its_claims_exists(state: DatabaseState) -> None:
    for number in range(2):
        claims = [f"c{number}0", f"c{number}1"]
        head = {"claims": " ".join(claims), "launch": "{}"}
        effect(state, f"h{number}", NOW, verb=Verb.LAUNCH_BATCH, target="web", parameters=head)
        for claim in claims:
            effect(state, f"i-{claim}", NOW, target=claim, parameters={"batch": f"h{number}"})
            state.store.put_node_claims([a_claim(claim, node=claim)])
    for claim in ("c00", "c01", "c10"):
        state.store.forget_node_claims({claim: "it went"}, OLD)
    active(state)
    assert pruned(state) == {"effects": 4, "nodeClaims": 3}
    assert names(state) == {"h1", "i-c11"}


def test_completed_commands_without_dependents_are_pruned(state: DatabaseState) -> None:
    def put(name: str, phase: CommandPhase, claim: str, **fields: object) -> None:
        more = {"node_claims": (claim,), "replacements": (), "started_at": OLD, **fields}
        state.store.put_command(a_command(name, phase, **more))

    state.store.put_node_claims([a_claim(n, node=n) for n in ("gone", "left", "there")])
    state.store.forget_node_claims({"gone": "it went"}, OLD)
    state.store.forget_node_claims({"left": "it went"}, RECENT)
    put("running", CommandPhase.TERMINATING, "gone")
    put("done", CommandPhase.DONE, "gone")
    put("just-done", CommandPhase.DONE, "left")
    put("rolled-back", CommandPhase.ROLLED_BACK, "there")
    put("followed", CommandPhase.ROLLED_BACK, "there")
    put("recent", CommandPhase.DONE, "gone", started_at=RECENT)
    state.store.put_rollout(Rollout("general", moves=(Move("followed", OLD),)))
    assert pruned(state) == {"commands": 2}
    left = {c.id for c in state.history.commands(limit=100)}
    assert left == {"running", "just-done", "followed", "recent"}


def test_the_last_applied_plan_is_kept_with_its_records(
    state: DatabaseState,
) -> None:
    for number in range(3):
        at = NOW + number * DAY
        state.store.put_plan(a_plan(f"p{number}", at=at, carried_out_at=at))
        effect(state, f"e{number}", at, plan=f"p{number}", target=f"c{number}")
        state.store.put_node_claims([a_claim(f"c{number}", node=f"n{number}")])
        state.store.forget_node_claims({f"c{number}": "it went"}, at)
    state.store.put_plan(a_plan("made", at=NOW + 3 * DAY))
    state.store.put_plan(a_plan("newest", at=NOW + 4 * DAY))
    active(state)
    assert pruned(state) == {"plans": 3, "effects": 2, "nodeClaims": 2}
    assert [p.digest for p in state.store.plans()] == ["newest", "p2"]
    assert names(state) == {"e2"}
    assert state.history.gone_claim("c2") is not None


def test_the_newest_plan_and_the_last_recorded_one_are_kept(state: DatabaseState) -> None:
    for digest, days in (("old", 0), ("newest", 2), ("after the clock went back", 1)):
        state.store.put_plan(a_plan(digest, at=NOW + days * DAY))
    assert pruned(state) == {"plans": 1}
    assert [p.digest for p in state.store.plans()] == ["newest", "after the clock went back"]


def test_the_last_reason_about_each_subject_is_kept(state: DatabaseState) -> None:
    def a_decision(code: str, name: str) -> Decision:
        return Decision(kind="Pod", name=name, code=code, message=code)

    for number, code in enumerate(("A", "B", "C")):
        state.history.put_decisions(f"p{number}", NOW + number * DAY, [a_decision(code, "x")])
    state.history.put_decisions("p9", RECENT, [a_decision("A", "y")])
    assert pruned(state) == {"reasons": 2}
    assert [g.decision.code for g in state.history.decisions("Pod", "x")] == ["C"]
    state.history.put_decisions("p8", LATER, [a_decision("C", "x")])
    assert len(state.history.decisions("Pod", "x")) == 1, "it is still what was said last"


def test_the_revision_in_effect_and_the_current_records_are_kept(state: DatabaseState) -> None:
    for number in range(3):
        state.store.put_objects([an_object("o")], f"r{number}", NOW + number * DAY)
    state.store.put_unavailable([an_unavailable("a", until=OLD), an_unavailable("b", until=LATER)])
    serial = state.store.serial()
    assert pruned(state) == {"revisions": 2, "refusals": 1}
    assert state.history.revision() == ("r2", NOW + 2 * DAY)
    assert state.store.serial() == serial, "a saved plan is not stale by it"
    assert len(state.store.objects()) == 1


def test_new_rows_continue_the_numbering(state: DatabaseState) -> None:
    for number in range(3):
        effect(state, f"e{number}", OLD, verb=Verb.TAINT)
    pruned(state)
    effect(state, "next", LATER, verb=Verb.TAINT)
    assert [e.sequence for e in state.journal.entries()] == [4, 3]


def test_a_dry_run_of_pruning_removes_nothing(state: DatabaseState) -> None:
    effect(state, "old", OLD, verb=Verb.TAINT)
    active(state)
    tallies = state.history.prune(LATER, KEEP, is_dry_run=True)
    assert Tally("effects", 1, 1) in tallies
    assert names(state) == {"old"}
    assert state.history.pruned_before() is None
    pruned(state)
    assert state.history.pruned_before() == LATER - KEEP


def test_records_of_another_fleet_are_kept() -> None:
    location = a_database()
    with open_state(location, "web") as mine, open_state(location, "other") as theirs:
        for opened in (mine, theirs):
            effect(opened, "old", OLD, verb=Verb.TAINT)
            active(opened)
        assert pruned(mine) == {"effects": 1}
        assert names(theirs) == {"old"}


def test_a_retention_below_one_day_is_rejected(state: DatabaseState) -> None:
    with pytest.raises(ValueError, match="at least one day"):
        state.history.prune(LATER, timedelta(hours=23))


PRUNER = """
import sys
from tests.states import open_state
from tests.adapters.database.test_pruning import KEEP, LATER

with open_state(sys.argv[1], "web") as state:
    print("begins", flush=True)
    state.history.prune(LATER, KEEP)
    print("done", flush=True)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "wait_s",
    [
        0.02,
        0.1,
        *(pytest.param(wait_s, marks=pytest.mark.exhaustive) for wait_s in (0.0, 0.05, 0.2)),
    ],
)
def test_a_killed_pruning_removed_everything_or_nothing(tmp_path: Path, wait_s: float) -> None:
    with open_state(str(tmp_path), "web") as state:
        ids = [f"e{n}" for n in range(300)]
        state.journal.begin([an_intent(i, at=OLD, verb=Verb.TAINT, target=i) for i in ids])
        for name in ids[:250]:
            state.journal.finish([IntentOutcome(name, Outcome.SUCCEEDED)], OLD)
        active(state)
    with running(PRUNER, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        time.sleep(wait_s)  # the time of the kill, which does not affect the outcome
        process.send_signal(signal.SIGKILL)
        was_done = "done" in process.stdout.read()
    with open_state(str(tmp_path), "web") as state:
        left = len(names(state))
        assert left == 50 if was_done else left in (50, 300)
        assert len(state.journal.in_doubt()) == 50
        assert check(state.database)[0].code == "in-doubt"
        assert pruned(state) in ({}, {"effects": 250})
        assert len(names(state)) == 50
