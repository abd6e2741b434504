"""Attacks by which a pull request makes `comment` post, overwrite or send what it should not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reconciler.adapters.forge import TITLE_MAX
from reconciler.cli.main import main
from reconciler.cli.pullrequest.draft import CHECK_NAME_MAX
from reconciler.cli.pullrequest.failure import FailureReason, PlanFailure
from reconciler.plan.approval import encode_saved_plan
from tests.cli.forgeapi import ForgeImitation, job_with, serving
from tests.hostile.test_output import assert_inert_markdown, hostile, payloads
from tests.hostile.test_saved_plans import sealed
from tests.hostile.threats import Threat, attack
from tests.plan.builders import PLANS

ROOT = Path(__file__).resolve().parents[2]
BOT = "github-actions[bot]"


@pytest.fixture
def forge() -> ForgeImitation:
    return ForgeImitation()


@pytest.fixture
def url(forge: ForgeImitation, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with job_with(forge, monkeypatch) as served:
        yield served


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = str(tmp_path / "plan.json")
    words = ["plan", str(ROOT / "examples" / "web"), "--set", "cluster=none", "--out", path]
    assert main(words) == 0
    return path


def github(*words: str) -> int:
    return main(["comment", "github", *words, "--repository", "acme/fleet", "--pull-request", "7"])


@attack(Threat.HIDDEN, "a comment of another account with the marker of a fleet, to be overwritten")
def test_a_forged_marker_is_not_edited_and_does_not_hide_the_plan(
    url: str, forge: ForgeImitation, plan: str
) -> None:
    """Guard: the author of a comment in ``post_comment``."""
    assert github(plan) == 0
    marker = forge.comments.pop()["body"].partition("\n")[0]
    forged = f"{marker}\nApproved, costs nothing"
    forge.add("mallory", forged)
    assert github(plan) == 0
    assert forge.bodies("mallory") == [forged]
    assert len(forge.bodies(BOT)) == 1


@attack(Threat.SECRETS, "a link in the artifact of a job without secrets, to a plan of the job")
def test_no_plan_comes_through_a_link_of_an_artifact(
    url: str, forge: ForgeImitation, plan: str, tmp_path: Path
) -> None:
    """Guard: ``follow_symlinks=False`` in ``_plan_files``."""
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "web.json").symlink_to(plan)
    (artifact / "folder.json").mkdir()
    assert github(f"{artifact}/") == 0
    assert forge.written() == []


@attack(Threat.OUTPUT, "Markdown instead of a plan in the artifact of a job without secrets")
def test_markdown_of_an_untrusted_job_is_not_posted(
    url: str, forge: ForgeImitation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "event.json").write_text(json.dumps({"workflow_run": {"head_sha": "a"}}))
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event.json"))
    monkeypatch.setenv("GITHUB_EVENT_NAME", "workflow_run")
    (tmp_path / "plan.json").write_text("# Approved by @security\n")
    assert github(str(tmp_path / "plan.json")) == 1
    assert "could contain anything" in capsys.readouterr().err
    assert forge.written() == []


@attack(Threat.OUTPUT, "a plan whose names mention people and close the comment's markup")
@payloads
def test_names_in_a_plan_are_rendered_as_text(
    payload: str, url: str, forge: ForgeImitation, tmp_path: Path
) -> None:
    """Whoever writes the artifact of a job also writes its digest."""
    text = f"--> @everyone <img src=x> {payload}"
    file = tmp_path / "hostile.json"
    plan = PLANS["pull_request"]()
    kind = {"api_version": plan.api_version, "kind": plan.kind}
    file.write_bytes(encode_saved_plan(msgspec.structs.replace(hostile(plan, text), **kind)))
    assert github(str(file)) == 0
    (body,) = forge.bodies(BOT)
    marker, rest = body.split("\n", 1)
    assert re.fullmatch("<!-- reconciler [A-Za-z0-9._-]+ [0-9a-f]{16} -->", marker)
    assert_inert_markdown(rest)


@attack(Threat.OUTPUT, "a commit in a plan that ends the hidden line of a comment")
@pytest.mark.parametrize("head", ["ab --> @everyone", "abcd\n@everyone", "abcd -->", "ABCD", ""])
def test_only_a_commit_is_part_of_a_hidden_line(
    head: str, url: str, forge: ForgeImitation, tmp_path: Path
) -> None:
    plan = PLANS["pull_request"]()
    revision = msgspec.structs.replace(plan.revision, head=head)
    file = tmp_path / "hostile.json"
    file.write_bytes(encode_saved_plan(msgspec.structs.replace(plan, revision=revision)))
    assert github(str(file)) == 0
    (body,) = forge.bodies(BOT)
    assert "reconciler-cost" not in body


@attack(Threat.OUTPUT, "a commit in a failure that ends the hidden line of a comment")
@pytest.mark.parametrize("head", ["ab --> @everyone", "abcd\n@everyone", "abcd -->", "ABCD"])
def test_only_a_commit_of_a_failure_is_part_of_a_hidden_line(
    head: str, url: str, forge: ForgeImitation, tmp_path: Path
) -> None:
    """Guard: ``_COMMIT`` in ``draft_of_failure``."""
    file = tmp_path / "hostile.json"
    file.write_bytes(PlanFailure(fleet="web", head=head, errors=1).to_json())
    assert github(str(file)) == 0
    (body,) = forge.bodies(BOT)
    assert "reconciler-cost" not in body
    assert head not in body


@attack(Threat.EXHAUSTION, "a failure with more reasons than any job writes, to be a comment")
def test_a_failure_larger_than_any_is_refused(
    url: str, forge: ForgeImitation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``_SIZE_MAX`` in ``read_failure``. Decoded reasons take four times their text."""
    reasons = (FailureReason("a.yaml:1:1", "m"),) * 40_000
    file = tmp_path / "hostile.json"
    file.write_bytes(PlanFailure(fleet="web", errors=len(reasons), reasons=reasons).to_json())
    assert github(str(file)) == 1
    assert "the file is larger than 1 MiB" in capsys.readouterr().err
    assert forge.written() == []


