"""What the engine needs of desired state: where to read it, and how to plan with it.

Reading git, resolving node classes and catalogues is done by whoever wires the engine; a pass
only asks these questions.
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
from reconciler.plan.recall import Recall
from reconciler.plan.value.plan import InputDigests, Plan, Revision
from reconciler.ports.state import RecordedObject, RunningCommand, Unavailable


class Desired(Protocol):
    """The fleet as git wants it at one revision, ready to be planned."""

    @property
    def revision(self) -> str:
        """The commit, or a digest of the files outside a repository."""
        ...

    @property
    def head(self) -> Revision:
        """Which commit of which repository it is."""
        ...

    @property
    def digests(self) -> InputDigests:
        """A digest of each input but the observed cluster, which is left empty."""
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
        """The node classes by name, with what was looked up for them."""
        ...

    @property
    def node_claims(self) -> Sequence[NodeClaim]:
        """The NodeClaims that the fleet declares one by one."""
        ...

    def blueprints(self, unavailable: Sequence[Unavailable]) -> Mapping[str, Blueprint]:
        """Return what launches need, by NodePool, without the offerings that were refused."""
        ...

    def instance_type(self, node_pool: str, name: str) -> InstanceType | None:
        """Return a type as the class of that NodePool resolves it, None if there is none."""
        ...

    def restamped(
        self, claims: Sequence[NodeClaim], recorded: Sequence[RecordedObject]
    ) -> Sequence[NodeClaim]:
        """Return the claims whose drift hashes another version made, with those of this one."""
        ...

    def objects(self) -> Sequence[RecordedObject]:
        """Return the resolved objects with their hashes, as they are recorded."""
        ...

    def plan(
        self,
        seen: Observation,
        unavailable: Sequence[Unavailable],
        recorded: Sequence[RecordedObject],
        serial: int,
        recall: Recall,
    ) -> Plan:
        """Decide what is to be done now, and what git changes against ``recorded``.

        ``recall`` has what the passes before this one have worked out.
        """
        ...

    def evidence(self, seen: Observation) -> Fingerprints:
        """Return what an approval of a plan that is made from a look rests on."""
        ...

    def objection(self, command: RunningCommand, seen: Observation) -> str | None:
        """Say why a command that is ready to go on may not, None if it may."""
        ...


class DesiredSource(Protocol):
    """Where desired state comes from."""

    def read(self) -> Desired:
        """Return desired state as it is now.

        Raises:
            InvalidFleetError: it cannot be planned.
            UnreadableError: it cannot be read; unknown is not empty.
        """
        ...

    def fingerprint(self) -> str:
        """Return something cheap that changes whenever ``read`` would answer differently."""
        ...
