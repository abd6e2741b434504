"""Convert a finished pass into a ``Placement``: NodeClaims, pod assignments and rejections.

When a claim is final, requirements that only the simulation needs (the hostname, life-cycle labels)
are removed. The decisions are written into it: instance types (cheapest first), their capacity
types, and the reservations it holds (Karpenter ``FinalizeScheduling``, ``ToNodeClaim``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from reconciler.catalog.table import TypeTable, bits
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    HOSTNAME,
    INITIALIZED,
    INSTANCE_TYPE,
    MIN_VALUES_RELAXED,
    REGISTERED,
    RESERVED,
)
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Operator, Requirements, requirement
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import add_resources
from reconciler.placement.explain.reasons import Explainer
from reconciler.placement.nodes.claims import OpenClaim
from reconciler.placement.nodes.daemons import minimum_requests
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate, min_values_shortfalls
from reconciler.placement.pods.cohort import Cohort
from reconciler.placement.pods.shape import Shape
from reconciler.placement.question import (
    TYPES_MAX,
    DroppedPreferences,
    Placement,
    PlannedClaim,
    Rejection,
)
from reconciler.placement.solve import PlacementPass
from reconciler.placement.work import PlacementWork, WorkLimit

_SIMULATION_LABELS: Final = (REGISTERED, INITIALIZED)
_NAME_MAX: Final = 62

_UNEXPLAINED: Final = Rejection(
    "WorkLimit",
    "it fits no node; the reasons were not determined, because the rules of too many pods would "
    "have to be compared: use fewer different topology spread and (anti-)affinity rules",
)


class Finisher:
    """Converts claims to NodeClaims; ``salt`` keeps names of different passes distinct.

    It may be kept for all placements of a scheduler, which ask for few different claims.
    """

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._used: set[str] = set()
        self._named: dict[tuple[Space, int], Requirements] = {}
        self._texts: dict[Space, str] = {}

    def begin(self) -> None:
        """Begin another placement: its names need not differ from those of earlier ones."""
        self._used = set()

    def finish(self, claim: OpenClaim) -> PlannedClaim | None:
        """Return the NodeClaim, or None if too few instance types are left to satisfy it."""
        template = claim.template
        table, pool = template.table, template.node_pool
        space = _with_reservations(claim)
        order = table.cheapest_types(space.offers, claim.mask, TYPES_MAX)
        strict = space.has_min_values and not template.best_effort
        if strict and len(order) == TYPES_MAX and min_values_shortfalls(table, bits(order), space):
            return None
        requirements = self._final_requirements(table, space, order, claim.mask)
        pods = tuple(sorted(pod.key for _, pods in claim.members for pod in pods))
        text = self._texts.get(claim.space)
        if text is None:
            text = self._texts[claim.space] = str(claim.space.requirements)
        relaxed = "true" if claim.min_values_relaxed else "false"
        return PlannedClaim(
            name=self._claim_name(pool.name, text, *pods),
            node_pool=pool,
            pods=pods,
            requests=add_resources(
                claim.requests, minimum_requests(template.daemon_groups, claim.mask)
            ),
            requirements=requirements,
            types=table.select_types(order),
            types_total=claim.mask.bit_count(),
            labels=claim_labels(pool, requirements, table.well_known),
            annotations={**pool.spec.template.metadata.annotations, MIN_VALUES_RELAXED: relaxed},
            taints=template.taints,
            startup_taints=pool.spec.template.spec.startup_taints,
            min_values_relaxed=claim.min_values_relaxed,
            device_drivers=claim.load.drivers(claim.mask) if claim.load is not None else (),
        )

    def _claim_name(self, pool: str, *parts: str) -> str:
        name = distinct_name(pool, (self._salt, *parts), self._used)
        self._used.add(name)
        return name

    def _final_requirements(
        self, table: TypeTable, space: Space, order: tuple[int, ...], mask: int
    ) -> Requirements:
        known = self._named.get((space, mask))
        if known is None:
            capacity_types = tuple(space.capacity_types(mask))
            names = tuple(table.names[i] for i in order)
            known = space.requirements.without(_SIMULATION_LABELS).with_requirements(
                [
                    requirement(INSTANCE_TYPE, Operator.IN, names),
                    requirement(CAPACITY_TYPE, Operator.IN, capacity_types),
                ]
            )
            self._named[space, mask] = known
        return known


def _with_reservations(claim: OpenClaim) -> Space:
    """Return the claim's space, restricted to the reservations that it holds."""
    if not claim.held:
        return claim.space
    key = claim.template.table.reservation_key
    return claim.template.book.space_for(
        claim.space.requirements.with_requirements(
            [
                requirement(CAPACITY_TYPE, Operator.IN, (RESERVED,)),
                requirement(key, Operator.IN, tuple(sorted(claim.held))),
            ]
        )
    )


