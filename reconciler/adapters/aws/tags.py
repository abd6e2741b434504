"""The ownership tags of instances, volumes, fleets and templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from reconciler.model.karpenter.labels import NODECLASS, NODEPOOL
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.ownership import CLUSTER_TAG, FLEET_TAG, Owner, cluster_key
from reconciler.model.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_ec2.literals import ResourceTypeType
    from mypy_boto3_ec2.type_defs import TagSpecificationTypeDef, TagTypeDef


CLUSTER: Final = CLUSTER_TAG
NODECLAIM: Final = "karpenter.sh/nodeclaim"
FLEET: Final = FLEET_TAG
INTENT: Final = "reconciler/intent"


def owner_of(settings: Settings) -> Owner:
    """Return the owner for the settings' fleet, as in the tags of its instances."""
    return Owner(settings.fleet, settings.cluster_name)


def shared_tags(claim: NodeClaim, node_class: EC2NodeClass, cluster: str) -> dict[str, str]:
    """Return the tags that all instances of a pool, class and cluster share, sorted.

    The class's own tags come first and cannot override ours (aws reference 3.1).
    """
    tags = {
        **node_class.spec.tags,
        cluster_key(cluster): "owned",
        CLUSTER: cluster,
        NODECLASS: node_class.name,
    }
    if claim.node_pool:
        tags[NODEPOOL] = claim.node_pool
    return dict(sorted(tags.items()))


def as_list(tags: Mapping[str, str]) -> list[TagTypeDef]:
    """Return tags in boto3's form, sorted by key."""
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def as_map(tags: Sequence[Mapping[str, object]] | None) -> dict[str, str]:
    """Return a boto3 tag list as a map."""
    return {str(tag["Key"]): str(tag.get("Value", "")) for tag in tags or []}


def tag_specification(kind: ResourceTypeType, tags: Mapping[str, str]) -> TagSpecificationTypeDef:
    """Return one entry of ``TagSpecifications``."""
    return {"ResourceType": kind, "Tags": as_list(tags)}
