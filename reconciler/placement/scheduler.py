"""The scheduler: built once for a cluster state and called many times, such as for each candidate.

It holds what does not change between calls: tables of types, templates, daemons, nodes, pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING

from reconciler.catalog.table import union_of
from reconciler.model.karpenter.labels import NODEPOOL, WELL_KNOWN_AWS
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import DecisionRules, FeatureGate, PreferencePolicy, Settings
from reconciler.observed.state import ClusterState
from reconciler.placement.answer import Attempt, Finisher, build_placement, closed_rejection
from reconciler.placement.approach import (
    ApproachScore,
    fresh_approaches,
    needs_several_claims,
    queue,
    score,
    serve_in_turns,
)
from reconciler.placement.devices.hosts import devices_of_node
from reconciler.placement.devices.networkuse import ClusterDevices
from reconciler.placement.inputs import (
    RULES_MAX,
    AppliedRule,
    Host,
    PlacementInputs,
    accepting_nodes,
    applied_rules,
    cannot_share,
    count_rules,
    hosts_of,
    is_comparable,
)
from reconciler.placement.nodes.claims import Order, unlaunched_targets
from reconciler.placement.nodes.daemons import daemons
from reconciler.placement.nodes.existing import Nodes, SchedulerMemory, Target
from reconciler.placement.nodes.space import Demands
from reconciler.placement.nodes.template import (
    PoolTemplate,
    RemainingLimits,
    Reservations,
    VolumeLimits,
    templates_of,
)
from reconciler.placement.nodes.use import NodeUse
from reconciler.placement.packing.goal import Depth, Goal, PreferenceBudget
from reconciler.placement.pods.cohort import Cohort, cohorts_of
from reconciler.placement.pods.pending import invalid_rejection, without_invalid
from reconciler.placement.pods.shape import Shape, Shapes, queue_position
from reconciler.placement.pods.volumes import attached_volumes
from reconciler.placement.question import LaunchPool, Placement, Question, Rejection
from reconciler.placement.solve import PlacementPass
from reconciler.placement.topology.census import Census, Censuses, KarpenterUniverse, Universe
from reconciler.placement.topology.groups import Topology
from reconciler.placement.work import WORK_MAX, PlacementWork, SimulatedWork, admitted

if TYPE_CHECKING:
    from reconciler.placement.explain.survey import Survey
    from reconciler.placement.packing.bound import Bound

_PodsByShape = Mapping[Shape, list[Pod]]


class Scheduler:
    """Decides where pods are placed, on existing nodes and on new nodes from ``pools``.

    ``salt`` goes into the names of new NodeClaims; ``memory`` and ``simulated``, the work of
    simulated removals, may be those of other schedulers.
    """

    def __init__(
        self,
        pools: Iterable[LaunchPool],
        cluster: ClusterState,
        settings: Settings,
        now: datetime,
        *,
        salt: str = "",
        memory: SchedulerMemory | None = None,
        simulated: SimulatedWork | None = None,
    ) -> None:
        self.simulated = simulated if simulated is not None else SimulatedWork()
        self._memory = memory if memory is not None else SchedulerMemory()
        self._cluster = cluster = cluster.with_all_namespaces()
        self._settings = settings
        self._now = now
        self._finisher = Finisher(salt)
        self._goal = Goal.from_settings(settings)
        self._demands = Demands()
        usable = [p for p in pools if not p.node_pool.is_static and not p.node_pool.is_deleting]
        self._pools = sorted(
            (p for p in usable if p.node_pool.is_ready), key=lambda p: p.node_pool.order
        )
        self._hosts: dict[int, Host] = {}
        self._known_takers: dict[Shape, Sequence[int]] = {}
        self._work = PlacementWork(WORK_MAX)
        self._has_answer = False
        self._daemons = daemons(cluster, ignores_claims=settings.ignores_resource_claims)
        self._all_templates = templates_of(self._pools, self._daemons, settings)
        tables = {id(t.table): t.table for t in self._all_templates}.values()
        self._devices = ClusterDevices(
            cluster, partial(devices_of_node, tables), is_ignored=settings.ignores_resource_claims
        )
        self._volume_limits = VolumeLimits(self._all_templates)
        self._templates = [t for t in self._all_templates if t.types]
        self._shapes = self._make_shapes(
            respect=settings.preference_policy != PreferencePolicy.IGNORE
        )
        known = frozenset(k for t in self._all_templates for k in t.book.well_known)
        self._well_known = known or WELL_KNOWN_AWS

    def _make_shapes(self, *, respect: bool) -> Shapes:
        soft = any(x.effect == "PreferNoSchedule" for t in self._all_templates for x in t.taints)
        return Shapes(
            self._cluster,
            self._demands,
            respect=respect,
            tolerate_soft_taints=soft,
            one_pod_claims=self._settings.decide is not DecisionRules.KARPENTER,
            claims=self._devices.claims,
            spec_keys=self._memory.spec_keys,
        )

    @cached_property
    def _bare_shapes(self) -> Shapes:
        """Sorts pods into shapes that ignore preferences."""
        return self._make_shapes(respect=False)

    @cached_property
    def _censuses(self) -> Censuses:
        return Censuses(self._cluster, self._universe.may_define)

    @cached_property
    def _census(self) -> Census:
        return self._censuses.exact

    @cached_property
    def _universe(self) -> Universe:
        as_karpenter = self._settings.decide is DecisionRules.KARPENTER
        return (KarpenterUniverse if as_karpenter else Universe)(self._all_templates, self._demands)

    @cached_property
    def _unlaunched_targets(self) -> list[Target]:
        return unlaunched_targets(
            self._cluster.unlaunched, {t.name: t for t in self._all_templates}
        )

    @cached_property
    def _nodes(self) -> Nodes:
        known, limit = self._memory.targets, self._volume_limits.of_node
        running = known.of_nodes((n for n in self._cluster.nodes if not n.is_deleting), limit)
        targets = [*running, *self._unlaunched_targets]
        return Nodes(targets, self._daemons, self._cluster.csi_nodes, self._devices.nodes, known)

    @cached_property
    def _guarded_nodes(self) -> int:
        """The nodes whose pods changed recently: consolidation does not place pods on them."""
        return self._nodes.recently_changed((p.node_pool for p in self._pools), self._now)

    def place(self, question: Question) -> Placement:
        """Return where each pod is placed, new NodeClaims, and why other pods do not fit.

        Nodes that are being deleted take no new pods, though the pods on them count.
        """
        self._begin_work(question)
        found = self._place(question)
        if not question.is_launched:
            self.simulated.add(self._work)
        return found

    def _begin_work(self, question: Question) -> None:
        """Limit the work on a question; simulated removals have one limit for all of them."""
        self._has_answer = False
        closed = frozenset() if question.is_launched else self.simulated.closed
        self._census = self._censuses.simplified(closed)
        limit = WORK_MAX
        if not question.is_launched:
            limit = self.simulated.left({pod.namespace for pod in question.pods})
        self._work = PlacementWork(limit, self._census.repelling_namespaces)

    def _place(self, question: Question) -> Placement:
        by_shape = self._shapes.group(question.pods)
        if question.pod_values is not None:
            attempt, saving = self._attempt(by_shape, question, "brief"), 0.0
        elif self._packs_for_cost(question):
            attempt, saving = self._place_within_preference_cost(by_shape, question)
        else:
            attempt, saving = self._attempt(by_shape, question), 0.0
        found = build_placement(attempt, self._all_templates, self._finisher, saving)
        attempt.release()
        return found

    def placement_inputs(
        self, pods: Sequence[Pod], without: frozenset[str]
    ) -> PlacementInputs | None:
        """Return the inputs of results about these pods, if ``without`` are left out.

        None if they cannot be compared quickly, such as with volumes or too many rules. It is valid
        for evaluations that are not strict about reservations.
        """
        shapes = self._shapes.group(pods)
        closed = self.simulated.closed
        self._census = self._censuses.simplified(closed)
        if not all(is_comparable(s) and s.namespace not in closed for s in shapes):
            return None
        open_nodes = ~self._nodes.mask_of(without)
        takers: list[int] = []
        for shape, members in shapes.items():
            for guarded in sorted({self._is_guarded(pod) for pod in members}):
                allowed = open_nodes & ~self._guarded_nodes if guarded else open_nodes
                takers += (allowed & mask for mask in self._accepting_nodes(shape))
        found = hosts_of(takers, self._nodes, self._hosts)
        if found is None:
            return None
        limits = self._limits(without)
        left = {t.name: k for t in self._templates if (k := limits.remaining(t)) is not None}
        hosts, takers_here = found
        rules = self._applied_rules(shapes, hosts, without)
        if rules is None:
            return None
        state = left, tuple(self._pools), self._daemons, self._settings
        return PlacementInputs(tuple(pods), hosts, takers_here, *state, rules)

    def _applied_rules(
        self, shapes: _PodsByShape, hosts: Sequence[Host], without: frozenset[str]
    ) -> tuple[AppliedRule, ...] | None:
        """Return the topology rules that apply to pods, None if they cannot be compared quickly."""
        running = self._census.repellers
        if not any(count_rules(shape) or running.selecting(shape) for shape in shapes):
            return ()
        if len(running.counts) + sum(map(count_rules, shapes)) > RULES_MAX:
            return None
        rows = (cohorts_of(s, members, self._is_guarded) for s, members in shapes.items())
        cohorts = [cohort for row in rows for cohort in row]
        self._topology(cohorts, without)
        return applied_rules(cohorts, hosts)

    def cannot_share(self, pods: Sequence[Pod], without: frozenset[str], price: float) -> bool:
        """Return whether pods certainly do not fit running nodes and a new one below ``price``.

        The nodes are those on which consolidation may place them. Either counting shows it, or
        every order of the pods opens a second node. False proves nothing.
        """
        return self.exceeds_price(pods, without, price) or self._needs_several(pods, without)

    def _needs_several(self, pods: Sequence[Pod], without: frozenset[str]) -> bool:
        """Return whether consolidation cannot place the pods with fewer than two new nodes."""
        question = Question(
            pods=pods, without=without, strict_reservations=False, consolidation_guard=True
        )
        self._begin_work(question)
        cohorts = self._cohorts(self._shapes.group(pods), question, {})
        topology = self._topology(cohorts, without)
        new_pass = partial(self._new_pass, question, claims_max=1)
        found = needs_several_claims(cohorts, topology, new_pass, self._settings.decide)
        self.simulated.add(self._work)
        for cohort in cohorts:
            cohort.release()
        return found

    def exceeds_price(
        self, pods: Sequence[Pod], without: frozenset[str], price: float, *, spot: bool = True
    ) -> bool:
        """Return whether counting shows it; a new node may only be spot if that counts."""
        shapes = self._shapes.group([pod for pod in pods if not pod.is_virtual])
        if any(shape.unreadable is not None for shape in shapes):
            return False
        if any(map(self._census.strands, shapes)):
            return True
        usable = self._nodes.initialized & ~self._nodes.mask_of(without)
        unguarded, hosts = usable & ~self._guarded_nodes, dict[Shape, int]()
        for shape, members in shapes.items():
            allowed = unguarded if all(map(self._is_guarded, members)) else usable
            hosts[shape] = allowed & union_of(self._accepting_nodes(shape))
        return cannot_share(shapes, hosts, self._nodes, self._templates, price, spot=spot)

    def strands(self, pods: Iterable[Pod]) -> bool:
        """Return whether the rules of one of the pods leave no node to it, now or later."""
        return any(map(self._census.strands, self._shapes.group(pods)))

    def _accepting_nodes(self, shape: Shape) -> Sequence[int]:
        """Return the nodes that take a pod of a plain shape at each step of its preferences."""
        if shape not in self._known_takers:
            self._known_takers[shape] = accepting_nodes(shape, self._nodes)
        return self._known_takers[shape]

    def survey(self, pod: Pod) -> Survey | Rejection:
        """Return every option for the pod placed alone, with its own node left out.

        A rejection means that no NodePool and no node can take it.
        """
        from reconciler.placement.explain.survey import survey

        ((shape, members),) = self._shapes.group([pod]).items()
        users = {} if pod.spec.node_name else self._cluster.claim_users
        problem = invalid_rejection(shape, self._well_known, users)
        if problem is not None:
            return problem
        cohort = Cohort(shape, members, guarded=False)
        host = self._cluster.node_of(pod)
        own = frozenset() if host is None else frozenset({host.name})
        self._census = self._censuses.exact
        question = Question(pods=(pod,), without=own, strict_reservations=False)
        self._topology([cohort], own)
        return survey(self._new_pass(question, to_front=True), self._all_templates, cohort)

    def template(self, node_pool: str) -> PoolTemplate | None:
        """Return the template of a NodePool, or None if it cannot launch nodes."""
        return next((t for t in self._all_templates if t.name == node_pool), None)

    def lower_bound(self, pods: Iterable[Pod]) -> Bound:
        """Return the minimum cost of new nodes for these pods, however they are placed.

        If pods may be packed without their preferences, the bound ignores these.
        """
        from reconciler.placement.packing.bound import lower_bound

        every, preferred = list(pods), None
        shapes = self._shapes.count(every)
        if self._goal.packs_some(self._templates):
            shapes, preferred = self._bare_shapes.count(every), shapes
        return lower_bound(shapes, self._templates, self._nodes.room, preferred)

    def pod_values(self, pods: Iterable[Pod]) -> dict[str, float]:
        """Return each pod's share in the minimum cost of new nodes, by its key."""
        from reconciler.placement.packing.bound import pod_values

        by_shape = self._shapes.group(pods)
        values = pod_values({s: len(alike) for s, alike in by_shape.items()}, self._templates)
        return {pod.key: values[shape] for shape, members in by_shape.items() for pod in members}

    def _attempt(
        self,
        by_shape: _PodsByShape,
        question: Question,
        depth: Depth = "whole",
        bare: frozenset[Shape] = frozenset(),
    ) -> Attempt:
        """Place the pods, those of ``bare`` shapes without their preferences."""
        rejections: dict[str, tuple[Rejection, ...]] = {}
        cohorts = self._cohorts(by_shape, question, rejections, bare)
        without = {shape: by_shape[shape] for shape in by_shape if shape in bare}
        standing = self._census.standing_rules
        known, left = admitted(cohorts, len(self._cluster.pods), self._work, standing)
        found = self._best_pass(known, question, depth)
        self._has_answer = True
        return Attempt(found, known, rejections, without, left)

    def _cohorts(
        self,
        by_shape: _PodsByShape,
        question: Question,
        rejections: dict[str, tuple[Rejection, ...]],
        bare: frozenset[Shape] = frozenset(),
    ) -> list[Cohort]:
        """Return the pods that can be placed at all, virtual ones last.

        None are those of a namespace that has used its work of simulated removals.
        """
        cohorts: list[Cohort] = []
        is_guarded = self._is_guarded if question.consolidation_guard else None
        users = self._cluster.claim_users if any(s.exclusive for s in by_shape) else {}
        for shape, members in by_shape.items():
            if shape.namespace in self._census.simplified:
                rejections |= {pod.key: (closed_rejection(pod.namespace),) for pod in members}
                continue
            pods = without_invalid(shape, members, rejections, self._well_known, users)
            shapes = self._bare_shapes.group(pods) if shape in bare else {shape: pods}
            for which, alike in shapes.items():
                cohorts += cohorts_of(which, alike, is_guarded)
        return sorted(cohorts, key=lambda c: c.shape.model.is_virtual)

    def _place_within_preference_cost(
        self, by_shape: _PodsByShape, question: Question
    ) -> tuple[Attempt, float]:
        """Return the attempt without the preferences that cost too much, and the saving."""
        if self._goal.preference_cost_max >= 1 or not any(s.preferences for s in by_shape):
            return self._attempt(by_shape, question), 0.0
        from reconciler.placement.packing.bound import rough_lower_bound

        def attempt(bare: Collection[Shape], depth: Depth) -> Attempt:
            return self._attempt(by_shape, question, depth, frozenset(bare))

        full = attempt((), "third")
        if full.placement_pass.unserved:
            return full, 0.0
        packed = (c for c in full.placement_pass.claims if self._goal.packs(c.template))
        served = {shape for claim in packed for shape, _ in claim.members}
        with_preferences = [shape for shape in by_shape if shape in served and shape.preferences]
        with_preferences.sort(key=lambda shape: min(map(queue_position, by_shape[shape])))
        every = self._bare_shapes.count(full.placed_pods)
        least = rough_lower_bound(every, self._templates, self._nodes.room)
        return PreferenceBudget(self._goal, attempt).apply(full, with_preferences, least)

    def _packs_for_cost(self, question: Question) -> bool:
        """Return whether new nodes are packed for cost."""
        asked = question.is_launched and self._goal.packs_some(self._templates)
        return question.pod_values is not None or asked

    def _best_pass(self, cohorts: list[Cohort], question: Question, depth: Depth) -> PlacementPass:
        """Return the best pass tried; cohorts and counts are left in its final state.

        Pods that no node can ever take are not served: they do not affect where others are placed.
        """
        topology = self._topology(cohorts, question.without)
        cohorts = [cohort for cohort in cohorts if not self._census.strands(cohort.shape)]
        initial_counts = topology.snapshot()
        best: tuple[ApproachScore, PlacementPass] | None = None
        final_state: tuple[list[dict[str, int]], list[tuple[int, int]]] = (initial_counts, [])
        rules = self._settings.decide
        for approach in fresh_approaches(cohorts, topology, initial_counts, rules):
            placement_pass = self._new_pass(question, to_front=approach.to_front)
            placement_pass.run(queue(cohorts, approach))
            if placement_pass.unserved and best is not None:
                break  # what was found within the limit is complete
            if placement_pass.unserved and not self._has_answer:
                topology.restore(initial_counts)
                self._work = self._work.restarted()
                placement_pass = self._new_pass(question, to_front=approach.to_front)
                serve_in_turns(placement_pass, cohorts, approach)
            result = score(placement_pass, cohorts)
            if best is None or result.improves_on(best[0]):
                best = (result, placement_pass)
                final_state = (topology.snapshot(), [(c.waiting_from, c.first) for c in cohorts])
            if not result.could_be_better or placement_pass.unserved:
                break
        assert best is not None
        topology.restore(final_state[0])
        for cohort, (waiting_from, first) in zip(cohorts, final_state[1], strict=True):
            cohort.waiting_from, cohort.first = waiting_from, first
        if self._packs_for_cost(question) and not best[1].unserved:
            from reconciler.placement.packing.cheapest import Trials, find_cheapest_pass

            new_pass = partial(self._new_pass, question, to_front=True)
            trials = Trials(cohorts, topology, initial_counts, new_pass, question.pod_values)
            goal = self._goal if question.pod_values is None else self._goal.with_all_pools()
            return find_cheapest_pass(best[1], trials, goal, depth)
        return best[1]

    def _new_pass(
        self, question: Question, *, to_front: bool, claims_max: int | None = None
    ) -> PlacementPass:
        guarded = self._guarded_nodes if question.consolidation_guard else 0
        without, closed = question.without, question.without | question.closed
        network = self._devices.use(question.pods, without)
        volumes = partial(attached_volumes, self._cluster)
        return PlacementPass(
            templates=self._templates,
            nodes=NodeUse(self._nodes, closed, volumes, guarded, network),
            limits=self._limits(without),
            reservations=Reservations(
                [t.table for t in self._templates],
                question,
                enabled=self._settings.gate(FeatureGate.RESERVED_CAPACITY),
            ),
            demands=self._demands,
            order=Order(to_front=to_front),
            work=self._work,
            sites=self._devices.sites_without(without),
            claims_max=claims_max,
        )

    def _is_guarded(self, pod: Pod) -> bool:
        """Return whether consolidation keeps the pod off nodes whose pods changed recently."""
        if pod.status.phase == "Pending":
            return False
        node = self._cluster.node_of(pod)
        return node is None or not node.is_deleting

    def _topology(self, cohorts: list[Cohort], without: Collection[str]) -> Topology:
        topology = Topology(self._census, self._universe, without, (c.shape for c in cohorts))
        topology.add_running_repellers()
        for cohort in cohorts:
            self._work.pulse.count(len(cohorts))
            cohort.register(topology)
        for cohort in cohorts:
            self._work.pulse.count(len(cohorts))
            cohort.bind(topology)
            topology.forget(cohort.counted, cohort.repelling, cohort.pods)
        return topology

    @cached_property
    def _all_limits(self) -> RemainingLimits:
        targets = ((t.labels.get(NODEPOOL, ""), t.capacity) for t in self._unlaunched_targets)
        return RemainingLimits(self._all_templates, self._cluster.nodes, targets)

    def _limits(self, without: Collection[str]) -> RemainingLimits:
        return self._all_limits.without(map(self._cluster.by_name.get, without))
