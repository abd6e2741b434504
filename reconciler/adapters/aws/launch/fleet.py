"""Build the parameters of CreateFleet: one or several equal instances from all offerings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from reconciler.adapters.aws.tags import FLEET, INTENT, NODECLAIM, shared_tags, tag_specification
from reconciler.model.karpenter.labels import MIN_VALUES_RELAXED, ON_DEMAND, RESERVED, SPOT
from reconciler.model.karpenter.nodeclass import EC2NodeClass, Subnet
from reconciler.model.settings import Settings
from reconciler.ports.cloud import Launch, LaunchOption

if TYPE_CHECKING:
    from mypy_boto3_ec2.literals import InstanceTypeType
    from mypy_boto3_ec2.type_defs import (
        CreateFleetRequestTypeDef,
        FleetLaunchTemplateOverridesRequestTypeDef,
    )


MAX_TYPES: Final = 60
CAPACITY_BLOCK: Final = "capacity-block"
INTERRUPTIBLE: Final = "interruptible-capacity-reservation"
_MAX_TOKEN: Final = 64


def fleet_parameters(
    launch: Launch,
    configs: Sequence[tuple[str, Sequence[FleetLaunchTemplateOverridesRequestTypeDef]]],
    settings: Settings,
    count: int = 1,
) -> CreateFleetRequestTypeDef:
    """Return the call that launches ``count`` instances (aws reference 3.1).

    ``configs`` are the launch templates by name, each with its overrides.
    """
    tags = instance_tags(launch, settings)
    parameters: dict[str, object] = {
        "Type": "instant",
        "ClientToken": client_token(launch.token),
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": name, "Version": "$Latest"},
                "Overrides": list(overrides),
            }
            for name, overrides in configs
        ],
        "TagSpecifications": [tag_specification(k, tags) for k in ("fleet", "instance", "volume")],
        **_market_options(launch.options[0], count, overlaid=launch.price_overlaid),
    }
    context = launch.node_class.spec.context
    relaxed = launch.node_claim.metadata.annotations.get(MIN_VALUES_RELAXED) == "true"
    if context and not relaxed:
        parameters["Context"] = context
    # botocore checks the call against its model; its names of types and markets are literals.
    return cast("CreateFleetRequestTypeDef", parameters)


def _market_options(option: LaunchOption, count: int, *, overlaid: bool) -> dict[str, object]:
    """Return the capacity type of the fleet and its allocation strategy."""

    def target(capacity_type: str) -> dict[str, object]:
        return {
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": count,
                "DefaultTargetCapacityType": capacity_type,
            }
        }

    if option.capacity_type == SPOT:
        strategy = "capacity-optimized-prioritized" if overlaid else "price-capacity-optimized"
        return {**target(SPOT), "SpotOptions": {"AllocationStrategy": strategy}}
    match market_type(option):
        case "":
            strategy = "prioritized" if overlaid else "lowest-price"
            return {**target(ON_DEMAND), "OnDemandOptions": {"AllocationStrategy": strategy}}
        case market if market == CAPACITY_BLOCK:
            return target(CAPACITY_BLOCK)
        case market:
            options = {"ReservationTypes": [market]}
            return {**target("reserved-capacity"), "ReservedCapacityOptions": options}


def market_type(option: LaunchOption) -> str:
    """Return the market type of a template for the option, empty for the usual one."""
    if option.capacity_type != RESERVED:
        return ""
    if option.reservation_type == CAPACITY_BLOCK:
        return CAPACITY_BLOCK
    return INTERRUPTIBLE if option.interruptible else ""


def overrides(
    options: Sequence[LaunchOption], image: str, subnets: Mapping[str, Subnet]
) -> list[FleetLaunchTemplateOverridesRequestTypeDef]:
    """Return one override for each type and zone that has a subnet; the first of equals is used."""
    rows: dict[tuple[str, str], FleetLaunchTemplateOverridesRequestTypeDef] = {}
    for option in options:
        subnet = subnets.get(option.zone)
        key = (option.instance_type, option.zone)
        if subnet is None or key in rows:
            continue
        rows[key] = {
            "InstanceType": cast("InstanceTypeType", option.instance_type),
            "SubnetId": subnet.id,
            "AvailabilityZone": option.zone,
            "ImageId": image,
            "Priority": option.price,
        }
    return list(rows.values())


def first_types(options: Sequence[LaunchOption]) -> list[LaunchOption]:
    """Return the options of the first ``MAX_TYPES`` instance types."""
    names = list(dict.fromkeys(option.instance_type for option in options))[:MAX_TYPES]
    kept = frozenset(names)
    return [option for option in options if option.instance_type in kept]


def zonal_subnets(node_class: EC2NodeClass, free: Mapping[str, int]) -> dict[str, Subnet]:
    """Return the subnet to use in each zone: most free addresses, ties in the status' order."""
    chosen: dict[str, Subnet] = {}
    for subnet in node_class.status.subnets:
        best = chosen.get(subnet.zone)
        if best is None or free.get(subnet.id, 0) > free.get(best.id, 0):
            chosen[subnet.zone] = subnet
    return chosen


def instance_tags(launch: Launch, settings: Settings) -> dict[str, str]:
    """Return the tags that the instance has from the start.

    The instances of a batch share one call and therefore their tags. The owner of each is in the
    records, and on the instance once its node has joined.
    """
    own = {FLEET: settings.fleet, INTENT: launch.token}
    if not launch.batch:
        own[NODECLAIM] = launch.node_claim.name
    shared = shared_tags(launch.node_claim, launch.node_class, settings.cluster_name)
    return {**launch.tags, **shared, **own}


def client_token(intent: str) -> str:
    """Return the idempotency token of an intent: itself if EC2 accepts it, else its hash."""
    if intent.isascii() and 0 < len(intent) <= _MAX_TOKEN:
        return intent
    return hashlib.sha256(intent.encode()).hexdigest()
