"""Volumes: where a pod's storage is reachable, what is missing, and attachment limits.

An existing volume ties its pod to the zones of its PersistentVolume. A volume that is provisioned
when the pod starts ties it to the zones of its StorageClass. Both are lists of alternatives. They
are kept separate from the pod's own requirements, so that they never count as its preferences
(Karpenter ``scheduling/volumetopology.go``, ``volumeusage.go``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from reconciler.model.karpenter.labels import HOSTNAME
from reconciler.model.karpenter.requirements import Operator, Requirements, requirement
from reconciler.model.kubernetes.cluster import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.storage import BIND_COMPLETED, ONE_POD, claim_keys, csi_driver
from reconciler.observed.state import ClusterState
from reconciler.placement.question import Rejection
from reconciler.placement.topology.rules import expression_requirements


class VolumeNeeds(msgspec.Struct, frozen=True):
    """The requirements of a pod's volumes on its node.

    ``alternatives`` are tried in order; if empty, any node is suitable. ``attached`` are the claims
    (``namespace/name``) by the CSI driver that attaches them. ``missing`` is the reason why the
    volumes are not available. ``exclusive`` are the claims that only one pod may use at a time.
    """

    alternatives: tuple[Requirements, ...] = ()
    attached: tuple[tuple[str, frozenset[str]], ...] = ()
    exclusive: frozenset[str] = frozenset()
    missing: Rejection | None = None


NO_VOLUMES: Final = VolumeNeeds()


def volume_needs(pod: Pod, cluster: ClusterState) -> VolumeNeeds:
    """Return the requirements of the pod's volumes."""
    if not pod.spec.volumes:
        return NO_VOLUMES
    attached: dict[str, set[str]] = {}
    choices: dict[str, list[Requirements]] = {}
    exclusive: set[str] = set()
    missing: Rejection | None = None
    for key in claim_keys(pod):
        name, claim = key.partition("/")[2], cluster.volume_claims.get(key)
        if claim is None:
            missing = missing or _claim_rejection(
                "PersistentVolumeClaimNotFound", name, "does not exist"
            )
            continue
        missing = missing or _claim_problem(claim, cluster)
        driver = csi_driver(claim, cluster.volumes, cluster.storage_classes)
        if driver:
            attached.setdefault(driver, set()).add(claim.key)
        if ONE_POD in claim.spec.access_modes:
            exclusive.add(claim.key)
        choice = _claim_locations(claim, cluster)
        if choice:
            choices[name] = choice
    needs = VolumeNeeds(
        combine_locations(list(choices.values())),
        tuple((driver, frozenset(names)) for driver, names in sorted(attached.items())),
        frozenset(exclusive),
        missing or _location_conflict(choices),
    )
    return NO_VOLUMES if needs == NO_VOLUMES else needs


def attached_volumes(cluster: ClusterState, pod: Pod) -> Iterable[tuple[str, frozenset[str]]]:
    """Return the pod's claims that are attached to its node, by the CSI driver."""
    return volume_needs(pod, cluster).attached


def claim_in_use(claims: Iterable[str], users: Mapping[str, str], *, runs: bool) -> Rejection:
    """Return the rejection of a pod whose claims for one pod another one of ``users`` has.

    ``runs`` is whether that pod has a node already, or is placed by the same pass.
    """
    key = min(claim for claim in claims if claim in users)
    name, user = key.partition("/")[2], users[key]
    remedy = (
        f"pod {user} uses it: wait until that pod ends"
        if runs
        else f"pod {user} comes first: give each pod a claim of its own"
    )
    return Rejection(
        "ClaimInUse",
        f"PersistentVolumeClaim {name} can be used by one pod at a time ({ONE_POD}), and {remedy},"
        " or use another access mode",
        facts={"claim": name, "pod": user},
    )


def _location_conflict(choices: Mapping[str, list[Requirements]]) -> Rejection | None:
    """Return a rejection if no node can reach all volumes of a pod."""
    combined = [Requirements()]
    for choice in choices.values():
        combined = [
            known.with_requirements(more.values())
            for known in combined
            for more in choice
            if known.intersects(more)
        ]
    if combined:
        return None
    places = {
        name: " or ".join(f"({location})" for location in choice)
        for name, choice in choices.items()
    }
    listed = ", ".join(f"{name} {place}" for name, place in places.items())
    return Rejection(
        "VolumesInDifferentZones",
        f"its volumes are in different zones, and no node reaches all of them: {listed}",
        facts=dict(places),
    )


