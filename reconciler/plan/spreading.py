"""Where the default spread of pods finds their controllers: in the cluster, and in git."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reconciler.desired.objects import templates
from reconciler.model.metadata import LabelSelector
from reconciler.model.pod import Pod
from reconciler.observed.state import ClusterState
from reconciler.placement import defaultspread
from reconciler.placement.defaultspread import DefaultSpread, Owner
from reconciler.plan.inputs import Inputs


def with_default_spread(cluster: ClusterState, inputs: Inputs) -> ClusterState:
    """Return the cluster whose pods bear the configured spread where they name none."""
    every = [*cluster.pods, *(pod for node in cluster.nodes for pod in node.pods)]
    _, in_git = templates(inputs.fleet, frozenset(_owners(every)))
    scalables = {**in_git, **cluster.scalables}
    selectors: dict[Owner, LabelSelector] = {
        owner: item.spec.selector
        for owner, item in scalables.items()
        if item.spec.selector is not None
    }
    spread = DefaultSpread(
        inputs.settings.default_constraints,
        cluster.services,
        selectors,
        {
            f"{item.metadata.namespace or 'default'}/{item.metadata.name}": item.spec.selector
            for item in cluster.replication_controllers
        },
    )
    return defaultspread.with_default_spread(cluster, spread)


def _owners(pods: Iterable[Pod]) -> Iterator[Owner]:
    for pod in pods:
        for owner in pod.metadata.owner_references:
            if owner.kind in ("ReplicaSet", "StatefulSet"):
                yield owner.kind, f"{pod.namespace}/{owner.name}"
