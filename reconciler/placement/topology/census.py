"""Count the running pods as rules need them: by labels, namespace and node.

Pods with equal labels share one entry, and an index by label finds the entries that a selector can
match. A cluster with a hundred thousand pods is read only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from reconciler.catalog.table import TypeTable, bits, mask_of_flags
from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Requirements, equals
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import Taint, Toleration, untolerated_taints
from reconciler.observed.state import ClusterState
from reconciler.placement.nodes.existing import LabelIndex
from reconciler.placement.pods.shape import repelling_rules
from reconciler.placement.topology.rules import NodeFilter, Rule

# Domains: the values of a label that exist on nodes or on what NodePools can launch.
#
# A spread also covers domains that are still empty, so they must be known in advance. Availability,
# limits and whether a type fits are ignored (Karpenter ``topologydomaingroup.go``).


class Universe:
    """The domains that NodePools can create, by label key, with the taints of each."""

    def __init__(self, pools: Iterable[tuple[NodePool, TypeTable]]) -> None:
        self._pools = [
            (_own_requirements(pool), pool.spec.template.spec.taints, table)
            for pool, table in pools
        ]
        self._guards: dict[str, dict[str, list[tuple[Taint, ...]]]] = {}

    def domains(self, key: str, tolerations: tuple[Toleration, ...] | None) -> list[str]:
        """Return the domains of ``key``, sorted; with tolerations, those of tolerated pools."""
        guards = self._guards.get(key)
        if guards is None:
            guards = self._guards[key] = self._find_domains(key)
        if tolerations is None:
            return list(guards)
        return [
            domain
            for domain, taints in guards.items()
            if any(not untolerated_taints(t, tolerations) for t in taints)
        ]

    def _find_domains(self, key: str) -> dict[str, list[tuple[Taint, ...]]]:
        found: dict[str, list[tuple[Taint, ...]]] = {}
        for requirements, taints, table in self._pools:
            own = requirements.get(key)
            values = set(own.values) if own is not None and not own.complement else set()
            borne = [v for v in table.values(key) if own is None or own.has(v)]
            for value in values.union(borne):
                found.setdefault(value, []).append(taints)
        return dict(sorted(found.items()))


def _own_requirements(pool: NodePool) -> Requirements:
    """Return the template's requirements and labels; the pool's own name is not a domain."""
    labels = pool.spec.template.metadata.labels
    return pool.requirements().with_requirements(
        equals(key, value) for key, value in labels.items()
    )


class _Entry:
    """Pods of one namespace with equal labels, and their number on each node."""

    __slots__ = ("labels", "namespace", "on_nodes")

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self.on_nodes: dict[int, int] = {}


class Census:
    """Bound and nominated pods that count for rules: neither finished nor being deleted."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._nodes = cluster.hosts
        self._names = [n.name for n in self._nodes]
        self._labels = [n.labels for n in self._nodes]
        self._label_index = LabelIndex(self._names, self._labels, (n.taints for n in self._nodes))
        self._base: dict[Rule, dict[str, int]] = {}
        self._filters: dict[NodeFilter, int] = {}

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self._names)}

    @cached_property
    def _index_by_node_name(self) -> dict[str, int]:
        return {node.node_name: index for index, node in enumerate(self._nodes)}

    @cached_property
    def _entries(self) -> list[_Entry]:
        found: dict[tuple[str, frozenset[tuple[str, str]]], _Entry] = {}
        for index, node in enumerate(self._nodes):
            for kind, count in node.kinds.items():
                entry = found.get(kind)
                if entry is None:
                    namespace, labels = kind
                    entry = found[kind] = _Entry(namespace, dict(labels))
                entry.on_nodes[index] = count
        return list(found.values())

    @cached_property
    def _by_label(self) -> dict[tuple[str, str], list[_Entry]]:
        index: dict[tuple[str, str], list[_Entry]] = {}
        for entry in self._entries:
            for pair in entry.labels.items():
                index.setdefault(pair, []).append(entry)
        return index

    def _candidates(self, rule: Rule) -> list[_Entry]:
        pairs = rule.selector.pairs
        if not pairs:
            return self._entries
        return min((self._by_label.get(pair, []) for pair in pairs), key=len)

    def _selected_entries(self, rule: Rule) -> Iterator[_Entry]:
        """Yield the entries that count; a missing selector counts all running pods.

        This follows Karpenter: when it lists pods, a missing selector matches any pod, although it
        matches none of the pods being placed.
        """
        if rule.selector.nothing:
            yield from (e for e in self._entries if e.namespace in rule.namespaces)
            return
        for entry in self._candidates(rule):
            if rule.selects(entry.namespace, entry.labels):
                yield entry

    def _domain(self, rule: Rule, index: int) -> str | None:
        """Return the domain of a node for a rule, or None if the node does not count."""
        domain = self._labels[index].get(rule.key)
        if domain is None and rule.key == HOSTNAME:
            domain = self._names[index]
        if rule.node_filter is not None and not self._admitted_nodes(rule.node_filter) >> index & 1:
            return None
        return domain

    def _admitted_nodes(self, node_filter: NodeFilter) -> int:
        """Return the nodes that a filter admits."""
        known = self._filters.get(node_filter)
        if known is None:
            known = self._label_index.all
            if node_filter.terms is not None:
                known = 0
                for term in node_filter.terms:
                    known |= self._label_index.nodes_meeting(term)
            if node_filter.tolerations is not None:
                known &= self._label_index.nodes_tolerated_by(node_filter.tolerations)
            self._filters[node_filter] = known
        return known

    @cached_property
    def _remaining_nodes(self) -> int:
        return mask_of_flags(not node.is_deleting for node in self._nodes)

    def remaining_nodes(self, without: Iterable[str]) -> int:
        """Return the nodes left after some are removed, as a bit set for ``domains``."""
        found = (self._index.get(name) for name in without)
        return self._remaining_nodes & ~bits(index for index in found if index is not None)

    def counts(self, rule: Rule) -> dict[str, int]:
        """Return how many pods run in each domain; empty domains are left out."""
        known = self._base.get(rule)
        if known is None:
            known = {}
            for entry in self._selected_entries(rule):
                for index, count in entry.on_nodes.items():
                    domain = self._domain(rule, index)
                    if domain is not None:
                        known[domain] = known.get(domain, 0) + count
            self._base[rule] = known
        return dict(known)

    def domain_of(self, rule: Rule, pod: Pod) -> str | None:
        """Return the domain in which a bound pod was counted, or None."""
        if not pod.is_active or not pod.spec.node_name:
            return None
        index = self._index_by_node_name.get(pod.spec.node_name)
        return None if index is None else self._domain(rule, index)

    def domains(self, rule: Rule, staying: int) -> list[str]:
        """Return the domains of the remaining nodes that count for a rule, sorted."""
        mask = staying
        if rule.node_filter is not None:
            mask &= self._admitted_nodes(rule.node_filter)
        values = self._label_index.values(rule.key).items()
        return sorted(value for value, members in values if value is not None and members & mask)

    @cached_property
    def repelling_rules(self) -> dict[Rule, dict[str, int]]:
        """The required anti-affinity of running pods: rules and the domains of their pods."""
        found: dict[Rule, dict[str, int]] = {}
        for index, rule in self._repelling_pods():
            domain = self._domain(rule, index)
            counts = found.setdefault(rule, {})
            if domain is not None:
                counts[domain] = counts.get(domain, 0) + 1
        return found

    def _repelling_pods(self) -> Iterator[tuple[int, Rule]]:
        for index, node in enumerate(self._nodes):
            for pod in node.pods:
                affinity = pod.spec.affinity
                if affinity is None or affinity.pod_anti_affinity is None or not pod.is_active:
                    continue
                for rule in repelling_rules(pod, self._cluster.namespaces):
                    yield index, rule
