"""``reconciler state``: migrate, check, export, import."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from reconciler._resources import resource_path
from reconciler.cli.main import main
from tests.adapters.database.test_migration import OLD_STATES, an_old_state
from tests.cli.recorded_fleet import record
from tests.postgres import a_database


@pytest.fixture(autouse=True)
def fleet_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RECONCILER_STATE", raising=False)
    folder = tmp_path / "web"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["state", "export", "-", *words]) == 0
    return capsys.readouterr().out


def damage(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / ".reconciler" / "state.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_export_is_imported_unchanged(
    kind: str, fleet_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    target = str(tmp_path / "other") if kind == "sqlite" else a_database()
    assert main(["state", "export", "web.jsonl"]) == 0
    assert main(["state", "import", "web.jsonl", "--state", target]) == 0
    assert "28 rows of fleet web" in capsys.readouterr().out
    assert exported(capsys, "--state", target) == (fleet_folder / "web.jsonl").read_text(
        encoding="utf-8"
    )
    assert main(["state", "check", "--state", target]) == 0


def test_an_export_can_be_imported_as_another_fleet(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    assert main(["state", "export", "web.jsonl"]) == 0
    assert main(["state", "import", "web.jsonl", "--set", "fleet=copy"]) == 0
    capsys.readouterr()
    assert main(["get", "nodes", "--set", "fleet=copy"]) == 0
    assert "ip-web-old1.internal" in capsys.readouterr().out


def test_rare_separators_within_a_text_survive(
    fleet_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.states import open_state

    record(fleet_folder / ".reconciler")
    with open_state(str(fleet_folder / ".reconciler"), "web") as state:
        state.store.forget_node_claims({"batch-7": "a\u2028b\x85c\x0bd\ne"}, _now())
    assert main(["state", "export", "web.jsonl"]) == 0
    assert main(["state", "import", "web.jsonl", "--state", str(tmp_path / "other")]) == 0
    other = exported(capsys, "--state", str(tmp_path / "other"))
    written = (fleet_folder / "web.jsonl").read_text(encoding="utf-8")
    assert [*map(json.loads, other.splitlines())] == [*map(json.loads, written.split("\n")[:-1])]


def _now():
    from tests.cli.recorded_fleet import NOW

    return NOW


def test_an_import_requires_an_empty_state(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    assert main(["state", "export", "web.jsonl"]) == 0
    assert main(["state", "import", "web.jsonl"]) == 1
    assert "import into an empty state" in capsys.readouterr().err


def _lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


SPOILT = {
    "cut off": (lambda lines: lines[:-1], "the end is missing, but 28 were read"),
    "a row short": (lambda lines: [*lines[:-2], lines[-1]], "expected 28 rows, but 27 were read"),
    "no head": (lambda lines: lines[1:], "the first line is not an export header"),
    "empty": (lambda _: [], "line 1 is not JSON"),
    "not an object": (lambda lines: [lines[0], [1]], "line 2 is not an object"),
    "newer": (lambda lines: [{**lines[0], "migration": "0099"}], "it is at migration 0099"),
    "no table": (lambda lines: [lines[0], {"table": "fleet"}], "unknown table fleet"),
    "no such column": (
        lambda lines: [lines[0], {"table": "shelf", "row": {"x": 1}}],
        "line 2: not a row of shelf",
    ),
    "not base64": (
        lambda lines: [lines[0], {"table": "shelf", "row": {"name": "x", "content": "é"}}],
        "line 2: content is not base64",
    ),
    "another type": (
        lambda lines: [
            lines[0],
            {"table": "revision", "row": {"sequence": "1", "revision": "a", "at": "b"}},
        ],
        'line 2: sequence is "1"',
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_damaged_export_is_rejected_completely(
    name: str, fleet_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    spoil, output = SPOILT[name]
    lines = spoil(_lines(exported(capsys)))
    (tmp_path / "spoilt.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    target = str(tmp_path / "target")
    assert main(["state", "import", str(tmp_path / "spoilt.jsonl"), "--state", target]) == 1
    captured = capsys.readouterr()
    assert output in captured.err
    assert str(tmp_path / "spoilt.jsonl") in captured.err
    assert main(["get", "nodeclaims", "--state", target]) == 1


def test_an_import_does_not_wait_for_an_engine(
    fleet_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.states import open_state

    record(fleet_folder / ".reconciler")
    assert main(["state", "export", "web.jsonl"]) == 0
    with open_state(str(tmp_path / "target"), "web") as state:
        state.lease.acquire()
        assert main(["state", "import", "web.jsonl", "--state", str(tmp_path / "target")]) == 1
    assert "is using this state directory" in capsys.readouterr().err


def test_an_old_state_is_migrated_on_demand(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = fleet_folder / ".reconciler"
    state.mkdir()
    an_old_state(state, OLD_STATES[0])
    assert main(["get", "nodeclaims"]) == 1
    assert "run `reconciler state migrate`" in capsys.readouterr().err
    assert main(["state", "migrate"]) == 0
    assert "is at migration" in capsys.readouterr().out
    assert main(["get", "nodeclaims"]) == 0


DAMAGE = {
    "orphan": ("PRAGMA foreign_keys = OFF", "DELETE FROM fleet"),
    "outcome": ("UPDATE journal_intent SET last_outcome = NULL WHERE id = 'i1'",),
    "body": ("UPDATE plan SET body = CAST('{}' AS BLOB)",),
    "instance": ("UPDATE node_claim SET instance_id = 'i-web-old1' WHERE name = 'web-old2'",),
}


@pytest.mark.parametrize("code", DAMAGE)
def test_problems_of_a_state_are_found(
    code: str, fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from reconciler.adapters.database.maintenance import check
    from tests.states import open_state

    record(fleet_folder / ".reconciler")
    damage(fleet_folder, *DAMAGE[code])
    with open_state(str(fleet_folder / ".reconciler"), "web") as state:
        errors = [f.code for f in check(state.database) if f.gravity == "error"]
    assert set(errors) == {code}
    if code != "orphan":  # without its row the fleet itself is not found
        assert main(["state", "check"]) == 1
        assert f"[{code}]" in capsys.readouterr().out


def test_old_settled_records_are_removed_and_reported(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cli.recorded_fleet import NOW

    record(fleet_folder / ".reconciler")
    words = ["state", "prune", "--keep", "36h", "--now", f"{NOW + timedelta(days=40):%FT%TZ}"]
    before = exported(capsys)
    assert main([*words, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "REMOVABLE" in output
    assert exported(capsys) == before
    assert main(words) == 0
    gone = capsys.readouterr().out
    alike = gone.replace("REMOVED", "REMOVABLE").replace("were removed", "would be removed")
    assert alike.split() == output.split()
    assert "from before 2026-02-11 00:00 UTC were removed" in gone
    assert len(exported(capsys)) < len(before)
    assert main(["state", "check"]) == 0
    assert "unknown" in exported_history(capsys)
    assert main([*words, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schema = json.loads(Path(resource_path("schemas", "pruning.v1.json")).read_bytes())
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(found)
    assert found["dryRun"] is False
    assert all(kind["gone"] == 0 for kind in found["records"].values())


def exported_history(capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["history", "--by-operation"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "output"),
    [
        (["--keep", "23h"], 1, "23h is shorter than a day"),
        (["--keep", "soon"], 1, 'invalid duration "soon"'),
        (["--set", "history.keep=Never"], 1, "set how long to keep"),
    ],
)
def test_an_invalid_retention_is_rejected(
    words: list[str], code: int, output: str, fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    assert main(["state", "prune", *words]) == code
    assert output in capsys.readouterr().err


def test_records_in_use_by_an_engine_are_not_pruned(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.states import open_state

    record(fleet_folder / ".reconciler")
    with open_state(str(fleet_folder / ".reconciler"), "web") as state:
        state.lease.acquire()
        assert main(["state", "prune"]) == 1
        assert "is using this state directory" in capsys.readouterr().err
        assert main(["state", "prune", "--dry-run"]) == 0, "to look disturbs nobody"


def test_a_plan_older_than_the_records_is_not_applied(fleet_folder: Path) -> None:
    """Whether it was applied before can no longer be determined."""
    from types import SimpleNamespace

    from reconciler.cli.commands.acting.apply import refuse_reapplied_plan
    from reconciler.model.errors import StalePlanError
    from tests.cli.recorded_fleet import NOW
    from tests.states import open_state

    record(fleet_folder / ".reconciler")
    with open_state(str(fleet_folder / ".reconciler"), "web") as state:
        saved = SimpleNamespace(digest="another", at=NOW)
        clock = SimpleNamespace(now=lambda: NOW + timedelta(days=40))
        assembly = SimpleNamespace(state=state, world=SimpleNamespace(clock=clock))
        refuse_reapplied_plan(assembly, saved)
        state.history.prune(NOW + timedelta(days=40), timedelta(days=2))
        with pytest.raises(StalePlanError, match="older than the recorded history"):
            refuse_reapplied_plan(assembly, saved)
        refuse_reapplied_plan(assembly, SimpleNamespace(digest="x", at=NOW + timedelta(days=39)))
