"""Count the running pods as rules need them: by labels, namespace and node.

Pods with equal labels share one entry, and an index by label finds the entries that a selector can
match. A cluster with a hundred thousand pods is read only once.

Domains are the values of a label that exist on nodes or on what NodePools can launch. A spread also
covers domains that are still empty, so they must be known in advance. A domain in which nothing can
be launched for a pod is none of its domains: no pod could ever be placed there, and waiting for one
would leave the others unscheduled (Karpenter counts such domains, ``topologydomaingroup.go``;
kube-scheduler counts only those of existing nodes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial

from reconciler.catalog.table import bits, iterate_members, mask_of_flags
from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.karpenter.requirements import Requirements, equals
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import Toleration, repelling_taints, untolerated_taints
from reconciler.observed.state import ClusterState
from reconciler.placement.nodes.existing import LabelIndex
from reconciler.placement.nodes.space import Demands
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.pods.shape import RelaxedShape, Shape, repelling_rules
from reconciler.placement.topology.podkinds import PodKinds
from reconciler.placement.topology.repellers import RunningRepellers
from reconciler.placement.topology.rules import NodeFilter, Rule, RuleKind, Selector
from reconciler.placement.work import StandingRules


class Universe:
    """The domains in which the NodePools can launch a node for a pod."""

    repels_by_unknown_labels = False
    """Whether the anti-affinity of a pod over a label that no node has repels those it selects."""

    def __init__(self, templates: Iterable[PoolTemplate], demands: Demands) -> None:
        self._templates = [template for template in templates if template.types]
        self._demands = demands
        self._known: dict[tuple[RelaxedShape, Rule], frozenset[str]] = {}
        self._may_define: dict[str, bool] = {}

    def domains(self, rule: Rule, shape: Shape, step: RelaxedShape) -> frozenset[str]:
        """Return the domains of a rule in which a new node can run a pod of ``shape``.

        It is one of a NodePool that the pod may use at this relaxation step, with a type that the
        pod fits on and an available offering. Remaining limits are ignored. For a spread, its
        ``nodeAffinityPolicy`` and ``nodeTaintsPolicy`` apply as they do to existing nodes.
        """
        if not self.may_define(rule.key):
            return frozenset()
        known = self._known.get((step, rule))
        if known is None:
            known = self._known[step, rule] = frozenset(self._find_domains(rule, shape, step))
        return known

    def may_define(self, key: str) -> bool:
        """Return whether a new node may have the label: a NodePool has it, or a pod may ask for it.

        A pod adds only well-known labels.
        """
        known = self._may_define.get(key)
        if known is None:
            known = self._may_define[key] = any(
                key in t.table.well_known or _defines(t, key) for t in self._templates
            )
        return known

    def _find_domains(self, rule: Rule, shape: Shape, step: RelaxedShape) -> Iterator[str]:
        terms: tuple[Requirements, ...] | None = (step.strict,)
        tolerations: tuple[Toleration, ...] | None = step.tolerations
        if rule.kind is RuleKind.SPREAD:
            terms = rule.node_filter.terms if rule.node_filter is not None else None
            tolerations = rule.tolerations
        demands = [self._demands.demand_for(term) for term in terms or (Requirements(),)]
        for template in self._templates:
            if tolerations is not None and repelling_taints(template.taints, tolerations):
                continue
            if not _defines(template, rule.key):
                continue
            for demand in demands:
                space = template.space.narrow(demand)
                types = template.types & space.mask if space is not None else 0
                types = types and template.fitting_types(
                    types, shape.requests, shape.ports, len(shape.disks)
                )
                if shape.devices is not None and types:
                    types &= template.book.device_types(shape.devices)
                if space is not None and types:
                    yield from space.values(rule.key, types)


class KarpenterUniverse(Universe):
    """The domains that Karpenter counts: those of every NodePool whose taints are tolerated.

    It asks neither what the pod may use, nor whether anything can be launched there.
    """

    repels_by_unknown_labels = True

    def _find_domains(
        self,
        rule: Rule,
        shape: Shape,  # noqa: ARG002 - no fact of the pod counts
        step: RelaxedShape,  # noqa: ARG002
    ) -> Iterator[str]:
        for template in self._templates:
            if rule.tolerations is not None and untolerated_taints(
                template.taints, rule.tolerations
            ):
                continue
            stated = template.node_pool.spec.template
            own = template.node_pool.requirements().with_requirements(
                equals(key, value) for key, value in stated.metadata.labels.items()
            )
            requirement = own.get(rule.key)
            if requirement is not None and not requirement.complement:
                yield from requirement.values
            for value in template.table.values(rule.key):
                if requirement is None or requirement.has(value):
                    yield value


def _defines(template: PoolTemplate, key: str) -> bool:
    """Return whether nodes of a NodePool have a label, other than the NodePool's own name."""
    stated = template.node_pool.spec.template
    return (
        key in stated.metadata.labels
        or key in template.node_pool.requirements()
        or key in template.table.offering_keys
        or bool(template.table.values(key))
    )


