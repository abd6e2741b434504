"""The parameters of CreateFleet: one instance, out of all that would do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from reconciler.adapters.aws.tags import FLEET, INTENT, NODECLAIM, shared_tags, specification
from reconciler.adapters.aws.template import is_spot
from reconciler.model.labels import MIN_VALUES_RELAXED, ON_DEMAND, SPOT
from reconciler.model.nodeclass import EC2NodeClass, Subnet
from reconciler.model.settings import Settings
from reconciler.ports import Launch, LaunchOption

MAX_TYPES: Final = 60
_MAX_TOKEN: Final = 64


def fleet_parameters(
    launch: Launch, configs: Sequence[tuple[str, Sequence[dict[str, Any]]]], settings: Settings
) -> dict[str, Any]:
    """Return the call that launches one instance (aws reference 3.1).

    ``configs`` are the launch templates by name, each with its overrides.
    """
    spot, overlaid = is_spot(launch), launch.price_overlaid
    tags = instance_tags(launch, settings)
    parameters: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": client_token(launch.intent),
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": name, "Version": "$Latest"},
                "Overrides": list(overrides),
            }
            for name, overrides in configs
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": 1,
            "DefaultTargetCapacityType": SPOT if spot else ON_DEMAND,
        },
        "TagSpecifications": [specification(k, tags) for k in ("fleet", "instance", "volume")],
    }
    if spot:
        strategy = "capacity-optimized-prioritized" if overlaid else "price-capacity-optimized"
        parameters["SpotOptions"] = {"AllocationStrategy": strategy}
    else:
        strategy = "prioritized" if overlaid else "lowest-price"
        parameters["OnDemandOptions"] = {"AllocationStrategy": strategy}
    context = launch.node_class.spec.context
    relaxed = launch.node_claim.metadata.annotations.get(MIN_VALUES_RELAXED) == "true"
    if context and not relaxed:
        parameters["Context"] = context
    return parameters


def overrides(
    options: Sequence[LaunchOption], image: str, subnets: Mapping[str, Subnet]
) -> list[dict[str, Any]]:
    """Return one override for each type and zone that has a subnet; the first of equals stays."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for option in options:
        subnet = subnets.get(option.zone)
        key = (option.instance_type, option.zone)
        if subnet is None or key in rows:
            continue
        rows[key] = {
            "InstanceType": option.instance_type,
            "SubnetId": subnet.id,
            "AvailabilityZone": option.zone,
            "ImageId": image,
            "Priority": option.price,
        }
    return list(rows.values())


def zonal_subnets(node_class: EC2NodeClass, free: Mapping[str, int]) -> dict[str, Subnet]:
    """Return the subnet to use in each zone: the freest, of equals the first of the status."""
    chosen: dict[str, Subnet] = {}
    for subnet in node_class.status.subnets:
        best = chosen.get(subnet.zone)
        if best is None or free.get(subnet.id, 0) > free.get(best.id, 0):
            chosen[subnet.zone] = subnet
    return chosen


def first_types(options: Sequence[LaunchOption], limit: int = MAX_TYPES) -> list[LaunchOption]:
    """Return the options of the first ``limit`` instance types."""
    names = list(dict.fromkeys(option.instance_type for option in options))[:limit]
    kept = frozenset(names)
    return [option for option in options if option.instance_type in kept]


def instance_tags(launch: Launch, settings: Settings) -> dict[str, str]:
    """Return the tags that the instance bears from its first moment on."""
    own = {
        NODECLAIM: launch.node_claim.name,
        FLEET: settings.fleet,
        INTENT: launch.intent,
    }
    shared = shared_tags(launch.node_claim, launch.node_class, settings.cluster_name)
    return {**launch.tags, **shared, **own}


def client_token(intent: str) -> str:
    """Return the idempotency token of an intent: itself where EC2 takes it, else its hash."""
    if intent.isascii() and 0 < len(intent) <= _MAX_TOKEN:
        return intent
    return hashlib.sha256(intent.encode()).hexdigest()
