"""The pods of one shape in a pass, and what each relaxation step allows at the moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import untolerated_taints
from reconciler.placement.nodes.ports import PORTS_PER_CHECK
from reconciler.placement.nodes.space import Demands, Space
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.pods.shape import RelaxedShape, Shape, queue_position
from reconciler.placement.topology.groups import (
    Group,
    OpenDomains,
    Restriction,
    Topology,
    intersect_by_label,
    unrepelled_domains,
)
from reconciler.placement.topology.rules import RuleKind
from reconciler.placement.work import DOMAIN_RULE_CHECKS

_UNLIMITED = 2**31


class CohortStage:
    """A relaxation step of a cohort with the rules that apply to it.

    ``reach`` are the domains of each rule in which a node can be launched for the pods.
    ``only_fills_up`` is whether a node that rejected this step rejects it for the rest of the pass.
    Nodes fill up and anti-affinity excludes more, whereas a spread or an affinity may open a domain
    again. ``many_at_once`` is whether placing one pod affects the next one only through room and
    the count on that host. ``own_by_host`` are the pods' own rules about hosts. ``repelled`` are
    the groups of those by which other pods repel them, and ``repellers`` everything that repels
    pods, by host. ``closing`` is what closes hosts for good, equal for stages for which it closes
    the same ones: the pods' own groups with the most pods on an open host, and ``repelled``; None
    if nothing does. ``repelled_by_key`` are the rules about other domains by which other
    pods repel them. ``host_checks`` is the work of checking one host, ``view_checks`` that of a new
    view.
    """

    __slots__ = (
        "_version",
        "_view",
        "by_domain",
        "by_host",
        "closing",
        "host_checks",
        "many_at_once",
        "only_fills_up",
        "own_by_host",
        "reach",
        "repelled",
        "repelled_by_key",
        "repellers",
        "step",
        "taints_seen",
        "view_checks",
    )

    def __init__(
        self,
        step: RelaxedShape,
        reach: Mapping[Restriction, frozenset[str]],
        repellers: dict[str, set[Group]],
        counted: Collection[Group],
        ports: int = 0,
    ) -> None:
        self.step = step
        self.reach = reach
        found = list(reach)
        self.by_host = [c for c in found if c.by_host]
        self.own_by_host = [c for c in self.by_host if not c.rule.inverse]
        self.repelled = frozenset(c.group for c in self.by_host if c.rule.inverse)
        self.repellers = repellers
        limits = _host_limits(self.own_by_host, counted)
        self.closing = (limits, self.repelled) if limits or self.repelled else None
        self.by_domain = [c for c in found if not c.by_host]
        self.repelled_by_key = _repelling_by_key(self.by_domain)
        self.only_fills_up = all(map(_never_opens, found))
        self.host_checks = 1 + len(self.own_by_host) + ports // PORTS_PER_CHECK
        self.view_checks = 1 + sum(DOMAIN_RULE_CHECKS + len(reach[c]) for c in self.by_domain)
        self.many_at_once = not self.by_domain and self.only_fills_up
        self.taints_seen: dict[str, bool] = {}
        self._view: CohortView | None = None
        self._version = 0

    def view(self, cohort: Cohort, demands: Demands) -> CohortView:
        """Return what the stage allows now; it changes only with the counts of rules on domains."""
        version = sum([c.group.version for c in self.by_domain])  # none of them ever decreases
        if self._view is None or self._version != version:
            self._view = CohortView(cohort, self, demands)
            self._version = version
        return self._view

    def release(self) -> None:
        """Forget its view, which refers to it, and the groups that repel, which do to the mapping.

        The stage, and all others of its topology, cannot be used any more.
        """
        self._view = None
        self.repellers.clear()

    def tolerates(self, template: PoolTemplate) -> bool:
        """Return whether the pods tolerate the taints of a NodePool's nodes."""
        known = self.taints_seen.get(template.name)
        if known is None:
            known = not untolerated_taints(template.taints, self.step.tolerations)
            self.taints_seen[template.name] = known
        return known


def _host_limits(
    own: Iterable[Restriction], counted: Collection[Group]
) -> frozenset[tuple[Group, int]]:
    """Return the most pods that a host may have of each group for it to take another one."""
    return frozenset(
        (c.group, c.rule.max_skew - (c.group in counted) if c.kind is RuleKind.SPREAD else 0)
        for c in own
        if c.kind is not RuleKind.AFFINITY
    )


def _never_opens(rule: Restriction) -> bool:
    """Return whether a node that a rule excludes stays excluded while pods are placed."""
    return rule.kind is RuleKind.ANTI_AFFINITY or (rule.by_host and rule.kind is RuleKind.SPREAD)


