"""Several fleets in one process, and replicas that share them on a real PostgreSQL."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

from tests.engine.processes import Site, a_directory_of_fleets, a_site, wait_for
from tests.engine.test_processes import LogReader
from tests.postgres import a_database, crash
from tests.repositories import git

pytestmark = pytest.mark.slow

NAMES = ["north", "south", "east", "west"]
NODES = 6  # of each fleet: one for each pod of `api`


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with a_site(tmp_path) as site:
        # Where kube-scheduler puts these pods decides what room the frontend's pods find after a
        # takeover, at which all nodes join at once: with them, two more nodes may be needed.
        (site.folder / "workloads" / "frontend.yaml").unlink()
        site.folder = a_directory_of_fleets(NAMES, site.folder, tmp_path / "fleets")
        site.state = a_database()
        yield site


def holders(site: Site) -> dict[str, int]:
    """Return the process that holds the lease of each fleet, from the server."""
    with psycopg.connect(str(site.state).replace("+psycopg", "")) as connection:
        rows = connection.execute(
            "SELECT fleet, holder FROM lease WHERE lifetime_ms >"
            " extract(epoch FROM clock_timestamp()) * 1000 - renewed_ms"
        ).fetchall()
    return {fleet: int(re.search(r"process (\d+)", holder)[1]) for fleet, holder in rows}  # type: ignore[index]


def renewals(site: Site) -> dict[str, int]:
    """Return when each lease was renewed last, in milliseconds of the server's clock."""
    with psycopg.connect(str(site.state).replace("+psycopg", "")) as connection:
        return dict(connection.execute("SELECT fleet, renewed_ms FROM lease").fetchall())


def shares(site: Site) -> list[int]:
    """Return the number of fleets of each process, sorted."""
    return sorted(Counter(holders(site).values()).values())


def connections(site: Site) -> int:
    with psycopg.connect(str(site.state).replace("+psycopg", "")) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def server_view(site: Site) -> str:
    """Return the leases and replicas, and the activity of each database connection."""
    tables = {
        "lease": "SELECT * FROM lease",
        "replica": "SELECT *, extract(epoch FROM clock_timestamp()) * 1000 AS now FROM replica",
        "activity": "SELECT pid, state, wait_event, pg_blocking_pids(pid), now() - xact_start,"
        " now() - state_change, query FROM pg_stat_activity WHERE datname = current_database()",
    }
    with psycopg.connect(str(site.state).replace("+psycopg", "")) as connection:
        rows = [f"{name}: {row}" for name in tables for row in connection.execute(tables[name])]
    return "\n".join(rows)


def instances(site: Site) -> Counter[str]:
    """Return the number of instances of each fleet, from EC2 itself."""
    return Counter(tags["reconciler/fleet"] for tags in site.cloud.running_instances().values())


def has_all_nodes(site: Site, *names: str) -> bool:
    """Return whether exactly these fleets have launched everything that their pods need."""
    return instances(site) == dict.fromkeys(names, NODES)


def has_tables(site: Site) -> bool:
    try:
        holders(site)
    except psycopg.errors.UndefinedTable:
        return False
    return True


def fetch(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def stop(*daemons: subprocess.Popen[str]) -> None:
    for daemon in daemons:
        daemon.send_signal(signal.SIGTERM)
    for daemon in daemons:
        daemon.wait(timeout=60)
        assert daemon.returncode == 0


@pytest.mark.exhaustive
def test_replicas_share_fleets_and_take_over_those_of_a_dead_replica(site: Site) -> None:
    first = site.start("run", "--interval", "1s")
    log_of_first = LogReader(first)
    wait_for(lambda: has_tables(site) and shares(site) == [4])
    assert connections(site) <= 4
    wait_for(lambda: has_all_nodes(site, *NAMES))
    second = site.start("run", "--interval", "1s")
    log_of_second = LogReader(second)
    wait_for(lambda: shares(site) == [2, 2])
    assert log_of_first.text.count("gave up the lease") == 2
    first.kill()
    killed_at = time.monotonic()
    wait_for(lambda: set(holders(site).values()) == {second.pid} and shares(site) == [4])
    assert time.monotonic() - killed_at < 15
    third, fourth = site.start("run", "--interval", "1s"), site.start("run", "--interval", "1s")
    logs = [LogReader(third), LogReader(fourth)]
    wait_for(lambda: shares(site) == [1, 1, 2])
    settled = holders(site)
    time.sleep(8)  # longer than a replica hesitates before it gives up a lease
    assert holders(site) == settled, "leases wander"
    assert not any("LeaseLost" in h.text for h in [log_of_first, log_of_second, *logs])
    assert site.twice() == []
    assert has_all_nodes(site, *NAMES), instances(site)
    stop(second, third, fourth)
    assert holders(site) == {}


@pytest.mark.exhaustive
def test_replicas_continue_after_a_crash_of_the_database_server(site: Site) -> None:
    replicas = [site.start("run", "--interval", "1s") for _ in range(2)]
    logs = [LogReader(replica) for replica in replicas]
    wait_for(lambda: has_tables(site) and shares(site) == [2, 2])
    wait_for(lambda: has_all_nodes(site, *NAMES))
    for _ in range(2):
        crash()
        crashed_at = max(renewals(site).values())
        wait_for(lambda at=crashed_at: min(renewals(site).values()) > at)  # type: ignore[misc]
        wait_for(lambda: shares(site) == [2, 2])
    assert all(replica.poll() is None for replica in replicas), [h.text[-500:] for h in logs]
    assert has_all_nodes(site, *NAMES), instances(site)
    assert site.twice() == []
    assert connections(site) <= 8
    stop(*replicas)


@pytest.mark.exhaustive
def test_a_resumed_replica_does_not_act_for_fleets_that_others_took_over(
    site: Site,
) -> None:
    frozen, other = (site.start("run", "--interval", "1s") for _ in range(2))
    logs = LogReader(frozen), LogReader(other)
    wait_for(lambda: has_tables(site) and shares(site) == [2, 2])
    wait_for(lambda: has_all_nodes(site, *NAMES))
    frozen.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: set(holders(site).values()) == {other.pid} and shares(site) == [4])
    except AssertionError as error:
        raise AssertionError(f"{server_view(site)}\n{logs[1].text[-4000:]}") from error
    frozen.send_signal(signal.SIGCONT)
    wait_for(lambda: shares(site) == [2, 2])
    assert frozen.poll() is None, logs[0].text[-500:]
    assert set(holders(site).values()) == {frozen.pid, other.pid}
    assert has_all_nodes(site, *NAMES), instances(site)
    assert site.twice() == []
    stop(frozen, other)


