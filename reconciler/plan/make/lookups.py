"""Findings on what decisions depend on and nobody looked up: what is absent is not «no»."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Final

from reconciler.model.decision.changes import Change
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    RESERVATION_ID,
    RESERVATION_TYPE,
    RESERVED,
    ZONE,
    ZONE_ID,
    normalize_label,
)
from reconciler.model.karpenter.nodeclass import EC2NodeClass, EC2NodeClassSpec
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.kubernetes.pod import Affinity, NodeAffinity, Pod, PodSpec
from reconciler.model.text.counting import format_count
from reconciler.placement.explain.exclusion import is_local_zone

if TYPE_CHECKING:
    from reconciler.plan.make.facts import Facts

_LOOKED_UP: Final = {
    "spec.amiSelectorTerms": ("amis", "images"),
    "spec.subnetSelectorTerms": ("subnets", "subnets"),
    "spec.securityGroupSelectorTerms": ("security_groups", "security groups"),
}
"""The selectors of a node class whose drift follows from what they find, and not from a hash."""

_LOOK_UP: Final = "plan with access to AWS, or run `reconciler lock`"
_LOOK_UP_TYPES: Final = "plan with access to AWS and --set aws.instanceTypes=live"


def selector_findings(
    changes: Iterable[Change],
    classes: Mapping[str, EC2NodeClass],
    pools: Iterable[NodePool] = (),
    nodes: Mapping[str, int] | None = None,
) -> Iterator[PlanFinding]:
    """Warn about changed selectors of node classes for which nothing was looked up.

    Whether nodes drift is then unknown, and a plan must not read as if they did not, unless another
    field makes all of them drift. ``nodes`` are how many nodes each of the ``pools`` has.
    """
    counts: Counter[str] = Counter()
    for pool in pools:
        counts[pool.spec.template.spec.node_class_ref.name] += (nodes or {}).get(pool.name, 0)
    for change in changes:
        node_class = classes.get(change.name)
        if change.kind != "EC2NodeClass" or change.op != "update" or node_class is None:
            continue
        if change.drifts:
            continue  # every node of the class is replaced, whatever it selects
        for selector, what in _unknown_selectors(change, node_class):
            yield PlanFinding(
                severity="warning",
                code="selection-unknown",
                message=f"EC2NodeClass {change.name} selects other {what}, which were not looked "
                f"up: {_nodes_at_most(counts[change.name])} that do not match them will be "
                "replaced, and this plan does not include that",
                path=selector,
                file=change.file,
                line=change.line,
                hint="plan with access to AWS, or run `reconciler lock` on both commits",
            )


def _nodes_at_most(number: int) -> str:
    return f"up to {format_count(number, 'node')}" if number > 1 else "nodes"


def _unknown_selectors(change: Change, node_class: EC2NodeClass) -> Iterator[tuple[str, str]]:
    """Yield each changed selector of which nothing was looked up, and what it selects."""
    for selector, (found, what) in _LOOKED_UP.items():
        is_changed = any(field.path.startswith(selector) for field in change.fields)
        if is_changed and not getattr(node_class.status, found):
            yield selector, what


def lookup_findings(facts: Facts) -> Iterator[PlanFinding]:
    """Report what decisions depend on and nobody looked up: what is absent is not «no».

    Each input has one finding: zone ids, capacity reservations, placement groups, subnets where
    pods have rules about zones, and local zones.
    """
    unread = list(_unread_pools(facts))
    if not unread:
        return
    wanted = _Wanted(facts.cluster.pending, unread)
    if ZONE_ID in wanted.values.keys() | wanted.topology_keys:
        yield _lookup_finding(
            "zone ids differ between accounts and were not looked up: the plan assumes those of "
            "the bundled data"
        )
    if wanted.reservations or any(starmap(_may_launch_reserved, unread)):
        yield _lookup_finding(
            "capacity reservations were not looked up: the plan uses none, where a plan with "
            "access to AWS may"
        )
    selects_groups = any(spec.placement_group_selector is not None for _, spec in unread)
    if selects_groups and facts.settings.placement_group is None:
        yield _lookup_finding(
            "placement groups were not looked up: the plan ignores what their strategy excludes"
        )
    if {ZONE, ZONE_ID} & wanted.topology_keys:
        yield _lookup_finding(
            "subnets were not looked up: the plan assumes one in every zone of the region"
        )
    zones = set(filter(is_local_zone, wanted.values.get(ZONE, ())))
    missing = sorted(zones.difference(facts.catalog.columns.offerings.zone)) if zones else []
    if missing:
        yield _lookup_finding(
            f"local and Wavelength zones are not in the bundled data: the plan launches no node in "
            f"{', '.join(missing)}",
            _LOOK_UP_TYPES,
        )


def _unread_pools(facts: Facts) -> Iterator[tuple[Requirements, EC2NodeClassSpec]]:
    """Yield the requirements of each NodePool, and its class, of which nothing was looked up."""
    for pool in facts.pools:
        node_class = facts.classes.get(pool.spec.template.spec.node_class_ref.name)
        if node_class is not None and not node_class.status.subnets:
            yield pool.requirements(), node_class.spec


def _may_launch_reserved(requirements: Requirements, spec: EC2NodeClassSpec) -> bool:
    """Return whether a class selects capacity reservations, and its NodePool allows them."""
    if not spec.capacity_reservation_selector_terms:
        return False
    return CAPACITY_TYPE not in requirements or requirements[CAPACITY_TYPE].has(RESERVED)


class _Wanted:
    """What pods and NodePools want of labels: the ``values`` by key, and keys of topologies."""

    def __init__(
        self, pods: Iterable[Pod], pools: Iterable[tuple[Requirements, EC2NodeClassSpec]]
    ) -> None:
        self.values: dict[str, set[str]] = {}
        self.topology_keys: set[str] = set()
        for requirements, _ in pools:
            self._add_requirements(requirements)
        for spec in {id(pod.spec): pod.spec for pod in pods}.values():
            self._add_spec(spec)

    @property
    def reservations(self) -> bool:
        """Whether capacity reservations are named."""
        return (
            RESERVED in self.values.get(CAPACITY_TYPE, ())
            or RESERVATION_ID in self.values
            or RESERVATION_TYPE in self.values
        )

    def _add_requirements(self, requirements: Requirements) -> None:
        for key, known in requirements.items():
            self._add(key, () if known.complement else known.values)

    def _add_spec(self, spec: PodSpec) -> None:
        for key, value in spec.node_selector.items():
            self._add(key, (value,))
        affinity = spec.affinity or Affinity()
        nodes = affinity.node_affinity or NodeAffinity()
        terms = [
            *spec.required_node_terms,
            *(preferred.preference for preferred in nodes.preferred),
        ]
        for expression in (e for term in terms for e in term.match_expressions):
            self._add(expression.key, expression.values if expression.operator == "In" else ())
        self.topology_keys.update(map(normalize_label, _topology_keys(spec)))

    def _add(self, key: str, values: Iterable[str]) -> None:
        self.values.setdefault(normalize_label(key), set()).update(values)


def _topology_keys(spec: PodSpec) -> Iterator[str]:
    """Yield the topologies of the rules that a pod has about other pods."""
    affinity = spec.affinity or Affinity()
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if side is not None:
            yield from (term.topology_key for term in side.required)
    yield from (constraint.topology_key for constraint in spec.topology_spread_constraints)


def _lookup_finding(message: str, hint: str = _LOOK_UP) -> PlanFinding:
    return PlanFinding(severity="info", code="not-looked-up", message=message, hint=hint)
