"""From the records of a killed process, status and the next process derive the same progress."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.database.state import DatabaseState
from reconciler.assembly.inputs.records import run_of_recorded
from reconciler.cli.main import main
from reconciler.engine.tracking import track_command
from reconciler.plan.run import TRANSITIONS, ActionState, PlanRun
from reconciler.plan.value.actions import Action
from reconciler.ports.journal import Verb
from tests.engine.crashes import CutError, Points, cut
from tests.engine.world import World, a_deployment, a_node_class, a_pool, a_world
from tests.states import open_state

CUTS = [(14, 33, 24, 47), (16, 24, 32, 40)]
"""After how many dealings with the world each process is killed."""

STAGES = {
    CUTS[0]: {
        ("provision", "running"),
        ("provision", "waiting"),
        ("provision", "superseded"),
        ("replace", "waiting"),
        ("terminate", "waiting"),
        ("terminate", "running"),
    },
    CUTS[1]: {("replace", "waiting"), ("replace", "superseded")},
}
"""States in which the crashes must have left actions."""

Known = dict[tuple[str, str], ActionState]


def reachable(kind: str, state: ActionState) -> set[ActionState]:
    """Return the states that an action can be in later."""
    found = {state}
    for _ in TRANSITIONS:
        found |= {t.after for t in TRANSITIONS if t.kind == kind and t.before in found}
    return found


def runs_of(state: DatabaseState) -> dict[str, PlanRun]:
    """Return the progress of every applied plan."""
    return {
        plan.digest: run_of_recorded(state, plan)
        for plan in state.store.plans(limit=100)
        if plan.carried_out_at is not None
    }


def status_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", str(folder), "-o", "json"]) == 0
    status: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status


def contradictions(run: PlanRun, world: World) -> list[str]:
    """Return the actions whose states differ from EC2."""
    living = set(world.instances().values())
    ever = world.cloud._account.backend.all_instances()
    tags = [tag for instance in ever for tag in instance.get_tags()]
    launched = {tag["value"] for tag in tags if tag["key"] == "karpenter.sh/nodeclaim"}

    def is_true(action: Action) -> bool:
        name, state = action.node_claim or "", run.states[action.id]
        match action.kind, state:
            case "provision", ActionState.PENDING | ActionState.SUPERSEDED:
                return name not in launched
            case "provision", ActionState.WAITING | ActionState.SUCCEEDED:
                return name in launched
            case "terminate", ActionState.SUCCEEDED:
                return name not in living
            case "terminate", ActionState.PENDING | ActionState.WAITING:
                return name in living
        return True

    return [f"{a.id} is {run.states[a.id]}" for a in run.graph.actions.values() if not is_true(a)]


def disagreements(state: DatabaseState, runs: dict[str, PlanRun]) -> list[str]:
    """Return the actions of a command that the next pass will see in another state.

    Once it has recovered what a crash left, a pass knows that a replacement without a record will
    not come; until then nobody does.
    """
    claims = {claim.name: claim for claim in state.store.node_claims()}
    return [
        f"{name} is {runs[command.plan].states[name]}, and the engine sees {seen}"
        for command in state.store.commands()
        for name, seen in track_command(command, claims).states.items()
        if seen is not ActionState.FAILED and seen is not runs[command.plan].states[name]
    ]


def may_follow(kind: str, before: ActionState, now: ActionState, *, is_newest: bool) -> bool:
    """Return whether a state may be shown after another one.

    A command that a later plan starts again has one record, the later plan's: of the earlier plan
    it is only known that it is superseded.
    """
    return now in reachable(kind, before) or (now is ActionState.SUPERSEDED and not is_newest)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_status_after_a_crash_and_the_resumed_run_agree(
    cuts: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    with open_state(str(folder / ".reconciler"), "test") as state:
        points = Points()
        world = points.wrap(a_world(store=state.store, journal=state.journal))
        known: Known = {}
        met: set[tuple[str, str]] = set()

        def compare() -> dict[str, Any]:
            """Compare the output of status with the runs, with EC2, and with earlier output."""
            runs, progress = runs_of(state), status_of(folder, capsys)["progress"]
            newest = progress["plan"] if progress is not None else ""
            for digest, run in runs.items():
                assert run.illegal == ()
                assert contradictions(run, world) == []
                for name, now in run.states.items():
                    kind, before = run.graph.actions[name].kind, known.get((digest, name), now)
                    assert may_follow(kind, before, now, is_newest=digest == newest)
                    known[digest, name] = now
                    met.add((kind, str(now)))
            assert disagreements(state, runs) == []
            if progress is not None:
                run = runs[progress["plan"]]
                assert progress["states"] == {str(s): n for s, n in run.counts().items()}
                assert progress["finished"] == run.is_finished
            return progress or {}

        for labels in ({"version": "1"}, {"version": "2"}):
            world.git.commit(
                a_node_class(),
                a_pool("web", labels=labels, budgets=[{"nodes": "1"}]),
                a_deployment("web", "web", 2),
            )
            for number in cuts:
                cut(points, number)
                try:
                    world.converge(busy=15.0)
                except CutError:
                    compare()
            points.at = lambda _: None
            assert world.converge(busy=15.0).is_quiet
            assert compare()["finished"]

        assert met >= STAGES[cuts], "it was killed at these stages"
        assert set(known.values()) <= {s for s in ActionState if s.is_final}
        entries = state.journal.entries(limit=1000)
        launches = Counter(e.intent.target for e in entries if e.intent.verb is Verb.LAUNCH)
        assert set(launches.values()) == {1}, "no launch that had begun was started again"
