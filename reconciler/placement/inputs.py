"""The facts about an evaluation of consolidation that are known without placing its pods.

The inputs of its result are a value that can be compared with those of a later evaluation. After a
change of one pod or node, nearly every evaluation is the same as before: existing nodes without
free capacity for any of the pods do not affect the result, whatever happens on them. Two
evaluations with the same inputs have the same result, apart from the names of new nodes. Topology
rules are among the inputs, with what they count, if they apply to the pods.

Most sets of nodes have far more pods than one new node can take. Counting the maximum capacity
proves that in a fraction of the time of a placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from reconciler.catalog.table import indices, iterate_members, union_of
from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import Taint, untolerated_taints
from reconciler.model.resources import Resources
from reconciler.model.settings import Settings
from reconciler.placement.nodes.daemons import Daemon
from reconciler.placement.nodes.existing import Nodes
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.pods.cohort import Cohort
from reconciler.placement.pods.shape import Shape
from reconciler.placement.question import LaunchPool
from reconciler.placement.topology.groups import Group
from reconciler.placement.topology.rules import Rule, RuleKind

HOSTS_MAX: Final = 50
"""The maximum number of nodes with room in ``PlacementInputs``, and of domains in which a rule
counts: comparing more costs as much as evaluating."""

RULES_MAX: Final = 200
"""The maximum number of topology rules of the pods, and of running pods that repel others."""


class Host(msgspec.Struct, frozen=True):
    """An existing node that takes some of the pods; rules read its labels and taints."""

    name: str
    left: Resources
    is_initialized: bool
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]


class AppliedRule(msgspec.Struct, frozen=True):
    """A rule that applies to some of the pods, with what it counts before they are placed.

    ``counts`` are the pods in each domain. Of a rule about hosts, they are only those on the nodes
    that may take the pods, unless it is an affinity, for which pods on any node count.
    ``standing`` are the domains of the nodes that stay.
    """

    rule: Rule
    counts: Mapping[str, int]
    standing: frozenset[str]


class PlacementInputs(msgspec.Struct, frozen=True):
    """The pods, the nodes that accept any of them, and the inputs that determine new nodes.

    ``accepting_nodes`` has the nodes that accept the pods of each shape at each step of its
    preferences, as bits over ``hosts``; ``rules`` are those that apply to the pods of each shape.
    """

    pods: tuple[Pod, ...]
    hosts: tuple[Host, ...]
    accepting_nodes: tuple[int, ...]
    limits: Mapping[str, Resources]
    pools: tuple[LaunchPool, ...]
    daemons: tuple[Daemon, ...]
    settings: Settings
    rules: tuple[AppliedRule, ...] = ()


def is_comparable(shape: Shape) -> bool:
    """Return whether other pods affect pods of a shape only through room and topology rules."""
    if shape.unreadable is not None or shape.ports or shape.devices is not None:
        return False
    return not (shape.volume_demands or shape.volumes.attached or shape.exclusive)


def count_rules(shape: Shape) -> int:
    """Return how many topology rules pods of a shape have, at all steps of their preferences."""
    return len(shape.repels) + sum(len(step.rules) for step in shape.steps)


def applied_rules(
    cohorts: Sequence[Cohort], hosts: Iterable[Host]
) -> tuple[AppliedRule, ...] | None:
    """Return the rules that apply to cohorts bound to a topology, and what they count.

    None if one counts in too many domains. ``hosts`` are the existing nodes that may take any of
    the pods. The cohorts cannot be used any more.
    """
    names = frozenset(host.labels.get(HOSTNAME) or host.name for host in hosts)
    rules = dict.fromkeys(c for cohort in cohorts for stage in cohort.stages for c in stage.reach)
    found = tuple(AppliedRule(c.rule, _counts(c.group, names), c.group.standing) for c in rules)
    for cohort in cohorts:
        cohort.release()
    domains = max((max(len(rule.counts), len(rule.standing)) for rule in found), default=0)
    return found if domains <= HOSTS_MAX else None


def _counts(group: Group, hosts: Collection[str]) -> Mapping[str, int]:
    if not group.by_host or group.kind is RuleKind.AFFINITY:
        return dict(group.counts)
    return {host: count for host, count in group.counts.items() if host in hosts}


def accepting_nodes(shape: Shape, nodes: Nodes) -> list[int]:
    """Return the nodes that accept a pod of a shape at each step of its preferences."""
    room = nodes.open & nodes.nodes_with_room(shape)
    return [room & nodes.suitable_nodes(step.demand, step.tolerations) for step in shape.steps]


def hosts_of(
    node_sets: Sequence[int], nodes: Nodes, known: dict[int, Host]
) -> tuple[tuple[Host, ...], tuple[int, ...]] | None:
    """Return the nodes of these sets in order, and the sets as bits over them.

    ``known`` has the hosts of earlier questions. None if there are too many.
    """
    union = union_of(node_sets)
    if union.bit_count() > HOSTS_MAX:
        return None
    order = indices(union)
    for index in order:
        if index not in known:
            row = nodes.rows[index]
            known[index] = Host(row.name, row.left, row.is_initialized, row.labels, row.taints)
    whole = (1 << len(order)) - 1
    return tuple(known[index] for index in order), tuple(
        whole if mask == union else _reindex_mask(order, mask) for mask in node_sets
    )


def _reindex_mask(order: Iterable[int], mask: int) -> int:
    """Return a set of nodes as bits over some of them."""
    found = 0
    for position, index in enumerate(order):
        found |= (mask >> index & 1) << position
    return found


def cannot_share(
    pods: Mapping[Shape, Sequence[Pod]],
    hosts: Mapping[Shape, int],
    nodes: Nodes,
    templates: Iterable[PoolTemplate],
    price: float,
    *,
    spot: bool,
) -> bool:
    """Return whether pods certainly need several new nodes, or one of at least ``price``.

    Without ``spot``, a new node may not be spot. ``hosts`` are the existing nodes that may
    take pods of a shape. Rules about other pods are ignored: they only leave less room. False
    proves nothing.
    """
    counts = {shape: len(alike) for shape, alike in pods.items()}
    needy = {
        s: left
        for s, n in counts.items()
        if (left := n - _count_fitting_pods(s, n, hosts[s], nodes)) > 0
    }
    required = _maximum_amounts(
        _total_requests(needy), _requests_beyond_nodes(_total_requests(counts), hosts, nodes)
    )
    if not needy and not required:
        return False
    for template in templates:
        types = template.types & template.space.types_cheaper_than(price, spot=spot)
        for shape in needy:
            types &= _suitable_types(shape, template, price, spot=spot)
        if types and template.fitting_types(types, required, ()):
            return False
    return True


def _count_fitting_pods(shape: Shape, limit: int, hosts: int, nodes: Nodes) -> int:
    """Return how many pods of a shape fit these nodes without any others, up to ``limit``."""
    count = 0
    least = [(name, amount) for name, amount in shape.requests.items() if amount > 0]
    for index in iterate_members(hosts):
        left = nodes.rows[index].left
        count += min((left.get(name, 0) // amount for name, amount in least), default=limit)
        if count >= limit:
            return limit
    return count


def _total_requests(counts: Mapping[Shape, int]) -> dict[str, int]:
    """Return the sum of the pods' requests."""
    total: dict[str, int] = {}
    for shape, count in counts.items():
        for name, amount in shape.requests.items():
            total[name] = total.get(name, 0) + amount * count
    return total


def _requests_beyond_nodes(
    total: Mapping[str, int], hosts: Mapping[Shape, int], nodes: Nodes
) -> dict[str, int]:
    """Return how much of a total is left if the existing nodes are filled completely."""
    remaining = {name: amount for name, amount in total.items() if amount > 0}
    for index in iterate_members(union_of(hosts.values())):
        if not remaining:
            break
        left = nodes.rows[index].left
        remaining = {n: rest for n, a in remaining.items() if (rest := a - left.get(n, 0)) > 0}
    return remaining


def _maximum_amounts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {n: max(first.get(n, 0), second.get(n, 0)) for n in {**first, **second}}


def _suitable_types(shape: Shape, template: PoolTemplate, price: float, *, spot: bool) -> int:
    """Return the types below a price that suit a shape at any step of its preferences."""
    found = 0
    for step in shape.steps:
        if not untolerated_taints(template.taints, step.tolerations):
            space = template.space.narrow(step.demand)
            if space is not None:
                found |= space.types_cheaper_than(price, spot=spot)
    if shape.devices is not None:
        found &= template.book.device_types(shape.devices)
    return found
