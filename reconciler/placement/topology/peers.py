"""Which pods are the peers of a pod: those that its Services and its controller select.

kube-scheduler derives this selector for default spread constraints, which have none of their own
(Kubernetes ``pkg/scheduler/framework/plugins/helper/spread.go``, ``DefaultSelector``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from reconciler.model.karpenter.capacitybuffer import Scalable
from reconciler.model.kubernetes.cluster import ReplicationController, Service
from reconciler.model.kubernetes.metadata import LabelSelector, OwnerReference, SelectorExpression
from reconciler.model.kubernetes.pod import Pod

TEMPLATE_HASH: Final = "pod-template-hash"
_EXACT: Final = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}
_REPLICATION: Final = ("v1", "ReplicationController")
_OWN_LABELS: Final = frozenset(
    {
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "controller-revision-hash",
    }
)
"""Labels by which the pods of one controller differ."""

Owner = tuple[str, str]
"""Kind, and ``namespace/name``."""


@dataclass(frozen=True, slots=True)
class Owners:
    """What selects pods: Services, and the controllers that own them.

    ``selectors`` are those of ReplicaSets and StatefulSets, ``replications`` those of
    ReplicationControllers by ``namespace/name``.
    """

    services: tuple[Service, ...] = ()
    selectors: Mapping[Owner, LabelSelector] = field(default_factory=dict)
    replications: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def owners_of(
    services: Iterable[Service],
    scalables: Mapping[Owner, Scalable],
    replications: Iterable[ReplicationController],
) -> Owners:
    """Return the owners in a cluster; ``scalables`` are its ReplicaSets and StatefulSets."""
    return Owners(
        tuple(services),
        {
            owner: item.spec.selector
            for owner, item in scalables.items()
            if item.spec.selector is not None
        },
        {
            f"{item.metadata.namespace or 'default'}/{item.metadata.name}": item.spec.selector
            for item in replications
        },
    )


class Peers:
    """Derives the selector of a pod's peers.

    For an unknown ReplicaSet, the label that distinguishes the revisions of a Deployment is used.
    With ``assumes_template``, the labels that an unknown controller gives all of its pods are used
    if the pod does not have it.
    """

    def __init__(self, owners: Owners, *, assumes_template: bool = False) -> None:
        self._owners = owners
        self._assumes_template = assumes_template
        self._services: dict[str, list[Mapping[str, str]]] = {}
        for service in sorted(owners.services, key=lambda s: s.metadata.name):
            if service.spec.selector:
                namespace = service.metadata.namespace or "default"
                self._services.setdefault(namespace, []).append(service.spec.selector)

    def selector(self, pod: Pod) -> LabelSelector | None:
        """Return the selector of the pod's peers, or None if none can be derived.

        An empty selector would count every pod of the namespace.
        """
        pairs: dict[str, str] = {}
        labels, owner = pod.metadata.labels, pod.metadata.controller
        for selector in self._services.get(pod.namespace, ()):
            if all(labels.get(name) == value for name, value in selector.items()):
                pairs.update(selector)
        expressions: tuple[SelectorExpression, ...] = ()
        if owner is not None and (owner.api_version, owner.kind) == _REPLICATION:
            pairs.update(self._owners.replications.get(f"{pod.namespace}/{owner.name}", {}))
        elif owner is not None and _EXACT.get(owner.kind) == owner.api_version:
            expressions = self._owner_expressions(pod, owner)
        return LabelSelector(pairs, expressions) if pairs or expressions else None

    def _owner_expressions(self, pod: Pod, owner: OwnerReference) -> tuple[SelectorExpression, ...]:
        """Return the owner's selector as expressions; the Services' selectors are added to them."""
        found = self._owners.selectors.get((owner.kind, f"{pod.namespace}/{owner.name}"))
        if found is None:
            found = self._assumed_selector(pod, owner)
        exact = (
            SelectorExpression(name, "In", (value,))
            for name, value in sorted(found.match_labels.items())
        )
        return (*exact, *found.match_expressions)

    def _assumed_selector(self, pod: Pod, owner: OwnerReference) -> LabelSelector:
        labels = pod.metadata.labels
        revision = labels.get(TEMPLATE_HASH)
        if owner.kind == "ReplicaSet" and revision is not None:
            return LabelSelector({TEMPLATE_HASH: revision})
        if not self._assumes_template:
            return LabelSelector()
        return LabelSelector({k: v for k, v in labels.items() if k not in _OWN_LABELS})