@attack(Threat.EXHAUSTION, "a plan with values that no planner writes, to be a comment")
def test_an_odd_plan_is_refused_or_posted(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(encode_saved_plan(PLANS["pull_request"]()))
    data["changes"][0]["fields"][0]["from"] = {"key": "a", "operator": "In", "values": 7}
    (tmp_path / "values.json").write_bytes(sealed({**data}))
    assert github(str(tmp_path / "values.json")) == 0
    data["diagnostics"][0]["severity"] = "deadly"
    (tmp_path / "severity.json").write_text(json.dumps(data))
    assert github(str(tmp_path / "severity.json")) == 1
    assert " cannot be " in capsys.readouterr().err


@attack(
    Threat.HIDDEN, "an artifact of a failed run that reports a passed check, or on another commit"
)
def test_a_check_has_the_commit_and_the_outcome_of_the_run_and_not_of_the_plan(
    url: str, forge: ForgeImitation, plan: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    head = "ab" * 20
    forge.pulls = [{"number": 9, "head": {"label": "mallory:change", "sha": head}}]
    run = {
        "id": 1, "head_sha": head, "head_branch": "change", "conclusion": "failure",
        "head_repository": {"owner": {"login": "mallory"}},
    }  # fmt: skip
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"workflow_run": run}))
    monkeypatch.setenv("GITHUB_EVENT_NAME", "workflow_run")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/fleet")
    assert main(["comment", "github", plan, "--check"]) == 0
    (check,) = forge.checks
    assert (check["head_sha"], check["conclusion"]) == (head, "failure")


@attack(
    Threat.OUTPUT, "a plan whose fleet is the name of a required check, or thousands of characters"
)
@pytest.mark.parametrize(
    "fleet", ["build", "x" * 5_000, "a\nbuild", "\u202ebuild", "@everyone", "`x`"]
)
def test_a_check_of_a_plan_has_a_name_of_ours(
    fleet: str, url: str, forge: ForgeImitation, tmp_path: Path
) -> None:
    """Guards: ``check_name_of``, ``CHECK_NAME_MAX`` and ``TITLE_MAX``."""
    plan = PLANS["pull_request"]()
    kind = {"api_version": plan.api_version, "kind": plan.kind, "fleet": fleet}
    file = tmp_path / "hostile.json"
    text = f"--> @everyone <img src=x> [a](javascript:x) {'y' * 40_000}"
    file.write_bytes(encode_saved_plan(msgspec.structs.replace(hostile(plan, text), **kind)))
    assert github(str(file), "--check") == 0
    (check,) = forge.checks
    name, output = str(check["name"]), check["output"]
    assert name.startswith("reconciler plan: ")
    assert len(name) <= len("reconciler plan: ") + CHECK_NAME_MAX
    assert name.isprintable()
    assert len(output["title"]) <= TITLE_MAX
    assert output["title"].isprintable()
    assert len(output["summary"].encode("utf-16-le")) // 2 < 65_535
    assert_inert_markdown(output["summary"])


@attack(Threat.SECRETS, "a redirect of the API to another host, for the token to follow")
def test_the_token_does_not_follow_a_redirect(url: str, forge: ForgeImitation, plan: str) -> None:
    thief = ForgeImitation()
    with serving(thief) as elsewhere:
        forge.fault = lambda _m, path: (307, {}, {"Location": f"{elsewhere}{path}"})
        assert github(plan) == 1
    assert thief.calls == []


@attack(Threat.SECRETS, "a next page on another host in the Link header of a list")
def test_the_token_does_not_follow_a_link_header(
    url: str, forge: ForgeImitation, plan: str
) -> None:
    thief = ForgeImitation()
    with serving(thief) as elsewhere:

        def linked(method: str, path: str) -> tuple[int, object, dict[str, str]] | None:
            if method == "GET" and path.endswith("/comments"):
                return 200, [], {"Link": f'<{elsewhere}/x>; rel="next"'}
            return None

        forge.fault = linked
        assert github(plan) == 0
    assert thief.calls == []


@attack(Threat.SECRETS, "an API URL without encryption")
def test_the_token_is_not_sent_unencrypted(
    url: str, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert github(plan, "--api-url", "http://api.example") == 1
    assert "plain http" in capsys.readouterr().err


@attack(Threat.SETTINGS, "an API URL in the files of the repository")
def test_no_file_in_the_repository_can_set_the_api_url(
    url: str, forge: ForgeImitation, plan: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    thief = ForgeImitation()
    with serving(thief) as elsewhere:
        (tmp_path / ".env").write_text(f"GITHUB_API_URL={elsewhere}\n")
        (tmp_path / ".netrc").write_text("default login x password y\n")
        monkeypatch.chdir(tmp_path)
        assert github(plan) == 0
    assert thief.calls == []
    assert len(forge.bodies(BOT)) == 1


@attack(Threat.EXHAUSTION, "an artifact with thousands of plans, each to be a comment")
def test_the_number_of_comments_is_limited(
    url: str, forge: ForgeImitation, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert github(*[plan] * 51) == 1
    assert "at most 50" in capsys.readouterr().err
    assert forge.calls == []
