"""What the launches of a plan boot and run with: the image of each, and the node classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from reconciler.catalog.images import image_for
from reconciler.plan.disclosure import disclosed
from reconciler.plan.plan import PlannedImage, PlannedNodeClaim, PlannedNodeClass
from reconciler.plan.pools import node_class_of

if TYPE_CHECKING:
    from reconciler.model.nodeclass import AMI, EC2NodeClass
    from reconciler.placement.problem import LaunchPool
    from reconciler.plan.actions import UnlaunchedClaim


class Images:
    """Finds the image that an instance type boots in a NodePool; each is looked up once."""

    def __init__(
        self, classes: Mapping[str, EC2NodeClass], pools: Mapping[str, LaunchPool]
    ) -> None:
        self._classes = classes
        self._pools = pools
        self._found = cache(self._find)

    def of(self, node_pool: str, instance_type: str | None) -> PlannedImage | UnsetType:
        """Return the image, UNSET where nothing is known of the NodePool's class."""
        return self._found(node_pool, instance_type)

    def on(self, claim: PlannedNodeClaim) -> PlannedNodeClaim:
        """Return the claim with the image that its expected instance type boots."""
        found = self.of(claim.node_pool, claim.launch.instance_type)
        return (
            claim if isinstance(found, UnsetType) else msgspec.structs.replace(claim, image=found)
        )

    def on_unlaunched(self, claim: UnlaunchedClaim) -> UnlaunchedClaim:
        """Return a claim that was made before with the image that it is expected to boot."""
        launch = claim.launch
        found = self.of(claim.node_pool, launch.instance_type if launch is not None else None)
        return (
            claim if isinstance(found, UnsetType) else msgspec.structs.replace(claim, image=found)
        )

    def _find(self, node_pool: str, instance_type: str | None) -> PlannedImage | UnsetType:
        pool = self._pools.get(node_pool)
        if pool is None:
            return UNSET
        node_class = node_class_of(pool.node_pool, self._classes)
        if node_class is None:
            return UNSET
        kind = pool.types.get(instance_type) if instance_type else None
        ami = image_for(node_class.status.amis, kind) if kind is not None else None
        if ami is not None:
            return planned_image(ami, node_class)
        alias = _alias(node_class)
        return PlannedImage(alias=alias) if alias and not node_class.status.amis else UNSET


def planned_image(ami: AMI, node_class: EC2NodeClass) -> PlannedImage:
    """Return an image as the plan names it, with the alias by which its class asks for it."""
    return PlannedImage(id=ami.id, name=ami.name, alias=_alias(node_class))


def _alias(node_class: EC2NodeClass) -> str:
    return next((term.alias for term in node_class.spec.ami_selector_terms if term.alias), "")


def launch_classes(
    node_pools: Iterable[str],
    pools: Mapping[str, LaunchPool],
    classes: Mapping[str, EC2NodeClass],
) -> tuple[PlannedNodeClass, ...] | UnsetType:
    """Return the node classes of these NodePools by name, UNSET where none is known."""
    named = (pools[name].node_pool for name in set(node_pools) if name in pools)
    found = (node_class_of(pool, classes) for pool in named)
    known = {node_class.name: node_class for node_class in found if node_class is not None}
    return tuple(planned_node_class(known[name]) for name in sorted(known)) or UNSET


def planned_node_class(node_class: EC2NodeClass) -> PlannedNodeClass:
    """Return what a node class brings to a launch, without what changes by the minute."""
    status = node_class.status
    group = status.placement_group
    return PlannedNodeClass(
        name=node_class.name,
        spec=disclosed(msgspec.to_builtins(node_class.spec)),
        images=tuple(planned_image(ami, node_class) for ami in status.amis),
        subnets=tuple(sorted(subnet.id for subnet in status.subnets)),
        security_groups=tuple(sorted(g.id for g in status.security_groups)),
        capacity_reservations=tuple(sorted(r.id for r in status.capacity_reservations)),
        placement_group=group.id if group is not None else "",
        instance_profile=status.instance_profile,
    )
