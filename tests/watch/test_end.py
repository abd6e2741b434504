"""The fleet once Karpenter has nothing left to do is predicted as a range, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.adapters.database.state import DatabaseState
from reconciler.adapters.threads import start_thread
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.model.errors import ReconcilerError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.prediction import (
    EndRange,
    FleetEnd,
    KarpenterAction,
    KarpenterActionKind,
    Prediction,
    PredictionVerdict,
    Score,
)
from reconciler.plan.planning import plan_of
from reconciler.watch.end.quiet import (
    NODES_MAX,
    PAUSE_MIN,
    QUIET,
    SETTLED,
    EndWatch,
    ScoredEnd,
)
from reconciler.watch.end.simulating import EndSimulations
from reconciler.watch.episodes.anonymizing import anonymize_episode
from reconciler.watch.episodes.episode import encode_episode, episode_of
from reconciler.watch.episodes.file import decode_episode
from reconciler.watch.episodes.replay import replay
from reconciler.watch.page import render_html
from reconciler.watch.planning import planner_of
from reconciler.watch.predicting import prices_of
from reconciler.watch.report import describe_prediction, render_report, report_of
from reconciler.watch.scoring import score_action
from reconciler.watch.serving import PredictionMetrics
from tests.states import open_state
from tests.watch.claims import START, after
from tests.watch.test_live import POOL
from tests.watch.test_serving import CLAIM, NAME, NODE, a_pod

RANGE = EndRange(2, 3, 0.2, 0.3, 20)
NOW = datetime.fromisoformat(CLAIM["metadata"]["creationTimestamp"]) + timedelta(hours=1)


def second(item: dict[str, Any]) -> dict[str, Any]:
    """Return another node or its NodeClaim."""
    text = msgspec.json.encode(item).decode()
    for old, new in ((NAME, "ip-10-0-0-2.ec2.internal"), ("web-1", "web-2"), ("/i-1", "/i-2")):
        text = text.replace(old, new)
    return msgspec.json.decode(text, type=dict[str, Any])


BUSY = [POOL, NODE, CLAIM, a_pod("api-1", NAME), a_pod("api-2", cpu="1500m")]
DONE = [
    *(POOL, NODE, CLAIM, second(NODE), second(CLAIM)),
    *(a_pod("api-1", NAME, "1500m"), a_pod("api-2", "ip-10-0-0-2.ec2.internal", "1500m")),
]


@dataclass
class Ends:
    """A cluster that a test changes, and what predicts its end; a simulation ends when told."""

    state: DatabaseState
    simulations: list[Future[EndRange | None]] = field(default_factory=list)
    problems: list[ReconcilerError] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    ended: list[ScoredEnd] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = planner_of(FleetRequest(settings=("decide=karpenter",), is_of_cluster=True))
        self.watch = EndWatch(
            self.state.predictions,
            lambda _, __: RANGE,
            self.submit,
            self.problems.append,
            self.notes.append,
        )

    def submit(self, work: Callable[[], EndRange | None]) -> Future[EndRange | None]:
        assert work() == RANGE
        self.simulations.append(Future())
        return self.simulations[-1]

    def see(self, objects: list[JsonDict], at: float) -> None:
        """Plan objects, as a session does when they have changed."""
        planned = self.plan(objects, NOW + timedelta(seconds=at))
        assert planned.inputs is not None
        found = [o for o in objects if o["kind"] == "NodeClaim"]
        claims = [msgspec.convert(o, NodeClaim) for o in found]
        prices = prices_of(planned.catalog, claims)
        self.watch.planned(objects, planned.inputs, planned.plan, claims, prices)
        self.step(at)

    def step(self, *seconds: float) -> None:
        for at in seconds:
            self.ended += self.watch.step(NOW + timedelta(seconds=at))
        self.scores = [ended.score for ended in self.ended]

    def recorded(self) -> list[Prediction]:
        return list(self.state.predictions.predictions(NOW - timedelta(days=1)))


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with open_state(str(tmp_path), "web") as state:
        yield Ends(state)


SETTLES = SETTLED.total_seconds()
QUIETS = QUIET.total_seconds()


def test_the_end_is_recorded_before_it_comes_and_scored_once_it_has_lasted(ends: Ends) -> None:
    ends.see(BUSY, 0)
    assert ends.simulations == []
    ends.step(SETTLES)
    ends.simulations[0].set_result(RANGE)
    ends.step(5)
    assert ends.watch.expected == RANGE
    (made,) = ends.recorded()
    assert (made.at, made.end) == (NOW + timedelta(seconds=SETTLES), RANGE)
    ends.see(DONE, 40)
    ends.step(40 + QUIETS - 1)
    assert ends.scores == []
    ends.step(40 + QUIETS, 40 + QUIETS + 1, 500)
    (score,) = ends.scores
    assert score.prediction == made.sequence
    assert score.action.end is not None
    assert (score.action.end.nodes, score.action.at) == (2, NOW + timedelta(seconds=40))
    assert len(ends.simulations) == 1


def test_an_end_outside_of_the_range_is_an_episode_that_is_replayed(ends: Ends) -> None:
    ends.see(BUSY, 0)
    ends.step(SETTLES)
    ends.simulations[0].set_result(EndRange(1, 1, 0.1, 0.1, 20))
    ends.step(5)
    ends.see(DONE, 40)
    ends.step(40 + QUIETS)
    (ended,) = ends.ended
    assert ended.score.verdict is PredictionVerdict.OUTSIDE
    made = episode_of(ended.score, ended.prediction, ended.objects, NOW, ended.fleet)
    request = FleetRequest(is_of_cluster=True)
    episode = decode_episode(encode_episode(made), "file")
    for read in (episode, anonymize_episode(episode, request)):
        (again,) = replay(read, ends.plan, EndSimulations().end_of)
        assert again.verdict is PredictionVerdict.INSIDE, again.cause
        assert again.action.end is not None
        assert again.action.end.nodes == 2
        assert [c.node_pool for c in read.created] == ["web"]


def test_the_end_of_a_large_fleet_is_not_predicted_and_that_is_said_once(ends: Ends) -> None:
    inputs = ends.plan(BUSY, NOW).inputs
    assert inputs is not None
    claims = [msgspec.convert(CLAIM, NodeClaim)] * (NODES_MAX + 1)
    for at in range(2):
        ends.watch.planned(BUSY, inputs, plan_of(inputs), claims, {})
        ends.step(at * 100)
    assert ends.simulations == []
    assert [note for note in ends.notes if "more than 300 nodes" in note] == ends.notes[:1]


def test_an_end_of_another_workload_is_not_scored(ends: Ends) -> None:
    ends.see(BUSY, 0)
    ends.step(SETTLES)
    ends.simulations[0].set_result(RANGE)
    ends.step(5)
    ends.see([*DONE[:-1], a_pod("other", NAME, "10m")], 40)
    ends.step(40 + QUIETS, 600)
    assert ends.scores == []
    assert ends.watch.expected is None


def test_what_is_simulated_only_when_the_end_has_come_is_not_recorded(ends: Ends) -> None:
    ends.see(BUSY, 0)
    ends.step(SETTLES)
    ends.see(DONE, 10)
    ends.simulations[0].set_result(RANGE)
    ends.step(11, 10 + QUIETS)
    assert (ends.recorded(), ends.scores) == ([], [])


def test_a_workload_that_keeps_changing_is_simulated_once_a_minute(ends: Ends) -> None:
    for number in range(40):
        pods = [a_pod(f"new-{number}-{pod}", cpu="1500m") for pod in range(2)]
        ends.see([*BUSY, *pods], number * 5)
        ends.step(number * 5 + SETTLES)
        if not ends.simulations[-1].done():
            ends.simulations[-1].set_result(RANGE)
        ends.step(number * 5 + SETTLES + 1)
    assert 2 <= len(ends.simulations) <= 1 + 200 / PAUSE_MIN.total_seconds()


def test_a_resting_cluster_is_not_simulated(ends: Ends) -> None:
    ends.see(DONE, 0)
    ends.step(5, 100, 1000)
    assert (ends.simulations, ends.scores) == ([], [])


def test_a_simulation_that_fails_is_a_problem_and_the_next_one_counts(ends: Ends) -> None:
    ends.see(BUSY, 0)
    ends.step(SETTLES)
    ends.simulations[0].set_exception(ReconcilerError("it was killed"))
    ends.step(5)
    assert [p.message for p in ends.problems] == ["it was killed"]
    ends.see(BUSY, 6)
    ends.step(10, 30)
    assert len(ends.simulations) == 1
    ends.step(5 + PAUSE_MIN.total_seconds() * 2)
    assert len(ends.simulations) == 2


def test_a_real_simulation_of_a_watched_cluster_has_a_range() -> None:
    plan = planner_of(FleetRequest(settings=("decide=karpenter",), is_of_cluster=True))
    inputs = plan(BUSY, NOW).inputs
    assert inputs is not None
    found = EndSimulations().end_of(BUSY, inputs)
    assert found is not None
    assert (found.nodes_low, found.nodes_high, found.seeds) == (2, 2, 20)
    assert 0 < found.per_hour_low <= found.per_hour_high


def test_a_running_simulation_ends_when_the_watch_does() -> None:
    plan = planner_of(FleetRequest(settings=("decide=karpenter",), is_of_cluster=True))
    inputs = plan(BUSY, NOW).inputs
    assert inputs is not None
    with closing(EndSimulations()) as simulations:
        running = start_thread("end", lambda: simulations.end_of(BUSY, inputs))
    assert running.result(60) is None
    assert simulations.end_of(BUSY, inputs) is None


def ended(nodes: int, per_hour: float | None) -> Score:
    action = KarpenterAction(after(9), KarpenterActionKind.END, end=FleetEnd(nodes, per_hour))
    return score_action(action, Prediction(START, end=RANGE, sequence=7))


@pytest.mark.parametrize(
    ("nodes", "per_hour", "verdict", "cause"),
    [
        (2, 0.2, PredictionVerdict.INSIDE, ""),
        (3, 0.1 + 0.2, PredictionVerdict.INSIDE, ""),
        (2, None, PredictionVerdict.INSIDE, ""),
        (4, 0.25, PredictionVerdict.OUTSIDE, "4 nodes, 2 to 3 predicted"),
        (3, 0.4, PredictionVerdict.OUTSIDE, "$0.4000/hour, $0.2000/hour to $0.3000/hour predicted"),
    ],
)
def test_a_fleet_is_inside_if_its_nodes_and_its_cost_are(
    nodes: int, per_hour: float | None, verdict: PredictionVerdict, cause: str
) -> None:
    score = ended(nodes, per_hour)
    assert (score.verdict, score.cause, score.prediction) == (verdict, cause, 7)


def test_report_page_and_metrics_have_the_ends_with_verdicts_of_their_own() -> None:
    scores = [ended(2, 0.2), ended(5, 0.6)]
    text = render_report(report_of(scores))
    assert "2 settled fleets: 50.0% inside the predicted range (1 inside, 1 outside)" in text
    assert "outside: ended with 5 nodes ($0.6000/hour)" in text
    assert "5 nodes, 2 to 3 predicted" in render_html(report_of(scores))
    metrics = PredictionMetrics()
    for score in scores:
        metrics.count(score)
    exported = metrics.text().decode()
    assert 'reconciler_prediction_total{kind="end",verdict="outside"} 1.0' in exported
    assert 'kind="end",verdict="wrong"' not in exported
    assert 'kind="launch",verdict="inside"' not in exported


def test_the_end_is_the_last_of_what_karpenter_does_next() -> None:
    lines = describe_prediction(Prediction(START, end=RANGE))
    assert lines == ("end with 2 to 3 nodes ($0.2000/hour to $0.3000/hour)",)
