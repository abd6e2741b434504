"""The cases of ``../shared/cases``: small inputs with the right answer.

One module for each kind of case. A module has one test for each case, named in its ``ANSWERS``;
``check_complete`` finds the cases that have none. ``OPEN`` lists the cases whose answer is still
wrong: each is an expected failure, so the list can only become shorter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main

FOLDER = Path(os.environ.get("CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")

NOW = "2026-11-01T12:00:00Z"

Answer = Callable[[Any], None]


def parameters(kind: str, answers: Iterable[str], still_open: Iterable[str] = ()) -> list[Any]:
    """Return the cases of one kind as parameters of a test; all are skipped without the folder."""
    absent = pytest.mark.skipif(not (FOLDER / kind).is_dir(), reason=f"no cases at {FOLDER}")
    wrong = pytest.mark.xfail(strict=True, reason="not answered correctly yet")
    return [
        pytest.param(name, marks=[absent, wrong] if name in set(still_open) else [absent])
        for name in answers
    ]


def check_complete(kind: str, answers: Iterable[str]) -> None:
    """Assert that every case of a kind is answered, and that every answer has a case."""
    if not (FOLDER / kind).is_dir():
        pytest.skip(f"no cases at {FOLDER}")
    assert sorted(answers) == sorted(p.name for p in (FOLDER / kind).iterdir() if p.is_dir())


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    """Return the exit code of a command, the JSON that it printed, and its errors."""
    code = main([*words, "-o", "json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.strip().startswith("{") else None, err


def plan_of(capsys: pytest.CaptureFixture[str], kind: str, case: str, *words: str) -> Any:
    """Return the plan of a case as JSON."""
    fixed = ("--now", NOW, "--set", "cluster=none", "--set", "packing=default")
    code, plan, err = run_json(capsys, "plan", str(FOLDER / kind / case), *fixed, *words)
    assert code == 0, err
    return plan


def pods_of(plan: Any) -> dict[str, int]:
    """Return the number of pods of a plan by the namespace and name of their workload."""
    found: dict[str, int] = {}
    names = [p["pod"] for p in (*plan["placements"], *plan["unschedulable"])]
    for name in names:
        owner = name.rpartition("-")[0]
        found[owner] = found.get(owner, 0) + 1
    return found


def findings_of(plan: Any, code: str) -> list[Any]:
    """Return the findings of a plan or a validation with that code."""
    return [d for d in plan["diagnostics"] if d["code"] == code]
