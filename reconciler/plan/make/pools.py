"""What each NodePool may launch: the catalog as its class resolves it and overlays price it.

Previews and the engine share it, so that both use the same types at the same prices.

Preferences in the annotations of NodePools become the NodeOverlays that they stand for. They need
no feature gate and no object in the cluster. An overlay of the same name in git, as Veneer would
have written it, takes precedence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.catalog.adjusted.preference import (
    ANNOTATION,
    Preference,
    format_percent_adjustment,
    is_valid_adjustment,
    overlay_name,
    overlay_of,
    parse_preferences,
)
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import ClassFacts, class_facts
from reconciler.catalog.table import indices, table_of
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.karpenter.labels import NODECLASS
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import MEMORY, NODES
from reconciler.model.settings import FeatureGate, MinValuesPolicy, Settings
from reconciler.model.text.counting import format_count
from reconciler.placement.explain.exclusion import no_types_rejection
from reconciler.placement.explain.reasons import format_amount
from reconciler.placement.nodes.space import SpaceBook
from reconciler.placement.nodes.template import PoolTemplate, RemainingLimits
from reconciler.placement.question import LaunchPool, Rejection
from reconciler.source.resource import AUTO_MODE

_AUTO_MODE_CODE: Final = "auto-mode"
STATIC_CODE: Final = "StaticNodePool"
"""The code of the reason why a static NodePool launches nothing for a pod."""

if TYPE_CHECKING:
    from reconciler.catalog.adjusted.adjustment import RefusedOffering
    from reconciler.catalog.commitments.coverage import Cover

_WEIGHT_MAX = 10_000

NO_INSTANCE_TYPES: Final = "no-instance-types"
"""The code of the finding on a NodePool whose requirements exclude every instance type."""


def preference_overlays(
    pools: Iterable[NodePool], stated: Collection[str]
) -> tuple[list[NodeOverlay], list[PlanFinding]]:
    """Return the overlays of preferences, and what is wrong with others.

    ``stated`` are the names of the NodeOverlays in git.
    """
    overlays: dict[str, NodeOverlay] = {}
    findings: list[PlanFinding] = []
    for pool in pools:
        found, errors = parse_preferences(pool.name, pool.metadata.annotations)
        findings += (
            _rejected_preference(pool.name, f"{e.annotation}: {e.message}") for e in errors
        )
        for preference in found:
            name = overlay_name(pool.name, preference.number)
            if name in stated:
                continue
            why = _preference_problem(preference, is_taken=name in overlays)
            if why:
                findings.append(
                    _rejected_preference(pool.name, f"{ANNOTATION}{preference.number}: {why}")
                )
                continue
            overlays[name] = overlay_of(preference)
            findings += _rounding_findings(preference)
    return list(overlays.values()), findings


def _preference_problem(preference: Preference, *, is_taken: bool) -> str:
    """Return why a preference cannot become an overlay, empty if it can."""
    if is_taken:
        return "duplicate number"
    if preference.number > _WEIGHT_MAX:
        return f"the number must be at most {_WEIGHT_MAX}"
    if not is_valid_adjustment(format_percent_adjustment(preference.adjustment)):
        return "the adjustment must not be 0% or below -100%"
    return ""


def _rejected_preference(pool: str, why: str) -> PlanFinding:
    message = f"NodePool {pool}: a preference is not applied: {why}"
    return PlanFinding(severity="warning", code="preference-invalid", message=message)


def _rounding_findings(preference: Preference) -> Iterator[PlanFinding]:
    text = format_percent_adjustment(preference.adjustment)
    if float(text.removesuffix("%")) != preference.adjustment:
        yield PlanFinding(
            severity="info",
            code="preference-rounded",
            message=f"NodePool {preference.node_pool}: {ANNOTATION}{preference.number} is rounded"
            f" to {text}, because preferences are whole percentages",
        )


ClassKey = tuple[str, str]
"""Kind and name of a node class."""

MemoryByType = tuple[tuple[str, int], ...]
"""Memory by instance type, in thousandths of a byte, sorted by type."""


class PoolTypes(msgspec.Struct, frozen=True):
    """The NodePools with their types, by name.

    ``every`` pool has types, so that its nodes can be priced; only the ``ready`` ones may launch.
    ``unready`` has the reason why each of the others, and each static one, launches nothing for
    any pod.
    """

    every: tuple[LaunchPool, ...] = ()
    ready: tuple[LaunchPool, ...] = ()
    findings: tuple[PlanFinding, ...] = ()
    by_name: Mapping[str, LaunchPool] = {}
    unready: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What decides what the ``pools`` may launch.

    ``any_class`` treats every class as known and ready unless its own status differs: a catalog
    file lists resolved types. ``unready`` are node classes that are not ready in the cluster,
    whatever their kind. ``unavailable`` offerings cannot be launched now. ``memory`` is the
    measured memory of nodes, by the name of their class; ``covers`` are the commitments with unused
    capacity.
    """

    pools: Sequence[NodePool]
    classes: Mapping[str, EC2NodeClass]
    overlays: Sequence[NodeOverlay]
    catalog: Catalog
    settings: Settings
    any_class: bool = False
    unready: Collection[ClassKey] = ()
    unavailable: Sequence[RefusedOffering] = ()
    memory: Mapping[str, MemoryByType] = field(default_factory=dict)
    covers: Sequence[Cover] = ()

    def resolve_catalogs(self, pools: Iterable[NodePool], catalog: Catalog) -> dict[str, Catalog]:
        """Return each pool's catalog; pools with equal classes share one, and so its tables."""
        by_facts: dict[ClassFacts | None, Catalog] = {None: catalog}
        resolved: dict[str, Catalog] = {}
        for pool in pools:
            node_class = node_class_of(pool, self.classes)
            facts = None
            if node_class is not None:
                memory = self.memory.get(node_class.name, ())
                facts = class_facts(node_class, self.settings, memory)
            if facts is not None and facts not in by_facts:
                by_facts[facts] = catalog.for_node_class(facts)
            resolved[pool.name] = by_facts[facts]
        return resolved


