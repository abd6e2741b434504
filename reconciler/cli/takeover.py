"""Another autoscaler's fleet, as far as it is to become ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconciler.adapters.aws.compute import AwsCompute
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.takeover import Stake
    from reconciler.observed.snapshot import Snapshot
    from reconciler.ports import Clock, Journal, StateStore


@dataclass(frozen=True)
class Takeover:
    """What ``state adopt`` works with: a fleet, and what Karpenter launched in its cluster."""

    compute: AwsCompute
    desired: PlannedFleet
    store: StateStore
    journal: Journal
    clock: Clock

    @property
    def fleet(self) -> str:
        """The name of the fleet that takes over."""
        return self.desired.settings.fleet

    @property
    def cluster(self) -> str:
        """The name of the cluster whose instances these are."""
        return self.desired.settings.cluster_name

    def survey(self, snapshot: Snapshot | None) -> Sequence[Stake]:
        """Return what would become of each instance.

        Raises:
            TransientCloudError, CloudError: EC2 could not be asked.
        """
        from reconciler.engine import takeover

        desired = self.desired
        ours = takeover.Claims(
            fleet=self.fleet,
            pools={pool.name: pool for pool in desired.node_pools},
            classes=frozenset(desired.classes),
            recorded=self.store.node_claims(),
            hash_of=desired.hash_of,
            rehash=desired.rehash,
            types=desired.instance_type,
        )
        return takeover.survey(self.compute.of_karpenter(), snapshot, ours)

    def take(self, stakes: Sequence[Stake]) -> Sequence[str]:
        """Record what may be taken and tag it; return what went wrong."""
        from reconciler.engine.takeover import Hands, take_over

        hands = Hands(self.clock, self.compute, self.store, self.journal)
        return take_over(stakes, hands, self.fleet, self.desired.revision)
