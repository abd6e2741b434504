"""Limit the cost of preferences: pods that are packed for cost drop those that cost too much.

A preference is not a constraint, and yet Karpenter pays any price for it: two pods that prefer to
be apart get two nodes. The cost of preferences is therefore measured by packing without them. If it
exceeds the configured maximum, the most expensive ones are dropped until it no longer does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from reconciler.placement.answer import Attempt
from reconciler.placement.packing.goal import Depth, Goal, PackingScore
from reconciler.placement.pods.shape import Shape

_ALMOST = 1e-9
_PARTS_MAX = 8
"""Maximum number of groups of preferences to try; with more shapes, several share a group."""


class Thrift:
    """Finds the preferences of one question that cost too much.

    ``attempt`` places the pods without the preferences of the given shapes.
    """

    def __init__(self, goal: Goal, attempt: Callable[[Collection[Shape], Depth], Attempt]) -> None:
        self._goal = goal
        self._attempt = attempt

    def applied(
        self, full: Attempt, with_preferences: Sequence[Shape], least: float
    ) -> tuple[Attempt, float]:
        """Return the final attempt, and its saving compared to ``full`` in USD an hour.

        ``full`` has every preference; ``with_preferences`` are the shapes that have some. Nodes
        without any preference cost at least ``least`` USD an hour.
        """
        full_score = self._outcome(full)
        if not with_preferences or full_score.cost <= self._allowed(least):
            return full, 0.0
        chosen = self._attempt(with_preferences, "third")
        bare_score = self._outcome(chosen)
        if bare_score.waiting > full_score.waiting or full_score.cost <= self._allowed(
            bare_score.cost
        ):
            return full, 0.0
        for needed in self._fewer(with_preferences, bare_score):
            fewer = self._attempt(needed, "third")
            reached = self._outcome(fewer)
            if reached.waiting <= bare_score.waiting and reached.cost <= self._allowed(
                bare_score.cost
            ):
                chosen = fewer
                break
        return chosen, full_score.cost - self._outcome(chosen).cost

    def _outcome(self, attempt: Attempt) -> PackingScore:
        return self._goal.reached(attempt.solving, attempt.cohorts)

    def _allowed(self, without: float) -> float:
        """Return the maximum cost with preferences, given the cost ``without`` them."""
        return without / (1 - self._goal.preference_cost_max) + _ALMOST

    def _fewer(
        self, with_preferences: Sequence[Shape], bare: PackingScore
    ) -> Iterator[list[Shape]]:
        """Yield growing lists of shapes whose preferences to drop, first the expensive ones.

        The cost of some pods' preferences is estimated by keeping only these.
        """
        parts = list(_parts(with_preferences))
        if len(parts) == 1:
            return
        none = self._outcome(self._attempt(with_preferences, "brief"))
        costs: list[tuple[float, int]] = []
        for number in range(len(parts)):
            alone = self._outcome(self._attempt(_all_but(parts, {number}), "brief"))
            if alone.waiting <= none.waiting:
                costs.append((max(0.0, alone.cost - none.cost), number))
        left, kept = self._allowed(bare.cost) - bare.cost, []
        for cost, number in sorted(costs)[: len(parts) - 1]:
            left -= cost
            if left >= 0:
                kept.append(number)
        while kept:
            yield _all_but(parts, kept)
            kept = kept[: len(kept) // 2]


def _all_but(parts: Sequence[Sequence[Shape]], kept: Collection[int]) -> list[Shape]:
    return [s for number, part in enumerate(parts) if number not in kept for s in part]


def _parts(shapes: Sequence[Shape]) -> Iterator[Sequence[Shape]]:
    size = -(-len(shapes) // _PARTS_MAX)
    for start in range(0, len(shapes), size):
        yield shapes[start : start + size]
