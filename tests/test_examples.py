"""Every example is a fleet that validates and plans as its README says."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main

REPOSITORY = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```\n\$ reconciler plan .*?^```\n", re.MULTILINE | re.DOTALL)
EXAMPLES = sorted(path.parent.name for path in (REPOSITORY / "examples").glob("*/nodes"))
PODS = {
    "batch-spot": 34,
    "devices": 14,
    "gpu": 9,
    "headroom": 10,
    "maintenance-windows": 10,
    "mig": 6,
    "multi-team": 21,
    "web": 18,
}
POOLS = {
    "batch-spot": {"batch-spot"},
    "devices": {"shared", "training"},
    "gpu": {"cpu", "gpu"},
    "headroom": {"general"},
    "maintenance-windows": {"core", "ledger"},
    "mig": {"gpu"},
    "multi-team": {"search", "shared"},
    "web": {"general"},
}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--now", "2026-03-04T12:00:00Z", "-o", "json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def zones(answer: dict[str, Any], app: str) -> list[int]:
    """Return how many pods of an app each zone gets, in rising order."""
    zone_of = {
        claim["name"]: next(
            r["values"] for r in claim["requirements"] if r["key"] == "topology.kubernetes.io/zone"
        )
        for claim in answer["nodeClaims"]
    }
    counts: dict[str, int] = {}
    for placement in answer["placements"]:
        if f"/{app}-" in placement["pod"]:
            (zone,) = zone_of[placement["nodeClaim"]]
            counts[zone] = counts.get(zone, 0) + 1
    return sorted(counts.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"examples/{name}", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"diagnostics": [], "valid": True}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_pod_of_an_example_is_scheduled(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = plan(capsys, f"examples/{name}")
    assert answer["unschedulable"] == []
    assert len(answer["placements"]) == PODS[name]
    assert {claim["nodePool"] for claim in answer["nodeClaims"]} == POOLS[name]
    assert answer["cost"]["before"] == 0 < answer["cost"]["after"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_readme_of_an_example_is_short_and_its_commands_work(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = _BLOCK.sub("", (REPOSITORY / "examples" / name / "README.md").read_text()).strip()
    commands = [line.strip() for line in readme.splitlines() if line.startswith("    ")]
    assert commands
    assert len(readme.splitlines()) <= 14
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "reconciler"
        assert main(words) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_readme_of_an_example_shows_the_printed_plan(
    name: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``--update-golden`` writes what is printed; the revision and the time always differ."""
    file = REPOSITORY / "examples" / name / "README.md"
    readme = file.read_text(encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "90")
    assert main(["plan", f"examples/{name}", "--now", "2026-03-04T12:00:00Z"]) == 0
    printed = "\n".join(capsys.readouterr().out.splitlines()[3:])
    block = f"```\n$ reconciler plan examples/{name}\n{printed}\n```\n"
    if request.config.getoption("--update-golden"):
        file.write_text(f"{_BLOCK.sub('', readme).rstrip()}\n\n{block}", encoding="utf-8")
        return
    (shown,) = _BLOCK.findall(readme)
    assert shown == block


@pytest.mark.parametrize(
    "day",
    [
        pytest.param("2026-11-30T07:10:00Z", id="the closing of a month is near, the next one far"),
        pytest.param("2026-12-02T07:10:00Z", id="during the closing of a month"),
        pytest.param("2026-10-31T23:10:00Z", id="a window opens twice: summer time ends"),
    ],
)
def test_the_forecast_of_a_new_fleet_is_the_same_on_every_day(
    day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its windows hold back is later on some days, and not a part of the steady state."""
    middle = plan(capsys, "examples/maintenance-windows")["steadyState"]
    assert main(["plan", "examples/maintenance-windows", "--now", day, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["steadyState"]
    assert (found["perHour"], found["nodes"]) == (middle["perHour"], middle["nodes"])


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("devices", "web") else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in EXAMPLES
    ],
)
def test_an_example_can_be_applied_without_an_account(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(REPOSITORY / "examples" / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_PROFILE", "of-somebody-else")
    assert main(["apply", name, "--simulated", "--auto-approve", "--interval", "0s"]) == 0
    out = capsys.readouterr().out
    assert f"\n{name}: converged\n" in out
    assert "cannot be scheduled" not in out
    program, *next_words = shlex.split(out.splitlines()[-1].removeprefix("Next: "))
    assert program == "reconciler"
    assert main([*next_words, "-o", "json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert {pool for pool, nodes in status["nodePools"].items() if nodes["ready"]} == POOLS[name]


def test_the_web_shop_is_spread_over_zones(capsys: pytest.CaptureFixture[str]) -> None:
    answer = plan(capsys, "examples/web")
    assert zones(answer, "frontend") == [4, 4, 4]
    assert zones(answer, "api") == [2, 2, 2]


def test_batch_keeps_many_families_of_spot_types(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = plan(capsys, "examples/batch-spot")
    assert answer["nodeClaims"]
    for claim in answer["nodeClaims"]:
        assert len({kind.partition(".")[0] for kind in claim["instanceTypes"]}) >= 6
        assert claim["launch"]["capacityType"] == "spot"


def test_ranks_get_a_gpu_and_an_interface_below_one_root(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = plan(capsys, "examples/devices")

    found = {c["nodePool"]: (c["instanceTypes"], c["deviceDrivers"]) for c in answer["nodeClaims"]}

    assert found["training"] == (["p5.48xlarge"], ["dra.net", "gpu.nvidia.com"])
    assert found["shared"][1] == ["gpu.nvidia.com"]


def test_pods_take_the_partitions_of_a_running_gpu_and_then_whole_gpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The tuning job takes three of seven slices of compute, and each server one."""
    answer = plan(capsys, "examples/mig", "--snapshot", "examples/mig-cluster.yaml")

    on_node = {p["pod"] for p in answer["placements"] if p["node"] == "p5-0"}
    assert "ml/tuning-0" in on_node
    assert len(on_node) == 5
    (claim,) = answer["nodeClaims"]
    assert (claim["launch"]["instanceType"], len(claim["pods"])) == ("g6.xlarge", 1)
    assert answer["unschedulable"] == []


def test_drivers_share_gpus_as_the_class_of_a_simulated_node_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "examples/devices", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["converged"], answer["curve"][-1]["pending"]) == (True, 0)