def _repelling_by_key(restrictions: Iterable[Restriction]) -> dict[str, list[Restriction]]:
    found: dict[str, list[Restriction]] = {}
    for restriction in restrictions:
        if restriction.rule.inverse:
            found.setdefault(restriction.key, []).append(restriction)
    return found


class Cohort:
    """Waiting pods of one shape, in queue order.

    ``counted`` are the groups in which a placed pod counts, ``repelling`` those of its own required
    anti-affinity. ``recorded`` and ``recorded_repelling`` leave out groups whose label no node can
    have. ``first`` is the first step that may still succeed.
    """

    __slots__ = (
        "counted",
        "counted_set",
        "first",
        "guarded",
        "pods",
        "recorded",
        "recorded_repelling",
        "repelling",
        "shape",
        "stages",
        "waiting_from",
    )

    def __init__(self, shape: Shape, pods: Iterable[Pod], *, guarded: bool) -> None:
        self.shape = shape
        self.pods = sorted(pods, key=queue_position)
        self.guarded = guarded
        self.waiting_from = 0
        self.first = 0
        self.stages: list[CohortStage] = []
        self.counted: list[Group] = []
        self.counted_set: frozenset[Group] = frozenset()
        self.repelling: list[Group] = []
        self.recorded: list[Group] = []
        self.recorded_repelling: list[Group] = []

    @property
    def waiting(self) -> int:
        return len(self.pods) - self.waiting_from

    def take(self, count: int) -> list[Pod]:
        """Return the next ``count`` waiting pods and remove them from the queue."""
        start = self.waiting_from
        self.waiting_from += count
        return self.pods[start : self.waiting_from]

    def rewind(self) -> None:
        """Put all pods back into the queue."""
        self.waiting_from = 0
        self.first = 0

    def register(self, topology: Topology) -> None:
        """Create the groups of its rules."""
        for step in self.shape.steps:
            for rule in step.rules:
                topology.group(rule)
        self.repelling = [topology.group(rule) for rule in self.shape.repels]

    def bind(self, topology: Topology) -> None:
        """Collect the groups that apply to its pods and count them, once all groups exist."""
        selecting = topology.groups_selecting(self.shape)
        self.counted = [g for g in selecting if not g.rule.inverse]
        self.counted_set = frozenset(self.counted)
        self.recorded = [g for g in self.counted if topology.may_count(g)]
        self.recorded_repelling = [g for g in self.repelling if topology.may_count(g)]
        repelling = _decisive(topology, [g for g in selecting if g.rule.inverse])
        repelled = [topology.restriction(group.rule) for group in repelling]
        self.stages = []
        for step in self.shape.steps:
            owned = list(dict.fromkeys(topology.restriction(rule) for rule in step.rules))
            applying = dict.fromkeys([*owned, *repelled])
            reach = topology.reaches(applying, self.shape, step)
            repellers, ports = topology.repellers, len(self.shape.ports)
            self.stages.append(CohortStage(step, reach, repellers, self.counted_set, ports))

    def release(self) -> None:
        """Break the cycles between its stages, their views and groups: nothing is placed any more.

        Disruption places pods thousands of times, and cycles would only be found by searching all
        objects for them.
        """
        for stage in self.stages:
            stage.release()
        self.stages = []
        self.counted, self.repelling = [], []
        self.recorded, self.recorded_repelling = [], []

    @property
    def may_fit_later(self) -> bool:
        """Whether placing another pod may open a domain for these."""
        return not all(stage.only_fills_up for stage in self.stages)


def _decisive(topology: Topology, repelled: list[Group]) -> list[Group]:
    """Return the groups that decide where others repel pods: one that leaves no domain is enough.

    Nothing has the label of such a group, and a tenant may repel by any number of such labels.
    """
    without_domain = next((group for group in repelled if not topology.may_count(group)), None)
    return repelled if without_domain is None else [without_domain]


def cohorts_of(
    shape: Shape, pods: Sequence[Pod], is_guarded: Callable[[Pod], bool] | None
) -> list[Cohort]:
    """Return the cohorts of alike pods: those that are guarded and the others, without empty ones.

    None guards no pod.
    """
    if is_guarded is None:
        return [Cohort(shape, pods, guarded=False)] if pods else []
    rows: tuple[list[Pod], list[Pod]] = ([], [])
    for pod in pods:
        rows[is_guarded(pod)].append(pod)
    return [
        Cohort(shape, row, guarded=flag)
        for row, flag in zip(rows, (False, True), strict=True)
        if row
    ]


