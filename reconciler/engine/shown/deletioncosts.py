"""Writes the ranks of nodes to their pods as deletion costs, if the fleet asks for it.

A ReplicaSet that is scaled down then removes pods from the nodes that go next. What was written is
recorded nowhere: each round compares the wanted costs with those that the pods have, so that a
crash leaves nothing behind that the next round does not find. Without the gate, what earlier rounds
have written is removed. A value of somebody else stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final

from reconciler.disruption.deletioncosts import LEAVING, controlling_kind
from reconciler.engine.observation import Complete
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.world import World
from reconciler.model.karpenter.labels import POD_DELETION_COST
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import FeatureGate
from reconciler.observed.state import StateNode
from reconciler.plan.value.plan import Plan
from reconciler.ports.cluster import CostWrites, PodCost
from reconciler.ports.progress import EventKind

INTERVAL: Final = timedelta(minutes=1)
NODES_MAX: Final = 50
"""How many nodes a round writes to besides those that leave, as in Karpenter."""
WRITES_MAX: Final = 1_500
_NAME: Final = "write pod deletion costs"


@dataclass(frozen=True, slots=True)
class CostRound:
    """A round: the nodes by NodePool to whose pods it writes, and the results of the last one."""

    pending: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, int] = field(default_factory=dict)


def _read_results(world: World, *, is_on: bool) -> Mapping[str, int]:
    """Return the results of a round that has ended, and report what it could not write."""
    answer = world.calls.answer(_NAME)
    if answer is None:
        return {}
    written = answer.value if isinstance(answer.value, CostWrites) else CostWrites({})
    error = answer.error or written.error
    text = str(error) if error is not None and is_on else ""
    world.cost_problems.report(world, text, EventKind.FORBIDDEN)
    return written.results


def update(world: World, desired: PlannedFleet, seen: Complete, plan: Plan) -> CostRound | None:
    """Start the next round, unless one runs; return None if there is nothing to report."""
    gate = desired.settings.gate(FeatureGate.POD_DELETION_COST_MANAGEMENT)
    results = _read_results(world, is_on=gate)
    rounds = world.cost_rounds
    due = rounds.last is None or seen.at - rounds.last >= INTERVAL
    if not due or world.calls.is_open(_NAME) or seen.unclear_owners:
        return CostRound(rounds.pending, results) if results else None
    rounds.last = seen.at
    ranks = desired.deletion_ranks(seen, plan) if gate else None
    costs = list(islice(_wanted_costs(seen.state().nodes, ranks), WRITES_MAX))
    if costs:
        world.calls.start(_NAME, partial(world.pod_costs.write, costs))
    rounds.pending = Counter(pool for pool, _ in {(c.node_pool, c.node) for c in costs})
    return CostRound(rounds.pending, results)


def _wanted_costs(
    nodes: tuple[StateNode, ...], ranks: Mapping[str, int | None] | None
) -> Iterator[PodCost]:
    """Yield the pods whose cost is another than the wanted one; without ranks, none is wanted."""
    by_name = {node.name: node for node in nodes if node.is_managed}
    changed = 0
    for name, rank in (dict.fromkeys(by_name) if ranks is None else ranks).items():
        if name not in by_name or changed >= NODES_MAX:
            continue
        wanted = None if rank is None else str(rank)
        found = list(_changes(by_name[name], wanted))
        yield from found
        changed += bool(found) and rank != LEAVING


def _changes(node: StateNode, wanted: str | None) -> Iterator[PodCost]:
    for pod in node.pods:
        current = pod.metadata.annotations.get(POD_DELETION_COST)
        if current == wanted or (wanted is None and not _may_be_ours(pod)):
            continue
        if not pod.is_terminal and controlling_kind(pod) == ("apps", "ReplicaSet"):
            meta = pod.metadata
            yield PodCost(
                pod.namespace, meta.name, meta.uid, node.name, node.node_pool, current, wanted
            )


def _may_be_ours(pod: Pod) -> bool:
    """Return whether a value is one that a round writes: a negative number."""
    value = pod.metadata.annotations.get(POD_DELETION_COST, "")
    return value.startswith("-") and value[1:].isdecimal()