class _Entry:
    """Pods of one namespace with equal labels, and their number on each node."""

    __slots__ = ("labels", "namespace", "on_nodes")

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self.on_nodes: dict[int, int] = {}


class Census:
    """Bound and nominated pods that count for rules: neither finished nor being deleted.

    The required anti-affinity of running pods of the ``simplified`` namespaces counts as repelling
    every pod of the namespaces in which it selects one. ``may_define`` is whether new nodes may
    have a label.
    """

    def __init__(
        self,
        cluster: ClusterState,
        may_define: Callable[[str], bool],
        simplified: frozenset[str] = frozenset(),
    ) -> None:
        self._cluster = cluster
        self._may_define = may_define
        self.simplified = simplified
        self._nodes = cluster.hosts
        self._names = [n.name for n in self._nodes]
        self._labels = [n.labels for n in self._nodes]
        self._label_index = LabelIndex(self._names, self._labels, [n.taints for n in self._nodes])
        self._base: dict[Rule, dict[str, int]] = {}
        self._alike: dict[tuple[int, str, NodeFilter | None], dict[str, int]] = {}
        self._domains: dict[Rule, list[tuple[str, int]]] = {}
        self._filters: dict[NodeFilter, int] = {}
        self._concerned: dict[Rule, frozenset[str]] = {}
        self._may_exist: dict[str, bool] = {}
        self._stranded: dict[Shape, bool] = {}

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
    def _running(self) -> PodKinds:
        """The kinds of ``_entries``, in the same order."""
        return PodKinds(self._entries)

    def _selected_entries(self, rule: Rule) -> int:
        """Return the entries that count; a missing selector counts all running pods.

        This follows Karpenter: when it lists pods, a missing selector matches any pod, although it
        matches none of the pods being placed.
        """
        if rule.selector.nothing:
            return self._running.in_namespaces(rule.namespaces)
        return self._running.selected_by(rule)

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
        """Return how many pods run in each domain; empty domains are left out.

        A tenant may name a label of its own for each pod, which no node has, and may give each pod
        a rule that selects the same pods as another's: neither is counted again.
        """
        known = self._base.get(rule)
        if known is None:
            selected = self._selected_entries(rule) if self._is_on_a_node(rule) else 0
            alike = (selected, rule.key, rule.node_filter)
            known = self._alike.get(alike)
            if known is None:
                known = self._alike[alike] = self._count(selected, rule)
            self._base[rule] = known
        return dict(known)

    def _count(self, selected: int, rule: Rule) -> dict[str, int]:
        found: dict[str, int] = {}
        for number in iterate_members(selected):
            for index, count in self._entries[number].on_nodes.items():
                domain = self._domain(rule, index)
                if domain is not None:
                    found[domain] = found.get(domain, 0) + count
        return found

    def domain_of(self, rule: Rule, pod: Pod) -> str | None:
        """Return the domain in which a bound pod was counted, or None."""
        if not pod.is_active or not pod.spec.node_name:
            return None
        index = self._index_by_node_name.get(pod.spec.node_name)
        return None if index is None else self._domain(rule, index)

    def may_have(self, rule: Rule) -> bool:
        """Return whether some node has the label of a rule, or may get it."""
        known = self._may_exist.get(rule.key)
        if known is None:
            known = rule.by_host or self._may_define(rule.key) or self._is_on_a_node(rule)
            self._may_exist[rule.key] = known
        return known

    def strands(self, shape: Shape) -> bool:
        """Return whether its own rules leave the pods of a shape no node, however many there are.

        Each step of its preferences has a rule about a label that no node has or may get.
        """
        known = self._stranded.get(shape)
        if known is None:
            known = self._stranded[shape] = bool(shape.steps) and all(
                not all(map(self.may_have, step.rules)) for step in shape.steps
            )
        return known

    def _is_on_a_node(self, rule: Rule) -> bool:
        """Return whether a node has the label of a rule."""
        return any(value is not None for value in self._label_index.values(rule.key))

    def domains(self, rule: Rule, staying: int) -> list[str]:
        """Return the domains of the remaining nodes that count for a rule, sorted."""
        known = self._domains.get(rule)
        if known is None:
            values = self._label_index.values(rule.key).items()
            known = sorted((value, members) for value, members in values if value is not None)
            if rule.node_filter is not None:
                admitted = self._admitted_nodes(rule.node_filter)
                known = [(value, members & admitted) for value, members in known]
            self._domains[rule] = known
        return [value for value, members in known if members & staying]

    @cached_property
    def repellers(self) -> RunningRepellers:
        """The required anti-affinity of running pods."""
        found: dict[Rule, dict[str, int]] = {}
        for (_, rule), nodes in self._repelling_pods.items():
            counts = found.setdefault(rule, {})
            for index in nodes:
                domain = self._domain(rule, index)
                if domain is not None:
                    counts[domain] = counts.get(domain, 0) + 1
        return RunningRepellers(found, self.label_of)

    def label_of(self, rule: Rule) -> str:
        """Return the label by which a rule separates or joins pods, "" if no node can have it."""
        return rule.key if self.may_have(rule) else ""

    @cached_property
    def repelling_namespaces(self) -> Mapping[str, int]:
        """How many different rules of required anti-affinity the pods of each namespace have."""
        return Counter(namespace for namespace, _ in self._repelling_pods)

    @cached_property
    def standing_rules(self) -> StandingRules:
        """The rules of required anti-affinity that are compared with many pods to place."""
        return StandingRules.of(self._repelling_pods)

    @cached_property
    def _repelling_pods(self) -> Mapping[tuple[str, Rule], list[int]]:
        """The nodes of the running pods with a rule, by their namespace and the rule."""
        found: dict[tuple[str, Rule], list[int]] = {}
        for index, node in enumerate(self._nodes):
            for pod in node.with_anti_affinity:
                for rule in self._repelling_rules_of(pod) if pod.is_active else ():
                    found.setdefault((pod.namespace, rule), []).append(index)
        return found

    def _repelling_rules_of(self, pod: Pod) -> Iterable[Rule]:
        """Return the rules of a pod; simplified, one for each label that nodes have or may get.

        All labels that no node can have are one. A simplified rule covers the namespaces in which
        it selects a pod, so that it repels none that the pod's author could not repel with one rule
        of its own, and no pod of a namespace that the rules do not concern.
        """
        rules = repelling_rules(pod, self._cluster.namespaces)
        if pod.namespace not in self.simplified:
            return rules
        selected: dict[str, set[str]] = {}
        for rule in rules:
            selected.setdefault(self.label_of(rule), set()).update(self._concerned_namespaces(rule))
        return [
            Rule(RuleKind.ANTI_AFFINITY, key, frozenset(names), Selector(), inverse=True)
            for key, names in selected.items()
            if names
        ]

    @cached_property
    def _reserving(self) -> frozenset[str]:
        buffers = self._cluster.capacity_buffers
        return frozenset(buffer.metadata.namespace or "default" for buffer in buffers)

    @cached_property
    def _kinds(self) -> PodKinds:
        waiting = {(p.namespace, frozenset(p.metadata.labels.items())) for p in self._cluster.pods}
        return PodKinds(
            _Entry(namespace, dict(labels))
            for namespace, labels in sorted(waiting, key=lambda kind: (kind[0], sorted(kind[1])))
        )

    def _concerned_namespaces(self, rule: Rule) -> frozenset[str]:
        """Return the namespaces in which a rule selects a pod, running or not, or may select one.

        The pods of CapacityBuffers are not among those of the cluster.
        """
        known = self._concerned.get(rule)
        if known is None:
            names = set(self._kinds.namespaces_of(self._kinds.selected_by(rule)))
            known = self._concerned[rule] = frozenset(names | rule.namespaces & self._reserving)
        return known


class Censuses:
    """The censuses of one cluster: the exact one, and the last one with simplified rules."""

    def __init__(self, cluster: ClusterState, may_define: Callable[[str], bool]) -> None:
        self._make = partial(Census, cluster, may_define)
        self.exact = self._last = self._make()

    def simplified(self, namespaces: frozenset[str]) -> Census:
        """Return the census in which the rules of these namespaces are simplified."""
        if not namespaces:
            return self.exact
        if self._last.simplified != namespaces:
            self._last = self._make(namespaces)
        return self._last
