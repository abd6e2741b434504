"""`reconciler ci`: the fleets that a pull request changes, each compared with its base."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler._resources import resource_path
from reconciler.cli.main import main
from reconciler.cli.pullrequest.draft import marker_of
from reconciler.cli.pullrequest.failure import FailureReason, PlanFailure, with_reasons
from reconciler.cli.pullrequest.fleets import file_stems
from reconciler.model.errors import UsageError
from tests.cli.forgeapi import ForgeImitation, job_with
from tests.placement.builders import a_node
from tests.repositories import commit_all, copy_small_web, git, init

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the fleets ``a`` and ``b`` on main, on another branch."""
    for name in ("GITHUB_BASE_REF", "GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY",
                 "CI_MERGE_REQUEST_DIFF_BASE_SHA", "KUBECONFIG"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "repository"
    for name in ("a", "b"):
        copy_small_web(folder / name)
    init(folder)
    commit_all(folder)
    git(folder, "switch", "--quiet", "--create", "change")
    monkeypatch.chdir(folder)
    return folder


def touch(fleet: Path) -> None:
    (fleet / "notes.md").write_text("changed\n")


def test_a_repository_without_a_fleet_folder_is_not_one_without_changes(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for settings in list(repository.glob("*/reconciler.yaml")):
        settings.unlink()
    commit_all(repository)
    git(repository, "branch", "--force", "main")
    summary = repository / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    out, err = capsys.readouterr()
    assert "0 of 0 fleets planned" in out
    reason = "no folder here has a reconciler.yaml; pass the fleet folders as FLEET"
    assert f"Warning: {reason}" in err
    assert summary.read_text() == f"No fleet found: {reason}.\n"


def test_only_fleets_with_changed_files_are_planned(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touch(repository / "a")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    assert "1 of 2 fleets planned, compared with main" in capsys.readouterr().out
    assert sorted(p.name for p in Path("plans").iterdir()) == ["a.html", "a.json", "a.md"]
    assert json.loads(Path("plans/a.json").read_text())["atRest"]["perMonth"] == 0


def test_a_fleet_with_uncommitted_changes_is_named_because_commits_are_compared(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    out, err = capsys.readouterr()
    assert "0 of 2 fleets planned, compared with main: no commit changes a fleet\n" in out
    assert "uncommitted" not in err

    settings = repository / "a" / "reconciler.yaml"
    settings.write_text(f"{settings.read_text()}# a comment\n")
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    assert capsys.readouterr().err == (
        "Note: a has uncommitted changes, and `ci` compares commits; commit them, or run "
        "`reconciler plan --base main` there\n"
    )

    touch(repository / "b")
    git(repository, "add", "b")
    git(repository, "commit", "--quiet", "--message", "notes")
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    out, err = capsys.readouterr()
    assert "1 of 2 fleets planned, compared with main\n" in out
    assert "Note: a has uncommitted changes" in err


def test_changes_on_main_after_the_branch_point_do_not_count(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(repository, "switch", "--quiet", "main")
    touch(repository / "b")
    commit_all(repository)
    git(repository, "switch", "--quiet", "change")
    touch(repository / "a")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    assert sorted(p.stem for p in Path("plans").glob("*.json")) == ["a"]


def test_a_fleet_that_main_got_after_the_branch_point_is_not_removed(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(repository, "switch", "--quiet", "main")
    shutil.copytree(EXAMPLES / "batch-spot", repository / "late")
    commit_all(repository)
    git(repository, "switch", "--quiet", "change")
    touch(repository / "a")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    assert "no longer" not in capsys.readouterr().out
    assert sorted(p.stem for p in Path("plans").glob("*.json")) == ["a"]


def test_several_fleets_are_planned_at_once(repository: Path) -> None:
    touch(repository / "a")
    touch(repository / "b")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans", "--jobs", "2"]) == 0
    assert sorted(p.stem for p in Path("plans").glob("*.json")) == ["a", "b"]


def test_a_new_fleet_begins_with_its_steady_state(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_small_web(repository / "c")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    assert "c: New fleet: " in capsys.readouterr().out
    plan = json.loads(Path("plans/c.json").read_text())
    assert plan["summary"]["perMonth"] == plan["atRest"]["perMonth"] > 0
    (_, _, line, *_) = Path("plans/c.md").read_text().splitlines()
    assert line.startswith(f"**New fleet: {plan['atRest']['after']['nodes']} node")
    assert "/month in steady state" in line


POLICY = """\
policies:
  - name: cheap
    expression: plan.cost.after < 0.01
    message: too expensive
"""


@pytest.fixture
def prod(repository: Path) -> Path:
    """The fleet ``a``, which has a name of its own and a policy that forbids nodes, on main."""
    git(repository, "switch", "--quiet", "main")
    settings = repository / "a" / "reconciler.yaml"
    settings.write_text(settings.read_text().replace("fleet: web", "fleet: prod") + POLICY)
    commit_all(repository)
    git(repository, "switch", "--quiet", "-C", "change")
    return repository / "a"


@pytest.mark.parametrize("named", [(), ("a",)])
def test_a_fleet_removed_by_the_branch_is_a_finding_with_its_cost(
    named: tuple[str, ...], prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(prod)
    commit_all(prod.parent)
    code = main(["ci", *named, "--base", "main", "--out", "plans"])
    out, err = capsys.readouterr()
    assert code == (3 if named else 0)
    assert 'warning: fleet "prod" is no longer in "a" or elsewhere; its nodes go' in out
    assert ("a: fleet prod is gone" in err) is bool(named)
    plan = json.loads(Path("plans/a-removed.json").read_text())
    assert plan["summary"]["text"][0].startswith("This change removes the fleet: −$")
    assert plan["atRest"]["perMonth"] < -40
    assert plan["atRest"]["after"]["nodes"] == 0
    assert "fleet-removed" in str(plan["diagnostics"])


SMALL = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers: [{name: api, image: api, resources: {requests: {cpu: "3", memory: 1Gi}}}]
"""


@pytest.fixture
def small(repository: Path) -> Path:
    """The fleet ``a`` with two pods only, on main."""
    git(repository, "switch", "--quiet", "main")
    shutil.rmtree(repository / "a" / "workloads")
    (repository / "a" / "workloads.yaml").write_text(SMALL)
    commit_all(repository)
    git(repository, "switch", "--quiet", "-C", "change")
    return repository / "a"


@pytest.mark.parametrize("files", [("pool.yaml",), ("pool.yaml", "class.yaml")])
def test_the_deletion_of_every_node_pool_says_which_nodes_go_and_which_pods_have_no_node(
    files: tuple[str, ...], small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files:
        (small / "nodes" / name).unlink()
    commit_all(small.parent)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    out = capsys.readouterr().out
    assert 'fleet "web" has no NodePool any more (deleted: general); its nodes go' in out
    plan = json.loads(Path("plans/a.json").read_text())
    first, *others = plan["summary"]["text"]
    before = plan["atRest"]["before"]
    nodes = before["nodes"]
    goes = {1: "its node is removed", 2: "both nodes are removed"}.get(
        nodes, f"all {nodes} nodes are removed"
    )
    assert first.startswith(f"This change deletes every NodePool: {goes}; 2 pods then have no node")
    assert plan["summary"]["perMonth"] == pytest.approx(-before["perHour"] * 730)
    assert not any("no node is replaced" in line or "cannot be removed" in line for line in others)
    assert first in out
    text = Path("plans/a.md").read_text()
    for part in ("By namespace", "Cost by namespace", "NodePools in steady state", "autoscaler"):
        assert part not in text, "nodes stay there while their pods have no other"
    more = ["--base", "main", "--fail-on", "unschedulable"]
    assert main(["plan", "a", *more, "-o", "json"]) == 3, "as the job with `fail-on`"
    assert json.loads(capsys.readouterr().out)["summary"]["text"][0] == first


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("unscheduleable", 1, "(did you mean unschedulable?)"),
        ("own-rule", 0, ""),
        ("rule-of-another-fleet", 0, ""),
    ],
)
def test_a_name_in_fail_on_that_no_fleet_has_a_policy_of_is_an_error(
    name: str, code: int, error: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job fails instead of passing every change; another fleet may have the policy."""
    other = small.parent / "b"
    for folder, policy in ((small, "own-rule"), (other, "rule-of-another-fleet")):
        rules = f'policies: [{{name: {policy}, severity: warning, expression: "true"}}]\n'
        with (folder / "reconciler.yaml").open("a") as settings:
            settings.write(rules)
    commit_all(small.parent)
    git(small.parent, "branch", "--force", "main")
    (small / "workloads.yaml").write_text(SMALL.replace("replicas: 2", "replicas: 3"))
    commit_all(small.parent)
    assert main(["ci", "--base", "main", "--out", "plans", "--fail-on", name]) == code
    captured = capsys.readouterr()
    assert "1 of 2 fleets planned" in captured.out
    assert captured.err == (f'Error: --fail-on: there is no policy "{name}" {error}\n' * code)
    assert Path("plans/a.md").is_file()


BROKEN = {
    "an unknown field": ("nodes/pool.yaml", "consolidateAfter", "consolidateAftr"),
    "broken YAML": ("nodes/pool.yaml", "  template:", "  template: ["),
    "a class that is missing": ("nodes/class.yaml", "name: default", "name: other"),
    "broken settings": ("reconciler.yaml", "fleet: web", "fleet: ["),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fleet_without_a_plan_has_a_comment_that_says_why(
    name: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, before, after = BROKEN[name]
    path = small / file
    path.write_text(path.read_text().replace(before, after))
    commit_all(small.parent)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 3
    failure = json.loads(Path("plans/a.json").read_text())
    schema = json.loads(Path(resource_path("schemas", "planfailure.v1.json")).read_bytes())
    jsonschema.validate(failure, schema)
    assert (failure["fleet"], failure["folder"], failure["cause"]) == ("web", "a", "files")
    assert failure["errors"] >= 1
    (posted,) = posted_comments(monkeypatch, "plans/")
    marker, _, title, _, first, *_ = posted.split("\n")
    assert marker == marker_of("web", "a"), "in the place of the comment with the plan"
    assert title == "### No plan for web"
    assert first.startswith("**No plan: ")
    assert failure["reasons"][0]["place"].split(":")[0] in posted
    assert "`run` stays at the last valid commit" in posted


def test_a_plan_that_fails_for_want_of_an_input_says_so_in_its_comment(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(small)
    commit_all(small.parent)
    assert main(["ci", "--base", "main", "--out", "plans", "--snapshot", "gone.json"]) == 1
    (posted,) = posted_comments(monkeypatch, "plans/")
    assert "**No plan: gone.json: " in posted
    assert "an input of the plan cannot be read" in posted


def test_names_in_a_failure_are_not_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = FailureReason("a|b.yaml:1:1", "<img src=x> @team [link](https://evil.example)")
    failure = with_reasons(PlanFailure(fleet="x<!--"), [reason] * 60)
    assert len(failure.reasons) == 50
    (tmp_path / "x.json").write_bytes(failure.to_json())
    (posted,) = posted_comments(monkeypatch, str(tmp_path / "x.json"))
    assert "<img" not in posted
    assert "@team" not in posted
    assert "](https" not in posted
    assert posted.count("<!--") == 1
    assert "And 40 more errors" in posted


def posted_comments(monkeypatch: pytest.MonkeyPatch, *files: str) -> list[str]:
    """Return the comments after posting files on a pull request without any."""
    forge = ForgeImitation()
    with job_with(forge, monkeypatch):
        words = ["--repository", "acme/fleet", "--pull-request", "7"]
        assert main(["comment", "github", *files, *words]) == 0
    return forge.bodies("github-actions[bot]")


def test_an_empty_folder_beside_a_base_without_node_pools_stays_an_error(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(repository, "switch", "--quiet", "main")
    (repository / "a" / "nodes" / "pool.yaml").unlink()
    commit_all(repository)
    git(repository, "switch", "--quiet", "-C", "change")
    touch(repository / "a")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 3
    assert "an empty fleet is not planned" in capsys.readouterr().out


def test_a_removed_fleet_names_the_nodes_of_the_snapshot_that_go(
    prod: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [*a_node("n1", pool="general"), *a_node("n2", pool="general"), *a_node("n3", pool="x")]
    (tmp_path / "snapshot.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    shutil.rmtree(prod)
    commit_all(prod.parent)
    more = ("--snapshot", str(tmp_path / "snapshot.json"))
    main(["ci", "--base", "main", "--out", "plans", *more])
    assert "its nodes go: n1, n2 (" in capsys.readouterr().out


@pytest.mark.parametrize("named", [(), ("a",), ("moved/here",)])
def test_a_moved_fleet_is_compared_with_its_base_and_keeps_its_policies(
    named: tuple[str, ...], prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prod.parent / "moved").mkdir()
    git(prod.parent, "mv", "a", "moved/here")
    settings = prod.parent / "moved" / "here" / "reconciler.yaml"
    settings.write_text(settings.read_text().replace(POLICY, ""))
    commit_all(prod.parent)
    assert main(["ci", *named, "--base", "main", "--out", "plans"]) == 3
    plan = json.loads(Path("plans/moved-here.json").read_text())
    assert plan["atRest"]["perMonth"] == 0
    assert [policy["name"] for policy in plan["policies"]] == ["cheap"]
    err = capsys.readouterr().err
    assert "policy cheap forbids this plan" in err
    assert ("fleet prod has moved here from a" in err) is (named == ("a",))


def rename_folder_of_unnamed_fleet(prod: Path) -> None:
    """Leave out the name of the fleet on `main`, and rename its folder to `c` in the work tree."""
    settings = prod / "reconciler.yaml"
    settings.write_text(settings.read_text().replace("fleet: prod\n", ""))
    commit_all(prod.parent)
    git(prod.parent, "branch", "--force", "main")
    git(prod.parent, "mv", "a", "c")


def test_a_fleet_with_the_name_of_its_folder_is_known_by_its_files(
    prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its policies stay, and it is named that another name is another fleet for `apply`."""
    rename_folder_of_unnamed_fleet(prod)
    moved = prod.parent / "c" / "reconciler.yaml"
    moved.write_text(moved.read_text().replace(POLICY, ""))
    commit_all(prod.parent)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 3
    out, err = capsys.readouterr()
    assert "c: policy cheap forbids this plan" in err
    assert "no longer in" not in out
    plan = json.loads(Path("plans/c.json").read_text())
    assert plan["atRest"]["perMonth"] == 0
    (finding,) = [one for one in plan["diagnostics"] if one["code"] == "fleet-renamed"]
    assert finding["message"].startswith('Fleet "a" is now named "c", as its folder is: apply and')
    assert finding["hint"] == "write `fleet: a` into reconciler.yaml"
    capsys.readouterr()
    for folder, path in ((prod.parent, "c"), (prod.parent / "c", ".")):
        with chdir(folder):
            assert main(["plan", path, "--base", "main", "-o", "json"]) == 3
        alone = json.loads(capsys.readouterr().out)
        assert alone["atRest"] == plan["atRest"]
        assert "fleet-new" not in [one["code"] for one in alone["diagnostics"]]
        with chdir(folder):
            assert main(["simulate", path, "--base", "main", "-o", "json"]) == 0
        simulated = capsys.readouterr()
        assert "the fleet is new" not in simulated.err
        assert json.loads(simulated.out)["merge"] is not None


def test_a_folder_with_other_files_is_another_fleet(
    prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename_folder_of_unnamed_fleet(prod)
    for file in (prod.parent / "c").rglob("*.yaml"):
        file.write_text(f"# another fleet\n{file.read_text().replace(POLICY, '')}")
    commit_all(prod.parent)
    main(["ci", "--base", "main", "--out", "plans"])
    out = capsys.readouterr().out
    assert "c: New fleet: " in out
    assert 'fleet "a" is no longer in "a" or elsewhere' in out


@pytest.mark.parametrize("place", [".hidden", "node_modules/a", "b/inside"])
def test_a_fleet_cannot_be_moved_out_of_sight(
    place: str, prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prod.parent / place).parent.mkdir(exist_ok=True)
    git(prod.parent, "mv", "a", place)
    commit_all(prod.parent)
    main(["ci", "--base", "main", "--out", "plans"])
    assert 'fleet "prod" is no longer in "a" or elsewhere' in capsys.readouterr().out


def test_a_renamed_fleet_is_a_finding_and_keeps_the_policies_of_its_folder(
    prod: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = prod / "reconciler.yaml"
    settings.write_text(settings.read_text().replace("fleet: prod", "fleet: prod2"))
    commit_all(prod.parent)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 3
    out, err = capsys.readouterr()
    assert 'fleet "prod" is no longer in "a" or elsewhere' in out
    assert "a: policy cheap forbids this plan" in err


def test_two_fleets_that_swap_their_folders_are_compared_with_themselves(prod: Path) -> None:
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        git(prod.parent, "mv", old, new)
    commit_all(prod.parent)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 3
    plans = {name: json.loads(Path(f"plans/{name}.json").read_text()) for name in ("a", "b")}
    assert [p["name"] for p in plans["b"]["policies"]] == ["cheap"]
    assert plans["a"].get("policies", []) == []
    assert {plan["atRest"]["perMonth"] for plan in plans.values()} == {0}


def test_fleets_whose_folders_differ_in_special_characters_have_files_of_their_own(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the plan of one takes the place of the other's, and out of the comment."""
    for folder in ("prod/a", "prod-a", "prod~a", "Prod/A"):
        copy_small_web(repository / folder)
        settings = repository / folder / "reconciler.yaml"
        settings.write_text(settings.read_text().replace("fleet: web", f"fleet: w{len(folder)}"))
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    assert "4 of 6 fleets planned" in capsys.readouterr().out
    assert len(list(Path("plans").glob("*.json"))) == 4


@given(st.sets(st.text(alphabet="ab/-~.A \u00e9", min_size=1, max_size=6), min_size=2, max_size=8))
def test_different_folders_have_different_file_names(folders: set[str]) -> None:
    stems = file_stems(sorted(folders))
    assert len({stem.casefold() for stem in stems}) == len(folders)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", stem) and stem[0] not in "-." for stem in stems)


def test_a_folder_that_imitates_the_digest_of_another_is_refused() -> None:
    first, second = file_stems(["prod/a", "prod~a"])
    with pytest.raises(UsageError, match="same name"):
        file_stems(["prod/a", "prod~a", first])
    assert first != second
    assert file_stems(["prod/a", "dev"]) == ["prod-a", "dev"]
    assert len(file_stems(["x/" * 200])[0]) < 200


def test_a_fleet_whose_plan_fails_is_not_counted_as_planned(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (repository / "a" / "reconciler.yaml").open("a") as file:
        file.write("cluster: kubeconfig\nkubernetes: {timeout: 1s}\n")
    commit_all(repository)
    code = main(["ci", "a", "--base", "main", "--out", "plans", "--snapshot", "none.json"])
    out, err = capsys.readouterr()
    assert code == 1
    assert "0 of 1 fleet planned, compared with main\n  a: exit code 1\n" in out
    assert "none.json: No such file" in err


def test_a_fleet_that_never_existed_is_an_error(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ci", "wbe", "--base", "main"]) == 1
    assert 'folder "wbe" does not exist' in capsys.readouterr().err


def test_an_unknown_base_is_an_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ci", "--base", "nowhere"]) == 1
    assert "commit nowhere not found" in capsys.readouterr().err


def test_a_base_without_a_common_ancestor_names_the_depth_of_the_checkout(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(repository, "switch", "--quiet", "--orphan", "other")
    copy_small_web(repository / "a")
    commit_all(repository)
    assert main(["ci", "--base", "main"]) == 1
    assert "fetch-depth: 0" in capsys.readouterr().err


def test_a_policy_of_the_base_forbids_the_plan(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = (
        "policies:\n"
        "  - name: cheap\n"
        "    expression: plan.cost.after < 0.01\n"
        "    message: too expensive\n"
    )
    git(repository, "switch", "--quiet", "main")
    with (repository / "a" / "reconciler.yaml").open("a") as file:
        file.write(rule)
    commit_all(repository)
    git(repository, "switch", "--quiet", "--create", "second")
    touch(repository / "a")
    commit_all(repository)
    code = main(["ci", "--base", "main", "--out", "plans"])
    out, err = capsys.readouterr()
    assert code == 3, out + err
    assert "policy cheap forbids this plan" in err
    headline = json.loads(Path("plans/a.json").read_text())["summary"]["text"][0]
    assert f"\n  a: {headline} (exit code 3, plans/a.json)\n" in out
    assert Path("plans/a.json").is_file()


@pytest.mark.parametrize(("more", "warns"), [((), True), (("--snapshot-max-age", "87600h"), False)])
def test_the_maximum_age_of_a_snapshot_is_passed_on(
    repository: Path, tmp_path: Path, more: tuple[str, ...], *, warns: bool
) -> None:
    at = (datetime.now(UTC) - timedelta(days=30)).isoformat()
    capture = {"apiVersion": "reconciler/v1", "kind": "SnapshotCapture", "at": at}
    place = tmp_path / "cluster.json"
    place.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [capture]}))
    touch(repository / "a")
    commit_all(repository)
    out = tmp_path / "plans"
    main(["ci", "--base", "main", "--snapshot", str(place), *more, "--out", str(out)])
    plans = [json.loads(path.read_text()) for path in out.glob("*.json")]
    assert plans
    assert all(("old-snapshot" in str(plan["diagnostics"])) is warns for plan in plans)


def test_a_trace_is_replayed_for_each_fleet_of_the_base(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time"
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{columns},scheduled_time\na,1500,1024,0,0,0,600,30\n")
    touch(repository / "a")
    shutil.copytree(repository / "a", repository / "new")
    commit_all(repository)
    more = ("--trace", str(trace), "--out", "plans", "--jobs", "1")
    assert main(["ci", *more]) == 1
    assert "--trace: needs a base to compare with" in capsys.readouterr().err
    assert main(["ci", "--base", "main", *more]) == 0
    plans = {name: json.loads(Path(f"plans/{name}.json").read_text()) for name in ("a", "new")}
    assert plans["a"]["backtest"]["difference"]["dollars"] == 0
    assert "backtest" not in plans["new"]
    sentence = "Over 10 min, this change would have cost the same"
    assert sentence in Path("plans/a.md").read_text()
    assert sentence in Path("plans/a.html").read_text()