def pool_types(facts: LaunchFacts) -> PoolTypes:
    """Return what the NodePools may launch."""
    ordered = sorted(facts.pools, key=lambda p: p.name)
    settings, unavailable = facts.settings, facts.unavailable
    resolved = facts.resolve_catalogs(ordered, _without_unavailable(facts.catalog, unavailable))
    if facts.covers:
        resolved = _with_commitments(resolved, facts.covers)
    catalogs, findings = _apply_overlays(ordered, resolved, list(facts.overlays), settings)
    every = {pool.name: LaunchPool(pool, catalogs[pool.name]) for pool in ordered}
    ready: list[LaunchPool] = []
    not_ready: list[Rejection] = []
    for pool in ordered:
        finding = _unready_finding(pool, facts)
        if finding is None:
            ready.append(every[pool.name])
            if pool.is_static:
                not_ready.append(_static_rejection(pool, settings))
            continue
        not_ready.append(Rejection("NodePoolNotReady", finding.message, pool.name))
        if finding.code != _AUTO_MODE_CODE:  # the fleet's own finding names all of them at once
            findings.append(finding)
    findings += map(_no_types_finding, _empty_pools(ready, facts))
    limited = (pool for pool in ready if pool.node_pool.spec.limits)
    findings += filter(None, map(_limit_finding, _templates(limited, settings)))
    return PoolTypes(tuple(every.values()), tuple(ready), tuple(findings), every, tuple(not_ready))


class TypesCache:
    """The types of the last two calls, with commitments and without them.

    NodeOverlays and unavailable offerings are then applied once, and tables of types are built
    once.
    """

    def __init__(self) -> None:
        self._last: list[tuple[LaunchFacts, PoolTypes]] = []

    def get(self, facts: LaunchFacts) -> PoolTypes:
        """Return what ``pool_types`` returns, the same object for equal facts."""
        for known, types in self._last:
            if known == facts:
                return types
        types = pool_types(facts)
        self._last = [(facts, types), *self._last[:1]]
        return types


