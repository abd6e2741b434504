"""A prediction is recorded before Karpenter acts, and scored after it has acted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from reconciler.adapters.database.state import DatabaseState
from reconciler.catalog.file import read_catalog
from reconciler.model.errors import ClusterError, ReconcilerError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.prediction import PredictionVerdict, Score
from reconciler.plan.value.costs import Cost
from reconciler.plan.value.nodes import LaunchOffering, PlannedNodeClaim
from reconciler.plan.value.plan import Plan
from reconciler.watch.causes import KarpenterEvent
from reconciler.watch.episodes.episode import Episode, encode_episode
from reconciler.watch.episodes.file import actions_of, decode_episode
from reconciler.watch.session import KarpenterWatch, PlannedCluster
from tests.states import open_state
from tests.watch.claims import START, after, claim

CATALOG = read_catalog(
    msgspec.json.encode(
        [
            {
                "name": name,
                "capacity": {"cpu": "2", "memory": "8Gi", "pods": "29"},
                "offerings": [{"zone": "a", "capacityType": "on-demand", "price": price}],
            }
            for name, price in (("m5.large", 0.096), ("c5.large", 0.085))
        ]
    ),
    "the test",
)


@dataclass(frozen=True)
class Seen:
    """NodeClaims as one observation has them."""

    claims: tuple[NodeClaim, ...]

    def objects(self) -> Sequence[JsonDict]:
        return [{"kind": "NodeClaim", **msgspec.to_builtins(c)} for c in self.claims]

    def node_claims(self) -> Sequence[NodeClaim]:
        return self.claims


def launching(*kinds: str) -> Plan:
    """Return a plan that launches nodes of those types."""
    return Plan(
        at=START,
        cost=Cost(before=0.0, after=0.0),
        node_claims=tuple(
            PlannedNodeClaim(
                name=f"web-{number}",
                node_pool="web",
                reason="Unschedulable",
                launch=LaunchOffering(
                    instance_type=kind, zone="a", capacity_type="on-demand", price=price
                ),
            )
            for number, kind in enumerate(kinds)
            for price in [0.096 if kind == "m5.large" else 0.085]
        ),
    )


@dataclass
class World:
    """A cluster that a test changes, and the watch beside it."""

    state: DatabaseState
    claims: tuple[NodeClaim, ...] = ()
    plan: Plan = field(default_factory=lambda: launching("m5.large"))
    error: ReconcilerError | None = None
    until: datetime | None = None
    planned: list[datetime] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    problems: list[ReconcilerError] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    events: Sequence[KarpenterEvent] | ReconcilerError = ()
    events_read: int = 0

    def __post_init__(self) -> None:
        self.watch = KarpenterWatch(
            self.observe,
            self.predict,
            self.state.predictions,
            self.save,
            self.scores.append,
            self.problems.append,
            self.read_events,
        )

    def read_events(self) -> Sequence[KarpenterEvent]:
        self.events_read += 1
        if isinstance(self.events, ReconcilerError):
            raise self.events
        return self.events

    def observe(self) -> Seen:
        if self.error is not None:
            raise self.error
        return Seen(self.claims)

    def predict(self, objects: Sequence[JsonDict], now: datetime) -> PlannedCluster:
        self.planned.append(now)
        return PlannedCluster(msgspec.structs.replace(self.plan, at=now), CATALOG, self.until)

    def save(self, episode: Episode) -> str:
        self.episodes.append(episode)
        return f"episodes/{episode['name']}.json.gz"

    def steps(self, *seconds: float) -> None:
        for second in seconds:
            self.watch.step(after(second))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_state(str(tmp_path), "web") as state:
        yield World(state)


def test_a_launch_is_predicted_in_the_record_before_it_is_seen(world: World) -> None:
    world.steps(0)
    (made,) = world.state.predictions.predictions(START)
    assert [n.instance_type for n in made.launches] == ["m5.large"]
    world.claims, world.plan = (claim("a", at=2),), launching()
    world.steps(2, 8)
    (score,) = world.state.predictions.scores(START)
    assert (score.verdict, score.prediction) == (PredictionVerdict.EXACT, made.sequence)
    assert (score.expected, score.actual) == (0.096, 0.096)
    assert world.scores == [score]
    assert world.episodes == []


def test_a_wrong_prediction_is_saved_and_can_be_read_for_a_replay(world: World) -> None:
    world.steps(0)
    world.claims = (claim("a", "c5.large", at=2), claim("b", at=2))
    world.steps(2, 8)
    (score,) = world.scores
    assert (score.verdict, score.cause) == (
        PredictionVerdict.WRONG,
        "1 node predicted, 2 launched",
    )
    (episode,) = world.episodes
    assert score.episode == f"episodes/{episode['name']}.json.gz"
    (action,) = actions_of(decode_episode(encode_episode(episode), "file"))
    launched = sorted((n.instance_type, n.zone) for n in action.action.launches)
    assert launched == [("c5.large", "a"), ("m5.large", "a")]
    assert action.now == after(0)


def test_a_command_in_a_saved_episode_can_be_read_for_a_replay(world: World) -> None:
    world.claims, world.plan = (claim("a"), claim("b")), launching()
    world.steps(0)
    world.claims = (claim("a", disrupted=("Underutilized", 3)), claim("b"), claim("c", at=3))
    world.steps(4, 10)
    (score,) = world.scores
    assert score.cause == "no command predicted, not Underutilized"
    (action,) = actions_of(decode_episode(encode_episode(world.episodes[0]), "file"))
    command = action.action.command
    assert command is not None
    assert [(n.name, n.instance_type) for n in command.nodes] == [("node-a", "m5.large")]
    assert (command.reason, len(command.replacements)) == ("Underutilized", 1)


def test_an_unchanged_cluster_is_planned_when_time_may_change_the_plan(world: World) -> None:
    world.until = after(10)
    world.steps(0, 1, 2, 9)
    assert world.planned == [after(0)]
    world.until = None
    world.steps(10, 11, 3_600)
    assert world.planned == [after(0), after(10)]
    assert len(world.state.predictions.predictions(START)) == 1
    world.claims = (claim("a", at=3_601),)
    world.steps(3_601, 3_602)
    assert world.planned == [after(0), after(10), after(3_601)]


def test_a_problem_that_lasts_is_reported_every_ten_minutes(world: World) -> None:
    world.steps(0)
    world.error = ClusterError("no answer", where="GET /api", remedy="wait")
    world.steps(*range(1, 1_300))
    assert [p.message for p in world.problems] == ["no answer"] * 3
    world.error = ClusterError("forbidden", where="GET /api", remedy="wait")
    world.steps(1_300, 1_301)
    assert [p.message for p in world.problems[3:]] == ["forbidden"]
    world.error = None
    world.steps(1_302)
    world.error = ClusterError("forbidden", where="GET /api", remedy="wait")
    world.steps(1_303)
    assert [p.message for p in world.problems[4:]] == ["forbidden"]


def test_what_happens_while_the_cluster_cannot_be_read_is_not_scored(world: World) -> None:
    world.steps(0)
    world.error = ClusterError("no answer", where="GET /api", remedy="wait")
    world.steps(1, 2)
    assert [p.message for p in world.problems] == ["no answer"]
    world.error, world.claims = None, (claim("a", at=1),)
    world.steps(3, 9, 20)
    assert world.scores == []
    world.claims = (*world.claims, claim("b", at=21))
    world.steps(21, 27)
    assert len(world.scores) == 1


def test_a_cluster_that_cannot_be_read_at_the_start_is_an_error(world: World) -> None:
    world.error = ClusterError("no answer", where="GET /api", remedy="wait")
    with pytest.raises(ClusterError):
        world.steps(0)


def test_a_restarted_watch_continues_the_record(world: World) -> None:
    world.steps(0)
    again = World(world.state)
    again.claims = (claim("a", at=-5),)
    again.steps(30, 40)
    made = world.state.predictions.predictions(START)
    assert [p.sequence for p in made] == [1, 2]
    assert again.scores == []
