"""A write killed at any time is complete or absent, and nothing stays locked."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconciler.model.errors import LockedError
from tests.contracts.records import a_claim
from tests.states import open_state

ROOT = Path(__file__).parents[3]

WRITER = """
import sys
from datetime import UTC, datetime
from tests.states import open_state
from reconciler.ports.journal import IntentOutcome, Intent, Outcome, Verb
from tests.contracts.records import a_claim, an_object

state = open_state(sys.argv[1], "web")
now = datetime(2026, 1, 3, tzinfo=UTC)
turn = 0
while True:
    turn += 1
    ids = [f"{turn}-{n}" for n in range(7)]
    state.journal.begin([Intent(id=i, verb=Verb.LAUNCH, target=i, at=now) for i in ids])
    state.store.put_node_claims([a_claim(f"c{n}", pool=f"pool-{turn}") for n in range(40)])
    state.store.put_objects([an_object(f"o{n}", hash=str(turn)) for n in range(20)], str(turn), now)
    state.journal.finish([IntentOutcome(ids[0], Outcome.SUCCEEDED)], now)
    print(turn, flush=True)
"""


@contextmanager
def running(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def last_line(process: subprocess.Popen[str]) -> int:
    """Return the last turn that the writer reported as durable before it was killed."""
    assert process.stdout is not None
    return max(map(int, process.stdout.read().split()), default=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
def test_a_write_interrupted_by_a_crash_is_complete_or_absent(tmp_path: Path, seed: int) -> None:
    with running(WRITER, tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # The test varies the time of the kill, which does not affect the outcome.
        time.sleep(random.Random(seed).uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        reported = max(1, last_line(process))

    with open_state(str(tmp_path), "web") as state:
        pools = {claim.node_pool for claim in state.store.node_claims()}
        hashes = {o.hash for o in state.store.objects()}
        intents = len(state.journal.entries(limit=100_000))
        assert len(state.store.node_claims()) == 40
        assert len(state.store.objects()) == 20
        assert (len(pools), len(hashes), intents % 7) == (1, 1, 0)
        assert int(hashes.pop()) in (reported, reported + 1)
        assert intents // 7 in (reported, reported + 1)
        assert len(state.journal.in_doubt()) in (6 * reported, 6 * reported + 7, 6 * reported + 6)
        with state.database.read_transaction() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        state.store.put_node_claims([a_claim("new")])


HOLDER = """
import sys
from tests.states import open_state

state = open_state(sys.argv[1], "web")
state.lease.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_kernel_releases_the_lock_of_a_dead_process(tmp_path: Path) -> None:
    with running(HOLDER, tmp_path) as process, open_state(str(tmp_path), "web") as state:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        since = r"since 20\d\d-\d\d-\d\d \d\d:\d\d UTC"
        with pytest.raises(LockedError, match=rf"process {process.pid} .*{since}.*stop it"):
            state.lease.acquire()
        process.send_signal(signal.SIGKILL)
        process.wait()
        state.lease.acquire()
