"""Which of the offerings that a NodeClaim allows a launch requests from EC2.

The AWS provider narrows a claim once more before it calls CreateFleet (``filter.go``): to what is
available now, to one kind of reservation, to ordinary types where exotic ones are not needed, to
spot that is not more expensive than on-demand; then to sixty types and one capacity type. A preview
of the requests and the engine use this one choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.catalog.aws.machine import image_for
from reconciler.model.karpenter.instancetype import LAUNCH_PREFERENCE, InstanceType, Offering
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    ON_DEMAND,
    RESERVED,
    SPOT,
)
from reconciler.model.karpenter.requirements import Requirements, equals
from reconciler.model.resources import Resources, fits
from reconciler.plan.make.disclosure import disclose
from reconciler.plan.make.pools import node_class_of
from reconciler.plan.value.nodes import PlannedImage, PlannedNodeClaim, PlannedNodeClass

if TYPE_CHECKING:
    from reconciler.model.karpenter.nodeclass import AMI, EC2NodeClass
    from reconciler.placement.question import LaunchPool
    from reconciler.plan.make.actions import UnlaunchedClaim

TYPES_MAX: Final = 60
"""The maximum number of instance types in a CreateFleet (the provider's own limit)."""

_RESERVATION_TYPE: Final = "karpenter.k8s.aws/capacity-reservation-type"
_INTERRUPTIBLE: Final = "karpenter.k8s.aws/capacity-reservation-interruptible"
_CAPACITY_BLOCK: Final = "capacity-block"
_EXOTIC: Final = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
)


class BootImages:
    """Finds the image that an instance type boots in a NodePool; each is looked up once."""

    def __init__(
        self, classes: Mapping[str, EC2NodeClass], pools: Mapping[str, LaunchPool]
    ) -> None:
        self._classes = classes
        self._pools = pools
        self._found = cache(self._find)

    def image_of(self, node_pool: str, instance_type: str | None) -> PlannedImage | None:
        """Return the image, None if the NodePool's class is unknown."""
        return self._found(node_pool, instance_type)

    def with_image(self, claim: PlannedNodeClaim) -> PlannedNodeClaim:
        """Return the claim with the image that its expected instance type boots."""
        found = self.image_of(claim.node_pool, claim.launch.instance_type)
        return claim if found is None else msgspec.structs.replace(claim, image=found)

    def unlaunched_with_image(self, claim: UnlaunchedClaim) -> UnlaunchedClaim:
        """Return a claim from an earlier plan with its expected image."""
        launch = claim.launch
        found = self.image_of(claim.node_pool, launch.instance_type if launch is not None else None)
        return claim if found is None else msgspec.structs.replace(claim, image=found)

    def _find(self, node_pool: str, instance_type: str | None) -> PlannedImage | None:
        pool = self._pools.get(node_pool)
        if pool is None:
            return None
        node_class = node_class_of(pool.node_pool, self._classes)
        if node_class is None:
            return None
        kind = pool.types.get(instance_type) if instance_type else None
        ami = image_for(node_class.status.amis, kind) if kind is not None else None
        if ami is not None:
            return planned_image(ami, node_class)
        alias = _alias(node_class)
        return PlannedImage(alias=alias) if alias and not node_class.status.amis else None


def planned_image(ami: AMI, node_class: EC2NodeClass) -> PlannedImage:
    """Return an image as the plan names it, with the alias by which its class asks for it."""
    return PlannedImage(id=ami.id, name=ami.name, alias=_alias(node_class))


def _alias(node_class: EC2NodeClass) -> str:
    return next((term.alias for term in node_class.spec.ami_selector_terms if term.alias), "")


def launch_classes(
    node_pools: Iterable[str],
    pools: Mapping[str, LaunchPool],
    classes: Mapping[str, EC2NodeClass],
) -> tuple[PlannedNodeClass, ...]:
    """Return the node classes of these NodePools by name; none if none is known."""
    named = (pools[name].node_pool for name in set(node_pools) if name in pools)
    found = (node_class_of(pool, classes) for pool in named)
    known = {node_class.name: node_class for node_class in found if node_class is not None}
    return tuple(planned_node_class(known[name]) for name in sorted(known))


