"""Bound what any policy can save on a trace, whatever it knows and however many pods it evicts.

``python -m benchmarks.attainable --days 116-117`` replays days of the public trace (see
``benchmarks.backtest``) with Karpenter's packing and search, and prints four bounds for the pods
as they ran there, with the share of the savings that each leaves:

- the theoretical minimum cost, which buys nodes in fractions;
- the same with whole nodes: the minimum of an integer program at each moment, in which the pods of
  one type of node share the room of all its nodes;
- also with the time to start: a node is paid for ``START_S`` seconds, the shortest time that the
  simulated EC2 takes, before it can hold a pod. The nodes that are ready cost at least the bound of
  the moment, so their prices rise at least as often as it does. A policy may also keep nodes in
  between, which costs less if the bound soon rises again;
- for pods that never move: a pod remains on one type of node until its end. This is the optimum of
  a linear program over the complete trace, in which pods and nodes may be divided.

A policy with perfect knowledge of the future costs at least as much as the third bound if it moves
pods at no cost, and as the last one if it evicts none. An evicted pod counts as running until its
successor does, as in the theoretical minimum cost. ``--cost`` adds the share that a backtest of
that cost reaches.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import fsum
from pathlib import Path

import highspy

from benchmarks.backtest import FLEET, GPU, NOW, TRACE, cut_trace
from reconciler.assembly.inputs.files import read_bytes
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.backtest.bound import (
    TIMELESS,
    cluster_without_nodes,
    launchable_types,
    lower_bounds,
    stretches,
)
from reconciler.backtest.frontier import TRADEOFFS
from reconciler.backtest.replay import Replay, Stay
from reconciler.backtest.sides import play_side
from reconciler.backtest.trace import read_trace
from reconciler.catalog.table import indices
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import CPU, MEMORY
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.decide import ignore_phase
from reconciler.plan.value.costs import KARPENTER
from reconciler.simulate.building import (
    SimulatedFleet,
    SimulationSetup,
    build_simulation,
    read_simulation,
)
from reconciler.simulate.script import Script

START_S = 30.0
"""The shortest time from the launch of a simulated instance until its node is ready."""
NODE_POOLS = ("general", "gpu")
RESOURCES = (CPU, MEMORY, GPU)
_GAP = 1e-4
"""By what share the bound of a program may stay below its minimum."""
_HOUR_S = 3600.0

Amounts = tuple[int, ...]
"""Amounts of ``RESOURCES``."""
Kind = tuple[float, Amounts]
"""A type of node: its price, and its room."""
Step = tuple[float, float, float]
"""A period: when it begins, how long it lasts in seconds, and USD an hour."""
Run = tuple[float, float, Amounts]
"""A pod: when it begins and ends, in seconds, and what it requests."""


@dataclass(frozen=True)
class Replayed:
    """A replay: the fleet, when its pods ran, and what its nodes cost."""

    fleet: SimulatedFleet
    stays: Sequence[Stay]
    end: datetime
    dollars: float
    evictions: int


def main() -> None:
    """Print the bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", nargs="?", default=str(TRACE / "openb-default.csv.gz"))
    parser.add_argument("--days", metavar="FROM-TO", default="116-117")
    parser.add_argument("--cost", type=float, nargs="*", default=(), help="costs of backtests, USD")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attainable-") as folder:
        replayed = replay_karpenter(arguments.trace, arguments.days, Path(folder))
    fleet, stays, end = replayed.fleet, replayed.stays, replayed.end
    minimum = fsum(lower_bounds(fleet, stays, end))
    steps = whole_node_steps(fleet, stays, end)
    rows = [
        (f"Karpenter's search, {replayed.evictions} evictions", replayed.dollars),
        *((f"a backtest of ${cost:,.2f}", cost) for cost in arguments.cost),
        ("bound without evictions", cost_without_evictions(fleet, stays, end)),
        ("bound with whole nodes and the time to start", cost_with_starts(steps, START_S)),
        ("bound with whole nodes", cost_with_starts(steps, 0.0)),
        ("theoretical minimum", minimum),
    ]
    print(f"{'':48} {'cost':>10} {'of the gap closed':>18}")
    for name, cost in rows:
        closed = (replayed.dollars - cost) / (replayed.dollars - minimum)
        print(f"{name:48} {cost:>10,.2f} {closed:>18.1%}")


