"""Attacks on the policies that judge a pull request, and by the expressions of policies."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.cel import sandbox
from reconciler.cli.main import main
from tests.cli.test_policies import NEVER, Plan, fleet, more_pods, plan, write
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all

__all__ = ["fleet", "plan"]  # fixtures


def merged(fleet: Path, *policies: dict[str, Any]) -> None:
    """Commit the policies: they are those of the base from now on."""
    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": policies}))
    commit_all(fleet)


def expect_forbidden(capsys: pytest.CaptureFixture[str], source: str) -> None:
    (verdict,) = (
        v for v in json.loads(capsys.readouterr().out)["policies"] if v["name"] == "never"
    )
    assert (verdict["result"], verdict["source"]) == ("failed", source)


WEAKER: dict[str, list[dict[str, Any]]] = {
    "removes it": [],
    "rewrites its expression": [{**NEVER, "expression": "true"}],
    "makes it a warning": [{**NEVER, "severity": "warning"}],
    "exempts itself": [{**NEVER, "exemptions": [{"owner": "me", "expires": "2099-01-01"}]}],
}


@pytest.mark.parametrize("how", WEAKER)
@attack(Threat.HIDDEN, "a pull request that weakens the policy of the base that forbids it")
def test_a_pull_request_is_judged_by_the_policies_of_its_base(
    how: str, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    merged(fleet, NEVER)
    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": WEAKER[how]}))
    more_pods(fleet)

    assert plan("-o", "json") == 3

    expect_forbidden(capsys, "base")


@attack(Threat.HIDDEN, "a pull request that deletes the configuration with the policies")
def test_a_pull_request_cannot_delete_the_policies(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    merged(fleet, NEVER)
    (fleet / "reconciler.yaml").unlink()
    assert plan("-o", "json") == 3
    expect_forbidden(capsys, "base")


@pytest.mark.parametrize("how", WEAKER)
@attack(Threat.HIDDEN, "a repository with a policy of the same name as one of the operator")
def test_a_repository_cannot_replace_a_policy_of_the_operator(
    how: str, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    merged(fleet, *WEAKER[how])
    assert plan("--policy", write(fleet.parent, NEVER), "-o", "json") == 3
    expect_forbidden(capsys, "operator")


@pytest.mark.parametrize("linked", [False, True], ids=["in the repository", "through a link"])
@attack(Threat.HIDDEN, "a file of --policy that the pull request itself contains")
def test_a_policy_file_in_the_repository_is_rejected(
    linked: bool, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(write(fleet, NEVER))
    if linked:
        link = fleet.parent / "link.yaml"
        link.symlink_to(file)
        file = link

    assert plan("--policy", str(file)) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "inside the fleet's repository" in captured.err


@attack(Threat.HIDDEN, "a policy whose expression fails on purpose, to be skipped")
def test_a_policy_that_fails_is_not_a_pass(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "reconciler.yaml").write_text(
        json.dumps({"policies": [{"name": "a", "expression": "plan.missing"}]})
    )
    assert plan("-o", "json") == 1
    assert capsys.readouterr().out == ""


MANY = str(list(range(60))).replace(" ", "")
HEAVY = {
    "nested macros": (
        "".join(f"{MANY}.all({v}, " for v in "abcdefgh") + "true" + ")" * 8,
        "takes longer than its limit of processor time",
    ),
    "a string that doubles": (
        "size(['xxxxxxxx']" + ".map(s, s + s)" * 60 + "[0]) > 0",
        "needs too much memory",
    ),
    "deep nesting": ("(" * 1900 + "true" + ")" * 1900, "nested too deeply"),
    "a long expression": ("true || " * 500 + "true", "has 4004 characters; at most 4000"),
}


@pytest.mark.parametrize("how", HEAVY)
@attack(Threat.EXHAUSTION, "a policy that needs unlimited time or memory")
def test_an_expensive_expression_is_stopped_at_a_limit(
    how: str,
    fleet: Path,
    plan: Plan,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if how == "nested macros":
        monkeypatch.setattr(sandbox, "CPU_SECONDS", 2)
    expression, words = HEAVY[how]
    policy = {"name": "heavy", "expression": expression}
    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": [policy]}))

    assert plan("-o", "json", base=False) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "Traceback" not in captured.err


PATTERNS = {
    "nested repetition": ("(a+)+$", 3, "forbids this plan"),
    "alternatives of one text": ("^(a|aa|a)+$", 3, "forbids this plan"),
    "repetitions that multiply": ("(a{1,999}){1,999}$", 1, "not a valid regex"),
    "a reference back": ("(a+)\\\\1$", 1, "not a valid regex"),
}


@pytest.mark.parametrize("how", PATTERNS)
@attack(Threat.EXHAUSTION, "a policy whose regular expression never ends")
def test_a_regular_expression_of_a_policy_ends(
    how: str,
    fleet: Path,
    plan: Plan,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guard: an evaluator whose regular expressions do not go back; else its limit ends it."""
    pattern, code, words = PATTERNS[how]
    monkeypatch.setattr(sandbox, "CPU_SECONDS", 2)
    expression = f"'{'a' * 1500}b'.matches('{pattern}')"
    (fleet / "reconciler.yaml").write_text(
        json.dumps({"policies": [{"name": "slow", "expression": expression}]})
    )
    assert plan("-o", "json", base=False) == code
    assert words in capsys.readouterr().err


