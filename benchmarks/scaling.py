"""The duration of passes while a live fleet is scaled: ``python -m benchmarks.scaling [NODES]``.

The control plane is the real one of `tests/live`; EC2 and the kubelets are simulated. The daemon
launches the nodes (1,000 by default), each with one pod, is idle for a minute, and removes all but
two again. For each phase the table shows the number of passes, their median and maximum duration in
seconds, the time that the longest pass waited for EC2 to list the instances, and the CPU seconds of
the daemon per pass.

The simulated EC2 needs seconds for such a list while instances start, and everything runs on this
machine. In production, a daemon does not share processors with the control plane, EC2 and a
thousand kubelets, so here it has priority over them, if the system permits it. Nothing is asserted.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from threading import Event
from urllib.request import urlopen

from benchmarks.apiserver import cpu_seconds, live_fleet
from reconciler.adapters.threads import background_thread
from tests.live.conftest import Live, a_daemon
from tests.live.plane import eventually, free_ports
from tests.postgres import a_database

QUIET_S = 60.0
_PASSES = re.compile(r"^reconciler_pass_duration_seconds_(count|sum)\{?.*?\}? (\S+)$", re.MULTILINE)
_LISTS = re.compile(
    r"^reconciler_api_call_duration_seconds_sum\{(?=.*DescribeInstances).*\} (\S+)$", re.MULTILINE
)


@dataclass
class Passes:
    """The passes of a daemon from its metrics: their duration, and that of listing instances."""

    url: str
    pid: int
    rows: list[tuple[float, float]] = field(default_factory=list)

    def follow(self, stop: Event) -> None:
        """Read the metrics every second; the increase of the sum is the duration of a pass."""
        count, seconds, listed = self._read()
        while not stop.wait(1.0):
            now, total, lists = self._read()
            if now > count:
                self.rows += [((total - seconds) / (now - count), (lists - listed) / (now - count))]
                count, seconds, listed = now, total, lists

    def _read(self) -> tuple[int, float, float]:
        with urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        found = {name: float(value) for name, value in _PASSES.findall(text)}
        lists = sum(map(float, _LISTS.findall(text)))
        return int(found.get("count", 0)), found.get("sum", 0.0), lists

    def run_phase(self, name: str, work: Callable[[], object]) -> None:
        """Run a phase, and print a row of the table about its passes."""
        first, cpu, begun = len(self.rows), cpu_seconds(self.pid), time.monotonic()
        work()
        rows = self.rows[first:]
        longest, listing = max(rows)
        each = (cpu_seconds(self.pid) - cpu) / len(rows)
        seconds = time.monotonic() - begun
        print(
            f"{name:8} {seconds:6.0f} {len(rows):7} {median(row[0] for row in rows):8.1f}"
            f" {longest:8.1f} {listing:8.1f} {each:8.1f}",
            flush=True,
        )


def raise_priority(pid: int) -> None:
    """Give a process priority over others: each of its threads, and those that they will start."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), -15)


def scale_fleet(live: Live, nodes: int) -> None:
    """Scale the fleet to a number of pods, and wait until their nodes are ready."""
    live.scale(nodes)
    eventually(f"{nodes} nodes", lambda: live.settled(nodes), 900, pause_s=10)


def main(nodes: int) -> None:
    """Print the figures."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with live_fleet() as live:
        words = [*live.process_words(a_database()), "--listen", address]
        with a_daemon(words) as (process, _):
            live.await_("two nodes", lambda: live.settled(2))
            with suppress(PermissionError):
                raise_priority(process.pid)
            passes = Passes(f"http://{address}", process.pid)
            columns = f"{'passes':>7} {'median':>8} {'longest':>8} {'listing':>8} {'CPU s':>8}"
            print(f"{'phase':8} {'s':>6} {columns}")
            with background_thread("passes", passes.follow):
                passes.run_phase("launch", partial(scale_fleet, live, nodes))
                passes.run_phase("quiet", partial(time.sleep, QUIET_S))
                passes.run_phase("remove", partial(scale_fleet, live, 2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1000)