def planned_node_class(node_class: EC2NodeClass) -> PlannedNodeClass:
    """Return what a node class contributes to a launch, without values that change every minute."""
    status = node_class.status
    group = status.placement_group
    return PlannedNodeClass(
        name=node_class.name,
        spec=disclose(msgspec.to_builtins(node_class.spec)),
        images=tuple(planned_image(ami, node_class) for ami in status.amis),
        subnets=tuple(sorted(subnet.id for subnet in status.subnets)),
        security_groups=tuple(sorted(g.id for g in status.security_groups)),
        capacity_reservations=tuple(sorted(r.id for r in status.capacity_reservations)),
        placement_group=group.id if group is not None else "",
        instance_profile=status.instance_profile,
    )


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """One type that a launch may use, with its possible offerings."""

    kind: InstanceType
    offerings: tuple[Offering, ...]

    @property
    def price(self) -> float:
        """The minimum price in USD an hour."""
        return min(o.price for o in self.offerings)

    def with_offerings(self, accepts: Callable[[Offering], bool]) -> LaunchChoice:
        """Return the choice with the offerings that ``accepts`` allows."""
        return LaunchChoice(self.kind, tuple(o for o in self.offerings if accepts(o)))


def launch_choices(
    requirements: Requirements, requests: Resources, types: Iterable[InstanceType]
) -> tuple[str, list[LaunchChoice]]:
    """Return the capacity type of a launch and its choices, cheapest first, at most sixty.

    Without a choice the list is empty: nothing that the claim allows is available now.
    """
    choices = _available_choices(requirements, requests, types)
    for narrow in (_keep_one_reservation_kind, _keep_cheapest_block, _keep_fullest_reservations):
        choices = narrow(choices)
    if not requirements.has_min_values():
        choices = _exclude_exotic(choices)
        choices = _exclude_expensive_spot(choices)
    choices.sort(key=lambda c: (c.price, c.kind.name))
    del choices[TYPES_MAX:]
    for capacity_type in LAUNCH_PREFERENCE:
        narrowed = requirements.with_requirements([equals(CAPACITY_TYPE, capacity_type)])
        if narrowed.requirement_on(CAPACITY_TYPE).values:
            chosen = _filter_offerings(choices, partial(_has_capacity_type, capacity_type))
            if chosen:
                return capacity_type, chosen
    return ON_DEMAND, []


def _has_capacity_type(capacity_type: str, offering: Offering) -> bool:
    return offering.capacity_type == capacity_type


def _filter_offerings(
    choices: Iterable[LaunchChoice], accepts: Callable[[Offering], bool]
) -> list[LaunchChoice]:
    """Return the choices with the offerings that ``accepts`` allows, without empty ones."""
    narrowed = (choice.with_offerings(accepts) for choice in choices)
    return [choice for choice in narrowed if choice.offerings]


def _available_choices(
    requirements: Requirements, requests: Resources, types: Iterable[InstanceType]
) -> list[LaunchChoice]:
    named = requirements.requirement_on(INSTANCE_TYPE)
    suits = _offering_filter(requirements)
    return [
        LaunchChoice(kind, offerings)
        for kind in types
        if named.has(kind.name)
        and fits(requests, kind.allocatable)  # first, because it is cheap and rules out most
        and kind.requirements.intersects(requirements)
        and (offerings := tuple(o for o in kind.offerings if o.is_launchable and suits(o)))
    ]


