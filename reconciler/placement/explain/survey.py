"""Evaluate every existing node and every NodePool for one pod that is placed alone.

A pass stops at the first node that a pod fits. This evaluates all of them, to show the alternatives
and which filter excluded the types of each NodePool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reconciler.catalog.table import OfferingClass, TypeTable
from reconciler.model.karpenter.labels import INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.requirements import Requirement
from reconciler.model.resources import Resources
from reconciler.placement.explain.reasons import Explainer, Funnel, filters_of
from reconciler.placement.nodes.claims import OpenClaim
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.pods.cohort import Cohort, CohortView
from reconciler.placement.question import Rejection
from reconciler.placement.solve import PlacementPass

Filters = tuple[tuple[str, int], ...]
"""The filters in evaluation order, each with the number of types left."""


@dataclass(frozen=True, slots=True)
class PricedOffering:
    """An offering that could be launched, with its price in USD an hour."""

    instance_type: str
    zone: str
    capacity_type: str
    price: float


@dataclass(frozen=True, slots=True)
class PoolVerdict:
    """The verdict of one NodePool on the pod: the cheapest launch, or the first rejection."""

    node_pool: str
    filters: Filters
    rejection: Rejection | None = None
    cheapest: PricedOffering | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """Every option for one pod that is placed alone.

    ``nodes`` are the existing nodes that it fits, in the order in which they are tried, out of
    ``nodes_total``; ``nodes_suited`` counts those with suitable labels and taints. ``dropped`` are
    the preferences that it had to drop to fit anywhere.
    """

    nodes: tuple[str, ...]
    nodes_suited: int
    nodes_total: int
    pools: tuple[PoolVerdict, ...]
    dropped: tuple[str, ...] = ()


def survey(
    placement_pass: PlacementPass, templates: Sequence[PoolTemplate], cohort: Cohort
) -> Survey:
    """Return the options for the one pod of ``cohort`` in a pass that has not placed anything yet.

    The pod drops one preference after another until it fits. If it never does, the result is the
    one without preferences.
    """
    explainer = Explainer(placement_pass, templates)
    found: Survey | None = None
    for index, stage in enumerate(cohort.stages):
        view = CohortView(cohort, stage, placement_pass.demands)
        names = tuple(
            placement_pass.nodes.nodes.rows[i].name
            for i in placement_pass.accepting_nodes(cohort, view)
        )
        pools = tuple(_pool_verdict(placement_pass, explainer, view, t) for t in templates)
        found = Survey(
            nodes=names,
            nodes_suited=_count_suitable_nodes(placement_pass, view),
            nodes_total=placement_pass.nodes.open.bit_count(),
            pools=pools,
            dropped=tuple(step.dropped for step in cohort.shape.steps[1 : index + 1]),
        )
        if names or any(pool.cheapest for pool in pools):
            break
    assert found is not None, "a pod that can be read has a step"
    return found


def _count_suitable_nodes(placement_pass: PlacementPass, view: CohortView) -> int:
    step, use = view.stage.step, placement_pass.nodes
    return (use.open & use.nodes.suitable_nodes(step.demand, step.tolerations)).bit_count()


def _pool_verdict(
    placement_pass: PlacementPass, explainer: Explainer, view: CohortView, template: PoolTemplate
) -> PoolVerdict:
    catalog_size = ("catalog", len(template.table))
    allowed = placement_pass.limits.allowed_types(template)
    claim = OpenClaim(template, "new node")
    if template.types and view.room_on(claim.host) > 0:
        found = placement_pass.fit(view, claim, allowed, opening=True)
        if found.space is not None:
            left = Funnel(view, template, allowed, placement_pass.nodes.network).types_left()
            price = cheapest_offering(template.table, found.space.offers, found.mask)
            return PoolVerdict(template.name, (catalog_size, *left), cheapest=price)
    rejection = explainer.pool_rejection(view, template)
    left = filters_of(rejection.facts)
    if len(left) < 2:
        stopped_by = str(rejection.facts.get("label") or rejection.facts.get("taint") or "")
        left = (
            ("NodePool", template.types.bit_count()),
            *([(stopped_by, 0)] if stopped_by else ()),
        )
    return PoolVerdict(template.name, (catalog_size, *left), rejection=rejection)


def cheapest_offering(
    table: TypeTable, offers: tuple[OfferingClass, ...], mask: int
) -> PricedOffering | None:
    """Return the cheapest offering of the types in ``mask`` among ``offers``, ties by name."""
    for index in table.order_by_price(offers):
        if mask >> index & 1:
            priced = [(o.prices[index], i) for i, o in enumerate(offers) if index in o.prices]
            if not priced:
                return None
            price, at = min(priced)
            zone = offers[at].requirements.get(ZONE)
            where = zone.any_value() if zone is not None else ""
            return PricedOffering(table.names[index], where, offers[at].capacity_type, price)
    return None


def claim_filters(
    template: PoolTemplate, requirements: Mapping[str, Requirement], requests: Resources, total: int
) -> Filters:
    """Return how a NodeClaim's types were filtered down to the ``total`` that it allows.

    ``requirements`` are the claim's: those of its NodePool first, then those added by its pods.
    Filters that did not exclude any type are left out.
    """
    table = template.table
    space: Space = template.space
    mask = table.types_meeting({})
    steps: list[tuple[str, int]] = [("catalog", len(table))]
    for source, items in (("NodePool", space.requirements), ("pods", requirements)):
        for wanted in (items[key] for key in sorted(items) if key != INSTANCE_TYPE):
            left = mask & table.types_matching(wanted)
            if left != mask:
                steps.append((f"{source}: {wanted}", left.bit_count()))
            mask = left
    offered = mask & table.usable
    if offered != mask:
        steps.append(("available offerings", offered.bit_count()))
    fits = offered & table.fitting_types(requests)
    if fits != offered:
        steps.append(("resources", fits.bit_count()))
    if total != fits.bit_count():
        steps.append(("offerings, DaemonSets and limits", total))
    return tuple(steps)
