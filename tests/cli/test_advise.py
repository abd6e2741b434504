"""``reconciler advise`` end to end: proposals, refusals, and changes of files."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource_path
from reconciler.cli.main import main
from tests.cli.advisedfleet import (
    POOL,
    SETTINGS,
    TRACE,
    a_running_node,
    instance_type,
    words,
    write_catalog,
    write_fleet,
)
from tests.repositories import commit_all, git

pytestmark = pytest.mark.usefixtures("fewest_seeds")

Capture = pytest.CaptureFixture[str]
KARPENTER = ("--set", "consolidation.search=karpenter")
"""Leaves savings for advice: the default search replaces a large node by several small ones."""
NEW = "--new-nodes"
"""Omits the simulations of the best findings, which take four fifths of a search.

Given where a test is about what is found and what is done with it, and not about its cost.
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    write_fleet(tmp_path / "shop")
    return tmp_path / "shop"


@pytest.fixture(scope="module")
def usual(fewest_seeds: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report without any flag, as JSON."""
    del fewest_seeds  # only needed before this
    folder = tmp_path_factory.mktemp("usual") / "shop"
    write_fleet(folder)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert main(["advise", *words(folder, "-o", "json")]) == 0
    return shown.getvalue()


def advised(capsys: Capture, fleet: Path, *more: str) -> dict[str, Any]:
    """Return the report as JSON, checked against its schema."""
    assert main(["advise", *words(fleet, "-o", "json", *more)]) == 0
    return checked(capsys.readouterr().out)


def checked(text: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(text)
    schema = json.loads(Path(resource_path("schemas", "advice.v1.json")).read_bytes())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(report)
    return report


def failed(capsys: Capture, fleet: Path, *more: str) -> str:
    """Return the one line of an error."""
    assert main(["advise", *words(fleet, *more)]) == 1
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1
    return text


def per_month(report: dict[str, Any]) -> dict[str, float]:
    every = [*report["advice"], *filter(None, [report["together"]])]
    return {one["id"]: one["perMonth"] for one in every}


def refused(report: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["reason"] for one in report["refused"]}


def test_the_changes_are_ranked_by_what_they_save(capsys: Capture, fleet: Path) -> None:
    report = advised(capsys, fleet, "--spot-max", "100")
    assert report["base"]["perMonth"] == pytest.approx(6 * 0.10 * 730)
    saved = per_month(report)
    assert saved["web-spot"] == pytest.approx(-6 * 0.06 * 730)
    assert saved["web-m7a"] == pytest.approx(-6 * 0.02 * 730)
    assert saved["combination"] == pytest.approx(-6 * (0.10 - 0.032) * 730)
    assert saved["web-split-spot-6"] == pytest.approx(-3 * 0.06 * 730)
    assert [one["rank"] for one in report["advice"]] == [1, 2, 3]
    assert report["together"]["parts"] == ["web-spot", "web-m7a"]


def test_a_family_older_than_those_in_use_is_not_proposed(usual: str) -> None:
    found = per_month(checked(usual))
    assert "web-m7a" in found
    assert "web-m5" not in found


def test_two_searches_give_the_same_bytes_in_any_number_of_processes(
    capsys: Capture, fleet: Path, usual: str
) -> None:
    assert main(["advise", *words(fleet, "-o", "json", "--workers", "2")]) == 0
    assert capsys.readouterr().out == usual


@pytest.mark.parametrize("nodes", [0, 6, 110])
def test_a_saving_is_what_a_plan_of_the_patched_files_states(
    capsys: Capture, fleet: Path, nodes: int
) -> None:
    given = ["-o", "json"]
    if nodes:
        items = [item for number in range(nodes) for item in a_running_node(number)]
        snapshot = fleet.parent / "snapshot.json"
        snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        given += ["--snapshot", str(snapshot)]
    report = advised(capsys, fleet, "--spot-max", "100", *given)
    assert report["base"]["simulated"] is (nodes <= 100)
    assert {"web-spot", "web-m7a", "combination"} <= per_month(report).keys()
    for one in (*report["advice"], report["together"]):
        if any("estimate" in reason for reason in one["reasons"]):
            continue
        patch = fleet.parent / "patch"
        patch.write_text(one["patch"])
        git(fleet, "apply", str(patch))
        assert main(["plan", *words(fleet, "--base", "HEAD", *given)]) == 0
        at_rest = json.loads(capsys.readouterr().out)["atRest"]
        assert at_rest["perMonth"] == one["perMonth"]
        assert at_rest["after"]["nodes"] == one["nodes"]
        assert at_rest["range"]["seeds"] == one["range"]["seeds"]
        git(fleet, "checkout", "--", ".")
        git(fleet, "clean", "--quiet", "--force")


def test_a_limit_rejects_a_change_and_is_named(usual: str) -> None:
    report = checked(usual)
    assert "web-spot" not in per_month(report)
    assert "100% of the pods" in refused(report)["web-spot"]
    assert "--spot-max 50" in refused(report)["web-spot"]
    assert report["limits"]["spotPercent"] == 50


def test_the_present_exposure_is_allowed_where_it_exceeds_a_limit(
    capsys: Capture, fleet: Path
) -> None:
    edit(fleet / "pool.yaml", "[on-demand]", "[spot]")
    report = advised(capsys, fleet, "--spot-max", "10", NEW)
    assert report["limits"]["spotPercent"] == 100
    assert "web-m7a" in per_month(report)


NO_SPOT = """\
policies:
  - name: on-demand-only
    expression: plan.nodeClaims.all(c, c.launch.capacityType != 'spot')
    message: web runs on demand
"""


@pytest.mark.parametrize("place", ["files of the fleet", "file of the operator"])
def test_changes_forbidden_by_a_policy_are_not_proposed(
    capsys: Capture, fleet: Path, place: str
) -> None:
    given: list[str] = []
    if place == "files of the fleet":
        (fleet / "reconciler.yaml").write_text(SETTINGS + NO_SPOT)
    else:
        file = fleet.parent / "policies.yaml"
        file.write_text(NO_SPOT)
        given = ["--policy", str(file)]
    report = advised(capsys, fleet, NEW, "--spot-max", "100", *given)
    assert "policy on-demand-only forbids it: web runs on demand" in refused(report)["web-spot"]
    assert per_month(report).keys() == {"web-m7a"}
    assert all("spot" not in one["patch"].split("+++")[1] for one in report["advice"])


def test_a_policy_warning_is_shown(capsys: Capture, fleet: Path) -> None:
    warning = NO_SPOT.replace("    message", "    severity: warning\n    message")
    (fleet / "reconciler.yaml").write_text(SETTINGS + warning)
    report = advised(capsys, fleet, NEW, "--spot-max", "100")
    assert {one["id"]: one["warnings"] for one in report["advice"]} == {
        "web-spot": ["on-demand-only"], "web-split-spot-6": ["on-demand-only"], "web-m7a": [],
    }  # fmt: skip


def test_a_fleet_without_pods_costs_nothing_and_needs_no_change(
    capsys: Capture, fleet: Path
) -> None:
    (fleet / "workload.yaml").unlink()
    report = advised(capsys, fleet, "--spot-max", "100")
    assert (report["base"]["perMonth"], report["base"]["nodes"]) == (0, 0)
    assert (report["advice"], report["together"], report["refused"]) == ([], None, [])
    assert main(["advise", *words(fleet)]) == 0
    assert "No single change was found" in capsys.readouterr().out


def test_the_seed_decides_which_candidates_are_judged(capsys: Capture, fleet: Path) -> None:
    picks = []
    for seed in ("0", "0", "1", "2"):
        few = ("--candidates", "5", "--seed", seed)
        report = advised(capsys, fleet, NEW, "--spot-max", "100", *few)
        left = {one["what"] for one in report["notTried"] if "--candidates" in one["reason"]}
        assert len(left) > 3
        picks.append(left)
    assert picks[0] == picks[1]
    assert any(other != picks[0] for other in picks[2:])


def test_skipped_candidates_are_listed(usual: str) -> None:
    found = {one["what"]: one["reason"] for one in checked(usual)["notTried"]}
    assert "steady state" in found["web-consolidate-after-5m"]
    assert "other ways to split NodePools" in found
    assert "commitments for three years, or paid upfront" in found


def test_a_report_for_the_terminal_has_the_table_and_the_patches(
    capsys: Capture, fleet: Path
) -> None:
    assert main(["advise", *words(fleet, NEW, "--spot-max", "100", "--top", "1")]) == 0
    text = capsys.readouterr().out
    assert "Fleets of new nodes are compared. Amounts are estimates of the planner" in text
    assert "Let NodePool web use spot nodes (web-spot)" in text
    assert "at most 100%" not in text, "that limits nothing"
    assert "2 more proposals" in text
    assert "Buy an EC2 instance savings plan for m7i of $0.3780/hour" in text
    assert "alternatives; savings do not add up" in text
    assert "-        - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}" in text
    assert text.count("--- a/pool.yaml") == 2, "of the combination and of the first proposal"


# Writing and committing.


def test_the_best_is_written_and_all_else_stays(capsys: Capture, fleet: Path) -> None:
    report = advised(capsys, fleet, NEW, "--spot-max", "0", "--write")
    assert report["together"] is None
    assert (fleet / "pool.yaml").read_text() == POOL.replace("[m7i]", "[m7i, m7a]")
    assert git(fleet, "status", "--short") == "M pool.yaml"
    assert main(["validate", str(fleet)]) == 0


def test_a_named_proposal_is_written(capsys: Capture, fleet: Path) -> None:
    advised(capsys, fleet, NEW, "--spot-max", "100", "--write", "--pick", "web-spot")
    assert (fleet / "pool.yaml").read_text() == POOL.replace("[on-demand]", "[on-demand, spot]")


def test_a_setting_is_written_to_a_new_file_if_none_exists(capsys: Capture, fleet: Path) -> None:
    git(fleet, "rm", "--quiet", "reconciler.yaml")
    commit_all(fleet)
    write_catalog(fleet, instance_type("m7i", 0.10), instance_type("m7i", 1.50, "4xlarge", 16))
    advised(capsys, fleet, *KARPENTER, "--write", NEW, "--pick", "packing-cheapest")
    text = (fleet / "reconciler.yaml").read_text()
    assert text == "apiVersion: reconciler/v1\nkind: Configuration\npacking: cheapest\n"
    assert git(fleet, "status", "--short") == "?? reconciler.yaml"
    assert main(["validate", str(fleet)]) == 0


def test_uncommitted_changes_are_not_overwritten_without_confirmation(
    capsys: Capture, fleet: Path
) -> None:
    edit(fleet / "pool.yaml", "consolidateAfter: 30s", "consolidateAfter: 1m")
    before = (fleet / "pool.yaml").read_text()
    assert "uncommitted" in failed(capsys, fleet, "--write")
    assert (fleet / "pool.yaml").read_text() == before
    advised(capsys, fleet, NEW, "--spot-max", "0", "--write", "--auto-approve")
    assert (fleet / "pool.yaml").read_text() == before.replace("[m7i]", "[m7i, m7a]")


def test_the_best_proposal_is_committed_to_a_new_branch(capsys: Capture, fleet: Path) -> None:
    git(fleet, "config", "user.name", "Ada")
    git(fleet, "config", "user.email", "ada@example.com")
    head = git(fleet, "rev-parse", "HEAD")
    report = advised(capsys, fleet, NEW, "--spot-max", "0", "--commit", "cheaper/web")
    assert git(fleet, "rev-parse", "HEAD") == head
    assert git(fleet, "status", "--short") == ""
    assert git(fleet, "rev-parse", "cheaper/web^") == head
    assert git(fleet, "diff", "--name-only", "HEAD", "cheaper/web") == "pool.yaml"
    text = git(fleet, "show", "cheaper/web:pool.yaml") + "\n"
    assert text == POOL.replace("[m7i]", "[m7i, m7a]")
    message = git(fleet, "log", "-1", "--format=%an <%ae>%n%B", "cheaper/web")
    assert message.startswith("Ada <ada@example.com>\nLet NodePool web use the family m7a\n")
    assert "$350/month" in message
    assert "Risk: low." in message
    assert report["advice"][0]["id"] == "web-m7a"
    again = failed(capsys, fleet, "--spot-max", "0", "--commit", "cheaper/web")
    assert 'branch "cheaper/web" exists' in again


def test_a_file_that_differs_from_its_commit_is_not_committed(capsys: Capture, fleet: Path) -> None:
    edit(fleet / "pool.yaml", "consolidateAfter: 30s", "consolidateAfter: 1m")
    assert main(["advise", *words(fleet, NEW, "--commit", "cheaper")]) == 1
    assert "pool.yaml: has uncommitted changes" in capsys.readouterr().err
    assert git(fleet, "branch", "--list", "cheaper") == ""


@pytest.mark.parametrize("name", ["-x", "a..b", "a b", "@{-1}"])
def test_a_branch_needs_a_valid_name(capsys: Capture, fleet: Path, name: str) -> None:
    """The name is checked before the search, whose catalog is missing here."""
    (fleet.parent / "catalog.json").unlink()
    assert "is not a valid name of a branch" in failed(capsys, fleet, f"--commit={name}")


def test_a_commit_needs_a_repository(capsys: Capture, fleet: Path) -> None:
    (fleet / ".git").rename(fleet.parent / "elsewhere")
    (fleet.parent / "catalog.json").unlink()
    assert "not in a git repository" in failed(capsys, fleet, "--commit", "cheaper")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--pick", "web-m7a"], "--pick: is only used to write or commit"),
        (["--ref", "HEAD", "--write"], "--write: cannot be used with --ref"),
        (["--workers", "0"], "--workers: 0 is not allowed"),
        (["--spot-max", "101"], "--spot-max: 101 is not allowed"),
        (["--wait-max", "soon"], "--wait-max"),
        (["--compute-plan-discount", "100"], "--compute-plan-discount: 100 is not allowed"),
    ],
)
def test_meaningless_arguments_are_rejected(
    capsys: Capture, fleet: Path, given: list[str], message: str
) -> None:
    assert message in failed(capsys, fleet, *given)


def test_a_missing_proposal_cannot_be_selected(capsys: Capture, fleet: Path) -> None:
    assert main(["advise", *words(fleet, NEW, "--write", "--pick", "web-m7b")]) == 1
    assert 'no proposal "web-m7b" was found (did you mean web-m7a?)' in capsys.readouterr().err


# Backtests.


def test_the_best_are_replayed_on_a_trace(capsys: Capture, fleet: Path) -> None:
    (fleet.parent / "trace.csv").write_text(TRACE)
    trace = (NEW, "--trace", str(fleet.parent / "trace.csv"), "--spot-max", "100")
    report = advised(capsys, fleet, *trace, "--backtests", "1")
    first, second, *_ = report["advice"]
    assert first["backtest"]["perMonth"] < 0
    assert first["backtest"]["base"] != first["backtest"]["head"]
    assert report["together"]["backtest"]["perMonth"] < first["backtest"]["perMonth"]
    assert second["backtest"] is None
    assert advised(capsys, fleet, *trace, "--backtests", "1", "--workers", "2") == report


def test_a_backtest_beyond_a_limit_refuses_a_change(capsys: Capture, fleet: Path) -> None:
    write_catalog(fleet, instance_type("m7i", 0.10), instance_type("m7i", 1.50, "4xlarge", 16))
    found = advised(capsys, fleet, NEW, *KARPENTER)
    assert "web-vcpus-lt-9" in per_month(found)
    (fleet.parent / "trace.csv").write_text(TRACE + "c,8000,1024,0,0,,LS,Succeeded,0,7200,30\n")
    trace = ("--trace", str(fleet.parent / "trace.csv"), "--backtests", "9")
    report = advised(capsys, fleet, NEW, *KARPENTER, *trace)
    assert refused(report)["web-vcpus-lt-9"] == "1 more pod of the trace would get no node"
    assert "web-vcpus-lt-9" not in per_month(report)


def test_changes_that_show_only_over_time_are_replayed(capsys: Capture, fleet: Path) -> None:
    edit(fleet / "pool.yaml", "consolidateAfter: 30s", "consolidateAfter: 3h")
    (fleet / "workload.yaml").unlink()
    (fleet.parent / "trace.csv").write_text(TRACE.replace("0,7200", "0,3600"))
    trace = ("--trace", str(fleet.parent / "trace.csv"), "--backtests", "9")
    report = advised(capsys, fleet, *trace)
    (first, *_) = report["advice"]
    assert first["id"].startswith("web-consolidate-after-")
    assert first["perMonth"] == first["backtest"]["perMonth"] < -1
    whole = first["backtest"]["base"]["dollarsPerMonth"]
    assert first["percent"] == pytest.approx(100 * first["perMonth"] / whole, abs=0.01)
    assert "consolidateAfter: 3h" in first["patch"]
    assert report["together"] is None
    few = advised(capsys, fleet, *trace[:2], "--backtests", "1")
    reasons = {one["what"]: one["reason"] for one in few["notTried"]}
    assert sum("--backtests" in reason for reason in reasons.values()) >= 2


def test_a_policy_forbids_changes_that_show_only_over_time(capsys: Capture, fleet: Path) -> None:
    frozen = NO_SPOT.replace("on-demand-only", "frozen").replace(
        "plan.nodeClaims.all(c, c.launch.capacityType != 'spot')", "plan.nodeClaims.size() == 0"
    )
    (fleet / "reconciler.yaml").write_text(SETTINGS + frozen)
    (fleet.parent / "trace.csv").write_text(TRACE)
    trace = ("--trace", str(fleet.parent / "trace.csv"), "--backtests", "9")
    report = advised(capsys, fleet, *trace)
    assert report["advice"] == []
    reasons = {one["what"]: one["reason"] for one in report["notTried"]}
    assert "policy frozen forbids it" in reasons["web-consolidate-after-0s"]


# NodePools that are split and merged.


def test_a_part_of_a_nodepool_is_moved_to_spot_where_not_all_may(
    capsys: Capture, fleet: Path
) -> None:
    report = advised(capsys, fleet, NEW, "--write", "--pick", "web-split-spot-6")
    assert "more than --spot-max 50" in refused(report)["web-spot"]
    assert per_month(report)["web-split-spot-6"] == pytest.approx(-3 * 0.06 * 730)
    assert git(fleet, "status", "--short") == "?? web-on-spot.yaml"
    text = (fleet / "web-on-spot.yaml").read_text()
    assert "cpu: '6'" in text
    assert "weight: 1" in text
    assert main(["validate", str(fleet)]) == 0


def test_nodepools_that_differ_by_requirements_are_merged(capsys: Capture, fleet: Path) -> None:
    """The one with the cheaper family is never used: the other one comes first by its weight."""
    other = POOL.replace("name: web", "name: apart").replace("[m7i]", "[m7a]")
    tainted = "      taints: [{key: api, effect: NoSchedule}]\n      requirements:"
    (fleet / "other.yaml").write_text(other.replace("      requirements:", tainted))
    assert "apart-merge-web" not in json.dumps(advised(capsys, fleet, NEW)), "the taints differ"
    (fleet / "other.yaml").write_text(other)
    (fleet / "pool.yaml").write_text(POOL.replace("  template:", "  weight: 50\n  template:"))
    commit_all(fleet)
    merge = ("--write", "--pick", "apart-merge-web")
    report = advised(capsys, fleet, NEW, "--spot-max", "0", *merge)
    assert per_month(report)["apart-merge-web"] == pytest.approx(-6 * 0.02 * 730)
    assert "[m7a, m7i]" in (fleet / "other.yaml").read_text()
    assert "cpu:" in (fleet / "pool.yaml").read_text()
    assert main(["validate", str(fleet)]) == 0


def test_a_preference_by_weight_is_dropped_where_the_others_have_none(
    capsys: Capture, fleet: Path
) -> None:
    (fleet / "pool.yaml").write_text(POOL.replace("  template:", "  weight: 50\n  template:"))
    cheaper = POOL.replace("name: web", "name: api").replace("[m7i]", "[m7a]")
    (fleet / "other.yaml").write_text(cheaper)
    commit_all(fleet)
    report = advised(capsys, fleet, NEW, "--spot-max", "0", "--write", "--pick", "web-weight-50")
    assert per_month(report)["web-weight-50"] == pytest.approx(-6 * 0.02 * 730)
    assert "weight: 50" in (fleet / "other.yaml").read_text()


# Constraints of workloads.

APART = """\
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector: {matchLabels: {app: api}}
      containers"""
CONSTRAINED = {
    "podAntiAffinity": (APART, "Deployment shop/api"),
    "nodeSelector": (
        "      nodeSelector: {karpenter.k8s.aws/instance-family: m7i}\n      containers",
        "Deployment shop/api",
    ),
    "topologySpread": (
        """\
      topologySpreadConstraints:
        - topologyKey: kubernetes.io/hostname
          maxSkew: 1
          minDomains: 6  # else the node that joins first takes all pods
          whenUnsatisfiable: DoNotSchedule
          labelSelector: {matchLabels: {app: api}}
      containers""",
        "Deployment shop/api",
    ),
}


@pytest.mark.parametrize("constraint", CONSTRAINED)
def test_a_constraint_that_costs_something_is_told_to_its_owner(
    capsys: Capture, fleet: Path, constraint: str
) -> None:
    """Six small pods fit on one node of the cheapest family, unless something keeps them apart."""
    text, owner = CONSTRAINED[constraint]
    edit(fleet / "workload.yaml", "      containers", text)
    edit(fleet / "workload.yaml", "cpu: 1500m", "cpu: 200m")
    (fleet / "pool.yaml").write_text(POOL.replace("[m7i]", "[m7i, m7a]"))
    report = advised(capsys, fleet, NEW, "--spot-max", "0")
    (found,) = report["workloads"]
    assert (found["constraint"], found["owner"], found["pods"]) == (constraint, owner, 6)
    assert found["perMonth"] < -1
    assert found["nodes"] == 1
    assert found["id"] not in per_month(report), "it is no change of the files"
    assert main(["advise", *words(fleet, NEW, "--spot-max", "0")]) == 0
    shown = capsys.readouterr().out
    assert "For the owners of workloads to decide:" in shown
    assert found["title"] in shown


def test_a_constraint_that_costs_nothing_is_not_told(capsys: Capture, fleet: Path) -> None:
    """Each pod fills a node, so nothing else is possible without the anti-affinity."""
    edit(fleet / "workload.yaml", "      containers", APART)
    report = advised(capsys, fleet, NEW, "--spot-max", "0")
    assert report["workloads"] == []
    assert "podAntiAffinity:Deployment/shop/api" in report["noEffect"]


@pytest.mark.parametrize("held_by", ["doNotDisrupt", "podDisruptionBudget"])
def test_what_holds_a_node_back_is_told_to_its_owner(
    capsys: Capture, fleet: Path, held_by: str
) -> None:
    """Six nodes run a small pod each; nothing may be evicted, so they are not consolidated."""
    items = [item for number in range(6) for item in a_running_node(number)]
    for item in items:
        if item["kind"] == "Pod":
            item["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m"
            item["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            if held_by == "doNotDisrupt":
                item["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    owner = "ReplicaSet shop/api"
    if held_by == "podDisruptionBudget":
        owner = "PodDisruptionBudget shop/none"
        items.append(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "none", "namespace": "shop"},
                "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "api"}}},
                "status": {"disruptionsAllowed": 0},
            }
        )
    snapshot = fleet.parent / "snapshot.json"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    report = advised(capsys, fleet, "--snapshot", str(snapshot), "--spot-max", "0")
    found = {one["constraint"]: one for one in report["workloads"]}
    assert found[held_by]["owner"] == owner
    assert found[held_by]["perMonth"] == pytest.approx(-5 * 0.10 * 730)


# Commitments.


def test_commitments_are_judged_by_the_fleet_at_rest(capsys: Capture, fleet: Path) -> None:
    report = advised(capsys, fleet, NEW, "--instance-plan-discount", "40")
    first, *_ = report["commitments"]
    assert (first["kind"], first["name"]) == ("EC2Instance", "m7i")
    assert first["commitment"] == pytest.approx(6 * 0.10 * 0.6)
    assert first["perMonth"] == pytest.approx(-6 * 0.10 * 0.4 * 730)
    assert (first["confidence"], first["basis"]) == ("low", "steady-state usage")
    reserved = next(one for one in report["commitments"] if one["kind"] == "ReservedInstances")
    assert (reserved["name"], reserved["count"]) == ("m7i.large", 6)


def test_a_commitment_that_is_there_is_not_bought_again(capsys: Capture, fleet: Path) -> None:
    plan = (
        "commitments:\n  savingsPlans:\n"
        "    - {type: Compute, commitment: 10, discountPercent: 27, usedElsewhere: 0}\n"
    )
    (fleet / "reconciler.yaml").write_text(SETTINGS + plan)
    assert advised(capsys, fleet)["commitments"] == []


def test_commitments_are_judged_by_usage_over_time(capsys: Capture, fleet: Path) -> None:
    """One pod runs for two hours and another one for half of them: one node is in use always."""
    (fleet / "workload.yaml").unlink()
    (fleet.parent / "trace.csv").write_text(TRACE)
    report = advised(capsys, fleet, "--trace", str(fleet.parent / "trace.csv"))
    first, *_ = report["commitments"]
    assert (first["kind"], first["replaces"]) == ("EC2Instance", 0.10)
    assert first["basis"] == "usage over 0.1 days"
    assert first["usedPercent"] == 100
    assert first["perMonth"] == pytest.approx(-0.10 * 0.37 * 730)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
