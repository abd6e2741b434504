"""All commands agree on the pods of one folder, which has every kind of the table of workloads."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.cli.sourcefolders import CLASS, POOL, write
from tests.desired.test_workload_kinds import CONTAINER, GPU, OBJECTS, TEMPLATE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    files = {"nodes.yaml": f"{POOL}---\n{CLASS}"}
    for number, (document, _) in enumerate(OBJECTS.values()):
        text = document.replace("TEMPLATE", TEMPLATE).replace("GPU", GPU)
        files[f"workload-{number}.yaml"] = text.replace("CONTAINER", CONTAINER)
    return write(tmp_path / "fleet", files)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    code = main([*words, "-o", "json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


def planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[set[str], set[str]]:
    """Return the names of the pods that are placed, and of those that are not."""
    plan = run(capsys, "plan", str(folder), "--set", "cluster=none")
    placed = [p["pod"] for p in plan["placements"]]
    unplaced = [p["pod"] for p in plan["unschedulable"]]
    assert len({*placed, *unplaced}) == len(placed) + len(unplaced)
    return set(placed), set(unplaced)


def test_all_commands_agree_on_the_pods_of_every_kind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected: Counter[str] = Counter()
    for _, pods in OBJECTS.values():
        expected.update({name: count for name, (count, _) in pods.items()})

    validated = run(capsys, "validate", str(folder))
    assert validated["valid"]
    assert {d["code"] for d in validated["diagnostics"]}.isdisjoint(
        {"unknown-workload", "skipped-kinds"}
    )

    placed, unplaced = planned(folder, capsys)
    names = [name.rpartition("-")[0].partition("/")[2] for name in (*placed, *unplaced)]
    assert Counter(names) == +expected

    fresh = folder.parent / "fresh"
    words = ["--from", str(folder), "--name", "x", "--no-lock", "--ci", "none"]
    assert main(["init", str(fresh), *words]) == 0
    assert planned(fresh, capsys) == (placed, unplaced)

    simulated = run(capsys, "simulate", str(folder), "--until", "10m", "--seeds", "1")
    assert simulated["curve"][0]["pending"] == len(placed) + len(unplaced)
    assert sum(node["pods"] for node in simulated["fleet"]) == len(placed)
    assert {stuck["name"] for stuck in simulated["stuck"]} == unplaced

    for name in (*sorted(placed)[::20], *sorted(unplaced)[::20]):
        about = run(capsys, "explain", "pod", name, str(folder), "--set", "cluster=none")
        is_launched = any("launches it" in fact for fact in about["facts"])
        assert (about["about"]["name"], is_launched) == (name, name in placed)


@pytest.mark.exhaustive
def test_advice_begins_with_the_pods_and_the_price_of_a_simulation(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placed, _ = planned(folder, capsys)
    simulated = run(capsys, "simulate", str(folder), "--until", "30m", "--seeds", "1")
    advice = run(capsys, "advise", str(folder), "--set", "cluster=none")
    assert advice["base"]["perHour"] == simulated["cost"]["after"]
    shares = [one["exposure"]["spotPercent"] * len(placed) / 100 for one in advice["advice"]]
    assert all(abs(share - round(share)) < 0.01 for share in shares), "shares of the same pods"