def _offering_filter(requirements: Requirements) -> Callable[[Offering], bool]:
    """Return whether an offering satisfies ``requirements``; many have the same few labels."""
    known: dict[tuple[object, ...], bool] = {}

    def suits(offering: Offering) -> bool:
        o = offering
        labels = (o.zone, o.capacity_type, o.zone_id, o.reservation_id, o.extra)
        suited = known.get(labels)
        if suited is None:
            suited = known[labels] = offering.satisfies(requirements)
        return suited

    return suits


def reservation_type(offering: Offering) -> str:
    """Return the kind of an offering's reservation, empty where it has none."""
    return _label(offering, _RESERVATION_TYPE)


def is_interruptible(offering: Offering) -> bool:
    """Return whether EC2 may interrupt the reservation."""
    return _label(offering, _INTERRUPTIBLE) == "true"


def _label(offering: Offering, key: str) -> str:
    return offering.requirements.requirement_on(key).any_value() if offering.reservation_id else ""


def _is_capacity_block(offering: Offering) -> bool:
    return reservation_type(offering) == _CAPACITY_BLOCK


def _keep_one_reservation_kind(choices: list[LaunchChoice]) -> list[LaunchChoice]:
    """Keep the kind of reservation that has the cheapest offering, if there is any.

    Default reservations come before capacity blocks, and those before interruptible ones, where
    prices are equal: one CreateFleet can ask for one kind only.
    """

    def kind_of(offering: Offering) -> tuple[int, str]:
        if _is_capacity_block(offering):
            return (1, "block")
        return (2, "interruptible") if is_interruptible(offering) else (0, "default")

    reserved = [(o.price, kind_of(o)) for c in choices for o in c.offerings if _is_reserved(o)]
    if not reserved:
        return choices
    _, best = min(reserved)
    return _filter_offerings(choices, lambda o: _is_reserved(o) and kind_of(o) == best)


def _is_reserved(offering: Offering) -> bool:
    return offering.capacity_type == RESERVED


def _keep_cheapest_block(choices: list[LaunchChoice]) -> list[LaunchChoice]:
    """Keep the single cheapest capacity block: a fleet cannot spread over several."""
    blocks = [
        (o.price, c.kind.name, o) for c in choices for o in c.offerings if _is_capacity_block(o)
    ]
    if not blocks:
        return choices
    _, name, block = min(blocks, key=lambda b: (b[0], b[1], b[2].zone))
    return [LaunchChoice(c.kind, (block,)) for c in choices if c.kind.name == name]


def _keep_fullest_reservations(choices: list[LaunchChoice]) -> list[LaunchChoice]:
    """Keep in each zone only the reservation of a type with the most capacity left."""
    if not any(_is_reserved(o) for c in choices for o in c.offerings):
        return choices
    kept = []
    for choice in choices:
        by_zone: dict[str, Offering] = {}
        for offering in filter(_is_reserved, choice.offerings):
            best = by_zone.get(offering.zone)
            if best is None or _remaining_capacity(offering) > _remaining_capacity(best):
                by_zone[offering.zone] = offering
        if by_zone:
            kept.append(LaunchChoice(choice.kind, tuple(by_zone.values())))
    return kept


def _remaining_capacity(offering: Offering) -> int:
    return offering.reservation_capacity or 0


def _exclude_exotic(choices: list[LaunchChoice]) -> list[LaunchChoice]:
    """Exclude bare metal and accelerators, unless there is nothing else."""
    plain = [c for c in choices if not _is_exotic(c.kind)]
    return plain or choices


def _is_exotic(kind: InstanceType) -> bool:
    size = kind.name.partition(".")[2]
    return "metal" in size or any(kind.capacity.get(name) for name in _EXOTIC)


def _exclude_expensive_spot(choices: list[LaunchChoice]) -> list[LaunchChoice]:
    """Exclude spot that costs more than the cheapest on-demand."""
    on_demand = [o.price for c in choices for o in c.offerings if o.capacity_type == ON_DEMAND]
    if not on_demand:
        return choices
    limit = min(on_demand)
    return _filter_offerings(choices, lambda o: o.capacity_type != SPOT or o.price <= limit)
