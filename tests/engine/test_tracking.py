"""From records to states: any records are interpreted according to the transition table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.engine.steps import lifecycle
from reconciler.engine.tracking import Records, report_illegal, track_command, track_plan
from reconciler.engine.world import World
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.plan.make.actions import OwnedNode, UnlaunchedClaim, actions_of
from reconciler.plan.run import ActionEvent, ActionState, PlanRun, RunEvent
from reconciler.plan.value.actions import PlannedCommand
from reconciler.plan.value.plan import Plan
from reconciler.ports.journal import Intent, JournalEntry, Outcome, Verb
from reconciler.ports.progress import Progress
from reconciler.ports.state import CommandPhase, RunningCommand
from tests.plan.builders import a_plan

NOW = datetime(2026, 1, 3, 12, 0, tzinfo=UTC)
PHASES = tuple(CommandPhase)


def a_claim(name: str, *reached: str, message: str = "", **fields: object) -> NodeClaim:
    claim = NodeClaim(Metadata(name=name, **fields))
    if reached:
        claim = NodeClaim(claim.metadata, status=NodeClaimStatus(provider_id=f"aws:///a/i-{name}"))
    for condition in reached:
        claim = lifecycle.with_condition(claim, condition, "True", NOW)
    if message:
        claim = lifecycle.with_condition(claim, "Registered", "Unknown", NOW, "Waits", message)
    return claim


def a_command(phase: CommandPhase, message: str = "", replacements: str = "new") -> RunningCommand:
    return RunningCommand(
        "c", "Drifted", "replace", ("old",), tuple(replacements.split()), phase, NOW,
        message=message, node_pools=("web",),
    )  # fmt: skip


def the_plan() -> Plan:
    """Return a plan that launches ``alone``, and ``new`` to replace ``old``."""
    return a_plan(
        actions=actions_of(
            (),
            [
                UnlaunchedClaim(name=name, node_pool="web", launch=None)
                for name in ("alone", "new")
            ],
            [
                PlannedCommand(
                    id="c", reason="Drifted", decision="replace", nodes=("node-old",),
                    node_claims=("old",), replacements=("new",),
                )
            ],
            {"old": OwnedNode(name="node-old", node_claim="old", node_pool="web")},
        )
    )  # fmt: skip


def an_entry(target: str, outcome: Outcome | None) -> JournalEntry:
    return JournalEntry(1, Intent("i", Verb.LAUNCH, target, NOW), outcome, message="no capacity")


maybe_claims = st.sampled_from(
    [
        lambda _: None,
        a_claim,
        lambda name: a_claim(name, "Launched"),
        lambda name: a_claim(name, "Launched", "Registered", "Initialized"),
        lambda name: a_claim(name, "Launched", deletion_timestamp=NOW),
        lambda name: a_claim(name, "Launched", "Initialized", deletion_timestamp=NOW),
    ]
)
maybe_entries = st.sampled_from(
    [
        lambda _: None,
        lambda name: an_entry(name, None),
        lambda name: an_entry(name, Outcome.FAILED),
        lambda name: an_entry(name, Outcome.SUCCEEDED),
    ]
)


@given(
    st.dictionaries(st.sampled_from(["alone", "new", "old"]), maybe_claims),
    st.dictionaries(st.sampled_from(["alone", "new", "old"]), maybe_claims),
    st.dictionaries(st.sampled_from(["alone", "new"]), maybe_entries),
    st.none() | st.sampled_from(PHASES),
    st.booleans(),
    st.booleans(),
)
def test_every_recorded_history_follows_the_transition_table(
    claims: dict[str, Callable[[str], NodeClaim | None]],
    gone: dict[str, Callable[[str], NodeClaim | None]],
    launches: dict[str, Callable[[str], JournalEntry | None]],
    phase: CommandPhase | None,
    is_recovered: bool,
    superseded: bool,
) -> None:
    living = {name: c for name, make in claims.items() if (c := make(name)) is not None}
    records = Records(
        living,
        lambda _: a_command(phase) if phase is not None else None,
        lambda name: gone[name](name) if name in gone and name not in living else None,
        lambda name: launches[name](name) if name in launches else None,
        is_recovered=is_recovered,
    )
    assert track_plan(the_plan(), records, superseded=superseded).illegal == ()


def states(run: PlanRun) -> dict[str, str]:
    assert run.illegal == ()
    return {name: str(state) for name, state in run.states.items()}


def of_plan(
    *claims: NodeClaim,
    command: RunningCommand | None = None,
    gone: tuple[NodeClaim, ...] = (),
    launch: JournalEntry | None = None,
    superseded: bool = False,
) -> PlanRun:
    return track_plan(
        the_plan(),
        Records(
            {claim.name: claim for claim in claims},
            lambda _: command,
            {claim.name: claim for claim in gone}.get,
            lambda name: launch if launch is not None and launch.intent.target == name else None,
        ),
        superseded=superseded,
    )


def test_a_replacement_whose_node_has_not_joined_keeps_its_command_waiting() -> None:
    run = of_plan(
        a_claim("old", "Launched", "Initialized"),
        a_claim("new", "Launched", message="no node has joined yet"),
        command=a_command(CommandPhase.WAITING),
    )
    assert states(run) == {
        "provision/alone": "pending",
        "provision/new": "waiting",
        "replace/c": "waiting",
        "terminate/old": "waiting",
    }
    assert run.status_message("provision/new") == "no node has joined yet"
    assert run.status_message("replace/c") == "waits for provision/new"


def test_a_completed_command_is_done_even_if_its_replacement_was_removed_later() -> None:
    old, new = (a_claim(name, "Launched", "Initialized") for name in ("old", "new"))
    found = states(of_plan(command=a_command(CommandPhase.DONE), gone=(old, new)))
    assert found["provision/new"] == found["replace/c"] == found["terminate/old"] == "succeeded"


def test_a_rolled_back_command_skips_its_terminations_and_states_why() -> None:
    run = of_plan(
        a_claim("old", "Launched", "Initialized"),
        command=a_command(CommandPhase.ROLLED_BACK, "its replacement new is gone"),
        gone=(a_claim("new", "Launched"),),
    )
    assert states(run) == {
        "provision/alone": "pending",
        "provision/new": "failed",
        "replace/c": "rolled-back",
        "terminate/old": "skipped",
    }
    assert run.status_message("replace/c") == "its replacement new is gone"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(None, "running"), (Outcome.FAILED, "failed"), (Outcome.SUCCEEDED, "succeeded")],
)
def test_the_journal_reports_a_launch_without_a_claim(outcome: Outcome | None, state: str) -> None:
    run = of_plan(launch=an_entry("alone", outcome))
    assert states(run)["provision/alone"] == state
    assert run.status_message("provision/alone") == ("no capacity" if state == "failed" else "")


def test_a_removed_node_that_never_became_ready_counts_as_failed() -> None:
    run = of_plan(gone=(a_claim("alone", "Launched"),), launch=an_entry("alone", Outcome.SUCCEEDED))
    assert states(run)["provision/alone"] == "failed"


def test_actions_not_started_before_a_later_plan_are_superseded() -> None:
    run = of_plan(a_claim("alone", "Launched"), superseded=True)
    assert states(run) == {
        "provision/alone": "waiting",
        "provision/new": "superseded",
        "replace/c": "superseded",
        "terminate/old": "superseded",
    }


@pytest.mark.parametrize("phase", [CommandPhase.MARKED, CommandPhase.WAITING])
def test_after_recovery_a_missing_replacement_counts_as_never_launched(
    phase: CommandPhase,
) -> None:
    run = track_command(a_command(phase), {"old": a_claim("old", "Launched", "Initialized")})
    assert states(run) == {
        "provision/new": "failed",
        "replace/c": "waiting",
        "terminate/old": "waiting",
    }
    assert run.ready() == ()


def test_the_actions_of_a_command_have_the_ids_of_its_plan() -> None:
    ids = [a.id for a in the_plan().actions if a.id != "provision/alone"]
    assert list(track_command(a_command(CommandPhase.MARKED), {}).states) == ids


class Listener:
    """Keeps what was told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def notify(self, progress: Progress) -> None:
        self.messages.append(f"{progress.kind}: {progress.message}")


def test_an_impossible_event_is_reported_and_stops_nothing() -> None:
    run, listener = PlanRun(the_plan().actions), Listener()
    run.feed(RunEvent("terminate/old", ActionEvent.GONE))
    ports = dict.fromkeys(("compute", "cluster", "store", "journal"), None)
    report_illegal(World(SimulatedClock(), notifier=listener, **ports), run)
    (message,) = listener.messages
    assert message.startswith(
        "IllegalTransition: internal error: terminate/old: gone while pending;"
    )
    assert run.states["terminate/old"] is ActionState.PENDING
