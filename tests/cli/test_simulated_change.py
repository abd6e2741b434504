"""``plan --base``: the cost of a change to a small fleet equals that of ``simulate --base``."""

from __future__ import annotations

import io
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.model.duration import iso_duration
from reconciler.simulate import change as simulated_change
from reconciler.simulate import seeds
from tests.cli.test_simulate import SMALL, a_cluster
from tests.engine.world import a_deployment, a_pool
from tests.repositories import commit_all, init
from tests.simulated.simulations import words, write_fleet

pytestmark = pytest.mark.usefixtures("fewest_seeds")

Capture = pytest.CaptureFixture[str]
Objects = list[dict[str, Any]]

WEB = a_deployment("web", "web", 4)
OTHER = {"requirements": [{**SMALL["requirements"][0], "values": ["c7i.large"]}]}
"""One of the two types only: nodes of the other type drift."""
CARRIED = "PT1M"
"""The roll-out of nodes that are only launched, where a change is carried on by the planner."""


def a_change(folder: Path, before: Objects, after: Objects) -> None:
    """Write a fleet, commit it, and change it in the working tree."""
    write_fleet(folder, before)
    init(folder / "fleet")
    commit_all(folder / "fleet")
    write_fleet(folder, after)


def answer(capsys: Capture, command: str, folder: Path, *more: str) -> dict[str, Any]:
    assert main([command, *words(folder, "-o", "json", "--base", "HEAD", *more)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


CHANGES: dict[str, tuple[Objects, Objects]] = {
    "nodes are replaced": (
        [a_pool("web", template=SMALL), WEB],
        [a_pool("web", template=SMALL, labels={"new": "yes"}), WEB],
    ),
    "more pods": (
        [a_pool("web", template=SMALL), WEB],
        [a_pool("web", template=SMALL), a_deployment("web", "web", 9)],
    ),
    "other nodes": ([a_pool("web", template=SMALL), WEB], [a_pool("web", template=OTHER), WEB]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_cost_equals_that_of_the_simulation(capsys: Capture, tmp_path: Path, name: str) -> None:
    a_change(tmp_path, *CHANGES[name])
    change = answer(capsys, "plan", tmp_path)["atRest"]
    story = answer(capsys, "simulate", tmp_path)
    merge = story["merge"]
    assert change["before"]["perHour"] == merge["before"]
    assert change["after"] == {"nodes": len(story["fleet"]), "perHour": merge["after"]}
    assert change["perHour"] == pytest.approx(merge["after"] - merge["before"])
    assert change["replaced"] == len(merge["replaced"])
    assert change["stuck"] == []


def test_a_rollout_takes_as_long_as_its_simulation(capsys: Capture, tmp_path: Path) -> None:
    """It ends when the last node of the base is terminated, not when that is drained."""
    a_change(tmp_path, *CHANGES["nodes are replaced"])
    rollout = answer(capsys, "plan", tmp_path)["atRest"]["rollout"]
    story = answer(capsys, "simulate", tmp_path)
    began = datetime.fromisoformat(story["startedAt"])
    ends = [datetime.fromisoformat(node["goneAt"]) for node in story["merge"]["replaced"]]
    assert rollout == iso_duration(max(ends) - began)


def test_a_snapshot_is_read_once(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_change(tmp_path, *CHANGES["other nodes"])
    items = json.dumps({"kind": "List", "items": a_cluster(pods=1, nodes=2)})
    (tmp_path / "s.json").write_text(items)
    merge = answer(capsys, "simulate", tmp_path, "--snapshot", str(tmp_path / "s.json"))["merge"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(items.encode())))
    change = answer(capsys, "plan", tmp_path, "--snapshot", "-")["atRest"]
    assert change["before"] == {"nodes": 1, "perHour": merge["before"]}
    assert (change["after"]["perHour"], change["replaced"]) == (merge["after"], 1)
    assert change["rollout"] != "PT0S"


def test_a_change_without_an_effect_costs_nothing(capsys: Capture, tmp_path: Path) -> None:
    fleet = [a_pool("web", template=SMALL), WEB]
    a_change(tmp_path, fleet, [*reversed(fleet)])
    change = answer(capsys, "plan", tmp_path)["atRest"]
    assert change["before"] == change["after"] == {"nodes": 4, "perHour": pytest.approx(0.4)}
    assert (change["perHour"], change["replaced"], change["rollout"]) == (0, 0, "PT0S")


def test_permanently_blocked_nodes_are_stuck(capsys: Capture, tmp_path: Path) -> None:
    pod = a_deployment("web", "web", 1, annotations={"karpenter.sh/do-not-disrupt": "true"})
    old, new = (a_pool("web", template=SMALL, labels=labels) for labels in ({}, {"new": "yes"}))
    a_change(tmp_path, [old, pod], [new, pod])
    change = answer(capsys, "plan", tmp_path)["atRest"]
    (stuck,) = change["stuck"]
    assert (stuck["nodePool"], stuck["reason"]) == ("web", "Drifted")
    assert "do-not-disrupt" in stuck["message"]


def test_the_nodes_of_a_pool_that_is_removed_from_git_are_stuck(
    capsys: Capture, tmp_path: Path
) -> None:
    anywhere = a_deployment("web", "web", 4)
    del anywhere["spec"]["template"]["spec"]["nodeSelector"]
    a_change(
        tmp_path,
        [a_pool("web", template=SMALL), anywhere],
        [a_pool("renamed", template=SMALL), anywhere],
    )
    change = answer(capsys, "plan", tmp_path)["atRest"]
    assert len(change["stuck"]) == change["after"]["nodes"]
    assert {one["reason"] for one in change["stuck"]} == {"NodePoolDeleted"}
    assert all("`--allow-removal web`" in one["message"] for one in change["stuck"])

    allowed = answer(capsys, "plan", tmp_path, "--allow-removal", "web")["atRest"]
    assert allowed["stuck"] == []
    assert allowed["replaced"] == change["after"]["nodes"]


def test_pods_that_need_a_removed_pool_keep_its_nodes(capsys: Capture, tmp_path: Path) -> None:
    a_change(
        tmp_path, [a_pool("web", template=SMALL), WEB], [a_pool("renamed", template=SMALL), WEB]
    )
    change = answer(capsys, "plan", tmp_path, "--allow-removal", "web")["atRest"]
    assert (change["replaced"], len(change["stuck"])) == (0, change["after"]["nodes"])
    assert {one["reason"] for one in change["stuck"]} == {"NodePoolDeleted"}


def test_unschedulable_pods_are_named(capsys: Capture, tmp_path: Path) -> None:
    pool = a_pool("web", template=SMALL)
    a_change(tmp_path, [pool, WEB], [pool, WEB, a_deployment("huge", "web", 2, cpu="90")])
    change = answer(capsys, "plan", tmp_path)["atRest"]
    assert len(change["unschedulable"]) == 2
    assert all(name.startswith("default/huge-") for name in change["unschedulable"])


def test_a_change_that_takes_too_many_passes_is_continued_with_plans(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_change(tmp_path, *CHANGES["more pods"])
    assert answer(capsys, "plan", tmp_path)["atRest"]["rollout"] != CARRIED
    monkeypatch.setattr(simulated_change, "PASSES_MAX", 3)
    change = answer(capsys, "plan", tmp_path)["atRest"]
    assert (change["after"]["nodes"], change["rollout"]) == (9, CARRIED)


def test_a_large_fleet_is_continued_with_plans(capsys: Capture, tmp_path: Path) -> None:
    tiny = [a_deployment("web", "web", number, cpu="1m") for number in (1, 501)]
    a_change(tmp_path, *([a_pool("web"), workload] for workload in tiny))
    assert answer(capsys, "plan", tmp_path)["atRest"]["rollout"] == CARRIED


def test_the_number_of_runs_follows_from_the_head_alone(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same files have the same figures with and without a base, however large its rollout."""
    a_change(tmp_path, *CHANGES["nodes are replaced"])
    monkeypatch.setattr(seeds, "_WORK", 2_000)
    change = answer(capsys, "plan", tmp_path)["atRest"]
    merged = answer(capsys, "simulate", tmp_path)
    assert main(["simulate", *words(tmp_path, "-o", "json")]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert seeds.SEEDS_MIN < change["range"]["seeds"] < seeds.SEEDS_MAX
    assert change["range"]["seeds"] == merged["range"]["seeds"] == alone["range"]["seeds"]


def test_a_new_fleet_is_simulated_alone_and_divided_among_its_namespaces(
    capsys: Capture, tmp_path: Path
) -> None:
    jobs = a_deployment("jobs", "web", 3)
    jobs["metadata"]["namespace"] = "jobs"
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "README.md").write_text("a fleet")
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    write_fleet(tmp_path, [a_pool("web", template=SMALL), WEB, jobs])
    assert main(["simulate", *words(tmp_path, "-o", "json", "--base", "HEAD")]) == 0
    out, err = capsys.readouterr()
    story = json.loads(out)
    assert "has no NodePool in this folder: the fleet is new" in err
    assert story["merge"] is None
    groups = story["shares"]["groups"]
    assert set(groups) == {"default", "jobs"}
    assert sum(g["after"] for g in groups.values()) == pytest.approx(story["cost"]["after"])
    change = answer(capsys, "plan", tmp_path)
    assert {name: g["after"] > 0 for name, g in change["atRest"]["shares"]["groups"].items()} == {
        "default": True, "jobs": True,
    }  # fmt: skip
    assert any(line.startswith("By namespace ($/month): ") for line in change["summary"]["text"])


def test_what_changed_workloads_request_is_priced_as_the_pods_of_the_snapshot(
    capsys: Capture, tmp_path: Path
) -> None:
    """Four pods pay for four nodes; two more and one of another namespace pay what they do."""
    jobs = a_deployment("jobs", "web", 1)
    jobs["metadata"]["namespace"] = "jobs"
    a_change(
        tmp_path,
        [a_pool("web", template=SMALL), WEB],
        [a_pool("web", template=SMALL), a_deployment("web", "web", 6), jobs],
    )
    snapshot = tmp_path / "s.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": a_cluster(pods=4, nodes=4)}))
    plan = answer(capsys, "plan", tmp_path, "--snapshot", str(snapshot))
    each = plan["atRest"]["before"]["perHour"] / 4 * 730
    first, *lines = plan["summary"]["text"]
    assert first == (
        "Cost unknown: only workloads change, and the pods are those observed; the workloads in "
        f"the files request +4.5 cpu (+3 pods): about +${3 * each:.0f}/month at what requests cost "
        "in the snapshot now."
    )
    payers = f"default +${2 * each:.0f}, jobs +${each:.0f}"
    assert f"By namespace, estimated from requests ($/month): {payers}." in lines
    assert "perMonth" not in plan["summary"]  # an estimate decides no policy on cost
