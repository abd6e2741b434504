"""Determine which NodeClaims have drifted, why, and which side changed.

The rules are Karpenter's (``pkg/controllers/nodeclaim/disruption/drift.go`` and the AWS provider's
``drift.go``), applied to facts instead of the condition that Karpenter recorded:

1. Reasons that can be computed are computed, in Karpenter's order: the hash of the NodePool's
   template, requirements, instance type, then the node class. The first difference is the reason.
2. A recorded ``Drifted`` condition is used if the facts to compute its reason are missing: no
   hash on the claim, one of another version, a class without status. A computable reason that
   no longer applies is dropped, as Karpenter would clear it.
3. A claim that has not launched, is being deleted, or whose NodePool is gone never drifts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from reconciler.desired.hash import NODE_POOL_HASH_VERSION
from reconciler.diff.changes import format_path
from reconciler.diff.nodeclass import ClassState, class_drift
from reconciler.model.decision.changes import DriftedClaim, FieldChange, Side
from reconciler.model.duration import parse_nillable
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    NODEPOOL_HASH,
    NODEPOOL_HASH_VERSION,
    ON_DEMAND,
    RESERVATION_ID,
    RESERVED,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Requirements, requirement
from reconciler.model.kubernetes.taint import Taint
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.question import LaunchPool

NODE_POOL_DRIFTED: Final = "NodePoolDrifted"
REQUIREMENTS_DRIFTED: Final = "RequirementsDrifted"
INSTANCE_TYPE_NOT_FOUND: Final = "InstanceTypeNotFound"

_TYPE_CHECK_AGE: Final = timedelta(hours=1)
_REQUIREMENTS_PATH: Final = "spec.template.spec.requirements"

_OFFERING_KEYS: Final = frozenset({CAPACITY_TYPE, RESERVATION_ID})


def template_fields(claim: NodeClaim, pool: NodePool) -> tuple[FieldChange, ...]:
    """Return the hashed fields of the pool's template that differ on the claim.

    A claim also has labels and annotations from other sources, so one that was removed from the
    template cannot be detected: the hash may differ although no field is named.
    """
    return tuple(
        FieldChange(p, old, new, drifts=True) for p, old, new in _differing_fields(claim, pool)
    )


def _differing_fields(claim: NodeClaim, pool: NodePool) -> Iterator[tuple[str, object, object]]:
    template = pool.spec.template
    for kind in ("annotations", "labels"):
        have: dict[str, str] = getattr(claim.metadata, kind)
        want: dict[str, str] = getattr(template.metadata, kind)
        for key in sorted(want):
            if have.get(key) != want[key]:
                path = format_path(("spec", "template", "metadata", kind, key))
                yield path, have.get(key), want[key]
    spec = "spec.template.spec."
    own, desired = claim.spec, template.spec
    if parse_nillable(own.expire_after) != parse_nillable(desired.expire_after):
        yield f"{spec}expireAfter", own.expire_after, desired.expire_after
    if own.node_class_ref != desired.node_class_ref:
        yield f"{spec}nodeClassRef.name", own.node_class_ref.name, desired.node_class_ref.name
    for name, old, new in (
        ("startupTaints", own.startup_taints, desired.startup_taints),
        ("taints", own.taints, desired.taints),
    ):
        if _format_taints(old) != _format_taints(new):
            yield spec + name, _format_taints(old), _format_taints(new)
    if claim.termination_grace_period != pool.termination_grace_period:
        yield (
            f"{spec}terminationGracePeriod",
            own.termination_grace_period,
            desired.termination_grace_period,
        )


def _format_taints(taints: tuple[Taint, ...]) -> list[str]:
    return sorted(f"{t.key}={t.value}:{t.effect}" for t in taints)


@dataclass(frozen=True, slots=True)
class DesiredObjects:
    """The parts of the fleet's files that drift depends on.

    ``pool_hashes`` are by name of NodePool; a pool without one cannot drift by hash. ``classes``
    are by name of node class.
    """

    pools: Sequence[LaunchPool]
    pool_hashes: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, ClassState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Finding:
    """A reason before it is attached to a claim; a ``reason`` of None means no drift."""

    reason: str | None
    recorded_hash: str | None = None
    desired_hash: str | None = None
    fields: tuple[FieldChange, ...] = ()
    side: Side = Side.GIT


_NO_DRIFT: Final = _Finding(None)


class DriftCache:
    """The results of the last search, for NodeClaims about which nothing has changed.

    A result is used again if the desired state, the claim and its instance are equal, and if the
    claim has not become old enough meanwhile for its type to be checked.
    """

    def __init__(self) -> None:
        self._desired: DesiredObjects | None = None
        self._found: dict[str, _CachedResult] = {}

    def begin(self, desired: DesiredObjects) -> None:
        """Forget everything if another desired state is compared than last time."""
        if self._desired is None or not _is_same_desired_state(desired, self._desired):
            self._found = {}
        self._desired = desired

    def find(
        self, claim: NodeClaim, facts: tuple[object, ...], now: datetime
    ) -> _CachedResult | None:
        """Return the last result for a claim, None if it may be different now."""
        known = self._found.get(claim.name)
        if known is None or now < known.at or known.facts != facts:
            return None
        return known if known.until is None or now < known.until else None

    def replace_results(self, found: dict[str, _CachedResult]) -> None:
        """Replace the results; those of claims that are gone are forgotten."""
        self._found = found


@dataclass(frozen=True, slots=True)
class _CachedResult:
    """The result for one claim at ``at``; ``until`` is when time alone may change it."""

    facts: tuple[object, ...]
    at: datetime
    until: datetime | None
    finding: _Finding | None


def _is_same_desired_state(left: DesiredObjects, right: DesiredObjects) -> bool:
    if len(left.pools) != len(right.pools) or left.classes.keys() != right.classes.keys():
        return False
    pools = zip(left.pools, right.pools, strict=True)
    if not all(a.types is b.types and a.node_pool == b.node_pool for a, b in pools):
        return False
    classes = ((a, right.classes[name]) for name, a in left.classes.items())
    return left.pool_hashes == right.pool_hashes and all(
        (a.hash, a.node_class) == (b.hash, b.node_class) for a, b in classes
    )


def find_drift(
    desired: DesiredObjects, cluster: ClusterState, now: datetime, cache: DriftCache | None = None
) -> tuple[DriftedClaim, ...]:
    """Return the NodeClaims that drifted, ordered by name.

    ``cache`` holds the results of the last search of the same loop.
    """
    cache = cache or DriftCache()
    cache.begin(desired)
    pools = {pool.node_pool.name: _PoolChecks(pool) for pool in desired.pools}
    found: list[DriftedClaim] = []
    results: dict[str, _CachedResult] = {}
    for node in cluster.nodes:
        claim = node.claim
        pool = pools.get(claim.node_pool) if claim is not None else None
        if claim is None or pool is None:
            continue
        facts = _drift_facts(claim, node, desired)
        known = cache.find(claim, facts, now)
        if known is None:
            due = type_check_due_at(claim)
            until = due if due is not None and due > now else None
            known = _CachedResult(facts, now, until, _claim_drift(node, claim, pool, desired, now))
        results[claim.name] = known
        if known.finding is not None and known.finding.reason is not None:
            found.append(_make_drift(node, claim, known.finding))
    cache.replace_results(results)
    return tuple(sorted(found, key=lambda d: d.node_claim))


def _drift_facts(claim: NodeClaim, node: StateNode, desired: DesiredObjects) -> tuple[object, ...]:
    """Return the facts about a node that decide whether it has drifted."""
    status, state = claim.status, desired.classes.get(claim.spec.node_class_ref.name)
    instance = state.instances.get(status.provider_id) if state is not None else None
    return (
        claim.metadata,
        claim.spec,
        status.conditions,
        status.provider_id,
        status.image_id,
        node.marked,
        instance,
    )


def type_check_due_at(claim: NodeClaim) -> datetime | None:
    """Return the time from which the claim is old enough for its type to be checked."""
    created = claim.metadata.creation_timestamp
    return None if created is None else created + _TYPE_CHECK_AGE + datetime.resolution


def _make_drift(node: StateNode, claim: NodeClaim, finding: _Finding) -> DriftedClaim:
    assert finding.reason is not None
    return DriftedClaim(
        node_claim=claim.name,
        node=node.node.name if node.node is not None else None,
        node_pool=claim.node_pool,
        reason=finding.reason,
        recorded_hash=finding.recorded_hash,
        desired_hash=finding.desired_hash,
        fields=finding.fields,
        side=finding.side,
    )


class _PoolChecks:
    """The checks of a NodePool's claims that read labels, made once for equal labels."""

    def __init__(self, pool: LaunchPool) -> None:
        self.pool = pool
        self._requirements = pool.node_pool.requirements()
        self._by_requirements: dict[tuple[str | None, ...], _Finding] = {}
        self._by_offerings: dict[tuple[str | None, ...], bool] = {}
        self._offering_keys: dict[str, list[str]] = {}

    def requirements(self, labels: Mapping[str, str]) -> _Finding:
        """Check whether labels satisfy the requirements: a missing label satisfies none."""
        read = tuple(map(labels.get, self._requirements))
        known = self._by_requirements.get(read)
        if known is None:
            own = {key: labels[key] for key in self._requirements if key in labels}
            known = self._by_requirements[read] = _requirement_drift(own, self._requirements)
        return known

    def has_offering(self, labels: Mapping[str, str]) -> bool:
        """Return whether the catalog still has the offering of a claim with these labels."""
        name = labels.get(INSTANCE_TYPE, "")
        kind = self.pool.types.get(name)
        if kind is None:
            return False
        keys = self._offering_keys.get(name)
        if keys is None:
            keys = sorted({k for o in kind.offerings for k in o.requirements} | _OFFERING_KEYS)
            self._offering_keys[name] = keys
        read = (name, *map(labels.get, keys))
        known = self._by_offerings.get(read)
        if known is None:
            own = {key: labels[key] for key in keys if key in labels}
            known = self._by_offerings[read] = _has_offering(own, kind, self.pool.types.well_known)
        return known


