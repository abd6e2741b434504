"""Several daemons fight for one fleet, and are killed and frozen at any point of a pass.

They share a database, an account and a cluster. Each is killed, frozen until another one has taken
the lease over, denied a write of the database, or answered late by EC2, at points that a seed
determines. Their clocks differ, and jump. Once it is quiet, EC2 has exactly what the records name.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import create_engine, text

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.database.leases.lease import ServerLease
from reconciler.adapters.database.leases.renewal import LeaseRenewals
from reconciler.adapters.database.state import DatabaseState, open_state
from reconciler.adapters.simulated.cluster import EmbeddedCluster
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.adapters.simulated.memory import MemoryShelf
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.workloads.pods import Workloads, expand
from reconciler.engine import world as engine_world
from reconciler.engine.ownership import CLAIM_TAG, INTENT_TAG
from reconciler.model.errors import LeaseHeldError, LeaseLostError, ReconcilerError, StateError
from reconciler.model.kubernetes.pod import Pod
from reconciler.ports.calls import Answer, Call, InlineCalls
from reconciler_embedded.wire import Request, Response
from tests.engine.crashes import WRITES, CutError
from tests.engine.test_crash import LARGE
from tests.engine.world import (
    Engine,
    EventRecorder,
    Source,
    World,
    a_deployment,
    a_node_class,
    a_pool,
    a_world,
)
from tests.hostile.threats import Threat, attack
from tests.postgres import a_database

DAEMONS: Final = 3
STALE_S: Final = 15.0


class SkewedClock:
    """A clock that is wrong by an offset, which may jump."""

    def __init__(self, base: SimulatedClock) -> None:
        self.base = base
        self.offset_s = 0.0

    def now(self) -> datetime:
        return self.base.now() + timedelta(seconds=self.offset_s)

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        self.base.wait(seconds, until)


class ManualRenewals(LeaseRenewals):
    """Renewals without a thread: a lease is renewed when an effect confirms it."""

    def add(self, lease: Any, interval_s: float) -> None:
        del lease, interval_s

    def remove(self, lease: Any) -> None:
        del lease


class LateCalls(InlineCalls):
    """Makes some long calls only in a later pass, or withholds their answers until then."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._waiting: dict[str, Call] = {}
        self._hidden: dict[str, int] = {}

    def start(self, name: str, call: Call) -> None:
        if name in self._waiting or name in self._answers:
            return
        if self._chance.random() < 0.3:
            self._waiting[name] = call
        else:
            super().start(name, call)
            self._hidden[name] = self._chance.choice([0, 0, 1, 3])

    def is_open(self, name: str) -> bool:
        return name in self._waiting or super().is_open(name)

    def answer(self, name: str) -> Answer | None:
        if name in self._waiting and self._chance.random() < 0.5:
            super().start(name, self._waiting.pop(name))
        if self._hidden.get(name, 0) > 0:
            self._hidden[name] -= 1
            return None
        return super().answer(name)


@dataclass
class Daemon:
    """A process: its clock, its connection to the database, and its memory."""

    name: str
    clock: SkewedClock
    state: DatabaseState
    engine: Engine | None = None
    elapsed_s: float = 0.0
    frozen: bool = False


