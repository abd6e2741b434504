"""Migrations of the recorded state go forward only, keep its contents, and back it up first."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from reconciler._resources import resource_path
from reconciler.adapters.database.leases.lock import FileLock
from reconciler.adapters.database.migration import HEAD, migrate
from reconciler.adapters.database.tables import metadata
from reconciler.model.errors import LockedError, StateError
from tests.contracts.records import a_claim
from tests.postgres import a_database
from tests.states import open_state

ROOT = Path(__file__).parents[3]
OLD = ROOT / "tests" / "fixtures" / "migrations"
OLD_STATES = sorted(OLD.glob("*.sql"))


def an_old_state(folder: Path, dump: Path) -> Path:
    path = folder / "state.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.read_text(encoding="utf-8"))
    return path


def schema_of(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return sorted((name, " ".join(sql.split())) for name, sql in rows)


def test_the_constant_is_the_newest_migration_and_there_are_no_gaps() -> None:
    config = Config()
    config.set_main_option("script_location", resource_path("state"))
    scripts = list(ScriptDirectory.from_config(config).walk_revisions())
    assert scripts[0].revision == HEAD
    assert [s.revision for s in reversed(scripts)] == [
        f"{n:04}" for n in range(1, len(scripts) + 1)
    ]
    for script in scripts:
        assert Path(script.path).name.startswith(f"{script.revision}_")


def test_every_older_schema_has_a_frozen_state() -> None:
    assert [p.stem for p in OLD_STATES] == [f"{n:04}" for n in range(1, int(HEAD))]


@pytest.mark.parametrize("dump", OLD_STATES, ids=lambda p: p.stem)
def test_an_upgraded_state_has_the_schema_of_a_new_one(tmp_path: Path, dump: Path) -> None:
    old = an_old_state(tmp_path, dump)
    open_state(str(tmp_path), "web").close()
    fresh = tmp_path / "fresh"
    open_state(str(fresh), "web").close()
    assert schema_of(old) == schema_of(fresh / "state.db")


@pytest.mark.parametrize("dump", OLD_STATES, ids=lambda p: p.stem)
def test_an_upgraded_state_keeps_its_contents_and_is_backed_up_first(
    tmp_path: Path, dump: Path
) -> None:
    an_old_state(tmp_path, dump)
    with open_state(str(tmp_path), "web") as state:
        assert [c.name for c in state.store.node_claims()] == ["general-1", "general-2"]
        assert [e.intent.id for e in state.journal.in_doubt()] == ["intent-2"]
        assert state.store.serial() == 4
        assert state.shelf.read("cluster") == b"\x00\xff"
    copy = tmp_path / f"state.db.before-{HEAD}"
    with closing(sqlite3.connect(copy)) as connection:
        found = connection.execute("SELECT version_num FROM schema_revision").fetchone()
        assert found == (dump.stem,)
        assert connection.execute("SELECT count(*) FROM node_claim").fetchone() == (3,)


def test_a_fresh_state_is_not_copied(tmp_path: Path) -> None:
    open_state(str(tmp_path), "web").close()
    assert list(tmp_path.glob("state.db.before*")) == []


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_migrations_create_the_tables_used_by_the_code(tmp_path: Path, kind: str) -> None:
    location = str(tmp_path) if kind == "sqlite" else a_database()
    declared = create_engine("sqlite://")
    metadata.create_all(declared)
    with open_state(location, "web") as state:
        found = inspect(state.database.engine)
        wanted = inspect(declared)
        for table in metadata.tables:
            assert _columns(found, table) == _columns(wanted, table)
            assert (
                found.get_pk_constraint(table)["constrained_columns"]
                == (wanted.get_pk_constraint(table)["constrained_columns"])
            )
            assert _indexes(found, table) == _indexes(wanted, table)
            assert _references(found, table) == _references(wanted, table)
        assert set(found.get_table_names()) == {*metadata.tables, "schema_revision"}
    declared.dispose()


def _columns(inspector, table):
    kinds = {"BIGINT": "INTEGER", "BYTEA": "BLOB"}
    return [
        (c["name"], kinds.get(str(c["type"]), str(c["type"])), c["nullable"])
        for c in inspector.get_columns(table)
    ]


def _indexes(inspector, table):
    return sorted(
        (i["name"], tuple(i["column_names"]), bool(i["unique"]))
        for i in inspector.get_indexes(table)
    )


def _references(inspector, table):
    return sorted(
        (tuple(k["constrained_columns"]), k["referred_table"])
        for k in inspector.get_foreign_keys(table)
    )


@pytest.mark.parametrize("found", ["0099", "abcdef"])
def test_the_state_of_a_newer_release_is_refused(tmp_path: Path, found: str) -> None:
    open_state(str(tmp_path), "web").close()
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection, connection:
        connection.execute("UPDATE schema_revision SET version_num = ?", (found,))
    with pytest.raises(
        StateError, match=rf"at migration {found}, but this release supports at most {HEAD}"
    ):
        open_state(str(tmp_path), "web")


def test_reading_an_older_state_does_not_change_it(tmp_path: Path) -> None:
    old = an_old_state(tmp_path, OLD_STATES[0])
    before = schema_of(old)
    with pytest.raises(StateError, match="run `reconciler state migrate`"):
        open_state(str(tmp_path), "web", create=False)
    assert schema_of(old) == before


def test_a_migration_that_fails_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    (broken / "versions").mkdir(parents=True)
    real = Path(resource_path("state"))
    (broken / "env.py").write_text((real / "env.py").read_text())
    for script in (real / "versions").glob("*.py"):
        text = script.read_text()
        if script.name.startswith(HEAD):
            text += "    op.execute('INSERT INTO no_such_table VALUES (1)')\n"
        (broken / "versions" / script.name).write_text(text)
    folder = tmp_path / "state"
    folder.mkdir()
    old = an_old_state(folder, OLD_STATES[0])
    before = schema_of(old)
    name = "reconciler.adapters.database.migration.resource_path"
    monkeypatch.setattr(name, lambda _: str(broken))
    with pytest.raises(StateError, match="no such table"):
        open_state(str(folder), "web")
    assert schema_of(old) == before


def test_processes_starting_at_the_same_time_migrate_once(tmp_path: Path) -> None:
    an_old_state(tmp_path, OLD_STATES[0])
    script = (
        "import sys\n"
        "from tests.states import open_state\n"
        "from tests.contracts.records import a_claim\n"
        "with open_state(sys.argv[1], 'web') as state:\n"
        "    state.store.put_node_claims([a_claim(sys.argv[2])])\n"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), f"new-{n}"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for n in range(4)
    ]
    assert [starter.wait(60) for starter in starters] == [0] * 4
    with open_state(str(tmp_path), "web") as state:
        assert len(state.store.node_claims()) == 6


def test_a_state_in_use_by_an_older_release_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = an_old_state(tmp_path, OLD_STATES[0])
    monkeypatch.setattr("reconciler.adapters.database.state._WAIT_S", 0)
    before = schema_of(old)
    with (
        FileLock(tmp_path / "lock").hold(0),
        pytest.raises(LockedError, match=r"process \d+.*is using this state directory"),
    ):
        open_state(str(tmp_path), "web")
    assert schema_of(old) == before


def test_a_server_is_migrated_by_one_of_two_starting_processes() -> None:
    url = a_database()
    with open_state(url, "one") as one, open_state(url, "two") as two:
        one.store.put_node_claims([a_claim("a")])
        assert migrate(two.database.engine, two.database.place, None) == []


def test_an_older_state_on_a_server_is_upgraded_with_its_contents() -> None:
    url = a_database()
    engine = create_engine(url)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", resource_path("state"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(text("INSERT INTO fleet (name, serial) VALUES ('web', 7)"))
    engine.dispose()
    with pytest.raises(StateError, match="run `reconciler state migrate`"):
        open_state(url, "web", create=False)
    with open_state(url, "web") as state:
        assert state.store.serial() == 7
        assert list(state.history.decisions("Pod", "a")) == []