def node_class_of(pool: NodePool, classes: Mapping[str, EC2NodeClass]) -> EC2NodeClass | None:
    """Return the EC2NodeClass that a pool names, None if unknown or of another kind."""
    ref = pool.spec.template.spec.node_class_ref
    return classes.get(ref.name) if ref.label[0] == NODECLASS else None


def _without_unavailable(catalog: Catalog, unavailable: Collection[RefusedOffering]) -> Catalog:
    if not unavailable:
        return catalog
    from reconciler.catalog.adjusted.adjustment import without_unavailable

    return without_unavailable(catalog, unavailable)


def _with_commitments(
    resolved: Mapping[str, Catalog], covers: Sequence[Cover]
) -> dict[str, Catalog]:
    """Return the catalogs with commitments; pools that shared one still do."""
    from reconciler.catalog.commitments.coverage import with_commitments

    made: dict[int, Catalog] = {}
    for catalog in resolved.values():
        if id(catalog) not in made:
            made[id(catalog)] = with_commitments(catalog, covers)
    return {name: made[id(catalog)] for name, catalog in resolved.items()}


def _empty_pools(ready: Sequence[LaunchPool], facts: LaunchFacts) -> list[PoolTemplate]:
    """Return the NodePools for which no instance type is left, even if all were available."""
    empty = _pools_without_types(ready, facts.settings)
    if empty and facts.unavailable:  # EC2 capacity comes back; this is not an error of the NodePool
        offered = facts.resolve_catalogs([pool.node_pool for pool in empty], facts.catalog)
        complete = [LaunchPool(pool.node_pool, offered[pool.name]) for pool in empty]
        return _pools_without_types(complete, facts.settings)
    return empty


def _apply_overlays(
    pools: list[NodePool],
    resolved: Mapping[str, Catalog],
    overlays: list[NodeOverlay],
    settings: Settings,
) -> tuple[Mapping[str, Catalog], list[PlanFinding]]:
    preferences, findings = _pool_preferences(pools, overlays)
    if overlays and not settings.gate(FeatureGate.NODE_OVERLAY):
        names = ", ".join(o.name for o in overlays)
        message = f"NodeOverlays are not applied because their feature gate is off: {names}"
        hint = "set featureGates.NodeOverlay=true"
        findings.append(
            PlanFinding(severity="warning", code="overlay-gate-off", message=message, hint=hint)
        )
        overlays = []
    if not overlays and not preferences:
        return resolved, findings
    from reconciler.catalog.adjusted.overlay import OverlayPool, OverlayVerdict, evaluate_overlays

    asked = [OverlayPool(p.name, p.spec.template.metadata.labels, resolved[p.name]) for p in pools]
    evaluation = evaluate_overlays(asked, [*overlays, *preferences])
    own = {overlay.name for overlay in preferences}
    for found in evaluation.findings:
        if found.verdict is not OverlayVerdict.ACCEPTED:
            what = "preference" if found.name in own else "NodeOverlay"
            code = f"overlay-{found.verdict.name.lower()}"
            message = f"{what} {found.name} is not applied: {found.message}"
            findings.append(PlanFinding(severity="warning", code=code, message=message))
    return evaluation.catalogs, findings


def _pool_preferences(
    pools: Iterable[NodePool], overlays: Iterable[NodeOverlay]
) -> tuple[list[NodeOverlay], list[PlanFinding]]:
    """Return the overlays of the pools' preferences, and what is wrong with others."""
    prefix = "veneer.io/preference."
    annotated = [p for p in pools if any(a.startswith(prefix) for a in p.metadata.annotations)]
    if not annotated:
        return [], []

    return preference_overlays(annotated, {overlay.name for overlay in overlays})