@dataclass
class Fight:
    """The world, the daemons, and the chance that decides what happens at each point."""

    seed: str
    location: str
    world: World = field(default_factory=a_world)
    daemons: list[Daemon] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    calm: bool = False

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.acting: list[Daemon] = []
        self._workloads: tuple[str, Workloads] = ("", Workloads())
        self.recorder = EventRecorder()
        self.cluster = EmbeddedCluster(
            MemoryShelf(), self.world.catalog.get, self.workloads, self.world.clock
        )
        respond = self.world.cloud.respond
        self.evictions: Counter[tuple[str, str, str]] = Counter()
        evict = self.cluster._pods.evict

        def counted(pod: Pod, now: datetime) -> list[Pod]:
            uid = pod.metadata.uid or pod.key
            self.evictions[pod.key, uid, pod.spec.node_name] += 1
            self.check_decision(pod)
            return evict(pod, now)

        self.cluster._pods.evict = counted  # type: ignore[method-assign]

        def watched(request: Request) -> Response:
            self.reach(f"before confirming ec2.{request.operation}")
            self.acting[-1].state.lease.confirm()
            self.reach(f"before ec2.{request.operation}")
            try:
                return respond(request)
            finally:
                self.reach(f"after ec2.{request.operation}")

        self.world.cloud.respond = watched  # type: ignore[method-assign]
        self.admin = create_engine(self.location) if "://" in self.location else None
        for number in range(DAEMONS if self.admin is not None else 1):
            self.daemons.append(Daemon(f"d{number}", SkewedClock(self.world.clock), self.open()))

    def check_decision(self, pod: Pod) -> None:
        """Note an eviction from a node whose removal the database does not have."""
        store = self.acting[-1].state.store
        leaving = {c.status.node_name for c in store.node_claims() if c.metadata.deletion_timestamp}
        if pod.spec.node_name not in leaving:
            self.undecided.append(f"{pod.key} on {pod.spec.node_name}")

    def workloads(self) -> Workloads:
        head, content = self.world.git.head, self.world.git.content
        if self._workloads[0] != head:
            fleet, _ = read_fleet([SourceFile("fleet.yaml", content)])
            self._workloads = head, expand(fleet.workloads)[0]
        return self._workloads[1]

    def open(self) -> DatabaseState:
        state = open_state(self.location, "test")
        if isinstance(state.lease, ServerLease):
            lease = state.lease
            lease.renewals = lease._own = ManualRenewals(state.database.engine, "server")
        return state

    def engine(self, daemon: Daemon) -> Engine:
        """Return the memory of a daemon, new after a restart."""
        if daemon.engine is not None:
            return daemon.engine
        if isinstance(daemon.state.lease, ServerLease):
            daemon.state.lease.clock = lambda: daemon.elapsed_s
        world, around = self.world, self.around
        compute = AwsCompute(world.cloud.connect, world.settings, world.catalog.get, daemon.clock)
        source = Source(world.git, compute, world.settings, world.catalog)
        ports = engine_world.World(
            daemon.clock,
            compute,
            around(daemon, self.cluster, "cluster"),
            around(daemon, daemon.state.store, "store"),
            around(daemon, daemon.state.journal, "journal"),
            self.recorder,
            confirm=daemon.state.lease.confirm,
            unused_resources=compute.unused_resources,
            calls=LateCalls(self.chance),
        )
        daemon.engine = Engine(ports, source)
        return daemon.engine

    def around(self, daemon: Daemon, port: Any, name: str) -> Any:
        return Watched(self, daemon, port, name)

    def reach(self, name: str) -> None:
        """Decide what happens at a point of the daemon that acts now."""
        if self.calm:
            return
        roll = self.chance.random()
        if roll < 0.004:
            self.note("kill", name)
            raise CutError(name)
        if roll < 0.012 and len(self.acting) < DAEMONS and self.admin is not None:
            self.note("freeze", name)
            self.freeze(self.acting[-1])
        elif roll < 0.018 and name.startswith(("before store", "before journal")):
            self.note("database", name)
            raise StateError("no space left on device", where="database")
        elif roll < 0.024 and name.startswith(("after store", "after journal")):
            self.note("database answer", name)
            raise StateError("the connection was lost after the write", where="database")

    def note(self, what: str, where: str) -> None:
        self.happened[what] += 1
        self.log.append(f"{self.acting[-1].name if self.acting else '-'} {what} {where}")

    def expire(self, daemon: Daemon | None = None) -> None:
        """Let the lease expire; its holder notices when it confirms it next."""
        if self.admin is None:
            return
        with self.admin.begin() as connection:
            connection.execute(text("UPDATE lease SET renewed_ms = 0"))
        for other in self.daemons:
            other.elapsed_s += STALE_S

    def freeze(self, daemon: Daemon) -> None:
        daemon.frozen = True
        self.expire()
        self.world.clock.advance(self.chance.choice([1.0, 7.0, 20.0, 90.0, 400.0]))
        for _ in range(self.chance.randrange(1, 8)):
            others = [d for d in self.daemons if not d.frozen]
            if others:
                self.act(self.chance.choice(others))
                self.world.clock.advance(self.chance.choice([1.0, 5.0, 30.0]))
        daemon.frozen = False

    def act(self, daemon: Daemon) -> bool:
        """Let a daemon run a pass if it gets the lease; return whether nothing is left to do."""
        try:
            daemon.state.lease.acquire()
        except LeaseHeldError:
            return False
        self.acting.append(daemon)
        self.log.append(f"{daemon.name} pass at {self.world.clock.now():%H:%M:%S}")
        try:
            return self.engine(daemon).run_once().is_quiet
        except CutError:
            self.restart(daemon)
        except LeaseLostError as error:
            self.log.append(f"{daemon.name} lost the lease: {error}")
            self.happened["lost"] += 1
            daemon.state.lease.release()
            daemon.engine = None
        except ReconcilerError as error:
            self.log.append(f"{daemon.name} failed: {error}")
        finally:
            assert self.acting.pop() is daemon
        return False

    def restart(self, daemon: Daemon) -> None:
        """Start another process in place of one that was killed: its row in the database stays."""
        self.close(daemon)
        daemon.state, daemon.engine = self.open(), None
        daemon.clock.offset_s = 0.0

    def close(self, daemon: Daemon) -> None:
        """Close the connections of a process as its end does: without releasing the lease."""
        if self.admin is None:
            daemon.state.close()
            return
        assert isinstance(daemon.state.lease, ServerLease)
        daemon.state.lease._own._drop_connection()
        daemon.state.database.engine.dispose()

    def close_all(self) -> None:
        for daemon in self.daemons:
            self.close(daemon)
        if self.admin is not None:
            self.admin.dispose()

    def fight(self, passes: int) -> None:
        for _ in range(passes):
            self.world.clock.advance(self.chance.choice([1.0, 5.0, 12.0, 40.0]))
            daemon = self.chance.choice(self.daemons)
            if self.chance.random() < 0.3:
                self.expire()
            if self.chance.random() < 0.05:
                before = daemon.clock.offset_s
                daemon.clock.offset_s = self.chance.uniform(-200.0, 200.0)
                if before - daemon.clock.offset_s > 60:
                    daemon.engine = None  # the daemon makes its engine again
                    daemon.state.lease.release()
            if self.chance.random() < 0.02:
                self.world.clock.advance(self.chance.choice([600.0, 4000.0, 8000.0]))
                self.happened["jump"] += 1
            self.act(daemon)

    def settle(self) -> bool:
        """Let one daemon finish; return whether it did."""
        self.calm = True
        self.world.cloud.faults.clear()
        for daemon in self.daemons:
            daemon.clock.offset_s = 0.0
        self.expire()
        daemon = self.daemons[0]
        if self.admin is not None:
            daemon.state.lease.release()
        daemon.engine = None
        quiet = 0
        for _ in range(400):
            self.world.clock.advance(5.0)
            quiet = quiet + 1 if self.act(daemon) else 0
            if quiet == 3:
                return True
        return False


