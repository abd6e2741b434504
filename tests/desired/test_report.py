"""Findings as text, JSON, annotations and SARIF: what people review is a golden file."""

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler import __version__
from reconciler.cli.output.findings import render_github, render_json, render_text
from reconciler.cli.output.sarif import render_sarif
from reconciler.model.diagnostics import Diagnostic, Place, Severity

GOLDEN = Path(__file__).parent / "golden"
SOURCE = {"pools/a.yaml": "kind: NodePool\nspec:\n  wieght: 5\n\tx: \x1b[31mé\n".encode()}
FINDINGS = (
    Diagnostic(
        Severity.ERROR,
        "unknown-field",
        "unknown field in spec",
        Place("pools/a.yaml", 3, 3),
        "spec.wieght",
        "did you mean weight?",
    ),
    Diagnostic(Severity.ERROR, "syntax", "not YAML: a\nb, 100%", Place("pools/a.yaml", 4, 6)),
    Diagnostic(
        Severity.WARNING,
        "missing-nodeclass",
        "no EC2NodeClass of the name x in the folder",
        Place("pools/b c.yaml", 9, 1),
        "spec.template.spec.nodeClassRef.name",
    ),
    Diagnostic(Severity.INFO, "skipped-kinds", "2 objects of other kinds skipped: Service (2)"),
)


def rendered(form: str) -> str:
    match form:
        case "json":
            return render_json(FINDINGS)
        case "github":
            return render_github(FINDINGS, "fleets/web")
        case "sarif":
            return render_sarif(FINDINGS, "fleets/web").replace(__version__, "0.0.0")
        case "colour":
            return render_text(FINDINGS, SOURCE, colour=True)
    return render_text(FINDINGS, SOURCE)


@pytest.mark.parametrize("form", ["txt", "colour", "json", "github", "sarif"])
def test_findings_equal_the_golden_files(form: str) -> None:
    golden = GOLDEN / f"report.{form}"
    assert rendered(form) == golden.read_bytes().decode()


def test_text_without_findings_says_valid() -> None:
    assert render_text(()) == "valid\n"


def test_text_contains_no_control_characters_of_the_source() -> None:
    assert all(c.isprintable() or c == "\n" for c in rendered("txt"))


def test_an_excerpt_of_a_long_line_shows_the_position() -> None:
    source = {"f.yaml": (" " * 5000 + "HERE" + "x" * 5000).encode()}
    finding = Diagnostic(Severity.ERROR, "x", "here", Place("f.yaml", 1, 5001))

    lines = render_text([finding], source).splitlines()

    assert len(lines[1]) < 140
    assert lines[2].index("^") == lines[1].index("HERE")


def test_json_follows_the_contract() -> None:
    data = json.loads(render_json(FINDINGS))

    assert data["valid"] is False
    assert [sorted(d) for d in data["diagnostics"]] == [
        ["code", "column", "file", "hint", "line", "message", "path", "severity"]
    ] * 4
    assert json.loads(render_json(FINDINGS[2:]))["valid"] is True


def test_github_workflow_commands_are_escaped() -> None:
    lines = rendered("github").splitlines()

    assert len(lines) == len(FINDINGS)
    assert "100%25" in lines[1]
    assert "%0A" in lines[1]
    assert lines[3].startswith("::notice title=skipped-kinds::")


def test_sarif_has_what_a_code_scanning_service_needs() -> None:
    data: Any = json.loads(render_sarif(FINDINGS))
    (run,) = data["runs"]
    rules = run["tool"]["driver"]["rules"]

    assert data["version"] == "2.1.0"
    for rule in rules:
        assert rule["id"]
        assert rule["help"]["text"]
    for result, finding in zip(run["results"], FINDINGS, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        if finding.place:
            (location,) = result["locations"]
            physical = location["physicalLocation"]
            assert " " not in physical["artifactLocation"]["uri"]
            assert physical["region"]["startLine"] == finding.place.line
            assert physical["region"]["startColumn"] == finding.place.column
