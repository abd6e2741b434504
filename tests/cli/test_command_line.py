"""The command line: usage, help, requests, the folder of the fleet, completion."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.cli.commands.desired.trace import SUBCOMMANDS as TRACES
from reconciler.cli.commands.environment.comment import SUBCOMMANDS as FORGES
from reconciler.cli.commands.recorded.state import SUBCOMMANDS
from reconciler.cli.commands.recorded.watch import SUBCOMMANDS as WATCHES
from reconciler.cli.main import main
from reconciler.cli.parser.commandline import COMMANDS
from reconciler.cli.parser.examples import EXAMPLES
from tests.cli.commandlines import request_of
from tests.cli.test_plan import CATALOG, DEPLOYMENT, a_fleet
from tests.repositories import commit_all, init

NOW = "2026-03-02T12:00:00Z"
EVERY = [
    *(name for name in COMMANDS if name not in ("state", "comment", "delete", "trace", "watch")),
    "delete nodeclaim",
    "delete node",
    *(f"state {subcommand}" for subcommand in SUBCOMMANDS),
    *(f"comment {forge}" for forge in FORGES),
    *(f"trace {subcommand}" for subcommand in TRACES),
    *(f"watch {subcommand}" for subcommand in WATCHES),
]
PLACED = {
    "get": ["nodes"],
    "describe": ["node", "a"],
    "cordon": ["a"],
    "uncordon": ["a"],
    "drain": ["a"],
    "delete nodeclaim": ["a"],
    "delete node": ["a"],
    "explain": ["pod", "a"],
    "hash": ["fleet.yaml"],
    "health": ["--heartbeat", "alive"],
    "completion": ["bash"],
    "comment github": ["plan.json"],
    "trace import": ["week.csv"],
    "watch replay": ["miss.json.gz"],
    "trace summary": ["week.csv"],
    "comment gitlab": ["plan.json"],
    "state export": ["-"],
    "state import": ["-"],
}
"""The arguments that a command cannot do without."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RECONCILER_HEARTBEAT", "RECONCILER_CONFIG", "RECONCILER_STATE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)


def words_of(command: str, *more: str) -> list[str]:
    return [*command.split(), *PLACED.get(command, []), *more]


# -- usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", EVERY)
@pytest.mark.parametrize("wrong", [["--no-such-flag"], ["a", "b", "c", "d"]], ids=["flag", "words"])
def test_a_usage_error_of_any_command_exits_1(
    command: str, wrong: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words_of(command, *wrong)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plan --set", "plan: argument --set: expected one argument"),
        ("plan --out", "plan: argument --out: expected one argument"),
        ("plan -o pdf", 'plan: -o/--output: invalid value "pdf"'),
        ("plan --now tomorrow", '--now: invalid time "tomorrow"'),
        ("plan . --repo x", ".: PATH and --repo cannot be used together"),
        ("run --interval soon", '--interval: invalid duration "soon"'),
        ("history --limit 0", 'history: argument --limit: "0" is not a count'),
        ("simulate --seed x", 'simulate: argument --seed: invalid integer value "x"'),
        ("get", "get: the following arguments are required: KIND"),
        ("get pods", 'get: argument KIND: unknown kind "pods"'),
        ("state", "state: no subcommand given"),
        ("state migrat", 'state: unknown subcommand "migrat" (did you mean migrate?)'),
        ("plam", 'unknown command "plam" (did you mean plan?)'),
        ("help plam", 'unknown command "plam" (did you mean plan?)'),
        ("--state x plan", 'option "--state" must be written after the command'),
        ("apply --snapshot x", "apply: unrecognized arguments: --snapshot"),
        ("apply nofile.json", 'apply: "nofile.json" does not exist; pass a plan saved with'),
        ("plan --bse main", "plan: unrecognized arguments: --bse (did you mean --base?); run"),
        ("plan --zzzz main", "plan: unrecognized arguments: --zzzz; run"),
        ("hash nofile", "nofile: No such file or directory; pass a readable file"),
        ("demo --fast --pause", "demo: argument --pause: not allowed with argument --fast"),
        ("apply ''", "apply: an argument is empty; pass a value, or leave it out; run"),
        ("plan --timings ''", "plan: an argument is empty; pass a value, or leave it out; run"),
        ("plan --context ''", "plan: argument --context is empty; pass a value, or leave it out"),
        ("plan --context=", "plan: argument --context is empty; pass a value, or leave it out"),
        ("completion tcsh", 'completion: SHELL: invalid value "tcsh"'),
        ("health", "--heartbeat: no heartbeat file is named"),
    ],
)
def test_a_usage_error_names_the_problem(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(line)) == 1
    assert capsys.readouterr().err.startswith(f"Error: {message}")


