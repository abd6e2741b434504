"""The owner of an EC2 instance, according to its tags.

Everybody in the account with ``ec2:CreateTags`` can write tags, so they are never enough: an
instance is ours only when its tags *and* our records say so (decision 15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FLEET_TAG: Final = "reconciler/fleet"
CLUSTER_TAG: Final = "eks:eks-cluster-name"
NODE_FINALIZER: Final = "reconciler/termination"
"""Our finalizer: a Node that somebody deletes stays until its pods and its instance are gone."""

_CLUSTER_PREFIX: Final = "kubernetes.io/cluster/"
_OWNED: Final = "owned"


def cluster_key(cluster: str) -> str:
    """Return the key of the tag that Kubernetes' cloud provider reads: its value is ``owned``."""
    return f"{_CLUSTER_PREFIX}{cluster}"


@dataclass(frozen=True, slots=True)
class Owner:
    """A fleet of a cluster, as the tags of its instances name it."""

    fleet: str
    cluster: str

    @property
    def tags(self) -> dict[str, str]:
        """The tags that every instance of the fleet has from its launch."""
        return {
            CLUSTER_TAG: self.cluster,
            cluster_key(self.cluster): _OWNED,
            FLEET_TAG: self.fleet,
        }

    def owns(self, tags: Mapping[str, str]) -> bool:
        """Return whether all of our tags are there and no other cluster is named."""
        return self.is_named_by(tags) and self.tags.items() <= tags.items()

    def is_named_by(self, tags: Mapping[str, str]) -> bool:
        """Return whether tags name this fleet and this cluster, and no other cluster.

        One tag of the cluster is enough here. Such an instance is reported and prevents launches of
        the fleet, but only ``owns`` allows acting on it.
        """
        if tags.get(FLEET_TAG) != self.fleet:
            return False
        named = {
            key.removeprefix(_CLUSTER_PREFIX)
            for key, value in tags.items()
            if key.startswith(_CLUSTER_PREFIX) and value == _OWNED
        }
        if CLUSTER_TAG in tags:
            named.add(tags[CLUSTER_TAG])
        return named == {self.cluster}


@dataclass(frozen=True, slots=True)
class ClusterId:
    """A cluster in an account; only one fleet at a time may act for it, whatever its name.

    ``account`` is the number of the AWS account, empty if AWS could not be asked.
    """

    account: str
    region: str
    name: str

    def __bool__(self) -> bool:
        return bool(self.name)

    def __str__(self) -> str:
        where = f" of account {self.account}" if self.account else ""
        return f"{self.name} in {self.region}{where}"

    @property
    def key(self) -> str:
        """The cluster as one text; ``from_key`` parses it."""
        return f"{self.account}/{self.region}/{self.name}"

    @classmethod
    def from_key(cls, key: str) -> ClusterId:
        """Return the cluster of a ``key``."""
        account, region, name = (*key.split("/", 2), "", "")[:3]
        return cls(account, region, name)

    def may_equal(self, other: ClusterId) -> bool:
        """Return whether both are or may be the same cluster: an unknown account may be any."""
        return (self.region, self.name) == (other.region, other.name) and self._may_share_account(
            other
        )

    def is_out_of_reach(self, other: ClusterId) -> bool:
        """Return whether the instances of one cannot be seen from the other.

        That is so in another region or account. An unknown account may be any.
        """
        if not self or not other:
            return False
        return self.region != other.region or not self._may_share_account(other)

    def _may_share_account(self, other: ClusterId) -> bool:
        return self.account == other.account or not self.account or not other.account


NO_CLUSTER: Final = ClusterId("", "", "")
"""No cluster of a real account: EC2 is simulated, or nothing is launched."""

NO_OWNER: Final = Owner("", "")
"""No owner: it owns no instance that has an owner."""
