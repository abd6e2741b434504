"""``status`` shows halted rollouts and blockers; ``resume`` continues them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reconciler.cli.main import main
from tests.cli.recorded_fleet import NOW_ARGUMENT, record
from tests.states import open_state

SCHEMA = Path(__file__).parents[2] / "schemas" / "status.v1.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fleet = tmp_path / "web"
    fleet.mkdir()
    record(fleet / ".reconciler")
    return fleet


def status(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", str(folder), NOW_ARGUMENT, "-o", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(facts)
    return dict(facts)


def test_resuming_resets_the_failure_count_and_is_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = status(folder, capsys)
    assert [(r["nodePool"], r["failures"]) for r in before["rollouts"]] == [
        ("batch", 3),
        ("web", 0),
    ]
    assert main(["resume", str(folder), "--node-pool", "batch"]) == 0
    assert capsys.readouterr().out == (
        "Resumed disruption of NodePool batch. It was halted at 2026-01-03 10:00 UTC after"
        " 3 failures; the last one: its replacement batch-5 is gone.\n"
    )
    after = status(folder, capsys)
    assert [r["nodePool"] for r in after["rollouts"]] == ["web"]
    assert after["serial"] > before["serial"], "a plan made before is stale"
    assert main(["resume", str(folder)]) == 0
    assert capsys.readouterr().out == "No NodePool is halted.\n"


def test_a_pool_that_is_not_halted_cannot_be_resumed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(folder), "--node-pool", "web"]) == 1
    output = capsys.readouterr().err
    assert "NodePool web is not halted" in output
    assert "halted NodePools: batch" in output
    with open_state(str(folder / ".reconciler"), "web") as state:
        assert [r.stopped_at is not None for r in state.store.rollouts()] == [True, False]
