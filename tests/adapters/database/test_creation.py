"""Several connections create one state at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

from reconciler.adapters.database.state import open_state
from reconciler.adapters.nofollow import refuse_linked_journal, refuse_special_file

COUNT = 4


def test_fleets_that_open_a_new_state_together_all_get_it(tmp_path: Path) -> None:
    for number in range(10):
        start = Barrier(COUNT)

        def serial(
            fleet: str, folder: Path = tmp_path / str(number), start: Barrier = start
        ) -> int:
            start.wait()
            with open_state(str(folder), fleet, needs_lease=False) as state:
                return state.store.serial()

        with ThreadPoolExecutor(COUNT) as pool:
            assert list(pool.map(serial, "abcd")) == [0] * COUNT


def test_a_journal_that_another_connection_removes_meanwhile_is_none(tmp_path: Path) -> None:
    """Thousands of times, so that the moment between a check and an opening is hit."""
    journal, ended = tmp_path / "state.db-journal", Event()

    def commit() -> None:
        while not ended.is_set():
            journal.write_bytes(b"x" * 20)
            journal.unlink()

    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(commit)
        try:
            for _ in range(3_000):
                refuse_special_file(journal)
                refuse_linked_journal(str(journal))
        finally:
            ended.set()
        committing.result()
