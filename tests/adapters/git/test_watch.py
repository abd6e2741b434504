"""Notification of changes, and only of relevant ones."""

import threading
from pathlib import Path

import pytest

from reconciler.adapters.git.watch import watch
from reconciler.model.errors import UnreadableError

from .conftest import POOL, Repository


class Calls:
    """Counts callbacks, and waits for the next one."""

    def __init__(self) -> None:
        self.count = 0
        self._called = threading.Condition()

    def __call__(self) -> None:
        with self._called:
            self.count += 1
            self._called.notify_all()

    def reach(self, count: int, timeout_s: float = 10.0) -> bool:
        with self._called:
            return self._called.wait_for(lambda: self.count >= count, timeout_s)


def test_a_burst_of_changes_is_one_call_and_the_next_another(repository: Repository) -> None:
    repository.commit({"pool.yaml": POOL})
    calls = Calls()
    with watch(str(repository.path), calls, quiet_s=0.1):
        repository.write({f"{n}.yaml": POOL for n in range(20)})
        assert calls.reach(1)
        assert not calls.reach(2, timeout_s=0.5)
        repository.write({"sub/x.yaml": POOL})
        assert calls.reach(2)


def test_a_commit_of_an_unchanged_folder_counts(repository: Repository) -> None:
    repository.commit({"fleet/pool.yaml": POOL})
    calls = Calls()
    with watch(str(repository.path / "fleet"), calls, quiet_s=0.05):
        repository.commit({"elsewhere.txt": "x"})
        assert calls.reach(1)


def test_changes_outside_the_fleet_are_ignored(repository: Repository) -> None:
    repository.commit({"pool.yaml": POOL})
    calls = Calls()
    with watch(str(repository.path), calls, quiet_s=0.05):
        repository.write({"notes.txt": "x", ".reconciler/plan.json": "{}"})
        repository.git("status")
        assert not calls.reach(1, timeout_s=0.4)


def test_a_folder_outside_a_repository_is_watched_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POOL)
    calls = Calls()
    with watch(str(tmp_path), calls, quiet_s=0.05):
        (tmp_path / "a.yaml").unlink()
        assert calls.reach(1)


def test_a_closed_watch_makes_no_calls(tmp_path: Path) -> None:
    calls = Calls()
    watching = watch(str(tmp_path), calls, quiet_s=0.05)
    watching.close()
    (tmp_path / "a.yaml").write_text(POOL)
    assert not calls.reach(1, timeout_s=0.3)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="does not exist"):
        watch(str(tmp_path / "x"), lambda: None)