class CohortView:
    """What a stage allows at this moment, independent of any node.

    ``open`` are the open domains by label; ``hopeless`` is whether some rule leaves none. Narrowed
    spaces are cached, because many nodes share one; ``closed`` are the spaces found so far that
    cannot take the pods now.
    """

    __slots__ = ("_spaces", "closed", "cohort", "demands", "hopeless", "open", "stage")

    def __init__(self, cohort: Cohort, stage: CohortStage, demands: Demands) -> None:
        self.cohort = cohort
        self.stage = stage
        self.demands = demands
        self.open: list[OpenDomains] = intersect_by_label(self._open_domains())
        self.hopeless = any(not domains.members for domains in self.open)
        self._spaces: dict[Space, tuple[tuple[Space, ...], ...]] = {}
        self.closed: set[Space] = set()

    def _open_domains(self) -> Iterator[OpenDomains]:
        """Yield what each rule opens; what others open does not matter if one of them opens none.

        A tenant may repel its pods by as many labels as it likes, most of which no node has.
        """
        stage, counted, strict = self.stage, self.cohort.counted_set, self.stage.step.strict
        for key, repelling in stage.repelled_by_key.items():
            groups = [restriction.group for restriction in repelling]
            found = unrepelled_domains(groups, strict.get(key), stage.reach[repelling[0]])
            yield found
            if not found.members:
                return
        for own in stage.by_domain:
            if not own.rule.inverse:
                allowed = strict.get(own.key)
                found = own.open_domains(own.group in counted, allowed, stage.reach[own])
                yield found
                if not found.members:
                    return

    def room_on(self, host: str) -> int:
        """Return how many of the pods the rules about hosts allow.

        A host that one rule closes is not checked any further. Of the rules that repel the pods,
        only those of pods on this host are read: there may be as many as pods.
        """
        demand = self.stage.step.demand
        if demand.hostname is not None and not demand.hostname.has(host):
            return 0
        room = _UNLIMITED
        counted, strict = self.cohort.counted_set, self.stage.step.strict
        for own in self.stage.own_by_host:
            allowed = strict.get(own.key) if own.kind is RuleKind.AFFINITY else None
            room = min(room, own.room_on_host(host, own.group in counted, allowed))
            if not room:
                return 0
        at_host = self.stage.repellers.get(host) if self.stage.repelled else None
        return 0 if at_host and not self.stage.repelled.isdisjoint(at_host) else room

    def is_closed(self, host: str) -> bool:
        """Return whether a rule leaves no room on a host, now and for the rest of the pass.

        Only an affinity may open a host again: the counts of a pass never decrease.
        """
        if self.stage.closing is None:
            return False
        limits, repelled = self.stage.closing
        for group, most in limits:
            if group.counts.get(host, 0) > most:
                return True
        at_host = self.stage.repellers.get(host) if repelled else None
        return bool(at_host) and not repelled.isdisjoint(at_host or ())

    def spaces(self, space: Space) -> tuple[tuple[Space, ...], ...]:
        """Return what a new node of ``space`` becomes with one of the pods, best first.

        There is an entry for each possible alternative of the volumes, and none if no alternative
        is possible. Each entry has the spaces that are equally good under the topology rules.
        """
        known = self._spaces.get(space)
        if known is None:
            known = self._spaces[space] = tuple(self._narrow_space(space))
            if not known:
                self.closed.add(space)
        return known

    def _narrow_space(self, space: Space) -> Iterable[tuple[Space, ...]]:
        base = space.narrow(self.stage.step.demand)
        if base is None:
            return
        shape = self.cohort.shape
        fits = space.fitting_types(shape.requests)
        if shape.devices is not None:
            fits &= space.device_types(shape.devices)
        for demand in self.cohort.shape.volume_demands or (self.demands.none,):
            if not demand.allows_new_host:
                continue
            narrowed = base.narrow(demand)
            equals = [narrowed] if narrowed is not None and narrowed.mask else []
            for domains in self.open:
                equals = [
                    found
                    for known in equals
                    for found in self._narrow_to_domains(known, domains, fits)
                ]
            if equals:
                yield tuple(equals)

    def _narrow_to_domains(self, space: Space, domains: OpenDomains, fits: int) -> list[Space]:
        """Return the space in the first tier of open domains with an available type of ``fits``."""
        known = space.requirements.get(domains.key)
        for tier in domains.tiers:
            options = [d for d in tier if known is None or known.has(d)]
            values = [frozenset((d,)) for d in options] if domains.pins else [frozenset(options)]
            narrowed = [space.narrow(self.demands.one_of(domains.key, v)) for v in values if v]
            found = [n for n in narrowed if n is not None and n.mask & fits]
            if found:
                return found
        return []
