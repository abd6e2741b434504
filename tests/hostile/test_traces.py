"""Traces from strangers: values that no pod of a cluster has."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reconciler.backtest.captures.reading import read_capture
from reconciler.cli.main import main
from reconciler.model.errors import ReconcilerError
from tests.cli.sourcefolders import CLASS, POOL, below, write
from tests.cli.test_trace_captures import capture, change, created, deployment, event, job
from tests.cli.test_trace_captures import lines as as_log
from tests.hostile.test_scheduler_files import places
from tests.hostile.threats import Threat, attack
from tests.placement.builders import TYPES

HEADER = {"apiVersion": "reconciler/v1", "kind": "Trace", "seconds": 3600.0}
POD = {"pod": "a", "class": "c", "created": 0.0, "bound": 10.0, "deleted": 600.0}


def term(**expression: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def requests(text: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"requests": {"cpu": text}}}]}


ODD_SPECS: dict[str, dict[str, Any]] = {
    "text for a quantity": requests("x"),
    "no quantity": requests(""),
    "control characters in a quantity": requests("\x1b[31m1"),
    "an odd overhead": {**requests("1"), "overhead": {"cpu": "1Xi"}},
    "an odd operator": {**requests("1"), **term(key="a", operator="Near", values=["b"])},
    "a number that is none": {**requests("1"), **term(key="a", operator="Gt", values=["b"])},
    "an odd selector": {
        **requests("1"),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]},
            }
        ],
    },
}  # fmt: skip


@attack(Threat.EXHAUSTION, "a trace with a pod that no API server accepts")
@pytest.mark.parametrize("daemon", [False, True], ids=["pod", "daemon"])
@pytest.mark.parametrize("spec", ODD_SPECS.values(), ids=ODD_SPECS)
def test_an_odd_pod_in_a_trace_is_an_error_with_its_line(
    spec: dict[str, Any],
    daemon: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``check_spec`` in ``_parse_class``."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, below("fleet", {"class.yaml": CLASS, "pool.yaml": POOL}))
    Path("catalog.json").write_text(json.dumps(TYPES))
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
    lines = [HEADER, {"class": "c", "spec": requests("1")}, POD]
    odd = {"class": "d", "spec": spec, **({"owner": owner, "daemonSet": True} if daemon else {})}
    lines.insert(1, odd)
    Path("day.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    words = ["--trace", "day.jsonl", "--catalog", "catalog.json", "--set", "cluster=none"]
    assert main(["simulate", "fleet", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: day.jsonl:2: "), error
    assert "internal error" not in error
    assert len(error.splitlines()) == 1


@attack(Threat.EXHAUSTION, "a list of objects whose items are a number or a text")
@pytest.mark.parametrize("items", ["1" * 41, "5", "true", '"text"', '{"a": 1}'])
def test_items_that_are_no_list_are_an_error_of_one_line(
    items: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("objects.json").write_text(f'{{"apiVersion": "v1", "kind": "List", "items": {items}}}')
    assert main(["init", "new", "--from", "objects.json"]) != 0
    assert "internal error" not in capsys.readouterr().err
    assert main(["plan", "-f", "objects.json"]) != 0
    assert "internal error" not in capsys.readouterr().err


ODD_VALUES = (
    *(None, True, -1, 1e308, 10**400, "", "\x1b[2J\n", "\ud800", [], {}, [[]], {"a": None}),
    *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00+99:99"),
)
CAPTURES: dict[str, tuple[list[dict[str, Any]], Callable[[list[dict[str, Any]]], bytes]]] = {
    "an audit log": ([created(0, "a"), event(4, "create", "a", "binding")], as_log),
    "a capture of kubereplay": (
        [deployment(0, "a", 3), job(3, parallelism=3, completions=2), change(9, "a", replicas=1)],
        lambda events: capture(*events),
    ),
}


@attack(Threat.EXHAUSTION, "an odd value anywhere in an audit log, or in a capture of kubereplay")
@pytest.mark.parametrize("kind", CAPTURES)
def test_an_odd_capture_is_a_trace_or_an_error_of_one_line(kind: str) -> None:
    events, form = CAPTURES[kind]
    for path in places(events):
        if not path:
            continue
        for odd in ODD_VALUES:
            data = copy.deepcopy(events)
            at: Any = data
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = odd
            lines = report_of(form(data))
            assert all(len(line) < 2_000 for line in lines)


def report_of(content: bytes) -> list[str]:
    """Return the report on a capture, or why it cannot be read, in one line."""
    try:
        found = read_capture(content, "x.json")
    except ReconcilerError as error:
        return [str(error).replace("\n", "x" * 2_000)]
    return found[1].splitlines() if found is not None else []
