"""`reconciler comment`: one comment for each fleet, edited only by its author."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.adapters.forge import GITHUB_REMEDIES, ForgeApi, ForgeError
from reconciler.cli.main import main
from reconciler.cli.pullrequest.draft import Draft, marker_of, shorten, total_sentence
from tests.cli.forgeapi import Answer, ForgeImitation, job_with, serving

ROOT = Path(__file__).resolve().parents[2]
BOT = "github-actions[bot]"
NOW = "2026-01-05T10:00:00Z"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Saved plans of two fleets."""
    folder = tmp_path_factory.mktemp("plans")
    found = {}
    for name in ("web", "gpu"):
        path = str(folder / f"{name}.json")
        words = ["plan", str(ROOT / "examples" / name), "--now", NOW, "--set", "cluster=none"]
        assert main([*words, "--out", path]) == 0
        found[name] = path
    return found


@pytest.fixture
def forge() -> ForgeImitation:
    return ForgeImitation()


@pytest.fixture
def url(forge: ForgeImitation, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with job_with(forge, monkeypatch) as served:
        yield served


def github(*words: str) -> int:
    return main(["comment", "github", *words, "--repository", "acme/fleet", "--pull-request", "7"])


def test_the_first_run_posts_and_the_next_one_edits(
    url: str, forge: ForgeImitation, plans: dict[str, str], tmp_path: Path
) -> None:
    assert github(plans["web"]) == 0
    (body,) = forge.bodies(BOT)
    marker, text = body.split("\n", 1)
    assert marker.startswith("<!-- reconciler web ")
    assert "### Plan for web" in text
    changed = tmp_path / "web.json"
    words = ["plan", str(ROOT / "examples" / "web"), "--now", NOW, "--set", "cluster=none"]
    assert main([*words, "--set", "packing=cheapest", "--out", str(changed)]) == 0
    assert github(str(changed)) == 0
    (edited,) = forge.bodies(BOT)
    assert edited != body
    assert forge.written() == [
        "POST /repos/acme/fleet/issues/7/comments",
        "PATCH /repos/acme/fleet/issues/comments/1",
    ]


def test_an_unchanged_plan_writes_nothing(
    url: str, forge: ForgeImitation, plans: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert github(plans["web"]) == 0
    assert github(plans["web"]) == 0
    assert "Comment unchanged" in capsys.readouterr().out
    assert len(forge.written()) == 1


def test_each_fleet_has_a_comment_of_its_own(
    url: str, forge: ForgeImitation, plans: dict[str, str]
) -> None:
    assert github(plans["web"], plans["gpu"]) == 0
    assert github(plans["gpu"], plans["web"]) == 0
    assert [b.split()[2] for b in forge.bodies(BOT)] == ["web", "gpu"]


def test_a_comment_by_another_user_with_our_marker_is_left_alone(
    url: str, forge: ForgeImitation, plans: dict[str, str]
) -> None:
    assert github(plans["web"]) == 0
    body = forge.comments.pop()["body"]
    forge.add("mallory", body)
    assert github(plans["web"]) == 0
    assert forge.bodies("mallory") == [body]
    assert len(forge.bodies(BOT)) == 1


def test_a_comment_of_ours_about_something_else_is_left_alone(
    url: str, forge: ForgeImitation, plans: dict[str, str]
) -> None:
    assert github(plans["web"]) == 0
    quoted = "> " + forge.comments.pop()["body"]
    forge.add(BOT, quoted)
    forge.add(BOT, "coverage: 90%")
    assert github(plans["web"]) == 0
    assert forge.bodies(BOT)[:2] == [quoted, "coverage: 90%"]
    assert len(forge.bodies(BOT)) == 3


def test_our_comment_is_found_after_a_hundred_others(
    url: str, forge: ForgeImitation, plans: dict[str, str]
) -> None:
    for number in range(150):
        forge.add("somebody", f"comment {number}")
    assert github(plans["web"]) == 0
    assert github(plans["web"]) == 0
    assert len(forge.bodies(BOT)) == 1


def test_a_comment_deleted_in_the_meantime_is_posted_again(
    url: str, forge: ForgeImitation, plans: dict[str, str]
) -> None:
    marker = marker_of("web", "examples/web")
    forge.add(BOT, f"{marker}\nold")

    def gone(method: str, path: str) -> Answer | None:
        return (404, {"message": "Not Found"}, {}) if method == "PATCH" else None

    forge.fault = gone
    assert github(plans["web"]) == 0
    assert len(forge.bodies(BOT)) == 2


@pytest.mark.parametrize("more", ["", "https://ci.example/run/1"])
def test_truncation_of_a_long_text_closes_open_elements(
    more: str, url: str, forge: ForgeImitation, tmp_path: Path
) -> None:
    rows = "".join(f"| {n} | {'x' * 80} |\n" for n in range(1500))
    file = tmp_path / "plan.md"
    file.write_text(
        f"### Plan\n\n<details><summary>Rows</summary>\n\n```\n{rows}```\n\n</details>\n"
    )
    words = ["--artifact-url", more] if more else []
    assert github(str(file), *words) == 0
    (body,) = forge.bodies(BOT)
    assert 60_000 < len(body) <= 65_536
    assert body.count("```") == 2
    assert body.count("<details>") == body.count("</details>") == 1
    assert "This comment is shortened" in body
    assert more in body


def test_the_limit_counts_utf_16_code_units() -> None:
    text = "😀\n" * 40_000
    kept = shorten(text, 65_536, "")
    assert len(kept.encode("utf-16-le")) // 2 <= 65_536


def test_a_missing_permission_is_an_error_that_names_it(
    url: str, forge: ForgeImitation, plans: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    forge.may_write = False
    assert github(plans["web"]) == 1
    error = capsys.readouterr().err
    assert "POST /repos/acme/fleet/issues/7/comments: HTTP 403" in error
    assert "pull-requests: write" in error
    assert "fork" in error
    assert error.count("\n") == 1


def test_a_wrong_token_is_an_error_without_the_token(
    url: str, plans: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("GITHUB_TOKEN", "wr0ng")
    assert github(plans["web"]) == 1
    error = capsys.readouterr().err
    assert "HTTP 401" in error
    assert "wr0ng" not in error


def test_a_missing_token_names_the_variables(
    url: str, plans: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delenv("GITHUB_TOKEN")
    assert github(plans["web"]) == 1
    assert "no token: GITHUB_TOKEN and GH_TOKEN are not set" in capsys.readouterr().err
    assert github(plans["web"], "--token-env", "MY_TOKEN") == 1
    assert "no token: MY_TOKEN is not set" in capsys.readouterr().err


def test_a_rate_limited_request_is_retried_after_the_limit(
    url: str, forge: ForgeImitation, plans: dict[str, str]
) -> None:
    refusals = [(429, {"message": "slow down"}, {"Retry-After": "0"})] * 2

    def limited(method: str, _path: str) -> Answer | None:
        return refusals.pop() if method == "POST" and refusals else None

    forge.fault = limited
    assert github(plans["web"]) == 0
    assert len(forge.bodies(BOT)) == 1


def test_a_rate_limit_that_lasts_too_long_is_an_error(
    url: str, forge: ForgeImitation, plans: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    payload = {"message": "API rate limit exceeded"}
    forge.fault = lambda _method, _path: (403, payload, {"Retry-After": "3600"})
    assert github(plans["web"]) == 1
    assert "the rate limit ends in 3600 s; run the command again then" in capsys.readouterr().err


def test_after_a_server_error_reads_are_retried_and_creations_are_not() -> None:
    forge, waited = ForgeImitation(), list[float]()
    forge.fault = lambda _method, _path: (502, {"message": "bad gateway"}, {})
    with serving(forge) as url:
        headers = {"Authorization": f"Bearer {forge.token}"}
        api = ForgeApi(url, headers, GITHUB_REMEDIES, waited.append)
        with pytest.raises(ForgeError, match="502"):
            api.get("/user")
        assert len(forge.calls) == 4
        with pytest.raises(ForgeError, match="502"):
            api.send("POST", "/x", {})
        api.close()
    assert len(forge.calls) == 5
    assert waited == [1.0, 2.0, 4.0]


def event(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, **data: object) -> None:
    file = folder / "event.json"
    file.write_text(json.dumps(data))
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(file))
    monkeypatch.setenv("GITHUB_EVENT_NAME", name)
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/fleet")


def test_a_job_of_a_pull_request_needs_no_flags(
    url: str, forge: ForgeImitation, plans: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    event(monkeypatch, tmp_path, "pull_request", pull_request={"number": 12})
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    assert main(["comment", "github", plans["web"], "--summary"]) == 0
    assert forge.written() == ["POST /repos/acme/fleet/issues/12/comments"]
    assert (tmp_path / "output").read_text() == ("comment-urls=https://forge.example/comment/1\n")
    assert "### Plan for web" in (tmp_path / "summary").read_text()


RUN = {
    "id": 5,
    "head_sha": "abc",
    "head_branch": "change",
    "head_repository": {"owner": {"login": "mallory"}},
    "pull_requests": [],
}


def test_after_a_run_on_a_fork_the_pull_request_is_found_by_its_head(
    url: str, forge: ForgeImitation, plans: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    event(monkeypatch, tmp_path, "workflow_run", workflow_run=RUN)
    forge.pulls = [
        {"number": 3, "head": {"label": "mallory:change", "sha": "older"}},
        {"number": 4, "head": {"label": "mallory:change", "sha": "abc"}},
    ]
    assert main(["comment", "github", plans["web"]]) == 0
    assert forge.written() == ["POST /repos/acme/fleet/issues/4/comments"]


def test_an_outdated_head_gets_no_comment(
    url: str, forge: ForgeImitation, plans: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    event(monkeypatch, tmp_path, "workflow_run", workflow_run=RUN)
    assert main(["comment", "github", plans["web"]]) == 0
    assert "nothing was posted" in capsys.readouterr().out
    assert forge.written() == []


def test_gitlab_has_notes(
    url: str, forge: ForgeImitation, plans: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forge.me = "project_1_bot"
    monkeypatch.setenv("CI_MERGE_REQUEST_PROJECT_ID", "42")
    monkeypatch.setenv("CI_MERGE_REQUEST_IID", "9")
    assert main(["comment", "gitlab", plans["web"]]) == 0
    forge.comments[0]["body"] += "\nolder"
    assert main(["comment", "gitlab", plans["web"]]) == 0
    assert len(forge.bodies("project_1_bot")) == 1
    assert forge.written() == [
        "POST /projects/42/merge_requests/9/notes",
        "PUT /projects/42/merge_requests/9/notes/1",
    ]


def test_the_path_of_a_gitlab_project_is_escaped(
    url: str, forge: ForgeImitation, plans: dict[str, str]
) -> None:
    words = ["--repository", "acme/fleets", "--pull-request", "1", "--author", "bot"]
    assert main(["comment", "gitlab", plans["web"], *words]) == 0
    assert forge.written() == ["POST /projects/acme%2Ffleets/merge_requests/1/notes"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--repository", "acme/fleet"], "the pull request is not known"),
        (["--pull-request", "7"], "the repository is not known"),
    ],
)
def test_missing_information_about_the_pull_request_is_an_error(
    words: list[str], error: str, url: str, plans: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(["comment", "github", plans["web"], *words]) == 1
    assert error in capsys.readouterr().err


def test_nothing_is_posted_if_one_plan_cannot_be_read(
    url: str, forge: ForgeImitation, plans: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert github(plans["web"], "missing.json") == 1
    assert "missing.json: No such file or directory" in capsys.readouterr().err
    assert forge.calls == []


def figures(commit: str, per_month: float | None, **changes: str) -> Draft:
    """Return the draft of a plan whose change costs something."""
    text = changes.pop("text", "### Plan for web\n\n**This change.**\n\n- Rollout.\n")
    return Draft(marker_of("web"), text, head=commit, per_month=per_month, **changes)


def test_the_next_push_states_what_the_change_cost_before() -> None:
    first = figures("a" * 40, 74.0).body(10_000, "")
    assert "at the last push" not in first
    again = figures("a" * 40, 74.0).body(10_000, "", first)
    assert again == first
    second = figures("b" * 40, 65.2).body(10_000, "", first)
    assert "\n\n**This change.**\n\nWas +&#36;74/month at the last push.\n\n- Rollout.\n" in second
    assert figures("b" * 40, 65.2).body(10_000, "", second) == second
    assert "at the last push" not in figures("c" * 40, 65.4).body(10_000, "", second)


@pytest.mark.parametrize(
    "line", ["<!-- reconciler-cost x 1.00 - -->", "<!-- reconciler-cost abcd 1e9 - -->", "", "x"]
)
def test_other_words_in_the_place_of_the_figures_are_ignored(line: str) -> None:
    before = f"{marker_of('web')}\n{line}\ntext"
    assert "last push" not in figures("b" * 40, 65.2).body(10_000, "", before)


def test_a_cost_that_is_not_known_is_no_figure() -> None:
    first = figures("a" * 40, None).body(10_000, "")
    assert first.splitlines()[1] == f"<!-- reconciler-cost {'a' * 40} - - -->"
    assert "last push" not in figures("b" * 40, 5.0).body(10_000, "", first)


def test_all_fleets_of_a_pull_request_have_a_total() -> None:
    known, other, unknown = (
        figures("a" * 40, 74.0),
        figures("a" * 40, -4.0),
        figures("a" * 40, None),
    )
    assert total_sentence([known]) == ""
    assert total_sentence([known, other]) == "All 2 fleets of this pull request: +$70/month."
    assert total_sentence([known, unknown, other]) == (
        "All 3 fleets of this pull request: +$70/month (1 of unknown cost)."
    )
    total = total_sentence([known, other])
    assert "\n\nAll 2 fleets of this pull request: +&#36;70/month.\n\n" in known.body(
        10_000, "", "", total
    )


@pytest.mark.parametrize(
    ("address", "is_linked"),
    [("https://ci.example/runs/7", True), ("https://x/)[y](http://z", False), ("", False)],
)
def test_a_comment_links_to_the_complete_plan(address: str, is_linked: bool) -> None:
    body = figures("a" * 40, 1.0).body(10_000, address)
    assert (f"[All of it as HTML and JSON]({address})" in body) is is_linked