class Watched:
    """A port whose writes are points; those of the cluster confirm the lease first."""

    def __init__(self, fight: Fight, daemon: Daemon, port: Any, name: str) -> None:
        self._fight, self._daemon, self._port, self._name = fight, daemon, port, name

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        if method not in WRITES[self._name]:
            return real

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._name == "cluster":
                self._fight.reach(f"before confirming {self._name}.{method}")
                self._daemon.state.lease.confirm()
            self._fight.reach(f"before {self._name}.{method}")
            result = real(*args, **kwargs)
            self._fight.reach(f"after {self._name}.{method}")
            return result

        return watched


def spoil(fight: Fight) -> None:
    """Make EC2 lose answers, throttle, fail and refuse a type for a while."""
    chance, cloud = fight.chance, fight.world.cloud
    cloud.honours_tokens = chance.random() < 0.6
    for fault in Fault:
        for call in ("CreateFleet", "DescribeInstances", "TerminateInstances", "CreateTags"):
            if chance.random() < 0.3:
                cloud.faults.add(
                    call, fault, skip=chance.randrange(30), times=chance.randrange(1, 4)
                )


def commits(fight: Fight) -> list[Callable[[], None]]:
    """Return the commits of the story: nodes are launched, replaced, and removed."""

    def commit(version: str, replicas: int) -> Callable[[], None]:
        def run() -> None:
            fight.world.git.commit(
                a_node_class(),
                a_pool(
                    "web",
                    labels={"version": version},
                    budgets=[{"nodes": "2"}],
                    template={"requirements": LARGE},
                ),
                a_deployment("web", "web", replicas),
            )

        return run

    return [commit("1", 4), commit("2", 4), commit("3", 6), commit("3", 2)]


