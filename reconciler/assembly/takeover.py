"""Instances to adopt: those of another autoscaler, or those missing from a lost state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.model.ownership import Owner

if TYPE_CHECKING:
    from reconciler.adapters.aws.compute import AwsCompute
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.takeover import AdoptionCandidate
    from reconciler.observed.snapshot import Snapshot
    from reconciler.ports.clock import Clock
    from reconciler.ports.journal import Journal
    from reconciler.ports.state import StateStore


@dataclass(frozen=True)
class Takeover:
    """What ``state adopt`` works with: a fleet, and the instances of its cluster."""

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
    def owner(self) -> Owner:
        """The fleet that takes over, as the tags of its instances name it."""
        return Owner(self.fleet, self.cluster)

    @property
    def cluster(self) -> str:
        """The name of the cluster that the instances belong to."""
        return self.desired.settings.cluster_name

    def survey(self, snapshot: Snapshot | None) -> Sequence[AdoptionCandidate]:
        """Return the expected outcome for each instance.

        Raises:
            TransientCloudError, CloudError: the request to EC2 failed.
        """
        from reconciler.engine import takeover
        from reconciler.engine.ownership import launches_of

        desired, owner = self.desired, self.owner
        ours = takeover.AdoptionContext(
            owner=owner,
            is_settled=lambda instance: bool(launches_of([instance], self.journal, owner)),
            pools={pool.name: pool for pool in desired.node_pools},
            classes=frozenset(desired.classes),
            recorded=self.store.node_claims(),
            hash_of=desired.hash_of,
            rehash=desired.rehash,
            types=desired.instance_type,
        )
        found = (*self.compute.karpenter_instances(), *self.compute.instances())
        return takeover.evaluate_instances({i.id: i for i in found}.values(), snapshot, ours)

    def price_of(self, stake: AdoptionCandidate) -> float | None:
        """Return the price of an instance in USD an hour, None if it is unknown."""
        instance = stake.instance
        kind = self.desired.catalog.get(instance.instance_type)
        return None if kind is None else kind.price_of(instance.zone, instance.capacity_type)

    def adopt(self, stakes: Sequence[AdoptionCandidate]) -> Sequence[str]:
        """Record and tag the instances that can be adopted; return the failures."""
        from reconciler.engine.takeover import AdoptionPorts, adopt_instances

        hands = AdoptionPorts(self.clock, self.compute, self.store, self.journal)
        return adopt_instances(stakes, hands, self.owner, self.desired.revision)