def replay_karpenter(trace_file: str, days: str, folder: Path) -> Replayed:
    """Replay days of the trace with Karpenter's packing and search."""
    path = folder / "fleet"
    path.mkdir()
    (path / "nodes.yaml").write_text(FLEET)
    cut = str(cut_trace(trace_file, days, folder))
    trace = read_trace(read_bytes(cut), cut)
    start = datetime.fromisoformat(NOW)
    inputs = read_simulation(FleetRequest(path=str(path), now=start), ignore_phase, is_replay=True)
    replays: list[Replay] = []

    def build(replay: Replay) -> SimulationSetup:
        replays.append(replay)
        return build_simulation(inputs, Script(), 0, replay, replay.market)

    def choose(setup: SimulationSetup) -> SimulatedFleet:
        return TRADEOFFS[KARPENTER].apply_to(setup.head)

    end = start + timedelta(seconds=trace.seconds)
    played = play_side(build, choose, trace, start, end).result
    stays = list(replays[0].stays.values())
    return Replayed(inputs.head, stays, end, played.dollars, played.evictions)


def whole_node_steps(fleet: SimulatedFleet, stays: Sequence[Stay], end: datetime) -> list[Step]:
    """Return the minimum cost of whole nodes for the pods that run in each period."""
    kinds = {pool: kinds_of(fleet, pool) for pool in NODE_POOLS}
    known: dict[object, float] = {}
    found: list[Step] = []
    moment = 0.0
    for stretch in stretches(fleet, stays, end):
        counts = Counter(map(amounts_of, stretch.pods.values()))
        cost = 0.0
        for pool, types in kinds.items():  # pods without GPUs do not tolerate the taint of gpu
            own = {a: n for a, n in counts.items() if bool(a[-1]) == (pool == "gpu")}
            key = tuple(sorted(own.items()))
            if key not in known:
                known[key] = minimum_of_whole_nodes(own, types)
            cost += known[key]
        seconds = stretch.hours * _HOUR_S
        found.append((moment, seconds, cost))
        moment += seconds
    return found


def kinds_of(fleet: SimulatedFleet, node_pool: str) -> list[Kind]:
    """Return the types of a NodePool that no other one covers at the same price or less."""
    pools, cluster = launchable_types(fleet).ready, cluster_without_nodes(fleet)
    template = Scheduler(pools, cluster, fleet.settings, TIMELESS).template(node_pool)
    assert template is not None, node_pool
    priced = [
        (
            template.table.cheapest_price(template.space.offers, 1 << index),
            tuple(template.table.types[index].allocatable.get(name, 0) for name in RESOURCES),
        )
        for index in indices(template.types)
    ]
    found: list[Kind] = []
    for kind in sorted(priced):
        if not any(fits(kind[1], cheaper[1]) for cheaper in found):
            found.append(kind)
    return found


def fits(amounts: Amounts, room: Amounts) -> bool:
    """Return whether a room has at least these amounts."""
    return all(a <= b for a, b in zip(amounts, room, strict=True))


def amounts_of(pod: Pod) -> Amounts:
    """Return what a pod requests."""
    requests = pod.requests()
    return tuple(requests.get(name, 0) for name in RESOURCES)


def minimum_of_whole_nodes(counts: Mapping[Amounts, int], kinds: Sequence[Kind]) -> float:
    """Return a bound on the price of whole nodes for pods, in USD an hour.

    The variables are the nodes of each type, and the pods of each class on them.
    """
    if not counts:
        return 0.0
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", _GAP)
    total = sum(counts.values())
    nodes = [solver.addIntegral(0, total, price) for price, _ in kinds]
    placed = {
        (amounts, number): solver.addIntegral(0, count)
        for amounts, count in counts.items()
        for number, (_, room) in enumerate(kinds)
        if fits(amounts, room)
    }
    for (amounts, number), pods in placed.items():
        solver.addConstr(pods <= most_pods(amounts, kinds[number][1]) * nodes[number])
    for amounts, count in counts.items():
        here = [pods for (other, _), pods in placed.items() if other == amounts]
        solver.addConstr(solver.qsum(here) >= count)
    for number, (_, room) in enumerate(kinds):
        for index, amount in enumerate(room):
            used = [(a[index], pods) for (a, n), pods in placed.items() if n == number and a[index]]
            if used:
                load = solver.qsum([request / amount * pods for request, pods in used])
                solver.addConstr(load <= nodes[number])
    solver.minimize()
    return float(solver.getInfo().mip_dual_bound)