def _claim_drift(
    node: StateNode, claim: NodeClaim, checked: _PoolChecks, desired: DesiredObjects, now: datetime
) -> _Finding | None:
    if not claim.is_true("Launched") or claim.is_deleting or node.marked:
        return None
    pool = checked.pool
    checks = {
        NODE_POOL_DRIFTED: _hash_drift(claim, pool.node_pool, desired.pool_hashes),
        REQUIREMENTS_DRIFTED: checked.requirements(claim.metadata.labels),
        INSTANCE_TYPE_NOT_FOUND: _type_drift(claim, checked, now),
    }
    for finding in checks.values():
        if finding is not None and finding.reason is not None:
            return finding
    by_class = class_drift(claim, desired.classes.get(claim.spec.node_class_ref.name), pool.types)
    for reason, differs in by_class.items():
        if differs is not None:
            side = Side.GIT if differs.recorded_hash else Side.WORLD
            return _Finding(
                reason, differs.recorded_hash, differs.desired_hash, differs.fields, side
            )
    computed = {reason for reason, finding in checks.items() if finding is not None}
    return _recorded_drift(claim, computed | by_class.keys())


def _recorded_drift(claim: NodeClaim, computed: set[str]) -> _Finding | None:
    """Return what Karpenter recorded, if the facts to compute it are missing."""
    condition = claim.condition("Drifted")
    if condition is None or condition.status != "True" or condition.reason in computed:
        return None
    version = claim.metadata.annotations.get(NODEPOOL_HASH_VERSION, NODE_POOL_HASH_VERSION)
    side = Side.WORLD if version == NODE_POOL_HASH_VERSION else Side.US
    recorded = claim.metadata.annotations.get(NODEPOOL_HASH)
    return _Finding(condition.reason or "Drifted", recorded_hash=recorded, side=side)


