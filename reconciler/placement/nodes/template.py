"""A NodePool as a template for new nodes, and what it can still launch within its limits.

A new node counts with the largest capacity among its candidate types, so a pass cannot exceed a
limit whichever type is launched. Karpenter does this for resources. It does not count the number of
nodes within one pass; this module does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reconciler.catalog.table import TypeTable, table_of
from reconciler.model.karpenter.labels import INSTANCE_TYPE, RESERVED
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Requirement
from reconciler.model.kubernetes.pod import HostPort
from reconciler.model.resources import CPU, MEMORY, NODES, Resources, pod_amount
from reconciler.model.settings import DecisionRules, MinValuesPolicy, Settings
from reconciler.observed.state import StateNode
from reconciler.placement.nodes.daemons import Daemon, DaemonGroup, group_by_daemons
from reconciler.placement.nodes.space import Space, SpaceBook
from reconciler.placement.question import LaunchPool, Question


class PoolTemplate:
    """A NodePool that may launch nodes; ``types`` are the candidates before any pod is placed.

    ``best_effort`` is whether the NodePool's ``minValues`` may be lowered. ``limits_volumes`` is
    whether the volumes that a type can attach limit the pods of a new node, which Karpenter
    notices only once the node has joined.
    """

    __slots__ = (
        "best_effort",
        "book",
        "daemon_groups",
        "least_cpu",
        "least_memory",
        "limits_volumes",
        "name",
        "node_pool",
        "space",
        "table",
        "taints",
        "types",
    )

    def __init__(
        self,
        node_pool: NodePool,
        book: SpaceBook,
        daemons: Iterable[Daemon],
        *,
        best_effort: bool,
        limits_volumes: bool = True,
    ) -> None:
        self.node_pool = node_pool
        self.name = node_pool.name
        self.book = book
        self.table = book.table
        self.best_effort = best_effort
        self.limits_volumes = limits_volumes
        self.taints = node_pool.spec.template.spec.taints
        self.space: Space = book.space_for(node_pool.template_requirements())
        self.types = self.space.mask & self.table.usable
        if not best_effort and self.space.has_min_values:
            self.types = (
                0 if min_values_shortfalls(self.table, self.types, self.space) else self.types
            )
        self.daemon_groups: tuple[DaemonGroup, ...] = group_by_daemons(
            daemons, self.table, self.types, self.space.requirements, self.taints
        )
        self.least_cpu = min((g.requests.get(CPU, 0) for g in self.daemon_groups), default=0)
        self.least_memory = min((g.requests.get(MEMORY, 0) for g in self.daemon_groups), default=0)

    def fitting_types(
        self, mask: int, requests: Mapping[str, int], ports: tuple[HostPort, ...], disks: int = 0
    ) -> int:
        """Return the types of ``mask`` on which ``requests`` fit besides the daemons.

        ``ports`` are the host ports of the new pod; types whose daemons use one are excluded.
        ``disks`` is the number of EBS volumes to attach.
        """
        if disks and self.limits_volumes:
            mask &= self.table.types_attaching(disks)
        at_least = self.table.types_with_at_least
        found = 0
        for group in self.daemon_groups:
            fits = mask & group.mask
            if not fits or (ports and group.ports.conflict(ports)):
                continue
            if group.requests:
                for name, amount in group.requests.items():
                    fits &= at_least(name, amount + requests.get(name, 0))
                for name, amount in requests.items():
                    if name not in group.requests:
                        fits &= at_least(name, amount)
            else:
                for name, amount in requests.items():
                    fits &= at_least(name, amount)
            found |= fits
        return found

    def volume_limit(self, mask: int) -> int | None:
        """Return how many EBS volumes every type of ``mask`` can attach, None without a limit."""
        return self.table.volume_limit(mask) if self.limits_volumes else None


class VolumeLimits:
    """How many EBS volumes running nodes can attach, by the type of each."""

    def __init__(self, templates: Iterable[PoolTemplate]) -> None:
        self._templates = {template.name: template for template in templates}
        self._known: dict[tuple[str, str], int | None] = {}

    def of_node(self, node: StateNode) -> int | None:
        """Return the limit of a node, None if its type is not known."""
        key = node.node_pool, node.labels.get(INSTANCE_TYPE, "")
        if key not in self._known:
            template = self._templates.get(key[0])
            mask = template.table.values(INSTANCE_TYPE).get(key[1], 0) if template else 0
            self._known[key] = template.volume_limit(mask) if template and mask else None
        return self._known[key]


def min_values_shortfalls(
    table: TypeTable, mask: int, space: Space
) -> dict[str, tuple[Requirement, int]]:
    """Return the requirements whose ``minValues`` the types miss, with the number of values.

    Only values that the requirement still allows count, such as the zones of a volume (Karpenter
    1.15 ``cloudprovider/types.go``).
    """
    found: dict[str, tuple[Requirement, int]] = {}
    for key, wanted in space.requirements.items():
        if wanted.min_values is None:
            continue
        if key == INSTANCE_TYPE:
            achieved = mask.bit_count()
        else:
            values = table.values(key).items()
            achieved = sum(1 for value, types in values if types & mask and wanted.has(value))
        if achieved < wanted.min_values:
            found[key] = (wanted, achieved)
    return found


# Reservations: which new nodes can use prepaid capacity.
#
# A node that could use a reservation holds a slot in every one that it could use, until its
# requirements exclude it. A pass may therefore run out of slots early, but never overbooks
# (Karpenter ``reservationmanager.go``). In strict mode a pod waits for the next pass instead of
# using more expensive capacity.


Held = frozenset[str]
NONE_HELD: Held = frozenset()


class Reservations:
    """The slots left in each reservation, across all pools that share it."""

    def __init__(self, tables: Iterable[TypeTable], question: Question, *, enabled: bool) -> None:
        self._left: dict[str, int] = {}
        self.strict = question.strict_reservations
        for table in tables if enabled else ():
            for name, capacity in table.reservations.items():
                self._left[name] = min(self._left.get(name, capacity), capacity)
        freed = question.freed_reservation
        if freed in self._left:
            self._left[freed] += 1
        self._full = frozenset(name for name, left in self._left.items() if left <= 0)
        self.exist = bool(self._left)

    def reservations_to_hold(self, held: Held, space: Space, mask: int) -> Held | None:
        """Return the reservations that a node of ``space`` and ``mask`` would hold.

        None means that the pod does not fit: every reservation that it could use is taken by other
        nodes of the pass, or is full and there is no other offering, or the node would lose the
        last one that it holds. A reservation that is full from the start is not waited for.
        """
        taken = full = fallback = False
        names = set()
        for offering in space.offers:
            name = offering.reservation_id
            if not offering.mask & mask:
                continue
            if name is None or offering.capacity_type != RESERVED:
                fallback = True
            elif name in held or self._left.get(name, 0) > 0:
                names.add(name)
            elif name in self._full:
                full = True
            else:
                taken = True
        if names:
            return frozenset(names)
        if self.strict and (taken or held):
            return None
        return None if full and not taken and not fallback else NONE_HELD

    def hold(self, held: Held, wanted: Held) -> None:
        """Take a slot for each name new in ``wanted`` and release those no longer in it."""
        for name in wanted - held:
            self._left[name] -= 1
            assert self._left[name] >= 0, f"reservation {name} is held too often"
        for name in held - wanted:
            self._left[name] += 1


class RemainingLimits:
    """What is left of each NodePool's limits; pools without limits are not included."""

    def __init__(
        self,
        templates: Iterable[PoolTemplate],
        nodes: Iterable[StateNode],
        unlaunched: Iterable[tuple[str, Resources]],
    ) -> None:
        self._left: dict[str, dict[str, int]] = {}
        for template in templates:
            if template.node_pool.spec.limits:
                self._left[template.name] = dict(template.node_pool.limits())
        if self._left:
            for node in nodes:
                if not node.is_deleting:
                    self._take(node.node_pool, node.capacity)
            for pool, capacity in unlaunched:
                self._take(pool, capacity)
        self._allowed: dict[str, int] = {}

    def without(self, nodes: Iterable[StateNode | None]) -> RemainingLimits:
        """Return what is left if these of the nodes are removed, for a pass to count from."""
        found = RemainingLimits((), (), ())
        found._left = {pool: dict(left) for pool, left in self._left.items()}
        for node in nodes if found._left else ():
            if node is not None and not node.is_deleting:
                found._take(node.node_pool, node.capacity, -1)
        return found

    def _take(self, pool: str, capacity: Resources, count: int = 1) -> None:
        left = self._left.get(pool)
        if left is None:
            return
        for name in left:
            left[name] -= count * (pod_amount(1) if name == NODES else capacity.get(name, 0))

    def remaining(self, template: PoolTemplate) -> Resources | None:
        """Return what is left of the pool's limits, or None if it has no limits."""
        return self._left.get(template.name)

    def allowed_types(self, template: PoolTemplate) -> int:
        """Return the types of the pool that fit within its remaining limits."""
        left = self._left.get(template.name)
        if left is None:
            return template.types
        known = self._allowed.get(template.name)
        if known is None:
            known = template.types
            for name, amount in left.items():
                if name == NODES:
                    known = known if amount >= pod_amount(1) else 0
                else:
                    known &= template.table.capacity_at_most(name, amount)
            self._allowed[template.name] = known
        return known

    def count_node(self, template: PoolTemplate, mask: int) -> None:
        """Count a new node that may become any type of ``mask``."""
        left = self._left.get(template.name)
        if left is None:
            return
        for name in left:
            left[name] -= (
                pod_amount(1) if name == NODES else template.table.most_capacity(name, mask)
            )
        self._allowed.pop(template.name, None)


def templates_of(
    pools: Iterable[LaunchPool], found: Sequence[Daemon], settings: Settings
) -> list[PoolTemplate]:
    """Return the templates of NodePools; pools with the same types share what is known of them."""
    books: dict[int, SpaceBook] = {}
    templates = []
    for pool in pools:
        if id(pool.types) not in books:
            books[id(pool.types)] = SpaceBook(table_of(pool.types))
        template = PoolTemplate(
            pool.node_pool,
            books[id(pool.types)],
            found,
            best_effort=settings.min_values_policy == MinValuesPolicy.BEST_EFFORT,
            limits_volumes=settings.decide is not DecisionRules.KARPENTER,
        )
        templates.append(template)
    return templates
