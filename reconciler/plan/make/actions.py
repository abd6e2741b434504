"""From decisions to actions: launches, replacements and terminations with their dependencies.

A replacing command has a ``replace`` action between its launches and its terminations. It waits
until every replacement is initialized and validates the command again; only then are the nodes
terminated. A command that only deletes has no dependencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.model.karpenter.instancetype import Offering
from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement, requirements_of
from reconciler.model.karpenter.requirements import (
    Operator,
    Requirements,
    RequirementSpec,
    requirement,
)
from reconciler.model.resources import format_resources
from reconciler.placement.question import LaunchCatalog, LaunchPool, PlannedClaim
from reconciler.plan.graph import sort_into_waves
from reconciler.plan.value.actions import Action, ActionKind, PlannedCommand
from reconciler.plan.value.nodes import LaunchOffering, PlannedImage, PlannedNodeClaim

TYPES_MAX: Final = 60
"""The maximum number of instance types in a launch request, a limit of CreateFleet."""

_NAME_MAX: Final = 63


class Namer:
    """Gives NodeClaims unique names: the planned name, if it is free."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def name(self, planned: str) -> str:
        """Return ``planned``, or the first variation of it that is free."""
        name, number = planned, 1
        while name in self._taken:
            number += 1
            suffix = f"-{number}"
            name = planned[: _NAME_MAX - len(suffix)] + suffix
        self._taken.add(name)
        return name


def planned_node_claim(
    claim: PlannedClaim, name: str, reason: str, catalog: LaunchCatalog, pods: Iterable[str]
) -> PlannedNodeClaim:
    """Return the claim as the plan lists it.

    ``pods`` are those of its pods that no other part of the plan places.
    """
    kind, offering = claim.launch
    ref = claim.node_pool.spec.template.spec.node_class_ref
    return PlannedNodeClaim(
        name=name,
        node_pool=claim.node_pool.name,
        node_class=ref.name or None,
        reason=reason,
        pods=tuple(pods),
        requests=format_resources(claim.requests),
        requirements=tuple(map(_entry, _requirements_of_types(claim).specs())),
        instance_types=tuple(t.name for t in claim.types[:TYPES_MAX]),
        instance_types_total=claim.types_total,
        labels=dict(sorted(claim.labels.items())),
        taints=claim.taints,
        startup_taints=claim.startup_taints,
        launch=launch_offering(kind.name, offering, catalog),
        device_drivers=claim.device_drivers,
    )


def _requirements_of_types(claim: PlannedClaim) -> Requirements:
    """Return the requirements, limited to the instance types of the claim.

    Consolidation leaves a claim only the types that cost less than the nodes it replaces. A launch
    of any other type would be replaced again.
    """
    named = claim.requirements.get(INSTANCE_TYPE)
    if named is None or named.complement or len(named.values) <= len(claim.types):
        return claim.requirements
    names = tuple(kind.name for kind in claim.types)
    return claim.requirements.with_requirements([requirement(INSTANCE_TYPE, Operator.IN, names)])


def _entry(spec: RequirementSpec) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(spec.key, spec.operator, spec.values, spec.min_values)


def launch_offering(
    instance_type: str, offering: Offering, catalog: LaunchCatalog
) -> LaunchOffering:
    """Return an offering as the expected result of a launch."""
    return LaunchOffering(
        instance_type=instance_type,
        zone=offering.zone,
        capacity_type=offering.capacity_type,
        price=offering.price,
        base_price=_base_price(instance_type, offering, catalog),
        estimated=offering.estimated,
        price_source=offering.origin,
    )


def _base_price(instance_type: str, offering: Offering, catalog: LaunchCatalog) -> float | None:
    """Return the price before commitments and overlays, None if none changed it."""
    if not isinstance(catalog, Catalog) or instance_type not in catalog.price_overlaid:
        return None
    kind = catalog.listed.get(instance_type)
    return kind.price_of(offering.zone, offering.capacity_type) if kind is not None else None


def unlaunched_claim(claim: NodeClaim, pool: LaunchPool | None) -> UnlaunchedClaim:
    """Return a claim without an instance, with its cheapest possible launch."""
    if pool is None:
        return UnlaunchedClaim(claim.name, claim.node_pool, None)
    requirements = requirements_of(claim.spec.requirements)
    found: list[tuple[float, str, Offering]] = []
    for kind in pool.types.types:
        if not kind.requirements.intersects(requirements):
            continue
        offering = kind.cheapest_offering(requirements)
        if offering is not None:
            found.append((offering.price, kind.name, offering))
    if not found:
        return UnlaunchedClaim(claim.name, claim.node_pool, None)
    _, name, offering = min(found, key=lambda item: item[:2])
    launch = LaunchOffering(
        instance_type=name,
        zone=offering.zone,
        capacity_type=offering.capacity_type,
        price=offering.price,
        estimated=offering.estimated,
        price_source=offering.origin,
    )
    return UnlaunchedClaim(claim.name, claim.node_pool, launch)


