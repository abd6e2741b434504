"""`reconciler ci`: the fleets that a pull request changes, each compared with its base."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.repositories import commit_all, git, init

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the fleets ``a`` and ``b`` on main, on another branch."""
    for name in ("GITHUB_BASE_REF", "GITHUB_ACTIONS", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY",
                 "CI_MERGE_REQUEST_DIFF_BASE_SHA", "KUBECONFIG"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "repository"
    for name in ("a", "b"):
        shutil.copytree(EXAMPLES / "web", folder / name)
    init(folder)
    commit_all(folder)
    git(folder, "switch", "--quiet", "--create", "change")
    monkeypatch.chdir(folder)
    return folder


def touch(fleet: Path) -> None:
    (fleet / "notes.md").write_text("changed\n")


def test_only_fleets_with_changed_files_are_planned(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touch(repository / "a")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    assert "1 of 2 fleets planned compared with main" in capsys.readouterr().out
    assert sorted(p.name for p in Path("plans").iterdir()) == ["a.html", "a.json", "a.md"]
    assert json.loads(Path("plans/a.json").read_text())["atRest"]["perMonth"] == 0


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


def test_several_fleets_are_planned_at_once(repository: Path) -> None:
    touch(repository / "a")
    touch(repository / "b")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans", "--jobs", "2"]) == 0
    assert sorted(p.stem for p in Path("plans").glob("*.json")) == ["a", "b"]


def test_a_new_fleet_is_planned_without_a_base(repository: Path) -> None:
    shutil.copytree(EXAMPLES / "web", repository / "c")
    commit_all(repository)
    assert main(["ci", "--base", "main", "--out", "plans"]) == 0
    assert json.loads(Path("plans/c.json").read_text()).get("atRest") is None


def test_a_fleet_removed_by_the_branch_has_no_plan(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(repository / "b")
    commit_all(repository)
    assert main(["ci", "a", "b", "--base", "main", "--out", "plans"]) == 0
    assert "0 of 2 fleets planned" in capsys.readouterr().out


def test_a_fleet_whose_plan_fails_is_not_counted_as_planned(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (repository / "a" / "reconciler.yaml").open("a") as file:
        file.write("cluster: kubeconfig\nkubernetes: {timeout: 1s}\n")
    commit_all(repository)
    code = main(["ci", "a", "--base", "main", "--out", "plans", "--snapshot", "none.json"])
    out, err = capsys.readouterr()
    assert code == 1
    assert "0 of 1 fleet planned compared with main\n  a: exit code 1\n" in out
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
    shutil.copytree(EXAMPLES / "web", repository / "a")
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
    assert "\n  a: +0.00 $/month, exit code 3 plans/a.json\n" in out
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
