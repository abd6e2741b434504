"""The door of this floor: a scheduler, made once for a state of the world and asked many times.

What does not change from one question to the next (tables of types, templates, daemons, the
nodes and what runs on them) is made with it; disruption asks it again for every candidate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.catalog.table import table_of
from reconciler.model.labels import NODEPOOL
from reconciler.model.pod import Pod
from reconciler.model.resources import add, subtract
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState, StateNode, quiet_since
from reconciler.placement.approach import Score, approaches, queue, score
from reconciler.placement.census import Census
from reconciler.placement.claims import Order
from reconciler.placement.cohort import Cohort
from reconciler.placement.daemons import daemons
from reconciler.placement.domains import Universe
from reconciler.placement.finish import Finisher
from reconciler.placement.limits import Limits
from reconciler.placement.nodes import Nodes, Target
from reconciler.placement.nodeuse import NodeUse
from reconciler.placement.packing.goal import Goal
from reconciler.placement.pending import impossible, invalid
from reconciler.placement.problem import LaunchPool
from reconciler.placement.reasons import Explainer
from reconciler.placement.reservations import Reservations
from reconciler.placement.result import Placement, PlannedClaim, Rejection
from reconciler.placement.shape import Shape, Shapes
from reconciler.placement.solve import Pass
from reconciler.placement.space import Demands, SpaceBook
from reconciler.placement.template import Template
from reconciler.placement.topology import Topology
from reconciler.placement.unlaunched import promised
from reconciler.placement.volumes import needs

if TYPE_CHECKING:
    from reconciler.placement.bound import Bound
    from reconciler.placement.survey import Survey


NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"


class _World(msgspec.Struct, frozen=True):
    """How a question differs from the state that the scheduler was made for."""

    without: frozenset[str]
    strict_reservations: bool
    guarded: int
    cheapest: bool = False


class Scheduler:
    """Decides where pods go, on what is there and on what ``pools`` may launch.

    ``salt`` goes into the names of new NodeClaims: with another one the same pods get others.
    """

    def __init__(
        self,
        pools: Iterable[LaunchPool],
        cluster: ClusterState,
        settings: Settings,
        now: datetime,
        *,
        salt: str = "",
    ) -> None:
        self._cluster = cluster = _with_all_namespaces(cluster)
        self._settings = settings
        self._now = now
        self._salt = salt
        self._goal = Goal.of(settings)
        self._demands = Demands()
        usable = [p for p in pools if not p.node_pool.is_static and not p.node_pool.is_deleting]
        self._pools = sorted(
            (p for p in usable if p.node_pool.is_ready), key=lambda p: p.node_pool.order
        )
        self._books: dict[int, SpaceBook] = {}
        self._daemons = daemons(cluster)
        best_effort = settings.min_values_policy == "BestEffort"
        self._all_templates = [
            Template(p.node_pool, self._book(p), self._daemons, best_effort=best_effort)
            for p in self._pools
        ]
        self._templates = [t for t in self._all_templates if t.types]
        self._shapes = Shapes(
            cluster,
            self._demands,
            respect=settings.preference_policy != "Ignore",
            tolerate_soft_taints=any(
                taint.effect == "PreferNoSchedule"
                for t in self._all_templates
                for taint in t.taints
            ),
        )
        self._well_known = frozenset(k for t in self._all_templates for k in t.book.well_known)

    def _book(self, pool: LaunchPool) -> SpaceBook:
        known = self._books.get(id(pool.types))
        if known is None:
            known = self._books[id(pool.types)] = SpaceBook(table_of(pool.types))
        return known

    @cached_property
    def _census(self) -> Census:
        return Census(self._cluster)

    @cached_property
    def _universe(self) -> Universe:
        return Universe((t.node_pool, t.table) for t in self._all_templates)

    @cached_property
    def _promised(self) -> list[Target]:
        return promised(self._cluster.unlaunched, {t.name: t for t in self._all_templates})

    @cached_property
    def _nodes(self) -> Nodes:
        running = [self._target(n) for n in self._cluster.nodes if not n.is_deleting]
        return Nodes([*running, *self._promised], self._daemons, self._cluster.csi_nodes)

    def _target(self, node: StateNode) -> Target:
        used = add(*(self._shapes.requests(p) for p in node.pods if not p.is_terminal))
        return Target(
            name=node.name,
            labels=dict(node.labels),
            taints=node.taints,
            left=subtract(node.allocatable, used),
            is_initialized=node.is_initialized,
            state=node,
        )

    @cached_property
    def _guarded(self) -> int:
        """The nodes that were in motion a moment ago: consolidation puts nothing on them."""
        after = {
            p.node_pool.name: p.node_pool.spec.disruption.consolidates_after for p in self._pools
        }
        mask = 0
        for index, row in enumerate(self._nodes.rows):
            state = row.state
            if state is None or state.claim is None or not state.claim.is_true("Initialized"):
                continue
            wait, since = after.get(state.node_pool), quiet_since(state.claim)
            if wait and since is not None and self._now - since < wait:
                mask |= 1 << index
        return mask

    def place(
        self,
        pods: Sequence[Pod],
        *,
        without: Collection[str] = (),
        strict_reservations: bool = True,
        consolidation_guard: bool = False,
        cheapest: bool = False,
    ) -> Placement:
        """Return where each of ``pods`` goes, new NodeClaims, and why the others go nowhere.

        ``without`` are names of nodes to leave out, with their capacity given back to limits;
        nodes that are being deleted never take a pod. Without ``strict_reservations`` a pod that
        could use reserved capacity, were some left, takes other capacity instead of waiting.
        ``consolidation_guard`` keeps pods that run off nodes whose pods changed a moment ago.
        ``cheapest`` packs new nodes for the least money, whatever the settings ask for.
        """
        refused: dict[str, tuple[Rejection, ...]] = {}
        cohorts: list[Cohort] = []
        for shape, members in self._shapes.sorted(pods).items():
            waiting = self._without_invalid(shape, members, refused)
            cohorts += self._cohorts(shape, waiting, consolidation_guard)
        cohorts.sort(key=lambda c: c.shape.model.is_virtual)
        guarded = self._guarded if consolidation_guard else 0
        world = _World(frozenset(without), strict_reservations, guarded, cheapest)
        return self._answer(self._best(cohorts, world), cohorts, refused)

    def survey(self, pod: Pod) -> Survey | Rejection:
        """Return every place that the pod could have were it alone, its own node left out.

        A rejection says that nothing can be launched or found for it, whatever the NodePools are.
        """
        from reconciler.placement.survey import survey

        ((shape, members),) = self._shapes.sorted([pod]).items()
        problem = invalid(shape, self._well_known)
        if problem is not None:
            return problem
        cohort = Cohort(shape, members, guarded=False)
        world = _World(frozenset({pod.spec.node_name} - {""}), strict_reservations=False, guarded=0)
        self._topology([cohort], world.without)
        return survey(self._pass(world, to_front=True), self._all_templates, cohort)

    def template(self, node_pool: str) -> Template | None:
        """Return what a NodePool launches from, None where it is not one that can."""
        return next((t for t in self._all_templates if t.name == node_pool), None)

    def bound(self, pods: Iterable[Pod]) -> Bound:
        """Return what new nodes for these pods cost at least, however they are placed."""
        from reconciler.placement.bound import bound

        shapes = {shape: len(members) for shape, members in self._shapes.sorted(pods).items()}
        free = [row.left for row in self._nodes.rows]
        explained = self._goal.packs_some(self._templates)
        return bound(shapes, self._templates, free, explained=explained)

    def worth(self, pods: Iterable[Pod]) -> dict[str, float]:
        """Return what new nodes for each pod cost at least, by its key: its share in the bound."""
        from reconciler.placement.bound import worth

        by_shape = self._shapes.sorted(list(pods))
        counts = {shape: len(members) for shape, members in by_shape.items()}
        values = worth(counts, self._templates)
        return {pod.key: values[shape] for shape, members in by_shape.items() for pod in members}

    def _best(self, cohorts: list[Cohort], world: _World) -> Pass:
        """Return the best pass of those tried; cohorts and counts are left as it left them."""
        topology = self._topology(cohorts, world.without)
        at_first = topology.saved()
        best: tuple[Score, Pass] | None = None
        left: tuple[list[dict[str, int]], list[tuple[int, int]]] = (at_first, [])
        for approach in approaches(sum(len(c.pods) for c in cohorts)):
            if best is not None:
                topology.restore(at_first)
                for cohort in cohorts:
                    cohort.rewind()
            solving = self._pass(world, to_front=approach.to_front)
            solving.run(queue(cohorts, approach))
            reached = score(solving, cohorts)
            if best is None or reached.improves_on(best[0]):
                best = (reached, solving)
                left = (topology.saved(), [(c.waiting_from, c.first) for c in cohorts])
            if not reached.could_be_better:
                break
        assert best is not None
        topology.restore(left[0])
        for cohort, (waiting_from, first) in zip(cohorts, left[1], strict=True):
            cohort.waiting_from, cohort.first = waiting_from, first
        if world.cheapest or (world.strict_reservations and self._goal.packs_some(self._templates)):
            from reconciler.placement.packing.cheapest import cheapest
            from reconciler.placement.packing.tries import Tries

            tries = Tries(cohorts, topology, at_first, partial(self._pass, world, to_front=True))
            if world.cheapest:
                return cheapest(best[1], tries, self._goal.for_all(), briefly=True)
            return cheapest(best[1], tries, self._goal)
        return best[1]

    def _pass(self, world: _World, *, to_front: bool) -> Pass:
        return Pass(
            templates=self._templates,
            nodes=NodeUse(self._nodes, world.without, self._attached, world.guarded),
            limits=self._limits(world.without),
            reservations=Reservations(
                [t.table for t in self._templates],
                enabled=self._settings.gate("ReservedCapacity"),
                strict=world.strict_reservations,
            ),
            demands=self._demands,
            order=Order(to_front=to_front),
        )

    def _without_invalid(
        self, shape: Shape, pods: list[Pod], refused: dict[str, tuple[Rejection, ...]]
    ) -> list[Pod]:
        """Return the pods that can be placed at all; those that already run are not doubted."""
        problem = invalid(shape, self._well_known)
        if problem is None:
            return pods
        certain = impossible(shape)
        for pod in pods:
            if not pod.spec.node_name:
                refused[pod.key] = (problem,)
            elif certain is not None:
                refused[pod.key] = (certain,)
        return [pod for pod in pods if pod.key not in refused]

    def _cohorts(self, shape: Shape, pods: list[Pod], guard: bool) -> list[Cohort]:
        if not pods:
            return []
        if not guard:
            return [Cohort(shape, pods, guarded=False)]
        by_name = self._cluster.by_name
        free: list[Pod] = []
        guarded: list[Pod] = []
        for pod in pods:
            node = by_name.get(pod.spec.node_name)
            exempt = pod.status.phase == "Pending" or (node is not None and node.is_deleting)
            (free if exempt else guarded).append(pod)
        return [
            Cohort(shape, members, guarded=flag)
            for members, flag in ((free, False), (guarded, True))
            if members
        ]

    def _topology(self, cohorts: list[Cohort], without: Collection[str]) -> Topology:
        topology = Topology(self._census, self._universe, without)
        topology.add_running_repellers()
        for cohort in cohorts:
            cohort.register(topology)
        for cohort in cohorts:
            cohort.bind(topology)
            bound = [pod for pod in cohort.pods if pod.spec.node_name]
            if bound:
                topology.forget(cohort.counted, cohort.repelling, bound)
        return topology

    def _limits(self, without: Collection[str]) -> Limits:
        targets = ((t.labels.get(NODEPOOL, ""), t.capacity) for t in self._promised)
        return Limits(self._all_templates, self._cluster.nodes, targets, without)

    def _attached(self, pod: Pod) -> Iterable[tuple[str, frozenset[str]]]:
        return needs(pod, self._cluster).attached

    def _answer(
        self,
        solving: Pass,
        cohorts: Sequence[Cohort],
        refused: Mapping[str, tuple[Rejection, ...]],
    ) -> Placement:
        claims: list[PlannedClaim] = []
        unschedulable = dict(refused)
        finisher = Finisher(self._salt)
        for claim in solving.claims:
            finished = finisher.finished(claim)
            if finished is not None:
                claims.append(finished)
                continue
            reason = Rejection(
                "MinValuesAfterTruncation",
                f"the 600 cheapest types are less choice than NodePool {claim.template.name} "
                "asks for with minValues: lower it",
                claim.template.name,
            )
            for _, pods in claim.members:
                unschedulable |= {pod.key: (reason,) for pod in pods}
        deferred: dict[str, tuple[Rejection, ...]] = {}
        explainer = Explainer(solving, self._all_templates)
        for cohort in cohorts:
            if cohort.waiting:
                reasons = explainer.why_not(cohort)
                kind = deferred if cohort in solving.deferred else unschedulable
                kind |= {pod.key: reasons for pod in cohort.pods[cohort.waiting_from :]}
        return Placement(
            claims=tuple(sorted(claims, key=lambda c: c.name)),
            on_nodes=self._on_nodes(solving),
            unschedulable=dict(sorted(unschedulable.items())),
            deferred=dict(sorted(deferred.items())),
            relaxed=_relaxed(solving, cohorts),
            uninitialized_targets=self._uninitialized(solving),
        )

    def _on_nodes(self, solving: Pass) -> dict[str, str]:
        rows = solving.nodes.nodes.rows
        found = {
            pod.key: rows[index].name
            for index, pods in solving.nodes.placed.items()
            for pod in pods
        }
        return dict(sorted(found.items()))

    def _uninitialized(self, solving: Pass) -> frozenset[str]:
        rows = solving.nodes.nodes.rows
        return frozenset(
            pod.key
            for index, pods in solving.nodes.placed.items()
            if not rows[index].is_initialized
            for pod in pods
        )


def _with_all_namespaces(cluster: ClusterState) -> ClusterState:
    """Return the cluster with every namespace that a pod is in.

    A snapshot may hold pods and no Namespace objects; the label that Kubernetes gives each
    namespace is known all the same.
    """
    missing = {pod.namespace for pod in cluster.pods} - cluster.namespaces.keys()
    if not missing:
        return cluster
    named = {name: {NAMESPACE_NAME: name} for name in sorted(missing)}
    return replace(cluster, namespaces={**cluster.namespaces, **named})


def _relaxed(solving: Pass, cohorts: Sequence[Cohort]) -> dict[str, tuple[str, ...]]:
    found = {}
    for cohort in cohorts:
        for pod in cohort.pods[: cohort.waiting_from]:
            step = solving.steps_taken.get(pod.key, 0)
            if step:
                found[pod.key] = tuple(s.dropped for s in cohort.shape.steps[1 : step + 1])
    return dict(sorted(found.items()))
