"""The GitHub Action: its steps run in an imitated job, against an imitated API of GitHub."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from reconciler.cli.main import main
from reconciler.initialization.pipelines import CI, ci_files
from tests.action.runner import ROOT, Job
from tests.cli.forgeapi import ForgeImitation, serving
from tests.repositories import commit_all, copy_small_web, git, init

BOT = "github-actions[bot]"
pytestmark = pytest.mark.skipif(
    not (ROOT / ".venv" / "bin" / "reconciler").exists(), reason="no installed command to run"
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two fleets, and a pull request that changes one of them."""
    folder = tmp_path / "repository"
    copy_small_web(folder / "fleets" / "web")
    shutil.copytree(ROOT / "examples" / "gpu", folder / "fleets" / "gpu")
    init(folder)
    commit_all(folder)
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(folder, "switch", "--quiet", "--create", "change")
    pods = folder / "fleets" / "web" / "workloads" / "frontend.yaml"
    pods.write_text(pods.read_text().replace("replicas: 2", "replicas: 9"))
    commit_all(folder)
    return folder


@pytest.fixture
def forge() -> ForgeImitation:
    return ForgeImitation()


@pytest.fixture
def job(repository: Path, forge: ForgeImitation, tmp_path: Path) -> Iterator[Job]:
    temp = tmp_path / "temp"
    temp.mkdir()
    with serving(forge) as url:
        yield Job(
            repository,
            temp,
            {
                "GITHUB_API_URL": url,
                "GITHUB_BASE_REF": "main",
                "GITHUB_EVENT_NAME": "pull_request",
                "TOKEN": forge.token,
            },
            {"pull_request": {"number": 7}},
        )


def test_one_job_plans_changed_fleets_and_comments(job: Job, forge: ForgeImitation) -> None:
    job.uses = lambda _action, _inputs: {"artifact-url": "https://github.example/artifact/1"}
    outputs = job.run({"stage": "all"})
    assert job.failed == "", job.log
    assert outputs["fleets"] == "fleets/web"
    assert float(outputs["monthly-difference"]) > 0
    assert outputs["unschedulable-pods"] == "0"
    assert outputs["exit-code"] == "0"
    assert outputs["comment-urls"] == "https://forge.example/comment/1"
    (body,) = forge.bodies(BOT)
    assert body.startswith("<!-- reconciler web ")
    assert "### Plan for web" in job.summary
    written = sorted(p.name for p in (job.temp / "reconciler-plans").iterdir())
    assert written == ["fleets-web.html", "fleets-web.json", "fleets-web.md"]


def test_with_a_trace_the_comment_contains_the_backtest(job: Job, forge: ForgeImitation) -> None:
    columns = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time"
    trace = job.temp / "a week.csv"
    trace.write_text(f"{columns},scheduled_time\na,1500,1024,0,0,0,120,30\n")
    job.run({"stage": "all", "trace": str(trace)})
    assert job.failed == "", job.log
    (body,) = forge.bodies(BOT)
    assert "Over 2 min, this change would have cost" in body


@pytest.mark.exhaustive
def test_two_stages_comment_on_a_pull_request_from_a_fork(
    job: Job, forge: ForgeImitation, tmp_path: Path
) -> None:
    token = job.environment.pop("TOKEN")
    job.run({})
    assert job.failed == "", job.log
    assert forge.calls == []
    head = "abc0" * 10
    run = {
        "id": 1, "head_sha": head, "head_branch": "change",
        "head_repository": {"owner": {"login": "mallory"}},
    }  # fmt: skip
    forge.pulls = [{"number": 9, "head": {"label": "mallory:change", "sha": head}}]
    second = Job(
        tmp_path,
        job.temp,
        {**job.environment, "GITHUB_EVENT_NAME": "workflow_run", "GITHUB_BASE_REF": "",
         "TOKEN": token},
        {"workflow_run": run},
    )  # fmt: skip
    second.run({"stage": "comment", "check": "true"})
    assert second.failed == "", second.log
    assert forge.written() == [
        "POST /repos/acme/fleet/issues/9/comments",
        "POST /repos/acme/fleet/check-runs",
    ]
    (check,) = forge.checks
    assert check["head_sha"] == head


def test_an_invalid_fleet_is_annotated_and_fails_the_job_after_the_artefact(job: Job) -> None:
    pool = job.checkout / "fleets" / "web" / "nodes" / "pool.yaml"
    pool.write_text(pool.read_text().replace("operator: In", "operator: Inn", 1))
    commit_all(job.checkout)
    used: list[str] = []

    def uses(action: str, _inputs: dict[str, str]) -> dict[str, str]:
        used.append(action.partition("@")[0])
        return {}

    job.uses = uses
    outputs = job.run({})
    assert job.failed == "verdict"
    assert outputs["exit-code"] == "3"
    assert "::error file=fleets/web/nodes/pool.yaml,line=" in job.log
    assert "actions/upload-artifact" in used


def repel_pods(repository: Path) -> None:
    """Commit a taint that no pod of a fleet tolerates."""
    pool = repository / "fleets" / "web" / "nodes" / "pool.yaml"
    taint = "taints: [{key: dedicated, value: shop, effect: NoSchedule}]\n      "
    pool.write_text(pool.read_text().replace("requirements:", f"{taint}requirements:", 1))
    commit_all(repository)