def test_fine_tuning_gets_four_gpus_in_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    answer = plan(capsys, "examples/gpu")

    def families_for(pods: str) -> list[set[str]]:
        return [
            {kind.partition(".")[0] for kind in claim["instanceTypes"]}
            for claim in answer["nodeClaims"]
            if any(pods in pod for pod in claim["pods"])
        ]

    tuning, routing = families_for("/finetune-"), families_for("/router-")
    assert tuning
    assert all(families == {"g5"} for families in tuning)
    assert routing
    assert not any(family.startswith("g4") for families in routing for family in families)


def test_pods_of_the_ledger_are_in_different_zones(capsys: pytest.CaptureFixture[str]) -> None:
    assert zones(plan(capsys, "examples/maintenance-windows"), "ledger") == [1, 1, 1]


def test_the_savings_plan_determines_where_search_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def families(answer: dict[str, Any]) -> set[str]:
        return {
            claim["launch"]["instanceType"].partition(".")[0]
            for claim in answer["nodeClaims"]
            if claim["nodePool"] == "search"
        }

    assert families(plan(capsys, "examples/multi-team")) == {"m7i"}
    without = plan(capsys, "examples/multi-team", "--set", "featureGates.NodeOverlay=false")
    assert families(without) == {"m6i"}


@pytest.mark.parametrize(
    ("name", "file", "before", "after", "capacity_types", "reason"),
    [
        ("web", "frontend", "replicas: 12", "replicas: 48", {"spot", "on-demand"}, ""),
        (
            "batch-spot",
            "features",
            "suspend: true",
            "suspend: false",
            {"spot", "on-demand"},
            "limit",
        ),
        ("gpu", "finetune", "parallelism: 2", "parallelism: 4", {"on-demand", "spot"}, "limit"),
        ("multi-team", "search", "replicas: 8", "replicas: 40", {"on-demand", "spot"}, "limit"),
    ],
)
def test_the_change_proposed_in_a_readme_has_the_stated_effect(
    name: str,
    file: str,
    before: str,
    after: str,
    capacity_types: set[str],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fleet = Path(shutil.copytree(REPOSITORY / "examples" / name, tmp_path / name))
    workload = fleet / "workloads" / f"{file}.yaml"
    text = workload.read_text()
    assert before in text
    workload.write_text(text.replace(before, after).replace("completions: 2\n", "completions: 4\n"))
    answer = plan(capsys, str(fleet))
    assert {claim["launch"]["capacityType"] for claim in answer["nodeClaims"]} == capacity_types
    assert bool(answer["unschedulable"]) is bool(reason)
    for pod in answer["unschedulable"]:
        assert reason in " ".join(r["message"] for r in pod["reasons"])


def test_headroom_is_kept_in_addition_to_the_pods(capsys: pytest.CaptureFixture[str]) -> None:
    answer = plan(capsys, "examples/headroom")
    rooms = {room["buffer"]: room for room in answer["headroom"]}
    assert {name: room["replicas"] for name, room in rooms.items()} == {
        "shop/api": 3,
        "shop/preview": 4,
    }
    assert all(sum(r["nodeClaims"].values()) == r["replicas"] for r in rooms.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_estimated_end_of_a_plan_is_close_to_what_simulations_end_with(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = plan(capsys, f"examples/{name}")
    estimate = answer.get("steadyState") or {"perHour": answer["cost"]["after"]}
    words = ["simulate", f"examples/{name}", "--now", "2026-03-04T12:00:00Z", "-o", "json"]
    assert main(words) == 0
    final = json.loads(capsys.readouterr().out)["range"]["perHour"]
    assert 0.9 * final["low"] <= estimate["perHour"] <= 1.1 * final["high"]
