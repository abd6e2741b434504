"""A simulated world in memory, small enough for a thousand of them in one test.

Methods change git, EC2 and the cluster; ``look`` is one pass of the engine. Every fact that a test
checks is read from EC2 and the cluster, never from the engine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any

from reconciler.adapters.simulated.compute import CLAIM_TAG, SimulatedCompute, SimulatedInstance
from reconciler.adapters.simulated.conditions import (
    NOTICE,
    Conditions,
    Latencies,
    Refused,
    SimulatedClock,
    Stale,
)
from reconciler.adapters.simulated.memory import MemoryJournal, MemoryShelf
from reconciler.adapters.simulated.watched import WatchedCluster, first_state
from reconciler.assembly.mandate import tags_of
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_classes, node_pools
from reconciler.desired.settings.layers import resolve
from reconciler.desired.workloads.pods import Workloads, expand
from reconciler.disruption.gates.consolidatable import LEFT_OVER
from reconciler.engine import world as engine_world
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from reconciler.model.chance import Chance
from reconciler.model.errors import CloudError, ClusterError, TransientCloudError
from reconciler.model.karpenter.labels import DISRUPTED_TAINT, NODEPOOL
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.observed.snapshot import Snapshot
from reconciler.plan.plancache import PlanCache
from reconciler.plan.value.plan import InputDigests, Revision
from reconciler.ports.journal import Journal
from reconciler.ports.state import StateStore
from reconciler.simulate.building import SimulatedFleet
from reconciler.simulate.driver import SimulationOutcome, SimulationStage, play
from reconciler.simulate.eventlog import EventLog, NotifyingStore
from reconciler.simulate.script import KilledError, Steps, with_kills
from tests.engine.world import SIZES, a_node_class, small_catalog

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
QUICK = Latencies((0.0, 0.0), (0.0, 5.0), ready=0.0, starting=0.0, leaving=0.0, stopping=(0.0, 5.0))
PASSES_AT_MOST = 400
"""Far more than any of these worlds needs to come to rest."""


@cache
def a_fleet(content: str, removable: frozenset[str], *, suspended: bool) -> SimulatedFleet:
    """Return desired state as the engine reads it from git."""
    fleet, findings = read_fleet([SourceFile("fleet.json", content.encode())])
    assert not [f for f in findings if f.severity == "error"], findings
    workloads, _ = expand(fleet.workloads)
    holders = [{"owner": "the test"}] if suspended else []
    config = {"fleet": "test", "clusterName": "test", "disruption": {"suspend": holders}}
    head = sha256(content.encode()).hexdigest()[:40]
    return SimulatedFleet(
        fleet=fleet,
        head=Revision(head=head),
        tree=head,
        node_pools=node_pools(fleet),
        classes={c.name: c for c in node_classes(fleet)},
        settings=resolve(config, {}).settings,
        catalog=small_catalog(),
        allow_removal=removable,
        digests=InputDigests(git=head),
        any_class=True,
        workloads=workloads,
    )


@dataclass
class _Present:
    workloads: Workloads = field(default_factory=Workloads)


class SmallWorld:
    """Git, EC2, a cluster and a daemon that may be killed; ``records`` are in memory by default."""

    def __init__(
        self,
        seed: int,
        *,
        never_joins: float = 0.0,
        honours_tokens: bool = True,
        records: tuple[StateStore, Journal] | None = None,
    ) -> None:
        self.clock, self.event_log = SimulatedClock(START), EventLog()
        conditions = Conditions(QUICK, never_joins=never_joins, honours_tokens=honours_tokens)
        chance, self._present = Chance(seed), _Present()
        self.compute = SimulatedCompute(self.clock, small_catalog().get, conditions, chance)
        cluster = WatchedCluster(
            MemoryShelf(),
            small_catalog().get,
            lambda: self._present.workloads,
            self.clock,
            self.event_log,
            first_state(Snapshot(), START, timedelta(0)),
            conditions,
            chance,
        )
        fresh = NotifyingStore(self.event_log, self.clock), MemoryJournal()
        store, journal = records or fresh
        whole = engine_world.World(
            self.clock, self.compute, cluster, store, journal, self.event_log
        )
        self.store, self.cluster = store, cluster
        self.steps = Steps({})
        world = with_kills(whole, self.steps)
        self.stage = SimulationStage(self.clock, self.compute, cluster, world, self.event_log)
        self.fleet: SimulatedFleet | None = None
        self._cache = PlanCache()

    # changes

    def commit(
        self,
        objects: Sequence[Mapping[str, Any]],
        *,
        suspended: bool = False,
        removable: Sequence[str] = (),
    ) -> None:
        """Commit these objects, and run their workloads in the cluster."""
        content = json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": [a_node_class(), *objects]}
        )
        fleet = a_fleet(content, frozenset(removable), suspended=suspended)
        self._present.workloads = fleet.workloads
        self.fleet = replace(fleet, compute=self.compute)

    def refuse(self, *refused: Refused) -> None:
        """Make exactly these offerings unavailable in EC2."""
        self.compute.conditions = replace(self.compute.conditions, refused=refused)

    def lag(self, *stale: Stale) -> None:
        """Make the lists of EC2 stale."""
        self.compute.conditions = replace(self.compute.conditions, stale=stale)

    def keep_from_joining(self) -> None:
        """Prevent new nodes from joining the cluster."""
        known = {record.instance for record in self.cluster._record.nodes.values()}
        conditions = replace(self.cluster._conditions, never_joins=1.0)
        self.cluster._conditions = conditions
        self.cluster._initial_ids = self.cluster._initial_ids | known

    def interrupt(self, machine: SimulatedInstance) -> None:
        """Send the notice that EC2 reclaims an instance."""
        machine.notice_at = self.clock.now()
        machine.reclaimed_at = machine.notice_at + NOTICE

    def pause(self, seconds: float) -> None:
        """Advance the clock without a pass."""
        self.clock.advance(seconds)
        self.compute.advance()

    def run_pass(self) -> Pass | None:
        """Run one pass; None if it was aborted."""
        assert self.fleet is not None
        self.compute.advance()
        fleet = self.fleet.priced_at(self.clock.now())
        try:
            return reconcile(self.stage.world, fleet, Mandate(tags_of(fleet.settings)), self._cache)
        except (TransientCloudError, CloudError, ClusterError):
            return None
        except KilledError:
            self.forget()
            return None

    def apply(self) -> None:
        """Run passes until the fleet has converged, or the process is killed."""
        for _ in range(PASSES_AT_MOST):
            taken, done = self.steps.counted, self.run_pass()
            if done is not None and done.is_quiet:
                return
            if done is None and any(
                taken < step <= self.steps.counted for step in self.steps.kills
            ):
                return
            self.pause(1)
        raise AssertionError("it moves for ever")

    def forget(self) -> None:
        """Start another process; the memory of the last one is lost."""
        self._cache = PlanCache()

    def play(
        self, span: timedelta | None = None, after_each: Callable[[], None] = lambda: None
    ) -> SimulationOutcome:
        """Run the daemon for a time, or until nothing more can change."""
        assert self.fleet is not None
        end = None if span is None else self.clock.now() + span
        most = self.stage.passes + PASSES_AT_MOST

        def watch(_: Pass) -> None:
            assert self.stage.passes < most, "it moves for ever"
            after_each()

        return play(
            self.stage, self.fleet.priced_at, Mandate(tags_of(self.fleet.settings)), end, watch
        )

    # facts from EC2 and the cluster

    def running_instances(self) -> list[SimulatedInstance]:
        """Return the running and pending instances."""
        return [m for m in self.compute.machines.values() if m.going_at is None]

    def cpus(self) -> Counter[str]:
        """Return the vCPUs of running nodes that stay, by NodePool.

        A terminating node does not count towards a limit, as in Karpenter.
        """
        found: Counter[str] = Counter()
        going = self.leaving()
        for machine in self.running_instances():
            if machine.facts.tags[CLAIM_TAG] in going:
                continue
            found[machine.facts.tags[NODEPOOL]] += int(SIZES[machine.facts.instance_type][0])
        return found

    def nodes(self) -> Counter[str]:
        """Return the number of nodes in the cluster, by NodePool."""
        records = self.cluster._record.nodes.values()
        return Counter(r.node.metadata.labels.get(NODEPOOL, "") for r in records)

    def leaving(self) -> set[str]:
        """Return the NodeClaims that will be removed: tainted, deleted, or part of a command.

        If the lists of EC2 lag, the simulated cluster may lose a node for a while, and its taint.
        """
        running = self.store.commands()
        deleted = {c.name for c in self.store.node_claims() if c.is_deleting}
        return self.tainted() | deleted | {name for c in running for name in c.node_claims}

    def left_over(self) -> list[NodeClaim]:
        """Return the launched NodeClaims that stay although their command was rolled back."""
        going = self.leaving()
        left = [c for c in self.store.node_claims() if c.is_true(LEFT_OVER)]
        return [c for c in left if c.status.provider_id and c.name not in going]

    def taken_back(self) -> set[str]:
        """Return the NodeClaims that are removed without ever having had a pod."""
        known = ((c, c.condition("DisruptionReason")) for c in self.store.node_claims())
        return {c.name for c, why in known if why is not None and why.reason == "RolledBack"}

    def tainted(self) -> set[str]:
        """Return the NodeClaims whose node takes no pods because it will be removed."""
        tagged = {m.facts.id: m.facts.tags[CLAIM_TAG] for m in self.running_instances()}
        return {
            tagged[record.instance]
            for record in self.cluster._record.nodes.values()
            if record.instance in tagged
            and any(taint.key == DISRUPTED_TAINT for taint in record.node.spec.taints)
        }
