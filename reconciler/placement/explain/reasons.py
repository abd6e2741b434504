"""Explain why a pod cannot be scheduled, with one reason for each NodePool.

Scheduling only finds that a pod does not fit. The reason is computed afterwards, for such pods
only, by trying each NodePool again, filter by filter, in scheduling order (Karpenter
``nodeclaim.go`` ``CanAdd``). The first filter that leaves nothing is the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.model.karpenter.requirements import Requirement
from reconciler.model.kubernetes.taint import untolerated
from reconciler.model.resources import NODES
from reconciler.model.text.nearest import nearest
from reconciler.placement.explain.funnel import Funnel, amount_text
from reconciler.placement.nodes.claims import OpenClaim, fit
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.pods.cohort import Cohort, CohortView
from reconciler.placement.question import Rejection
from reconciler.placement.solve import PlacementPass
from reconciler.placement.topology.groups import Group
from reconciler.placement.topology.rules import RuleKind

NO_NODE_POOLS = Rejection(
    "NoNodePools", "no dynamic NodePool is ready: add one, or check the status of the existing ones"
)
_COUNTS_SHOWN = 10


class Explainer:
    """Explains the unschedulable cohorts of one pass.

    ``templates`` are all requested NodePools, including those without any instance type.
    """

    def __init__(self, solving: PlacementPass, templates: Sequence[PoolTemplate]) -> None:
        self._solving = solving
        self._templates = templates

    def why_not(self, cohort: Cohort) -> tuple[Rejection, ...]:
        """Return a rejection for each NodePool, in the order in which they are tried.

        Each applies to the pod after it has dropped everything that it can drop.
        """
        if not self._templates:
            return (NO_NODE_POOLS,)
        view = CohortView(cohort, cohort.stages[-1], self._solving.demands)
        waits = cohort in self._solving.deferred
        return tuple(self.why_not_of(view, t, waits=waits) for t in self._templates)

    def why_not_of(
        self, view: CohortView, template: PoolTemplate, *, waits: bool = False
    ) -> Rejection:
        """Return the first filter by which one NodePool rejects the pods of ``view``.

        ``waits`` is whether the pass deferred them until reserved capacity is available.
        """
        if not template.types:
            return _no_types(template)
        for check in (_taints, _requirements, _volumes):
            found = check(view, template)
            if found is not None:
                return found
        found = self._limits(template) or _rules(view, template)
        if found is not None:
            return found
        if waits:
            return self._reserved(view, template)
        return Funnel(view, template, self._solving.limits.allowed(template)).rejection()

    def _limits(self, template: PoolTemplate) -> Rejection | None:
        if self._solving.limits.allowed(template):
            return None
        left = self._solving.limits.left(template) or {}
        if left.get(NODES, 1) <= 0:
            return Rejection(
                "NodeLimitReached",
                f"NodePool {template.name} has reached its node limit: raise spec.limits.nodes",
                template.name,
            )
        texts = {name: amount_text(name, amount) for name, amount in left.items()}
        shown = ", ".join(f"{text} {name}" for name, text in texts.items())
        return Rejection(
            "LimitReached",
            f"no instance type of NodePool {template.name} fits into its remaining limits "
            f"({shown}): raise spec.limits",
            template.name,
            {f"left {name}": text for name, text in texts.items()},
        )

    def _reserved(self, view: CohortView, template: PoolTemplate) -> Rejection:
        claim = OpenClaim(template, "new node")
        allowed = self._solving.limits.allowed(template)
        found = fit(view, claim, allowed, self._solving.reservations, opening=True)
        if found.must_wait:
            return Rejection(
                "ReservedCapacityTaken",
                f"nodes of this pass use all reserved capacity of NodePool {template.name}: "
                "the next pass tries again",
                template.name,
            )
        return Funnel(view, template, allowed).rejection()


def _no_types(template: PoolTemplate) -> Rejection:
    short = template.space.has_min_values and template.space.mask
    if short:
        return Rejection(
            "MinValuesUnmet",
            f"the instance types of NodePool {template.name} do not satisfy its minValues: "
            "lower minValues, or allow more types",
            template.name,
            {"types": template.space.mask.bit_count()},
        )
    return Rejection(
        "NoInstanceTypes",
        _what_excludes_all(template),
        template.name,
        {"types": len(template.table)},
    )


def _what_excludes_all(template: PoolTemplate) -> str:
    """Return the requirement that alone excludes all types, or the first at which none are left."""
    table, name = template.table, template.name
    requirements = template.space.requirements.values()
    for wanted in requirements:
        if not table.matching(wanted):
            near = _nearest(wanted, table.values(wanted.key))
            hint = f"; did you mean {near}?" if near else ""
            return f"no instance type satisfies the requirement of NodePool {name}: {wanted}{hint}"
    left = table.all
    before: list[str] = []
    for wanted in requirements:
        if not left & table.matching(wanted):
            after = " and ".join(before)
            return (
                f"no instance type satisfies all requirements of NodePool {name}: none that has "
                f"{after} has {wanted}"
            )
        if left & ~table.matching(wanted):
            before.append(str(wanted))
        left &= table.matching(wanted)
    return (
        f"no instance type that NodePool {name} allows is offered in its zones and capacity types: "
        "allow more of them"
    )


def _nearest(wanted: Requirement, known: Iterable[str]) -> str | None:
    """Return the known value closest to one of the requested ones."""
    if wanted.complement:
        return None
    words = sorted(known)
    return next(filter(None, (nearest(value, words) for value in sorted(wanted.values))), None)


def _taints(view: CohortView, template: PoolTemplate) -> Rejection | None:
    missing = untolerated(template.taints, view.stage.step.tolerations)
    if not missing:
        return None
    return Rejection(
        "TaintNotTolerated",
        f"does not tolerate the taint {missing[0]} of NodePool {template.name}: add a toleration",
        template.name,
        {"taint": str(missing[0])},
    )


def _requirements(view: CohortView, template: PoolTemplate) -> Rejection | None:
    demand = view.stage.step.demand
    if not demand.allows_new_host:
        return Rejection(
            "HostnameRequired",
            f"requires the host {demand.hostname}, which cannot be a new node",
            template.name,
        )
    conflict = template.space.requirements.first_conflict(
        demand.requirements, template.book.well_known
    )
    if conflict is None:
        return None
    facts = {"label": conflict.key, "wanted": str(conflict.wanted)}
    if conflict.existing is None:
        hint = f"; did you mean {conflict.suggestion}?" if conflict.suggestion else ""
        return Rejection(
            "LabelUnknown",
            f"requires the label {conflict.key}, which nodes of NodePool {template.name} do not "
            f"have: add it to spec.template.metadata.labels{hint}",
            template.name,
            facts,
        )
    if conflict.key == NODEPOOL:
        return Rejection(
            "OtherNodePool", f"requires another NodePool: {conflict.wanted}", template.name, facts
        )
    return Rejection(
        "RequirementsConflict",
        f"requires {conflict.wanted}, but NodePool {template.name} allows {conflict.existing}",
        template.name,
        {**facts, "allowed": str(conflict.existing)},
    )


def _volumes(view: CohortView, template: PoolTemplate) -> Rejection | None:
    base = template.space.narrowed(view.stage.step.demand)
    demands = view.cohort.shape.volume_demands
    if base is None or not demands:
        return None
    if any(d.allows_new_host and base.narrowed(d) is not None for d in demands):
        return None
    wanted = " or ".join(f"({d.hostname or d.requirements})" for d in demands)
    return Rejection(
        "VolumeUnreachable",
        f"its volumes can be attached only to nodes with {wanted}, which NodePool {template.name} "
        "and the pod do not both allow",
        template.name,
        {"volumes": wanted},
    )


def _rules(view: CohortView, template: PoolTemplate) -> Rejection | None:
    """Return the rule about other pods that leaves no domain which the pool can serve."""
    if view.spaces(template.space):
        return None
    base = template.space.narrowed(view.stage.step.demand)
    if base is None or not base.mask:
        return None
    groups = list(_closed(view, template))
    if not groups:
        return None
    group = groups[0]
    shown = sorted(group.counts.items())[:_COUNTS_SHOWN]
    counts = ", ".join(f"{domain}: {count}" for domain, count in shown) or "no domain"
    return Rejection(
        _CODES[group.kind],
        f"{_SENTENCES[group.kind].format(key=group.key, skew=group.rule.max_skew)} "
        f"in NodePool {template.name} ({counts})",
        template.name,
        {"label": group.key, "rule": str(group.kind), "counts": counts},
    )


_CODES = {
    RuleKind.SPREAD: "TopologySpread",
    RuleKind.AFFINITY: "PodAffinity",
    RuleKind.ANTI_AFFINITY: "PodAntiAffinity",
}
_SENTENCES = {
    RuleKind.SPREAD: "no {key} satisfies the topology spread with maxSkew {skew}",
    RuleKind.AFFINITY: "no {key} is certain to run a pod that its pod affinity selects",
    RuleKind.ANTI_AFFINITY: "no {key} is certain to be free of pods that anti-affinity excludes",
}


def _closed(view: CohortView, template: PoolTemplate) -> Iterator[Group]:
    """Yield the groups that alone exclude the pool; if there are none, all that apply."""
    strict = view.stage.step.strict
    alone = []
    for group in view.stage.by_domain:
        counted = group in view.cohort.counted_set
        open_domains = group.open_domains(counted, strict.get(group.key))
        known = template.space.requirements.get(group.key)
        if not any(known is None or known.has(d) for d in open_domains.members):
            alone.append(group)
    yield from alone or view.stage.by_domain
