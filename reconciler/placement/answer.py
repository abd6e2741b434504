"""From the pass that stands to the answer: claims, places, and why a pod has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from reconciler.model.pod import Pod
from reconciler.placement.cohort import Cohort
from reconciler.placement.finish import Finisher
from reconciler.placement.reasons import Explainer
from reconciler.placement.result import GivenUp, Placement, PlannedClaim, Rejection
from reconciler.placement.shape import Shape
from reconciler.placement.solve import Pass
from reconciler.placement.template import Template


class Attempt(msgspec.Struct, frozen=True, eq=False):
    """A pass that is over, with its cohorts as it left them.

    ``refused`` are pods that no pass could place. The pods of the shapes in ``modest`` were
    placed as if they had no preferences.
    """

    solving: Pass
    cohorts: Sequence[Cohort]
    refused: Mapping[str, tuple[Rejection, ...]]
    modest: Mapping[Shape, Sequence[Pod]] = {}

    @property
    def placed(self) -> list[Pod]:
        """The pods that have a place."""
        return [pod for cohort in self.cohorts for pod in cohort.pods[: cohort.waiting_from]]


def answer(
    attempt: Attempt, templates: Sequence[Template], salt: str, saving: float = 0.0
) -> Placement:
    """Return the answer that an attempt comes to; ``salt`` goes into the names of its claims.

    ``templates`` are all NodePools that were asked for. ``saving`` is what it saves, in USD an
    hour, that preferences were given up.
    """
    solving, cohorts = attempt.solving, attempt.cohorts
    claims: list[PlannedClaim] = []
    unschedulable = dict(attempt.refused)
    finisher = Finisher(salt)
    for claim in solving.claims:
        finished = finisher.finished(claim)
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
    explainer = Explainer(solving, templates)
    for cohort in cohorts:
        if cohort.waiting:
            reasons = explainer.why_not(cohort)
            kind = deferred if cohort in solving.deferred else unschedulable
            kind |= {pod.key: reasons for pod in cohort.pods[cohort.waiting_from :]}
    placed = _placed(cohorts) if solving.steps_taken or attempt.modest else {}
    given_up = dict(_given_up(attempt.modest, placed))
    return Placement(
        claims=tuple(sorted(claims, key=lambda c: c.name)),
        on_nodes=_on_nodes(solving),
        unschedulable=dict(sorted(unschedulable.items())),
        deferred=dict(sorted(deferred.items())),
        relaxed=_relaxed(solving, placed, given_up),
        given_up=GivenUp(given_up, saving) if given_up else None,
        uninitialized_targets=_uninitialized(solving),
    )


def _on_nodes(solving: Pass) -> dict[str, str]:
    rows = solving.nodes.nodes.rows
    found = {
        pod.key: rows[index].name for index, pods in solving.nodes.placed.items() for pod in pods
    }
    return dict(sorted(found.items()))


def _uninitialized(solving: Pass) -> frozenset[str]:
    rows = solving.nodes.nodes.rows
    return frozenset(
        pod.key
        for index, pods in solving.nodes.placed.items()
        if not rows[index].is_initialized
        for pod in pods
    )


def _placed(cohorts: Sequence[Cohort]) -> dict[str, Cohort]:
    return {pod.key: cohort for cohort in cohorts for pod in cohort.pods[: cohort.waiting_from]}


def _given_up(
    modest: Mapping[Shape, Sequence[Pod]], placed: Mapping[str, Cohort]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the preferences of each pod that has a place without having been asked for them."""
    for shape, pods in modest.items():
        for pod in pods:
            if pod.key in placed:
                yield pod.key, shape.preferences


def _relaxed(
    solving: Pass, placed: Mapping[str, Cohort], given_up: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    found = dict(given_up)
    for key, step in solving.steps_taken.items():
        if step and key in placed:
            dropped = (s.dropped for s in placed[key].shape.steps[1 : step + 1])
            found[key] = (*found.get(key, ()), *dropped)
    return dict(sorted(found.items()))