def _claim_rejection(code: str, name: str, problem: str) -> Rejection:
    return Rejection(code, f"PersistentVolumeClaim {name} {problem}", facts={"claim": name})


def _claim_problem(claim: PersistentVolumeClaim, cluster: ClusterState) -> Rejection | None:
    """Return why a pod that uses the claim cannot start yet."""
    name = claim.metadata.name
    if claim.metadata.deletion_timestamp is not None:
        return _claim_rejection("PersistentVolumeClaimDeleting", name, "is being deleted")
    if claim.status.phase == "Lost":
        return _claim_rejection(
            "PersistentVolumeClaimLost", name, "has lost its volume: restore or recreate it"
        )
    if claim.spec.volume_name:
        return _volume_problem(claim, cluster.volumes.get(claim.spec.volume_name))
    storage_class = claim.spec.storage_class_name
    if not storage_class:
        return _claim_rejection("StorageClassMissing", name, "is not bound and has no StorageClass")
    known = cluster.storage_classes.get(storage_class)
    if known is None:
        return _claim_rejection(
            "StorageClassNotFound", name, f"refers to missing StorageClass {storage_class}"
        )
    if known.volume_binding_mode == "Immediate":
        return _claim_rejection(
            "VolumeNotBound",
            name,
            f"is not bound yet, and StorageClass {storage_class} binds immediately: "
            "wait for its volume, or use volumeBindingMode WaitForFirstConsumer",
        )
    return None


def _volume_problem(
    claim: PersistentVolumeClaim, volume: PersistentVolume | None
) -> Rejection | None:
    name, wanted = claim.metadata.name, claim.spec.volume_name
    if volume is None:
        return _claim_rejection(
            "PersistentVolumeNotFound", name, f"refers to missing PersistentVolume {wanted}"
        )
    if volume.metadata.deletion_timestamp is not None:
        return _claim_rejection(
            "PersistentVolumeDeleting", name, f"is bound to {wanted}, which is being deleted"
        )
    if BIND_COMPLETED not in claim.metadata.annotations:
        return _claim_rejection("VolumeNotBound", name, f"is not yet bound to {wanted}")
    return None


def _claim_locations(claim: PersistentVolumeClaim, cluster: ClusterState) -> list[Requirements]:
    """Return the alternative locations from which the claim's volume is reachable."""
    if claim.spec.volume_name:
        volume = cluster.volumes.get(claim.spec.volume_name)
        return _volume_locations(volume) if volume is not None else []
    known = cluster.storage_classes.get(claim.spec.storage_class_name or "")
    return _class_locations(known) if known is not None else []


def _volume_locations(volume: PersistentVolume) -> list[Requirements]:
    """Return the terms of the volume's node affinity.

    A local path ties its pod to a host that may no longer exist. The pod's next node is a different
    one, so the hostname is dropped. A term that has no other expression does not restrict the pod.
    """
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return []
    on_host = volume.spec.local is not None or volume.spec.host_path is not None
    found = []
    for term in affinity.required.node_selector_terms:
        if term.match_expressions:
            items = Requirements(expression_requirements(term.match_expressions))
            found.append(items.without((HOSTNAME,)) if on_host else items)
    return found


def _class_locations(storage_class: StorageClass) -> list[Requirements]:
    return [
        Requirements(
            requirement(e.key, Operator.IN, e.values) for e in term.match_label_expressions
        )
        for term in storage_class.allowed_topologies
    ]


def combine_locations(choices: list[list[Requirements]]) -> tuple[Requirements, ...]:
    """Return every consistent combination of one alternative for each volume.

    If none is consistent, all are returned: then no node is suitable, and the reason shows why.
    """
    combined = [Requirements()]
    for choice in choices:
        pairs = [(known, more) for known in combined for more in choice]
        agreeing = [(known, more) for known, more in pairs if known.intersects(more)] or pairs
        combined = [known.with_requirements(more.values()) for known, more in agreeing]
    return tuple(combined) if choices else ()
