"""Behaviour of command line processes: signals, locks, broken checkouts."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from reconciler.adapters.database.maintenance import export_lines
from reconciler.adapters.database.state import open_state
from tests.engine.processes import Site, a_site, wait_for
from tests.postgres import a_database

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with a_site(tmp_path) as site:
        yield site


@pytest.mark.exhaustive
def test_a_stopped_daemon_finishes_its_pass(site: Site) -> None:
    heartbeat = site.folder.parent / "heartbeat"
    daemon = site.start("run", "--interval", "1s", "--heartbeat", str(heartbeat))
    wait_for(lambda: any(c.operation == "CreateFleet" for c in site.cloud.calls))
    wait_for(heartbeat.exists)
    daemon.send_signal(signal.SIGTERM)
    output, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, output
    launched = [line for line in output.splitlines() if " Launched " in line]
    assert len(launched) == len(site.cloud.running_instances()) > 0


@pytest.mark.exhaustive
def test_a_second_process_is_rejected_with_the_name_of_the_first(site: Site) -> None:
    daemon = site.start("run", "--interval", "1s")
    wait_for(lambda: bool(site.cloud.calls))
    second = site.start("apply", "--auto-approve")
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert str(daemon.pid) in output
    assert len(output.strip().splitlines()) == 1
    daemon.send_signal(signal.SIGTERM)
    daemon.communicate(timeout=60)
    assert daemon.returncode == 0


@pytest.mark.exhaustive
def test_a_second_daemon_waits_and_takes_over(site: Site) -> None:
    daemon = site.start("run", "--interval", "1s")
    wait_for(lambda: bool(site.cloud.calls))
    refused = site.start("run", "--no-wait")
    output, _ = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert str(daemon.pid) in output
    standby = site.start("run", "--interval", "1s")
    log = LogReader(standby)
    wait_for(lambda: log.has("Standby"))
    assert f"waiting for the lease: process {daemon.pid} (" in log.text
    calls_before = len(site.cloud.calls)
    daemon.kill()
    killed_at = time.monotonic()
    wait_for(lambda: log.has("LeaseAcquired"))
    assert time.monotonic() - killed_at < 15
    wait_for(lambda: len(site.cloud.calls) > calls_before)
    standby.send_signal(signal.SIGTERM)
    standby.wait(timeout=60)
    assert standby.returncode == 0
    assert log.text.count("Standby") == 1


@pytest.mark.exhaustive
def test_a_standby_can_be_stopped(site: Site) -> None:
    daemon = site.start("run", "--interval", "1s")
    wait_for(lambda: bool(site.cloud.calls))
    standby = site.start("run")
    log = LogReader(standby)
    wait_for(lambda: log.has("Standby"))
    standby.send_signal(signal.SIGTERM)
    standby.wait(timeout=60)
    assert standby.returncode == 0
    assert daemon.poll() is None


@pytest.mark.exhaustive
def test_a_leader_frozen_during_a_launch_writes_and_launches_nothing_afterwards(
    site: Site,
) -> None:
    """The leader is frozen in CreateFleet, another one takes over, and the first one resumes.

    Launches that it had already begun to send go out when it wakes; their client tokens make EC2
    answer with the instances that exist.
    """
    site.state = a_database()
    leader = site.start("run", "--interval", "1s")
    log_of_leader = LogReader(leader)
    froze: list[float] = []

    def freeze(operation: str) -> None:
        if operation == "CreateFleet" and not froze:
            leader.send_signal(signal.SIGSTOP)
            froze.append(time.monotonic())

    site.cloud.after_call = freeze
    wait_for(lambda: bool(froze))
    begun = launches_in_doubt(site)
    standby = site.start("run", "--interval", "1s")
    log = LogReader(standby)
    wait_for(lambda: log.has("LeaseAcquired"))
    assert time.monotonic() - froze[0] < 15
    wait_for(lambda: log.has("Initialized"))
    wait_for(
        lambda: not site.twice() and len(site.cloud.running_instances()) == len(recorded(site))
    )
    wait_for(lambda: is_stopped_idle(site, standby))  # from here on, every call is the first one's
    wait_for(lambda: is_quiet(site))
    effects, written, living = (
        effects_on(site),
        everything(site),
        set(site.cloud.running_instances()),
    )
    leader.send_signal(signal.SIGCONT)
    wait_for(lambda: log_of_leader.has("LeaseLost"))
    late = effects_on(site)[len(effects) :]
    assert set(late) <= {"CreateFleet"}
    assert len(late) < begun  # the first of them was answered before
    assert set(site.cloud.running_instances()) == living
    assert everything(site) == written
    assert site.twice() == []
    standby.send_signal(signal.SIGCONT)


def launches_in_doubt(site: Site) -> int:
    """Return the number of launches in the journal without an outcome."""
    with open_state(str(site.state), site.folder.name, create=False) as state:
        return sum(entry.intent.verb == "launch" for entry in state.journal.in_doubt())


def effects_on(site: Site) -> list[str]:
    """Return the calls that change EC2; reading calls may happen at any time."""
    operations = [call.operation for call in site.cloud.calls]
    return [name for name in operations if not name.startswith(("Describe", "Get"))]


def is_stopped_idle(site: Site, process: subprocess.Popen[str]) -> bool:
    """Freeze a process; return whether that was between its effects, and resume it otherwise.

    An effect is in the journal from before its call until after its answer.
    """
    process.send_signal(signal.SIGSTOP)
    with open_state(str(site.state), site.folder.name, create=False) as state:
        is_idle = not state.journal.in_doubt()
    if not is_idle:
        process.send_signal(signal.SIGCONT)
    return is_idle


def is_quiet(site: Site) -> bool:
    """Return whether EC2 has answered all earlier calls."""
    calls_before = len(site.cloud.calls)
    time.sleep(0.3)
    return len(site.cloud.calls) == calls_before


class LogReader:
    """The output of a process so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: list[str] = []
        self._process = process
        Thread(target=self._listen, daemon=True).start()

    @property
    def text(self) -> str:
        return "".join(self._lines)

    def has(self, kind: str) -> bool:
        assert self._process.poll() is None, self.text
        return any(f" {kind} " in line for line in self._lines)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # it is closed at the end of the test
            self._lines.extend(iter(self._process.stdout.readline, ""))


