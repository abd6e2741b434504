"""A pass is typed: a step cannot be given the facts of another one."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from mypy import api

from reconciler.engine import reconcile as module
from reconciler.engine.reconcile import reconcile

OTHER = {
    "observed": "collected",
    "collected": "observed",
    "advanced": "collected",
    "seen": "advanced",
    "plan": "fresh",
}


def steps() -> list[str]:
    """Return the lines of the pass that run a step, as they are written."""
    return re.findall(r"^ +(?:\w+ = )?step\(.+\)$", inspect.getsource(reconcile), re.MULTILINE)


def faulty(line: str) -> list[str]:
    """Return a line with another fact in each place, and without its last one."""
    call, facts = line.rsplit(", ", 1)[0], re.compile(rf"(?<=, )({'|'.join(OTHER)})\b")
    swapped = [
        line[: fact.start()] + OTHER[fact[1]] + line[fact.end() :] for fact in facts.finditer(line)
    ]
    return [*swapped, f"{call})"]


def errors(source: str, folder: Path) -> set[int]:
    """Return the lines of the module that mypy refuses with this source."""
    edited = folder / "reconcile.py"
    edited.write_text(source)
    path = str(Path(module.__file__))
    report, _, _ = api.run(["--shadow-file", path, str(edited), path])
    return {int(number) for number in re.findall(r"reconcile\.py:(\d+): error", report)}


@pytest.mark.exhaustive
def test_a_step_with_another_fact_or_without_one_fails_the_type_check(tmp_path: Path) -> None:
    source = Path(module.__file__).read_text()
    assert errors(source, tmp_path) == set()
    wrong: list[int] = []
    before = source[: source.index(steps()[-1])] + steps()[-1]
    for edit in (edit for line in steps() for edit in faulty(line)):
        before += "\n" + re.sub(r"^( +)\w+ = ", r"\1", edit)
        wrong.append(before.count("\n") + 1)
    rest = source[source.index(steps()[-1]) + len(steps()[-1]) :]
    assert len(wrong) > 2 * len(steps()) - 10
    assert errors(before + rest, tmp_path) == set(wrong)