@pytest.mark.parametrize(("fail_on", "failed"), [("", "verdict"), ("none", "")])
def test_pods_that_a_change_makes_unschedulable_fail_the_job_unless_that_is_switched_off(
    job: Job, fail_on: str, failed: str
) -> None:
    """An input that is empty, as from a variable that is not set, switches nothing off."""
    repel_pods(job.checkout)
    outputs = job.run({"fail-on": fail_on})
    assert job.failed == failed, job.log
    assert int(outputs["unschedulable-pods"]) > 0
    assert outputs["exit-code"] == ("3" if failed else "0")
    assert "::notice" not in job.log


def test_a_pull_request_that_changes_no_fleet_has_nothing_to_post(
    job: Job, forge: ForgeImitation
) -> None:
    git(job.checkout, "switch", "--quiet", "--detach", "origin/main")
    (job.checkout / "README.md").write_text("a page\n")
    commit_all(job.checkout)
    outputs = job.run({"stage": "all"})
    assert job.failed == "", job.log
    assert outputs["fleets"] == ""
    assert forge.written() == []
    assert "No fleet changed." in job.summary


@pytest.mark.exhaustive
def test_a_missing_permission_fails_the_job_and_names_it(job: Job, forge: ForgeImitation) -> None:
    forge.may_write = False
    job.run({"stage": "all"})
    assert job.failed == "comment"
    assert "pull-requests: write" in job.log


def test_the_installation_checks_hashes() -> None:
    sys.path.insert(0, str(ROOT / ".github" / "action"))
    try:
        import install  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    first, second = install.commands(Path("/action"), Path("/venv"))
    assert first[-3:] == ["--require-hashes", "--requirement", "/action/requirements/action.lock"]
    assert second[-3:] == ["--no-deps", "--no-build-isolation", "/action"]


def test_every_used_action_is_pinned_by_commit() -> None:
    files = [ROOT / "action.yml", *(ROOT / ".github").rglob("*.yml")]
    lines = [line for file in files for line in file.read_text().splitlines() if "uses: " in line]
    assert lines
    assert [line for line in lines if len(line.split("@")[1].split()[0]) != 40] == []


@pytest.mark.parametrize("ci", [CI.GITHUB, CI.GITLAB])
def test_the_examples_are_what_init_writes(ci: CI) -> None:
    names = {".gitlab-ci.yml": "gitlab-ci.yml"}
    for file in ci_files(ci, "fleet", "v0.1.0"):
        name = file.path.rpartition("/")[2]
        example = ROOT / "examples" / "ci" / ci / names.get(name, name)
        assert example.read_text() == file.content
        YAML(typ="safe").load(file.content)


def test_the_hooks_of_pre_commit_run(capsys: pytest.CaptureFixture[str]) -> None:
    validate, lock = YAML(typ="safe").load(ROOT / ".pre-commit-hooks.yaml")
    fleet = str(ROOT / "examples" / "web")
    assert main([*validate["entry"].split()[1:], fleet]) == 0
    assert main([*lock["entry"].split()[1:], fleet]) == 3
    assert "reconciler.lock does not exist" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_gitlab_component_plans_and_comments(
    repository: Path, forge: ForgeImitation, tmp_path: Path
) -> None:
    import os
    import subprocess

    forge.me = "bot"
    spec, job = YAML(typ="safe").load_all(ROOT / "templates" / "plan.yml")
    assert spec["spec"]["inputs"]["fail-on"]["default"] == "unschedulable"
    script = "\n".join(job["reconciler-plan"]["script"])
    with serving(forge) as url:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=repository,
            env={
                "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "CI_API_V4_URL": url,
                "CI_PROJECT_ID": "42",
                "CI_MERGE_REQUEST_IID": "5",
                "CI_MERGE_REQUEST_DIFF_BASE_SHA": git(repository, "rev-parse", "origin/main"),
                "GITLAB_TOKEN": forge.token,
                "FLEETS": "fleets/web fleets/gpu",
                "SNAPSHOT": "",
                "FAIL_ON": "unschedulable",
                "CHECK": "true",
                "CI_COMMIT_SHA": "d" * 40,
                "CI_PIPELINE_ID": "12",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 2 fleets planned" in done.stdout
    assert forge.written() == [
        "POST /projects/42/merge_requests/5/notes",
        f"POST /projects/42/statuses/{'d' * 40}",
    ]
    (status,) = forge.checks
    assert status["pipeline_id"] == 12
    assert status["description"].startswith("This change: +$")


def test_the_workflow_of_atlantis_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = YAML(typ="safe").load(ROOT / "examples" / "ci" / "atlantis" / "atlantis.yaml")
    shutil.copytree(ROOT / "examples" / "web", tmp_path / "fleet")
    monkeypatch.chdir(tmp_path / file["projects"][0]["dir"])
    for step in file["workflows"]["reconciler"]["plan"]["steps"]:
        words = step["run"].replace('"$PLANFILE"', str(tmp_path / "plan")).split()
        assert main(words[1:]) == 0
    assert (tmp_path / "plan").is_file()
