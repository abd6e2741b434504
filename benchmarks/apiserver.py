"""The load of `run` on the API server of a quiet cluster: ``python -m benchmarks.apiserver``.

    python -m benchmarks.apiserver [NODES [SECONDS [ROUNDS]]]

The control plane is the real one of `tests/live`; EC2 and the kubelets are simulated. First the
daemon launches the nodes (300 by default), each with one pod. Then windows of SECONDS (120) without
and with `run` alternate, ROUNDS (2) times. In all of them the kubelets renew their leases every 10
seconds and report the state of their nodes every 5 minutes, as real ones do. It prints the CPU
seconds of kube-apiserver (user and system, from /proc), and the requests that `run` adds.

The windows vary by a few percent anyway; nothing is asserted.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Event

from reconciler.adapters.threads import background_thread
from tests.live.conftest import Live, a_daemon, fleet_in
from tests.live.plane import ControlPlane, control_plane
from tests.live.programs import missing
from tests.postgres import a_database

LEASE_EVERY_S = 10.0
STATUS_EVERY_S = 300.0
SETTLES_S = 45.0
INTERVAL = "30s"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_REQUESTS = re.compile(
    r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>\S+)", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Heartbeats:
    """The requests of kubelets on a quiet cluster."""

    plane: ControlPlane
    nodes: tuple[str, ...]

    def begin(self) -> None:
        """Create the lease of each node."""
        self.plane.provide("/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
        for name in self.nodes:
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40}
            self.plane.provide(_LEASES, {"metadata": {"name": name}, "spec": spec})

    def beat(self, stop: Event) -> None:
        """Renew all leases and report the state of some nodes, every 10 seconds."""
        begun = time.monotonic()
        parts = round(STATUS_EVERY_S / LEASE_EVERY_S)
        with ThreadPoolExecutor(4) as workers:
            for number in count(1):
                all(workers.map(self._renew, self.nodes))
                all(workers.map(self._report, self.nodes[number % parts :: parts]))
                if stop.wait(max(0.0, begun + number * LEASE_EVERY_S - time.monotonic())):
                    return

    def _renew(self, name: str) -> bool:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        self.plane.patch(f"{_LEASES}/{name}", {"spec": {"renewTime": now}})
        return True

    def _report(self, name: str) -> bool:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"conditions": [{**ready, "lastHeartbeatTime": now}]}
        self.plane.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        return True


@dataclass(frozen=True)
class ApiServerLoad:
    """The load of the API server in a window: CPU seconds, and requests by verb and resource."""

    cpu_s: float
    requests: Counter[tuple[str, str]]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_requests(plane: ControlPlane) -> Counter[tuple[str, str]]:
    """Return the number of requests that the API server has answered, by verb and resource."""
    found: Counter[tuple[str, str]] = Counter()
    for match in _REQUESTS.finditer(plane.api.call("GET", "/metrics").decode()):
        labels = dict(_LABEL.findall(match["labels"]))
        found[labels["verb"], labels["resource"]] += round(float(match["count"]))
    return found


def measure_load(plane: ControlPlane, seconds: float) -> ApiServerLoad:
    """Return the load of the API server during ``seconds``."""
    assert plane.server.process is not None
    pid, requests_before = plane.server.process.pid, count_requests(plane)
    before = cpu_seconds(pid)
    time.sleep(seconds)
    cpu_s = cpu_seconds(pid) - before
    return ApiServerLoad(cpu_s, count_requests(plane) - requests_before)


@contextmanager
def run_daemon(live: Live, state: str, interval: str) -> Iterator[None]:
    """Run the daemon as a process, and terminate it gracefully."""
    with a_daemon(live.process_words(state), interval) as (process, _):
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def live_fleet() -> Iterator[Live]:
    """Start a control plane with a fleet, isolated from the environment of this process."""
    if reason := missing():
        sys.exit(reason)
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "KUBECONFIG"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "plane").mkdir()
        with control_plane(home / "plane") as plane, fleet_in(plane, home, "shop") as live:
            yield live


@contextmanager
def quiet_fleet(nodes: int, state: str) -> Iterator[Live]:
    """Launch a fleet with one pod on each node, in a separate control plane."""
    with live_fleet() as live:
        live.scale(nodes)
        begun = time.monotonic()
        with run_daemon(live, state, "2s"):
            live.await_(f"{nodes} nodes", lambda: live.settled(nodes), 900)
            print(f"{nodes} nodes with one pod each, ready after {time.monotonic() - begun:.0f} s")
            time.sleep(10)
        yield live


def main(nodes: int, seconds: int, rounds: int) -> None:
    """Print the figures."""
    without, with_run = ApiServerLoad(0.0, Counter()), ApiServerLoad(0.0, Counter())
    state = a_database()
    with quiet_fleet(nodes, state) as live:
        hearts = Heartbeats(live.plane, tuple(sorted(live.plane.list("/api/v1/nodes"))))
        hearts.begin()
        with background_thread("heartbeats", hearts.beat):
            for number in range(rounds):
                time.sleep(SETTLES_S / 3)
                without = add_window("without", number, without, measure_load(live.plane, seconds))
                with run_daemon(live, state, INTERVAL):
                    time.sleep(SETTLES_S)
                    with_run = add_window(
                        "with run", number, with_run, measure_load(live.plane, seconds)
                    )
    added = with_run.requests - without.requests
    print(f"Requests added by `run` in {rounds * seconds} s (difference of the two totals):")
    for (verb, resource), times in added.most_common(25):
        print(f"  {times:6} {verb} {resource}")
    share = with_run.cpu_s / without.cpu_s - 1
    print(
        f"CPU of the API server: {without.cpu_s:.1f} s without `run`, "
        f"{with_run.cpu_s:.1f} s with it"
    )
    print(f"Change of the CPU time: {share:+.1%}")


def add_window(
    name: str, number: int, total: ApiServerLoad, window: ApiServerLoad
) -> ApiServerLoad:
    """Print a window, and return its sum with the total of the earlier ones."""
    print(f"round {number + 1}, {name:8} {window.cpu_s:6.2f} CPU s", flush=True)
    return ApiServerLoad(total.cpu_s + window.cpu_s, total.requests + window.requests)


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    main(*(arguments + [300, 120, 2][len(arguments) :]))
