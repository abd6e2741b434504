"""NodeClaims that this pass plans, and the order in which pods try them.

Karpenter offers each pod to the claim with the fewest pods first. This module maintains that order
instead of sorting again. A stable sort would put a claim that takes a pod in front of those with
one pod more, and a new claim behind those with one.

Pending pods may also be placed on NodeClaims that were created and have no instance yet. Only the
set of their possible instance types is known. Such a claim therefore counts with the resources that
every one of them offers, and with the largest of them towards its NodePool's limits.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, NamedTuple

from reconciler.catalog.table import TypeTable
from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import requirements_of
from reconciler.model.karpenter.requirements import equals
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import CPU, MEMORY, Resources, parse_resources
from reconciler.placement.devices.hosts import DeviceLoad
from reconciler.placement.devices.needs import DeviceNeeds
from reconciler.placement.devices.networkuse import NetworkShare, NetworkUse
from reconciler.placement.nodes.existing import Target
from reconciler.placement.nodes.network import NetworkFit, fit_on_network, share_of
from reconciler.placement.nodes.ports import UsedPorts
from reconciler.placement.nodes.space import Demands, Space
from reconciler.placement.nodes.template import (
    NONE_HELD,
    Held,
    PoolTemplate,
    Reservations,
    min_values_shortfalls,
)
from reconciler.placement.pods.cohort import Cohort, CohortView
from reconciler.placement.pods.shape import Shape
from reconciler.placement.topology.rules import RuleKind

_NO_REQUESTS: Final[Resources] = {}

_CLOSED_MAX: Final = 8
"""For how many kinds of pods the order of claims knows which of the first ones are closed."""


def unlaunched_targets(
    claims: Iterable[NodeClaim], templates: Mapping[str, PoolTemplate]
) -> list[Target]:
    """Return the claims as targets; one without known types offers only what it requested."""
    return [
        _unlaunched_target(claim, templates.get(claim.node_pool))
        for claim in claims
        if not claim.is_deleting
    ]


def _unlaunched_target(claim: NodeClaim, template: PoolTemplate | None) -> Target:
    own = requirements_of(claim.spec.requirements)
    asked = parse_resources(claim.spec.resources.requests)
    labels = {**own.fixed_labels(), **claim.metadata.labels}
    left, capacity, volumes = dict(asked), asked, None
    if template is not None:
        known = [equals(key, value) for key, value in claim.metadata.labels.items()]
        space = template.book.space_for(own.with_requirements(known))
        types = space.mask & template.table.usable
        if types:
            labels = {**space.requirements.fixed_labels(), **labels}
            left = template.table.least_allocatable(types)
            capacity = template.table.largest_capacity(types)
            volumes = template.volume_limit(types)
    labels.setdefault(NODEPOOL, claim.node_pool)
    startup = claim.spec.startup_taints
    taints = tuple(
        t
        for t in claim.spec.taints
        if not t.is_ephemeral and not any(t.matches(s) for s in startup)
    )
    return Target(
        claim.name,
        labels,
        taints,
        left,
        is_initialized=False,
        capacity=capacity,
        volume_limit=volumes,
    )


# Whether a planned node can take one more pod, and what it becomes with it.


class Fit(NamedTuple):
    """The result of adding one pod to a claim; without a ``space`` the pod does not fit.

    ``requests`` are those of all its pods including the new one. ``never`` is whether it cannot fit
    for the rest of the pass; ``must_wait`` whether only reserved capacity is missing. ``held`` are
    the reservations it would hold, None if there are no reservations. ``relaxed`` is whether
    ``minValues`` was lowered. ``network`` has the devices that it would get of the network.
    """

    space: Space | None = None
    mask: int = 0
    requests: Resources = _NO_REQUESTS
    held: Held | None = None
    never: bool = False
    must_wait: bool = False
    relaxed: bool = False
    network: NetworkFit | None = None


_NEVER = Fit(never=True)
_NOT_NOW = Fit()
_WAIT = Fit(must_wait=True)


def fit(
    view: CohortView,
    claim: OpenClaim,
    types: int,
    reservations: Reservations,
    *,
    opening: bool = False,
    network: NetworkUse | None = None,
) -> Fit:
    """Return the result of adding one pod of the view's cohort to a claim.

    ``types`` are the claim's candidate types. ``network`` are devices that several nodes reach, if
    they suit the pods. Only a new claim may lower the ``minValues`` of its NodePool, and only if
    the policy is best effort.
    """
    shape, template = view.cohort.shape, claim.template
    if not view.stage.tolerates(template) or claim.ports.conflict(shape.ports):
        return _NEVER
    spaces = view.spaces(claim.space)
    failure = _NEVER if view.stage.only_fills_up else _NOT_NOW
    if not spaces:
        return failure
    requests = claim.with_more(shape, 1)
    disks = len(claim.disks | shape.disks) if shape.disks else 0
    types = template.fitting_types(types, requests, shape.ports, disks)
    if not types:
        claim.update_room()
        return _NEVER
    if shape.devices is not None and network is None:
        types = claim.types_with_devices(shape.devices, types, 1)
        if not types:
            return _NOT_NOW if shape.devices.shared else _NEVER
    for tier in spaces:
        for space in _sort_by_price(template.table, tier, types):
            mask, shared = types & space.mask, None
            if network is not None:
                shared = claim.fit_on_network(network, shape, space, mask, view.demands)
                space, mask = (shared.space, shared.mask) if shared is not None else (space, 0)
            found = _fit_in_space(claim, space, mask, reservations, opening)
            if found.space is not None:
                return found._replace(requests=requests, network=shared)
            failure = found if found.must_wait else failure
    return failure


def _sort_by_price(table: TypeTable, spaces: tuple[Space, ...], types: int) -> Iterable[Space]:
    """Return spaces that are otherwise equal, ordered by the cost of their cheapest node."""
    if len(spaces) == 1:
        return spaces
    return sorted(spaces, key=lambda s: table.cheapest_price(s.offers, types & s.mask))


def _fit_in_space(
    claim: OpenClaim, space: Space, mask: int, reservations: Reservations, opening: bool
) -> Fit:
    """Return the result in one of the possible spaces, with ``mask`` as its types."""
    if not mask:
        return _NOT_NOW
    if not reservations.exist and not space.has_min_values:
        return Fit(space, mask)
    template, relaxed = claim.template, False
    if space.has_min_values and (missed := min_values_shortfalls(template.table, mask, space)):
        if not (opening and template.best_effort):
            return _NOT_NOW
        lowered = [item.with_min_values(achieved) for item, achieved in missed.values()]
        space, relaxed = template.book.relax_min_values(space, lowered), True
    held: Held | None = None
    if reservations.exist:
        held = reservations.reservations_to_hold(claim.held, space, mask)
        if held is None:
            return _WAIT if reservations.strict else _NOT_NOW
    return Fit(space, mask, held=held, relaxed=relaxed)


def count_fitting_pods(
    shape: Shape, claim: OpenClaim, fit_result: Fit, limit: int, reservations: Reservations
) -> tuple[int, int, Resources]:
    """Return how many pods of a shape fit a claim that takes one, and its types and requests then.

    Types only drop out as pods are added, so the maximum is found by binary search. With host
    ports, reservations or a claim for one pod, pods are added one at a time.
    """
    assert fit_result.space is not None
    alone = shape.ports or shape.exclusive or fit_result.network is not None
    if limit <= 1 or alone or reservations.exist:
        return 1, fit_result.mask, fit_result.requests
    devices = shape.devices
    if devices is not None:
        limit = 1 if devices.shared else claim.count_devices(devices, fit_result.mask, limit)
    template, table = claim.template, claim.template.table
    for name, amount in shape.requests.items():
        if amount > 0:
            room = table.most_allocatable(name, fit_result.mask) - claim.requests.get(name, 0)
            limit = min(limit, room // amount)
    low, mask_at_low, high, count = 1, fit_result.mask, limit, limit
    while low < high:
        mask = template.fitting_types(fit_result.mask, claim.with_more(shape, count), shape.ports)
        if mask and devices is not None:
            mask = claim.types_with_devices(devices, mask, count)
        if (
            mask
            and fit_result.space.has_min_values
            and min_values_shortfalls(table, mask, fit_result.space)
        ):
            mask = 0
        if mask:
            low, mask_at_low = count, mask
        else:
            high = count - 1
        count = (low + high + 1) // 2
    return low, mask_at_low, claim.with_more(shape, low)


def record_pods(cohort: Cohort, claim: OpenClaim, count: int) -> None:
    """Count the pods that a claim took in every group that they affect.

    While the domain of the node is not decided, a spread or an affinity does not count them, and an
    anti-affinity counts them in every possible domain.
    """
    host, taints = claim.host, claim.template.taints
    domains = _Domains(claim)
    for group in cohort.recorded:
        if group.rule.node_filter is not None and not group.counts_on(claim.space, taints):
            continue
        if group.by_host:
            group.record(host, count)
            continue
        values = domains[group.key]
        if group.kind is RuleKind.ANTI_AFFINITY or len(values) == 1:
            for domain in values:
                group.record(domain, count)
    for group in cohort.recorded_repelling:
        for domain in (host,) if group.by_host else domains[group.key]:
            group.record(domain, count)


class _Domains(dict[str, list[str]]):
    """The possible domains of a claim by label, each computed once for however many rules."""

    def __init__(self, claim: OpenClaim) -> None:
        super().__init__()
        self._claim = claim

    def __missing__(self, key: str) -> list[str]:
        found = self[key] = sorted(self._claim.space.values(key, self._claim.mask))
        return found


Entry = tuple[int, int, "OpenClaim"]
"""A claim with its sort key: number of pods, then sequence number."""


class OpenClaim:
    """A planned node, with its requirements and types narrowed by the pods placed on it so far.

    ``mask`` are the types that still fit all of its pods and daemons. ``host`` is a placeholder for
    the node's future name. ``load`` has its devices in use, ``network`` those of other nodes as
    well. ``cpu_room``, ``memory_room`` and ``device_room`` are the most that any of the types has
    left; a pod that requests more cannot fit. ``disks`` are its pods' claims for EBS volumes.
    """

    __slots__ = (
        "count",
        "cpu_room",
        "device_room",
        "disks",
        "held",
        "host",
        "load",
        "mask",
        "members",
        "memory_room",
        "min_values_relaxed",
        "network",
        "ports",
        "requests",
        "sequence",
        "space",
        "template",
    )

    def __init__(self, template: PoolTemplate, host: str) -> None:
        self.template = template
        self.host = host
        self.space = template.space
        self.mask = template.types
        self.requests: Resources = {}
        self.members: list[tuple[Shape, list[Pod]]] = []
        self.count = 0
        self.sequence = 0
        self.ports = UsedPorts()
        self.disks: frozenset[str] = frozenset()
        self.held: Held = NONE_HELD
        self.load: DeviceLoad | None = None
        self.network: NetworkShare | None = None
        self.min_values_relaxed = False
        self.cpu_room = 0
        self.memory_room = 0
        self.device_room = sys.maxsize

    @property
    def entry(self) -> Entry:
        return (self.count, self.sequence, self)

    @property
    def price(self) -> float:
        """The price of its cheapest launch, in USD an hour."""
        offers = self.space.offers
        if self.held:
            offers = tuple(o for o in offers if o.reservation_id in self.held)
        return self.template.table.cheapest_price(offers, self.mask)

    def __lt__(self, other: OpenClaim) -> bool:
        return self.sequence < other.sequence

    def with_more(self, shape: Shape, count: int) -> Resources:
        """Return the requests of its pods plus ``count`` more of a shape."""
        total = dict(self.requests)
        for name, amount in shape.requests.items():
            total[name] = total.get(name, 0) + amount * count
        return total

    def add(
        self,
        shape: Shape,
        pods: list[Pod],
        space: Space,
        mask: int,
        requests: Resources,
        network: NetworkFit | None = None,
    ) -> None:
        """Place pods of a shape on it and narrow it to ``space`` and ``mask``.

        ``requests`` are those of all its pods including the new ones. ``network`` has the devices
        that it gets of the network.
        """
        self.requests = requests
        self.members.append((shape, pods))
        self.count += len(pods)
        self.space = space
        self.mask = mask
        self.ports.add(shape.ports)
        if shape.disks:
            self.disks |= shape.disks
        taken = self.network.by_profile if self.network is not None else {}
        if network is not None:
            self.load, taken = network.load, network.taken
        if taken:
            self.network = share_of(taken, mask)
        if shape.devices is not None and network is None:
            self.load = self._device_load.with_pods(shape.devices.claims, len(pods))
        if self.load is not None:
            self.device_room = self.load.count_free(mask)
        self.cpu_room -= shape.cpu * len(pods)
        self.memory_room -= shape.memory * len(pods)

    def fit_on_network(
        self, network: NetworkUse, shape: Shape, space: Space, types: int, demands: Demands
    ) -> NetworkFit | None:
        """Return the node with the devices of one more pod; None if no type reaches them."""
        assert shape.devices is not None
        return fit_on_network(
            network, shape.devices, self._device_load, self.network, space, types, demands
        )

    def types_with_devices(self, needs: DeviceNeeds, types: int, count: int) -> int:
        """Return the types that have devices for ``count`` more pods."""
        return self._device_load.fitting_types(types, needs.claims, count)

    def count_devices(self, needs: DeviceNeeds, types: int, most: int) -> int:
        """Return how many more pods, up to ``most``, one of the types has devices for."""
        return self._device_load.count_fitting(types, needs.claims, most)

    @property
    def _device_load(self) -> DeviceLoad:
        return self.load or self.template.book.no_devices_in_use

    def has_any_of(self, needs: DeviceNeeds | None) -> bool:
        """Return whether a claim that its pods share with others is allocated on it."""
        return needs is not None and not self._device_load.keys.isdisjoint(needs.shared)

    def update_room(self) -> None:
        """Recompute its remaining room after its types may have become fewer."""
        table, template, mask = self.template.table, self.template, self.mask
        self.cpu_room = (
            table.most_allocatable(CPU, mask) - template.least_cpu - self.requests.get(CPU, 0)
        )
        self.memory_room = (
            table.most_allocatable(MEMORY, mask)
            - template.least_memory
            - self.requests.get(MEMORY, 0)
        )


class Order:
    """Claims, fewest pods first.

    Among claims with the same number of pods, one that just took a pod comes first with
    ``to_front``, otherwise last. ``closed`` is how many of the first claims are closed to pods for
    good, by what closes them: where a tenant's pods repel each other, each would otherwise check
    the nodes of all those before it.
    """

    __slots__ = ("_back", "_front", "closed", "entries", "to_front")

    def __init__(self, *, to_front: bool = True) -> None:
        self.to_front = to_front
        self.entries: list[Entry] = []
        self.closed: dict[Hashable, int] = {}
        self._front = 0
        self._back = 0

    def next_sequence(self, *, is_new: bool) -> int:
        """Return the sequence number of a claim among those with the same number of pods."""
        if is_new or not self.to_front:
            self._back += 1
            return self._back
        self._front -= 1
        return self._front

    def pods_until_overtaken(self, count: int, other: int) -> int:
        """Return how many pods a claim with ``count`` takes until one with ``other`` is first."""
        return other - count + 1 if self.to_front else max(1, other - count)

    def note_closed(self, closing: Hashable, count: int) -> None:
        """Note that the first claims are closed to pods, for the last few ``closing`` asked for."""
        self.closed.pop(closing, None)
        self.closed[closing] = count
        if len(self.closed) > _CLOSED_MAX:
            del self.closed[next(iter(self.closed))]

    def reinsert(self, moved: Mapping[OpenClaim, Entry], opened: Iterable[OpenClaim]) -> None:
        """Reinsert claims that took pods, and insert new ones, at their positions.

        ``moved`` are the entries that they had before.
        """
        entries, first = self.entries, len(self.entries)
        if len(moved) > len(entries) // 4 + 8:
            entries[:] = [entry for entry in entries if entry[2] not in moved]
            entries += [claim.entry for claim in moved]
            entries.sort()
            first = 0
        else:
            for claim, old in moved.items():
                index = bisect_left(entries, old)
                assert entries[index][2] is claim, "the order has lost a claim"
                del entries[index]
                first = min(first, index, self._insert(claim))
        for claim in opened:
            first = min(first, self._insert(claim))
        for closing, count in self.closed.items():
            self.closed[closing] = min(count, first)

    def _insert(self, claim: OpenClaim) -> int:
        index = bisect_left(self.entries, claim.entry)
        self.entries.insert(index, claim.entry)
        return index


class ClaimQueue:
    """The claims that may take a pod at one step of the preferences.

    ``seen`` are those checked so far, in order; more are checked only when these do not suffice,
    and ``checked`` is how many of the shared order were. ``dead`` reject the pods permanently.
    """

    __slots__ = ("checked", "dead", "seen")

    def __init__(self, seen: list[Entry]) -> None:
        self.seen = seen
        self.checked = 0
        self.dead: set[OpenClaim] = set()

    def move(self, before: Entry, claim: OpenClaim) -> None:
        """Put a claim that has taken pods where its entry belongs now."""
        if claim in self.dead:
            return
        at = bisect_left(self.seen, before)
        if at < len(self.seen) and self.seen[at][2] is claim:
            del self.seen[at]
        insort(self.seen, claim.entry)
