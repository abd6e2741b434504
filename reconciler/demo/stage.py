"""The environment of the demo: a fleet repository, simulated EC2 and cluster, and a fast clock.

Everything between them is real: git, the planner, the engine, SQLite, and boto3 over HTTP. EC2
listens on a port of this machine, so that it survives when a process that uses it is killed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from reconciler.adapters import processes
from reconciler.adapters.aws.tags import INTENT
from reconciler.adapters.git.command import run, users_environment
from reconciler.adapters.processes import private_folder
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.assembly.assembly import Assembly, assemble_world, live_inputs
from reconciler.assembly.inputs.request import Environment, FleetRequest
from reconciler.assembly.inputs.sources import desired_fleet
from reconciler.demo.narrator import Reporter
from reconciler.model.settings import Settings
from reconciler.model.text.times import timestamp

if TYPE_CHECKING:
    from reconciler.adapters.database.state import DatabaseState
    from reconciler.adapters.processes import Process
    from reconciler.engine.reconcile import Pass
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.state import StateStore
    from reconciler_embedded.ec2 import EmbeddedEC2

START: Final = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
FLEET: Final = "shop"
REGION: Final = "us-east-1"
_PASS_INTERVAL_S: Final = 20.0
_LEAP: Final = timedelta(minutes=2)
_PATIENCE: Final = timedelta(hours=1)
_CHILD_TIMEOUT_S: Final = 120.0
_THREAD_TIMEOUT_S: Final = 1.0
_DAY: Final = timedelta(days=1)


class StageClock(SimulatedClock):
    """A clock that stops while the engine works, and signals the end of a pass."""

    def __init__(self, start: datetime, reporter: Reporter) -> None:
        super().__init__(start)
        self._reporter = reporter

    def set(self, moment: datetime) -> None:
        """Go to a later moment."""
        self.advance((moment - self.now()).total_seconds())

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """Let ``seconds`` pass at once, unless ``until`` holds already."""
        if not until():
            self._reporter.end_pass()
            if timedelta(seconds=seconds) > _LEAP:
                self._reporter.report_sleep(self.now(), self.now() + timedelta(seconds=seconds))
        super().wait(seconds, until)


@dataclass(frozen=True, slots=True)
class Crash:
    """The traces of a killed process: its signal, and intents and instances of its launches."""

    signal: int
    in_doubt: int
    launched: int


def run_git(folder: Path, at: datetime, *words: str) -> None:
    """Run git in a folder, with a neutral identity, at a time.

    Raises:
        UnreadableError: git is not installed, or failed.
    """
    when = timestamp(at)
    who = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", "Demo"), ("EMAIL", "demo@example.com"), ("DATE", when))
    }
    with private_folder() as home:
        run(
            ("-c", "core.autocrlf=false", *words),
            git_dir=str(folder / ".git"),
            work_tree=str(folder),
            cwd=home,
            environment=users_environment(
                GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_SYSTEM=os.devnull, **who
            ),
            where=str(folder),
        )


def create_repository(folder: Path, at: datetime) -> None:
    """Commit the fleet of the demo to a new repository in its folder.

    Raises:
        UnreadableError: git is not installed, or failed.
    """
    run_git(folder, at, "init", "--quiet", "--initial-branch=main", "--template=")
    run_git(folder, at, "add", ".")
    run_git(folder, at, "commit", "--quiet", "-m", "A web shop and its nightly reports")


class DemoStage:
    """The operations of the users in the story; the engine's actions are printed."""

    ledger: dict[str, str]
    """Every instance that EC2 ever launched, with the intent it was launched for."""

    def __init__(
        self, folder: Path, clock: StageClock, ec2: EmbeddedEC2, url: str, reporter: Reporter
    ) -> None:
        from reconciler.adapters.aws.clients import connector

        assert urlsplit(url).hostname == "127.0.0.1", "the demo connects only to this machine"
        self.folder = folder
        self.clock = clock
        self.ec2 = ec2
        self.reporter = reporter
        self.ledger = {}
        settings = Settings(region=REGION, endpoint_url=url)
        self._environment = Environment(
            clock,
            connector(settings),
            workers=1,
            joining_s=20,
            ready_s=20,
            starting_s=5,
            leaving_s=20,
        )
        ec2.after_call = self._record_launches

    def git(self, *words: str) -> None:
        """Run git in the fleet's folder, with a neutral identity, at the time of the story.

        Raises:
            UnreadableError: git is not installed, or failed.
        """
        run_git(self.folder, self.clock.now(), *words)

    def edit(self, file: str, old: str, new: str) -> None:
        """Change a file of the fleet."""
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} does not have {old!r} once"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def seed(self) -> None:
        """Create the resources in the account that the fleet's node classes select."""
        from reconciler.desired.objects import node_classes

        for node_class in node_classes(desired_fleet(self._request())):
            self.ec2.seed(node_class)

    def plan(self, base: str | None = None) -> Plan:
        """Return what ``reconciler plan`` shows, compared with ``base`` if given."""
        from reconciler.plan.planning import plan_of

        return plan_of(live_inputs(self._request(base), self._environment))

    def apply(self) -> Pass:
        """Do the same as ``reconciler apply``."""
        from reconciler.assembly.mandate import mandate_of
        from reconciler.engine.loop import PassIntervals, converge

        with self._assemble() as assembly:
            result = converge(
                assembly.world,
                assembly.source,
                mandate_of(assembly.settings),
                deadline=_PATIENCE,
                intervals=PassIntervals(busy=_PASS_INTERVAL_S),
            )
            self.reporter.end_pass()
        return result

    def run_daemon(self, until: Callable[[StateStore], bool]) -> None:
        """Do the same as ``reconciler run``, until ``until`` is true for the recorded fleet."""
        from reconciler.assembly.mandate import mandate_of
        from reconciler.daemon.daemon import next_change
        from reconciler.engine.loop import PassIntervals, run

        end = self.clock.now() + _DAY
        with self._assemble() as assembly:
            store = assembly.world.store
            run(
                assembly.world,
                assembly.source,
                mandate_of(assembly.settings),
                intervals=PassIntervals(busy=_PASS_INTERVAL_S, quiet=_DAY.total_seconds()),
                stop=lambda: until(store) or self.clock.now() >= end,
                next_change=next_change,
            )
            self.reporter.end_pass()

    def crash(self, after: int) -> Crash:
        """Run ``reconciler apply`` as a process, and kill it at its ``after``-th launch.

        It is killed when EC2 has launched the instance, before EC2 responds.
        """
        from reconciler_embedded.server import serve

        before, threads = len(self.ledger), set(threading.enumerate())
        begun = threading.Event()

        def note_and_kill(operation: str) -> None:
            self._record_launches(operation)
            if len(self.ledger) - before >= after:
                begun.wait(_CHILD_TIMEOUT_S)
                child.kill()
                # Requests that it sent and EC2 has not read yet are lost.
                self.ec2.faults.add("*", Fault.RESET_BEFORE, times=None)

        self.ec2.after_call = note_and_kill
        try:
            # A separate port, closed when the process is killed: no late requests arrive.
            with serve(self.ec2) as url, private_folder() as folder:
                child = self._start_process(url, folder)
                begun.set()
                try:
                    child.wait(_CHILD_TIMEOUT_S)
                finally:
                    child.kill()
                    child.wait()
        finally:
            for thread in set(threading.enumerate()) - threads:
                thread.join(_THREAD_TIMEOUT_S)
            self.ec2.faults.clear()
            self.ec2.after_call = self._record_launches
        assert child.returncode == -signal.SIGKILL, (
            f"the process ended by itself: {child.returncode}"
        )
        with self.open_recorded() as state:
            in_doubt = len(state.journal.in_doubt())
        return Crash(-child.returncode, in_doubt, len(self.ledger) - before)

    @contextmanager
    def open_recorded(self) -> Iterator[DatabaseState]:
        """Open the recorded state for reading."""
        from reconciler.adapters.database.state import open_state

        with open_state(str(self.folder / ".reconciler"), FLEET, create=False) as state:
            yield state

    @contextmanager
    def _assemble(self) -> Iterator[Assembly]:
        with assemble_world(self._request(), self.reporter, self._environment) as assembly:
            self.reporter.begin(assembly.world.store)
            yield assembly

    def _request(self, base: str | None = None) -> FleetRequest:
        """Return the request of ``apply``, ``run`` and a live ``plan``."""
        return FleetRequest(path=str(self.folder), settings=("cluster=embedded",), base=base)

    def _start_process(self, url: str, folder: str) -> Process:
        """Start ``reconciler apply`` in ``folder`` against the EC2 at ``url``, quietly."""
        now = timestamp(self.clock.now())
        words = (
            *("apply", os.path.abspath(self.folder), "-q", "--auto-approve", "--now", now),
            *("--set", "cluster=embedded", "--set", f"aws.endpointUrl={url}", "--timeout", "2m"),
        )
        return processes.start(
            processes.python_function("reconciler.cli.main", "main", *words),
            cwd=folder,
            variables=processes.environment(),
            stdout=processes.DISCARDED,
            # Ctrl-C is for the story, which decides how its process ends.
            new_session=True,
        )

    def _record_launches(self, operation: str) -> None:
        """Write every new instance into the ledger."""
        if operation == "CreateFleet":
            for identity, tags in self.ec2.running_instances().items():
                self.ledger.setdefault(identity, tags.get(INTENT, ""))


def duplicate_launches(ledger: Mapping[str, str]) -> int:
    """Return how many intents of a ledger have more than one instance."""
    return sum(number > 1 for number in Counter(ledger.values()).values())