def _pools_without_types(pools: Iterable[LaunchPool], settings: Settings) -> list[PoolTemplate]:
    """Return the NodePools that no instance type satisfies, so that they can launch nothing."""
    return [template for template in _templates(pools, settings) if not template.types]


def _templates(pools: Iterable[LaunchPool], settings: Settings) -> Iterator[PoolTemplate]:
    best_effort = settings.min_values_policy is MinValuesPolicy.BEST_EFFORT
    for pool in pools:
        book = SpaceBook(table_of(pool.types))
        yield PoolTemplate(pool.node_pool, book, (), best_effort=best_effort)


def _no_types_finding(template: PoolTemplate) -> PlanFinding:
    message = no_types_rejection(template).message
    return PlanFinding(severity="warning", code=NO_INSTANCE_TYPES, message=message)


def _limit_finding(template: PoolTemplate) -> PlanFinding | None:
    """Return that the limits of a NodePool are below its smallest node, None if they are not.

    A limit of zero is how one closes a NodePool.
    """
    limits, types = template.node_pool.limits(), template.types
    if not types or 0 in limits.values():
        return None
    if RemainingLimits([template], (), ()).allowed_types(template):
        return None
    table = template.table
    for name, amount in sorted(limits.items()):
        if name == NODES or types & table.capacity_at_most(name, amount):
            continue
        least = min(table.types[i].capacity.get(name, 0) for i in indices(types))
        given = template.node_pool.spec.limits[name]
        message = (
            f"NodePool {template.name} cannot launch nodes: its limits.{name} is {given}, and the "
            f"smallest of its instance types has {format_amount(name, least)}"
        )
        hint = "raise the limit"
        if name == MEMORY and str(given).isdigit():
            hint = f"a number without a unit is bytes: did you mean {given}Gi?"
        return PlanFinding(
            severity="warning",
            code="limit-below-node",
            message=message,
            path=f"spec.limits.{name}",
            hint=hint,
        )
    return None


def _unready_finding(pool: NodePool, facts: LaunchFacts) -> PlanFinding | None:
    """Return why the pool cannot launch, None if it can."""
    ref = pool.spec.template.spec.node_class_ref
    node_class = node_class_of(pool, facts.classes)
    is_unready = (ref.kind, ref.name) in facts.unready
    if is_unready or (node_class is not None and not node_class.is_ready):
        return _cannot_launch_finding(
            pool, "nodeclass-not-ready", f"{ref.kind} {ref.name} is not ready"
        )
    if ref.group == AUTO_MODE:
        why = "AWS launches its nodes (EKS Auto Mode), and a plan does not forecast them"
        return _cannot_launch_finding(pool, _AUTO_MODE_CODE, why)
    if node_class is None and not facts.any_class:
        missing = f"{ref.kind or 'node class'} {ref.name} not found in the fleet folder"
        return _cannot_launch_finding(pool, "missing-nodeclass", missing)
    if not pool.is_ready:
        return _cannot_launch_finding(pool, "nodepool-not-ready", "its status is not ready")
    return None


def _static_rejection(pool: NodePool, settings: Settings) -> Rejection:
    """Return why no pod makes a static NodePool launch a node."""
    why = (
        f"it keeps its {format_count(pool.spec.replicas or 0, 'node')}, whatever pods wait: raise "
        "spec.replicas, or add a NodePool without it"
        if settings.gate(FeatureGate.STATIC_CAPACITY)
        else "featureGates.StaticCapacity is false, so it launches no nodes: turn it on, or remove "
        "spec.replicas"
    )
    return Rejection(STATIC_CODE, f"NodePool {pool.name} is static: {why}", pool.name)


def _cannot_launch_finding(pool: NodePool, code: str, why: str) -> PlanFinding:
    return PlanFinding(
        severity="warning", code=code, message=f"NodePool {pool.name} cannot launch nodes: {why}"
    )
