"""The binder takes the decisions of the real kube-scheduler, recorded from version 1.34."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks.scheduler import decisions, load, run

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "scheduler"
ROOT = Path(__file__).resolve().parents[3]
RECORDINGS = (
    Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "scheduler"
)

SMALL: list[dict[str, Any]] = json.loads((FIXTURES / "small.json").read_text(encoding="utf-8"))
"""The smallest input for each rule."""
STATES = [group for group in SMALL if "cases" in group]
SEQUENCES = [group for group in SMALL if "cases" not in group]


@pytest.mark.parametrize("group", STATES, ids=lambda group: group["cases"][0]["features"][0])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_pod_gets_a_node_with_the_highest_score(group: dict[str, Any], seed: int) -> None:
    expected = {case["name"]: case["expect"]["nodes"] or [None] for case in group["cases"]}
    answers = {answer["name"]: answer["node"] for answer in decisions(group, seed)}
    wrong = {name: node for name, node in answers.items() if node not in expected[name]}
    assert not wrong, {name: expected[name] for name in wrong}


@pytest.mark.parametrize("group", SEQUENCES, ids=lambda group: group["shape"])
def test_a_sequence_uses_as_many_nodes(group: dict[str, Any]) -> None:
    recorded = {_figures(end) for end in group["runs"]}
    for seed in range(1, 6):
        assert _figures(run(group, seed)) in recorded


def _figures(end: dict[str, int]) -> tuple[int, int]:
    """Return the number of nodes used, and of pods that wait."""
    return len(end.keys() - {"pending"}), end.get("pending", 0)


@pytest.mark.exhaustive
@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings are not on this machine")
@pytest.mark.parametrize("name", ["decisions-1", "mixed-1"])
def test_every_recorded_decision_is_right(name: str) -> None:
    for group in load(RECORDINGS / f"{name}.json.gz"):
        test_a_pod_gets_a_node_with_the_highest_score(group, 1)


@pytest.mark.exhaustive
@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings are not on this machine")
@pytest.mark.parametrize("name", ["bursts-1", "sequences-1"])
def test_recorded_sequences_use_as_many_nodes_on_average(name: str) -> None:
    groups = load(RECORDINGS / f"{name}.json.gz")
    recorded = mean(mean(_figures(end)[0] for end in group["runs"]) for group in groups)
    ours = mean(_figures(run(group, seed))[0] for group in groups for seed in range(1, 4))
    assert ours == pytest.approx(recorded, rel=0.02)
