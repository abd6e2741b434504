"""The launches of a plan as EC2 requests that are not sent: for security reviews."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from reconciler.engine.steps import provision
from reconciler.engine.steps.provision import Blueprint
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.make.pools import node_class_of
from reconciler.plan.value.plan import Plan
from reconciler.ports.cloud import Launch


def launches_of(plan: Plan, inputs: Inputs) -> list[tuple[Launch, Blueprint]]:
    """Return the launches of a plan in the order of its actions, each with its pool's blueprint.

    Declared NodeClaims that are not launched yet come first. A claim without an offering or
    without a ready class launches nothing and is left out.
    """
    facts = facts_of(inputs)
    blueprints = _blueprints(facts)
    claims = [*facts.cluster.unlaunched, *_planned_claims(plan, blueprints, inputs.now)]
    launches = []
    planned = {entry.name: entry for entry in plan.node_claims}
    for claim in claims:
        blueprint = provision.blueprint_of(claim, blueprints, planned)
        if blueprint is None:
            continue
        call = provision.make_launch(claim, blueprint, {})
        if call is not None:
            launches.append((call, blueprint))
    return launches


def _blueprints(facts: Facts) -> dict[str, Blueprint]:
    """Return the blueprint of each NodePool that is ready."""
    ready = {pool.node_pool.name for pool in facts.types.ready}
    uncovered = facts.uncovered() if facts.covers else {}
    return {
        pool.name: Blueprint(
            pool,
            node_class,
            ("", ""),
            ("", ""),
            facts.types.by_name[pool.name].types,
            uncovered[pool.name].types if uncovered else None,
        )
        for pool in facts.pools
        if pool.name in ready and (node_class := node_class_of(pool, facts.classes)) is not None
    }


def _planned_claims(
    plan: Plan, blueprints: Mapping[str, Blueprint], now: datetime
) -> list[NodeClaim]:
    return [
        provision.make_node_claim(planned, blueprints[planned.node_pool], now)
        for planned in plan.node_claims
        if planned.node_pool in blueprints
    ]