def claim_labels(
    pool: NodePool, requirements: Requirements, well_known: frozenset[str]
) -> dict[str, str]:
    """Return the labels of a NodeClaim: the template's, and a value for each custom requirement.

    The provider sets well-known labels once it knows what it launched.
    """
    found = pool.labels()
    for key, wanted in requirements.items():
        if key in well_known or key == HOSTNAME or key in found:
            continue
        value = wanted.any_value()
        if value:
            found[key] = value
    return found


def claim_name(pool: str, parts: tuple[str, ...], digits: int = 8) -> str:
    """Return a name of at most 63 characters with the NodePool's name and a hash of the parts."""
    digest = sha256("\0".join(parts).encode()).hexdigest()
    return f"{pool[: _NAME_MAX - digits]}-{digest[:digits]}"


def distinct_name(pool: str, parts: tuple[str, ...], used: Collection[str]) -> str:
    """Return the ``claim_name``, with a longer hash if a claim has that name already.

    Tenants choose the names of pods, so they can find two with the same short hash.
    """
    name = claim_name(pool, parts)
    return name if name not in used else claim_name(pool, parts, digits=32)


class Attempt(msgspec.Struct, frozen=True, eq=False):
    """A finished pass, with its cohorts in their final state.

    ``refused`` are pods that no pass can place. Pods of the shapes in ``without_preferences`` were
    placed without them. ``not_admitted`` are cohorts whose rules take too much work to compare.
    """

    placement_pass: PlacementPass
    cohorts: Sequence[Cohort]
    rejections: Mapping[str, tuple[Rejection, ...]]
    without_preferences: Mapping[Shape, Sequence[Pod]] = {}
    not_admitted: Sequence[Cohort] = ()

    def release(self) -> None:
        """Break the cycles in it, once its placement is known."""
        for cohort in self.cohorts:
            cohort.release()

    @property
    def placed_pods(self) -> list[Pod]:
        """The pods that were assigned to a node or a claim."""
        return [pod for cohort in self.cohorts for pod in cohort.pods[: cohort.waiting_from]]


