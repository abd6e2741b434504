"""What the processes of the command line owe the operator: signals, locks, checkouts gone bad."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.processes import Site, a_site, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with a_site(tmp_path) as site:
        yield site


def test_a_daemon_that_is_told_to_stop_finishes_its_pass(site: Site) -> None:
    heartbeat = site.folder.parent / "heartbeat"
    daemon = site.start("run", "--interval", "1s", "--heartbeat", str(heartbeat))
    wait_for(lambda: any(c.operation == "CreateFleet" for c in site.cloud.calls))
    wait_for(heartbeat.exists)
    daemon.send_signal(signal.SIGTERM)
    said, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, said
    launched = [line for line in said.splitlines() if " Launched " in line]
    assert len(launched) == len(site.cloud.living()) > 0


def test_a_second_process_is_refused_and_told_who_is_first(site: Site) -> None:
    daemon = site.start("run", "--interval", "1s")
    wait_for(lambda: bool(site.cloud.calls))
    second = site.start("apply")
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert str(daemon.pid) in said
    assert len(said.strip().splitlines()) == 1
    daemon.send_signal(signal.SIGTERM)
    daemon.communicate(timeout=60)
    assert daemon.returncode == 0


def test_a_checkout_that_turns_out_empty_changes_nothing(site: Site) -> None:
    site.finish("apply", "--interval", "100ms", "-q")
    before = set(site.cloud.living())
    asked = len(site.cloud.calls)
    daemon = site.start("run", "--interval", "200ms")
    wait_for(lambda: len(site.cloud.calls) > asked + 8)
    for path in site.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    asked = len(site.cloud.calls)
    wait_for(lambda: len(site.cloud.calls) > asked + 20)
    daemon.send_signal(signal.SIGTERM)
    said, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0, said
    assert said.count("stays in effect") == 1
    assert set(site.cloud.living()) == before