@pytest.mark.exhaustive
def test_a_failing_fleet_does_not_stop_the_others(site: Site) -> None:
    (site.folder / "south" / "reconciler.yaml").write_text("fleet: [\n")
    (site.folder / "west" / "reconciler.yaml").write_text(
        (site.folder / "east" / "reconciler.yaml").read_text()
    )
    url = f"http://127.0.0.1:{free_port()}"
    daemon = site.start("run", "--interval", "1s", "--listen", url.removeprefix("http://"))
    logs = LogReader(daemon)
    wait_for(lambda: has_all_nodes(site, "north", "east"))
    wait_for(lambda: logs.text.count("cannot be served") >= 2)
    assert "two folders of this process have a fleet of the name east" in logs.text
    wait_for(lambda: "fleet north" not in fetch(f"{url}/readyz")[1])
    status, text = fetch(f"{url}/readyz")
    assert status == 503
    assert "fleet south: no pass has ended yet; last failure: " in text
    assert "fleet west: no pass has ended yet; last failure: two folders" in text
    assert fetch(f"{url}/healthz")[0] == 200
    status, page = fetch(f"{url}/")
    assert status == 200
    assert 'href="/fleets/north/"' in page
    status, page = fetch(f"{url}/fleets/north/")
    assert status == 200
    assert "All fleets" in page
    assert 'href="/fleets/north/nodes"' in page
    assert 'src="/fleets/north/static/live.js"' in page
    assert fetch(f"{url}/fleets/north/static/live.js")[0] == 200
    assert fetch(f"{url}/fleets/nobody/")[0] == 404
    wait_for(lambda: 'reconciler_lease_held{fleet="east"} 1.0' in fetch(f"{url}/metrics")[1])
    metrics = fetch(f"{url}/metrics")[1]
    assert 'reconciler_lease_held{fleet="north"} 1.0' in metrics
    assert 'reconciler_lease_held{fleet="south"} 0.0' in metrics
    assert metrics.count("# TYPE reconciler_lease_held gauge") == 1
    assert 'operation="CreateFleet",outcome="ok",service="ec2"' in metrics
    stop(daemon)


@pytest.mark.exhaustive
def test_fleets_added_and_removed_by_a_commit_are_started_and_stopped(
    site: Site, tmp_path: Path
) -> None:
    git(site.folder, "init", "-q", "-b", "main")
    git(site.folder, "add", "north", "south")
    git(site.folder, "commit", "-q", "-m", "two fleets")
    daemon = site.start("run", "--interval", "1s")
    logs = LogReader(daemon)
    wait_for(lambda: has_all_nodes(site, "north", "south"))
    git(site.folder, "add", "east")
    git(site.folder, "commit", "-q", "-m", "a third")
    wait_for(lambda: has_all_nodes(site, "north", "south", "east"))
    git(site.folder, "rm", "-q", "-r", "--cached", "south")
    git(site.folder, "commit", "-q", "-m", "without the second")
    wait_for(lambda: logs.has("FleetRemoved"))
    wait_for(lambda: "south" not in holders(site))
    assert "no longer serving fleet south" in logs.text
    assert has_all_nodes(site, "north", "south", "east")
    stop(daemon)
