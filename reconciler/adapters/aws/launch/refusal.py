"""Reject launches that EC2 would accept but Karpenter's provider would not request."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.adapters.aws.nodeclass.images import Types
from reconciler.model.errors import CloudError
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import requirements_of
from reconciler.model.settings import ClusterKind, MinValuesPolicy, Settings
from reconciler.ports.cloud import Launch, LaunchOption


def lacks_service_cidr(node_class: EC2NodeClass, settings: Settings) -> bool:
    """Return whether nodes of the class could not find their cluster: nodeadm needs its CIDR.

    An imitated cluster has no CIDR, and its nodes do not need it.
    """
    return (
        node_class.ami_family == "AL2023"
        and not settings.cluster_cidr
        and settings.cluster == ClusterKind.KUBECONFIG
    )


def check_launch(
    launch: Launch, options: Sequence[LaunchOption], types: Types, settings: Settings
) -> None:
    """Check a launch before it is requested; ``options`` are the remaining ones.

    Raises:
        CloudError: the class cannot launch nodes, or too few types are left for ``minValues``.
    """
    if lacks_service_cidr(launch.node_class, settings):
        raise CloudError(
            f"EC2NodeClass {launch.node_class.name}: AL2023 nodes need the cluster's service CIDR",
            where=f"NodeClaim {launch.node_claim.name}",
            remedy="set clusterCIDR",
        )
    if settings.min_values_policy == MinValuesPolicy.STRICT:
        _check_min_values(launch, options, types)


def _check_min_values(launch: Launch, options: Sequence[LaunchOption], types: Types) -> None:
    requirements = requirements_of(launch.node_claim.spec.requirements)
    wanting = [r for r in requirements.values() if r.min_values is not None]
    if not wanting:
        return
    names = dict.fromkeys(option.instance_type for option in options)
    kinds = [kind for kind in map(types, names) if kind is not None]
    for wanted in wanting:
        values = {
            value
            for kind in kinds
            for value in kind.requirements.allowed(wanted.key).values
            if wanted.has(value)
        }
        assert wanted.min_values is not None
        if len(values) < wanted.min_values:
            raise CloudError(
                (
                    f"only {len(values)} values of {wanted.key} remain among {len(kinds)} instance "
                    f"types, but minValues is {wanted.min_values}"
                ),
                where=f"NodeClaim {launch.node_claim.name}",
                remedy="lower minValues, or allow more instance types",
            )
