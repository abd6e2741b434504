"""One pass: each pod is offered existing nodes, then planned nodes, then a new node.

Pods are served largest first. A pod that does not fit drops one preference after another, and when
none is left it waits for the next round, because placing another pod may open a domain. Rounds
repeat until one changes nothing (Karpenter ``scheduler.go``). Pods that are alike are served in
sequence, and as many as provably get the same result are placed at once.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from reconciler.catalog.table import iterate_members, union_of
from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.nodes.claims import (
    ClaimQueue,
    Entry,
    Fit,
    OpenClaim,
    Order,
    count_fitting_pods,
    fit,
    record_pods,
)
from reconciler.placement.nodes.space import Demands, Space
from reconciler.placement.nodes.template import PoolTemplate, RemainingLimits, Reservations
from reconciler.placement.nodes.use import NodeUse
from reconciler.placement.pods.cohort import Cohort, CohortStage, CohortView
from reconciler.placement.pods.shape import Shape
from reconciler.placement.topology.groups import Group
from reconciler.placement.work import FIT_CHECKS, PlacementWork

Turn = tuple[Cohort, int]
"""A cohort, and how many of its pods are served before the next turn."""


class PlacementPass(msgspec.Struct, eq=False):
    """The state of one pass; none of it but ``work`` is shared with another pass.

    ``unserved`` are the cohorts with pods that were not served, because nothing was left of it.
    ``users`` are the pods placed so far that use a claim for one pod, by that claim. ``sites`` are
    the nodes with the devices of claims that several pods name. With more than ``claims_max``
    claims the pass ends: it ``has_too_many_claims``.
    """

    templates: Sequence[PoolTemplate]
    nodes: NodeUse
    limits: RemainingLimits
    reservations: Reservations
    demands: Demands
    order: Order
    work: PlacementWork
    claims: list[OpenClaim] = []
    steps_taken: dict[str, int] = {}
    deferred: set[Cohort] = set()
    unserved: set[Cohort] = set()
    users: dict[str, str] = {}
    sites: dict[str, str] = {}
    claims_max: int | None = None

    @property
    def has_too_many_claims(self) -> bool:
        """Whether it has opened more claims than it may; pods may still be waiting."""
        return self.claims_max is not None and len(self.claims) > self.claims_max

    def run(self, turns: Iterable[Turn]) -> None:
        """Place the pods of all cohorts where they fit, while the limit of work allows it."""
        left = list(turns)
        while left:
            before = _count_waiting(left)
            for cohort, most in left:
                if self.work.allows(cohort.shape.namespace):
                    _CohortPlacement(self, cohort, most).serve()
                else:
                    self.unserved.add(cohort)
                if self.has_too_many_claims:
                    return
            left = [(c, most) for c, most in left if c.waiting]
            if _count_waiting(left) == before:
                return
            left = [(c, most) for c, most in left if c.may_fit_later or c in self.deferred]

    def may_place(self, cohort: Cohort) -> bool:
        """Return whether no placed pod uses a claim that one pod may use at a time."""
        claims = cohort.shape.exclusive
        return not claims or self.users.keys().isdisjoint(claims)

    def take(self, cohort: Cohort, count: int) -> list[Pod]:
        """Return the next waiting pods of a cohort, which are placed now."""
        pods = cohort.take(count)
        for claim in cohort.shape.exclusive:
            self.users[claim] = pods[0].key
        return pods

    def site(self, shape: Shape) -> str | None:
        """Return the node that has devices which the pods of a shape share with others."""
        keys = self.nodes.keys_of_nodes(shape.devices)
        return next((self.sites[key] for key in keys if key in self.sites), None)

    def fit(self, view: CohortView, claim: OpenClaim, types: int, *, opening: bool = False) -> Fit:
        """Return the result of adding one pod of a cohort to a claim with candidate types."""
        network = self.nodes.network_for(view.cohort.shape.devices)
        return fit(view, claim, types, self.reservations, opening=opening, network=network)

    def settle(self, shape: Shape, host: str) -> None:
        """Record where the claims that pods of a shape share are allocated."""
        for key in self.nodes.keys_of_nodes(shape.devices):
            self.sites[key] = host

    def fill_existing_nodes(self, cohorts: Iterable[Cohort]) -> None:
        """Place as many pods on existing nodes as fit without dropping a preference."""
        if self.nodes.open:
            for cohort in cohorts:
                _CohortPlacement(self, cohort, cohort.waiting).fill_existing_nodes()

    def accepting_nodes(self, cohort: Cohort, view: CohortView) -> list[int]:
        """Return the existing nodes that take a pod of the cohort, in order."""
        return (
            []
            if view.hopeless
            else list(_CohortPlacement(self, cohort, cohort.waiting).accepting_nodes(view))
        )

    def put(
        self, cohort: Cohort, claim: OpenClaim, found: Fit, most: int, *, is_new: bool
    ) -> list[Pod]:
        """Place up to ``most`` pods on a claim that is known to take one; return them."""
        before = claim.entry
        pods = self.fill(cohort, claim, found, most)
        if is_new:
            self.record_opened(claim, found)
            self.order.reinsert({}, (claim,))
        else:
            claim.sequence = self.order.next_sequence(is_new=False)
            self.order.reinsert({claim: before}, ())
        return pods

    def fill(self, cohort: Cohort, claim: OpenClaim, found: Fit, most: int) -> list[Pod]:
        """Place as many pods as fit, up to ``most``, on a claim that takes at least one."""
        assert found.space is not None
        shape = cohort.shape
        count, mask, requests = count_fitting_pods(shape, claim, found, most, self.reservations)
        pods = self.take(cohort, count)
        taken = claim.network
        claim.add(shape, pods, found.space, mask, requests, found.network)
        if self.nodes.network is not None:
            self.nodes.network.exchange(taken, claim.network, found.network)
        self.settle(shape, claim.host)
        if found.held is not None:
            self.reservations.hold(claim.held, found.held)
            claim.held = found.held
        if cohort.counted or cohort.repelling:
            recorded = len(cohort.recorded) + len(cohort.recorded_repelling)
            self.work.charge(shape.namespace, recorded)
            record_pods(cohort, claim, count)
        return pods

    def record_opened(self, claim: OpenClaim, found: Fit) -> None:
        """Record a new claim that has taken its first pods, in the state ``found``."""
        claim.min_values_relaxed = found.relaxed
        claim.update_room()
        claim.sequence = self.order.next_sequence(is_new=True)
        self.claims.append(claim)
        self.limits.count_node(claim.template, claim.mask)


def _count_waiting(turns: Iterable[Turn]) -> int:
    return sum(cohort.waiting for cohort in {cohort: None for cohort, _ in turns})


class _CohortPlacement:
    """Serves the pods of one cohort one after another, at most ``most``.

    Each step has a queue of the claims that may take a pod. ``_refused`` has spaces that reject the
    cohort permanently. The shared order is updated at the end.
    """

    def __init__(self, placement_pass: PlacementPass, cohort: Cohort, most: int) -> None:
        self.placement_pass = placement_pass
        self.cohort = cohort
        self._last = min(len(cohort.pods), cohort.waiting_from + most)
        self.shape: Shape = cohort.shape
        self._rows: dict[CohortStage, tuple[list[int], Iterator[int]]] = {}
        self._queues: dict[CohortStage, ClaimQueue] = {}
        self._moved: dict[OpenClaim, Entry] = {}
        self._opened: dict[OpenClaim, None] = {}
        self._refused: set[Space] = set()
        self._must_wait = False
        self._checks = 0
        self._site = placement_pass.site(cohort.shape)

    def serve(self) -> None:
        self.placement_pass.deferred.discard(self.cohort)
        self.placement_pass.unserved.discard(self.cohort)
        while self._remaining and self._may_continue() and self._place_some():
            pass
        self._charge()
        if self._must_wait and self.cohort.waiting:
            self.placement_pass.deferred.add(self.cohort)
        self.placement_pass.order.reinsert(self._moved, self._opened)
        self._rows.clear()  # its iterators refer to this object: a cycle

    def _charge(self) -> None:
        self.placement_pass.work.charge(self.shape.namespace, self._checks)
        self._checks = 0

    def _may_continue(self) -> bool:
        """Return whether the limit of work allows another step; if not, the rest is unserved."""
        self._charge()
        if self.placement_pass.has_too_many_claims:
            return False
        if self.placement_pass.work.allows(self.shape.namespace):
            return True
        self.placement_pass.unserved.add(self.cohort)
        return False

    @property
    def _remaining(self) -> int:
        return self._last - self.cohort.waiting_from

    def fill_existing_nodes(self) -> None:
        """Place pods on existing nodes while the first step allows it."""
        cohort = self.cohort
        stage = cohort.stages[cohort.first]
        while cohort.waiting and self.placement_pass.may_place(cohort):
            view = stage.view(cohort, self.placement_pass.demands)
            most = cohort.waiting if stage.many_at_once else 1
            if view.hopeless or not self._place_on_nodes(view, most):
                break
        self._rows.clear()  # its iterators refer to this object: a cycle

    def _place_some(self) -> bool:
        """Place the next pod, and those after it that certainly get the same result."""
        cohort = self.cohort
        if not self.placement_pass.may_place(cohort):
            return False
        for index in range(cohort.first, len(cohort.stages)):
            stage = cohort.stages[index]
            view = stage.view(cohort, self.placement_pass.demands)
            self._checks += stage.view_checks
            alone = index > cohort.first or not stage.many_at_once
            pods = [] if view.hopeless else self._try(view, 1 if alone else self._remaining)
            if pods:
                if index:
                    self.placement_pass.steps_taken.update((pod.key, index) for pod in pods)
                return True
            if self._must_wait:
                return False
            if stage.only_fills_up and index == cohort.first:
                cohort.first += 1
        return False

    def _try(self, view: CohortView, most: int) -> list[Pod]:
        devices = self.shape.devices
        if devices is not None and devices.shared:
            most, self._site = 1, self.placement_pass.site(self.shape)
        return (
            self._place_on_nodes(view, most)
            or self._place_on_claims(view, most)
            or self._place_on_new_node(view, most)
        )

    # existing nodes

    def _place_on_nodes(self, view: CohortView, most: int) -> list[Pod]:
        rows = self._rows.get(view.stage)
        if rows is None:
            rows = self._rows[view.stage] = ([], self._candidates(view))
        seen, unseen = rows
        allowed = self._allowed_nodes(view)
        position, checks = 0, view.stage.host_checks
        while True:
            self._checks += checks
            if position == len(seen):
                following = next(unseen, None)
                if following is None:
                    return []
                seen.append(following)
            index = seen[position]
            if not allowed >> index & 1 or not self._is_at_site(index):
                position += 1
                continue
            most_here = self._count_fitting(index, most)
            room = (
                view.room_on(self.placement_pass.nodes.nodes.rows[index].host) if most_here else 0
            )
            if room > 0:
                return self._put_on_node(index, min(room, most_here))
            if not most_here or view.stage.only_fills_up:
                del seen[position]
            else:
                position += 1

    def accepting_nodes(self, view: CohortView) -> Iterator[int]:
        """Yield the existing nodes that take a pod now, in order."""
        allowed, rows = self._allowed_nodes(view), self.placement_pass.nodes.nodes.rows
        for index in self._candidates(view):
            may = allowed >> index & 1 and self._is_at_site(index)
            may = may and self._count_fitting(index, 1) > 0
            if may and view.room_on(rows[index].host) > 0:
                yield index

    def _candidates(self, view: CohortView) -> Iterator[int]:
        """Yield the nodes that may suit the cohort and have room, in order.

        Those that a rule closes for the rest of the pass count as checks, and nothing else of them
        is read: each of a tenant's pods may repel the others from its node.
        """
        use, step, shape = self.placement_pass.nodes, view.stage.step, self.shape
        mask = use.open & use.nodes.suitable_nodes(step.demand, step.tolerations)
        if self.cohort.guarded:
            mask &= ~use.guarded
        if not mask:
            return
        cpu, memory, enough_cpu, enough_memory = use.cpu, use.memory, shape.cpu, shape.memory
        rows, checks, closes = use.nodes.rows, view.stage.host_checks, bool(view.stage.closing)
        for i in iterate_members(mask & use.nodes.nodes_with_room(shape)):
            if cpu[i] >= enough_cpu and memory[i] >= enough_memory:
                if closes and view.is_closed(rows[i].host):
                    self._checks += checks
                else:
                    yield i

    def _allowed_nodes(self, view: CohortView) -> int:
        """Return the nodes in open domains from which the volumes are reachable."""
        nodes = self.placement_pass.nodes.nodes
        mask = nodes.labels.all
        for domains in view.open:
            values = nodes.labels.values(domains.key)
            mask &= union_of(values.get(domain, 0) for domain in domains.members)
        if self.shape.volume_demands:
            mask &= union_of(nodes.nodes_meeting(demand) for demand in self.shape.volume_demands)
        return mask

    def _is_at_site(self, index: int) -> bool:
        return self._site is None or self.placement_pass.nodes.nodes.rows[index].name == self._site

    def _count_fitting(self, index: int, most: int) -> int:
        """Return how many pods the node takes, ignoring topology rules; 0 if it never takes one."""
        use, shape = self.placement_pass.nodes, self.shape
        if shape.ports:
            if use.ports(index).conflict(shape.ports):
                return 0
            most = 1
        if shape.volumes.attached or shape.exclusive:
            if not use.can_attach(index, shape):
                return 0
            most = 1
        if shape.devices is not None:
            most = use.count_devices(index, shape.devices, 1 if shape.devices.shared else most)
        return use.count_fitting(index, shape.requests, most)

    def _put_on_node(self, index: int, count: int) -> list[Pod]:
        use = self.placement_pass.nodes
        pods = self.placement_pass.take(self.cohort, count)
        use.add(index, self.shape, pods)
        self.placement_pass.settle(self.shape, use.nodes.rows[index].name)
        taints = use.nodes.rows[index].taints
        for group in self.cohort.recorded:
            node_filter = group.rule.node_filter
            if node_filter is None or node_filter.admits(use.nodes.requirements(index), taints):
                self._record_on_node(group, index, count)
        for group in self.cohort.recorded_repelling:
            self._record_on_node(group, index, count)
        return pods

    def _record_on_node(self, group: Group, index: int, count: int) -> None:
        row = self.placement_pass.nodes.nodes.rows[index]
        domain = row.host if group.by_host else row.labels.get(group.key)
        if domain is not None:
            group.record(domain, count)

    # planned nodes

    def _place_on_claims(self, view: CohortView, most: int) -> list[Pod]:
        if not self.placement_pass.claims:
            return []
        queue = self._queue(view.stage)
        position, checks = 0, view.stage.host_checks
        while (claim := self._claim_at(queue, position, view)) is not None:
            self._checks += checks
            if claim.space in view.closed or self._site not in (None, claim.host):
                position += 1
                continue
            room = view.room_on(claim.host)
            if room > 0:
                self._checks += FIT_CHECKS
                found = self.placement_pass.fit(view, claim, claim.mask)
                if found.space is not None:
                    most = min(most, room)
                    if most > 1:
                        most = min(most, self._pods_until_overtaken(queue, position))
                    return self._put_on_claim(queue.seen[position], claim, found, most)
                never = found.never
            else:
                never = view.stage.only_fills_up
            if not never:
                position += 1
                continue
            del queue.seen[position]
            queue.dead.add(claim)
            if len(self.cohort.stages) == 1 and claim.space in view.closed:
                self._refused.add(claim.space)
        return []

    def _queue(self, stage: CohortStage) -> ClaimQueue:
        known = self._queues.get(stage)
        if known is None:
            here = sorted(claim.entry for claim in (*self._moved, *self._opened))
            known = self._queues[stage] = ClaimQueue(here)
        return known

    def _claim_at(
        self, queue: ClaimQueue, position: int, view: CohortView | None = None
    ) -> OpenClaim | None:
        """Return the next claim in order that may have room, and whose host ``view`` leaves open.

        Claims that other cohorts found closed are not checked again, though they count as checks.
        """
        order = self.placement_pass.order
        seen, entries, refused = queue.seen, order.entries, self._refused
        cpu, memory, moved = self.shape.cpu, self.shape.memory, self._moved
        needs = self.shape.devices
        devices = needs.count_min if needs is not None else 0
        before = queue.checked
        closing = view.stage.closing if view is not None else None
        closed = order.closed.get(closing, 0) if closing is not None else 0
        if position == len(seen):
            queue.checked = max(before, closed)
        while queue.checked < len(entries):
            entry = entries[queue.checked]
            if position < len(seen) and seen[position] < entry:
                break
            queue.checked += 1
            claim = entry[2]
            if view is not None and view.is_closed(claim.host):
                if queue.checked == closed + 1:
                    closed += 1
                continue
            if claim.cpu_room < cpu or claim.memory_room < memory or claim.space in refused:
                continue
            if claim.device_room < devices and not claim.has_any_of(needs):
                continue
            if claim in moved:
                continue  # it is in the queue, at its new place
            seen.insert(position, entry)
            break
        if closing is not None:
            order.note_closed(closing, closed)
        self._checks += queue.checked - before
        return seen[position][2] if position < len(seen) else None

    def _pods_until_overtaken(self, queue: ClaimQueue, position: int) -> int:
        """Return how many pods the claim at ``position`` takes before another one precedes it."""
        if self._claim_at(queue, position + 1) is None:
            return self.cohort.waiting
        return self.placement_pass.order.pods_until_overtaken(
            queue.seen[position][0], queue.seen[position + 1][0]
        )

    def _put_on_claim(self, entry: Entry, claim: OpenClaim, found: Fit, most: int) -> list[Pod]:
        if claim not in self._opened:
            self._moved.setdefault(claim, entry)
        pods = self.placement_pass.fill(self.cohort, claim, found, most)
        claim.sequence = self.placement_pass.order.next_sequence(is_new=False)
        for queue in self._queues.values():
            queue.move(entry, claim)
        return pods

    # new nodes

    def _place_on_new_node(self, view: CohortView, most: int) -> list[Pod]:
        placement_pass = self.placement_pass
        for template in placement_pass.templates if self._site is None else ():
            claim = OpenClaim(template, f"new node {len(placement_pass.claims) + 1}")
            self._checks += FIT_CHECKS
            room = view.room_on(claim.host)
            if room <= 0:
                continue
            allowed = placement_pass.limits.allowed_types(template)
            found = placement_pass.fit(view, claim, allowed, opening=True)
            if found.must_wait:
                self._must_wait = True
                return []
            if found.space is None:
                continue
            pods = placement_pass.fill(self.cohort, claim, found, min(most, room))
            placement_pass.record_opened(claim, found)
            self._opened[claim] = None
            for queue in self._queues.values():
                insort(queue.seen, claim.entry)
            return pods
        return []