@attack(Threat.SECRETS, "a policy that reads the environment, files, or the interpreter")
@pytest.mark.parametrize(
    "expression",
    [
        "env.AWS_SECRET_ACCESS_KEY != ''",
        "open('/etc/passwd') != ''",
        "plan.__class__ != ''",
        "plan.cost.__globals__ != ''",
        "sum.__globals__ != ''",
        "__import__('os').system('id') == 0",
        "getattr(plan, '__class__') != ''",
        "sum([plan]) > 0.0",
        "family(plan) == ''",
        "imageDate(1) == null",
    ],
)
def test_an_expression_has_no_access_to_the_machine(
    expression: str,
    fleet: Path,
    plan: Plan,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    policy = {"name": "spy", "expression": expression}
    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": [policy]}))

    assert plan("-o", "json", base=False) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hush-hush" not in captured.err
    assert len(captured.err.splitlines()) == 1


@attack(Threat.SECRETS, "credentials in the environment of the process that evaluates policies")
def test_the_evaluator_inherits_no_environment_and_no_open_files(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    report = tmp_path / "report"
    spy = tmp_path / "spy.py"
    spy.write_text(
        "import os, sys\n"
        "fds = [f for f in os.listdir('/proc/self/fd') if int(f) > 2]\n"
        f"open({str(report)!r}, 'w').write(repr((dict(os.environ), os.getcwd(), len(fds))))\n"
    )
    monkeypatch.setattr(sandbox, "_EVALUATOR", str(spy))
    left_open = socket.socket()
    os.set_inheritable(left_open.fileno(), True)
    policy = {"name": "spy", "expression": "true"}
    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": [policy]}))

    assert main(["plan", str(fleet), "--catalog", str(fleet.parent / "catalog.json")]) == 1

    left_open.close()
    environment, folder, files = eval(report.read_text())
    assert "hush-hush" not in str(environment)
    assert set(environment) <= {"LC_CTYPE", "__CF_USER_TEXT_ENCODING"}
    assert os.path.basename(folder).startswith("reconciler-"), "an empty folder of its own"
    assert files <= 1  # that of the listing itself


@attack(Threat.OUTPUT, "a policy message with escape sequences and workflow commands")
@pytest.mark.parametrize("form", ["text", "markdown", "html", "github"])
def test_a_policy_message_contains_no_active_text(
    form: str, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "x\n::error::forged\x1b[31m<script>alert(1)</script>\u202e@everyone"
    policy = {"name": "a", "expression": "false", "messageExpression": json.dumps(evil)}
    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": [policy]}))

    assert plan("-o", form, base=False) == 3

    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert "\n::error::forged" not in text
        assert "\x1b[31m" not in text
        assert "\u202e" not in text
    if form in ("html", "markdown"):
        assert "<script>alert" not in captured.out


@attack(Threat.HIDDEN, "a plan whose length pushes the violated policy out of the comment")
def test_a_violated_policy_stays_in_the_headline_of_a_long_comment(
    fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [
        {"name": f"long-{n}", "expression": "false", "message": "m" * 500, "severity": "warning"}
        for n in range(99)
    ]
    (fleet / "reconciler.yaml").write_text(json.dumps({"policies": [*more, NEVER]}))

    assert plan("-o", "markdown", base=False) == 3

    out = capsys.readouterr().out
    assert len(out) <= 20_000
    assert "; forbidden by policy never.**\n" in out, "the headline ends with it"