def recorded(site: Site) -> list[str]:
    with open_state(str(site.state), site.folder.name, create=False) as state:
        return [c.name for c in state.store.node_claims() if c.status.provider_id]


def everything(site: Site) -> list[str]:
    with open_state(str(site.state), site.folder.name, create=False) as state:
        return list(export_lines(state.database))


def copy_state(site: Site, folder: Path) -> None:
    """Copy the database of a running process as SQLite's own backup does."""
    folder.mkdir(exist_ok=True)
    with (
        sqlite3.connect(Path(site.state) / "state.db") as source,
        sqlite3.connect(folder / "state.db") as target,
    ):
        source.backup(target)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("moment", "joining"), [("launching", 6), ("launched", 3)])
def test_an_older_state_that_is_restored_launches_nothing_again(
    site: Site, tmp_path: Path, moment: str, joining: int
) -> None:
    """What the copied journal announced is recorded; what it does not know waits for a person."""
    (site.folder / "workloads" / "frontend.yaml").unlink()
    copied = tmp_path / "copied"
    if moment == "launching":

        def copy_at_the_first_launch(operation: str) -> None:
            if operation == "CreateFleet" and not copied.exists():
                copy_state(site, copied)

        site.cloud.after_call = copy_at_the_first_launch
    site.finish("apply", "--auto-approve")
    if moment == "launched":
        copy_state(site, copied)
        site.change("workloads/api.yaml", "replicas: 6", "replicas: 9")
        site.finish("apply", "--auto-approve")
    launched = set(site.cloud.running_instances())
    shutil.rmtree(site.state)
    copied.rename(site.state)
    daemon = site.start("run", "--interval", "1s")
    log = LogReader(daemon)
    if moment == "launched":
        wait_for(lambda: log.has("Unknown"))
        assert f"launches and disruption are suspended: {joining} instances" in log.text
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=60)
        site.finish("state", "adopt", "--yes")
        daemon = site.start("run", "--interval", "1s")
        log = LogReader(daemon)
    wait_for(lambda: log.text.count("Initialized") == joining)
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(timeout=60)
    assert daemon.returncode == 0
    assert set(site.cloud.running_instances()) == launched


@pytest.mark.exhaustive
def test_an_empty_checkout_changes_nothing(site: Site) -> None:
    site.finish("apply", "--auto-approve", "--interval", "100ms", "-q")
    before = set(site.cloud.running_instances())
    calls_before = len(site.cloud.calls)
    daemon = site.start("run", "--interval", "200ms")
    wait_for(lambda: len(site.cloud.calls) > calls_before + 8)
    for path in site.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    calls_before = len(site.cloud.calls)
    wait_for(lambda: len(site.cloud.calls) > calls_before + 20)
    daemon.send_signal(signal.SIGTERM)
    output, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, output
    assert output.count("stays in effect") == 1
    assert set(site.cloud.running_instances()) == before
