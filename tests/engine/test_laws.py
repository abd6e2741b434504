"""Laws 1, 4 and 5 in generated worlds: convergence, budgets, no orphans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_pools
from reconciler.model.karpenter.budget import Budget, DisruptionReason, allowance
from reconciler.model.karpenter.nodeclaim import NodeClaim
from tests.engine.test_crash import LARGE, complaints
from tests.engine.world import World, a_deployment, a_node_class, a_pool, a_world
from tests.examples import examples

LAWS = settings(
    max_examples=examples(30),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
BUDGETS = st.lists(
    st.one_of(
        st.builds(lambda n: {"nodes": str(n)}, st.integers(0, 3)),
        st.builds(lambda n: {"nodes": f"{n}%"}, st.sampled_from([10, 34, 50, 100])),
        st.builds(
            lambda n, minute, reasons: {
                "nodes": str(n),
                "schedule": f"{minute} * * * *",
                "duration": "10m",
                **({"reasons": reasons} if reasons else {}),
            },
            st.integers(0, 1),
            st.integers(0, 59),
            st.lists(st.sampled_from(["Drifted", "Empty"]), unique=True, max_size=2),
        ),
    ),
    min_size=1,
    max_size=2,
)


@dataclass(frozen=True)
class Pool:
    """A NodePool in git: the number of its pods, and its version."""

    name: str
    budgets: Sequence[dict[str, Any]]
    pods: int
    version: int = 1

    def objects(self) -> list[dict[str, Any]]:
        pool = a_pool(
            self.name,
            labels={"version": str(self.version)},
            budgets=self.budgets,
            template={"requirements": LARGE},
        )
        return [pool, a_deployment(self.name, self.name, self.pods)]


@st.composite
def pools(draw: st.DrawFn) -> list[Pool]:
    return [
        Pool(name, draw(BUDGETS), draw(st.integers(1, 4)))
        for name in ("a", "b")[: draw(st.integers(1, 2))]
    ]


MOVES = st.lists(
    st.one_of(
        st.just(("pass", 0)),
        st.just(("pass", 0)),
        st.builds(lambda s: ("wait", s), st.sampled_from([1, 20, 61, 400, 1200])),
        st.builds(lambda p: ("drift", p), st.integers(0, 1)),
        st.builds(lambda p: ("shrink", p), st.integers(0, 1)),
        st.builds(lambda n: ("fail", n), st.integers(0, 5)),
        st.just(("restart", 0)),
    ),
    min_size=4,
    max_size=16,
)


def commit(world: World, fleet: Sequence[Pool]) -> None:
    world.git.commit(a_node_class(), *(o for pool in fleet for o in pool.objects()))


@dataclass
class Watch:
    """Counts the claims and nodes of each pool, independently of the engine.

    A node that is not ready uses up the budget as well, but no engine can keep it from that: only
    what a command starts must find room at that moment.
    """

    world: World
    taken: frozenset[str] = frozenset()
    started: int = 0

    def check_budgets(self) -> None:
        """Fail if a command has started on more nodes than the budgets allow now."""
        world, now = self.world, self.world.clock.now()
        commands = {c.id: c for c in world.store.commands()}
        taken = {name: c.reason for c in commands.values() for name in c.node_claims}
        fresh = taken.keys() - self.taken
        self.taken = frozenset(taken)
        self.started += len(fresh)
        claims = world.claims
        for pool in {claims[name].node_pool for name in fresh if name in claims}:
            reasons = {taken[name] for name in fresh if claims[name].node_pool == pool}
            going = self._going(pool, claims, taken)
            total = self._total(pool, claims)
            for reason in reasons:
                allowed = allowance(self._budgets(pool), DisruptionReason(reason), total, now).nodes
                assert len(going) <= allowed, (pool, reason, sorted(going), allowed, total, now)

    def _going(
        self, pool: str, claims: dict[str, NodeClaim], taken: dict[str, str]
    ) -> frozenset[str]:
        """Return the claims that are being disrupted or deleted, or whose node is not ready."""
        ready = self._ready()
        return frozenset(
            c.name
            for c in claims.values()
            if c.node_pool == pool
            and c.is_true("Initialized")
            and not is_terminating(c)
            and (c.name in taken or c.is_deleting or c.status.provider_id not in ready)
        )

    def _total(self, pool: str, claims: dict[str, NodeClaim]) -> int:
        return sum(
            c.node_pool == pool and c.is_true("Initialized") and not is_terminating(c)
            for c in claims.values()
        )

    def _ready(self) -> set[str]:
        nodes = self.world.engine().ports.cluster._record.nodes.values()  # type: ignore[attr-defined]
        return {r.node.spec.provider_id for r in nodes if r.node.is_ready}

    def _budgets(self, pool: str) -> Sequence[Budget]:
        fleet, _ = read_fleet([SourceFile("fleet.yaml", self.world.git.content)])
        return next(p for p in node_pools(fleet) if p.name == pool).spec.disruption.budgets


@pytest.mark.property
def test_no_command_disrupts_more_nodes_than_the_budgets_allow() -> None:
    started = []

    @LAWS
    @given(fleet=pools(), moves=MOVES, latency=st.sampled_from([0.0, 45.0]))
    def hold(fleet: list[Pool], moves: list[tuple[str, int]], latency: float) -> None:
        started.append(nodes_taken(fleet, moves, latency))

    hold()
    assert sum(started) > 0, "no history takes a node"


def nodes_taken(fleet: list[Pool], moves: list[tuple[str, int]], latency: float) -> int:
    """Run a history, fail if a command disrupts too many nodes, and return the total."""
    world = a_world(latencies={"ready_s": latency})
    commit(world, fleet)
    world.converge()
    engine, watch = world.engine(), Watch(world)
    for move, number in moves:
        at = number % len(fleet)
        match move:
            case "pass":
                engine.run_once()
                watch.check_budgets()
                world.clock.advance(1)
            case "wait":
                world.clock.advance(number)
            case "drift":
                fleet[at] = Pool(
                    fleet[at].name, fleet[at].budgets, fleet[at].pods, fleet[at].version + 1
                )
                commit(world, fleet)
            case "shrink":
                fleet[at] = (
                    Pool(fleet[at].name, fleet[at].budgets, fleet[at].pods - 1, fleet[at].version)
                    if fleet[at].pods > 1
                    else fleet[at]
                )
                commit(world, fleet)
            case "fail":
                living = sorted(world.instances())
                if living:
                    world.cloud.reclaim_instance(living[number % len(living)])
            case "restart":
                engine = world.engine()
    return watch.started


@pytest.mark.exhaustive
@LAWS
@given(fleet=pools(), drifts=st.booleans(), shrinks=st.booleans())
def test_a_converged_fleet_does_not_change(fleet: list[Pool], drifts: bool, shrinks: bool) -> None:
    world = a_world()
    commit(world, fleet)
    world.converge()
    if drifts or shrinks:
        fleet = [Pool(p.name, p.budgets, p.pods - (shrinks and p.pods > 1), 2) for p in fleet]
        commit(world, fleet)
    engine = world.engine()
    started = world.clock.now()
    while not engine.run_once().is_quiet:
        world.clock.advance(5)
        assert world.clock.now() - started < timedelta(hours=1), "it moves for ever"
    assert complaints(world, world.fleet()) == []
    before = facts(world)
    assert engine.run_once().is_quiet
    assert world.engine().run_once().is_quiet
    assert facts(world) == before


def facts(world: World) -> tuple[Any, ...]:
    """Return everything that a pass without actions must not change."""
    entries = world.journal.entries(limit=10_000)
    return world.store.serial(), entries, world.claims, sorted(world.instances())


def is_terminating(claim: NodeClaim) -> bool:
    """Such a node no longer counts, in Karpenter's budgets and ours."""
    return claim.is_true("InstanceTerminating")


