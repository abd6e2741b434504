"""Rules between pods: topology spread, affinity and anti-affinity.

The plugins PodTopologySpread and InterPodAffinity of kube-scheduler. Whether a pod counts for
another one depends on their shapes alone and is evaluated once for each pair of shapes; what a
shape needs to know about the cluster is then kept up to date as pods come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Final

from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.kubernetes.metadata import LabelSelector, SelectorExpression
from reconciler.model.kubernetes.pod import (
    PodAffinityTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from reconciler.model.kubernetes.profile import Plugin
from reconciler.placement.binding.host import HostNode
from reconciler.placement.binding.shape import SchedulingShape
from reconciler.placement.binding.verdict import NodeVerdict, node_verdict

_MATCHES_NOTHING: Final = LabelSelector(match_expressions=(SelectorExpression("", "In"),))
"""A selector that no pod matches: the meaning of a rule without a selector."""

Change = tuple[SchedulingShape | None, HostNode, int]
"""Pods of a shape that came to a node, or left it if negative.

Without a shape it is the node itself, which joined, left, or (0) got other taints or resources.
"""

Domains = dict[str, dict[str, int]]
"""Numbers by topology key and domain."""


@dataclass(eq=False, slots=True)
class Spread:
    """A spread constraint of a shape, and the pods it counts.

    ``counts`` are the matching pods by domain, of eligible nodes, and ``sizes`` the number of these
    nodes; ``domains`` is the domain of each of them, by its number. ``on_host`` are the matching
    pods of each node, for constraints by host name that are preferences.
    """

    rule: TopologySpreadConstraint
    selector: LabelSelector
    is_empty: bool
    counts_itself: bool
    counts: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    domains: dict[int, str] = field(default_factory=dict)
    on_host: dict[int, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.rule.topology_key

    @property
    def is_by_host(self) -> bool:
        return self.rule.topology_key == HOSTNAME and not self.rule.is_hard

    def selects(self, shape: SchedulingShape, other: SchedulingShape) -> bool:
        """Return whether the constraint of ``shape`` counts pods of ``other``."""
        if self.is_empty or not other.is_counted or other.namespace != shape.namespace:
            return False
        return self.selector.matches(other.labels)

    def most_allowed(self) -> int:
        """Return how many matching pods a domain may have when one more of the shape is added."""
        least = min(self.counts.values(), default=0)
        if len(self.counts) < (self.rule.min_domains or 1):
            least = 0
        return self.rule.max_skew + least - self.counts_itself

    def allows(self, node: NodeVerdict) -> bool:
        """Return whether a node counts, by the constraint's affinity and taint policies."""
        if self.rule.node_affinity_policy != "Ignore" and not node.matches:
            return False
        return self.rule.node_taints_policy != "Honor" or node.is_tolerated


@dataclass(frozen=True, slots=True)
class Relation:
    """What a bound pod of one shape means for a pending pod of another.

    ``spreads`` are the constraints that count it, ``repels`` the topology keys by which one repels
    the other, ``weights`` the preferences for its domain by topology key. ``is_joined`` is whether
    it matches all terms of required affinity.
    """

    spreads: tuple[Spread, ...]
    repels: tuple[str, ...]
    is_joined: bool
    weights: tuple[tuple[str, int], ...]


