"""From decisions to actions: what is launched, what waits for it, and what goes then.

A command that replaces has a hinge between its launches and its terminations: the ``replace``
action waits until every replacement is initialized, validates the command again, and only then
lets the nodes go. A command that only deletes has nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from reconciler.plan.graph import in_waves
from reconciler.plan.plan import (
    Action,
    LaunchOffering,
    PlannedCommand,
    PlannedImage,
    PlannedNodeClaim,
)


class OwnedNode(msgspec.Struct, frozen=True):
    """A node that a NodePool owns, as far as its labels and the catalogue tell.

    ``name`` is the Node's, or its NodeClaim's where there is no Node yet. ``price`` is USD an
    hour, None where the catalogue has none for it.
    """

    name: str
    node_claim: str
    node_pool: str
    instance_type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None
    price: float | None = None
    has_node: bool = True
    is_going: bool = False


class UnlaunchedClaim(msgspec.Struct, frozen=True):
    """A NodeClaim that was made and has no instance yet; this plan launches it."""

    name: str
    node_pool: str
    launch: LaunchOffering | None
    image: PlannedImage | UnsetType = UNSET


def actions_of(
    node_claims: Iterable[PlannedNodeClaim],
    unlaunched: Iterable[UnlaunchedClaim],
    commands: Iterable[PlannedCommand],
    nodes: Mapping[str, OwnedNode],
) -> tuple[Action, ...]:
    """Return the actions that carry out the claims and commands, in waves.

    ``nodes`` are found by the name of their NodeClaim, or of the Node where a command knows no
    claim.
    """
    every = list(commands)
    command_of = {name: command.id for command in every for name in command.replacements}
    actions = [
        _provision(c.name, c.node_pool, c.reason, c.launch, c.image, command_of.get(c.name))
        for c in node_claims
    ]
    actions += [
        _provision(c.name, c.node_pool, "NotLaunched", c.launch, c.image, None) for c in unlaunched
    ]
    for command in every:
        actions += _carry_out(command, nodes)
    return in_waves(actions)


def _provision(
    name: str,
    node_pool: str,
    reason: str,
    launch: LaunchOffering | None,
    image: PlannedImage | UnsetType,
    command: str | None,
) -> Action:
    return Action(
        id=f"provision/{name}",
        kind="provision",
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


def _carry_out(command: PlannedCommand, nodes: Mapping[str, OwnedNode]) -> list[Action]:
    going = [nodes[name] for name in command.node_claims or command.nodes]
    hinge = f"replace/{command.id}"
    waits_for = (hinge,) if command.replacements else ()
    actions = [_terminate(node, command, waits_for) for node in going]
    if command.replacements:
        launches = tuple(sorted(f"provision/{name}" for name in command.replacements))
        pools = {node.node_pool for node in going}
        actions.append(
            Action(
                id=hinge,
                kind="replace",
                node_pool=pools.pop() if len(pools) == 1 else None,
                command=command.id,
                reason=command.reason,
                depends_on=launches,
            )
        )
    return actions


def _terminate(node: OwnedNode, command: PlannedCommand, waits_for: tuple[str, ...]) -> Action:
    return Action(
        id=f"terminate/{node.node_claim or node.name}",
        kind="terminate",
        node_pool=node.node_pool or None,
        node_claim=node.node_claim or None,
        node=node.name if node.has_node else None,
        command=command.id,
        depends_on=waits_for,
        reason=command.reason,
        cost_delta=None if node.price is None else -node.price,
        instance_type=node.instance_type,
        zone=node.zone,
        capacity_type=node.capacity_type,
    )
