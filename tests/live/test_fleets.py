"""One process that serves the fleets of two clusters, each with a control plane of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from reconciler.source.plainyaml import dump
from tests.engine.test_processes import LogReader
from tests.live.conftest import NODES, Live, a_daemon, fleet_in, forget_surroundings
from tests.live.plane import ControlPlane, control_plane, eventually, free_ports
from tests.postgres import a_database

pytestmark = pytest.mark.live


@pytest.fixture
def fleets(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Live]]:
    forget_surroundings(monkeypatch, tmp_path)
    (tmp_path / "plane").mkdir()
    (tmp_path / "operators").mkdir()
    with ExitStack() as stack:
        other = stack.enter_context(control_plane(tmp_path / "plane"))
        fleets = [
            stack.enter_context(fleet_in(where, tmp_path / "fleets", name))
            for where, name in ((plane, "shop"), (other, "bakery"))
        ]
        for fleet in fleets:
            settings = fleet.operator_settings() | {"aws": {"endpointUrl": fleet.url}}
            (tmp_path / "operators" / f"{fleet.folder.name}.yaml").write_text(dump(settings))
        yield fleets


@contextmanager
def one_daemon(fleets: list[Live], state: str, port: int) -> Iterator[LogReader]:
    """Run one process for all fleets for as long as the block lasts."""
    folder = fleets[0].folder.parent
    words = [str(folder), "--config", str(folder.parent / "operators"), "--state", state]
    words += ["--catalog", str(folder / "types.json"), "--listen", f"127.0.0.1:{port}"]
    with a_daemon(words) as (process, log):
        yield log
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, log.text[-2000:]


def test_one_process_serves_the_fleets_of_two_clusters(fleets: list[Live]) -> None:
    shop, bakery = fleets
    (port,) = free_ports(1)
    with one_daemon(fleets, a_database(), port) as log:
        for fleet in fleets:
            eventually("two nodes", lambda fleet=fleet: fleet.settled(2), 120)  # type: ignore[misc]
        kept = set(shop.plane.list(NODES))
        bakery.scale(4)
        eventually("four nodes of the bakery", lambda: bakery.settled(4), 120)
        assert set(shop.plane.list(NODES)) == kept
        bakery.pool(generation="2")
        bakery.scale(1)
        node = min(kept)
        shop.plane.delete(f"{NODES}/{node}")
        eventually(
            "another node of the shop",
            lambda: node not in shop.plane.list(NODES) and shop.settled(2),
            120,
        )
        eventually("one node of the bakery", lambda: bakery.settled(1), 120)
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            assert answer.status == 200
        with urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            page = answer.read().decode()
    assert 'href="/fleets/shop/"' in page
    assert 'href="/fleets/bakery/"' in page
    assert "Forbidden" not in log.text