def test_nothing_starts_while_the_window_is_closed() -> None:
    closed = [{"nodes": "0", "schedule": "0 * * * *", "duration": "30m"}, {"nodes": "1"}]
    fleet = [Pool("a", closed, 3)]
    world = a_world()
    commit(world, fleet)
    world.converge()
    old = set(world.instances())
    commit(world, [Pool("a", closed, 3, version=2)])
    world.converge()
    assert set(world.instances()) == old
    world.clock.advance(1800)
    world.converge()
    assert not old & set(world.instances())


def test_a_pool_removed_from_git_keeps_its_budgets_until_its_last_node() -> None:
    world = a_world()
    commit(world, [Pool("a", [{"nodes": "1"}], 3), Pool("b", [{"nodes": "1"}], 1)])
    world.converge()
    commit(world, [Pool("b", [{"nodes": "1"}], 1)])
    world.converge()
    assert len(world.instances()) == 4
    world.git.allow_removal = frozenset({"a"})
    engine = world.engine()
    for _ in range(60):
        engine.run_once()
        taken = {name for c in world.store.commands() for name in c.node_claims}
        going = [c for n, c in world.claims.items() if n in taken and not is_terminating(c)]
        assert len(going) <= 1
        world.clock.advance(5)
    assert {name.partition("-")[0] for name in world.instances().values()} == {"b"}
    assert [o.name for o in world.store.objects() if o.kind == "NodePool"] == ["b"]


def test_a_pool_removed_from_git_with_a_zero_budget_keeps_its_nodes() -> None:
    world = a_world()
    commit(world, [Pool("a", [{"nodes": "0"}], 2), Pool("b", [{"nodes": "1"}], 1)])
    world.converge()
    commit(world, [Pool("b", [{"nodes": "1"}], 1)])
    world.git.allow_removal = frozenset({"a"})
    engine = world.engine()
    for _ in range(5):
        engine.run_once()
        world.clock.advance(5)
    assert len(world.instances()) == 3