def most_pods(amounts: Amounts, room: Amounts) -> int:
    """Return how many pods with these requests a node holds."""
    return min(there // asked for asked, there in zip(amounts, room, strict=True) if asked)


def cost_without_evictions(fleet: SimulatedFleet, stays: Sequence[Stay], end: datetime) -> float:
    """Return a bound on the cost of nodes for pods that never move, in USD."""
    cost = 0.0
    begin = min(stay.created for stay in stays)
    for pool in NODE_POOLS:  # pods without GPUs do not tolerate the taint of gpu
        runs: list[Run] = []
        for stay in stays:
            amounts = amounts_of(stay.traced.pod)
            if stay.bound is not None and bool(amounts[-1]) == (pool == "gpu"):
                since, until = stay.bound - begin, min(stay.ended or end, end) - begin
                runs.append((since.total_seconds(), until.total_seconds(), amounts))
        lasting = [run for run in runs if run[0] < run[1]]
        cost += minimum_without_moves(lasting, kinds_of(fleet, pool))
    return cost


def minimum_without_moves(runs: Sequence[Run], kinds: Sequence[Kind]) -> float:
    """Return a bound on the cost of nodes, in USD, where each pod remains on one type of node.

    The variables are the parts of a pod on the types that fit it, the same for all of its life, and
    the nodes of each type that are ready in each period and those that start for it. The pods of a
    type share the room of all its nodes. Whole nodes have two more properties: a type has at least
    as many nodes as its part of each pod, and as pods that need more than half of a resource.
    """
    moments = sorted({moment for run in runs for moment in run[:2]})
    program = LinearProgram()
    parts = [
        {number: program.add(0.0) for number, (_, room) in enumerate(kinds) if fits(amounts, room)}
        for _, _, amounts in runs
    ]
    for own in parts:
        program.require(1.0, dict.fromkeys(own.values(), 1.0))
    for number, (price, room) in enumerate(kinds):
        before: int | None = None
        for begin, until in pairwise(moments):
            ready = program.add(price * (until - begin) / _HOUR_S)
            starting = program.add(price * START_S / _HOUR_S)
            kept = {before: 1.0} if before is not None else {}
            program.require(0.0, {starting: 1.0, ready: -1.0, **kept})
            before = ready
            here = [
                (own[number], run[2])
                for run, own in zip(runs, parts, strict=True)
                if run[0] <= begin < run[1] and number in own
            ]
            for part, _ in here:
                program.require(0.0, {ready: 1.0, part: -1.0})
            for index, amount in enumerate(room):
                asked = [(part, amounts[index]) for part, amounts in here if amounts[index]]
                load = {part: -request / amount for part, request in asked}
                large = {part: -1.0 for part, request in asked if 2 * request > amount}
                program.require(0.0, {ready: 1.0, **load})
                program.require(0.0, {ready: 1.0, **large})
    return program.minimum()


class LinearProgram:
    """A linear program with variables of at least 0, whose cost is to be least."""

    def __init__(self) -> None:
        self._solver = highspy.Highs()  # type: ignore[no-untyped-call]
        self._solver.setOptionValue("output_flag", False)
        self._count = 0

    def add(self, cost: float) -> int:
        """Add a variable with its cost, and return its number."""
        self._solver.addCol(cost, 0.0, highspy.kHighsInf, 0, [], [])
        self._count += 1
        return self._count - 1

    def require(self, least: float, factors: Mapping[int, float]) -> None:
        """Require that the sum of variables, each times its factor, is at least ``least``."""
        columns, values = list(factors), list(factors.values())
        self._solver.addRow(least, highspy.kHighsInf, len(columns), columns, values)

    def minimum(self) -> float:
        """Return the least cost."""
        self._solver.setOptionValue("solver", "ipm")
        self._solver.run()
        assert self._solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return float(self._solver.getInfo().objective_function_value)


def cost_with_starts(steps: Sequence[Step], start_s: float) -> float:
    """Return the minimum cost of ready nodes, and of their starts, in USD.

    Ready nodes cost at least USD an hour of each step. For each dollar of it, nodes are kept in
    the gaps of at most ``start_s`` seconds, and started again after longer ones.
    """
    levels = sorted({0.0, *(cost for _, _, cost in steps)})
    return fsum(
        (high - low) * busy_seconds(steps, (low + high) / 2, start_s) / _HOUR_S
        for low, high in pairwise(levels)
    )


def busy_seconds(steps: Iterable[Step], level: float, start_s: float) -> float:
    """Return for how long the steps are above a level, with starts and the gaps kept."""
    seconds, until = 0.0, None
    for begin, lasts, cost in steps:
        if cost > level:
            gap = start_s if until is None else min(start_s, begin - until)
            seconds += gap + lasts
            until = begin + lasts
    return seconds


if __name__ == "__main__":
    main()
