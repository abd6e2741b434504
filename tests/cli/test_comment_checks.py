"""`reconciler comment --check`: the first line of each plan as the title of a check."""

from __future__ import annotations

import contextlib
import html
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from reconciler.adapters.forge import TITLE_MAX
from reconciler.cli.main import main
from reconciler.plan.approval import encode_saved_plan, read_saved_plan
from tests.cli.forgeapi import ForgeImitation, job_with

ROOT = Path(__file__).resolve().parents[2]
NOW = "2026-01-05T10:00:00Z"
POLICY = """\
policies:
  - name: one-node
    expression: size(plan.actions) <= 1
    message: more than one action
"""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Plans: one that is allowed, one that a policy forbids, and one with unschedulable pods."""
    folder = tmp_path_factory.mktemp("plans")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    broken = folder / "broken"
    shutil.copytree(ROOT / "examples" / "web", broken)
    pool = broken / "nodes" / "pool.yaml"
    pool.write_text(pool.read_text().replace('cpu: "200"', 'cpu: "1"'))
    fleets = {
        "allowed": [str(ROOT / "examples" / "web")],
        "forbidden": [str(ROOT / "examples" / "web"), "--policy", str(policy)],
        "unschedulable": [str(broken)],
    }
    found = {}
    for name, words in fleets.items():
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            main(["plan", *words, "--now", NOW, "--set", "cluster=none", "-o", "json"])
        found[name] = str(folder / f"{name}.json")
        Path(found[name]).write_text(output.getvalue())
    return found


@pytest.fixture
def forge() -> ForgeImitation:
    return ForgeImitation()


@pytest.fixture(autouse=True)
def url(forge: ForgeImitation, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with job_with(forge, monkeypatch) as served:
        yield served


def comment(service: str, *words: str) -> int:
    where = ["--repository", "acme/fleet", "--pull-request", "7"]
    return main(["comment", service, *words, *where, "--check"])


def set_event(monkeypatch: pytest.MonkeyPatch, path: Path, name: str, data: Any) -> None:
    path.write_text(json.dumps(data))
    monkeypatch.setenv("GITHUB_EVENT_NAME", name)
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(path))
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/fleet")


def test_the_title_of_the_check_is_the_first_line_of_the_comment(
    forge: ForgeImitation, plans: dict[str, str]
) -> None:
    assert comment("github", plans["allowed"]) == 0
    (check,) = forge.checks
    (body,) = forge.bodies("github-actions[bot]")
    title = check["output"]["title"]
    assert f"\n\n**{title}**\n\n" in html.unescape(body.replace("\\", ""))
    assert check["name"] == "reconciler plan: web"
    assert check["head_sha"] == forge.head
    assert (check["status"], check["conclusion"]) == ("completed", "success")
    assert check["output"]["summary"].startswith("### Plan for web")


def test_a_plan_without_the_flag_reports_no_check(
    forge: ForgeImitation, plans: dict[str, str]
) -> None:
    words = ["comment", "github", plans["allowed"], "--repository", "a/b", "--pull-request", "7"]
    assert main(words) == 0
    assert forge.checks == []


@pytest.mark.parametrize(
    ("plan", "conclusion", "state"),
    [
        ("allowed", "success", "success"),
        ("forbidden", "failure", "failed"),
        ("unschedulable", "neutral", "success"),
    ],
)
def test_the_outcome_is_what_the_plan_allows(
    forge: ForgeImitation, plans: dict[str, str], plan: str, conclusion: str, state: str
) -> None:
    assert comment("github", plans[plan]) == 0
    assert comment("gitlab", plans[plan], "--author", "bot") == 0
    github, gitlab = forge.checks
    assert github["conclusion"] == conclusion
    assert gitlab["state"] == state
    assert gitlab["description"] == github["output"]["title"]


def test_in_a_pull_request_the_check_is_on_its_head_and_not_on_the_merge_commit(
    forge: ForgeImitation, plans: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    event = {"pull_request": {"number": 7, "head": {"sha": "ef" * 20}}}
    set_event(monkeypatch, tmp_path / "event.json", "pull_request", event)
    monkeypatch.setenv("GITHUB_SHA", "0" * 40)
    assert main(["comment", "github", plans["allowed"], "--check"]) == 0
    (check,) = forge.checks
    assert check["head_sha"] == "ef" * 20
    # The event is about another pull request than the one that is named.
    words = ["comment", "github", plans["allowed"], "--check", "--pull-request", "8"]
    assert main(words) == 0
    assert forge.checks[1]["head_sha"] == forge.head


def test_a_pipeline_of_a_merged_result_reports_on_the_source_branch(
    forge: ForgeImitation, plans: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "CI_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_IID": "5",
        "CI_COMMIT_SHA": "d" * 40,
        "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": "e" * 40,
        "CI_PIPELINE_ID": "77",
    }.items():
        monkeypatch.setenv(name, value)
    assert main(["comment", "gitlab", plans["allowed"], "--author", "bot", "--check"]) == 0
    assert f"POST /projects/42/statuses/{'e' * 40}" in forge.written()
    assert forge.checks[0]["pipeline_id"] == 77


def edited(plan: str, to: Path, **fields: Any) -> str:
    """Save a plan with other fields, as somebody could who writes the digest as well."""
    changed = structs.replace(read_saved_plan(Path(plan).read_bytes(), plan), **fields)
    to.write_bytes(encode_saved_plan(changed))
    return str(to)


def test_two_fleets_of_one_name_have_a_check_each(
    forge: ForgeImitation, plans: dict[str, str], tmp_path: Path
) -> None:
    plan = read_saved_plan(Path(plans["allowed"]).read_bytes(), "")
    elsewhere = structs.replace(plan.revision, path="elsewhere")
    other = edited(plans["allowed"], tmp_path / "other.json", revision=elsewhere)
    assert comment("github", plans["allowed"], other) == 0
    first, second = (check["name"] for check in forge.checks)
    assert first != second
    assert first.startswith("reconciler plan: web (")


def test_a_long_title_is_cut_and_shows_no_markup(
    forge: ForgeImitation, plans: dict[str, str], tmp_path: Path
) -> None:
    (policy,) = read_saved_plan(Path(plans["forbidden"]).read_bytes(), "").policies
    hostile = structs.replace(policy, name="`x`\n\x1b[31m" + "y" * 400)
    long = edited(plans["forbidden"], tmp_path / "long.json", policies=(hostile,))
    assert comment("github", long) == 0
    title = forge.checks[0]["output"]["title"]
    assert len(title) == TITLE_MAX
    assert not {"`", "\n", "\x1b"} & set(title)


def test_a_missing_permission_is_named_after_the_comment_is_posted(
    forge: ForgeImitation, plans: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    forge.may_check = False
    assert comment("github", plans["allowed"]) == 1
    assert len(forge.comments) == 1
    assert "checks: write" in capsys.readouterr().err


def test_markdown_has_no_title_for_a_check(
    forge: ForgeImitation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "web.md"
    page.write_text("### Plan\n")
    assert comment("github", str(page)) == 1
    assert "pass plans in JSON, or leave out --check" in capsys.readouterr().err
    assert forge.comments == []
