"""Topology rules during a pass: counts by domain, and which domains are open now.

A rule whose domains are hosts is evaluated for one host at a time. Any other rule is evaluated once
for a pod and returns the open domains, best first; the requirements of the node then select among
them (Karpenter ``topology.go``, ``topologygroup.go``). Two choices differ from Karpenter. Where it
draws a domain at random, this takes the domain with the cheapest node, among those where a type can
be launched. Where it leaves an affinity open among all domains with peers, this binds the node to
one domain, so that the next pods know where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from reconciler.model.karpenter.requirements import Requirement
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import Taint
from reconciler.placement.nodes.space import Space
from reconciler.placement.pods.shape import RelaxedShape, Shape
from reconciler.placement.topology.census import Census, Universe
from reconciler.placement.topology.podkinds import PodKinds
from reconciler.placement.topology.rules import Rule, RuleKind

_UNLIMITED = 2**31


class Group:
    """The counts of one rule in this pass, or of several that differ only in their limits.

    ``counts`` has every known domain, including empty ones; for hosts only those with pods.
    ``standing`` are the domains of remaining nodes. ``version`` increases with each change.
    ``repellers`` are the repelling groups of each host, into which such a group enters itself.
    """

    __slots__ = (
        "_filtered",
        "_peers",
        "_repellers",
        "by_host",
        "counts",
        "key",
        "kind",
        "rule",
        "standing",
        "version",
    )

    def __init__(
        self,
        rule: Rule,
        counts: dict[str, int],
        standing: Collection[str] = frozenset(),
        repellers: dict[str, set[Group]] | None = None,
    ) -> None:
        self.rule = rule
        self.kind = rule.kind
        self.key = rule.key
        self.by_host = rule.by_host
        self.counts = counts
        self.standing = frozenset(standing)
        self.version = 0
        self._filtered: dict[tuple[Space, tuple[Taint, ...]], bool] = {}
        self._peers: dict[Requirement | None, tuple[int, bool]] = {}
        self._repellers = repellers if rule.inverse and rule.by_host else None
        self._enter_hosts()

    def restore(self, counts: Mapping[str, int]) -> None:
        """Replace all counts. The entries of repelling groups at hosts are to be cleared before."""
        self.counts = dict(counts)
        self.version += 1
        self._enter_hosts()

    def _enter_hosts(self) -> None:
        if self._repellers is not None:
            for host, count in self.counts.items():
                if count:
                    self._repellers.setdefault(host, set()).add(self)

    def add_domains(self, domains: Iterable[str]) -> None:
        """Add domains in which nodes can be launched, still without pods."""
        for domain in domains:
            self.counts.setdefault(domain, 0)

    def counts_for(self, reach: Collection[str]) -> dict[str, int]:
        """Return the counts of the domains that exist for a pod.

        Those are the domains with pods or remaining nodes, and ``reach``, in which a node can be
        launched for it. A domain that only leaving nodes had is none of them.
        """
        return {
            domain: count
            for domain, count in self.counts.items()
            if count or domain in reach or domain in self.standing
        }

    def record(self, domain: str, count: int) -> None:
        total = self.counts[domain] = self.counts.get(domain, 0) + count
        self.version += 1
        if self._repellers is not None:
            at_host = self._repellers.setdefault(domain, set())
            (at_host.add if total else at_host.discard)(self)

    def counts_on(self, space: Space, taints: tuple[Taint, ...]) -> bool:
        """Return whether pods on such a new node count."""
        if self.rule.node_filter is None:
            return True
        key = (space, taints)
        known = self._filtered.get(key)
        if known is None:
            known = self.rule.node_filter.admits(space.requirements, taints)
            self._filtered[key] = known
        return known

    def has_pods(self, allowed: Requirement | None) -> bool:
        """Return whether pods count in one of the domains that a requirement allows."""
        known = self._peers.get(allowed)
        if known is None or known[0] != self.version:
            found = any(
                count and (allowed is None or allowed.has(domain))
                for domain, count in self.counts.items()
            )
            known = self._peers[allowed] = (self.version, found)
        return known[1]


class Restriction:
    """One rule as it restricts pods: the counts of its group, and its own limits on them.

    A tenant may give each of its pods a limit of its own, which changes nothing that is counted.
    """

    __slots__ = ("by_host", "group", "key", "kind", "rule")

    def __init__(self, rule: Rule, group: Group) -> None:
        self.rule = rule
        self.group = group
        self.kind = rule.kind
        self.key = rule.key
        self.by_host = rule.by_host

    def room_on_host(self, host: str, selects_itself: bool, allowed: Requirement | None) -> int:
        """Return how many pods of a kind the host can take one after another under this rule.

        ``allowed`` is the pod's requirement on the hostname, used for affinity only.
        """
        count = self.group.counts.get(host, 0)
        if self.kind is RuleKind.AFFINITY:
            if allowed is not None and not allowed.has(host):
                return 0
            if not count and self.group.has_pods(allowed):
                return 0
        return self.room_beside(count, selects_itself)

    def room_beside(self, count: int, selects_itself: bool) -> int:
        """Return the room on a host where ``count`` pods count, if none count elsewhere."""
        if self.kind is RuleKind.SPREAD:
            left = self.rule.max_skew - count
            return max(left, 0) if selects_itself else (_UNLIMITED if left >= 0 else 0)
        if self.kind is RuleKind.ANTI_AFFINITY:
            if count:
                return 0
            return 1 if selects_itself and not self.rule.inverse else _UNLIMITED
        return _UNLIMITED if count else int(selects_itself)

    def open_domains(
        self, selects_itself: bool, allowed: Requirement | None, reach: Collection[str]
    ) -> OpenDomains:
        """Return the domains that a pod may use now, best first.

        ``allowed`` are the domains that the pod's own demands permit. For a spread it restricts the
        domains among which the minimum is computed, not where the pod may be placed. ``reach`` are
        the domains in which a node can be launched for the pod.
        """
        counts = self.group.counts_for(reach)
        if self.kind is RuleKind.SPREAD:
            return self._spread_domains(counts, selects_itself, allowed)
        known = [d for d in counts if allowed is None or allowed.has(d)]
        if self.kind is RuleKind.ANTI_AFFINITY:
            return OpenDomains(self.key, [sorted(d for d in known if not counts[d])])
        peers = sorted(d for d in known if counts[d])
        if not peers and selects_itself:
            peers = sorted(known)
        return OpenDomains(self.key, [peers], pins=True)

    def _spread_domains(
        self, counts: Mapping[str, int], selects_itself: bool, allowed: Requirement | None
    ) -> OpenDomains:
        eligible = [c for d, c in counts.items() if allowed is None or allowed.has(d)]
        least = min(eligible, default=_UNLIMITED)
        if self.rule.min_domains is not None and len(eligible) < self.rule.min_domains:
            least = 0
        most = least + self.rule.max_skew - selects_itself
        tiers: dict[int, list[str]] = {}
        for domain in sorted(counts):
            if counts[domain] <= most:
                tiers.setdefault(counts[domain], []).append(domain)
        return OpenDomains(self.key, [tiers[count] for count in sorted(tiers)], pins=True)


class OpenDomains:
    """The open domains of one label in tiers; the domains of one tier are equally good.

    ``pins`` is whether a node must choose one; otherwise it may keep several of them.
    """

    __slots__ = ("key", "members", "pins", "tiers")

    def __init__(self, key: str, tiers: Iterable[Sequence[str]], *, pins: bool = False) -> None:
        self.key = key
        self.tiers = [tier for tier in tiers if tier]
        self.members = frozenset(domain for tier in self.tiers for domain in tier)
        self.pins = pins

    def as_one_tier(self) -> OpenDomains:
        """Return the same domains in a single tier."""
        return OpenDomains(self.key, [sorted(self.members)], pins=self.pins)

    def intersect(self, other: OpenDomains) -> OpenDomains:
        """Return the intersection of both, with the tiers of the one that pins."""
        first, second = (other, self) if other.pins and not self.pins else (self, other)
        return OpenDomains(
            self.key,
            [[d for d in tier if d in second.members] for tier in first.tiers],
            pins=self.pins or other.pins,
        )


def unrepelled_domains(
    groups: Sequence[Group], allowed: Requirement | None, reach: Collection[str]
) -> OpenDomains:
    """Return the domains from which no group repels a pod: the intersection of what each opens.

    The groups are those of other pods' anti-affinity with one key, and there may be as many as
    pods. What exists for the pod is the same for all of them.
    """
    first = groups[0]
    known = sorted(d for d in {*reach, *first.standing} if allowed is None or allowed.has(d))
    return OpenDomains(first.key, [[d for d in known if not any(g.counts.get(d) for g in groups)]])


def intersect_by_label(found: Iterable[OpenDomains]) -> list[OpenDomains]:
    """Return the open domains with one entry for each label, the intersection of its entries."""
    by_key: dict[str, OpenDomains] = {}
    for domains in found:
        known = by_key.get(domains.key)
        by_key[domains.key] = domains if known is None else known.intersect(domains)
    return list(by_key.values())


class Topology:
    """The groups of a pass: those that its pods own, and those that repel them.

    ``shapes`` are those of the pods to place. Rules of one kind that select the same of them, and
    that count the same running pods, have the same counts for the whole pass. They are one group:
    a tenant's pods may each have a rule of its own. Those with the same limits are one restriction.
    """

    def __init__(
        self,
        census: Census,
        universe: Universe,
        without: Collection[str],
        shapes: Iterable[Shape],
    ) -> None:
        self._census = census
        self._universe = universe
        self._remaining = census.remaining_nodes(without)
        self._shapes = list(shapes)
        self._kinds = PodKinds(self._shapes)
        self._groups: dict[Rule, Group] = {}
        self._alike: dict[tuple[object, ...], Group] = {}
        self._restrictions: dict[tuple[Group, int, int | None], Restriction] = {}
        self._selected: dict[Group, int] = {}
        self._by_pair: dict[tuple[str, str], list[Group]] = {}
        self._by_namespace: dict[str, list[Group]] = {}
        self._running_repellers = 0
        self.repellers: dict[str, set[Group]] = {}

    def group(self, rule: Rule) -> Group:
        """Return the group of a rule, counted on first use."""
        known = self._groups.get(rule)
        if known is None:
            known = self._groups[rule] = self._group_alike(rule)
        return known

    def restriction(self, rule: Rule) -> Restriction:
        """Return a rule as it restricts pods; rules with the same effect are one object."""
        group = self.group(rule)
        key = (group, rule.max_skew, rule.min_domains)
        known = self._restrictions.get(key)
        if known is None:
            known = self._restrictions[key] = Restriction(rule, group)
        return known

    def _group_alike(self, rule: Rule) -> Group:
        """Return the group of the rules that have the same counts, or a new one."""
        if rule.inverse:
            running = self._census.repellers
            is_known = running.has(rule, self._running_repellers)
            return self._repelling_group(rule, {} if is_known else running.counts.get(rule, {}))
        counts = self._census.counts(rule)
        nodes = (rule.node_filter, rule.tolerations)
        return self._group_at(
            (rule.kind, rule.key, *nodes, frozenset(counts.items())), rule, counts
        )

    def _repelling_group(self, rule: Rule, counts: Mapping[str, int]) -> Group:
        """Return the group of the rules that repel the same pods by the same label.

        Labels that nothing has leave no domain, whatever they are called.
        """
        return self._group_at((rule.kind, self._census.label_of(rule)), rule, counts)

    def _group_at(self, alike: tuple[object, ...], rule: Rule, counts: Mapping[str, int]) -> Group:
        """Return the group of a rule, with the others that are ``alike`` and select the same."""
        selected, pairs = self._kinds.selected_by(rule), rule.selector.pairs
        key = (rule.inverse, *alike, selected, pairs[:1])
        known = self._alike.get(key)
        if known is None:
            known = self._alike[key] = self._new_group(rule, dict(counts))
            self._selected[known] = selected
            self._index(known, pairs, selected)
        elif rule.inverse:
            for domain, count in counts.items():
                known.record(domain, count)
        return known

    def _index(self, group: Group, pairs: Sequence[tuple[str, str]], selected: int) -> None:
        """Make a group known to the pods that it may select: by a label or by their namespace.

        A group that separates pods by a label that no node has neither counts nor repels any, as in
        kube-scheduler: a tenant's pod could repel those of all others. In Karpenter it repels them.
        """
        is_kept = group.rule.inverse and self._universe.repels_by_unknown_labels
        if group.kind is RuleKind.ANTI_AFFINITY and not self.may_count(group) and not is_kept:
            return
        if pairs:
            self._by_pair.setdefault(pairs[0], []).append(group)
            return
        for namespace in self._kinds.namespaces_of(selected):
            self._by_namespace.setdefault(namespace, []).append(group)

    def _new_group(self, rule: Rule, counts: dict[str, int]) -> Group:
        if rule.by_host:
            return Group(rule, counts, repellers=self.repellers)
        standing = self._census.domains(rule, self._remaining)
        group = Group(rule, counts, standing)
        group.add_domains(standing)
        return group

    def may_count(self, group: Group) -> bool:
        """Return whether a pod can ever count: some node has the label of the group, or may get it.

        A tenant may name as many labels as it likes that no node has.
        """
        return self._census.may_have(group.rule)

    def reach(self, restriction: Restriction, shape: Shape, step: RelaxedShape) -> frozenset[str]:
        """Return the domains in which a node can be launched for pods of a shape."""
        if restriction.by_host:
            return frozenset()
        found = self._universe.domains(restriction.group.rule, shape, step)
        restriction.group.add_domains(sorted(found))
        return found

    def reaches(
        self, restrictions: Iterable[Restriction], shape: Shape, step: RelaxedShape
    ) -> dict[Restriction, frozenset[str]]:
        """Return what each rule reaches, computed once for all that repel by the same label."""
        found: dict[Restriction, frozenset[str]] = {}
        by_key: dict[str, frozenset[str]] = {}
        for restriction in restrictions:
            known = by_key.get(restriction.key) if restriction.rule.inverse else None
            if known is None:
                known = self.reach(restriction, shape, step)
                if restriction.rule.inverse:
                    by_key[restriction.key] = known
            else:
                restriction.group.add_domains(sorted(known))
            found[restriction] = known
        return found

    def add_running_repellers(self) -> None:
        """Add the required anti-affinity of running pods that repels some of the pods to place."""
        running = self._census.repellers
        selecting = [running.selecting(shape) for shape in self._shapes]
        for rules in running.alike(selecting, self._kinds.selected_by):
            for found in running.sums(rules):
                self._repelling_group(found.rule, found.counts)
            self._running_repellers |= rules

    def snapshot(self) -> list[dict[str, int]]:
        """Return the current counts of all groups, for ``restore``."""
        return [dict(group.counts) for group in self._selected]

    def restore(self, counts: Iterable[Mapping[str, int]]) -> None:
        """Restore all counts."""
        self.repellers.clear()
        for group, saved in zip(self._selected, counts, strict=True):
            group.restore(saved)

    def groups_selecting(self, shape: Shape) -> list[Group]:
        """Return the groups whose selector matches a shape's pods, in order of creation."""
        bit, selected = self._kinds.bit_of(shape), self._selected
        here = self._by_namespace.get(shape.namespace, ())
        found = [g for g in here if selected[g] & bit]
        for pair in shape.labels.items():
            found += [g for g in self._by_pair.get(pair, ()) if selected[g] & bit]
        return found

    def forget(self, groups: Iterable[Group], owned: Iterable[Group], pods: Iterable[Pod]) -> None:
        """Remove the running ones of pods to place from the counts that include them."""
        selecting, repelling = list(groups), list(owned)
        for pod in (pod for pod in pods if pod.spec.node_name):
            for group in (*selecting, *repelling):
                domain = self._census.domain_of(group.rule, pod)
                if domain is not None and group.counts.get(domain):
                    group.record(domain, -1)
                    if group.by_host and not group.counts[domain]:
                        del group.counts[domain]