@dataclass(eq=False, slots=True)
class Neighbourhood:
    """What the rules between pods mean for pods of one shape.

    ``repelled`` are the pods that repel this shape, ``joined`` those that match all terms of its
    required affinity, and ``weights`` the sums of preferences, each by topology key and domain.
    """

    shape: SchedulingShape
    hard: tuple[Spread, ...]
    soft: tuple[Spread, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    repelled: Domains = field(default_factory=dict)
    joined: Domains = field(default_factory=dict)
    weights: Domains = field(default_factory=dict)
    relations: dict[SchedulingShape, Relation | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, shape: SchedulingShape, namespaces: Mapping[str, Mapping[str, str]]
    ) -> Neighbourhood:
        """Return the neighbourhood of a shape in an empty cluster."""
        spreads = [_spread(shape, rule) for rule in shape.spreads]
        hard = tuple(s for s in spreads if s.rule.is_hard)
        soft = tuple(s for s in spreads if not s.rule.is_hard)
        return cls(shape, hard, soft, namespaces)

    def rebuild(self, hosts: Iterable[HostNode]) -> None:
        """Count the pods of all nodes again."""
        self.repelled, self.joined, self.weights = {}, {}, {}
        for spread in (*self.hard, *self.soft):
            spread.counts, spread.sizes, spread.domains, spread.on_host = {}, {}, {}, {}
        for host in hosts:
            self.add_host(host)
            foreign = self._foreign_labels(host)
            for shape, count in host.shapes.items():
                if foreign is None or not foreign.isdisjoint(shape.topology_keys):
                    self.change(shape, host, count)

    def apply(self, changes: Sequence[Change]) -> bool:
        """Count what has changed; return False if everything must be counted again."""
        relations = self.relations
        has_spreads = bool(self.hard or self.soft)
        for shape, host, count in changes:
            if shape is not None:
                if shape in relations and relations[shape] is None:
                    continue
                foreign = None if has_spreads else self._foreign_labels(host)
                if foreign is None or not foreign.isdisjoint(shape.topology_keys):
                    self.change(shape, host, count)
            elif has_spreads and not count and self._honours_taints:
                return False
            elif has_spreads and count > 0:
                self.add_host(host)
            elif has_spreads and count < 0:
                self.drop_host(host)
        return True

    def _foreign_labels(self, host: HostNode) -> KeysView[str] | None:
        """Return the labels of a node if no rule of the shape is about them, None if one is.

        Then its pods only matter by rules of their own about these labels. Each pod of a tenant may
        have a rule of its own, over a label that no node has.
        """
        labels = host.node.metadata.labels.keys()
        is_near = self.hard or self.soft or not labels.isdisjoint(self.shape.topology_keys)
        return None if is_near else labels

    @property
    def _honours_taints(self) -> bool:
        return any(s.rule.node_taints_policy == "Honor" for s in (*self.hard, *self.soft))

    def add_host(self, host: HostNode) -> None:
        """Add the domains of a node."""
        if self.hard:
            self._add_domains(self.hard, host, needs_all=True)
        if self.soft:
            needs_all = not (self.shape.is_default_spread and self.shape.profile.uses_system_spread)
            self._add_domains(self.soft, host, needs_all=needs_all)

    def _add_domains(self, spreads: tuple[Spread, ...], host: HostNode, *, needs_all: bool) -> None:
        """Add the domains of a node; one without all topology keys does not count."""
        labels = host.node.metadata.labels
        if needs_all and any(spread.key not in labels for spread in spreads):
            return
        verdict = node_verdict(self.shape.rules, host, self.shape.profile)
        for spread in spreads:
            if spread.allows(verdict):
                domain = labels.get(spread.key, "")
                spread.domains[host.number] = domain
                spread.sizes[domain] = spread.sizes.get(domain, 0) + 1
                spread.counts.setdefault(domain, 0)

    def drop_host(self, host: HostNode) -> None:
        """Remove the domains of a node whose pods have been removed."""
        for spread in (*self.hard, *self.soft):
            spread.on_host.pop(host.number, None)
            domain = spread.domains.pop(host.number, None)
            if domain is not None:
                spread.sizes[domain] -= 1
                if not spread.sizes[domain]:
                    del spread.sizes[domain], spread.counts[domain]

    def change(self, shape: SchedulingShape, host: HostNode, count: int) -> None:
        """Count ``count`` more pods of a shape on a node, or fewer if negative."""
        try:
            relation = self.relations[shape]
        except KeyError:
            relation = self.relations[shape] = self._relation(shape)
        if relation is None:
            return
        for spread in relation.spreads:
            domain = spread.domains.get(host.number)
            if domain is not None:
                spread.counts[domain] += count
            if spread.is_by_host:
                spread.on_host[host.number] = spread.on_host.get(host.number, 0) + count
        labels = host.node.metadata.labels
        for key in relation.repels:
            _add(self.repelled, key, labels, count)
        if relation.is_joined:
            for term in self.shape.affinity:
                _add(self.joined, term.topology_key, labels, count)
        for key, weight in relation.weights:
            _add(self.weights, key, labels, count * weight)

    def _relation(self, other: SchedulingShape) -> Relation | None:
        """Return what bound pods of ``other`` mean for this shape, None if nothing."""
        shape = self.shape
        spreads = tuple(s for s in (*self.hard, *self.soft) if s.selects(shape, other))
        repels = {
            term.topology_key
            for owner, target in ((shape, other), (other, shape))
            for term in owner.anti_affinity
            if self._matches(term, owner, target)
        }
        is_joined = bool(shape.affinity) and self._matches_all(other)
        weights: dict[str, int] = {}
        for key, weight in self._preferences(other):
            weights[key] = weights.get(key, 0) + weight
        if not spreads and not repels and not is_joined and not weights:
            return None
        return Relation(spreads, tuple(sorted(repels)), is_joined, tuple(weights.items()))

    def _preferences(self, other: SchedulingShape) -> Iterator[tuple[str, int]]:
        """Yield the weights of the preferences between this shape and bound pods of another."""
        shape = self.shape
        if (
            self.shape.profile.ignores_preferred_terms_of_existing_pods
            and not shape.has_preferred_terms
        ):
            return
        for owner, target in ((shape, other), (other, shape)):
            yield from self._weighted(owner.preferred_affinity, owner, target, 1)
            yield from self._weighted(owner.preferred_anti_affinity, owner, target, -1)
        weight = self.shape.profile.hard_pod_affinity_weight
        if weight:
            for term in other.affinity:
                if self._matches(term, other, shape):
                    yield term.topology_key, weight

    def _weighted(
        self,
        terms: Iterable[WeightedPodAffinityTerm],
        owner: SchedulingShape,
        target: SchedulingShape,
        sign: int,
    ) -> Iterator[tuple[str, int]]:
        for weighted in terms:
            term = weighted.pod_affinity_term
            if self._matches(term, owner, target):
                yield term.topology_key, sign * weighted.weight

    def _matches_all(self, other: SchedulingShape) -> bool:
        return all(self._matches(term, self.shape, other) for term in self.shape.affinity)

    def _matches(
        self, term: PodAffinityTerm, owner: SchedulingShape, other: SchedulingShape
    ) -> bool:
        """Return whether a term of ``owner`` selects pods of ``other``."""
        if term.label_selector is None:
            return False
        if term.namespaces or term.namespace_selector is not None:
            named = term.namespace_selector is not None and term.namespace_selector.matches(
                self.namespaces.get(other.namespace, {})
            )
            if not named and other.namespace not in term.namespaces:
                return False
        elif other.namespace != owner.namespace:
            return False
        selector = _with_label_keys(term.label_selector, term.match_label_keys, owner)
        if not selector.matches(other.labels):
            return False
        return not any(
            owner.labels[key] == other.labels.get(key)
            for key in term.mismatch_label_keys
            if key in owner.labels
        )

    # The filters.

    @property
    def has_requirements(self) -> bool:
        """Whether rules of the shape itself may reject a node."""
        return bool(self.hard or self.shape.affinity or self.shape.anti_affinity)

    def is_repelled_by(self, other: SchedulingShape) -> bool:
        """Return whether the required anti-affinity of another shape selects this one."""
        return any(self._matches(term, other, self.shape) for term in other.anti_affinity)

    def rejection(self) -> Callable[[HostNode], Plugin | None] | None:
        """Return a function that returns the plugin that rejects a node now, None if none can."""
        filters = self.shape.profile.filters
        spreads = self.hard if filters(Plugin.POD_TOPOLOGY_SPREAD) else ()
        checks_others = filters(Plugin.INTER_POD_AFFINITY)
        affinity = self.shape.affinity if checks_others else ()
        repelled = self.repelled if checks_others else {}
        if not spreads and not affinity and not repelled:
            return None
        most = tuple(spread.most_allowed() for spread in spreads)
        starts_group = bool(affinity) and self.starts_group()

        def check(host: HostNode) -> Plugin | None:
            if spreads and not self.is_spread(host, most):
                return Plugin.POD_TOPOLOGY_SPREAD
            if affinity and not self.is_near(host, starts_group):
                return Plugin.INTER_POD_AFFINITY
            if repelled and self.is_repelled(host):
                return Plugin.INTER_POD_AFFINITY
            return None

        return check

    def starts_group(self) -> bool:
        """Return whether a pod may start its group: no pod matches its affinity but itself does."""
        return not any(any(d.values()) for d in self.joined.values()) and self._matches_all(
            self.shape
        )

    def is_near(self, host: HostNode, starts_group: bool) -> bool:
        """Return whether a node is in the domains that the required affinity needs."""
        labels, is_joined = host.node.metadata.labels, True
        for term in self.shape.affinity:
            domain = labels.get(term.topology_key)
            if domain is None:
                return False
            if self.joined.get(term.topology_key, {}).get(domain, 0) <= 0:
                is_joined = False
        return is_joined or starts_group

    def is_repelled(self, host: HostNode) -> bool:
        """Return whether a pod in a domain of the node repels this shape, or is repelled by it."""
        labels = host.node.metadata.labels
        for key, domains in self.repelled.items():
            domain = labels.get(key)
            if domain is not None and domains.get(domain, 0) > 0:
                return True
        return False

    def is_spread(self, host: HostNode, most_allowed: tuple[int, ...]) -> bool:
        """Return whether one more pod on a node keeps the required spread.

        ``most_allowed`` is what ``Spread.most_allowed`` returns for each required constraint.
        """
        labels = host.node.metadata.labels
        for spread, most in zip(self.hard, most_allowed, strict=True):
            domain = labels.get(spread.key)
            if domain is None or spread.counts.get(domain, 0) > most:
                return False
        return True

    # The scores.

    def spread_scores(self, hosts: list[HostNode]) -> list[int]:
        """Return the normalized scores of PodTopologySpread: the fewer matching pods, the more.

        A node without all topology keys has none, unless the constraints are the system's.
        """
        soft = self.soft
        needs_all = not (self.shape.is_default_spread and self.shape.profile.uses_system_spread)
        ignored = set()
        if needs_all:
            ignored = {
                h.number for h in hosts if any(spread.key not in h.labels for spread in soft)
            }
        counted = [host for host in hosts if host.number not in ignored] if ignored else hosts
        raw = [0.0] * len(hosts)
        for spread in soft:
            key, extra = spread.key, spread.rule.max_skew - 1
            if spread.is_by_host:
                weight = log(len(counted) + 2)
                on_host = spread.on_host
                for n, host in enumerate(hosts):
                    if key in host.node.metadata.labels:
                        raw[n] += on_host.get(host.number, 0) * weight + extra
                continue
            domains = [host.node.metadata.labels.get(key) for host in counted]
            weight = log(len(set(domains)) + 2)
            counts = spread.counts
            scores = {d: counts.get(d, 0) * weight + extra for d in set(domains) if d is not None}
            for n, host in enumerate(hosts):
                domain = host.node.metadata.labels.get(key)
                if domain is not None:
                    raw[n] += scores.get(domain, 0.0)
        return _normalized_spread(
            [None if h.number in ignored else _rounded(s) for h, s in zip(hosts, raw, strict=True)]
        )

    def affinity_scores(self, hosts: list[HostNode]) -> list[int] | None:
        """Return the normalized scores of InterPodAffinity, None if all are equal."""
        raw = [0] * len(hosts)
        for key, domains in self.weights.items():
            for n, host in enumerate(hosts):
                domain = host.node.metadata.labels.get(key)
                if domain is not None:
                    raw[n] += domains.get(domain, 0)
        least = min(raw)
        width = max(raw) - least
        if not width:
            return None
        return [int(100.0 * ((score - least) / width)) for score in raw]


def _normalized_spread(raw: list[int | None]) -> list[int]:
    known = [score for score in raw if score is not None]
    most, least = max(known, default=0), min(known, default=0)
    return [
        0 if score is None else 100 if not most else 100 * (most + least - score) // most
        for score in raw
    ]


def _rounded(value: float) -> int:
    """Round half away from zero, as Go does; ``value`` is not negative."""
    whole = int(value)
    return whole + (value - whole >= 0.5)


def _add(domains: Domains, key: str, labels: Mapping[str, str], count: int) -> None:
    domain = labels.get(key)
    if domain is not None:
        counts = domains.setdefault(key, {})
        counts[domain] = counts.get(domain, 0) + count


def _spread(shape: SchedulingShape, rule: TopologySpreadConstraint) -> Spread:
    selector = _with_label_keys(rule.label_selector, rule.match_label_keys, shape)
    is_empty = not selector.match_labels and not selector.match_expressions
    return Spread(rule, selector, is_empty, selector.matches(shape.labels))


def _with_label_keys(
    selector: LabelSelector | None, keys: Iterable[str], shape: SchedulingShape
) -> LabelSelector:
    """Return the selector with the pod's own values of ``keys`` added."""
    if selector is None:
        return _MATCHES_NOTHING
    pairs = tuple(
        SelectorExpression(key, "In", (shape.labels[key],)) for key in keys if key in shape.labels
    )
    if not pairs:
        return selector
    return LabelSelector(selector.match_labels, (*selector.match_expressions, *pairs))