def intent_of(instance: Any) -> str:
    """Return the intent that an instance was launched for, with its claim in a batch."""
    tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
    return f"{tags.get(INTENT_TAG, instance.id)} {tags.get(CLAIM_TAG, '')}"


def defects(fight: Fight, replicas: int) -> list[str]:
    """Return what is wrong in a world that is quiet."""
    world, state, found = fight.world, fight.daemons[0].state, list[str]()
    claims = {c.status.provider_id.rpartition("/")[2]: c for c in state.store.node_claims()}
    living = world.instances()
    found += [f"{i} lives and no claim has it" for i in living if i not in claims]
    found += [f"{c.name} has no instance" for i, c in claims.items() if i not in living]
    found += [f"{e.intent.verb} {e.intent.target} in doubt" for e in state.journal.in_doubt()]
    found += [f"command {c.id} under way" for c in state.store.commands()]
    nodes = fight.cluster._record.nodes.values()
    found += [
        f"{r.node.name} is tainted"
        for r in nodes
        if any("disrupted" in t.key for t in r.node.spec.taints)
    ]
    found += [f"{key} evicted {n} times" for key, n in fight.evictions.items() if n > 1]
    found += [f"{what} evicted without a decision" for what in fight.undecided]
    launched = Counter(intent_of(i) for i in world.cloud._account.backend.all_instances())
    found += [f"intent {i} launched {n} instances" for i, n in launched.items() if n > 1]
    if len(nodes) != len(claims):
        found.append(f"{len(nodes)} nodes for {len(claims)} claims")
    if len(living) != replicas:
        found.append(f"{len(living)} instances for {replicas} pods that fill a node each")
    return found


def outcome(fight: Fight) -> tuple[list[str], Counter[str]]:
    """Run the story to its end; return the defects, and what happened how often."""
    try:
        for commit in commits(fight):
            commit()
            spoil(fight)
            fight.fight(25)
        assert fight.settle(), fight.log[-60:]
        assert fight.evictions, "no pod was ever evicted"
        return defects(fight, 2), fight.happened
    finally:
        fight.close_all()


@attack(Threat.OWNERSHIP, "daemons that fight for one fleet while they are killed and frozen")
@pytest.mark.parametrize("seed", range(int(os.environ.get("RECONCILER_KILL_SEEDS", "2"))))
def test_daemons_that_fight_launch_nothing_twice_and_leak_nothing(seed: int) -> None:
    """Guards: the epoch of every write, recovery from the journal, and the search for orphans.

    Every eviction is counted: of a pod once, and from a node that the database wants removed.
    """
    found, happened = outcome(Fight(f"fight {seed}", a_database()))
    assert found == []
    assert min(happened["freeze"], happened["kill"], happened["lost"]) > 2


@attack(Threat.OWNERSHIP, "a daemon that is killed, denied writes of its state and answered late")
@pytest.mark.parametrize("seed", range(1))
def test_a_daemon_with_a_failing_disk_launches_nothing_twice(seed: int, tmp_path: Path) -> None:
    found, happened = outcome(Fight(f"disk {seed}", str(tmp_path / "state")))
    assert found == []
    assert min(happened["database"], happened["kill"]) > 1
