"""Leaping over time misses nothing that looking all the time would see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from reconciler.assembly.mandate import tags_of
from reconciler.cli.main import main
from reconciler.engine.reconcile import Mandate
from reconciler.simulate.driver import play
from reconciler.simulate.eventlog import Event
from tests.engine.world import a_deployment, a_pdb, a_pool
from tests.simulated.simulations import Parsed, in_a_folder

NIGHT = {"nodes": "0", "schedule": "0 9 * * *", "duration": "2h"}
"""Nobody may be moved before eleven."""


@pytest.fixture
def parsed() -> Iterator[Parsed]:
    yield from in_a_folder()


class Restless:
    """A cluster in which something may happen every half minute."""

    def __init__(self, cluster: Any, clock: Any) -> None:
        self._cluster, self._clock = cluster, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def next_moment(self) -> datetime:
        soon: datetime = self._clock.now() + timedelta(seconds=30)
        known = self._cluster.next_moment()
        return min(soon, known) if known is not None else soon


def events_of(parsed: Parsed, revisions: list[list[dict[str, Any]]], *, leaps: bool) -> list[Event]:
    """Return what happens in six hours, of which the second revision has the last five."""
    setting = parsed.setting(revisions[0], {})
    stage = setting.stage
    if not leaps:
        stage.cluster = Restless(stage.cluster, stage.clock)  # type: ignore[assignment]
    for fleet, end in ((setting.head, 1), (parsed.fleet(revisions[1]), 6)):
        until = setting.start + timedelta(hours=end)
        play(stage, setting.start_fleet(fleet).priced_at, Mandate(tags_of(fleet.settings)), until)
    return stage.event_log.events


STORIES = {
    "drift that waits for a window": [
        [a_pool("web", budgets=[NIGHT]), a_deployment("web", "web", 2)],
        [a_pool("web", budgets=[NIGHT], labels={"v": "2"}), a_deployment("web", "web", 2)],
    ],
    "a node that expires": [
        [a_pool("web", template={"expireAfter": "3h"}), a_deployment("web", "web", 1)]
    ]
    * 2,
    "emptiness after a quiet while": [
        [a_pool("web", after="25m"), a_deployment("web", "web", 5)],
        [a_pool("web", after="25m"), a_deployment("web", "web", 1)],
    ],
    "a protection that ends": [
        [
            a_pool("web", labels={"v": version}),
            a_deployment("web", "web", 1, annotations={"karpenter.sh/do-not-disrupt": "2h"}),
        ]
        for version in ("1", "2")
    ],
    "a drain that only its grace period ends": [
        [
            a_pool("web", labels={"v": version}, template={"terminationGracePeriod": "1h"}),
            a_deployment("web", "web", 1),
            a_pdb("web", "web", maxUnavailable=0),
        ]
        for version in ("1", "2")
    ],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STORIES)
def test_skipping_idle_time_gives_the_result_of_regular_passes(parsed: Parsed, name: str) -> None:
    leapt, looked = (events_of(parsed, STORIES[name], leaps=leaps) for leaps in (True, False))
    assert [_what(e) for e in leapt] == [_what(e) for e in looked]
    late = [a.at - b.at for a, b in zip(leapt, looked, strict=True)]
    assert all(abs(gap) <= timedelta(seconds=40) for gap in late)
    assert any(e.kind == "Terminated" for e in leapt), "the story has a point"


def _what(event: Event) -> tuple[str, str, str]:
    return (event.kind, event.node_pool, event.reason)


def test_an_expired_node_is_disrupted_once_despite_protected_pods(parsed: Parsed) -> None:
    """Expiry is forceful: asked for their word, protected pods would undo it in every pass."""
    protected = a_deployment("web", "web", 1, annotations={"karpenter.sh/do-not-disrupt": "true"})
    objects = [a_pool("web", template={"expireAfter": "3h"}), protected]
    events = events_of(parsed, [objects, objects], leaps=True)
    kinds = [e.kind for e in events if e.reason == "Expired"]
    assert kinds.count("CommandStarted") == 1
    assert "CommandRolledBack" not in kinds


def test_a_fleet_has_converged_only_after_its_closed_windows_have_opened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While its budget is closed, consolidation evaluates nothing, so nothing tells of a wait."""
    words = ["examples/maintenance-windows", "--set", "cluster=none", "--seed", "4", "-o", "json"]

    assert main(["simulate", *words, "--now", "2026-03-02T12:00:00Z"]) == 0

    output = json.loads(capsys.readouterr().out)
    assert output["converged"]
    assert output["at"] >= "2026-03-03T05:00:00Z", "the end of month-end in New York"
    assert output["cost"]["after"] < output["cost"]["peak"]
