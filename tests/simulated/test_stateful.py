"""Laws 1, 3, 4 and 5 over histories that hypothesis makes up, each with faults of every kind.

A history is a handful of events, most followed by a pass of the engine. After each of them the
world itself is asked: no budget is breached, nothing was launched twice, nothing is leaked, no
limit is passed. In the end the faults stop, and the fleet has to come to rest and stay there.
A history that fails is printed step by step. ``-m exhaustive`` tries five times as many, and
``--hypothesis-profile=thorough`` a hundred times as many as that.
"""

from __future__ import annotations

import math
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reconciler.adapters.simulated.compute import CLAIM_TAG, INTENT_TAG
from reconciler.adapters.simulated.conditions import Fault, Offer, Period, Refused, Stale
from reconciler.model.karpenter.labels import NODEPOOL, SPOT
from tests.engine.world import ZONES, a_deployment, a_pdb, a_pool
from tests.examples import examples
from tests.simulated.smallworld import SmallWorld

POOLS = ("job", "web")
BUDGETS = ("1", "2", "0", "50%")
LIMIT = 8
"""Processors that a pool may have: four nodes of the smallest type."""

CALLS = ("CreateFleet", "DescribeInstances", "TerminateInstances", "CreateTags")
FAULTS = tuple(fault for fault in Fault if fault is not Fault.DENIED)


