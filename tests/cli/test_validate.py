"""``reconciler validate`` end to end: outputs, exit codes, errors on one line, startup time."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler import __version__
from reconciler.cli.main import main
from reconciler.cli.parser.commandline import COMMANDS, CommandSpec

ROOT = Path(__file__).parents[2]
FLEET = (ROOT / "tests" / "desired" / "fleet.yaml").read_text(encoding="utf-8")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "fleet.yaml").write_text(FLEET)
    (folder / "reconciler.yaml").write_text("featureGates: {StaticCapacity: true}\n")
    return folder


def test_a_valid_fleet_exits_0(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(fleet)]) == 0
    what = "2 NodePools, 1 EC2NodeClass, 1 NodeOverlay, 1 workload, 3 pods"
    assert capsys.readouterr().out == f"valid: {what}\n"
    assert main(["validate", str(fleet), "-o", "markdown"]) == 0
    assert capsys.readouterr().out == f"### Findings\n\nvalid: {what}\n"


def test_pods_are_counted_where_nothing_scales_them(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "scaler.yaml").write_text(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: a}\n"
        "spec: {minReplicas: 4, maxReplicas: 9, "
        "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}}\n"
    )
    assert main(["validate", str(fleet)]) == 0
    assert "1 workload" in (out := capsys.readouterr().out)
    assert "pod" not in out


def test_an_invalid_fleet_exits_3_and_shows_the_line(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "fleet.yaml").write_text(FLEET.replace("weight: 10", "wieght: 10"))

    assert main(["validate", str(fleet)]) == 3
    headline, *rest = capsys.readouterr().out.splitlines()
    assert headline.startswith("fleet.yaml:6:3: error: spec.wieght: unknown field in spec (did you")
    assert rest == ["    6 |   wieght: 10", "      |   ^", "invalid: 1 error"]


@pytest.mark.parametrize("output", ["json", "sarif"])
def test_json_output_is_one_document(
    fleet: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(fleet), "-o", output]) == 0
    json.loads(capsys.readouterr().out)


def test_github_gets_paths_from_the_top_of_the_repository(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet.parent / ".git").mkdir()
    (fleet / "fleet.yaml").write_text("a: [")

    assert main(["validate", str(fleet), "-o", "github"]) == 3
    assert capsys.readouterr().out.startswith("::error file=fleet/fleet.yaml,line=1,col=5,")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["validate", "nowhere"], 1, 'Error: folder "nowhere" does not exist; pass'),
        (["validate", "--set", "packing=x"], 1, "Error: "),
        (
            ["validate", "-o", "csv"],
            1,
            'Error: validate: -o/--output: invalid value "csv" (use',
        ),
        (
            ["validate", "--jsno"],
            1,
            "Error: validate: unrecognized arguments: --jsno; run `reconciler validate --help`",
        ),
        (
            ["valdate"],
            1,
            'Error: unknown command "valdate" (did you mean validate?)',
        ),
    ],
)
def test_a_usage_error_is_printed_on_stderr_without_a_traceback(
    words: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(
        COMMANDS, "broken", CommandSpec("tests.cli.broken_command", "fails", "environment")
    )
    return "broken"


def test_an_internal_error_is_one_line_with_a_traceback_only_in_debug_mode(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([broken]) == 1
    assert capsys.readouterr().err == (
        "Error: internal error: ZeroDivisionError: our mistake; "
        "run with --debug for the traceback, and please report it\n"
    )
    assert main([broken, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interruption_is_one_line(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([broken, "--how", "interrupt"]) == 130
    assert capsys.readouterr().err == "Interrupted\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "validate" in out
    assert main([]) == 0
    assert capsys.readouterr().out == out


def test_validate_imports_no_slow_modules(fleet: Path, tmp_path: Path) -> None:
    optional = tmp_path / "optional"
    optional.mkdir()
    (optional / "rfc3987_syntax.py").write_text("is_valid_syntax = None\n")
    watch = (
        "import sys; from reconciler.cli.main import main; main(sys.argv[1:]); "
        "print(' '.join(sorted(m.partition('.')[0] for m in sys.modules)))"
    )

    def modules(*words: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", watch, *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(optional)},
        )
        return set(done.stdout.splitlines()[-1].split())

    heavy = {"msgspec", "numpy", "boto3", "sqlalchemy", "git", "networkx", "rich", "celpy"}
    heavy.add("rfc3987_syntax")  # jsonschema's grammar of IRIs, where it is installed
    reading = {"argparse", "ruamel", "jsonschema", "yaml"}
    with_documents = modules("validate", str(fleet))
    assert not with_documents & heavy
    assert with_documents & reading == reading - {"yaml"}
    assert not modules("--version") & (heavy | reading | {"dataclasses", "email"})
    (fleet / "fleet.yaml").write_text("")
    (fleet / "reconciler.yaml").unlink()
    assert "jsonschema" not in modules("validate", str(fleet))


def test_a_closed_pipe_causes_no_error_output(fleet: Path) -> None:
    (fleet / "fleet.yaml").write_text("- a\n" * 5000)
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [sys.executable, "-m", "reconciler", "validate", str(fleet)],
        stdout=writing, stderr=subprocess.PIPE, check=False, cwd=ROOT,
    )  # fmt: skip

    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == b""


def test_the_version_is_shown_with_the_commit_where_it_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--version"]) == 0
    out = capsys.readouterr().out
    commit = r" \(commit [0-9a-f]{12}, from a clone\)" if (ROOT / ".git" / "HEAD").is_file() else ""
    assert re.fullmatch(rf"reconciler {re.escape(__version__)}{commit}\n", out)
