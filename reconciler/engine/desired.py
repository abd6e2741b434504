"""What the engine needs from the desired state: where to read it, and how to plan with it.

Reading git and resolving node classes and catalogs is the task of ``assembly``; a pass only uses
these ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from reconciler.engine.observation import Observation
from reconciler.engine.steps.provision import Blueprint
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.observed.fingerprint import Fingerprints
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.plancache import PlanCache
from reconciler.plan.value.plan import InputDigests, Plan, Revision
from reconciler.ports.state import RecordedObject, RunningCommand, Unavailable


class Desired(Protocol):
    """The fleet as git declares it at one revision, ready to be planned."""

    @property
    def revision(self) -> str:
        """The commit, or a digest of the files outside a repository."""
        ...

    @property
    def head(self) -> Revision:
        """The commit and the repository that it belongs to."""
        ...

    @property
    def title(self) -> str:
        """The subject of the commit with its author, empty if unknown."""
        ...

    @property
    def digests(self) -> InputDigests:
        """A digest of each input except the observed cluster, whose digest is left empty."""
        ...

    @property
    def settings(self) -> Settings:
        """The settings of the fleet."""
        ...

    @property
    def node_pools(self) -> Sequence[NodePool]:
        """The NodePools of the fleet."""
        ...

    @property
    def classes(self) -> Mapping[str, EC2NodeClass]:
        """The node classes by name, resolved against the account."""
        ...

    @property
    def node_claims(self) -> Sequence[NodeClaim]:
        """The NodeClaims that the fleet declares one by one."""
        ...

    def blueprints(self, unavailable: Sequence[Unavailable]) -> Mapping[str, Blueprint]:
        """Return what launches need, by NodePool, without unavailable offerings."""
        ...

    def instance_type(self, node_pool: str, name: str) -> InstanceType | None:
        """Return an instance type as the class of that NodePool resolves it, or None."""
        ...

    def migrate_hashes(
        self, claims: Sequence[NodeClaim], recorded: Sequence[RecordedObject]
    ) -> Sequence[NodeClaim]:
        """Return the claims with hashes of another version, with hashes of this version."""
        ...

    @property
    def spot_prices(self) -> Mapping[str, Mapping[str, float]]:
        """The known spot prices by instance type and zone, USD an hour; none that is estimated."""
        ...

    def objects(self) -> Sequence[RecordedObject]:
        """Return the resolved objects with their hashes, in the form in which they are recorded."""
        ...

    def plan(
        self,
        seen: Observation,
        unavailable: Sequence[Unavailable],
        recorded: Sequence[RecordedObject],
        serial: int,
        cache: PlanCache,
    ) -> Plan:
        """Decide what to do now, and what git changes against ``recorded``.

        ``cache`` holds what earlier passes have computed.
        """
        ...

    def inputs(
        self,
        seen: Observation,
        unavailable: Sequence[Unavailable],
        recorded: Sequence[RecordedObject],
        serial: int,
    ) -> Inputs:
        """Return what ``plan`` decides from."""
        ...

    def deletion_ranks(self, seen: Observation, plan: Plan) -> Mapping[str, int | None]:
        """Return the deletion cost that the pods of each node should have, None for none."""
        ...

    def evidence(self, seen: Observation) -> Fingerprints:
        """Return fingerprints of the facts that a plan of this observation is made from."""
        ...

    def objection(self, command: RunningCommand, seen: Observation) -> str | None:
        """Return why a command that is ready must not continue, or None."""
        ...


class DesiredSource(Protocol):
    """Where desired state comes from."""

    def read(self) -> Desired:
        """Return the current desired state.

        Raises:
            InvalidFleetError: it cannot be planned.
            UnreadableError: it cannot be read; unknown is not empty.
        """
        ...

    def fingerprint(self) -> str:
        """Return a cheap value that changes whenever ``read`` would return something else."""
        ...