class Histories(RuleBasedStateMachine):
    """One fleet of two NodePools, and everything that may happen to it."""

    @initialize(
        seed=st.integers(0, 3),
        never_joins=st.sampled_from([0.0, 0.0, 0.4]),
        honours_tokens=st.sampled_from([True, True, False]),
        policy=st.sampled_from(["WhenEmpty", "WhenEmptyOrUnderutilized"]),
        capacity=st.sampled_from(["on-demand", SPOT]),
        pods=st.integers(1, 3),
    )
    def begin(
        self,
        seed: int,
        never_joins: float,
        honours_tokens: bool,
        policy: str,
        capacity: str,
        pods: int,
    ) -> None:
        self.world = SmallWorld(seed, never_joins=never_joins, honours_tokens=honours_tokens)
        self.honours_tokens = honours_tokens
        self.policy, self.capacity = policy, capacity
        self.pods = dict.fromkeys(POOLS, 1) | {"web": pods}
        self.version = dict.fromkeys(POOLS, 1)
        self.budget = dict.fromkeys(POOLS, "1")
        self.budgets_known: dict[str, set[str]] = {name: set() for name in POOLS}
        self.pdb: int | None = None
        self.protected = False
        self.suspended = False
        self.present = set(POOLS)
        self.removable: set[str] = set()
        self.interrupted: set[str] = set()
        self.seen: set[str] = set()
        self.taken: dict[str, set[str]] = {}
        self.commit()
        for _ in range(2):
            self.world.run_pass()
            self.world.pause(6)

    def commit(self) -> None:
        objects: list[dict[str, Any]] = []
        for name in sorted(self.present):
            self.budgets_known[name].add(self.budget[name])
            objects.append(
                a_pool(
                    name,
                    labels={"version": str(self.version[name])},
                    budgets=[{"nodes": self.budget[name]}],
                    policy=self.policy,
                    capacity_types=[self.capacity],
                    limits={"cpu": str(LIMIT)},
                )
            )
            kept = {"karpenter.sh/do-not-disrupt": "true"} if self.protected else {}
            objects.append(a_deployment(name, name, self.pods[name], annotations=kept))
        if self.pdb is not None:
            objects.append(a_pdb("web", "web", maxUnavailable=self.pdb))
        self.world.commit(
            objects,
            suspended=self.suspended,
            removable=sorted(self.removable),
        )

    # git moves

    @rule(pool=st.sampled_from(POOLS))
    def change_a_pool(self, pool: str) -> None:
        self.version[pool] += 1
        self.commit()
        self.world.run_pass()

    @rule(pool=st.sampled_from(POOLS), budget=st.sampled_from(BUDGETS))
    def change_a_budget(self, pool: str, budget: str) -> None:
        self.budget[pool] = budget
        self.commit()

    @rule(pool=st.sampled_from(POOLS), pods=st.integers(0, 4))
    def scale(self, pool: str, pods: int) -> None:
        self.pods[pool] = pods
        self.commit()
        self.world.run_pass()

    @rule(allowed=st.booleans())
    def remove_or_bring_back_a_pool(self, allowed: bool) -> None:
        self.present ^= {"job"}
        self.removable = {"job"} if allowed else set()
        self.commit()
        self.world.run_pass()

    @rule(most=st.sampled_from([None, 0, 1]))
    def set_or_lift_a_pod_disruption_budget(self, most: int | None) -> None:
        self.pdb = most
        self.commit()

    @rule()
    def protect_pods_or_not(self) -> None:
        self.protected = not self.protected
        self.commit()

    @rule()
    def suspend_or_resume(self) -> None:
        self.suspended = not self.suspended
        self.commit()

    # time passes, with somebody who looks

    @rule(seconds=st.sampled_from([1, 6, 6, 40, 200, 1000]))
    def run_pass_after(self, seconds: int) -> None:
        self.world.pause(seconds)
        self.world.run_pass()

    @rule()
    def run_three_passes(self) -> None:
        for _ in range(3):
            self.world.pause(6)
            self.world.run_pass()
            self.count()

    @rule(step=st.integers(1, 25), gone_for=st.sampled_from([1, 30, 400]))
    def die_soon(self, step: int, gone_for: int) -> None:
        self.world.steps.kills = {self.world.steps.counted + step: timedelta(seconds=gone_for)}
        self.world.run_pass()
        self.world.pause(gone_for)

    # EC2 has its moods

    @rule(
        kind=st.sampled_from(["m7i.large", "c7i.large", "*"]),
        zone=st.sampled_from([*ZONES, "*"]),
        minutes=st.sampled_from([2, 20]),
    )
    def refuse(self, kind: str, zone: str, minutes: int) -> None:
        now = self.world.clock.now()
        until = now + timedelta(minutes=minutes)
        self.world.refuse(Refused(Offer(kind, zone), Period(now, until)))

    @rule(
        call=st.sampled_from(CALLS),
        fault=st.sampled_from(FAULTS),
        times=st.integers(1, 2),
        skip=st.integers(0, 2),
    )
    def fail_calls(self, call: str, fault: Fault, times: int, skip: int) -> None:
        self.world.compute.faults.add(call, fault, times=times, skip=skip)
        self.world.run_pass()

    @rule(by=st.sampled_from([4, 20]), lasts=st.sampled_from([30, 300]))
    def answer_from_the_past(self, by: int, lasts: int) -> None:
        now = self.world.clock.now()
        window = Period(now, now + timedelta(seconds=lasts))
        self.world.lag(Stale(window, timedelta(seconds=by)))
        self.world.run_pass()

    @precondition(lambda self: self.capacity == SPOT and self.world.running_instances())
    @rule(which=st.integers(0, 5))
    def interrupt(self, which: int) -> None:
        living = sorted(self.world.running_instances(), key=lambda m: m.facts.id)
        machine = living[which % len(living)]
        self.interrupted.add(machine.facts.tags[CLAIM_TAG])
        self.world.interrupt(machine)
        self.world.run_pass()

    # what must hold at every moment

    @invariant()
    def count(self) -> None:
        """Ask the world; the engine is asked only what it believes, never whether all is well."""
        if not hasattr(self, "world"):
            return
        self.no_budget_is_breached()
        self.nothing_is_launched_twice()
        self.nothing_is_leaked()
        self.no_limit_is_passed()

    def no_budget_is_breached(self) -> None:
        """What is newly taken has to find room; what no budget can prevent is not counted."""
        world = self.world
        running = world.store.commands()
        forced = {n for c in running if not c.voluntary for n in c.node_claims}
        named = {n for c in running if c.voluntary for n in c.node_claims}
        pool_of = {
            m.facts.tags[CLAIM_TAG]: m.facts.tags[NODEPOOL] for m in world.running_instances()
        }
        taken = (named | world.tainted()) - forced - self.interrupted - world.taken_back()
        nodes = world.nodes()
        for pool in POOLS:
            mine = {name for name in taken if pool_of.get(name) == pool}
            before = self.taken.get(pool, set())
            self.taken[pool] = mine
            if mine - before:
                # a pool that left git keeps a budget that it had, whichever was last carried out
                known = {self.budget[pool]} if pool in self.present else self.budgets_known[pool]
                allowed = max(rooms(budget, nodes[pool]) for budget in known)
                assert len(mine) <= allowed, (pool, sorted(mine), self.budget[pool])
                assert not self.suspended, (pool, sorted(mine), "suspended")

    def nothing_is_launched_twice(self) -> None:
        if self.honours_tokens:
            machines = self.world.compute.machines.values()
            assert max(Counter(m.intent for m in machines).values(), default=1) == 1
            living = Counter(m.facts.tags[CLAIM_TAG] for m in self.world.running_instances())
            assert max(living.values(), default=1) == 1, living

    def nothing_is_leaked(self) -> None:
        """Every instance is somebody's, or it is known that EC2 may have launched it."""
        claims = {c.name for c in self.world.store.node_claims()}
        doubtful = {e.intent.id for e in self.world.stage.world.journal.in_doubt()}
        for machine in self.world.running_instances():
            tags = machine.facts.tags
            assert tags[CLAIM_TAG] in claims or tags[INTENT_TAG] in doubtful, tags

    def no_limit_is_passed(self) -> None:
        """Every launch fits, and failed launches use no room.

        A node that is given back may stand beside its replacement only where pods run on both.
        """
        world = self.world
        fresh = {
            m.facts.tags[NODEPOOL] for m in world.running_instances() if m.facts.id not in self.seen
        }
        self.seen.update(world.compute.machines)
        if self.honours_tokens:
            cpus = world.cpus()
            assert max((cpus[pool] for pool in fresh), default=0) <= LIMIT, cpus
            beyond = {pool for pool in POOLS if cpus[pool] > LIMIT}
            assert not [c.name for c in world.left_over() if c.node_pool in beyond], cpus

    def teardown(self) -> None:
        """The faults stop, and whoever held nodes lets go: then it comes to rest and stays so."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.refuse()
        world.lag()
        world.compute.faults.clear()
        world.steps.kills = {}
        self.suspended, self.protected, self.pdb = False, False, None
        self.commit()
        played = world.play(after_each=self.count)
        assert played.converged, [n.message for n in world.event_log.notes][-5:]
        assert not [n for n in world.event_log.notes if n.kind == "IllegalTransition"]
        assert played.last is not None
        assert played.last.is_quiet, "planning again is empty"
        claims = {c.status.provider_id.rpartition("/")[2] for c in world.store.node_claims()}
        assert {m.facts.id for m in world.running_instances()} == claims, "leaked, or lost"
        assert not world.tainted(), "nodes that stay are given back"
        assert not world.cluster.unbound_pod_count() or self.at_the_limit(), "pods without a node"
        before = len(world.event_log.events)
        world.play(timedelta(hours=6))
        assert world.event_log.events[before:] == [], "quiet input, and yet it moves"

    def at_the_limit(self) -> bool:
        """Return whether a pod may be left over: its pool is full, or not in git."""
        return any(pool not in self.present or self.world.cpus()[pool] == LIMIT for pool in POOLS)


def rooms(budget: str, nodes: int) -> int:
    """Return the number of nodes that a budget allows to disrupt, computed independently."""
    if budget.endswith("%"):
        return math.ceil(nodes * int(budget[:-1]) / 100)
    return int(budget)


@pytest.mark.property
def test_any_sequence_of_events_respects_the_invariants() -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples(1000, usual=30),
            phases=[Phase.generate],  # seven steps are short enough to read: none is shrunk
            report_multiple_bugs=False,
            stateful_step_count=7,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_pod_whose_room_was_taken_is_placed_again_in_time() -> None:
    """A history that was found: a leap went over the moment from which the pod may go elsewhere."""
    history = Histories()
    history.begin(1, 0.4, True, "WhenEmptyOrUnderutilized", SPOT, 3)
    history.interrupt(2)
    history.remove_or_bring_back_a_pool(allowed=False)
    history.run_three_passes()
    history.run_pass_after(1000)
    history.change_a_pool("web")
    history.teardown()


def test_a_pool_removed_from_git_keeps_its_limits() -> None:
    """A history that was found: what a rolled-back command launched stayed beyond the limit."""
    history = Histories()
    history.begin(1, 0.0, True, "WhenEmpty", SPOT, 2)
    history.scale("job", 4)
    history.change_a_pool("job")
    history.remove_or_bring_back_a_pool(allowed=False)
    history.teardown()
