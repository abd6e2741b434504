"""Several connections create one state at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from reconciler.adapters.database.state import open_state

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
