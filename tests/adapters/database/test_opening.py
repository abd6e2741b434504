"""Reasons why a state cannot be opened, each reported in one line with a remedy."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from reconciler.model.errors import StateError
from reconciler.ports.journal import IntentOutcome, Outcome
from tests.contracts.records import NOW, a_claim, an_intent
from tests.postgres import a_database
from tests.states import open_state


def refusal(location: object, *, create: bool = True) -> str:
    with pytest.raises(StateError) as caught:
        open_state(str(location), "web", create=create)
    assert caught.value.remedy
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_state_directory_is_private_and_ignored_by_git(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    open_state(str(folder), "web").close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "state.db").stat().st_mode) == 0o600
    assert (folder / ".gitignore").read_text() == "*\n"


def test_only_our_folder_is_ignored_by_git(tmp_path: Path) -> None:
    for name in (".reconciler", "theirs"):
        (tmp_path / name).mkdir()
        open_state(str(tmp_path / name), "web").close()
    assert (tmp_path / ".reconciler" / ".gitignore").exists()
    assert not (tmp_path / "theirs" / ".gitignore").exists()


def test_a_commit_is_synced_to_the_disk_and_rows_have_types(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state, state.database.read_transaction() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
        strict = connection.exec_driver_sql(
            "SELECT count(*) FROM pragma_table_list WHERE strict AND schema = 'main'"
        ).scalar()
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 10_000,
    }
    assert strict == 18


def test_a_current_state_is_opened_without_alembic(tmp_path: Path) -> None:
    open_state(str(tmp_path), "web").close()
    script = (
        "import sys\n"
        "from tests.states import open_state\n"
        "open_state(sys.argv[1], 'web').close()\n"
        "sys.exit('alembic' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


def test_an_sqlite_without_strict_tables_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    assert "need 3.37; use a newer Python build" in refusal(tmp_path)


def test_threads_may_share_a_state(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state, ThreadPoolExecutor(8) as pool:

        def work(n: int) -> None:
            state.journal.begin([an_intent(f"i{n}")])
            state.store.put_node_claims([a_claim(f"c{n}")])
            state.journal.finish([IntentOutcome(f"i{n}", Outcome.SUCCEEDED)], NOW)

        list(pool.map(work, range(60)))
        assert state.store.serial() == 60
        assert [e.sequence for e in state.journal.entries()] == list(range(60, 0, -1))
        assert list(state.journal.in_doubt()) == []


def test_a_writer_does_not_block_readers(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state, open_state(str(tmp_path), "web") as other:
        state.store.put_node_claims([a_claim("a")])
        with state.database.write_transaction() as connection:
            state.database.increment_serial(connection)
            assert len(other.store.node_claims()) == 1
            assert other.store.serial() == 1


def test_reading_creates_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert "no recorded state in this folder yet" in refusal(folder, create=False)
    assert not folder.exists()


def test_a_file_is_not_a_state_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "this is a file, but the state needs a folder" in refusal(tmp_path / "file")


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = refusal(tmp_path / "file" / "state")
    assert text.startswith(f"{tmp_path / 'file'}: this is a file")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"this is not a database, and long enough" * 100)
    text = refusal(tmp_path)
    assert str(tmp_path / "state.db") in text
    assert "file is not a database" in text
    assert "state.db.before-*" in text


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "state.db")) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    assert "a database, but not a state of reconciler" in refusal(tmp_path)


def test_a_damaged_file_is_refused_when_it_is_read(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        state.store.put_node_claims([a_claim(f"c{n}") for n in range(500)])
    path = tmp_path / "state.db"
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xaa" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"malformed.*restore a backup"):
        open_state(str(tmp_path), "web").store.node_claims()


def test_a_record_edited_by_others_is_named(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        state.store.put_node_claims([a_claim("general-1")])
        with closing(sqlite3.connect(tmp_path / "state.db")) as other, other:
            other.execute("UPDATE node_claim SET body = '{}'")
        with pytest.raises(StateError, match="the record of NodeClaim general-1 is not"):
            state.store.node_claims()


@pytest.fixture
def folder_of_another() -> Iterator[Path]:
    """A folder that this process can list but not write, even if the tests run as root."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        effective = os.geteuid()
        if effective == 0:
            os.seteuid(65534)
        yield folder
        os.seteuid(effective)
        folder.chmod(0o755)


def test_a_read_only_folder_is_rejected(folder_of_another: Path) -> None:
    assert "give this user" in refusal(folder_of_another)
    assert "give this user" in refusal(folder_of_another / "state")


def test_a_read_only_file_is_rejected_on_the_first_write(tmp_path: Path) -> None:
    open_state(str(tmp_path), "web").close()
    with open_state(str(tmp_path), "web") as state:
        with state.database.read_transaction() as connection:
            connection.exec_driver_sql("PRAGMA query_only = ON")
        with pytest.raises(StateError, match=r"readonly.*give this user"):
            state.store.put_node_claims([a_claim("a")])


def test_a_full_disk_is_reported_and_keeps_the_old_state(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        state.store.put_node_claims([a_claim("a")])
        with state.database.read_transaction() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StateError, match=r"disk is full; free some space"):
            state.store.put_node_claims([a_claim(f"c{n}") for n in range(2000)])
        assert [c.name for c in state.store.node_claims()] == ["a"]


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("mysql://host/db", "unsupported database mysql"),
        ("sqlite:///state.db", "unsupported database sqlite"),
        ("postgresql+asyncpg://h/db", "unsupported database postgresql"),
        ("://", "not a URL"),
        ("postgresql://user:hunter2@127.0.0.1:1/db", "start the server"),
        ("postgresql://127.0.0.1:1/db?user=u&password=hunter2", "start the server"),
        ("postgresql://nobody@no-such-host.invalid/db", "correct the host"),
    ],
)
def test_an_invalid_url_is_reported_without_its_password(location: str, message: str) -> None:
    text = refusal(location)
    assert message in text
    assert "hunter2" not in text


def test_a_missing_database_is_reported() -> None:
    url = a_database().replace("/test_", "/missing_")
    text = refusal(url)
    assert "does not exist" in text
    assert "create it on the server" in text


def test_reading_a_server_without_a_state_creates_none() -> None:
    assert "no recorded state in this folder yet" in refusal(a_database(), create=False)
