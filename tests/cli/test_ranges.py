"""``simulate --seeds``, ``plan --base`` and ``advise`` state the future as a range over seeds."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.simulate.report import FleetClaim
from reconciler.simulate.seeds import typical_run
from tests.cli.test_simulate import simulated
from tests.cli.test_simulated_change import a_change
from tests.engine.world import a_deployment, a_pool
from tests.repositories import commit_all, git, init
from tests.simulated.simulations import START, words, write_fleet

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Capture = pytest.CaptureFixture[str]

TYPES = ("m7i.large", "m7i.xlarge", "m7i.2xlarge", "c7i.large", "c7i.2xlarge")
ANY = {
    "requirements": [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(TYPES)}
    ]
}
MIXED = [
    a_pool("web", template=ANY, policy="WhenEmptyOrUnderutilized", after="0s",
           budgets=[{"nodes": "100%"}]),
    a_deployment("small", "web", 7, cpu="300m"),
    a_deployment("large", "web", 5, cpu="1500m"),
    a_deployment("other", "web", 3, cpu="900m"),
]  # fmt: skip
"""A fleet of one NodePool with pods of three sizes."""


def ends(capsys: Capture, folder: Path, seeds: int, first: int = 0) -> list[tuple[int, float]]:
    """Return the nodes and the cost at the end of runs with one seed each."""
    reports = [
        simulated(capsys, folder, "--seed", str(seed)) for seed in range(first, first + seeds)
    ]
    return [(len(report["fleet"]), report["cost"]["after"]) for report in reports]


def test_the_range_is_that_of_runs_with_each_seed(capsys: Capture, tmp_path: Path) -> None:
    write_fleet(tmp_path, MIXED)
    apart = ends(capsys, tmp_path, 5)
    report = simulated(capsys, tmp_path, "--seeds", "5")
    nodes, costs = [n for n, _ in apart], [c for _, c in apart]
    found = report["range"]
    assert found["seeds"] == 5
    assert (found["nodes"]["low"], found["nodes"]["high"]) == (min(nodes), max(nodes))
    assert (found["perHour"]["low"], found["perHour"]["high"]) == (min(costs), max(costs))
    assert found["perHour"]["mean"] == pytest.approx(sum(costs) / 5)
    assert (len(report["fleet"]), report["cost"]["after"]) == apart[0], "the first run is shown"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_the_duration_is_that_of_runs_with_each_seed(capsys: Capture, tmp_path: Path) -> None:
    write_fleet(tmp_path, MIXED)
    alone = [simulated(capsys, tmp_path, "--seed", str(seed)) for seed in range(3)]
    ends = [
        round((moment(report["events"][-1]["at"]) - moment(report["startedAt"])).total_seconds())
        for report in alone
    ]
    found = simulated(capsys, tmp_path, "--seeds", "3")["durationSeconds"]
    assert (found["low"], found["high"]) == (min(ends), max(ends))
    assert found["mean"] == pytest.approx(sum(ends) / 3)
    assert min(ends) > 0
    assert all("durationSeconds" not in report for report in alone)


def test_a_fleet_in_which_nothing_happens_has_no_duration(capsys: Capture, tmp_path: Path) -> None:
    write_fleet(tmp_path, [a_pool("web")])
    assert simulated(capsys, tmp_path, "--seeds", "2")["durationSeconds"]["high"] == 0
    assert main(["simulate", *words(tmp_path, "--seeds", "2")]) == 0
    assert "The runs take" not in capsys.readouterr().out


def test_the_timeline_ends_with_the_range(capsys: Capture, tmp_path: Path) -> None:
    write_fleet(tmp_path, MIXED)
    assert main(["simulate", *words(tmp_path, "--seeds", "3")]) == 0
    story = capsys.readouterr().out
    assert "3 runs). The timeline is that of --seed 0. The runs take " in story
    assert main(["simulate", *words(tmp_path, "--seeds", "3", "-o", "html")]) == 0
    assert "3 runs). The timeline" in capsys.readouterr().out


def test_a_small_fleet_has_a_range_in_which_nine_of_ten_other_runs_end(
    capsys: Capture, tmp_path: Path
) -> None:
    write_fleet(tmp_path, [a_pool("web"), a_deployment("small", "web", 1)])
    found = simulated(capsys, tmp_path)
    assert (found["range"]["seeds"], found["seed"]) == (20, 0)
    assert "range" not in simulated(capsys, tmp_path, "--seed", "3")


def a_fleet(**nodes: int) -> list[FleetClaim]:
    return [
        FleetClaim(f"{kind}-{n}", "web", f"{kind}-{n}", kind, "us-east-1a", "on-demand", 1.0, 1)
        for kind, count in nodes.items()
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("fleets", "shown"),
    [
        ([a_fleet(small=1)], 0),
        ([a_fleet(small=1), a_fleet(small=1)], 0),
        ([a_fleet(large=2), a_fleet(small=3), a_fleet(small=3)], 1),
        ([a_fleet(small=1), a_fleet(small=3), a_fleet(small=2)], 2),
        ([a_fleet(small=9), a_fleet(small=3, large=1), a_fleet(small=3), a_fleet(large=1)], 1),
    ],
    ids=["one", "equal", "most frequent", "middle", "nearest"],
)
def test_the_run_that_is_shown_differs_least_from_the_others(
    fleets: list[list[FleetClaim]], shown: int
) -> None:
    assert typical_run(fleets) == shown


def test_the_timeline_is_that_of_the_seed_that_is_named(capsys: Capture, tmp_path: Path) -> None:
    write_fleet(tmp_path, MIXED)
    seed = simulated(capsys, tmp_path)["seed"]
    assert main(["simulate", *words(tmp_path)]) == 0
    story = capsys.readouterr().out
    assert f"The timeline is that of --seed {seed}." in story
    assert main(["simulate", *words(tmp_path, "--seed", str(seed))]) == 0
    alone = capsys.readouterr().out
    assert [line for line in story.splitlines() if not line.startswith("Range")] == (
        alone.splitlines()
    )


def planned(capsys: Capture, folder: Path, *more: str) -> Any:
    assert main(["plan", *words(folder, "--base", "HEAD", *more)]) == 0
    return capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_change_is_compared_in_pairs_of_the_same_seed(capsys: Capture, tmp_path: Path) -> None:
    more = [*MIXED, a_deployment("more", "web", 4, cpu="900m")]
    a_change(tmp_path, MIXED, more)
    found = json.loads(planned(capsys, tmp_path, "-o", "json"))["atRest"]
    assert found["range"]["seeds"] >= 5
    low, mean, high = (found["difference"][key] for key in ("low", "mean", "high"))
    assert low <= mean <= high
    assert found["perHour"] == mean
    assert found["difference"]["beyondChance"] is (low > 0 or high < 0)
    both = simulated(capsys, tmp_path, "--base", "HEAD", "--seeds", str(found["range"]["seeds"]))
    assert both["merge"]["difference"] == found["difference"], "one definition, the same seeds"
    assert both["range"] == found["range"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["batch-spot", "web"])
def test_the_examples_have_the_same_figures_in_a_plan_and_in_a_simulation(
    capsys: Capture, tmp_path: Path, name: str
) -> None:
    fleet = tmp_path / name
    shutil.copytree(EXAMPLES / name, fleet)
    init(fleet)
    commit_all(fleet)
    more = ["--now", START, "-o", "json"]
    assert main(["simulate", str(fleet), *more]) == 0
    simulation = json.loads(capsys.readouterr().out)
    assert main(["plan", str(fleet), "--base", "HEAD", "--set", "cluster=none", *more]) == 0
    plan = json.loads(capsys.readouterr().out)["atRest"]
    assert (plan["range"], plan["perHour"]) == (simulation["range"], 0)


def test_a_new_fleet_costs_what_a_simulation_of_it_alone_states(
    capsys: Capture, tmp_path: Path
) -> None:
    write_fleet(tmp_path, [MIXED[0], MIXED[3]])
    init(tmp_path)
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "empty")
    plan = json.loads(planned(capsys, tmp_path, "-o", "json"))
    alone, found = simulated(capsys, tmp_path)["range"], plan["atRest"]
    assert (found["range"], found["perHour"]) == (alone, alone["perHour"]["mean"])
    assert found["before"] == {"nodes": 0, "perHour": 0.0}
    assert plan["summary"]["perMonth"] == found["perMonth"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "candidates"), [("maintenance-windows", "8"), ("multi-team", "100")]
)
def test_advice_states_what_a_plan_and_a_simulation_of_the_patched_files_state(
    capsys: Capture, tmp_path: Path, name: str, candidates: str
) -> None:
    fleet = tmp_path / name
    shutil.copytree(EXAMPLES / name, fleet)
    init(fleet)
    commit_all(fleet)
    more = ["--now", START, "-o", "json"]

    def report(*words: str) -> Any:
        assert main([*words, *more]) == 0
        return json.loads(capsys.readouterr().out)

    found = report("advise", str(fleet), "--candidates", candidates)
    assert found["base"]["range"] == report("simulate", str(fleet))["range"]
    best = [*found["advice"], found["together"]][0]  # in multi-team only two changes together save
    (tmp_path / "patch").write_text(best["patch"])
    git(fleet, "apply", str(tmp_path / "patch"))
    plan = report("plan", str(fleet), "--base", "HEAD", "--set", "cluster=none")["atRest"]
    assert (best["perMonth"], best["nodes"]) == (plan["perMonth"], plan["after"]["nodes"])
    merge = report("simulate", str(fleet), "--base", "HEAD")["merge"]
    assert merge["difference"] == plan["difference"]


MIDDLE = [
    a_pool("web", template=ANY, policy="WhenEmptyOrUnderutilized", after="0s",
           budgets=[{"nodes": "1"}]),
    a_deployment("small", "web", 40, cpu="300m"),
    a_deployment("large", "web", 20, cpu="1500m"),
]  # fmt: skip
"""A fleet of which not every command can afford twenty runs."""
CHANGES = {
    "nothing": MIDDLE,
    "a label": [{**MIDDLE[0], "metadata": {"name": "web", "labels": {"team": "a"}}}, *MIDDLE[1:]],
    "more pods": [*MIDDLE, a_deployment("more", "web", 3, cpu="900m")],
    "fewer pods": MIDDLE[:2],
    "one type": [a_pool("web", template={
        "requirements": [{**ANY["requirements"][0], "values": ["m7i.2xlarge"]}]}), *MIDDLE[1:]],
    "labelled nodes": [a_pool("web", template=ANY, labels={"new": "yes"}), *MIDDLE[1:]],
    "a closed budget": [a_pool("web", template=ANY, budgets=[{"nodes": "0"}]), *MIDDLE[1:]],
    "only empty nodes": [a_pool("web", template=ANY, policy="WhenEmpty"), *MIDDLE[1:]],
    "another pool": [*MIDDLE, a_pool("other", template=ANY)],
    "larger pods": [MIDDLE[0], a_deployment("small", "web", 40, cpu="400m"), MIDDLE[2]],
    "a limit": [a_pool("web", template=ANY, limits={"cpu": "30"}), *MIDDLE[1:]],
    "a taint": [a_pool("web", template={
        **ANY, "taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}), *MIDDLE[1:]],
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CHANGES)
def test_a_plan_and_a_simulation_of_a_change_state_the_same_cost(
    capsys: Capture, tmp_path: Path, name: str
) -> None:
    a_change(tmp_path, MIDDLE, CHANGES[name])
    plan = json.loads(planned(capsys, tmp_path, "-o", "json"))["atRest"]
    both = simulated(capsys, tmp_path, "--base", "HEAD")
    assert both["merge"]["difference"] == plan["difference"]
    assert both["range"] == plan["range"]


def test_a_change_of_no_effect_is_exactly_zero_with_every_seed(
    capsys: Capture, tmp_path: Path
) -> None:
    a_change(tmp_path, MIXED, [*reversed(MIXED)])
    found = json.loads(planned(capsys, tmp_path, "-o", "json"))["atRest"]
    assert found["difference"] == {"low": 0, "mean": 0, "high": 0, "beyondChance": False}
    assert (found["perHour"], found["perMonth"]) == (0, 0)
    assert "This change has no effect: no object of the fleet changes; " in planned(
        capsys, tmp_path
    )


def test_the_present_files_have_the_same_figures_in_a_plan_and_in_a_simulation(
    capsys: Capture, tmp_path: Path
) -> None:
    a_change(tmp_path, MIXED, [*reversed(MIXED)])
    plan = json.loads(planned(capsys, tmp_path, "-o", "json"))["atRest"]
    assert plan["range"] == simulated(capsys, tmp_path)["range"]
