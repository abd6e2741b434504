"""EC2 and the cluster as a snapshot captured them: they can be observed, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from reconciler.model.errors import CloudError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer


class CapturedCompute:
    """The instances that EC2 showed when a snapshot was captured (the port ``Compute``)."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = tuple(instances)

    def resolve(self, node_class: EC2NodeClass) -> EC2NodeClass:
        """Return the class unchanged: the snapshot has its status."""
        return node_class

    def instances(self) -> Sequence[Instance]:
        """Return every instance, including those that the engine had to look up."""
        return self._instances

    def find(self, intents: Sequence[str]) -> Sequence[Instance]:
        """Return nothing: no launch is in doubt here."""
        del intents
        return ()

    def look_up(self, ids: Sequence[str]) -> Sequence[Instance]:
        """Return nothing: what was not captured is not known."""
        del ids
        return ()

    def launch(self, requests: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
        """Refuse."""
        del requests
        _refuse()

    def terminate(self, ids: Sequence[str]) -> None:
        """Refuse."""
        del ids
        _refuse()

    def reboot(self, instance: str) -> None:
        """Refuse."""
        del instance
        _refuse()

    def tag(self, instance: str, tags: Mapping[str, str]) -> None:
        """Refuse."""
        del instance, tags
        _refuse()


def _refuse() -> NoReturn:
    raise CloudError("a snapshot cannot be changed", where="--snapshot")


class CapturedCluster:
    """The objects of a snapshot, with the NodeClaims passed to ``observe``."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what ran when the snapshot was captured."""
        del instances
        return replace(self._snapshot, node_claims=tuple(sorted(claims, key=lambda c: c.name)))

    def has_node(self, node: str) -> bool:
        """Return whether the snapshot has a Node of that name."""
        return any(known.name == node for known in self._snapshot.nodes)