def _hash_drift(claim: NodeClaim, pool: NodePool, hashes: Mapping[str, str]) -> _Finding | None:
    """Compare the hash that the claim was made with; None if the two cannot be compared.

    Hashes of different versions are not comparable: an upgrade must not replace a fleet.
    """
    recorded = claim.metadata.annotations.get(NODEPOOL_HASH)
    version = claim.metadata.annotations.get(NODEPOOL_HASH_VERSION)
    desired = hashes.get(pool.name)
    if recorded is None or desired is None or version != NODE_POOL_HASH_VERSION:
        return None
    if recorded == desired:
        return _NO_DRIFT
    return _Finding(NODE_POOL_DRIFTED, recorded, desired, template_fields(claim, pool))


def _requirement_drift(labels: Mapping[str, str], wanted: Requirements) -> _Finding:
    conflict = Requirements.from_labels(labels).first_conflict(wanted)
    if conflict is None:
        return _NO_DRIFT
    old = labels.get(conflict.key)
    change = FieldChange(_REQUIREMENTS_PATH, old, str(conflict.requested), drifts=True)
    return _Finding(REQUIREMENTS_DRIFTED, fields=(change,))


def _type_drift(claim: NodeClaim, checked: _PoolChecks, now: datetime) -> _Finding | None:
    """Check whether the catalog still has the claim's offering, available or not.

    As in Karpenter, only claims older than an hour are checked. Without any types there is no
    result.
    """
    created = claim.metadata.creation_timestamp
    if not checked.pool.types.types:
        return None
    if created is None or now - created <= _TYPE_CHECK_AGE:
        return _NO_DRIFT
    labels = claim.metadata.labels
    if checked.has_offering(labels):
        return _NO_DRIFT
    change = FieldChange(INSTANCE_TYPE, labels.get(INSTANCE_TYPE) or None, None, drifts=True)
    return _Finding(INSTANCE_TYPE_NOT_FOUND, fields=(change,), side=Side.WORLD)


def _has_offering(
    labels: Mapping[str, str], kind: InstanceType, well_known: Collection[str]
) -> bool:
    """Return whether a type has an offering with these labels, available or not."""
    wanted = Requirements.from_labels(labels)
    if labels.get(CAPACITY_TYPE) == RESERVED:
        # it may have been demoted to on-demand, and its reservation is set by the provider
        either = requirement(CAPACITY_TYPE, "In", (RESERVED, ON_DEMAND))
        own = {r.key for o in kind.offerings for r in o.extra if o.capacity_type == RESERVED}
        rest = wanted.without(own | _OFFERING_KEYS)
        wanted = rest.with_requirements([either])
    return any(wanted.is_compatible(o.requirements, well_known) for o in kind.offerings)
