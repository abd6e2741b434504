"""The input of user data for every image family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from reconciler.model.json import JsonObject
from reconciler.model.karpenter.labels import CAPACITY_TYPE, WELL_KNOWN_AWS, is_restricted
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import requirements_of
from reconciler.model.kubernetes.taint import UNREGISTERED, Taint

DO_NOT_SYNC_TAINTS: Final = "karpenter.sh/do-not-sync-taints"
_KUBELET_MUST_NOT_SET: Final = ("node-restriction.kubernetes.io", "kubernetes.io", "k8s.io")


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """How a node reaches its cluster; ``ca_bundle`` is base64, empty strings are unknown."""

    name: str
    endpoint: str = ""
    ca_bundle: str = ""
    dns: str = ""
    cidr: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings with which a node joins the cluster.

    ``kubelet`` is the class's map with expressions evaluated, ``custom`` the user's own user data,
    ``raid0`` whether the instance stores become one volume. ``image_version`` is that of the
    class's alias, empty without an alias.
    """

    cluster: ControlPlane
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    max_pods: int
    kubelet: JsonObject = field(default_factory=dict)
    custom: str = ""
    raid0: bool = False
    image_version: str = ""

    @property
    def cluster_dns(self) -> list[str]:
        """The DNS servers of pods: the class's own, or else the cluster's service address."""
        own = self.kubelet.get("clusterDNS")
        if own:
            return [str(address) for address in own]
        return [self.cluster.dns] if self.cluster.dns else []


def node_labels(claim: NodeClaim, capacity_type: str) -> dict[str, str]:
    """Return the labels with which the kubelet registers, sorted.

    These are the claim's own labels, single-valued requirements that no provider sets, and the
    capacity type. The kubelet must not set labels in Kubernetes' domains (NodeRestriction).
    """
    chosen = requirements_of(claim.spec.requirements).fixed_labels()
    custom = {k: v for k, v in chosen.items() if k not in WELL_KNOWN_AWS and not is_restricted(k)}
    labels = {
        **custom,
        **claim.metadata.labels,
        CAPACITY_TYPE: capacity_type,
        DO_NOT_SYNC_TAINTS: "true",
    }
    return {key: labels[key] for key in sorted(labels) if _kubelet_may_set(key)}


def node_taints(claim: NodeClaim) -> tuple[Taint, ...]:
    """Return the taints with which the kubelet registers."""
    return (*claim.spec.taints, *claim.spec.startup_taints, UNREGISTERED)


def _kubelet_may_set(key: str) -> bool:
    domain = key.partition("/")[0] if "/" in key else ""
    return not any(domain == d or domain.endswith("." + d) for d in _KUBELET_MUST_NOT_SET)
