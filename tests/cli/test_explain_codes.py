"""``reconciler explain CODE``: every code that a finding can have is explained, and no other."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.source.codes import chosen_codes, known_codes

PACKAGE = Path(__file__).parents[2] / "reconciler"
MAKERS = frozenset(
    [
        "Finding",
        "Diagnostic",
        "PlanFinding",
        "VolumeNote",
        "_Refused",
        "_find",
        "_finding",
        "finding",
        "_cannot_launch_finding",
        "_identity_finding",
        "_ParseError",
        "_add_finding",
        "AdmissionNote",
        "_refuse",
        "_refuse_link",
        "_refusal",
        "_note",
        "note",
        "warn",
        "refuse",
    ]
)
"""Functions and classes that are given the code of a finding."""
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
CHOSEN = {
    "source/schema.py": {"bad-duration", "bad-price", "bad-quantity"},
    "catalog/names.py": {"unknown-instance-family", "unknown-instance-type", "unknown-zone"},
    "desired/rules/runtime.py": {"bad-schedule", "bad-time-zone"},
    "plan/make/findings.py": {"catalog-note", "spot-estimated"},
    "plan/make/pools.py": {"overlay-conflict", "overlay-invalid"},
    "engine/ownership.py": {"contested-instance", "unknown-instance"},
    "source/objects.py": {"old-version", "wrong-version"},
    "desired/sources/detection.py": {"ambiguous-source"},
    "desired/sources/unread.py": {
        "ambiguous-workloads",
        "missing-tool",
        "unread-object",
        "unread-source",
        "unrendered-source",
    },
    "desired/fleet.py": {"name-reference"},
    "assembly/inputs/rendering.py": {"missing-tool", "render-failed"},
}
"""By module the codes that are computed or looked up there."""


def emitted() -> Iterator[str]:
    """Yield the codes in the source where a finding is created."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign)
            and isinstance(target := node.target, ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            words = [k.value for k in call.keywords if k.arg == "code"] or list(call.args[:3])
            for word in words if name in MAKERS else ():
                value = names.get(word.id) if isinstance(word, ast.Name) else None
                value = word.value if isinstance(word, ast.Constant) else value
                if isinstance(value, str) and CODE.fullmatch(value):
                    yield value
                    break


def test_every_code_of_the_source_is_explained_and_no_other() -> None:
    chosen = set().union(*CHOSEN.values())
    rules = set(known_codes()) - set(chosen_codes())
    found = set(emitted()) | chosen
    assert found - rules - set(chosen_codes()) == set()
    assert set(chosen_codes()) - found == set()


@pytest.mark.parametrize("module", CHOSEN)
def test_the_computed_codes_are_those_of_the_module(module: str) -> None:
    text = (PACKAGE / module).read_text(encoding="utf-8")
    for code in CHOSEN[module] - {"overlay-conflict", "overlay-invalid"}:
        assert f'"{code}"' in text


@pytest.mark.parametrize("word", ["unknown-field", "[unknown-field]", "UNKNOWN-FIELD"])
def test_a_code_is_explained_as_it_is_printed(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", word]) == 0
    out = capsys.readouterr().out
    assert out.startswith("unknown-field\n\nA field is unknown, often because of a typo.")


def test_a_rule_of_a_schema_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "static-weight", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["code"] == "static-weight"
    assert "'weight' is not supported on static NodePools" in answer["meaning"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["unknown-feild"], "did you mean unknown-field?"),
        (["qwertz"], "use one of pod, node, nodeclaim, nodepool, buffer, or a code"),
        (["pod"], "the name of the pod is missing; write `reconciler explain pod NAME`"),
        (["unknown-field", "web"], "unknown-field takes no name"),
    ],
    ids=["typo", "nothing like it", "no name", "a name"],
)
def test_an_unknown_code_is_an_error(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *words]) == 1
    assert problem in capsys.readouterr().err