class OwnedNode(msgspec.Struct, frozen=True):
    """A node of a NodePool, as known from its labels and the catalog.

    ``name`` is the Node's, or its NodeClaim's before it has joined. ``price`` is USD an hour, None
    if the catalog has none. ``never_leaves`` is whether it is being removed, or will be, and its
    drain never ends.
    """

    name: str
    node_claim: str
    node_pool: str
    instance_type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None
    price: float | None = None
    has_node: bool = True
    is_deleting: bool = False
    never_leaves: bool = False


class UnlaunchedClaim(msgspec.Struct, frozen=True):
    """A created NodeClaim without an instance, which this plan launches."""

    name: str
    node_pool: str
    launch: LaunchOffering | None
    image: PlannedImage | None = None


def actions_of(
    node_claims: Iterable[PlannedNodeClaim],
    unlaunched: Iterable[UnlaunchedClaim],
    commands: Iterable[PlannedCommand],
    nodes: Mapping[str, OwnedNode],
) -> tuple[Action, ...]:
    """Return the actions for the claims and commands, in waves.

    The keys of ``nodes`` are names of NodeClaims, or of Nodes if a command knows no claim.
    """
    every = list(commands)
    command_of = {name: command.id for command in every for name in command.replacements}
    actions = [
        _provision_action(c.name, c.node_pool, c.reason, c.launch, c.image, command_of.get(c.name))
        for c in node_claims
    ]
    actions += [
        _provision_action(
            c.name, c.node_pool, "NotLaunched", c.launch, c.image, command_of.get(c.name)
        )
        for c in unlaunched
    ]
    for command in every:
        actions += _command_actions(command, nodes)
    return sort_into_waves(actions)


def provision_id(node_claim: str) -> str:
    """Return the id of the action that launches a NodeClaim."""
    return f"provision/{node_claim}"


def replace_id(command: str) -> str:
    """Return the id of the action that validates a command once its replacements are ready."""
    return f"replace/{command}"


def terminate_id(name: str) -> str:
    """Return the id of the action that terminates a NodeClaim, or a Node without one."""
    return f"terminate/{name}"


def reboot_id(name: str) -> str:
    """Return the id of the action that reboots the node of a NodeClaim."""
    return f"reboot/{name}"


def _provision_action(
    name: str,
    node_pool: str,
    reason: str,
    launch: LaunchOffering | None,
    image: PlannedImage | None,
    command: str | None,
) -> Action:
    return Action(
        id=provision_id(name),
        kind=ActionKind.PROVISION,
        node_pool=node_pool,
        node_claim=name,
        command=command,
        reason=reason,
        cost_delta=launch.price if launch else None,
        instance_type=launch.instance_type if launch else None,
        zone=launch.zone if launch else None,
        capacity_type=launch.capacity_type if launch else None,
        image=image,
    )


def _command_actions(command: PlannedCommand, nodes: Mapping[str, OwnedNode]) -> list[Action]:
    removed = [nodes[name] for name in command.node_claims or command.nodes]
    if not command.removes_nodes:
        return [_reboot_action(node, command) for node in removed]
    validation = replace_id(command.id)
    waits_for = (validation,) if command.replacements else ()
    actions = [_terminate_action(node, command, waits_for) for node in removed]
    if command.replacements:
        launches = tuple(sorted(map(provision_id, command.replacements)))
        pools = {node.node_pool for node in removed}
        actions.append(
            Action(
                id=validation,
                kind=ActionKind.REPLACE,
                node_pool=pools.pop() if len(pools) == 1 else None,
                command=command.id,
                reason=command.reason,
                depends_on=launches,
            )
        )
    return actions


def _terminate_action(
    node: OwnedNode, command: PlannedCommand, waits_for: tuple[str, ...]
) -> Action:
    return Action(
        id=terminate_id(node.node_claim or node.name),
        kind=ActionKind.TERMINATE,
        node_pool=node.node_pool or None,
        node_claim=node.node_claim or None,
        node=node.name if node.has_node else None,
        command=command.id,
        depends_on=waits_for,
        reason=command.reason,
        cost_delta=0.0 if node.never_leaves else None if node.price is None else -node.price,
        instance_type=node.instance_type,
        zone=node.zone,
        capacity_type=node.capacity_type,
    )


def _reboot_action(node: OwnedNode, command: PlannedCommand) -> Action:
    return Action(
        id=reboot_id(node.node_claim),
        kind=ActionKind.REBOOT,
        node_pool=node.node_pool or None,
        node_claim=node.node_claim,
        node=node.name,
        command=command.id,
        reason=command.reason,
        cost_delta=0.0,
        instance_type=node.instance_type,
        zone=node.zone,
        capacity_type=node.capacity_type,
    )
