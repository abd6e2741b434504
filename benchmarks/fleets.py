"""The memory and database connections of idle fleets in one process.

    python -m benchmarks.fleets [FLEETS]

It starts PostgreSQL, a simulated EC2 on a port of this machine, and one
`reconciler run DIRECTORY` with this number of fleets (20 by default). When every fleet has finished
its first quiet pass, it waits for a while. Then it prints the memory of the process (PSS: shared
pages count proportionally), its threads, and its connections according to the server.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import psycopg

from tests.engine.processes import REPOSITORY, a_directory_of_fleets, a_site
from tests.postgres import a_database

MIB_MAX = 300
CONNECTIONS_MAX = 5
IDLE_S = 20.0
START_S = 300.0


def memory_mib(pid: int) -> dict[str, float]:
    """Return the proportional and the resident memory of a process in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {line.split(":")[0]: line.split()[1] for line in text.splitlines()[1:]}
    return {name: int(sizes[name]) / 1024 for name in ("Pss", "Rss")}


def count_connections(url: str) -> int:
    """Return the number of connections of reconciler according to the server."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        ).fetchone()
    return int(row[0]) if row is not None else 0


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> float:
    """Return the seconds until every fleet has finished a pass."""
    started = time.monotonic()
    while time.monotonic() - started < START_S:
        if process.poll() is not None:
            sys.exit("Error: the process has ended")
        try:
            with urlopen(f"{url}/readyz", timeout=5):
                return time.monotonic() - started
        except (HTTPError, URLError, ConnectionError):
            time.sleep(0.2)
    sys.exit(f"Error: not ready after {START_S:.0f} s")


def main(count: int) -> int:
    """Print the figures, and return 1 if one of them exceeds its limit."""
    with tempfile.TemporaryDirectory() as folder, a_site(Path(folder)) as site:
        url = a_database()
        fleets = a_directory_of_fleets(
            [f"fleet-{number:02}" for number in range(count)], site.folder, Path(folder) / "fleets"
        )
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RECONCILER_"))}
        env |= {"AWS_ENDPOINT_URL": site.url, "AWS_REGION": "us-east-1"}
        env |= {"PYTHONPATH": str(REPOSITORY), "AWS_EC2_METADATA_DISABLED": "true"}
        line = [sys.executable, "-m", "reconciler", "run", str(fleets), "--state", url]
        line += ["--set", "cluster=embedded", "--listen", f"127.0.0.1:{port}"]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(line, env=env, stdout=log, stderr=log)
            try:
                started_s = wait_until_ready(f"http://127.0.0.1:{port}", process)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(IDLE_S)
                    text = (Path(folder) / "log").read_text()[-3000:]
                    sys.exit(f"Error: the process has ended: {text}")
                memory, used = memory_mib(process.pid), count_connections(url)
                threads = len(os.listdir(f"/proc/{process.pid}/task"))
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
    print(f"{count} idle fleets in one process, ready after {started_s:.0f} s")
    print(f"memory       {memory['Pss']:6.0f} MiB PSS, {memory['Rss']:.0f} MiB RSS")
    print(f"connections  {used:6}")
    print(f"threads      {threads:6}")
    return int(memory["Rss"] >= MIB_MAX or used > CONNECTIONS_MAX)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
