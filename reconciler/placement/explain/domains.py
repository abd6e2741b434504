"""Why a rule about other pods leaves a NodePool no domain, and what would leave it one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from reconciler.model.karpenter.labels import ZONE
from reconciler.model.kubernetes.taint import untolerated_taints
from reconciler.model.text.counting import format_list
from reconciler.placement.nodes.space import Demands
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.pods.cohort import CohortView
from reconciler.placement.question import Rejection
from reconciler.placement.topology.groups import Restriction
from reconciler.placement.topology.rules import RuleKind

_COUNTS_SHOWN: Final = 10

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


def rule_rejection(
    view: CohortView, template: PoolTemplate, templates: Iterable[PoolTemplate], demands: Demands
) -> Rejection | None:
    """Return the rule about other pods that leaves no domain which the pool can serve.

    ``templates`` are all NodePools.
    """
    if view.spaces(template.space):
        return None
    base = template.space.narrow(view.stage.step.demand)
    if base is None or not base.mask:
        return None
    restriction = _excluding_rule(view, template)
    if restriction is None:
        return None
    found = restriction.group.counts_for(view.stage.reach[restriction])
    listed = (f"{domain}: {count}" for domain, count in sorted(found.items()))
    counts = format_list(listed, _COUNTS_SHOWN) or "no domain"
    hint = _spread_hint(restriction, found, view, template, templates, demands)
    rule = restriction.rule
    return Rejection(
        _CODES[rule.kind],
        f"{_SENTENCES[rule.kind].format(key=rule.key, skew=rule.max_skew)} "
        f"in NodePool {template.name} ({counts}){hint}",
        template.name,
        {"label": rule.key, "rule": str(rule.kind), "counts": counts},
    )


def _spread_hint(
    restriction: Restriction,
    counts: Mapping[str, int],
    view: CohortView,
    template: PoolTemplate,
    templates: Iterable[PoolTemplate],
    demands: Demands,
) -> str:
    """Return what to do about a spread that counts domains in which the pod cannot be placed."""
    if restriction.kind is not RuleKind.SPREAD:
        return ""
    least = restriction.rule.min_domains or 0
    if len(counts) < least:
        return f"; minDomains is {least}, so a domain without pods is assumed: lower it"
    return (
        _unserved_hint(restriction, counts, template, demands) if restriction.key == ZONE else ""
    ) or _policy_hint(restriction, counts, view, templates, demands)


def _policy_hint(
    restriction: Restriction,
    counts: Mapping[str, int],
    view: CohortView,
    templates: Iterable[PoolTemplate],
    demands: Demands,
) -> str:
    """Return the policy that leaves out domains which only NodePools have that refuse the pod.

    Kubernetes counts nodes whose taints a pod does not tolerate, unless the spread says otherwise.
    """
    step, fewest = view.stage.step, min(counts.values(), default=0)
    tainted, others, reachable = set[str](), set[str](), set[str]()
    for pool in templates:
        tolerated = not untolerated_taints(pool.taints, step.tolerations)
        selected = pool.space.narrow(step.demand)
        for domain in (d for d, count in counts.items() if count == fewest):
            wanted = demands.one_of(restriction.key, frozenset((domain,)))
            space = pool.space.narrow(wanted)
            if space is None or not space.mask & pool.table.usable:
                continue
            if not tolerated:
                tainted.add(domain)
            elif selected is None or selected.narrow(wanted) is None:
                others.add(domain)
            else:
                reachable.add(domain)
    rule = restriction.rule
    ignores_affinity = rule.node_filter is None or rule.node_filter.terms is None
    found, only_others = tainted - others - reachable, others - tainted - reachable
    if found and rule.tolerations is None:
        return _honor("nodeTaintsPolicy", found, "only tainted NodePools have")
    if only_others and ignores_affinity:
        whose = "only NodePools have that the pod does not select"
        return _honor("nodeAffinityPolicy", only_others, whose)
    return ""


def _honor(policy: str, domains: Iterable[str], whose: str) -> str:
    counted = ", ".join(sorted(domains))
    return f"; it counts {counted}, which {whose}: set {policy}: Honor in the constraint"


def _unserved_hint(
    restriction: Restriction, counts: Mapping[str, int], template: PoolTemplate, demands: Demands
) -> str:
    """Return what to do about empty domains that a NodePool allows and has no offering for."""
    known = template.space.requirements.get(restriction.key)
    unserved = []
    for domain in sorted(d for d, count in counts.items() if not count):
        if known is None or known.has(domain):
            space = template.space.narrow(demands.one_of(restriction.key, frozenset((domain,))))
            if space is None or not space.mask & template.table.usable:
                unserved.append(domain)
    if not unserved:
        return ""
    return (
        f"; none of its instance types is offered in {', '.join(unserved)}: leave it out in "
        "spec.requirements"
    )


def _excluding_rule(view: CohortView, template: PoolTemplate) -> Restriction | None:
    """Return the first rule that alone excludes the pool; if there is none, the first of all."""
    strict = view.stage.step.strict
    for restriction in view.stage.by_domain:
        counted = restriction.group in view.cohort.counted_set
        reach = view.stage.reach[restriction]
        open_domains = restriction.open_domains(counted, strict.get(restriction.key), reach)
        known = template.space.requirements.get(restriction.key)
        if not any(known is None or known.has(d) for d in open_domains.members):
            return restriction
    return next(iter(view.stage.by_domain), None)
