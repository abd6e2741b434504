"""What Karpenter does next, as one plan says it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reconciler.model.karpenter.prediction import CommandFacts, NodeFacts, Prediction
from reconciler.plan.value.nodes import LaunchReason, PlannedNodeClaim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reconciler.catalog.catalog import Catalog
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.plan.value.plan import Plan
    from reconciler.watch.observing import Prices


def prediction_of(plan: Plan, claims: Iterable[NodeClaim], prices: Prices) -> Prediction:
    """Return what a plan by Karpenter's rules predicts.

    ``claims`` are those of the cluster. Launches that replace nodes belong to their command.
    """
    from reconciler.watch.observing import facts_of_claim

    nodes = {(claim.status.node_name or claim.name): claim for claim in claims}
    planned = {claim.name: claim for claim in plan.node_claims}
    known = {name: facts_of_claim(claim, prices) for name, claim in nodes.items()}
    commands = tuple(
        CommandFacts(
            command.reason,
            tuple(sorted((_node(name, known) for name in command.nodes), key=lambda n: n.name)),
            tuple(_launch(planned[name]) for name in command.replacements if name in planned),
        )
        for command in plan.commands
        if not command.forceful
    )
    launches = tuple(
        _launch(claim) for claim in plan.node_claims if claim.reason in frozenset(LaunchReason)
    )
    return Prediction(plan.at, launches, commands)


def _node(name: str, known: Mapping[str, NodeFacts]) -> NodeFacts:
    return known.get(name) or NodeFacts("", "", "", "", None, name)


def _launch(claim: PlannedNodeClaim) -> NodeFacts:
    offering = claim.launch
    return NodeFacts(
        claim.node_pool,
        offering.instance_type,
        offering.zone,
        offering.capacity_type,
        offering.price,
    )


def prices_of(catalog: Catalog, claims: Iterable[NodeClaim]) -> Prices:
    """Return the prices of the instance types that run, in every zone and capacity type."""
    from reconciler.model.karpenter.labels import INSTANCE_TYPE

    names = {claim.metadata.labels.get(INSTANCE_TYPE, "") for claim in claims}
    found = (catalog.get(name) for name in sorted(names) if name)
    return {
        (kind.name, offering.zone, offering.capacity_type): offering.price
        for kind in found
        if kind is not None
        for offering in kind.offerings
    }
