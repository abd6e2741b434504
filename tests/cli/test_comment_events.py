"""`reconciler comment` in jobs with odd events, and on pull requests with odd comments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.cli.pullrequest.draft import marker_of
from reconciler.cli.pullrequest.event import github_event, gitlab_event
from tests.cli.forgeapi import ForgeImitation, serving

BOT = "github-actions[bot]"
MARKER = marker_of("plan")
RUN = {
    "id": 5, "head_sha": "abc", "head_branch": "change",
    "head_repository": {"owner": {"login": "mallory"}},
}  # fmt: skip
ODD: list[Any] = [None, 7, "text", True, [], {}, [RUN], 1.5]


@pytest.fixture
def forge() -> ForgeImitation:
    forge = ForgeImitation()
    forge.pulls = [{"number": 9, "head": {"label": "mallory:change", "sha": "abc"}}]
    return forge


@pytest.fixture
def job(forge: ForgeImitation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the event of a job after another one, and a plan that this one has made."""
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_REF"):
        monkeypatch.delenv(name, raising=False)
    path = str(tmp_path / "plan.json")
    fleet = Path(__file__).resolve().parents[2] / "examples" / "web"
    assert main(["plan", str(fleet), "--set", "cluster=none", "--out", path]) == 0
    monkeypatch.setenv("GITHUB_EVENT_NAME", "workflow_run")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event.json"))
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/fleet")
    with serving(forge) as url:
        monkeypatch.setenv("GITHUB_API_URL", url)
        monkeypatch.setenv("GITHUB_TOKEN", forge.token)
        yield tmp_path


def run_after(job: Path, event: object, file: str = "plan.json") -> int:
    (job / "event.json").write_text(json.dumps(event))
    return main(["comment", "github", str(job / file)])


def test_an_odd_event_posts_nothing_and_is_no_internal_error(
    job: Path, forge: ForgeImitation, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[object] = [{"workflow_run": odd} for odd in ODD]
    events += [{"workflow_run": {**RUN, name: odd}} for name in RUN for odd in ODD if name != "id"]
    events += [{"workflow_run": {**RUN, "head_repository": {"owner": odd}}} for odd in ODD]
    events += [{"workflow_run": {**RUN, "head_repository": {"owner": {"login": odd}}}}
               for odd in ODD if not isinstance(odd, str)]  # fmt: skip
    for event in events:
        assert run_after(job, event) == 0, event
        assert "nothing was posted" in capsys.readouterr().out
    assert forge.written() == []


@pytest.mark.parametrize("odd", [*ODD, -1, 0, "1) [x](https://evil.example"])
def test_an_odd_number_of_the_run_is_not_part_of_an_address(odd: object, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps({"workflow_run": {**RUN, "id": odd}}))
    event = github_event(
        {
            "GITHUB_EVENT_NAME": "workflow_run",
            "GITHUB_EVENT_PATH": str(path),
            "GITHUB_REPOSITORY": "acme/fleet",
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_RUN_ID": "3",
        }
    )
    ends = event.run_url.rpartition("/")[2]
    assert event.run_url == "" or ends == str(odd)
    assert bool(event.run_url) is (type(odd) is int and odd > 0)


def test_an_answer_without_commits_matches_no_pull_request(
    job: Path, forge: ForgeImitation
) -> None:
    for head in ({"label": "mallory:change"}, {"label": "mallory:change", "sha": None}):
        forge.pulls = [{"number": 9, "head": head}]
        assert (
            run_after(job, {"workflow_run": {k: v for k, v in RUN.items() if k != "head_sha"}}) == 0
        )
        assert run_after(job, {"workflow_run": RUN}) == 0
    for number in (True, "9", -9, None, 1.0):
        forge.pulls = [{"number": number, "head": {"label": "mallory:change", "sha": "abc"}}]
        assert run_after(job, {"workflow_run": RUN}) == 0
    assert forge.written() == []


@pytest.mark.parametrize("event", [{}, {"workflow_run": None}, {"workflow_run": 7}])
def test_a_job_after_another_never_posts_markdown(
    event: object, job: Path, forge: ForgeImitation, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / "plan.md").write_text("Approved")
    assert run_after(job, {**event, "pull_request": {"number": 9}}, "plan.md") == 1
    assert "is not a plan in JSON" in capsys.readouterr().err
    assert forge.written() == []


@pytest.mark.parametrize("number", [True, 0, -3, "7", 7.0, None, {}])
def test_only_a_number_is_the_number_of_a_pull_request(number: object, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps({"pull_request": {"number": number}}))
    assert github_event({"GITHUB_EVENT_PATH": str(path)}).number is None
    assert gitlab_event({"CI_MERGE_REQUEST_IID": str(number)}).number == (
        7 if number == "7" else None
    )


@pytest.mark.parametrize("identity", ["1/../../7", "", None, True, -1, 0, {"a": 1}, 1.5, "2"])
def test_a_comment_whose_id_is_not_a_number_is_left_alone(
    identity: object, job: Path, forge: ForgeImitation
) -> None:
    ours = forge.add(BOT, f"{marker_of('web', 'examples/web')}\nold")
    ours["id"] = identity
    assert run_after(job, {"workflow_run": RUN}) == 0
    assert forge.written() == ["POST /repos/acme/fleet/issues/9/comments"]


@pytest.mark.parametrize(
    ("author", "first_line"),
    [
        ("mallory", "{marker}"),
        ("GitHub-Actions[bot]", "{marker}"),
        (BOT, "> {marker}"),
        (BOT, "{marker} Approved"),
        (BOT, "Look: {marker}"),
        (7, "{marker}"),
        (None, "{marker}"),
    ],
)
def test_a_marker_counts_only_in_the_first_line_of_our_own_comment(
    author: object, first_line: str, job: Path, forge: ForgeImitation
) -> None:
    comment = forge.add("x", first_line.format(marker=marker_of("web", "examples/web")) + "\nold")
    comment["user"]["login"] = author
    before = comment["body"]
    assert run_after(job, {"workflow_run": RUN}) == 0
    assert comment["body"] == before
    assert forge.written() == ["POST /repos/acme/fleet/issues/9/comments"]