ORDERS = [
    ("plan fleet --set packing=cheapest --ref v1", "plan --set packing=cheapest fleet --ref v1"),
    ("plan fleet -o json", "plan -o json fleet"),
    ("apply plan.json fleet --timeout 1m", "apply plan.json --timeout 1m fleet"),
    ("apply plan.json fleet --timeout 1m", "apply --timeout 1m plan.json fleet"),
    ("get nodeclaims web-1 fleet -o yaml", "get -o yaml nodeclaims web-1 fleet"),
    ("get nodeclaims web-1 fleet -o yaml", "get nodeclaims -o yaml web-1 --set a=b fleet"),
    ("explain pod a fleet --plan p", "explain pod --plan p a fleet"),
    ("describe node a fleet --state s", "describe --state s node a fleet"),
    ("state export - fleet --state s", "state --state s export - fleet"),
    ("state adopt fleet --yes", "state adopt --yes fleet"),
    ("history fleet --limit 3", "history --limit 3 fleet"),
    ("plan fleet", "plan -- fleet"),
    ("plan fleet", "plan --debug fleet"),
    ("plan fleet", "--debug plan fleet"),
]


@pytest.mark.parametrize(("line", "other"), ORDERS)
def test_options_may_appear_anywhere_between_the_arguments(
    line: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet").mkdir()
    (tmp_path / "plan.json").touch()
    request = request_of(line.split())
    if "--set a=b" in other:
        fleet = dataclasses.replace(request.fleet, settings=("a=b",))
        request = dataclasses.replace(request, fleet=fleet)
    assert request_of(other.split()) == request


@pytest.mark.parametrize("command", EVERY)
def test_a_request_is_frozen(command: str) -> None:
    request = request_of(words_of(command))
    name = dataclasses.fields(request)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(request, name, None)
    fleet = getattr(request, "fleet", None)
    if fleet is not None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            fleet.path = "elsewhere"


# -- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", EVERY)
def test_the_help_of_a_command_has_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: reconciler {command}" in text
    assert f"examples:\n  # {EXAMPLES[command][0][1]}\n  reconciler {command}" in text
    assert main(["help", *command.split()]) == 0
    assert capsys.readouterr().out == text


def test_the_overview_has_every_command_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    text = capsys.readouterr().out
    assert main(["-h"]) == 0
    assert capsys.readouterr().out == text
    for name, command in COMMANDS.items():
        group = text.split(f"{command.group}:\n")[1].split("\n\n")[0]
        assert f"  {name} " in group
    for words in (["state", "--help"], ["help", "state"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert [name for name in SUBCOMMANDS if f"  {name} " not in shown] == []


@pytest.mark.parametrize("example", [e for rows in EXAMPLES.values() for e, _ in rows])
def test_an_example_is_a_command_line(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").touch()
    assert request_of(shlex.split(example.partition(" >")[0])) is not None


@pytest.mark.parametrize(
    ("command", "hidden"),
    [
        ("apply", ("--snapshot", "--base")),
        ("run", ("--snapshot", "--base")),
        ("status", ("--snapshot", "--repo", "--catalog", "--allow-removal")),
        ("config", ("--snapshot", "--now")),
        ("snapshot", ("--base", "--allow-removal")),
        ("check", ("--base",)),
    ],
)
def test_the_help_hides_flags_that_do_not_apply(
    command: str, hidden: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert [flag for flag in hidden if f"{flag} " in text] == []


# -- the folder of the fleet ----------------------------------------------------------------------


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "pools" / "web").mkdir(parents=True)
    (folder / "reconciler.yaml").write_text("packing: cheapest\n")
    return folder


def packing(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["config", "-o", "json", *words]) == 0
    value: str = json.loads(capsys.readouterr().out)["packing"]["value"]
    return value


def test_the_fleet_folder_is_searched_upward(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (fleet, fleet / "pools", fleet / "pools" / "web"):
        monkeypatch.chdir(folder)
        assert packing(capsys) == "cheapest"
    monkeypatch.chdir(fleet.parent)
    assert packing(capsys) == "default"


def test_the_search_stops_at_the_root_of_the_repository(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "pools" / ".git").mkdir()
    monkeypatch.chdir(fleet / "pools" / "web")
    assert packing(capsys) == "default"


def test_the_nearest_fleet_is_used(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "pools" / "reconciler.yml").write_text("packing: default\n")
    monkeypatch.chdir(fleet / "pools" / "web")
    assert packing(capsys) == "default"


@pytest.mark.parametrize("command", ["validate", "plan", "config", "status", "run", "check"])
def test_a_subfolder_of_a_fleet_is_refused(
    fleet: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    below = fleet / "pools" / "web"
    for folder, shown in ((fleet.parent, fleet.name), (fleet / "pools", str(fleet))):
        monkeypatch.chdir(folder)
        assert main([command, str(below)]) == 1
        assert capsys.readouterr().err == (
            f'Error: PATH: folder "{below}" is inside the fleet "{shown}"; '
            f"pass the complete fleet: {shown}\n"
        )


def test_a_path_inside_the_repository_cannot_be_a_subfolder_of_a_fleet(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(fleet.parent), "--path", "shop/pools"]) == 1
    assert capsys.readouterr().err.startswith("Error: --path: folder ")


# -- output formats -------------------------------------------------------------------------------


def both(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[Any, Any]:
    found = []
    for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert main([*words, "-o", output]) == code, capsys.readouterr().err
        found.append(read(capsys.readouterr().out))
    return found[0], found[1]


@pytest.mark.parametrize("command", ["plan", "validate", "config", "hash", "simulate"])
def test_yaml_is_the_same_document_as_json(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_fleet(tmp_path, DEPLOYMENT, CATALOG)
    words = [command, str(folder)]
    if command in ("plan", "simulate"):
        words += ["--now", NOW]
    as_json, as_yaml = both(capsys, *words)
    assert as_yaml == as_json
    assert as_json


@pytest.mark.parametrize("form", ["html", "markdown"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["validate", "."], "valid"),
        (["config", "."], "clusterName"),
        (["hash", "."], "NodePool"),
        (["simulate", ".", "--now", NOW, "--seed", "1"], "Cost by NodePool"),
        (["advise", ".", "--now", NOW, "--candidates", "5"], "Not tried"),
        (["explain", "gap", ".", "--now", NOW], "Smallest change"),
        (["explain", "nodepool", "general", ".", "--now", NOW], "From plan"),
    ],
)
def test_every_command_has_a_page(
    words: list[str], text: str, form: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(a_fleet(tmp_path, DEPLOYMENT, CATALOG))
    assert main([*words, "-o", form]) == 0
    page = capsys.readouterr().out
    assert text.lower() in page.lower()
    assert page.startswith("<!doctype html>" if form == "html" else "### ")
    assert page.rstrip().endswith("</html>") == (form == "html")


def test_the_health_report_is_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing")
    as_json, as_yaml = both(capsys, "health", "--heartbeat", missing, code=1)
    assert as_yaml == as_json
    assert as_json["healthy"] is False


# -- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_knows_every_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in (*COMMANDS, *SUBCOMMANDS, "help"):
        assert name in script
    assert "auto-approve" in script
    assert "detailed-exitcode" in script
    program = shutil.which(shell)
    if program is not None:
        done = subprocess.run(
            [program, "-n"], input=script, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def completions(script: str, *words: str) -> list[str]:
    """Return the completions of bash for the last word."""
    line = " ".join(map(shlex.quote, words))
    requested = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_reconciler; "
    offered = 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc"],
        input=f"{script}\n{requested}{offered}\n",
        text=True,
        capture_output=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["reconciler", "pl"], ["plan"]),
        (["reconciler", "state", "mi"], ["migrate"]),
        (["reconciler", "plan", "--detailed"], ["--detailed-exitcode"]),
        (["reconciler", "apply", "--auto"], ["--auto-approve"]),
        (["reconciler", "plan", "-o", "mer"], ["mermaid"]),
    ],
)
def test_bash_completes_a_word(
    words: list[str], offered: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    assert completions(capsys.readouterr().out, *words) == offered


# -- what the cluster has not told ----------------------------------------------------------------


def test_a_request_without_cluster_facts_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = a_fleet(tmp_path, DEPLOYMENT, CATALOG), tmp_path / "plan.json"
    words = ["plan", str(folder), "--now", NOW, "-o", "requests"]
    assert main([*words, "--out", str(out)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Error: -o requests: ")
    assert "cannot be requested: " in shown.err
    assert "set cluster" in shown.err
    assert shown.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "null",
        "---\n",
        '{"kind": "List"}',
        '{"items": []}',
        '{"apiVersion": "v1", "kind": "Status", "status": "Failure"}',
        '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}',
        "kind: Node\nmetadata: {name: a}\n",
    ],
)
def test_a_snapshot_without_a_list_is_an_error(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = a_fleet(tmp_path, DEPLOYMENT, CATALOG), tmp_path / "cluster.json"
    file.write_text(content)
    assert main(["plan", str(folder), "--now", NOW, "--snapshot", str(file)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"Error: {file}: not a snapshot: expected a List of objects")


# -- the next step --------------------------------------------------------------------------------


def next_step(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the command line that a plan prints as the next step."""
    assert main(["plan", *words]) == 0
    line = capsys.readouterr().out.rstrip().rpartition("\n")[2]
    assert line.startswith("Next: reconciler ")
    return shlex.split(line.removeprefix("Next: reconciler "))


def test_the_next_step_printed_for_a_folder_without_a_cluster_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    folder = a_fleet(tmp_path, DEPLOYMENT, CATALOG)
    catalog = str(tmp_path / "catalog.json")
    named = [str(folder), "--catalog", catalog, "--set", "packing=cheapest"]
    step = next_step(capsys, *named)
    assert step == ["simulate", *named]
    assert main(step) == 0


def test_the_next_step_of_a_change_simulates_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    folder = a_fleet(tmp_path, DEPLOYMENT, CATALOG)
    init(folder)
    commit_all(folder)
    named = [str(folder), "--catalog", str(tmp_path / "catalog.json")]
    step = next_step(capsys, *named, "--base", "HEAD")
    assert step == ["simulate", *named, "--base", "HEAD"]
    assert main(step) == 0


def test_the_next_step_of_a_saved_plan_names_its_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = a_fleet(tmp_path, DEPLOYMENT, CATALOG), str(tmp_path / "the plan.json")
    named = [str(folder), "--set", "packing=cheapest", "--allow-removal", "old"]
    step = next_step(capsys, *named, "--out", out)
    assert step == ["apply", out, *named]
    request = request_of(step)
    assert (request.plan_file, request.fleet.path) == (out, str(folder))