def build_placement(
    attempt: Attempt, templates: Sequence[PoolTemplate], finisher: Finisher, saving: float = 0.0
) -> Placement:
    """Return the placement of an attempt; ``finisher`` makes its claims.

    ``templates`` are all requested NodePools. ``saving`` is the saving from dropped preferences, in
    USD an hour.
    """
    placement_pass, cohorts = attempt.placement_pass, attempt.cohorts
    claims: list[PlannedClaim] = []
    unschedulable = dict(attempt.rejections)
    finisher.begin()
    for claim in placement_pass.claims:
        finished = finisher.finish(claim)
        if finished is not None:
            claims.append(finished)
            continue
        reason = Rejection(
            "MinValuesAfterTruncation",
            f"the 600 cheapest instance types do not satisfy minValues of NodePool "
            f"{claim.template.name}: lower minValues",
            claim.template.name,
        )
        for _, pods in claim.members:
            unschedulable |= {pod.key: (reason,) for pod in pods}
    deferred: dict[str, tuple[Rejection, ...]] = {}
    explainer = Explainer(placement_pass, templates)
    limit, explaining = _work_limit(attempt), PlacementWork(placement_pass.work.limit)
    for cohort in (*cohorts, *attempt.not_admitted):
        if cohort.waiting:
            if limit is not None and _is_unserved(cohort, attempt):
                reasons: tuple[Rejection, ...] = (_work_rejection(limit, cohort.shape.namespace),)
            elif explaining.is_over:
                reasons = (_UNEXPLAINED,)
            else:
                reasons = explainer.rejections(cohort)
                checks = cohort.stages[-1].view_checks * (1 + len(templates))
                explaining.charge(cohort.shape.namespace, checks)
            kind = deferred if cohort in placement_pass.deferred else unschedulable
            kind |= {pod.key: reasons for pod in cohort.pods[cohort.waiting_from :]}
    placed = (
        {pod.key: cohort for cohort in cohorts for pod in cohort.pods[: cohort.waiting_from]}
        if placement_pass.steps_taken or attempt.without_preferences
        else {}
    )
    given_up = dict(_ignored_preferences(attempt.without_preferences, placed))
    return Placement(
        claims=tuple(sorted(claims, key=lambda c: c.name)),
        on_nodes=_node_by_pod(placement_pass),
        unschedulable=dict(sorted(unschedulable.items())),
        deferred=dict(sorted(deferred.items())),
        relaxed=_dropped_preferences(placement_pass, placed, given_up),
        given_up=DroppedPreferences(given_up, saving) if given_up else None,
        uninitialized_targets=_uninitialized_targets(placement_pass),
        work_limit=limit,
    )


def _is_unserved(cohort: Cohort, attempt: Attempt) -> bool:
    return cohort in attempt.placement_pass.unserved or cohort in attempt.not_admitted


def _work_limit(attempt: Attempt) -> WorkLimit | None:
    cohorts = (*attempt.cohorts, *attempt.not_admitted)
    pods = sum(cohort.waiting for cohort in cohorts if _is_unserved(cohort, attempt))
    return attempt.placement_pass.work.reached(pods) if pods else None


def _work_rejection(limit: WorkLimit, namespace: str) -> Rejection:
    """Return the reason for a pod, which its author reads: it names no other namespace."""
    share = limit.namespaces.get(namespace)
    of = f"namespace {namespace} ({share}%)" if share is not None else "other namespaces"
    if not limit.namespaces:
        of = str(limit)
    return Rejection(
        "WorkLimit",
        f"placement reached its limit of work, much of it for pods of {of}: they need simpler "
        "topology spread and (anti-)affinity rules, or fewer different ones",
    )


def closed_rejection(namespace: str) -> Rejection:
    """Return the reason for a running pod that is not moved, to spare the pods of others."""
    return Rejection(
        "WorkLimit",
        f"simulated removals reached the limit of work for pods of namespace {namespace}: they "
        "need simpler topology spread and (anti-)affinity rules, or fewer different ones",
    )


def _node_by_pod(placement_pass: PlacementPass) -> dict[str, str]:
    rows = placement_pass.nodes.nodes.rows
    found = {
        pod.key: rows[index].name
        for index, pods in placement_pass.nodes.placed.items()
        for pod in pods
    }
    return dict(sorted(found.items()))


def _uninitialized_targets(placement_pass: PlacementPass) -> frozenset[str]:
    rows = placement_pass.nodes.nodes.rows
    return frozenset(
        pod.key
        for index, pods in placement_pass.nodes.placed.items()
        if not rows[index].is_initialized
        for pod in pods
    )


def _ignored_preferences(
    without_preferences: Mapping[Shape, Sequence[Pod]], placed: Mapping[str, Cohort]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield, for each placed pod, the preferences that were ignored when it was placed."""
    for shape, pods in without_preferences.items():
        for pod in pods:
            if pod.key in placed:
                yield pod.key, shape.preferences


def _dropped_preferences(
    placement_pass: PlacementPass,
    placed: Mapping[str, Cohort],
    given_up: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    found = dict(given_up)
    for key, step in placement_pass.steps_taken.items():
        if step and key in placed:
            dropped = (s.dropped for s in placed[key].shape.steps[1 : step + 1])
            found[key] = (*found.get(key, ()), *dropped)
    return dict(sorted(found.items()))
