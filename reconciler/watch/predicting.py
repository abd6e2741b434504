"""What Karpenter does next, as one plan says it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.karpenter.prediction import CommandFacts, NodeFacts, Prediction
from reconciler.plan.value.nodes import LaunchReason, PlannedNodeClaim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reconciler.catalog.catalog import Catalog
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.plan.value.actions import PlannedCommand
    from reconciler.plan.value.plan import Plan
    from reconciler.watch.observing import Prices


def prediction_of(plan: Plan, claims: Iterable[NodeClaim], prices: Prices) -> Prediction:
    """Return what a plan by Karpenter's rules predicts.

    ``claims`` are those of the cluster. Launches that replace nodes belong to their command.
    """
    from reconciler.watch.observing import facts_of_claim

    known = {claim.node_or_claim_name: facts_of_claim(claim, prices) for claim in claims}
    planned = {claim.name: _launch(claim) for claim in plan.node_claims}
    commands = tuple(
        _command(command, known, planned) for command in plan.commands if not command.forceful
    )
    launches = tuple(
        planned[claim.name] for claim in plan.node_claims if claim.reason in frozenset(LaunchReason)
    )
    return Prediction(plan.at, launches, commands)


def _command(
    command: PlannedCommand, known: Mapping[str, NodeFacts], planned: Mapping[str, NodeFacts]
) -> CommandFacts:
    """Return a command with its nodes among ``known``, and its replacements among ``planned``."""
    nodes = (known.get(n) or NodeFacts("", "", "", "", None, n) for n in sorted(command.nodes))
    replacements = (planned[name] for name in command.replacements if name in planned)
    return CommandFacts(command.reason, tuple(nodes), tuple(replacements))


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
    names = {claim.metadata.labels.get(INSTANCE_TYPE, "") for claim in claims}
    found = (catalog.get(name) for name in sorted(names) if name)
    return {
        (kind.name, offering.zone, offering.capacity_type): offering.price
        for kind in found
        if kind is not None
        for offering in kind.offerings
    }
