"""What git changes, and which NodeClaims no longer match it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from reconciler.desired.fleet import Fleet
from reconciler.desired.objects import file_objects
from reconciler.diff.nodeclass import AMI_DRIFT, SECURITY_GROUP_DRIFT, SUBNET_DRIFT, ClassState
from reconciler.model.decision.changes import Change, DriftedClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import FeatureGate
from reconciler.plan.make.disclosure import disclosed_fields
from reconciler.plan.make.factscache import FactsCache, HashCache
from reconciler.plan.make.inputs import Inputs, Object
from reconciler.plan.make.pools import PoolTypes
from reconciler.source.resource import CONFIG_FILES, Resource

_OURS: Final = ("NodePool", "NodeOverlay", "EC2NodeClass")
_FILES: Final = ("Configuration", "Lock")
"""Kinds that are our own files, which are compared differently."""


def drift_of(
    inputs: Inputs,
    pools: PoolTypes,
    classes: Mapping[str, EC2NodeClass],
    cache: FactsCache | None = None,
) -> tuple[DriftedClaim, ...]:
    """Return the NodeClaims that drifted, by name; none while the feature gate ``Drift`` is off.

    ``cache`` has the results for the last inputs of the same loop.
    """
    if not inputs.settings.gate(FeatureGate.DRIFT) or not any(
        node.is_managed for node in inputs.cluster.nodes
    ):
        return ()
    from reconciler.diff.drift import DesiredObjects, find_drift

    known = (cache.hashes if cache is not None else HashCache()).get(
        inputs.fleet, inputs.settings.cluster_ca_bundle
    )
    facts = {
        r.name: ClassState(classes[r.name], known.get((r.kind, r.name)), inputs.instances)
        for r in inputs.fleet.node_classes
    }
    hashes = {
        r.name: found
        for r in inputs.fleet.node_pools
        if (found := known.get((r.kind, r.name))) is not None
    }
    desired = DesiredObjects(pools.every, hashes, facts)
    return find_drift(
        desired, inputs.cluster, inputs.now, cache.drift if cache is not None else None
    )


def changes_of(inputs: Inputs, drift: Iterable[DriftedClaim]) -> tuple[Change, ...]:
    """Return what git changes, each object with the NodeClaims that drift because of it.

    Compared with another commit, every object counts; compared with records or a cluster, only the
    kinds in them.
    """
    if inputs.base is None:
        return ()
    from reconciler.diff import changes as diff

    base, head, places = _compared_objects(inputs, inputs.base)

    def place(item: Object) -> tuple[str | None, int | None]:
        return places.get(id(item), (None, None))

    found = diff.object_changes(base, head, place=place)
    drifted = list(drift)
    objects = tuple(_planned_change(change, inputs.fleet, drifted) for change in found)
    return (*objects, *_file_changes(inputs, drifted))


def _is_compared(inputs: Inputs, kind: object) -> bool:
    return kind not in _FILES if inputs.compared_with == "base" else kind in _OURS


def _compared_objects(
    inputs: Inputs, base_objects: Iterable[Object]
) -> tuple[list[Object], list[Object], dict[int, tuple[str, int]]]:
    """Return the objects of both sides, and where those of git stand, by their identity."""
    resources = [r for r in inputs.fleet.resources if _is_compared(inputs, r.kind)]
    base = [o for o in base_objects if _is_compared(inputs, o.get("kind"))]
    head: list[Object] = [r.data for r in resources]
    if inputs.compared_with == "cluster":
        from reconciler.diff.liveobjects import comparable_objects, with_defaults

        base = [*comparable_objects(base, head)]
        head = [with_defaults(item) for item in head]
    places = {id(item): (r.file, r.line) for item, r in zip(head, resources, strict=True)}
    return base, head, places


def _file_changes(inputs: Inputs, drift: list[DriftedClaim]) -> tuple[Change, ...]:
    """Return what changes in the fleet's config and in its lock; a cluster has neither."""
    if inputs.compared_with == "cluster":
        return ()
    old = {str(o["kind"]): o for o in inputs.base or () if o.get("kind") in _FILES}
    new = {str(o["kind"]): o for o in file_objects(inputs.fleet)}
    if old == new:
        return ()
    from reconciler.diff.changes import configuration_changes, lock_changes

    fleet = inputs.fleet

    def place(path: str) -> tuple[str, int]:
        return fleet.config_file or CONFIG_FILES[0], _line(fleet.config_lines, path)

    found = (
        *configuration_changes(old.get("Configuration"), new.get("Configuration"), place),
        *lock_changes(old.get("Lock"), new.get("Lock"), lambda path: _line(fleet.lock_lines, path)),
    )
    return tuple(
        msgspec.structs.replace(
            _planned_change(change, fleet, []),
            drifted=_claims_drifted_by_lock(change, fleet, drift),
        )
        for change in found
    )


def _line(lines: Mapping[str, int], path: str) -> int:
    """Return the line of a field, or of its nearest existing parent."""
    while path and path not in lines:
        path = path.rpartition(".")[0]
    return lines.get(path, 1)


def _claims_drifted_by_lock(
    change: Change, fleet: Fleet, drift: list[DriftedClaim]
) -> tuple[str, ...]:
    """Return the claims that drifted because of the lock entry of their node class."""
    from reconciler.diff.changes import IMAGES, SECURITY_GROUPS, SUBNETS

    reasons = {
        IMAGES: AMI_DRIFT,
        SUBNETS: SUBNET_DRIFT,
        SECURITY_GROUPS: SECURITY_GROUP_DRIFT,
    }
    owner, _, subject = change.name.rpartition(".")
    if change.kind != "Lock" or subject not in reasons:
        return ()
    name = owner.removeprefix("nodeClasses.")
    pools = {r.name for r in fleet.node_pools if _class_name(r) == name}
    return tuple(
        d.node_claim for d in drift if d.node_pool in pools and d.reason == reasons[subject]
    )


def _planned_change(change: Change, fleet: Fleet, drift: list[DriftedClaim]) -> Change:
    return msgspec.structs.replace(
        change,
        fields=disclosed_fields(change.fields),
        drifted=_claims_drifted_by(change, fleet, drift) if change.drifts else (),
    )


def _claims_drifted_by(change: Change, fleet: Fleet, drift: list[DriftedClaim]) -> tuple[str, ...]:
    """Return the claims whose drift is of the kind that this change causes."""
    from reconciler.diff.drift import (
        INSTANCE_TYPE_NOT_FOUND,
        NODE_POOL_DRIFTED,
        REQUIREMENTS_DRIFTED,
    )

    if change.kind == "NodePool":
        pools, own = {change.name}, True
    else:
        pools, own = {r.name for r in fleet.node_pools if _class_name(r) == change.name}, False
    return tuple(
        d.node_claim
        for d in drift
        if d.node_pool in pools
        and (d.reason in (NODE_POOL_DRIFTED, REQUIREMENTS_DRIFTED)) is own
        and d.reason != INSTANCE_TYPE_NOT_FOUND
    )


def _class_name(pool: Resource) -> str:
    name: str = pool.data["spec"]["template"]["spec"]["nodeClassRef"]["name"]
    return name
